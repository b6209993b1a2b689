// A product and LayerNorm behind it, forth; a product, and the way back through a norm: over rows of
// 256, for Hopper GPUs.
//
// A program has 128 rows, 64 for each group, which has whole rows of the product and needs no other
// one's numbers. It goes through the depth in steps of 64. Two programs, a cluster, share the
// matrix, of which each brings a half to both: the second cache could not deliver all of it to
// each. Tiles of the next rows come while these are normalised.

constexpr int WIDTH = 256, TALL = 64, ROWS = GROUPS * TALL, BLOCKS = WIDTH / 64, CLUSTER = 2;
constexpr int STEP = (GROUPS + BLOCKS) * BOX, SLOTS = 3, PIECES = 2, SUMS = 3 * WIDTH;
constexpr int HALVES = 2 * BLOCKS;  // of blocks, of 32 columns, of which a thread has eight
// Shared memory: tiles of three steps; four boxes for each group that go out, in which on the way
// back normalised rows come; barriers; keys of dropout; gain, shift and bias, or gain and for each
// group a box more
constexpr int AT_STAGE = SLOTS * STEP, AT_BARS = AT_STAGE + GROUPS * BLOCKS * BOX;
constexpr int AT_KEYS = AT_BARS + 128, AT_VECTORS = AT_KEYS + WIDTH / 2 * 4, VECTOR = WIDTH * 4;
constexpr int AT_MORE = (AT_VECTORS + VECTOR + 1023) / 1024 * 1024;
static_assert(AT_VECTORS + 3 * VECTOR == 216704, "join.py asks for as much");
static_assert(AT_MORE + GROUPS * BOX == 231424, "join.py asks for as much");

// To all programs of a cluster, at the same place
__device__ __forceinline__ void load_all(u32 to, const Map* map, int x, int y, u32 bar) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
        ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar), "h"((unsigned short)((1 << CLUSTER) - 1))
        : "memory");
}
// At the barrier of another program. Without an order for its memory, which would be a fence of the
// whole GPU: products have read what they needed when they are done.
__device__ __forceinline__ void arrive_at(u32 bar, u32 rank) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
                 ::"r"(bar), "r"(rank) : "memory");
}
__device__ __forceinline__ u32 cluster_rank() {
    u32 r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Two elements, some of which are lost, and what is added to them
__device__ __forceinline__ void drop_add(
    float& low, float& high, u32 bits, u32 bound, float rescale, float add_low, float add_high)
{
    asm("{ .reg .pred p, q; setp.ge.f16x2 p|q, %2, %3;\n"
        "@p mov.f32 %0, 0f00000000; @q mov.f32 %1, 0f00000000;\n"
        "fma.rn.f32 %0, %0, %4, %5; fma.rn.f32 %1, %1, %4, %6; }"
        : "+f"(low), "+f"(high)
        : "r"(bits), "r"(bound), "f"(rescale), "f"(add_low), "f"(add_high));
}

// Lanes that are so far away of each other exchange halves: each adds up one.
template <int HALF> __device__ __forceinline__ void exchange(float (&of)[8], int away) {
    bool upper = threadIdx.x & away;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float sent = upper ? of[i] : of[i + HALF];
        of[i] = (upper ? of[i + HALF] : of[i]) + __shfl_xor_sync(0xFFFFFFFFu, sent, away);
    }
}
// Over the 16 rows that a warp has, of 32 columns, of which a thread has eight before and one after
__device__ __forceinline__ float add_rows(float (&of)[8]) {
    exchange<4>(of, 16), exchange<2>(of, 8), exchange<1>(of, 4);
    return of[0];
}

struct Norm {
    const float *bias, *gain, *shift;
    float *scale, *sums;
    const int* seed;
    int rows, depth, parts, drops;
    float eps, rescale;
};

// Forth: of x @ matrix.t(), with what is lost of it, and the residual, `first` gets the normalised
// rows and `second` the result. BACK: what came back to the norm's result is `residual` and x @
// matrix; `first` gets the gradient of the norm's own residual, `second` that of what was lost.
template <bool BACK>
__device__ __forceinline__ void run(
    const Map& x, const Map& matrix, const Map& residual, const Map& normal, const Map& first,
    const Map& second, const Norm& f)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 base = at(memory), full = base + AT_BARS, empty = full + 8 * SLOTS;
    u32 here = empty + 8 * SLOTS, gone = here + 8, rank = cluster_rank();
    int thread = threadIdx.x, tiles = (f.rows + ROWS - 1) / ROWS;
    int group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);  // so the compiler knows it of a warp
    int steps = f.depth / 64;
    bool brings = thread == GROUPS * 128;
    auto weights = [&](u32 slot, int n) {
        u32 to = base + slot * STEP + GROUPS * BOX, bar = full + 8 * slot;
        expect(bar, STEP);
#pragma unroll 1
        for (u32 i = rank; i < BLOCKS; i += CLUSTER)
            load_all(to + i * BOX, &matrix, (BACK ? i : n) * 64, (BACK ? n : i) * 64, bar);
    };
    if (thread == 0) {
        for (int i = 0; i < SLOTS; i++)
            bar_init(full + 8 * i, 1), bar_init(empty + 8 * i, CLUSTER * GROUPS);
        bar_init(here, 1), bar_init(gone, GROUPS);
        bars_ready();
    }
    cluster_sync();  // each has its barriers when the other one's tiles come
    if (brings)
        for (int i = 0; i < SLOTS; i++) weights(i, i);
    call_next();
    await_before();
    if (thread < WIDTH) {
        u32 to = base + AT_VECTORS + 4 * thread;
        set_shared(to, __float_as_uint(f.gain[thread]));
        if (!BACK) {
            set_shared(to + VECTOR, __float_as_uint(f.shift[thread]));
            set_shared(to + 2 * VECTOR, __float_as_uint(f.bias[thread]));
        }
        if (thread < WIDTH / 2)
            set_shared(base + AT_KEYS + 4 * thread, key_at(thread, mix(f.seed[1])));
    }
    __syncthreads();

    u32 slot = 0, round = 0;
    auto pass = [&] {
        if (++slot == SLOTS) slot = 0, round ^= 1;
    };
    // Both programs of a cluster have as many tiles, of which the last may have no rows.
    if (group == GROUPS) {
        fewer_registers<24>();
        if (brings) {
            u32 turn = 1;
            for (int t = blockIdx.x; t - (int)rank < tiles; t += gridDim.x, turn ^= 1)
                for (int n = 0; n < steps + PIECES; n++, pass()) {
                    u32 to = base + slot * STEP, bar = full + 8 * slot;
                    wait(empty + 8 * slot, round ^ 1);
                    if (n < steps) {
#pragma unroll 1
                        for (int i = 0; i < GROUPS; i++)
                            load(to + i * BOX, &x, n * 64, t * ROWS + i * TALL, bar);
                        if (t != blockIdx.x || n >= SLOTS) weights(slot, n);
                    } else {
                        expect(bar, 4 * BOX);
#pragma unroll 1
                        for (int i = 0; i < 4; i++)
                            load(to + i * BOX, &residual, (2 * (n - steps) + i % 2) * 64,
                                 t * ROWS + i / 2 * TALL, bar);
                    }
                    // Groups that have begun with these rows soon leave what they had of others.
                    if (BACK && n == SLOTS) {
                        wait(gone, turn);
                        expect(here, GROUPS * BLOCKS * BOX);
#pragma unroll 1
                        for (int i = 0; i < GROUPS * BLOCKS; i++)
                            load(base + AT_STAGE + i * BOX, &normal, i % BLOCKS * 64,
                                 t * ROWS + i / BLOCKS * TALL, here);
                    }
                }
        }
        __syncwarp();
        cluster_sync();
        if (BACK) __syncthreads();
        return;
    }
    more_registers<240>();
    int lane = thread % 32, warp = thread / 32, leader = thread % 128 == 0;
    int line = warp % 4 * 16 + lane / 4, side = lane % 4 * 2;  // of a thread's numbers
    u32 start = mix(f.seed[0]);
    u32 stage = base + AT_STAGE + group * 4 * BOX;
    // Told to each program of the cluster by another warp. Products are done with a slot when one
    // warp's are; before it leaves what threads read themselves, a group has to meet.
    auto leave = [&] {
        u32 bar = empty + 8 * slot;
        if (lane == 0 && warp % 4 < CLUSTER) arrive_at(bar, warp % 4);
        pass();
    };
    u32 aside = base + AT_MORE + group * BOX;
    // Where the i-th block of both results goes. Forth boxes take turns; back the first goes where
    // normalised rows were, and the second where two blocks before it the first was.
    auto box = [&](int i, bool other) {
        if (!BACK) return stage + (i % 2 * 2 + other) * BOX;
        return !other ? stage + i * BOX : i < 2 ? aside : stage + (i - 2) * BOX;
    };
    // Until what was there has gone
    auto await_box = [&](int i) {
        if (BACK && i % 2 == 0) return;
        if (BACK && i == 1 && leader) wait_store<0>();
        else if (leader) wait_store<1>();
        group_sync(group);
    };
    auto send = [&](int i, int row) {
        written();
        group_sync(group);
        if (leader) {
            store(&first, box(i, false), i * 64, row);
            store(&second, box(i, true), i * 64, row);
            commit_store();
        }
    };
    float of_gain[HALVES] = {}, of_shift[HALVES] = {}, of_bias[HALVES] = {};
    float z[128];
    u32 turn = 0;
    for (int t = blockIdx.x; t - (int)rank < tiles; t += gridDim.x, turn ^= 1) {
        int row = t * ROWS + group * TALL;
        float mean[2] = {}, other[2] = {}, inverse[2];
        if (BACK)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int own = row + line + 8 * h;
                inverse[h] = own < f.rows ? f.scale[own] : 0;
            }
        auto multiply = [&](bool start) {
            u32 to = base + slot * STEP, a = to + group * BOX, b = to + GROUPS * BOX;
            wait(full + 8 * slot, round);
            mma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u64 left = tile(a + k * 32, 16);
                u64 right = BACK ? tile(b + k * 2048, BOX) : tile(b + k * 32, 16);
                if (start && k == 0) first_mma<BACK>(z, left, right);
                else mma<BACK>(z, left, right);
            }
            mma_commit();
            mma_wait<0>();
            leave();
        };
        multiply(true);
        if (BACK && leader && t != blockIdx.x) wait_store<0>(), arrive(gone);
        for (int n = 1; n < steps; n++) multiply(false);
        // Or places would be computed before the loop, and kept
        int drops = f.drops;
        asm volatile("" : "+r"(line), "+r"(side), "+r"(drops), "+r"(aside));
        u32 bound = drop_bound(drops);
        u32 down[2] = {key_at(row + line, start), key_at(row + line + 8, start)};
        if constexpr (BACK) {
            wait(here, turn);
#pragma unroll
            for (int i = 0; i < PIECES; i++, group_sync(group), leave()) {
                wait(full + 8 * slot, round);
#pragma unroll
                for (int k = 0; k < HALVES / PIECES; k++) {
                    int half = HALVES / PIECES * i + k;
                    u32 before[8], even[8];
                    float shifts[8] = {}, gains[8] = {};
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        u32 given = base + slot * STEP + (2 * group + k / 2) * BOX;
                        get_columns(given, k % 2 * 2 + j, before + 4 * j);
                        get_columns(stage + half / 2 * BOX, k % 2 * 2 + j, even + 4 * j);
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        u32 vector = base + AT_VECTORS + 4 * (32 * half + 8 * j + side);
                        float2 gain = shared_floats(vector);
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            float* g = z + 16 * half + 4 * j + 2 * h;
                            u32 pair = before[2 * j + h], own = even[2 * j + h];
                            float n0 = low(own), n1 = high(own);
                            g[0] += low(pair), g[1] += high(pair);
                            shifts[2 * j] += g[0], shifts[2 * j + 1] += g[1];
                            gains[2 * j] += g[0] * n0, gains[2 * j + 1] += g[1] * n1;
                            g[0] *= gain.x, g[1] *= gain.y;
                            mean[h] += g[0] + g[1];
                            other[h] += g[0] * n0 + g[1] * n1;
                        }
                    }
                    of_shift[half] += add_rows(shifts);
                    of_gain[half] += add_rows(gains);
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mean[h] = row_sum(mean[h]) * (inverse[h] / WIDTH);
                other[h] = row_sum(other[h]) * (inverse[h] / WIDTH);
            }
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                await_box(i);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    int half = 2 * i + k;
                    float sums[8] = {};
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        u32 even[4], used[4];
                        get_columns(box(i, false), 2 * k + j, even);
                        __syncwarp();
#pragma unroll
                        for (int q = 0; q < 4; q++) {
                            int h = q % 2, at = 4 * j + q / 2 * 2, col = 32 * half + 4 * at + side;
                            float* g = z + 16 * half + 8 * j + 2 * q;
                            float n0 = low(even[q]), n1 = high(even[q]);
                            float g0 = g[0] * inverse[h] - mean[h] - n0 * other[h];
                            float g1 = g[1] * inverse[h] - mean[h] - n1 * other[h];
                            even[q] = pack(g0, g1);
                            u32 bits = fold(down[h], shared_word(base + AT_KEYS + 2 * col));
                            drop(g0, g1, bits, bound, f.rescale);
                            used[q] = pack(g0, g1);
                            sums[at] += g0, sums[at + 1] += g1;
                        }
                        put_columns(box(i, false), 2 * k + j, even);
                        put_columns(box(i, true), 2 * k + j, used);
                    }
                    of_bias[half] += add_rows(sums);
                }
                send(i, row);
            }
        } else {
#pragma unroll
            for (int i = 0; i < PIECES; i++, group_sync(group), leave()) {
                wait(full + 8 * slot, round);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    u32 before[16];
                    get(base + slot * STEP + (2 * group + k) * BOX, before);
#pragma unroll
                    for (int j = 0; j < 8; j++) {
                        int col = (2 * i + k) * 64 + 8 * j + side;
                        float* own = z + (2 * i + k) * 32 + 4 * j;
                        float2 b = shared_floats(base + AT_VECTORS + 2 * VECTOR + 4 * col);
                        u32 across = shared_word(base + AT_KEYS + 2 * col);
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            float &z0 = own[2 * h], &z1 = own[2 * h + 1];
                            u32 pair = before[2 * j + h];
                            z0 += b.x, z1 += b.y;
                            drop_add(z0, z1, fold(down[h], across), bound, f.rescale, low(pair),
                                     high(pair));
                            mean[h] += z0 + z1;
                        }
                    }
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++) mean[h] = row_sum(mean[h]) * (1.0f / WIDTH);
#pragma unroll
            for (int j = 0; j < 128; j++) {
                int h = j / 2 % 2;
                z[j] -= mean[h];
                other[h] += z[j] * z[j];
            }
#pragma unroll
            for (int h = 0; h < 2; h++)
                inverse[h] = rsqrtf(row_sum(other[h]) * (1.0f / WIDTH) + f.eps);
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                u32 even[16], whole[16];
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    u32 vectors = base + AT_VECTORS + 4 * (64 * i + 8 * j + side);
                    float2 g = shared_floats(vectors), s = shared_floats(vectors + VECTOR);
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float* own = z + 32 * i + 4 * j + 2 * h;
                        float z0 = own[0] * inverse[h], z1 = own[1] * inverse[h];
                        even[2 * j + h] = pack(z0, z1);
                        whole[2 * j + h] = pack(z0 * g.x + s.x, z1 * g.y + s.y);
                    }
                }
                await_box(i);
                put(box(i, false), even);
                put(box(i, true), whole);
                send(i, row);
            }
            // After the fences, which wait for what was written before them
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int own = row + line + 8 * h;
                if (lane % 4 == 0 && own < f.rows) f.scale[own] = inverse[h];
            }
        }
    }
    if (leader) wait_store<0>();  // shared memory is another program's after the end
    __syncwarp();
    cluster_sync();  // and the other one's arrivals have come
    if constexpr (BACK) {
        // The tiles' memory is free now, in both programs.
        int col = lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;  // what `add_rows` left to it
        float* own = (float*)memory + warp * SUMS + col;
#pragma unroll
        for (int i = 0; i < HALVES; i++) {
            own[32 * i] = of_gain[i], own[32 * i + WIDTH] = of_shift[i];
            own[32 * i + 2 * WIDTH] = of_bias[i];
        }
        __syncthreads();
        for (int part = blockIdx.x; part < f.parts; part += gridDim.x)
            for (int i = thread; i < SUMS; i += GROUPS * 128) {
                float total = 0;
                if (part == blockIdx.x)
#pragma unroll
                    for (int k = 0; k < GROUPS * 4; k++) total += ((float*)memory)[k * SUMS + i];
                f.sums[part * SUMS + i] = total;  // zeros where there is no program
            }
    }
}

KERNEL __cluster_dims__(CLUSTER, 1, 1) product_norm(
    MAP x, MAP matrix, MAP residual, MAP normal, MAP out, const float* bias, const float* gain,
    const float* shift, float* scale, const int* seed, int rows, int depth, float eps, int drops,
    float rescale)
{
    Norm f = {bias, gain, shift, scale, nullptr, seed, rows, depth, 0, drops, eps, rescale};
    run<false>(x, matrix, residual, normal, normal, out, f);
}
KERNEL __cluster_dims__(CLUSTER, 1, 1) product_norm_backward(
    MAP x, MAP matrix, MAP grad, MAP normal, MAP residual, MAP through, const float* gain,
    float* scale, float* sums, const int* seed, int rows, int depth, int parts, int drops,
    float rescale)
{
    Norm f = {nullptr, gain, nullptr, scale, sums, seed, rows, depth, parts, drops, 0, rescale};
    run<true>(x, matrix, grad, normal, residual, through, f);
}
