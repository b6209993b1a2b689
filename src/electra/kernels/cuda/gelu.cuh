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
