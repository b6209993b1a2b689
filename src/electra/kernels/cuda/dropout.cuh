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
