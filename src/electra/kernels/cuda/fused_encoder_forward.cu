// All layers of a network that is 64 wide and has one head, over rows of 128 tokens, for Hopper
// GPUs.
//
// No row has to know of another: a program goes with one through all layers, and each of its groups
// has half of the tokens. What one product gives is the first factor of the next and stays in
// registers; queries, keys and values are in shared memory. A layer's matrices come while the layer
// before is computed, each as soon as that is done with its own.

constexpr int WIDTH = 64, INNER = 256, PIECES = INNER / 64, TILE = 2 * BOX;
enum Matrix { PROJECT, ATTENDED, EXPAND, CONTRACT, MATRICES };
// Shared memory: matrices; queries, keys and values of the row; three boxes for each group that go
// out; the row; barriers; and notes for each group
constexpr int AT_ATTENDED = 3 * BOX, AT_EXPAND = AT_ATTENDED + BOX;
constexpr int AT_CONTRACT = AT_EXPAND + PIECES * BOX, AT_QKV = AT_CONTRACT + PIECES * BOX;
constexpr int AT_STAGE = AT_QKV + 3 * TILE, AT_ROW = AT_STAGE + GROUPS * 3 * BOX;
constexpr int AT_BARS = AT_ROW + TILE, AT_NOTES = AT_BARS + 128;
// Of both norms bias, gain, shift and keys of dropout; the expansion's bias in halves; and that of
// the projections
constexpr int GAIN = WIDTH * 4, SHIFT = 2 * GAIN, KEYS = 3 * GAIN, NORM = KEYS + WIDTH * 2;
constexpr int HALVES = 2 * NORM, BIAS = HALVES + INNER * 2, NOTES = BIAS + 3 * WIDTH * 4;
static_assert(AT_NOTES + GROUPS * NOTES == 219264, "rows.py asks for as much");
// Where vectors of a layer lie in memory: of both norms bias, gain and shift, then the expansion's
constexpr int VECTORS = 6 * WIDTH + INNER;

// A tile's rows from registers times 64 columns of a matrix in shared memory. NEW: without what was
// there before.
template <bool NEW>
__device__ __forceinline__ void multiply(float (&d)[32], const u32 (&rows)[16], u32 matrix) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u64 right = tile(matrix + k * 32, 16);
        if (NEW && k == 0) first_mma<0>(d, rows, right);
        else mma<0>(d, rows + 4 * k, right);
    }
}

KERNEL rows_forward(
    MAP x, MAP project, MAP attended, MAP expand, MAP contract, MAP qkv, MAP mixed, MAP y,
    MAP active, MAP normal1, MAP normal2, MAP out, const float* vectors,
    const unsigned short* bias, float* logs, float* scale1, float* scale2, unsigned char* slopes,
    const int* documents, const int* seeds, int rows, int layers, float scale, float eps,
    int drops, float rescale, int odds_drops, float odds_rescale)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 base = at(memory), full = base + AT_BARS, empty = full + 8 * MATRICES;
    u32 arrived = empty + 8 * MATRICES, taken = arrived + 8;
    int thread = threadIdx.x, group = thread / 128, tokens = rows * LENGTH;
    bool brings = thread == GROUPS * 128;
    auto bring = [&](int which, int n) {
        u32 bar = full + 8 * which;
        expect(bar, (which == PROJECT ? 3 : which == ATTENDED ? 1 : PIECES) * BOX);
        if (which == PROJECT)
            for (int i = 0; i < 3; i++) load(base + i * BOX, &project, 0, n * 192 + i * 64, bar);
        else if (which == ATTENDED)
            load(base + AT_ATTENDED, &attended, 0, n * 64, bar);
        else if (which == EXPAND)
            for (int i = 0; i < PIECES; i++)
                load(base + AT_EXPAND + i * BOX, &expand, 0, n * INNER + i * 64, bar);
        else
            for (int i = 0; i < PIECES; i++)
                load(base + AT_CONTRACT + i * BOX, &contract, i * 64, n * 64, bar);
    };
    if (brings) {
        for (int i = 0; i < MATRICES; i++)
            bar_init(full + 8 * i, 1), bar_init(empty + 8 * i, GROUPS);
        bar_init(arrived, 1), bar_init(taken, GROUPS);
        bars_ready();
        for (int i = 0; i < MATRICES; i++) bring(i, 0);
    }
    call_next();
    await_before();
    __syncthreads();

    if (group == GROUPS) {
        fewer_registers<24>();
        if (brings) {
            u32 round = 0, turn = 0;
            for (int r = blockIdx.x; r < rows; r += gridDim.x, turn++) {
                wait(taken, (turn & 1) ^ 1);
                expect(arrived, TILE);
                for (int i = 0; i < 2; i++)
                    load(base + AT_ROW + i * BOX, &x, 0, r * LENGTH + i * 64, arrived);
                for (int n = 0; n < layers; n++, round++)
                    for (int i = 0; i < MATRICES && round; i++) {
                        wait(empty + 8 * i, (round & 1) ^ 1);
                        bring(i, n);
                    }
            }
        }
        return;
    }
    more_registers<240>();
    int lane = thread % 32, part = thread / 32 % 4, side = lane % 4 * 2, own = thread % 128;
    bool leader = own == 0;
    u32 notes = base + AT_NOTES + group * NOTES, stage = base + AT_STAGE + group * 3 * BOX;
    u32 bound = drop_bound(drops), odds_bound = drop_bound(odds_drops), next = 0;
    u32 round = 0, turn = 0;
    for (int r = blockIdx.x; r < rows; r += gridDim.x, turn++) {
        int first = r * LENGTH + group * 64, line = first + part * 16 + lane / 4;
        const int* papers = documents + r * LENGTH;
        bool apart = papers[0] != papers[LENGTH - 1];
        u32 before[16], two;
        float given[5];
        // Vectors of a layer are asked for before they are needed
        auto ask = [&](int n) {
            const float* vector = vectors + n * VECTORS;
#pragma unroll
            for (int i = 0; i < 3; i++) given[i] = vector[i * 128 + own];
            given[3] = vector[6 * WIDTH + 2 * own], given[4] = vector[6 * WIDTH + 2 * own + 1];
            two = own < 96 ? ((const u32*)(bias + n * 192))[own] : 0;
        };
        ask(0);
        wait(arrived, turn & 1);
        get(base + AT_ROW + group * BOX, before);
        group_sync(group);
        if (leader) arrive(taken);
        for (int n = 0; n < layers; n++, round++) {
            int from = n * tokens;  // this layer's first row in memory
            const int* seed = seeds + n * 12;
            auto ready = [&](int which) { wait(full + 8 * which, round & 1); };
            auto done = [&](int which) {
                if (leader) arrive(empty + 8 * which);
            };
            auto room = [&] {
                u32 here = stage + next * BOX;
                next = next == 2 ? 0 : next + 1;
                return here;
            };
            auto send = [&](const Map& map, u32 here, int col, int from) {
                store(&map, here + part * 2048, col, from + first + part * 16);
            };
            auto leave = [&](const Map& map, const u32 (&pairs)[16], int col) {
                u32 here = room();
                if (lane == 0) wait_store<1>();
                __syncwarp();
                put(here, pairs);
                written();
                __syncwarp();
                if (lane == 0) send(map, here, col, from), commit_store();
            };
            // Two with one fence; never after one another, for which there are too few boxes
            auto leave_both = [&](const Map& map1, const u32 (&pairs1)[16], const Map& map2,
                                  const u32 (&pairs2)[16], int from2) {
                u32 here1 = room(), here2 = room();
                if (lane == 0) wait_store<1>();
                __syncwarp();
                put(here1, pairs1);
                put(here2, pairs2);
                written();
                __syncwarp();
                if (lane == 0) {
                    send(map1, here1, 0, from), send(map2, here2, 0, from2);
                    commit_store();
                }
            };
            // z with bias, dropout and residual becomes normalised rows, and these with gain and
            // shift.
            auto norm = [&](float (&z)[32], const u32 (&before)[16], u32 beside, u32 start,
                            float (&inverse)[2], u32 (&normal)[16], u32 (&whole)[16]) {
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
                for (int h = 0; h < 2; h++)
                    inverse[h] = rsqrtf(row_sum(square[h]) * (1.0f / WIDTH) + eps);
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    u32 where = beside + 4 * (j / 2 * 8 + side);
                    float2 gain = shared_floats(where + GAIN), shift = shared_floats(where + SHIFT);
                    float z0 = z[2 * j] * inverse[j % 2], z1 = z[2 * j + 1] * inverse[j % 2];
                    normal[j] = pack(z0, z1);
                    whole[j] = pack(z0 * gain.x + shift.x, z1 * gain.y + shift.y);
                }
            };
            float mid[32], inverse1[2], inverse2[2], level[2];
            u32 pairs[16], normal[16], middle[16], words[PIECES][8];

            // Queries, keys and values; the layer before and copies to memory are done with theirs.
            ready(PROJECT);
            mma_fence();
            multiply<true>(mid, before, base);
            mma_commit();
            if (leader) wait_store<0>();
            both_sync();
#pragma unroll
            for (int i = 0; i < 3; i++) {
                int which = 2 * i + own / 64;  // of six vectors of both norms
                u32 where = notes + which / 3 * NORM + which % 3 * GAIN + own % 64 * 4;
                set_shared(where, __float_as_uint(given[i]));
            }
            set_shared(notes + HALVES + 4 * own, halves(given[3], given[4]));
            if (own < 96) {  // bf16 has the upper half of fp32's bits
                set_shared(notes + BIAS + 8 * own, two << 16);
                set_shared(notes + BIAS + 8 * own + 4, two & 0xFFFF0000u);
            }
            if (own < 64) {
                u32 key = key_at(own % 32, mix(seed[4 + own / 32 * 4 + 1]));
                set_shared(notes + own / 32 * NORM + KEYS + own % 32 * 4, key);
            }
            group_sync(group);
#pragma unroll
            for (int c = 0; c < 3; c++) {
                mma_wait<0>();
                add_box(mid, notes + BIAS + (64 * c + side) * 4, pairs);
                if (c < 2) {
                    mma_fence();
                    multiply<true>(mid, before, base + (c + 1) * BOX);
                    mma_commit();
                } else {
                    done(PROJECT);
                }
                put(base + AT_QKV + c * TILE + group * BOX, pairs);
            }
            written();
            both_sync();
            if (leader) {
                for (int c = 0; c < 3; c++)
                    store(&qkv, base + AT_QKV + c * TILE + group * BOX, c * 64, from + first);
                commit_store();
            }

            // Attention of the group's queries to all keys
            u32 q = base + AT_QKV + group * BOX, k = base + AT_QKV + TILE, v = k + TILE;
            float odds[64], top[2], total[2];
            mma_fence();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u64 left = tile(q + i * 32, 16), right = tile(k + i * 32, 16);
                if (i == 0) first_mma(odds, left, right);
                else mma(odds, left, right);
            }
            mma_commit();
            u32 start = mix(seed[0]), used[32], across[16];
            u32 down[2] = {key_at(line, start), key_at(line + 8, start)};
#pragma unroll
            for (int i = 0; i < 16; i++)
                across[i] = key_at(i / 2 * 8 + side + i % 2, mix(seed[1]));
            mma_wait<0>();
            if (apart) {
                int mine[2] = {documents[line], documents[line + 8]};
#pragma unroll
                for (int j = 0; j < 64; j++)
                    if (papers[j / 4 * 8 + side + j % 2] != mine[j / 2 % 2]) odds[j] = -1e30f;
            }
            softmax(odds, scale, across, down, odds_bound, top, total, used);
            mma_fence();
            first_mma<1>(mid, used, tile(v, 16));
#pragma unroll
            for (int i = 1; i < 8; i++) mma<1>(mid, used + 4 * i, tile(v + i * 2048, 16));
            mma_commit();
#pragma unroll
            for (int h = 0; h < 2; h++) {
                total[h] = row_sum(total[h]);
                level[h] = top[h] + log2f(total[h]);
                total[h] = odds_rescale / total[h];
            }
            mma_wait<0>();
#pragma unroll
            for (int j = 0; j < 16; j++)
                pairs[j] = pack(mid[2 * j] * total[j % 2], mid[2 * j + 1] * total[j % 2]);

            ready(ATTENDED);
            mma_fence();
            multiply<true>(mid, pairs, base + AT_ATTENDED);
            mma_commit();
            leave(mixed, pairs, 0);
            mma_wait<0>();
            done(ATTENDED);
            norm(mid, before, notes, mix(seed[4]), inverse1, normal, middle);
            ready(EXPAND);
            mma_fence();
            multiply<true>(mid, middle, base + AT_EXPAND);
            mma_commit();
            leave_both(normal1, normal, y, middle, from);
            ready(CONTRACT);
            float outer[32];
#pragma unroll
            for (int c = 0; c < PIECES; c++) {
                mma_wait<0>();
                if (c == PIECES - 1) done(EXPAND);
                gelu_box(mid, notes + HALVES + (64 * c + side) * 2, pairs, words[c]);
                mma_fence();
                if (c == 0) multiply<true>(outer, pairs, base + AT_CONTRACT);
                else multiply<false>(outer, pairs, base + AT_CONTRACT + c * BOX);
                if (c + 1 < PIECES) multiply<true>(mid, middle, base + AT_EXPAND + (c + 1) * BOX);
                mma_commit();
                leave(active, pairs, 64 * c);
            }
            if (n + 1 < layers) ask(n + 1);
            mma_wait<0>();
            done(CONTRACT);
            norm(outer, middle, notes + NORM, mix(seed[8]), inverse2, normal, before);
            leave_both(normal2, normal, out, before, from + tokens);
            // Last, for a fence waits for all that was written before it
            uint4* to = (uint4*)(slopes + (u64)((from + first) / 64) * PIECES * 4096) + own;
#pragma unroll
            for (int c = 0; c < PIECES; c++) {
                u32* w = words[c];
                to[c * 256] = make_uint4(w[0], w[1], w[2], w[3]);
                to[c * 256 + 128] = make_uint4(w[4], w[5], w[6], w[7]);
            }
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (lane % 4 == 0) {
                    int at = from + line + 8 * h;
                    scale1[at] = inverse1[h], scale2[at] = inverse2[h], logs[at] = level[h];
                }
        }
    }
    if (lane == 0) wait_store<0>();  // shared memory is another program's after the end
}
