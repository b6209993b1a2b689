// The way back through all layers of a network that is 64 wide and has one head, over rows of 128
// tokens, for Hopper GPUs.
//
// No row has to know of another: a program goes with one from the last layer to the first, and each
// of its groups has half of the tokens. A layer is what `narrow_backward_kernel` of narrow.py does,
// and then what attend.cu does. The gradient of the residual stays in registers, those of what
// attention mixed and of the projections in shared memory. Matrices and tiles come while others are
// computed with, each as soon as its place is free.

constexpr int WIDTH = 64, INNER = 256, PIECES = INNER / 64, TILE = 2 * BOX;
// Shared memory: matrices, of one layer each; tiles of the row: queries, keys, values, mixtures,
// half of the slopes of the scores, the gradient of the mixtures, normalised rows of both norms;
// barriers; ones; for each group notes; and the documents
constexpr int AT_CONTRACT = 3 * BOX, AT_EXPAND = AT_CONTRACT + PIECES * BOX;
constexpr int AT_ATTENDED = AT_EXPAND + PIECES * BOX, AT_Q = AT_ATTENDED + BOX;
constexpr int AT_K = AT_Q + TILE, AT_V = AT_K + TILE, AT_O = AT_V + TILE, AT_S = AT_O + TILE;
constexpr int AT_G = AT_S + TILE, AT_N1 = AT_G + TILE, AT_N2 = AT_N1 + TILE;
constexpr int AT_BARS = AT_N2 + TILE, AT_ONES = AT_BARS + 256, AT_NOTES = AT_ONES + 256;
// Notes: of both norms gains, and then keys of dropout; during attention of each of the group's
// queries the logarithm, `back` and its key of dropout
constexpr int GAINS = WIDTH * 4, AT_KEYS = 2 * GAINS, KEYS = WIDTH * 2, NOTES = AT_KEYS + 2 * KEYS;
constexpr int BACK = 64 * 4, DOWN = 2 * BACK, AT_PAPERS = AT_NOTES + GROUPS * NOTES;
static_assert(DOWN + 64 * 4 == NOTES && AT_PAPERS + LENGTH * 4 <= 232448, "it has to fit");
static_assert(AT_PAPERS + LENGTH * 4 == 231936, "rows.py asks for as much");
// Where vectors of a layer lie in memory: of both norms bias, gain and shift, then the expansion's
constexpr int VECTORS = 6 * WIDTH + INNER;
// What comes from memory; each has a barrier for its arrival and one for its place being free.
enum Coming { PROJECT, CONTRACT, EXPAND, ATTENDED, NORMALS, SCORES, VALUES, MIXED, GRAD, COMING };

// --- Products

// A tile as products name it, so many times 16 bytes away from one that `name` was asked for: with
// one addition, where `tile` takes a few instructions.
__device__ __forceinline__ u32 name(u32 where) { return (u32)tile(where, 16); }
__device__ __forceinline__ u64 tile(u32 named) {
    u64 r;
    asm("mov.b64 %0, {%1, %2};" : "=l"(r) : "r"(named), "n"(1 << 30 | 1024 >> 4));
    return r;
}
constexpr int DOWN16 = 16 * 128 / 16, ACROSS16 = 16 * 2 / 16;  // rows or columns further
// A tile's rows, one after the other in memory, times those of a tile of 128 rows
__device__ __forceinline__ void multiply(float (&d)[64], u32 left, u32 right) {
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k == 0) first_mma(d, tile(left), tile(right));
        else mma(d, tile(left + k * ACROSS16), tile(right + k * ACROSS16));
}
// A tile's rows from registers times 64 columns of a matrix in shared memory, which lie in memory
// side by side. NEW: without what was there before.
template <bool NEW>
__device__ __forceinline__ void multiply(float (&d)[32], const u32 (&rows)[16], u32 matrix) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u64 right = tile(matrix + k * DOWN16);
        if (NEW && k == 0) first_mma<1>(d, rows, right);
        else mma<1>(d, rows + 4 * k, right);
    }
}
// The same with 128 columns of the first factor
__device__ __forceinline__ void multiply(float (&d)[32], const u32 (&rows)[32], u32 matrix) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
        u64 right = tile(matrix + k * DOWN16);
        if (k == 0) first_mma<1>(d, rows, right);
        else mma<1>(d, rows + 4 * k, right);
    }
}
// Sums over a box's rows, as `sum_mma` has them, without any before
__device__ __forceinline__ void add_up(float (&d)[4], u32 box, u64 ones) {
    asm volatile(WGMMA("8") "{%0, %1, %2, %3}, %4, %5, 0, 1, 1, 1, 0;"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "l"(tile(box)), "l"(ones));
#pragma unroll
    for (int k = 1; k < 4; k++) sum_mma(d, tile(box + k * DOWN16), ones);
}

KERNEL rows_backward(
    MAP grad, MAP qkv_w, MAP attended_w, MAP expand_w, MAP contract_w, MAP qkv, MAP mixed,
    MAP normal1, MAP normal2, MAP of_qkv, MAP of_attended, MAP of_inner, MAP of_outer, MAP of_input,
    const float* vectors, const unsigned char* slopes, const float* scale1, const float* scale2,
    const float* logs, const int* documents, const int* seeds, float* norm_sums, float* gelu_sums,
    float* qkv_sums, int rows, int layers, float scale, int drops, float rescale,
    int attention_drops, float attention_rescale)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 base = at(memory), full = base + AT_BARS, empty = full + 8 * COMING;
    u32 thread = threadIdx.x, lane = thread % 32, own = thread % 128;
    int group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0), tokens = rows * LENGTH;
    bool brings = thread == GROUPS * 128;
    // The barrier at which so many boxes are to arrive
    auto expected = [&](int which, int boxes) {
        expect(full + 8 * which, boxes * BOX);
        return full + 8 * which;
    };
    auto bring_project = [&](int n) {
        u32 bar = expected(PROJECT, 3);
        for (int i = 0; i < 3; i++) load(base + i * BOX, &qkv_w, 0, (n * 3 + i) * 64, bar);
    };
    auto bring_contract = [&](int n) {
        u32 bar = expected(CONTRACT, PIECES);
        for (int i = 0; i < PIECES; i++)
            load(base + AT_CONTRACT + i * BOX, &contract_w, i * 64, n * 64, bar);
    };
    auto bring_expand = [&](int n) {
        u32 bar = expected(EXPAND, PIECES);
        for (int i = 0; i < PIECES; i++)
            load(base + AT_EXPAND + i * BOX, &expand_w, 0, (n * PIECES + i) * 64, bar);
    };
    auto bring_attended = [&](int n) {
        load(base + AT_ATTENDED, &attended_w, 0, n * 64, expected(ATTENDED, 1));
    };
    // Both halves of a tile of the row that begins there
    auto bring = [&](int to, const Map& map, int x, int y, u32 bar) {
        for (int i = 0; i < GROUPS; i++) load(base + to + i * BOX, &map, x, y + i * 64, bar);
    };
    auto bring_normals = [&](int y) {
        u32 bar = expected(NORMALS, 4);
        bring(AT_N2, normal2, 0, y, bar);
        bring(AT_N1, normal1, 0, y, bar);
    };
    call_next();
    if (brings) {
        for (int i = 0; i < COMING; i++)
            bar_init(full + 8 * i, 1), bar_init(empty + 8 * i, GROUPS * 4);
        bars_ready();
        bring_contract(layers - 1);
        bring_expand(layers - 1);
        bring_attended(layers - 1);
        bring_project(layers - 1);
    }
    await_before();
    if (brings) bring_normals((layers - 1) * tokens + blockIdx.x * LENGTH);
    if (thread < 64) set_shared(base + AT_ONES + 4 * thread, ONES);
    written();
    __syncthreads();

    if (group == GROUPS) {
        fewer_registers<24>();
        if (!brings) return;
        // In the order in which places become free, so that no wait is for what comes later. Places
        // that a layer's first half leaves are for the layer below, or for the next row's last.
        u32 step = 0, turn = 0;
        for (int r = blockIdx.x; r < rows; r += gridDim.x, turn++)
            for (int n = layers - 1; n >= 0; n--, step++) {
                u32 bar, now = step & 1, before = now ^ 1;
                int y = n * tokens + r * LENGTH, below = n ? n - 1 : layers - 1;
                int next = n ? r : r + gridDim.x;
                bool more = next < rows;
                if (n == layers - 1) {
                    wait(empty + 8 * GRAD, (turn & 1) ^ 1);
                    bring(AT_S, grad, 0, r * LENGTH, expected(GRAD, 2));
                }
                wait(empty + 8 * SCORES, before);
                bar = expected(SCORES, 4);
                bring(AT_Q, qkv, 0, y, bar);
                bring(AT_K, qkv, 64, y, bar);
                for (int i = 0; i < GROUPS; i++) fetch(&mixed, 0, y + i * 64);
                wait(empty + 8 * VALUES, before);
                bring(AT_V, qkv, 128, y, expected(VALUES, 2));
                if (step) {
                    wait(empty + 8 * PROJECT, before);
                    bring_project(n);
                }
                int there = below * tokens + next * LENGTH;
                if (more) {
                    for (int i = 0; i < GROUPS; i++) {
                        fetch(&normal1, 0, there + i * 64);
                        fetch(&normal2, 0, there + i * 64);
                    }
                    fetch(slopes + (u64)there * INNER, LENGTH * INNER);
                    fetch(scale1 + there, LENGTH * 4);
                    fetch(scale2 + there, LENGTH * 4);
                    fetch(logs + there, LENGTH * 4);
                    wait(empty + 8 * CONTRACT, now);
                    bring_contract(below);
                    wait(empty + 8 * EXPAND, now);
                    bring_expand(below);
                }
                wait(empty + 8 * MIXED, now);
                bring(AT_O, mixed, 0, y, expected(MIXED, 2));
                if (more) {
                    wait(empty + 8 * ATTENDED, now);
                    bring_attended(below);
                    wait(empty + 8 * NORMALS, now);
                    bring_normals(there);
                }
            }
        return;
    }
    more_registers<240>();
    bool leader = own == 0;
    u32 line = own / 32 * 16 + lane / 4, side = lane % 4 * 2;  // of its numbers: row, column
    u32 query = thread / 2, half = thread % 2;  // two threads find what is the same for all keys
    u32 notes = base + AT_NOTES + group * NOTES, mine = base + group * BOX;
    u32 v_box = mine + AT_V, o_box = mine + AT_O, s_box = mine + AT_S, g_box = mine + AT_G;
    u32 n1_box = mine + AT_N1, n2_box = mine + AT_N2;
    u32 bound = drop_bound(drops), odds_bound = drop_bound(attention_drops);
    u32 step = 0, turn = 0;  // layers and rows that are done
    auto ready = [&](int which) { wait(full + 8 * which, step & 1); };
    auto done = [&](int which) {  // by each warp
        if (lane == 0) arrive(empty + 8 * which);
    };
    // What is there in shared memory, as products name it, and the group's half of a tile there
    u32 named = name(base), named_ours = name(mine);
    auto both = [&](int at) { return named + at / 16; };
    auto ours = [&](int at) { return named_ours + at / 16; };
    u64 ones = ones_at(base + AT_ONES);
    // Sums over rows come in parts, one for each group of each row.
    auto leave_sums = [&](float* to, const float (&total)[4]) {
        if (lane % 4 == 0) to[line] = total[0], to[line + 8] = total[2];
    };
    // What went out is read, and all threads of the group are here.
    auto settle = [&] {
        if (leader) wait_store<0>();
        group_sync(group);
    };
    for (int r = blockIdx.x; r < rows; r += gridDim.x, turn++) {
        int first = r * LENGTH + group * 64;  // of the group's tokens
        int part = r * GROUPS + group, parts = rows * GROUPS;
        u32 kept[16];  // of the gradient of a layer's input what does not come through projections
        // All of it, from the gradients of layer n's projections, which lie where attention left
        // them.
        auto through = [&](float (&z)[32], int n) {
            float q_sums[4], v_sums[4];
            constexpr int boxes[3] = {AT_O, AT_S, AT_V};
            wait(full + 8 * PROJECT, (step & 1) ^ 1);
            mma_fence();
#pragma unroll
            for (int k = 0; k < 12; k++) {
                u64 left = tile(ours(boxes[k / 4]) + k % 4 * ACROSS16);
                u64 right = tile(named + k * DOWN16);
                if (k == 0) first_mma<0, 1>(z, left, right);
                else mma<0, 1>(z, left, right);
            }
            add_up(q_sums, ours(AT_O), ones);
            add_up(v_sums, ours(AT_V), ones);
            mma_commit();
            mma_wait<0>();
            float* to = qkv_sums + (n * parts + part) * 3 * WIDTH;
            const float none[4] = {};
            leave_sums(to, q_sums), leave_sums(to + WIDTH, none);
            leave_sums(to + 2 * WIDTH, v_sums);
#pragma unroll
            for (int j = 0; j < 16; j++)
                z[2 * j] = low(kept[j]) + z[2 * j], z[2 * j + 1] = high(kept[j]) + z[2 * j + 1];
        };
        wait(full + 8 * GRAD, turn & 1);
        get(s_box, kept);
        for (int n = layers - 1; n >= 0; n--, step++) {
            int there = n * tokens + first;
            const int* seed = seeds + n * 12;
            const float* vector = vectors + n * VECTORS;
            // The gradient z of a norm's output becomes that of the residual; `used` is what
            // dropout leaves of it. Terms of the gradients of gain and shift are in `of_gain` and
            // `of_shift`.
            auto norm = [&](float (&z)[32], const u32 (&normal)[16], int which, u32 start,
                            const float (&inverse)[2], u32 (&of_gain)[16], u32 (&of_shift)[16],
                            u32 (&used)[16]) {
                float sum[2] = {}, along[2] = {};
                u32 gains = notes + which * GAINS, keys = notes + AT_KEYS + which * KEYS;
                u32 down[2] = {key_at(first + line, start), key_at(first + line + 8, start)};
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    int h = j % 2;
                    float2 gain = shared_floats(gains + 4 * (j / 2 * 8 + side));
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
                    u32 across = shared_word(keys + 4 * (j / 2 * 4 + side / 2));
                    if (drops) drop(u0, u1, fold(down[h], across), bound, rescale);
                    used[j] = pack(u0, u1);
                }
            };
            // All that threads read from memory is asked for before the first product.
            u32 words[8 * PIECES];
            const uint4* slope_at = (const uint4*)(slopes + (u64)there * INNER) + own;
#pragma unroll
            for (int i = 0; i < 2 * PIECES; i++) {
                uint4 a = __ldcs(slope_at + i * 128);
                words[4 * i] = a.x, words[4 * i + 1] = a.y;
                words[4 * i + 2] = a.z, words[4 * i + 3] = a.w;
            }
            float inverse1[2], inverse2[2], gain = vector[(own / 64 * 3 + 1) * WIDTH + own % 64];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                inverse1[h] = scale1[there + line + 8 * h];
                inverse2[h] = scale2[there + line + 8 * h];
            }
            u32 start1 = seed[4], start2 = seed[8], of_pairs = seed[own / 32 % 2 * 4 + 5];
            u32 start = seed[0], across = seed[1];
            int known = half ? documents[r * LENGTH + query]
                             : __float_as_int(logs[n * tokens + r * LENGTH + query]);

            // Else addresses that never change would take registers for all of the loop.
            asm volatile("" : "+r"(notes), "+r"(mine));

            // The norm of the output
            float z[32], mid[32], outer[32];
            u32 normal[16], of_shift[16], of_gain[16], used[16], pairs[16];
            if (n < layers - 1) {
                through(z, n + 1);
                done(PROJECT);
            } else {
#pragma unroll
                for (int j = 0; j < 16; j++) z[2 * j] = low(kept[j]), z[2 * j + 1] = high(kept[j]);
            }
            ready(NORMALS);
            get(n2_box, normal);
            set_shared(notes + 4 * own, __float_as_uint(gain));
            if (own < 64)
                set_shared(notes + AT_KEYS + 4 * own, key_at(own % 32, mix(of_pairs)));
            settle();
            if (n < layers - 1) done(VALUES);
            norm(z, normal, 1, mix(start2), inverse2, of_gain, of_shift, used);
            ready(CONTRACT);
            mma_fence();
            multiply<true>(mid, used, both(AT_CONTRACT));
            mma_commit();
            put(o_box, of_shift);
            put(s_box, of_gain);
            put(n2_box, used);
            written();
            group_sync(group);
            if (leader) store(&of_outer, n2_box, 0, there), commit_store();

            // Through the inner width
            float total[3][4];
            constexpr int inner[PIECES] = {AT_G, AT_O, AT_S, AT_N2};
            ready(EXPAND);
#pragma unroll
            for (int c = 0; c < PIECES; c++) {
                mma_wait<0>();
                if (c == 3) done(CONTRACT);
                bend_box(mid, words + 8 * c, pairs);
                mma_fence();
                if (c == 0) {
                    multiply<true>(outer, pairs, both(AT_EXPAND));
                    add_up(total[0], ours(AT_S), ones);
                    add_up(total[1], ours(AT_O), ones);
                    add_up(total[2], ours(AT_N2), ones);
                } else {
                    multiply<false>(outer, pairs, both(AT_EXPAND + c * BOX));
                }
                if (c + 1 < PIECES) multiply<true>(mid, used, both(AT_CONTRACT + (c + 1) * BOX));
                mma_commit();
                // A box is free when the other group's attention is done with the gradient there,
                // as with scores; when all warps' sums over it are found; when it went out.
                if (c == 0) wait(empty + 8 * SCORES, (step & 1) ^ 1);
                if (c == 1) group_sync(group);
                if (c == 3) settle();
                put(mine + inner[c], pairs);
            }
            written();
            group_sync(group);
            if (leader) {
                for (int c = 0; c < PIECES; c++) store(&of_inner, mine + inner[c], 64 * c, there);
                commit_store();
            }
#pragma unroll
            for (int i = 0; i < 3; i++)
                leave_sums(norm_sums + (((n * 2 + 1) * parts + part) * 3 + i) * WIDTH, total[i]);
            float gelu_total[PIECES][4];
            get(n1_box, normal);
            mma_wait<0>();
            done(EXPAND);
            mma_fence();
#pragma unroll
            for (int c = 0; c < PIECES; c++) add_up(gelu_total[c], ours(inner[c]), ones);
            mma_commit();

            // The norm of what attention gives
#pragma unroll
            for (int j = 0; j < 32; j++) z[j] += outer[j];
            norm(z, normal, 0, mix(start1), inverse1, of_gain, of_shift, used);
            mma_wait<0>();
            settle();
            done(MIXED);
            ready(ATTENDED);
            mma_fence();
            multiply<true>(mid, used, both(AT_ATTENDED));
            mma_commit();
            put(s_box, used);
            put(n1_box, of_gain);
            put(n2_box, of_shift);
#pragma unroll
            for (int j = 0; j < 16; j++) kept[j] = pack(z[2 * j], z[2 * j + 1]);
            mma_wait<0>();
            done(ATTENDED);
#pragma unroll
            for (int j = 0; j < 16; j++) pairs[j] = pack(mid[2 * j], mid[2 * j + 1]);
            put(g_box, pairs);
            written();

            // Attention: of the scores, which are tiles (keys, queries), the group has its keys.
            float odds[64], slope[64];
            ready(SCORES);
            mma_fence();
            multiply(odds, ours(AT_K), both(AT_Q));
            mma_commit();
            both_sync();  // gradients of both groups' mixtures are there
            if (leader) store(&of_attended, s_box, 0, there), commit_store();
#pragma unroll
            for (int c = 0; c < PIECES; c++)
                leave_sums(gelu_sums + (n * parts + part) * INNER + 64 * c, gelu_total[c]);
            ready(VALUES);
            mma_fence();
            multiply(slope, ours(AT_V), both(AT_G));
            add_up(total[0], ours(AT_N1), ones);
            add_up(total[1], ours(AT_N2), ones);
            add_up(total[2], ours(AT_S), ones);
            mma_commit();
            ready(MIXED);
            float back = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 where = query * 128 + (((4 * half + i) ^ (query & 7)) << 4);
                uint4 g = shared_four(base + AT_G + where), o = shared_four(base + AT_O + where);
                back += dot(g, o);
            }
            back = (back + __shfl_xor_sync(0xFFFFFFFFu, back, 1)) * (-1 / attention_rescale);
            u32 note = notes + 4 * (query % 64);
            if (half) {
                set_shared(base + AT_PAPERS + 4 * query, known);
                set_shared(note + DOWN, key_at(r * LENGTH + query, mix(start)));
            } else {
                set_shared(note, known);
                set_shared(note + BACK, __float_as_uint(back));
            }
            mma_wait<0>();
            if (leader) wait_store<0>();
            both_sync();  // all notes are there, and nobody reads what slopes will lie on
            done(NORMALS);
#pragma unroll
            for (int i = 0; i < 3; i++)
                leave_sums(norm_sums + ((n * 2 * parts + part) * 3 + i) * WIDTH, total[i]);

            u32 papers = base + AT_PAPERS, paper_at = papers + 4 * (group * 64 + line);
            keep_apart(odds, papers, paper_at, side);
            // Keys n and n + 8 of a thread are one pair, and it has no other.
            across = key_at(thread / 32 * 8 + lane / 4, mix(across));
            u32 odds_used[32], bends[32];
#pragma unroll
            for (int j = 0; j < 16; j++) {
                u32 where = base + AT_NOTES + j / 8 * NOTES + 4 * (j % 8 * 8 + side);
                float2 log = shared_floats(where), back = shared_floats(where + BACK);
                uint2 down = shared_pair(where + DOWN);
                weigh(odds + 4 * j, slope + 4 * j, scale, log, back, down, across, odds_bound,
                      odds_used + 2 * j, bends + 2 * j);
            }
            // A half of the row's queries has slopes for its own keys in the place of its values,
            // and for the others', from the other group, beside.
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 to = base + (i / 4 == group ? AT_V : AT_S) + i / 4 * BOX;
                put_columns(to, i % 4, bends + 4 * i);
            }
            written();
            float of_v[32], of_k[32], of_q[32];
            mma_fence();
            multiply(of_v, odds_used, both(AT_G));
            multiply(of_k, bends, both(AT_Q));
            both_sync();  // a group's queries have slopes for the keys of both
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u64 left = tile(ours(i / 4 == group ? AT_V : AT_S) + i % 4 * DOWN16);
                u64 right = tile(both(AT_K) + i * DOWN16);
                if (i == 0) first_mma<1, 1>(of_q, left, right);
                else mma<1, 1>(of_q, left, right);
            }
            mma_commit();
            mma_wait<0>();
            done(SCORES);
            group_sync(group);
            auto leave = [&](u32 where, const float (&x)[32], float factor) {
#pragma unroll
                for (int j = 0; j < 16; j++)
                    pairs[j] = pack(x[2 * j] * factor, x[2 * j + 1] * factor);
                put(where, pairs);
            };
            float factor = scale * 0.6931471805599453f * attention_rescale;
            leave(o_box, of_q, factor);
            leave(s_box, of_k, factor);
            leave(v_box, of_v, attention_rescale);
            written();
            group_sync(group);
            if (leader) {
                store(&of_qkv, o_box, 0, there);
                store(&of_qkv, s_box, 64, there);
                store(&of_qkv, v_box, 128, there);
                commit_store();
            }
        }
        // The row's input
        float z[32];
        u32 pairs[16];
        through(z, 0);
        done(PROJECT);
        settle();
        done(VALUES);
        done(GRAD);
#pragma unroll
        for (int j = 0; j < 16; j++) pairs[j] = pack(z[2 * j], z[2 * j + 1]);
        wait(empty + 8 * SCORES, (step & 1) ^ 1);
        put(g_box, pairs);
        written();
        group_sync(group);
        if (leader) store(&of_input, g_box, 0, first), commit_store();
    }
    if (leader) wait_store<0>();  // shared memory is another program's after the end
}
