// All of a layer that is 64 wide but attention, forth and back, for Hopper GPUs.
//
// A program has all matrices in shared memory, and its groups have tiles of 64 rows, each its own,
// with which they go from one attention to the next: what one product gives is the first factor of
// the next, and stays in registers. What they compute is what `narrow_forward_kernel` and
// `narrow_backward_kernel` of narrow.py do, with slopes in the order of threads, as products.cu.

constexpr int WIDTH = 64, INNER = 256, PIECES = INNER / 64;

// A tile's rows from registers times 64 columns of a matrix in shared memory. ACROSS: these lie in
// memory side by side. NEW: without what was there before.
template <int ACROSS, bool NEW>
__device__ __forceinline__ void multiply(float (&d)[32], const u32 (&rows)[16], u32 matrix) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u64 right = tile(matrix + k * (ACROSS ? 2048 : 32), 16);
        if (NEW && k == 0) first_mma<ACROSS>(d, rows, right);
        else mma<ACROSS>(d, rows + 4 * k, right);
    }
}
// The counterpart of `put`
__device__ __forceinline__ void get(u32 where, u32 (&pairs)[16]) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u32* to = pairs + 4 * k;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(columns_at(where, k)) : "memory");
    }
}
// Four threads have a row
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

// --- Dropout

// Keys of the pairs of columns for both norms, those of the second so many bytes after the first's
__device__ __forceinline__ void put_keys(u32 where, int step, const int* seeds) {
    int norm = threadIdx.x / 32, pair = threadIdx.x % 32;
    if (norm > 1) return;
    set_shared(where + norm * step + 4 * pair, key_at(pair, mix(seeds[4 * norm + 1])));
}

// --- The way forth: three groups, and each warp stores its own sixteen rows

namespace forth {
constexpr int GROUPS = 3, SLAB = 16 * 128;
// Shared memory: matrices; for each group a tile of mixtures and one of the layer's input, and
// three boxes that go out; barriers; of both norms bias, gain, shift and keys of dropout; the
// expansion's bias in halves; and that of the projections
constexpr int AT_EXPAND = BOX, AT_CONTRACT = AT_EXPAND + PIECES * BOX;
constexpr int AT_ABOVE = AT_CONTRACT + PIECES * BOX, AT_ROWS = AT_ABOVE + 3 * BOX;
constexpr int AT_STAGE = AT_ROWS + GROUPS * 2 * BOX, AT_BARS = AT_STAGE + GROUPS * 3 * BOX;
constexpr int GAIN = WIDTH * 4, SHIFT = 2 * GAIN, KEYS = 3 * GAIN, NORM = KEYS + WIDTH * 2;
constexpr int AT_NORMS = AT_BARS + 128, AT_INNER = AT_NORMS + 2 * NORM;
constexpr int AT_BIAS = AT_INNER + INNER * 2;
static_assert(AT_BIAS + 3 * WIDTH * 4 == 224384, "narrow.py asks for as much");

KERNEL narrow_forward(
    MAP mixed, MAP attended, MAP expand, MAP contract, MAP matrix, MAP x, MAP y, MAP active,
    MAP out, MAP normal1, MAP normal2, MAP qkv, const float* b_attended, const float* gain1,
    const float* shift1, const float* b_expand, const float* b_contract, const float* gain2,
    const float* shift2, const unsigned short* bias, float* scale1, float* scale2,
    unsigned char* slopes, const int* seeds, int rows, float eps, int drops, float rescale,
    int above)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 base = at(memory), full = base + AT_BARS, empty = full + 8 * GROUPS;
    u32 ready = empty + 8 * GROUPS, beside = base + AT_NORMS;
    int thread = threadIdx.x, group = thread / 128, tiles = (rows + 63) / 64;
    bool brings = thread == GROUPS * 128;
    auto bring = [&](int n, int t) {
        u32 to = base + AT_ROWS + n % GROUPS * 2 * BOX, bar = full + n % GROUPS * 8;
        expect(bar, 2 * BOX);
        load(to, &mixed, 0, t * 64, bar);
        load(to + BOX, &x, 0, t * 64, bar);
    };
    if (brings) {
        for (int i = 0; i < GROUPS; i++) bar_init(full + 8 * i, 1), bar_init(empty + 8 * i, 4);
        bar_init(ready, 1);
        bars_ready();
        expect(ready, (1 + 2 * PIECES + (above ? 3 : 0)) * BOX);
        load(base, &attended, 0, 0, ready);
        for (int i = 0; i < PIECES; i++) {
            load(base + AT_EXPAND + i * BOX, &expand, 0, i * 64, ready);
            load(base + AT_CONTRACT + i * BOX, &contract, i * 64, 0, ready);
        }
        if (above)
            for (int i = 0; i < 3; i++) load(base + AT_ABOVE + i * BOX, &matrix, 0, i * 64, ready);
    }
    call_next();
    await_before();
    if (brings) bring(0, blockIdx.x);
    const float* vectors[6] = {b_attended, gain1, shift1, b_contract, gain2, shift2};
    if (thread < WIDTH)
#pragma unroll
        for (int i = 0; i < 6; i++) {
            u32 where = beside + i / 3 * NORM + i % 3 * GAIN + 4 * thread;
            set_shared(where, __float_as_uint(vectors[i][thread]));
        }
    put_keys(beside + KEYS, NORM, seeds);
    if (thread < INNER / 2) {
        const float* pair = b_expand + 2 * thread;
        set_shared(base + AT_INNER + 4 * thread, halves(pair[0], pair[1]));
    }
    // bf16 has the upper half of fp32's bits
    if (thread < 3 * WIDTH && above)
        set_shared(base + AT_BIAS + 4 * thread, (u32)bias[thread] << 16);
    __syncthreads();

    if (group == GROUPS) {
        fewer_registers<32>();
        if (brings)
            for (int n = 1, t = blockIdx.x + gridDim.x; t < tiles; n++, t += gridDim.x) {
                wait(empty + n % GROUPS * 8, (n / GROUPS & 1) ^ 1);
                bring(n, t);
            }
        return;
    }
    more_registers<160>();
    int lane = thread % 32, part = thread / 32 % 4, side = lane % 4 * 2;
    u32 stage = base + AT_STAGE + group * 3 * BOX;
    u32 start1 = mix(seeds[0]), start2 = mix(seeds[4]), bound = drop_bound(drops), next = 0;
    wait(ready, 0);
    for (int n = group, t = blockIdx.x + group * gridDim.x; t < tiles;
         n += GROUPS, t += GROUPS * gridDim.x) {
        // Not by `group`: addresses that never change would take registers for all of the loop.
        u32 mine = base + AT_ROWS + n % GROUPS * 2 * BOX;
        int first = t * 64 + part * 16, line = first + lane / 4;  // of the warp, of the thread
        auto leave = [&](const Map& map, const u32 (&pairs)[16], int col) {
            u32 here = stage + next * BOX;
            next = next == 2 ? 0 : next + 1;
            if (lane == 0) wait_store<2>();
            __syncwarp();
            put(here, pairs);
            written();
            __syncwarp();
            if (lane == 0) store(&map, here + part * SLAB, col, first), commit_store();
        };
        // z with bias, dropout and residual becomes normalised rows, and these with gain and shift.
        auto norm = [&](float (&z)[32], const u32 (&before)[16], u32 beside, u32 start,
                        float* scale, u32 (&normal)[16], u32 (&whole)[16]) {
            float sum[2] = {}, square[2] = {};
            u32 down[2] = {key_at(line, start), key_at(line + 8, start)};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float2 b = shared_floats(beside + 4 * (8 * j + side));
                u32 across = shared_word(beside + KEYS + 4 * (4 * j + side / 2));
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float &z0 = z[4 * j + 2 * h], &z1 = z[4 * j + 2 * h + 1];
                    z0 += b.x, z1 += b.y;
                    if (drops) drop(z0, z1, fold(down[h], across), bound, rescale);
                    z0 += low(before[2 * j + h]), z1 += high(before[2 * j + h]);
                    sum[h] += z0 + z1;
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++) sum[h] = row_sum(sum[h]) * (1.0f / WIDTH);
#pragma unroll
            for (int j = 0; j < 32; j++) {
                z[j] -= sum[j / 2 % 2];
                square[j / 2 % 2] += z[j] * z[j];
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                square[h] = rsqrtf(row_sum(square[h]) * (1.0f / WIDTH) + eps);
                int row = line + 8 * h;
                if (lane % 4 == 0 && row < rows) scale[row] = square[h];
            }
#pragma unroll
            for (int j = 0; j < 16; j++) {
                u32 where = beside + 4 * (j / 2 * 8 + side);
                float2 gain = shared_floats(where + GAIN), shift = shared_floats(where + SHIFT);
                float z0 = z[2 * j] * square[j % 2], z1 = z[2 * j + 1] * square[j % 2];
                normal[j] = pack(z0, z1);
                whole[j] = pack(z0 * gain.x + shift.x, z1 * gain.y + shift.y);
            }
        };
        float mid[32], outer[32];
        u32 normal[16], middle[16], pairs[16], words[8];
        wait(full + 8 * group, n / GROUPS & 1);
        mma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u64 left = tile(mine + k * 32, 16), right = tile(base + k * 32, 16);
            if (k == 0) first_mma<0, 0>(mid, left, right);
            else mma<0, 0>(mid, left, right);
        }
        mma_commit();
        get(mine + BOX, pairs);
        mma_wait<0>();
        __syncwarp();
        if (lane == 0) arrive(empty + 8 * group);
        norm(mid, pairs, beside, start1, scale1, normal, middle);
        mma_fence();
        multiply<0, true>(mid, middle, base + AT_EXPAND);
        mma_commit();
        leave(normal1, normal, 0);
        leave(y, middle, 0);
#pragma unroll
        for (int c = 0; c < PIECES; c++) {
            mma_wait<0>();
            gelu_box(mid, base + AT_INNER + (64 * c + side) * 2, pairs, words);
            mma_fence();
            if (c == 0) multiply<0, true>(outer, pairs, base + AT_CONTRACT);
            else multiply<0, false>(outer, pairs, base + AT_CONTRACT + c * BOX);
            if (c + 1 < PIECES) multiply<0, true>(mid, middle, base + AT_EXPAND + (c + 1) * BOX);
            mma_commit();
            leave(active, pairs, 64 * c);
            uint4* to = (uint4*)(slopes + ((u64)t * PIECES + c) * 4096) + thread % 128;
            to[0] = make_uint4(words[0], words[1], words[2], words[3]);
            to[128] = make_uint4(words[4], words[5], words[6], words[7]);
        }
        mma_wait<0>();
        norm(outer, middle, beside + NORM, start2, scale2, normal, pairs);
        if (above) {
            mma_fence();
            multiply<0, true>(mid, pairs, base + AT_ABOVE);
            mma_commit();
        }
        leave(normal2, normal, 0);
        leave(out, pairs, 0);
        if (above)
#pragma unroll
            for (int c = 0; c < 3; c++) {
                mma_wait<0>();
                add_box(mid, base + AT_BIAS + (64 * c + side) * 4, normal);
                if (c < 2) {
                    mma_fence();
                    multiply<0, true>(mid, pairs, base + AT_ABOVE + (c + 1) * BOX);
                    mma_commit();
                }
                leave(qkv, normal, 64 * c);
            }
    }
    if (lane == 0) wait_store<0>();  // shared memory is another program's after the end
}
}  // namespace forth

// --- The way back: two groups

namespace back {
constexpr int ROOM = 7;
// Shared memory: matrices; for each group the gradient, three tiles of that of the projections,
// normalised rows of both norms, and room for one more, all of which what goes out takes over;
// barriers; ones; of both norms gain and keys of dropout
constexpr int AT_CONTRACT = 3 * BOX, AT_EXPAND = AT_CONTRACT + PIECES * BOX;
constexpr int AT_ATTENDED = AT_EXPAND + PIECES * BOX, AT_ROWS = AT_ATTENDED + BOX;
constexpr int AT_BARS = AT_ROWS + GROUPS * ROOM * BOX, AT_ONES = AT_BARS + 128;
constexpr int KEYS = WIDTH * 4, NORM = KEYS + WIDTH * 2, AT_NORMS = AT_ONES + 256;
static_assert(AT_NORMS + 2 * NORM == 214144, "narrow.py asks for as much");

KERNEL narrow_backward(
    MAP grad, MAP of_qkv, MAP matrix, MAP contract, MAP expand, MAP attended, MAP normal1,
    MAP normal2, MAP of_outer, MAP of_inner, MAP of_attended, MAP of_x, MAP of_mixed,
    const unsigned char* slopes, const float* gain1, const float* gain2, const float* scale1,
    const float* scale2, float* sums1, float* sums2, float* gelu_sums, const int* seeds, int rows,
    int drops, float rescale, int above)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 base = at(memory), full = base + AT_BARS, empty = full + 8 * GROUPS;
    u32 ready = empty + 8 * GROUPS, beside = base + AT_NORMS;
    int thread = threadIdx.x, group = thread / 128, tiles = (rows + 63) / 64;
    bool brings = thread == GROUPS * 128;
    auto bring = [&](int n, int t) {
        u32 to = base + AT_ROWS + n % GROUPS * ROOM * BOX, bar = full + n % GROUPS * 8;
        expect(bar, (above ? 6 : 3) * BOX);
        if (above)
            for (int i = 0; i < 3; i++) load(to + (1 + i) * BOX, &of_qkv, i * 64, t * 64, bar);
        load(to, &grad, 0, t * 64, bar);
        load(to + 4 * BOX, &normal1, 0, t * 64, bar);
        load(to + 5 * BOX, &normal2, 0, t * 64, bar);
    };
    if (brings) {
        for (int i = 0; i < GROUPS; i++) bar_init(full + 8 * i, 1), bar_init(empty + 8 * i, 1);
        bar_init(ready, 1);
        bars_ready();
        expect(ready, (1 + 2 * PIECES + (above ? 3 : 0)) * BOX);
        if (above)
            for (int i = 0; i < 3; i++) load(base + i * BOX, &matrix, 0, i * 64, ready);
        for (int i = 0; i < PIECES; i++) {
            load(base + AT_CONTRACT + i * BOX, &contract, i * 64, 0, ready);
            load(base + AT_EXPAND + i * BOX, &expand, 0, i * 64, ready);
        }
        load(base + AT_ATTENDED, &attended, 0, 0, ready);
    }
    call_next();
    await_before();
    if (brings) bring(0, blockIdx.x);
    if (thread < WIDTH) {
        set_shared(base + AT_ONES + 4 * thread, ONES);
        set_shared(beside + 4 * thread, __float_as_uint(gain1[thread]));
        set_shared(beside + NORM + 4 * thread, __float_as_uint(gain2[thread]));
    }
    put_keys(beside + KEYS, NORM, seeds);
    written();
    __syncthreads();

    if (group == GROUPS) {
        fewer_registers<24>();
        if (brings)
            for (int n = 1, t = blockIdx.x + gridDim.x; t < tiles; n++, t += gridDim.x) {
                wait(empty + n % GROUPS * 8, (n / GROUPS & 1) ^ 1);
                bring(n, t);
            }
        return;
    }
    more_registers<240>();
    int lane = thread % 32, leader = thread % 128 == 0;
    int line = thread / 32 % 4 * 16 + lane / 4, side = lane % 4 * 2;
    u32 g_box = base + AT_ROWS + group * ROOM * BOX, n1_box = g_box + 4 * BOX;
    u32 n2_box = n1_box + BOX, more = n2_box + BOX, boxes[3];
#pragma unroll
    for (int i = 0; i < 3; i++) boxes[i] = g_box + (1 + i) * BOX;
    u32 start1 = mix(seeds[0]), start2 = mix(seeds[4]), bound = drop_bound(drops);
    float total1[3][4] = {}, total2[3][4] = {}, total[PIECES][4] = {};
    auto add_up = [&](float (&to)[4], u32 box) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum_mma(to, tile(box + k * 2048, 16), ones_at(base + AT_ONES));
    };
    wait(ready, 0);
    for (int n = group, t = blockIdx.x + group * gridDim.x; t < tiles;
         n += GROUPS, t += GROUPS * gridDim.x) {
        int first = t * 64;
        // The gradient z of a norm's output becomes that of the residual; `used` is what dropout
        // leaves of it. Terms of the gradients of gain and shift are in `of_gain` and `of_shift`.
        auto norm = [&](float (&z)[32], const u32 (&normal)[16], u32 beside, u32 start,
                        const float* scale, u32 (&of_gain)[16], u32 (&of_shift)[16],
                        u32 (&used)[16]) {
            float sum[2] = {}, along[2] = {}, inverse[2];
            u32 down[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int row = first + line + 8 * h;
                inverse[h] = row < rows ? scale[row] : 0;
                down[h] = key_at(row, start);
            }
#pragma unroll
            for (int j = 0; j < 16; j++) {
                int h = j % 2;
                float2 gain = shared_floats(beside + 4 * (j / 2 * 8 + side));
                float &g0 = z[2 * j], &g1 = z[2 * j + 1];
                float p0 = g0 * low(normal[j]), p1 = g1 * high(normal[j]);
                of_gain[j] = pack(p0, p1), of_shift[j] = pack(g0, g1);
                g0 *= gain.x, g1 *= gain.y;
                sum[h] += g0 + g1;
                along[h] += p0 * gain.x + p1 * gain.y;
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                sum[h] = row_sum(sum[h]) * (inverse[h] / WIDTH);
                along[h] = row_sum(along[h]) * (inverse[h] / WIDTH);
            }
#pragma unroll
            for (int j = 0; j < 16; j++) {
                int h = j % 2;
                float &d0 = z[2 * j], &d1 = z[2 * j + 1];
                d0 = d0 * inverse[h] - sum[h] - low(normal[j]) * along[h];
                d1 = d1 * inverse[h] - sum[h] - high(normal[j]) * along[h];
                float u0 = d0, u1 = d1;
                u32 across = shared_word(beside + KEYS + 4 * (j / 2 * 4 + side / 2));
                if (drops) drop(u0, u1, fold(down[h], across), bound, rescale);
                used[j] = pack(u0, u1);
            }
        };
        float z[32], mid[32], outer[32];
        u32 normal[16], of_shift[16], of_gain[16], used[16], pairs[16], words[8];
        wait(full + 8 * group, n / GROUPS & 1);
        get(g_box, pairs);
        get(n2_box, normal);
        if (above) {
            mma_fence();
#pragma unroll
            for (int k = 0; k < 12; k++) {
                u64 left = tile(boxes[k / 4] + k % 4 * 32, 16), right = tile(base + k * 2048, 16);
                if (k == 0) first_mma<0, 1>(mid, left, right);
                else mma<0, 1>(mid, left, right);
            }
            mma_commit();
            mma_wait<0>();
        }
#pragma unroll
        for (int j = 0; j < 16; j++) {
            z[2 * j] = low(pairs[j]) + (above ? mid[2 * j] : 0);
            z[2 * j + 1] = high(pairs[j]) + (above ? mid[2 * j + 1] : 0);
        }
        norm(z, normal, beside + NORM, start2, scale2, of_gain, of_shift, used);
        mma_fence();
        multiply<1, true>(mid, used, base + AT_CONTRACT);
        mma_commit();
        put(g_box, of_shift);
        put(boxes[0], of_gain);
        put(boxes[1], used);
        written();
        group_sync(group);
        if (leader) store(&of_outer, boxes[1], 0, first), commit_store();
        const uint4* slope_at = (const uint4*)(slopes + (u64)t * PIECES * 4096) + thread % 128;
        // Of the inner gradient: where nobody reads any more
        u32 inner[PIECES] = {boxes[2], n2_box, more, boxes[0]};
#pragma unroll
        for (int c = 0; c < PIECES; c++) {
            uint4 a = __ldcs(slope_at + c * 256), b = __ldcs(slope_at + c * 256 + 128);
            words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
            words[4] = b.x, words[5] = b.y, words[6] = b.z, words[7] = b.w;
            mma_wait<0>();
            bend_box(mid, words, pairs);
            mma_fence();
            if (c == 0) {
                multiply<1, true>(outer, pairs, base + AT_EXPAND);
                add_up(total2[0], boxes[0]);
                add_up(total2[1], g_box);
                add_up(total2[2], boxes[1]);
            } else {
                multiply<1, false>(outer, pairs, base + AT_EXPAND + c * BOX);
            }
            if (c + 1 < PIECES) multiply<1, true>(mid, used, base + AT_CONTRACT + (c + 1) * BOX);
            mma_commit();
            if (c == 3) group_sync(group);  // all warps' sums over the first box are done
            put(inner[c], pairs);
        }
        written();
        group_sync(group);
        if (leader) {
            for (int c = 0; c < PIECES; c++) store(&of_inner, inner[c], 64 * c, first);
            commit_store();
        }
        get(n1_box, normal);
        mma_wait<0>();
        mma_fence();
#pragma unroll
        for (int c = 0; c < PIECES; c++) add_up(total[c], inner[c]);
        mma_commit();
#pragma unroll
        for (int j = 0; j < 32; j++) z[j] += outer[j];
        norm(z, normal, beside, start1, scale1, of_gain, of_shift, used);
        mma_wait<0>();
        if (leader) wait_store<0>();
        group_sync(group);
        mma_fence();
        multiply<1, true>(mid, used, base + AT_ATTENDED);
        mma_commit();
        put(g_box, of_gain);
        put(n1_box, of_shift);
        put(boxes[0], used);
#pragma unroll
        for (int j = 0; j < 16; j++) pairs[j] = pack(z[2 * j], z[2 * j + 1]);
        put(boxes[1], pairs);
        mma_wait<0>();
#pragma unroll
        for (int j = 0; j < 16; j++) pairs[j] = pack(mid[2 * j], mid[2 * j + 1]);
        put(boxes[2], pairs);
        written();
        group_sync(group);
        if (leader) {
            store(&of_attended, boxes[0], 0, first);
            store(&of_x, boxes[1], 0, first);
            store(&of_mixed, boxes[2], 0, first);
            commit_store();
        }
        mma_fence();
        add_up(total1[0], g_box);
        add_up(total1[1], n1_box);
        add_up(total1[2], boxes[0]);
        mma_commit();
        mma_wait<0>();
        if (leader) wait_store<0>();
        group_sync(group);
        if (leader) arrive(empty + 8 * group);
    }
    if (lane % 4 == 0) {
        u64 part = blockIdx.x * GROUPS + group;
#pragma unroll
        for (int i = 0; i < 3; i++) {
            float* to1 = sums1 + (part * 3 + i) * WIDTH + line;
            float* to2 = sums2 + (part * 3 + i) * WIDTH + line;
            to1[0] = total1[i][0], to1[8] = total1[i][2];
            to2[0] = total2[i][0], to2[8] = total2[i][2];
        }
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            float* to = gelu_sums + part * INNER + 64 * i + line;
            to[0] = total[i][0], to[8] = total[i][2];
        }
    }
}
}  // namespace back
