// Pieces of a layer that several kernels share: GELU, dropout and attention.

// GELU and its derivative in half precision, two numbers per instruction.

DEVICE u32 pack_half(float low, float high) {
    u32 r;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DEVICE u32 add_half2(u32 a, u32 b) {
    u32 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
DEVICE u32 mul_half2(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
DEVICE u32 fma_half2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
DEVICE u32 p_minus_p2(u32 a) {
    u32 r;
    asm("{ .reg .b32 n; neg.f16x2 n, %1; fma.rn.f16x2 %0, n, %1, %1; }" : "=r"(r) : "r"(a));
    return r;
}
DEVICE u32 min_half2(u32 a, u32 b) {
    u32 r;
    asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
DEVICE u32 tanh_half2(u32 a) {
    u32 r;
    asm("tanh.approx.f16x2 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}
DEVICE u32 half2_to_bf16(u32 a) {
    u32 r;
    asm("{ .reg .b16 l, h; .reg .f32 x, y; mov.b32 {l, h}, %1; cvt.f32.f16 x, l; cvt.f32.f16 y, h;"
        " cvt.rn.bf16x2.f32 %0, y, x; }" : "=r"(r) : "r"(a));
    return r;
}

// Eight independent pairs per step hide the latency of each instruction.
constexpr int PAIRS = 8;
#define EACH _Pragma("unroll") for (int i = 0; i < PAIRS; i++)

// `values` gets GELU in bf16, `packed_grads` its derivative, one byte per number. The normal cdf is
// approximated by (1 + tanh(0.8 x + 0.0347 x^3)) / 2 with x^2 capped at 16. The derivative is
// stored as 200 times its value plus 27: added to 1024, where half precision has integers only, so
// that the low byte is the number.
DEVICE void gelu_pairs(const float* accumulators, const u32* bias, u32* values, u32* packed_grads) {
    constexpr u32 LINEAR = 0x3A663A66, CUBIC = 0x28722872;           // 0.8, 0.0347
    constexpr u32 MAX_SQUARE = 0x4C004C00, HALF = 0x38003800;        // 16, 0.5
    constexpr u32 GRAD_LINEAR = 0x3E663E66, GRAD_CUBIC = 0x32AC32AC;  // derivative: 1.6, 0.2085
    constexpr u32 SCALE = 0x5A405A40, OFFSET = 0x641B641B;  // 200, 1024 + 27
    u32 x[PAIRS], square[PAIRS], cdf[PAIRS], grad[PAIRS];
    EACH x[i] = add_half2(pack_half(accumulators[2 * i], accumulators[2 * i + 1]), bias[i / 2]);
    EACH square[i] = mul_half2(x[i], x[i]);
    EACH square[i] = min_half2(square[i], MAX_SQUARE);
    EACH cdf[i] = fma_half2(square[i], CUBIC, LINEAR);
    EACH cdf[i] = mul_half2(cdf[i], x[i]);
    EACH cdf[i] = tanh_half2(cdf[i]);
    EACH grad[i] = fma_half2(square[i], GRAD_CUBIC, GRAD_LINEAR);
    EACH cdf[i] = fma_half2(cdf[i], HALF, HALF);
    EACH values[i] = half2_to_bf16(mul_half2(cdf[i], x[i]));
    EACH grad[i] = mul_half2(p_minus_p2(cdf[i]), grad[i]);
    EACH grad[i] = fma_half2(fma_half2(grad[i], x[i], cdf[i]), SCALE, OFFSET);
#pragma unroll
    for (int i = 0; i < PAIRS; i += 2)
        packed_grads[i / 2] = __byte_perm(grad[i], grad[i + 1], 0x6420);
}
// Unpacks a stored derivative through the low bits of 2^23, where fp32 has integers only.
template <int BYTE> DEVICE float unpack_gelu_grad(u32 packed) {
    constexpr float OFFSET = 8388608.0f + 27.0f, INV_SCALE = 1.0f / 200;
    return (__uint_as_float(__byte_perm(packed, 0x4B000000u, 0x7440 + BYTE)) - OFFSET) * INV_SCALE;
}

// GELU of a thread's accumulators of a 64 x 64 tile; `bias` is the address of the half-precision
// bias of its first two columns.
DEVICE void gelu_tile(const float* accumulators, u32 bias, u32* values, u32* packed_grads) {
#pragma unroll
    for (int j = 0; j < 16; j += PAIRS) {
        u32 b[PAIRS / 2];
#pragma unroll
        for (int k = 0; k < PAIRS / 2; k++) b[k] = ld_shared(bias + (4 * j + 8 * k) * 2);
        gelu_pairs(accumulators + 2 * j, b, values + j, packed_grads + j / 2);
    }
}
// Multiplies the accumulators of a tile by the stored derivative.
DEVICE void mul_gelu_grad_tile(const float* accumulators, const u32* packed_grads, u32* pairs) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float* z = accumulators + 4 * j;
        u32 g = packed_grads[j];
        pairs[2 * j] = pack_bf16(z[0] * unpack_gelu_grad<0>(g), z[1] * unpack_gelu_grad<1>(g));
        pairs[2 * j + 1] = pack_bf16(z[2] * unpack_gelu_grad<2>(g), z[3] * unpack_gelu_grad<3>(g));
    }
}

// Random bits for dropout, the same as those of the Triton kernels.

constexpr u32 MIX_1 = 0x7FEB352Du, MIX_2 = 0x846CA68Bu, GOLDEN_RATIO = 0x9E3779B1u;
constexpr u32 HALF_INFINITY = 0x7C00;
DEVICE u32 mix_bits(u32 x) {
    x ^= x >> 16;
    x *= MIX_1;
    x ^= x >> 15;
    x *= MIX_2;
    return x ^ (x >> 16);
}
// Both halves of the 64-bit product, combined by xor. In PTX because the compiler would add the
// zero upper halves of the factors.
DEVICE u32 rng_bits(u32 x, u32 y) {
    u32 r;
    asm("{ .reg .b64 w; .reg .b32 l, h;\n"
        "mul.wide.u32 w, %1, %2; mov.b64 {l, h}, w; xor.b32 %0, l, h; }"
        : "=r"(r) : "r"(x), "r"(y));
    return r;
}
DEVICE u32 rng_key(u32 index, u32 seed) {
    return rng_bits(index * GOLDEN_RATIO + seed, MIX_2) | 1;
}
// An element is dropped when its half word, compared as a float16, is at least this threshold;
// `drop_count` of 65,536 patterns are.
DEVICE u32 drop_threshold(int drop_count) { return (HALF_INFINITY + 1 - drop_count) * 0x10001u; }
// Drops two elements, those of the lower and the upper half word, and rescales the rest.
DEVICE void apply_dropout(float& low, float& high, u32 bits, u32 threshold, float rescale) {
    asm("{ .reg .pred p, q; setp.ge.f16x2 p|q, %2, %3;\n"
        "mul.f32 %0, %0, %4; mul.f32 %1, %1, %4;\n"
        "@p mov.f32 %0, 0f00000000; @q mov.f32 %1, 0f00000000; }"
        : "+f"(low), "+f"(high) : "r"(bits), "r"(threshold), "f"(rescale));
}

// Softmax and dropout of attention over sequences of 128 tokens, between the GEMMs.

constexpr int SEQ_LENGTH = 128;
DEVICE float exp2_approx(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEVICE float log2_approx(float x) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
// Masks the scores between different documents. `doc_ids` is the shared memory address of the
// sequence's ids, `own_doc` that of this thread's first row; the second is eight further.
DEVICE void mask_other_documents(float (&scores)[64], u32 doc_ids, u32 own_doc, int frag_col) {
    if (ld_shared(doc_ids) == ld_shared(doc_ids + 4 * (SEQ_LENGTH - 1))) return;
    u32 own0 = ld_shared(own_doc), own1 = ld_shared(own_doc + 32);
#pragma unroll
    for (int j = 0; j < 16; j++) {
        uint2 doc_id = ld_shared2(doc_ids + 4 * (8 * j + frag_col));
        if (doc_id.x != own0) scores[4 * j] = -1e30f;
        if (doc_id.y != own0) scores[4 * j + 1] = -1e30f;
        if (doc_id.x != own1) scores[4 * j + 2] = -1e30f;
        if (doc_id.y != own1) scores[4 * j + 3] = -1e30f;
    }
}

// --- Forward: tiles (queries, keys); a warpgroup has 64 queries.

DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
// Dropout of two keys' probabilities for one query, without rescaling.
DEVICE void zero_dropped(float& p0, float& p1, u32 bits, u32 threshold) {
    asm("{ .reg .pred p, q; setp.ge.f16x2 p|q, %2, %3;\n"
        "@p mov.f32 %0, 0f00000000; @q mov.f32 %1, 0f00000000; }"
        : "+f"(p0), "+f"(p1) : "r"(bits), "r"(threshold));
}
// Turns the scores of two queries into exp scores after dropout, packed as the A operand of the
// next GEMM. `row_keys` and `col_keys` are the dropout keys of the queries and of the thread's
// pairs of keys. `row_max` gets the scaled maxima, `row_sum` this thread's share of the sum of exp
// scores.
DEVICE void softmax_dropout(
    float (&scores)[64], float scale, const u32 (&col_keys)[16], const u32 (&row_keys)[2],
    u32 threshold, float (&row_max)[2], float (&row_sum)[2], u32 (&probs)[32])
{
    float partial_max[4] = {scores[0], scores[1], scores[2], scores[3]}, partial_sum[4] = {};
#pragma unroll
    for (int j = 4; j < 64; j++) partial_max[j % 4] = fmaxf(partial_max[j % 4], scores[j]);
#pragma unroll
    for (int h = 0; h < 2; h++)
        row_max[h] = quad_max(fmaxf(partial_max[2 * h], partial_max[2 * h + 1])) * scale;
#pragma unroll
    for (int j = 14; j >= 0; j -= 2) {  // descending: the packed pairs reuse the scores' registers
        float *p = scores + 4 * j, *other = p + 4;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            p[i] = exp2_approx(p[i] * scale - row_max[i / 2 % 2]);
            partial_sum[i % 4] += p[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            zero_dropped(p[i], other[i], rng_bits(col_keys[j + i % 2], row_keys[i / 2]), threshold);
#pragma unroll
        for (int i = 0; i < 4; i++) probs[2 * j + i] = pack_bf16(p[2 * i], p[2 * i + 1]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) row_sum[h] = partial_sum[2 * h] + partial_sum[2 * h + 1];
}

// --- Backward: tiles (keys, queries); a warpgroup has 64 keys.

// Dropout, as in the Triton kernels, for two keys and one query: `p` becomes the
// probability after dropout, `d` the gradient of the score.
DEVICE void dropout_backward(
    float& p0, float& p1, float& d0, float& d1, float neg_delta, u32 bits, u32 threshold)
{
    asm("{ .reg .pred p, q; .reg .f32 a, b;\n"
        "setp.ge.f16x2 p|q, %5, %6;\n"
        "mul.f32 a, %0, %4; mul.f32 b, %1, %4;\n"
        "@!p fma.rn.f32 a, %0, %2, a; @!q fma.rn.f32 b, %1, %3, b;\n"
        "mov.f32 %2, a; mov.f32 %3, b;\n"
        "selp.f32 %0, 0f00000000, %0, p; selp.f32 %1, 0f00000000, %1, q; }"
        : "+f"(p0), "+f"(p1), "+f"(d0), "+f"(d1)
        : "f"(neg_delta), "r"(bits), "r"(threshold));
}
// For two queries and the thread's two keys, which share `pair_key`: scores `p` become
// probabilities after dropout, `d` (the gradient of the probabilities) becomes that of the scores.
DEVICE void softmax_backward(
    float* p, float* d, float scale, float2 lse, float2 neg_delta, uint2 query_keys, u32 pair_key,
    u32 threshold, u32* probs, u32* grad_scores)
{
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = exp2_approx(p[i] * scale - (i % 2 ? lse.y : lse.x));
    u32 bits_x = rng_bits(pair_key, query_keys.x);
    dropout_backward(p[0], p[2], d[0], d[2], neg_delta.x, bits_x, threshold);
    u32 bits_y = rng_bits(pair_key, query_keys.y);
    dropout_backward(p[1], p[3], d[1], d[3], neg_delta.y, bits_y, threshold);
    probs[0] = pack_bf16(p[0], p[1]), probs[1] = pack_bf16(p[2], p[3]);
    grad_scores[0] = pack_bf16(d[0], d[1]), grad_scores[1] = pack_bf16(d[2], d[3]);
}
