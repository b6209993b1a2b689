// The way back of attention over rows of 128 tokens with heads of 64, for Hopper GPUs.
//
// A program has one head of a row after the other, the next one's tiles coming meanwhile. Of the
// scores, which are tiles (keys, queries), each group has 64 keys. What it computes is what
// `attend_backward_kernel` of attention.py does.

constexpr int SIZE = 64, TILE = LENGTH * SIZE * 2, LOADED = 5 * TILE;
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
