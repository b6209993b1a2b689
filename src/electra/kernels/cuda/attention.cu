// Attention over rows of 128 tokens with heads of 64, and its way back, for Hopper GPUs.
//
// A program has one head of a row after the other, the next ones' tiles coming meanwhile. What it
// computes is what `attend_kernel` and `attend_backward_kernel` of attention.py do.

constexpr int SIZE = 64, TILE = LENGTH * SIZE * 2;

// Forth the scores are tiles (queries, keys). Three groups take turns at halves of heads, of 64
// queries, and none waits for another: while one multiplies, others compute.
namespace forth {
constexpr int GROUPS = 3, SLOTS = 4, LOADED = 3 * TILE, PAPERS = LENGTH * 4;
// Barriers at which heads arrive. Of so many heads a group has a part in the same ones every time,
// so that it misses no round of a barrier at which it waits; with four barriers it would.
constexpr int ROUND = 2 * GROUPS;
// Shared memory: queries, keys and values of four heads; a box for each group that goes out; the
// documents of the heads' tokens; and barriers
constexpr int AT_STAGE = SLOTS * LOADED, AT_PAPERS = AT_STAGE + GROUPS * BOX;
constexpr int AT_BARS = AT_PAPERS + SLOTS * PAPERS;
static_assert(AT_BARS + 128 == 223360, "attention.py asks for as much");

KERNEL attend_forward(
    MAP qkv, MAP mixed, const int* documents, float* logs, const int* seed, int rows, int heads,
    float scale, int drops, float rescale)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 base = at(memory), full = base + AT_BARS, empty = full + 8 * ROUND;
    int thread = threadIdx.x, wide = heads * SIZE, count = rows * heads;
    int group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);  // that a warp has but one is known so
    if (thread == 0) {
        for (int i = 0; i < ROUND; i++) bar_init(full + 8 * i, 1);
        // Each warp that has read a half says so.
        for (int i = 0; i < SLOTS; i++) bar_init(empty + 8 * i, 2 * 4);
        bars_ready();
    }
    call_next();
    await_before();
    __syncthreads();

    if (group == GROUPS) {
        fewer_registers<32>();
        if (thread == GROUPS * 128)
            for (int n = 0, b = blockIdx.x; b < count; n++, b += gridDim.x) {
                int slot = n % SLOTS, row = b / heads * LENGTH, col = b % heads * SIZE;
                u32 to = base + slot * LOADED, bar = full + n % ROUND * 8;
                wait(empty + slot * 8, (n / SLOTS & 1) ^ 1);
                expect(bar, LOADED + PAPERS);
                load(base + AT_PAPERS + slot * PAPERS, documents + row, PAPERS, bar);
                for (int i = 0; i < 2; i++, to += BOX, row += 64)
                    for (int k = 0; k < 3; k++) load(to + k * TILE, &qkv, col + k * wide, row, bar);
            }
        return;
    }
    more_registers<160>();
    int lane = thread % 32, warp = thread / 32 % 4;
    int line = warp * 16 + lane / 4, side = lane % 4 * 2;  // of a thread's numbers: row, column
    u32 stage = base + AT_STAGE + group * BOX, bound = drop_bound(drops);
    u32 start = mix(seed[0]), across[16];
#pragma unroll
    for (int i = 0; i < 16; i++) across[i] = key_at(i / 2 * 8 + side + i % 2, mix(seed[1]));
    for (int item = group;; item += GROUPS) {
        int n = item / 2, half = item % 2, slot = n % SLOTS, b = blockIdx.x + n * gridDim.x;
        if (b >= count) break;
        u32 tiles = base + slot * LOADED, q = tiles + half * BOX, k = tiles + TILE, v = k + TILE;
        u32 papers = base + AT_PAPERS + slot * PAPERS, used[32], pairs[16];
        float odds[64], top[2], total[2], out[32];
        wait(full + n % ROUND * 8, n / ROUND & 1);
        mma_fence();
#pragma unroll
        for (int i = 0; i < SIZE / 16; i++) {
            u64 left = tile(q, 16) + i * (32 >> 4), right = tile(k, 16) + i * (32 >> 4);
            if (i == 0) first_mma(odds, left, right);
            else mma(odds, left, right);
        }
        mma_commit();
        int query = b * LENGTH + half * 64 + line;
        u32 down[2] = {key_at(query, start), key_at(query + 8, start)};
        mma_wait<0>();
        keep_apart(odds, papers, papers + 4 * (half * 64 + line), side);
        softmax(odds, scale, across, down, bound, top, total, used);

        mma_fence();
        u64 right = tile(v, 16);
        first_mma<1>(out, used, right);
#pragma unroll
        for (int i = 1; i < LENGTH / 16; i++) mma<1>(out, used + 4 * i, right + i * (2048 >> 4));
        mma_commit();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float log = logarithm(row_sum(total[h]));
            top[h] += log;
            total[h] = rescale * power(-log);
        }
        mma_wait<0>();
        if (lane == 0) {
            arrive(empty + slot * 8);
            wait_store<0>();  // what this warp left before
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 16; j++)
            pairs[j] = pack(out[2 * j] * total[j % 2], out[2 * j + 1] * total[j % 2]);
        put(stage, pairs);
        written();
        __syncwarp();
        if (lane == 0) {
            int row = b / heads * LENGTH + half * 64 + warp * 16, col = b % heads * SIZE;
            store(&mixed, stage + warp * 2048, col, row);
            commit_store();
        }
        // Last, for a fence waits for all that was written before it
        if (lane % 4 == 0) logs[query] = top[0], logs[query + 8] = top[1];
    }
    if (lane == 0) wait_store<0>();  // shared memory is another program's after the end
}
}  // namespace forth

// On the way back they are tiles (keys, queries), of which each of two groups has 64 keys.
namespace back {
constexpr int LOADED = 5 * TILE;
// Shared memory: queries, keys, values, gradient and mixtures of two heads; slopes of the scores;
// two boxes for each group that go out; barriers; ones; and of each query the logarithm, `back`,
// its key of dropout and its document
constexpr int AT_SLOPES = 2 * LOADED, AT_STAGE = AT_SLOPES + LENGTH * LENGTH * 2;
constexpr int AT_BARS = AT_STAGE + GROUPS * 2 * BOX, AT_ONES = AT_BARS + 128;
constexpr int AT_LOGS = AT_ONES + 256, AT_BACK = AT_LOGS + LENGTH * 4;
constexpr int AT_DOWN = AT_BACK + LENGTH * 4, AT_PAPERS = AT_DOWN + LENGTH * 4;
static_assert(AT_PAPERS + LENGTH * 4 == 231808, "attention.py asks for as much");

KERNEL attend_backward(
    MAP grad, MAP qkv, MAP mixed, MAP of_qkv, const int* documents, const float* logs, float* sums,
    const int* seed, int rows, int heads, float scale, int drops, float rescale)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 base = at(memory), full = base + AT_BARS, empty = full + 16;
    int thread = threadIdx.x, group = thread / 128, wide = heads * SIZE, count = rows * heads;
    if (thread == 0) {
        for (int i = 0; i < 2; i++) bar_init(full + 8 * i, 1), bar_init(empty + 8 * i, GROUPS);
        bars_ready();
    }
    call_next();
    await_before();
    if (thread < 64) set_shared(base + AT_ONES + 4 * thread, ONES);
    written();
    __syncthreads();

    if (group == GROUPS) {
        fewer_registers<24>();
        if (thread == GROUPS * 128)
            for (int n = 0, b = blockIdx.x; b < count; n++, b += gridDim.x) {
                int row = b / heads * LENGTH, col = b % heads * SIZE;
                u32 to = base + n % 2 * LOADED, bar = full + n % 2 * 8;
                wait(empty + n % 2 * 8, (n / 2 & 1) ^ 1);
                expect(bar, LOADED);
                for (int i = 0; i < 2; i++, to += BOX, row += 64) {
                    for (int k = 0; k < 3; k++) load(to + k * TILE, &qkv, col + k * wide, row, bar);
                    load(to + 3 * TILE, &grad, col, row, bar);
                    load(to + 4 * TILE, &mixed, col, row, bar);
                }
            }
        return;
    }
    more_registers<240>();
    int lane = thread % 32, warp = thread / 32 % 4, leader = thread % 128 == 0;
    int line = warp * 16 + lane / 4, side = lane % 4 * 2;  // of a thread's numbers: row, column
    int query = thread / 2, half = thread % 2;  // two threads find what is the same for all keys
    // Keys n and n + 8 of a thread are one pair, and it has no other.
    u32 across = key_at((4 * group + warp) * 8 + lane / 4, mix(seed[1])), start = mix(seed[0]);
    u32 bound = drop_bound(drops);
    auto ask = [&](int b) {
        return half ? documents[b / heads * LENGTH + query]
                    : __float_as_int(logs[b * LENGTH + query]);
    };
    int known = ask(blockIdx.x);
    for (int n = 0, b = blockIdx.x; b < count; n++, b += gridDim.x) {
        u32 q = base + n % 2 * LOADED, k = q + TILE, v = k + TILE, g = v + TILE, o = g + TILE;
        float odds[64], slope[64];
        wait(full + n % 2 * 8, n / 2 & 1);
        mma_fence();
#pragma unroll
        for (int i = 0; i < SIZE / 16; i++) {
            u64 left = tile(k + group * BOX + i * 32, 16), right = tile(q + i * 32, 16);
            if (i == 0) first_mma(odds, left, right);
            else mma(odds, left, right);
        }
#pragma unroll
        for (int i = 0; i < SIZE / 16; i++) {
            u64 left = tile(v + group * BOX + i * 32, 16), right = tile(g + i * 32, 16);
            if (i == 0) first_mma(slope, left, right);
            else mma(slope, left, right);
        }
        mma_commit();
        float back = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 where = query * 128 + (((4 * half + i) ^ (query & 7)) << 4);
            back += dot(shared_four(g + where), shared_four(o + where));
        }
        back = (back + __shfl_xor_sync(0xFFFFFFFFu, back, 1)) * (-1 / rescale);
        set_shared(base + (half ? AT_PAPERS : AT_LOGS) + 4 * query, known);
        if (half) set_shared(base + AT_DOWN + 4 * query, key_at(b * LENGTH + query, start));
        else set_shared(base + AT_BACK + 4 * query, __float_as_uint(back));
        if (leader) wait_store<0>();  // what went out of the slopes' memory
        both_sync();
        if (b + gridDim.x < count) known = ask(b + gridDim.x);
        mma_wait<0>();

        u32 papers = base + AT_PAPERS, own = papers + 4 * (group * 64 + line);
        keep_apart(odds, papers, own, side);
        u32 used[32], slopes[32];
#pragma unroll
        for (int j = 0; j < 16; j++) {
            u32 where = base + 4 * (8 * j + side);
            float2 log = shared_floats(where + AT_LOGS), back = shared_floats(where + AT_BACK);
            uint2 down = shared_pair(where + AT_DOWN);
            weigh(odds + 4 * j, slope + 4 * j, scale, log, back, down, across, bound, used + 2 * j,
                  slopes + 2 * j);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            put_columns(base + AT_SLOPES + i / 4 * TILE + group * BOX, i % 4, slopes + 4 * i);
        written();

        float of_v[32], of_k[32], of_q[32];
        mma_fence();
        first_mma<1>(of_v, used, tile(g, 16));
#pragma unroll
        for (int i = 1; i < 8; i++) mma<1>(of_v, used + 4 * i, tile(g + i * 2048, 16));
        first_mma<1>(of_k, slopes, tile(q, 16));
#pragma unroll
        for (int i = 1; i < 8; i++) mma<1>(of_k, slopes + 4 * i, tile(q + i * 2048, 16));
        both_sync();  // a group's queries have slopes for the keys of both
        u32 mine = base + AT_SLOPES + group * TILE;
        first_mma<1, 1>(of_q, tile(mine, 16), tile(k, 16));
#pragma unroll
        for (int i = 1; i < 8; i++)
            mma<1, 1>(of_q, tile(mine + i * 2048, 16), tile(k + i * 2048, 16));
        mma_commit();
        mma_wait<0>();
        if (leader) arrive(empty + n % 2 * 8);

        int row = b / heads, col = b % heads * SIZE;
        float factor = scale * 0.6931471805599453f * rescale;
        auto leave = [&](u32 where, const float* x, float factor) {
            u32 pairs[16];
#pragma unroll
            for (int j = 0; j < 16; j++)
                pairs[j] = pack(x[2 * j] * factor, x[2 * j + 1] * factor);
            put(where, pairs);
        };
        // These slopes no one else reads, so that there is room for a third.
        u32 to_q = base + AT_STAGE + group * 2 * BOX, to_v = to_q + BOX, to_k = mine;
        leave(to_q, of_q, factor);
        leave(to_k, of_k, factor);
        leave(to_v, of_v, rescale);
        written();
        group_sync(group);
        if (leader) {
            int first = row * LENGTH + group * 64;
            store(&of_qkv, to_q, col, first);
            store(&of_qkv, to_k, col + wide, first);
            store(&of_qkv, to_v, col + 2 * wide, first);
            commit_store();
        }
        float q_sums[4] = {}, v_sums[4] = {};
        mma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum_mma(q_sums, tile(to_q + i * 2048, 16), ones_at(base + AT_ONES));
            sum_mma(v_sums, tile(to_v + i * 2048, 16), ones_at(base + AT_ONES));
        }
        mma_commit();
        mma_wait<0>();
        if (lane % 4 == 0) {
            float* to = sums + (u64)(row * GROUPS + group) * 3 * wide + col + line;
            to[0] = q_sums[0], to[8] = q_sums[2];
            to[wide] = 0, to[wide + 8] = 0;
            to[2 * wide] = v_sums[0], to[2 * wide + 8] = v_sums[2];
        }
    }
    if (leader) wait_store<0>();  // shared memory is another program's after the end
}
}  // namespace back
