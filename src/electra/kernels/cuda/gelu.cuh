// gelu in half precision, where an instruction has two numbers at once, and its slopes.

__device__ __forceinline__ u32 halves(float low, float high) {
    u32 r;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ u32 plus(u32 a, u32 b) {
    u32 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 times(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 times_plus(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
__device__ __forceinline__ u32 minus_square(u32 a) {
    u32 r;
    asm("{ .reg .b32 n; neg.f16x2 n, %1; fma.rn.f16x2 %0, n, %1, %1; }" : "=r"(r) : "r"(a));
    return r;
}
__device__ __forceinline__ u32 at_most(u32 a, u32 b) {
    u32 r;
    asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 tanh_of(u32 a) {
    u32 r;
    asm("tanh.approx.f16x2 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}
__device__ __forceinline__ u32 as_bf16(u32 a) {
    u32 r;
    asm("{ .reg .b16 l, h; .reg .f32 x, y; mov.b32 {l, h}, %1; cvt.f32.f16 x, l; cvt.f32.f16 y, h;"
        " cvt.rn.bf16x2.f32 %0, y, x; }" : "=r"(r) : "r"(a));
    return r;
}

// Pairs at once, step by step: each step's eight do not wait for each other.
constexpr int BATCH = 8;
#define EACH _Pragma("unroll") for (int i = 0; i < BATCH; i++)

// Values in bf16 and slopes as bytes. The share of the normal distribution below x is taken as
// (1 + tanh(0.8 x + 0.0347 x^3)) / 2, with x^2 at most 16. A slope is a whole number above 1024,
// where half precision has no others and its low byte is the number's.
__device__ __forceinline__ void gelu(const float* z, const u32* bias, u32* values, u32* slopes) {
    constexpr u32 ONCE = 0x3A663A66, CUBE = 0x28722872, CAP = 0x4C004C00, HALF = 0x38003800;
    constexpr u32 TWICE = 0x3E663E66, SQUARE = 0x32AC32AC;  // of the derivative: 1.6, 0.2085
    constexpr u32 STEPS = 0x5A405A40, ZERO = 0x641B641B;    // 200, and 1024 + 27
    u32 x[BATCH], s[BATCH], p[BATCH];
    EACH x[i] = plus(halves(z[2 * i], z[2 * i + 1]), bias[i / 2]);
    EACH s[i] = times(x[i], x[i]);
    EACH s[i] = at_most(s[i], CAP);
    EACH p[i] = times_plus(s[i], CUBE, ONCE);
    EACH p[i] = times(p[i], x[i]);
    EACH p[i] = tanh_of(p[i]);
    EACH s[i] = times_plus(s[i], SQUARE, TWICE);
    EACH p[i] = times_plus(p[i], HALF, HALF);
    EACH values[i] = as_bf16(times(p[i], x[i]));
    EACH s[i] = times(minus_square(p[i]), s[i]);
    EACH s[i] = times_plus(times_plus(s[i], x[i], p[i]), STEPS, ZERO);
#pragma unroll
    for (int i = 0; i < BATCH; i += 2) slopes[i / 2] = __byte_perm(s[i], s[i + 1], 0x6420);
}
// A stored slope, put into the lowest bits of 2^23: fp32 has whole numbers alone there.
template <int BYTE> __device__ __forceinline__ float slope(u32 four) {
    constexpr float ZERO = 8388608.0f + 27.0f, STEP = 1.0f / 200;
    return (__uint_as_float(__byte_perm(four, 0x4B000000u, 0x7440 + BYTE)) - ZERO) * STEP;
}

// A thread's numbers of a box; at `bias` is that of its first two columns, in halves
__device__ __forceinline__ void gelu_box(const float* z, u32 bias, u32* values, u32* slopes) {
#pragma unroll
    for (int j = 0; j < 16; j += BATCH) {
        u32 b[BATCH / 2];
#pragma unroll
        for (int k = 0; k < BATCH / 2; k++) b[k] = shared_word(bias + (4 * j + 8 * k) * 2);
        gelu(z + 2 * j, b, values + j, slopes + j / 2);
    }
}
// Numbers of a box times slopes
__device__ __forceinline__ void bend_box(const float* z, const u32* slopes, u32* pairs) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float* four = z + 4 * j;
        u32 s = slopes[j];
        pairs[2 * j] = pack(four[0] * slope<0>(s), four[1] * slope<1>(s));
        pairs[2 * j + 1] = pack(four[2] * slope<2>(s), four[3] * slope<3>(s));
    }
}
