// Products with a matrix, for Hopper GPUs, and what follows them: a bias, gelu, or its slopes.
//
// A program keeps a square of the matrix in shared memory while tiles of 64 rows pass by. Two
// groups of four warps take turns: one multiplies while the other computes with what its own
// product gave, and stores it. A thread of a third group brings the tiles.

enum Kind { PLAIN, GELU, BACK, BEND };
constexpr int DEPTH = 256, WIDE = 256, TALL = 64;
constexpr int ROWS = DEPTH / 64 * BOX, MATRIX = DEPTH * WIDE * 2;
// Shared memory: the matrix, a tile of rows for each group, two boxes for each that go out,
// barriers, and the bias or ones
constexpr int AT_ROWS = MATRIX, AT_STAGE = AT_ROWS + GROUPS * ROWS;
constexpr int AT_BARS = AT_STAGE + GROUPS * 2 * BOX, AT_BIAS = AT_BARS + 128;
static_assert(AT_BIAS + WIDE * 4 == 230528, "ffn.py asks for as much");

// PLAIN: x @ matrix.t() + bias. GELU: gelu of this, and its slopes. BACK: x @ matrix. BEND: this
// times slopes, and sums over rows of it.
template <Kind KIND>
__device__ __forceinline__ void multiply(
    const Map& x, const Map& matrix, const Map& out, const void* bias, unsigned char* slopes,
    float* sums, int rows, int width)
{
    constexpr bool ACROSS = KIND == BACK || KIND == BEND;
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 base = at(memory), beside = base + AT_BIAS;
    u32 full = base + AT_BARS, empty = full + 8 * GROUPS, ready = empty + 8 * GROUPS;
    int thread = threadIdx.x, group = thread / 128, across = width / WIDE;
    int start = blockIdx.x % across * WIDE, part = blockIdx.x / across;
    int parts = gridDim.x / across, tiles = (rows + TALL - 1) / TALL;
    bool brings = thread == GROUPS * 128;
    auto bring = [&](int n, int t) {
        u32 to = base + AT_ROWS + n % 2 * ROWS, bar = full + n % 2 * 8;
        expect(bar, ROWS);
        for (int i = 0; i < 4; i++) load(to + i * BOX, &x, i * 64, t * TALL, bar);
        if (KIND == BEND) fetch(slopes + ((u64)t * width + start) * 64, 4 * 4096);
    };
    if (brings) {
        for (int i = 0; i < GROUPS; i++) bar_init(full + 8 * i, 1), bar_init(empty + 8 * i, 1);
        for (int i = 0; i < 4; i++) bar_init(ready + 8 * i, 1);
        bars_ready();
        // By parts of the depth, so that the first product begins with the first of them
        for (int k = 0; k < 4; k++) {
            expect(ready + 8 * k, MATRIX / 4);
            for (int i = 0; i < 4; i++) {
                int box = ACROSS ? 4 * i + k : 4 * k + i;
                int column = box / 4 * 64, row = box % 4 * 64;
                (ACROSS ? column : row) += start;
                load(base + box * BOX, &matrix, column, row, ready + 8 * k);
            }
        }
    }
    call_next();
    await_before();
    if (brings) bring(0, part);
    for (int i = thread; i < WIDE; i += blockDim.x)
        if constexpr (ACROSS) {
            set_shared(beside + 4 * i, KIND == BEND ? ONES : 0);  // or a bias that adds nothing
        } else if constexpr (KIND == GELU) {
            const float* pair = (const float*)bias + start + 2 * i;
            if (i < WIDE / 2) set_shared(beside + 4 * i, halves(pair[0], pair[1]));
        } else {
            // bf16 has the upper half of fp32's bits
            set_shared(beside + 4 * i, (u32)((const unsigned short*)bias)[start + i] << 16);
        }
    written();
    __syncthreads();

    if (group == GROUPS) {
        fewer_registers<24>();
        if (brings)
            for (int n = 1, t = part + parts; t < tiles; n++, t += parts) {
                wait(empty + n % 2 * 8, (n / 2 & 1) ^ 1);
                bring(n, t);
            }
        return;
    }
    more_registers<240>();
    int lane = thread % 32, warp = thread / 32 % 4, leader = thread % 128 == 0;
    int line = warp * 16 + lane / 4, side = lane % 4 * 2;  // of a thread's numbers: row, column
    u32 mine = base + AT_ROWS + group * ROWS, stage = base + AT_STAGE + group * 2 * BOX;
    float z[128], total[4][4] = {};
    u32 pairs[16], words[32];
    if (group == 1) pass_turn(group);
    for (int n = group, t = part + group * parts; t < tiles; n += 2, t += 2 * parts) {
        // Slopes lie in memory as threads have them: 64 rows and 64 columns after others
        u64 chunk = (u64)t * (width / 64) + start / 64;
        uint4* slope_at = (uint4*)(slopes + chunk * 4096) + thread % 128;
        if constexpr (KIND == BEND) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint4 a = __ldcs(slope_at + i * 128);
                words[4 * i] = a.x, words[4 * i + 1] = a.y;
                words[4 * i + 2] = a.z, words[4 * i + 3] = a.w;
            }
        }
        await_turn(group);
        wait(full + 8 * group, n / 2 & 1);
        mma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            u64 left = tile(mine + k / 4 * BOX + k % 4 * 32, 16);
            u64 right = ACROSS ? tile(base + k * 2048, ROWS)
                               : tile(base + k / 4 * ROWS + k % 4 * 32, 16);
            if (k % 4 == 0) wait(ready + 2 * k, 0);
            if (k == 0) first_mma<ACROSS>(z, left, right);
            else mma<ACROSS>(z, left, right);
            if (k == DEPTH / 16 - 3) mma_commit();
        }
        mma_commit();
        // The tensor cores would share their time among both, so the turn ends when the products
        // are nearly done.
        mma_wait<1>();
        pass_turn(group);
        mma_wait<0>();
        if (leader) arrive(empty + 8 * group);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float* own = z + 32 * i;
            u32 here = stage + (i & 1) * BOX;
            if constexpr (KIND == GELU) {
                gelu_box(own, beside + (64 * i + side) * 2, pairs, words + 8 * i);
            } else if constexpr (KIND == BEND) {
                bend_box(own, words + 8 * i, pairs);
            } else {
                add_box(own, beside + (64 * i + side) * 4, pairs);
            }
            // This box is free when the copy before the last, and the sums from it, are done.
            if (leader) wait_store<1>();
            if constexpr (KIND == BEND) mma_wait<1>();
            group_sync(group);
            put(here, pairs);
            written();
            group_sync(group);
            if (leader) store(&out, here, start + 64 * i, t * TALL), commit_store();
            if constexpr (KIND == BEND) {
                mma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    sum_mma(total[i], tile(here + k * 2048, 16), ones_at(beside));
                mma_commit();
            }
        }
        if constexpr (KIND == GELU)
            // After the last fence: each waits for what was written before it
#pragma unroll
            for (int i = 0; i < 8; i++)
                slope_at[i * 128] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                               words[4 * i + 3]);
    }
    if (leader) wait_store<0>();  // shared memory is another program's after the end
    if constexpr (KIND == BEND) {
        mma_wait<0>();
        float* to = sums + (u64)(part * GROUPS + group) * width + start + line;
        if (lane % 4 == 0)
#pragma unroll
            for (int i = 0; i < 4; i++) to[64 * i] = total[i][0], to[64 * i + 8] = total[i][2];
    }
}

#define MATRICES MAP x, MAP matrix, MAP out

KERNEL multiply_plain(MATRICES, const unsigned short* bias, int rows, int width) {
    multiply<PLAIN>(x, matrix, out, bias, nullptr, nullptr, rows, width);
}
KERNEL multiply_gelu(MATRICES, const float* bias, unsigned char* slopes, int rows, int width) {
    multiply<GELU>(x, matrix, out, bias, slopes, nullptr, rows, width);
}
KERNEL multiply_back(MATRICES, int rows, int width) {
    multiply<BACK>(x, matrix, out, nullptr, nullptr, nullptr, rows, width);
}
KERNEL multiply_bend(MATRICES, unsigned char* slopes, float* sums, int rows, int width) {
    multiply<BEND>(x, matrix, out, nullptr, slopes, sums, rows, width);
}
