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
