// Linear projection to the vocabulary and cross-entropy in one, without ever storing the logits:
// the loss of a masked language model.
//
// bf16, hidden size 128, any number of masked positions and tokens. A persistent thread block has
// tiles of 192 masked positions, 64 for each of three consumer warpgroups, and streams tiles of 128
// rows of the token table; a fourth warpgroup is the TMA producer. Pairs of position tile and token
// tile are split evenly among the thread blocks: a block may begin and end in the middle of the
// tokens of its positions, so results of a position come in splits. In the forward a thread keeps
// what it sees of two positions to itself, without exchange; see fused_linear_cross_entropy.py.

namespace cross_entropy {
constexpr int WARPGROUPS = 3, TILE_M = WARPGROUPS * 64, TILE_N = 128, HIDDEN = 128, STAGES = 4;
constexpr int X_BYTES = WARPGROUPS * 2 * BOX_BYTES, TABLE_BYTES = TILE_N * HIDDEN * 2;
constexpr int BIAS_BYTES = TILE_N * 4;
// Shared memory: the positions' hidden states; stages of the table; two boxes of dlogits per
// warpgroup; the bias of the stages; barriers
constexpr int SMEM_TABLE = X_BYTES, SMEM_DLOGITS = SMEM_TABLE + STAGES * TABLE_BYTES;
constexpr int SMEM_BIAS = SMEM_DLOGITS + WARPGROUPS * 2 * BOX_BYTES;
constexpr int SMEM_BARRIERS = SMEM_BIAS + STAGES * BIAS_BYTES;
static_assert(SMEM_BARRIERS + 128 == 231552,
              "fused_linear_cross_entropy.py launches with as many bytes");
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f, UNUSED_LSE = 1e30f;
constexpr u64 SAMPLE_GROUP = 4;  // of electra.objectives.random.Purpose

// What both kernels share: the range of tiles of this thread block. Tiles of a position tile follow
// each other, token tiles fastest.
struct TileRange {
    u32 base, full_barrier, empty_barrier, x_full, x_empty;
    int tiles_n, total_tiles, first_tile, end_tile;

    DEVICE TileRange(unsigned char* smem, int positions, int tiles_n) : tiles_n(tiles_n) {
        base = smem_addr(smem), full_barrier = base + SMEM_BARRIERS;
        empty_barrier = full_barrier + 8 * STAGES;
        x_full = empty_barrier + 8 * STAGES, x_empty = x_full + 8;
        total_tiles = (positions + TILE_M - 1) / TILE_M * tiles_n;
        first_tile = blockIdx.x * total_tiles / gridDim.x;
        end_tile = (blockIdx.x + 1) * total_tiles / gridDim.x;
    }
    // Each consumer warp arrives when it is done. The kernels set their register counts themselves,
    // or the compiler would not know on which side of a branch they hold.
    DEVICE void init_barriers() {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                mbarrier_init(full_barrier + 8 * i, 1);
                mbarrier_init(empty_barrier + 8 * i, WARPGROUPS * 4);
            }
            mbarrier_init(x_full, 1), mbarrier_init(x_empty, WARPGROUPS * 4);
            mbarrier_init_fence();
        }
        pdl_launch_dependents();
        pdl_wait();
        __syncthreads();
    }
    // Which of the splits of these positions this block is
    DEVICE int split(int tile_m) {
        return blockIdx.x - ((tile_m * tiles_n + 1) * gridDim.x - 1) / total_tiles;
    }
    DEVICE u32 table_addr(int n) { return base + SMEM_TABLE + n % STAGES * TABLE_BYTES; }
    DEVICE u32 bias_addr(int n) { return base + SMEM_BIAS + n % STAGES * BIAS_BYTES; }
    DEVICE void wait_table(int n) {
        mbarrier_wait(full_barrier + 8 * (n % STAGES), n / STAGES & 1);
    }
    // Called by a warp after its last read
    DEVICE void release(u32 barrier) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
    }
    DEVICE void release(int n) { release(empty_barrier + 8 * (n % STAGES)); }
    // One thread loads the table, another the positions, so that the next table tiles do not wait
    // for them.
    DEVICE void produce(const TensorMap& x, const TensorMap& table, const float* bias) {
        if (threadIdx.x == WARPGROUPS * 128)
#pragma unroll 1
            for (int n = 0, tile = first_tile; tile < end_tile; n++, tile++) {
                int tile_n = tile % tiles_n;
                u32 dst = table_addr(n), barrier = full_barrier + 8 * (n % STAGES);
                mbarrier_wait(empty_barrier + 8 * (n % STAGES), (n / STAGES & 1) ^ 1);
                mbarrier_expect_tx(barrier, TABLE_BYTES + BIAS_BYTES);
                for (int i = 0; i < 4; i++)
                    tma_load(dst + i * BOX_BYTES, &table, i / 2 * 64, tile_n * TILE_N + i % 2 * 64,
                             barrier);
                tma_load(bias_addr(n), bias + tile_n * TILE_N, BIAS_BYTES, barrier);
            }
        if (threadIdx.x == WARPGROUPS * 128 + 32)
            for (int n = 0, tile = first_tile; tile < end_tile;
                 n++, tile += tiles_n - tile % tiles_n) {
                int tile_m = tile / tiles_n;
                mbarrier_wait(x_empty, (n & 1) ^ 1);
                mbarrier_expect_tx(x_full, X_BYTES);
                for (int i = 0; i < WARPGROUPS * 2; i++)
                    tma_load(base + i * BOX_BYTES, &x, i % 2 * 64, tile_m * TILE_M + i / 2 * 64,
                             x_full);
            }
    }
};

// Ping-pong of three warpgroups on the tensor cores. Without it all would multiply at once and then
// compute at once. A turn ends a little before its GEMM, so that the next one starts in time.
DEVICE void pingpong_wait(int warpgroup) {
    asm volatile("bar.sync %0, 256;" ::"r"(warpgroup + 1 + WARPGROUPS) : "memory");
}
DEVICE void pingpong_arrive(int warpgroup) {
    asm volatile("bar.arrive %0, 256;" ::"r"((warpgroup + 1) % WARPGROUPS + 1 + WARPGROUPS)
                 : "memory");
}
DEVICE void st_shared_half(u32 addr, u32 value) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(addr), "h"((unsigned short)value) : "memory");
}
// A warpgroup's positions times a tile of the table. Descriptors advance by addition, so that
// registers hold one of each instead of eight. The first commit, near the end, is what the turn
// waits for.
DEVICE void gemm(float (&z)[64], u64 x_desc, u64 table_desc) {
    wgmma_fence();
    wgmma_first(z, x_desc, table_desc);
#pragma unroll
    for (int k = 1; k < HIDDEN / 16; k++) {
        int box = k / 4 * BOX_BYTES, col = k % 4 * 32;
        wgmma(z, x_desc + (box + col) / 16, table_desc + (2 * box + col) / 16);
        if (k == HIDDEN / 16 - 3) wgmma_commit();
    }
    wgmma_commit();
}

// The random bits of a masked position: those of `uniform` in electra.objectives.random.
DEVICE u64 splitmix(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
DEVICE u32 position_bits(u64 row_key, u32 slot) {
    u64 key = splitmix(row_key ^ SAMPLE_GROUP);
    return splitmix(key + (slot + 1) * 0x9E3779B97F4A7C15ull) >> 32;
}
// An exponentially distributed number, -log(1 - u). Near zero, where rare tiles win, 1 - u would
// lose most of its bits: there two terms of the series are exact enough.
DEVICE float exponential(u32 bits) {
    float u = fmaf(__uint2float_rn(bits), 0x1p-32f, 0x1p-33f);
    return u < 0x1p-8f ? fmaf(u, 0.5f * u, u) : -LN2 * log2_approx(1.0f - u);
}

// Each of the four threads of a position writes {max_logit, sum_exp, best_race, tiles} of the
// tokens it has seen: the highest logit, the sum of exp(logit - max_logit), and two tiles, that of
// the maximum and a sampled one. The sampled tile has the highest ratio of its sum to an
// exponentially distributed number, `best_race`; so a tile is chosen in proportion to its sum, and
// the result doesn't depend on which thread block sees which tiles. A position's random numbers
// come from the key of its row of the batch. All logits, and `bias`, are in base 2.
KERNEL cross_entropy_stats(
    MAP x, MAP table, const float* bias, const long long* row_keys, float* stats, int positions,
    int slots, int tiles_n, int splits)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    TileRange tiles(smem, positions, tiles_n);
    tiles.init_barriers();
    int thread = threadIdx.x, warpgroup = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);
    if (warpgroup == WARPGROUPS) {
        decrease_registers<32>();
        tiles.produce(x, table, bias);
        return;
    }
    increase_registers<160>();
    int lane = thread % 32, frag_col = lane % 4 * 2, n = 0;
    int frag_row = warpgroup * 64 + thread / 32 % 4 * 16 + lane / 4;  // the first of two rows
    u64 x_desc = smem_desc(tiles.base + warpgroup * 2 * BOX_BYTES, 16);
    if (warpgroup == WARPGROUPS - 1) pingpong_arrive(warpgroup);
    int tile_m = tiles.first_tile / tiles_n, tile_n = tiles.first_tile % tiles_n;
    int remaining = tiles.end_tile - tiles.first_tile;
    for (int x_phase = 0; remaining > 0; x_phase++, tile_m++, tile_n = 0) {
        int position = tile_m * TILE_M + frag_row, tile_end = min(tiles_n, tile_n + remaining);
        remaining -= tile_end - tile_n;
        float max_logit[2] = {-1e30f, -1e30f}, sum_exp[2] = {}, best_race[2] = {};
        int max_tile[2] = {tile_n, tile_n}, sampled_tile[2] = {tile_n, tile_n};
        u32 position_keys[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int p = min(position + 8 * h, positions - 1);
            position_keys[h] = rng_key(lane % 4, position_bits(row_keys[p / slots], p % slots));
        }
        mbarrier_wait(tiles.x_full, x_phase & 1);
        for (; tile_n < tile_end; tile_n++, n++) {
            float z[64], partial_max[4], partial_sum[4] = {};
            tiles.wait_table(n);
            pingpong_wait(warpgroup);
            gemm(z, x_desc, smem_desc(tiles.table_addr(n), 16));
            u32 bias_ptr = tiles.bias_addr(n) + frag_col * 4, tile_key = rng_key(tile_n, 0);
            wgmma_wait<1>();
            pingpong_arrive(warpgroup);
            wgmma_wait<0>();
#pragma unroll
            for (int j = 0; j < 16; j++) {
                float2 b = ld_shared_float2(bias_ptr + 8 * j * 4);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float& t = z[4 * j + i];
                    t = t * LOG2E + (i % 2 ? b.y : b.x);
                    partial_max[i] = j ? fmaxf(partial_max[i], t) : t;
                }
            }
            tiles.release(n);
            float previous_max[2] = {max_logit[0], max_logit[1]};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float tile_max = fmaxf(partial_max[2 * h], partial_max[2 * h + 1]);
                if (tile_max > max_logit[h]) max_logit[h] = tile_max, max_tile[h] = tile_n;
            }
#pragma unroll
            for (int j = 0; j < 64; j++)
                partial_sum[j % 4] += exp2_approx(z[j] - max_logit[j / 2 % 2]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float tile_sum = partial_sum[2 * h] + partial_sum[2 * h + 1];
                float rescale = exp2_approx(previous_max[h] - max_logit[h]);
                sum_exp[h] = sum_exp[h] * rescale + tile_sum;
                u32 bits = mix_bits(rng_bits(position_keys[h], tile_key));
                float race = __fdividef(tile_sum, exponential(bits));
                best_race[h] *= rescale;
                if (race > best_race[h]) best_race[h] = race, sampled_tile[h] = tile_n;
            }
        }
        tiles.release(tiles.x_empty);
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (position + 8 * h < positions)
                ((float4*)stats)[((position + 8 * h) * splits + tiles.split(tile_m)) * 4
                                 + lane % 4] =
                    make_float4(max_logit[h], sum_exp[h], best_race[h],
                                __int_as_float(max_tile[h] << 16 | sampled_tile[h]));
    }
}

// Gradient of the losses by the logits: probabilities, minus one for the label, zero where a
// position is not masked. `lse` is the log-sum-exp in base 2, UNUSED_LSE or more where it is not
// masked. Stored as dlogits; times the table they give splits of the positions' gradient. The
// label's probability is known from its loss, so no thread has to search for it.
KERNEL cross_entropy_dlogits(
    MAP x, MAP table, MAP dlogits, const float* bias, const float* lse, const float* losses,
    const long long* labels, float* grad_x_partials, int positions, int tiles_n)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    TileRange tiles(smem, positions, tiles_n);
    tiles.init_barriers();
    int thread = threadIdx.x, warpgroup = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);
    if (warpgroup == WARPGROUPS) {
        decrease_registers<32>();
        tiles.produce(x, table, bias);
        return;
    }
    increase_registers<160>();
    int lane = thread % 32, frag_col = lane % 4 * 2, n = 0;
    int frag_row = warpgroup * 64 + thread / 32 % 4 * 16 + lane / 4;  // the first of two rows
    // The row whose label this thread writes, if it is one of two
    int label_row = frag_row + lane % 2 * 8;
    bool leader = thread % 128 == 0;
    u64 x_desc = smem_desc(tiles.base + warpgroup * 2 * BOX_BYTES, 16);
    u32 dlogits_addr = tiles.base + SMEM_DLOGITS + warpgroup * 2 * BOX_BYTES;
    if (warpgroup == WARPGROUPS - 1) pingpong_arrive(warpgroup);
    int tile_m = tiles.first_tile / tiles_n, tile_n = tiles.first_tile % tiles_n;
    int remaining = tiles.end_tile - tiles.first_tile;
    for (int x_phase = 0; remaining > 0; x_phase++, tile_m++, tile_n = 0) {
        int position = tile_m * TILE_M + frag_row, tile_end = min(tiles_n, tile_n + remaining);
        remaining -= tile_end - tile_n;
        float row_lse[2], grad_x[64] = {};
#pragma unroll
        for (int h = 0; h < 2; h++)
            row_lse[h] = position + 8 * h < positions ? lse[position + 8 * h] : UNUSED_LSE;
        int label = -1;
        u32 label_dlogit = 0;
        if (lane % 4 < 2 && (lane % 2 ? row_lse[1] : row_lse[0]) < UNUSED_LSE) {
            label = labels[tile_m * TILE_M + label_row];
            label_dlogit =
                pack_bf16(exp2_approx(-LOG2E * losses[tile_m * TILE_M + label_row]) - 1, 0);
        }
        mbarrier_wait(tiles.x_full, x_phase & 1);
        pingpong_wait(warpgroup);
        for (; tile_n < tile_end; tile_n++, n++) {
            float z[64];
            u32 table_tile = tiles.table_addr(n), bias_ptr = tiles.bias_addr(n) + frag_col * 4;
            tiles.wait_table(n);
            gemm(z, x_desc, smem_desc(table_tile, 16));
            if (leader) tma_store_wait<0>();
            wgmma_wait<1>();
            pingpong_arrive(warpgroup);
            wgmma_wait<0>();
            if (n) tiles.release(n - 1);  // its second GEMM is done too
            warpgroup_sync(warpgroup);  // and the boxes of dlogits are free
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 pairs[4];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float* logits = z + 8 * i + 2 * k;
                    float2 b = ld_shared_float2(bias_ptr + (2 * i + k / 2) * 32);
                    pairs[k] = pack_bf16(exp2_approx(logits[0] * LOG2E + (b.x - row_lse[k % 2])),
                                         exp2_approx(logits[1] * LOG2E + (b.y - row_lse[k % 2])));
                }
                stmatrix_columns(dlogits_addr + i / 4 * BOX_BYTES, i % 4, pairs);
            }
            __syncwarp();  // the label comes after the others' writes
            if (u32 col = label - tile_n * TILE_N; col < TILE_N) {
                int row = label_row % 64;
                st_shared_half(dlogits_addr + col / 64 * BOX_BYTES + row * 128
                                   + ((col % 64 / 8 ^ row % 8) << 4) + col % 8 * 2,
                               label_dlogit);
            }
            async_proxy_fence();
            warpgroup_sync(warpgroup);
            if (leader) {
                for (int i = 0; i < 2; i++)
                    tma_store(&dlogits, dlogits_addr + i * BOX_BYTES, tile_n * TILE_N + i * 64,
                              tile_m * TILE_M + warpgroup * 64);
                tma_store_commit();
            }
            u64 a_desc = smem_desc(dlogits_addr, 16), b_desc = smem_desc(table_tile, 2 * BOX_BYTES);
            pingpong_wait(warpgroup);  // for this GEMM and the next tile's first
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < TILE_N / 16; i++)
                wgmma<1>(grad_x, a_desc + (i / 4 * BOX_BYTES + i % 4 * 32) / 16,
                         b_desc + i * 2048 / 16);
            wgmma_commit();
        }
        pingpong_arrive(warpgroup);
        wgmma_wait<0>();
        tiles.release(tiles.x_empty);
        float* dst =
            grad_x_partials + ((u64)tiles.split(tile_m) * positions + position) * HIDDEN + frag_col;
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (position + 8 * h < positions)
#pragma unroll
                for (int j = 0; j < 16; j++)
                    *(float2*)(dst + 8 * h * HIDDEN + 8 * j) =
                        make_float2(grad_x[4 * j + 2 * h], grad_x[4 * j + 2 * h + 1]);
    }
    if (leader) tma_store_wait<0>();  // shared memory may be reused after the block exits
}
}  // namespace cross_entropy
