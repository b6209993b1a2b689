// Random bits for dropout, as in dropout.py.

constexpr u32 FIRST = 0x7FEB352Du, SECOND = 0x846CA68Bu, GOLDEN = 0x9E3779B1u, INFINITE = 0x7C00;
__device__ __forceinline__ u32 mix(u32 x) {
    x ^= x >> 16;
    x *= FIRST;
    x ^= x >> 15;
    x *= SECOND;
    return x ^ (x >> 16);
}
// Written out, because the compiler would add the zeros that words of 64 bits begin with.
__device__ __forceinline__ u32 fold(u32 x, u32 y) {
    u32 r;
    asm("{ .reg .b64 w; .reg .b32 l, h;\n"
        "mul.wide.u32 w, %1, %2; mov.b64 {l, h}, w; xor.b32 %0, l, h; }"
        : "=r"(r) : "r"(x), "r"(y));
    return r;
}
__device__ __forceinline__ u32 key_at(u32 index, u32 start) {
    return fold(index * GOLDEN + start, SECOND) | 1;
}
// Halves of a word that are at least this drop their element; so many patterns of 65,536 are.
__device__ __forceinline__ u32 drop_bound(int drops) { return (INFINITE + 1 - drops) * 0x10001u; }
// Two elements, the lower half's and the upper half's
__device__ __forceinline__ void drop(float& low, float& high, u32 bits, u32 bound, float rescale) {
    asm("{ .reg .pred p, q; setp.ge.f16x2 p|q, %2, %3;\n"
        "mul.f32 %0, %0, %4; mul.f32 %1, %1, %4;\n"
        "@p mov.f32 %0, 0f00000000; @q mov.f32 %1, 0f00000000; }"
        : "+f"(low), "+f"(high) : "r"(bits), "r"(bound), "f"(rescale));
}
