// Attention over rows of 128 tokens, between the products.

constexpr int LENGTH = 128;
__device__ __forceinline__ float power(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ float logarithm(float x) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
// Between documents, whose numbers are at `papers`, nothing is seen; a thread's rows have theirs
// at `own` and eight further.
__device__ __forceinline__ void keep_apart(float (&scores)[64], u32 papers, u32 own, int side) {
    if (shared_word(papers) == shared_word(papers + 4 * (LENGTH - 1))) return;
    u32 own0 = shared_word(own), own1 = shared_word(own + 32);
#pragma unroll
    for (int j = 0; j < 16; j++) {
        uint2 paper = shared_pair(papers + 4 * (8 * j + side));
        if (paper.x != own0) scores[4 * j] = -1e30f;
        if (paper.y != own0) scores[4 * j + 1] = -1e30f;
        if (paper.x != own1) scores[4 * j + 2] = -1e30f;
        if (paper.y != own1) scores[4 * j + 3] = -1e30f;
    }
}

// --- Forth: tiles (queries, keys), of which a group has 64 queries

__device__ __forceinline__ float row_top(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
// Two keys and a query: odds become what of them is used.
__device__ __forceinline__ void lose(float& odds0, float& odds1, u32 bits, u32 bound) {
    asm("{ .reg .pred p, q; setp.ge.f16x2 p|q, %2, %3;\n"
        "@p mov.f32 %0, 0f00000000; @q mov.f32 %1, 0f00000000; }"
        : "+f"(odds0), "+f"(odds1) : "r"(bits), "r"(bound));
}
// Scores of two queries become used odds, in pairs and as the first factor of a product; `down` and
// `across` are the keys of these queries and of a thread's pairs. The queries get their highest
// scores, times `scale`, and what the odds sum up to, of which four threads have a part each.
__device__ __forceinline__ void softmax(
    float (&odds)[64], float scale, const u32 (&across)[16], const u32 (&down)[2], u32 bound,
    float (&top)[2], float (&total)[2], u32 (&used)[32])
{
    float high[4] = {odds[0], odds[1], odds[2], odds[3]}, sum[4] = {};
#pragma unroll
    for (int j = 4; j < 64; j++) high[j % 4] = fmaxf(high[j % 4], odds[j]);
#pragma unroll
    for (int h = 0; h < 2; h++) top[h] = row_top(fmaxf(high[2 * h], high[2 * h + 1])) * scale;
#pragma unroll
    for (int j = 14; j >= 0; j -= 2) {  // so that pairs find room where scores were
        float *p = odds + 4 * j, *other = p + 4;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            p[i] = power(p[i] * scale - top[i / 2 % 2]);
            sum[i % 4] += p[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            lose(p[i], other[i], fold(across[j + i % 2], down[i / 2]), bound);
#pragma unroll
        for (int i = 0; i < 4; i++) used[2 * j + i] = pack(p[2 * i], p[2 * i + 1]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) total[h] = sum[2 * h] + sum[2 * h + 1];
}

// --- Back: tiles (keys, queries), of which a group has 64 keys

// Dropout, as in attention_dropout.py, for two keys and a query: odds become what of them is used,
// slopes those of the scores.
__device__ __forceinline__ void drop(
    float& odds0, float& odds1, float& slope0, float& slope1, float back, u32 bits, u32 bound)
{
    asm("{ .reg .pred p, q; .reg .f32 a, b;\n"
        "setp.ge.f16x2 p|q, %5, %6;\n"
        "mul.f32 a, %0, %4; mul.f32 b, %1, %4;\n"
        "@!p fma.rn.f32 a, %0, %2, a; @!q fma.rn.f32 b, %1, %3, b;\n"
        "mov.f32 %2, a; mov.f32 %3, b;\n"
        "selp.f32 %0, 0f00000000, %0, p; selp.f32 %1, 0f00000000, %1, q; }"
        : "+f"(odds0), "+f"(odds1), "+f"(slope0), "+f"(slope1)
        : "f"(back), "r"(bits), "r"(bound));
}
// Of two queries, which have these notes, and a thread's two keys, a pair with the key `across`:
// scores p become used odds, slopes d those of the scores.
__device__ __forceinline__ void weigh(
    float* p, float* d, float scale, float2 log, float2 back, uint2 down, u32 across, u32 bound,
    u32* used, u32* slopes)
{
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = power(p[i] * scale - (i % 2 ? log.y : log.x));
    drop(p[0], p[2], d[0], d[2], back.x, fold(across, down.x), bound);
    drop(p[1], p[3], d[1], d[3], back.y, fold(across, down.y), bound);
    used[0] = pack(p[0], p[1]), used[1] = pack(p[2], p[3]);
    slopes[0] = pack(d[0], d[1]), slopes[1] = pack(d[2], d[3]);
}
