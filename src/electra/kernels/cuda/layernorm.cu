// The way back of LayerNorm(residual + dropout(x + bias)) over rows of 256, for Hopper GPUs.
//
// A warp has a row, of which each thread has eight numbers side by side; those of the next rows
// are on their way meanwhile. All warps of a processor are one program, so that sums over rows come
// in few parts. What is computed is what `add_norm_backward_kernel` of norm.py does.

namespace back {
constexpr int GROUPS = 3, WARPS = (GROUPS + 1) * 4, WIDTH = 256, SUMS = 3 * WIDTH;
static_assert(WARPS * SUMS * 4 == 49152, "norm.py asks for as much");

struct Row {
    uint4 grad, normal;
    float inverse;
};
// All threads of a warp have the sum.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int away = 16; away; away /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, away);
    return x;
}

KERNEL norm_backward(
    const uint4* grad, const uint4* normal, const float* scale, const float* gain, uint4* residual,
    uint4* through, float* sums, const int* seed, int rows, int drops, float rescale)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    call_next();
    await_before();
    int thread = threadIdx.x, lane = thread % 32, step = gridDim.x * WARPS;
    float gains[8], of_gain[8] = {}, of_shift[8] = {}, of_bias[8] = {};
    u32 across[4], start = mix(seed[0]), bound = drop_bound(drops);
#pragma unroll
    for (int i = 0; i < 8; i++) gains[i] = gain[8 * lane + i];
#pragma unroll
    for (int i = 0; i < 4; i++) across[i] = key_at(4 * lane + i, mix(seed[1]));
    auto ask = [&](int row) {
        Row r = {};
        if (row < rows) {
            u64 at = (u64)row * 32 + lane;
            r.grad = __ldcs(grad + at), r.normal = __ldcs(normal + at), r.inverse = scale[row];
        }
        return r;
    };
    int row = blockIdx.x * WARPS + thread / 32;
    Row now = ask(row), next = ask(row + step);
    for (; row < rows; row += step) {
        Row later = ask(row + 2 * step);
        u32 given[4] = {now.grad.x, now.grad.y, now.grad.z, now.grad.w}, kept[4], used[4];
        u32 even[4] = {now.normal.x, now.normal.y, now.normal.z, now.normal.w};
        float g[8], n[8], mean = 0, along = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            g[i] = i % 2 ? high(given[i / 2]) : low(given[i / 2]);
            n[i] = i % 2 ? high(even[i / 2]) : low(even[i / 2]);
            of_gain[i] += g[i] * n[i];
            of_shift[i] += g[i];
            g[i] *= gains[i];
            mean += g[i];
            along += g[i] * n[i];
        }
        mean = warp_sum(mean) * (now.inverse / WIDTH);
        along = warp_sum(along) * (now.inverse / WIDTH);
        u32 down = key_at(row, start);
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = g[i] * now.inverse - mean - n[i] * along;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            kept[i] = pack(g[2 * i], g[2 * i + 1]);
            if (drops) drop(g[2 * i], g[2 * i + 1], fold(down, across[i]), bound, rescale);
            used[i] = pack(g[2 * i], g[2 * i + 1]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) of_bias[i] += g[i];
        u64 at = (u64)row * 32 + lane;
        residual[at] = make_uint4(kept[0], kept[1], kept[2], kept[3]);
        through[at] = make_uint4(used[0], used[1], used[2], used[3]);
        now = next, next = later;
    }
    float* own = (float*)memory + thread / 32 * SUMS + 8 * lane;
#pragma unroll
    for (int i = 0; i < 8; i++)
        own[i] = of_gain[i], own[WIDTH + i] = of_shift[i], own[2 * WIDTH + i] = of_bias[i];
    __syncthreads();
    for (int i = thread; i < SUMS; i += blockDim.x) {
        float total = 0;
#pragma unroll
        for (int k = 0; k < WARPS; k++) total += ((float*)memory)[k * SUMS + i];
        sums[blockIdx.x * SUMS + i] = total;
    }
}
}  // namespace back
