// A GEMM with a fused residual + LayerNorm, forward, and a GEMM with the backward of a LayerNorm
// behind it.
//
// bf16, LayerNorm over 256 columns, K a multiple of 64, any number of rows. A thread block has 128
// rows, 64 per consumer warpgroup: whole rows, so that LayerNorm needs no exchange. K is stepped
// through by 64 with three stages. A cluster of two thread blocks shares the weight: each loads
// half of it and multicasts it to both, because L2 cannot deliver all of it to every block. A
// producer thread loads the next rows while the consumers normalise.

constexpr int WIDTH = 256, TILE_M = 64, CTA_ROWS = WARPGROUPS * TILE_M, COL_BOXES = WIDTH / 64;
constexpr int CLUSTER = 2;
constexpr int STAGE_BYTES = (WARPGROUPS + COL_BOXES) * BOX_BYTES, STAGES = 3, RESIDUAL_STAGES = 2;
constexpr int PARTIAL = 3 * WIDTH;
constexpr int COL_GROUPS = 2 * COL_BOXES;  // 32 columns each, of which a thread has eight
// Shared memory: three stages; four boxes per warpgroup for the output (in the backward they first
// hold x_hat); barriers; dropout keys; gamma, beta and bias, or in the backward gamma and one more
// box per warpgroup
constexpr int SMEM_BOXES = STAGES * STAGE_BYTES;
constexpr int SMEM_BARRIERS = SMEM_BOXES + WARPGROUPS * COL_BOXES * BOX_BYTES;
constexpr int SMEM_KEYS = SMEM_BARRIERS + 128, SMEM_VECTORS = SMEM_KEYS + WIDTH / 2 * 4;
constexpr int VECTOR_BYTES = WIDTH * 4;
constexpr int SMEM_EXTRA = (SMEM_VECTORS + VECTOR_BYTES + 1023) / 1024 * 1024;
static_assert(SMEM_VECTORS + 3 * VECTOR_BYTES == 216704,
              "gemm.py launches with as many bytes");
static_assert(SMEM_EXTRA + WARPGROUPS * BOX_BYTES == 231424,
              "gemm.py launches with as many bytes");

// Loads into the same address of every thread block of the cluster.
DEVICE void tma_load_multicast(u32 dst, const TensorMap* map, int x, int y, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
        ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(barrier),
          "h"((unsigned short)((1 << CLUSTER) - 1))
        : "memory");
}
// Arrives at the barrier of another thread block. Without a release at cluster scope, which would
// be a fence of the whole GPU and is not needed: a wgmma that is done has read its operands.
DEVICE void mbarrier_arrive_remote(u32 barrier, u32 rank) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
                 ::"r"(barrier), "r"(rank) : "memory");
}
DEVICE u32 cluster_rank() {
    u32 r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Dropout of two elements, then an addition.
DEVICE void dropout_add(
    float& low, float& high, u32 bits, u32 threshold, float rescale, float add_low, float add_high)
{
    asm("{ .reg .pred p, q; setp.ge.f16x2 p|q, %2, %3;\n"
        "@p mov.f32 %0, 0f00000000; @q mov.f32 %1, 0f00000000;\n"
        "fma.rn.f32 %0, %0, %4, %5; fma.rn.f32 %1, %1, %4, %6; }"
        : "+f"(low), "+f"(high)
        : "r"(bits), "r"(threshold), "f"(rescale), "f"(add_low), "f"(add_high));
}

// Lanes at this distance exchange halves, and each adds up one.
template <int HALF> DEVICE void exchange(float (&values)[8], int distance) {
    bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float sent = upper ? values[i] : values[i + HALF];
        float kept = upper ? values[i + HALF] : values[i];
        values[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, sent, distance);
    }
}
// Sums the 16 rows of a warp in 32 columns: a thread has eight columns before and one after.
DEVICE float warp_sum_rows(float (&values)[8]) {
    exchange<4>(values, 16), exchange<2>(values, 8), exchange<1>(values, 4);
    return values[0];
}

struct Params {
    const float *bias, *gamma, *beta;
    float *rstd, *partials;
    const int* seed;
    int rows, depth, num_partials, drop_count;
    float eps, rescale;
};

// Forward: `out1` gets x_hat and `out2` the LayerNorm of residual + dropout(x @ weight.t() + bias).
// BACKWARD: the gradient of the LayerNorm's output is `residual` + x @ weight; `out1` gets the
// gradient of its residual, `out2` that of the branch before dropout.
template <bool BACKWARD>
DEVICE void gemm_norm(
    const TensorMap& x, const TensorMap& weight, const TensorMap& residual, const TensorMap& x_hat,
    const TensorMap& out1, const TensorMap& out2, const Params& args)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    u32 base = smem_addr(smem), full_barrier = base + SMEM_BARRIERS;
    u32 empty_barrier = full_barrier + 8 * STAGES;
    u32 x_hat_full = empty_barrier + 8 * STAGES, x_hat_empty = x_hat_full + 8;
    u32 rank = cluster_rank();
    int thread = threadIdx.x, tiles_m = (args.rows + CTA_ROWS - 1) / CTA_ROWS;
    int warpgroup = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);  // uniform in a warp
    int k_steps = args.depth / 64;
    bool is_producer = thread == WARPGROUPS * 128;
    auto load_weight = [&](u32 stage, int k_step) {
        u32 dst = base + stage * STAGE_BYTES + WARPGROUPS * BOX_BYTES;
        u32 barrier = full_barrier + 8 * stage;
        mbarrier_expect_tx(barrier, STAGE_BYTES);
#pragma unroll 1
        for (u32 i = rank; i < COL_BOXES; i += CLUSTER)
            tma_load_multicast(dst + i * BOX_BYTES, &weight, (BACKWARD ? i : k_step) * 64,
                               (BACKWARD ? k_step : i) * 64, barrier);
    };
    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full_barrier + 8 * i, 1);
            mbarrier_init(empty_barrier + 8 * i, CLUSTER * WARPGROUPS);
        }
        mbarrier_init(x_hat_full, 1), mbarrier_init(x_hat_empty, WARPGROUPS);
        mbarrier_init_fence();
    }
    cluster_sync();  // the barriers exist before the other block's multicast arrives
    if (is_producer)
        for (int i = 0; i < STAGES; i++) load_weight(i, i);
    pdl_launch_dependents();
    pdl_wait();
    if (thread < WIDTH) {
        u32 dst = base + SMEM_VECTORS + 4 * thread;
        st_shared(dst, __float_as_uint(args.gamma[thread]));
        if (!BACKWARD) {
            st_shared(dst + VECTOR_BYTES, __float_as_uint(args.beta[thread]));
            st_shared(dst + 2 * VECTOR_BYTES, __float_as_uint(args.bias[thread]));
        }
        if (thread < WIDTH / 2)
            st_shared(base + SMEM_KEYS + 4 * thread, rng_key(thread, mix_bits(args.seed[1])));
    }
    __syncthreads();

    u32 stage = 0, phase = 0;
    auto advance = [&] {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    // Both blocks of a cluster have the same number of tiles; the last one may be empty.
    if (warpgroup == WARPGROUPS) {
        decrease_registers<24>();
        if (is_producer) {
            u32 x_hat_phase = 1;
            for (int tile_m = blockIdx.x; tile_m - (int)rank < tiles_m;
                 tile_m += gridDim.x, x_hat_phase ^= 1)
                for (int k_step = 0; k_step < k_steps + RESIDUAL_STAGES; k_step++, advance()) {
                    u32 dst = base + stage * STAGE_BYTES, barrier = full_barrier + 8 * stage;
                    mbarrier_wait(empty_barrier + 8 * stage, phase ^ 1);
                    if (k_step < k_steps) {
#pragma unroll 1
                        for (int i = 0; i < WARPGROUPS; i++)
                            tma_load(dst + i * BOX_BYTES, &x, k_step * 64,
                                     tile_m * CTA_ROWS + i * TILE_M, barrier);
                        if (tile_m != blockIdx.x || k_step >= STAGES) load_weight(stage, k_step);
                    } else {
                        mbarrier_expect_tx(barrier, 4 * BOX_BYTES);
#pragma unroll 1
                        for (int i = 0; i < 4; i++)
                            tma_load(dst + i * BOX_BYTES, &residual,
                                     (2 * (k_step - k_steps) + i % 2) * 64,
                                     tile_m * CTA_ROWS + i / 2 * TILE_M, barrier);
                    }
                    // Consumers that work on this tile soon free the boxes of the previous one.
                    if (BACKWARD && k_step == STAGES) {
                        mbarrier_wait(x_hat_empty, x_hat_phase);
                        mbarrier_expect_tx(x_hat_full, WARPGROUPS * COL_BOXES * BOX_BYTES);
#pragma unroll 1
                        for (int i = 0; i < WARPGROUPS * COL_BOXES; i++)
                            tma_load(base + SMEM_BOXES + i * BOX_BYTES, &x_hat, i % COL_BOXES * 64,
                                     tile_m * CTA_ROWS + i / COL_BOXES * TILE_M, x_hat_full);
                    }
                }
        }
        __syncwarp();
        cluster_sync();
        if (BACKWARD) __syncthreads();
        return;
    }
    increase_registers<240>();
    int lane = thread % 32, warp = thread / 32, leader = thread % 128 == 0;
    // Row and column of the thread's first accumulator
    int frag_row = warp % 4 * 16 + lane / 4, frag_col = lane % 4 * 2;
    u32 row_seed = mix_bits(args.seed[0]);
    u32 boxes = base + SMEM_BOXES + warpgroup * 4 * BOX_BYTES;
    // One warp per thread block of the cluster signals it. wgmma has read a stage when one warp's
    // are done; what threads read themselves needs a warpgroup_sync before.
    auto release_stage = [&] {
        u32 barrier = empty_barrier + 8 * stage;
        if (lane == 0 && warp % 4 < CLUSTER) mbarrier_arrive_remote(barrier, warp % 4);
        advance();
    };
    u32 extra_box = base + SMEM_EXTRA + warpgroup * BOX_BYTES;
    // Where box i of the two outputs goes. Forward they alternate. Backward `out1` replaces x_hat,
    // and `out2` goes where `out1` was two boxes before.
    auto box_addr = [&](int i, bool second) {
        if (!BACKWARD) return boxes + (i % 2 * 2 + second) * BOX_BYTES;
        return !second ? boxes + i * BOX_BYTES : i < 2 ? extra_box : boxes + (i - 2) * BOX_BYTES;
    };
    // Waits until the previous store has read the box.
    auto wait_box_free = [&](int i) {
        if (BACKWARD && i % 2 == 0) return;
        if (BACKWARD && i == 1 && leader) tma_store_wait<0>();
        else if (leader) tma_store_wait<1>();
        warpgroup_sync(warpgroup);
    };
    auto store_boxes = [&](int i, int row) {
        async_proxy_fence();
        warpgroup_sync(warpgroup);
        if (leader) {
            tma_store(&out1, box_addr(i, false), i * 64, row);
            tma_store(&out2, box_addr(i, true), i * 64, row);
            tma_store_commit();
        }
    };
    float grad_gamma[COL_GROUPS] = {}, grad_beta[COL_GROUPS] = {}, grad_bias[COL_GROUPS] = {};
    float acc[128];
    u32 x_hat_phase = 0;
    for (int tile_m = blockIdx.x; tile_m - (int)rank < tiles_m;
         tile_m += gridDim.x, x_hat_phase ^= 1) {
        int row = tile_m * CTA_ROWS + warpgroup * TILE_M;
        float mean[2] = {}, moment[2] = {}, rstd[2];
        if (BACKWARD)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int own_row = row + frag_row + 8 * h;
                rstd[h] = own_row < args.rows ? args.rstd[own_row] : 0;
            }
        auto gemm_step = [&](bool first) {
            u32 dst = base + stage * STAGE_BYTES, a_addr = dst + warpgroup * BOX_BYTES;
            u32 b_addr = dst + WARPGROUPS * BOX_BYTES;
            mbarrier_wait(full_barrier + 8 * stage, phase);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u64 a_desc = smem_desc(a_addr + k * 32, 16);
                u64 b_desc = BACKWARD ? smem_desc(b_addr + k * 2048, BOX_BYTES)
                                      : smem_desc(b_addr + k * 32, 16);
                if (first && k == 0) wgmma_first<BACKWARD>(acc, a_desc, b_desc);
                else wgmma<BACKWARD>(acc, a_desc, b_desc);
            }
            wgmma_commit();
            wgmma_wait<0>();
            release_stage();
        };
        gemm_step(true);
        if (BACKWARD && leader && tile_m != blockIdx.x)
            tma_store_wait<0>(), mbarrier_arrive(x_hat_empty);
        for (int k_step = 1; k_step < k_steps; k_step++) gemm_step(false);
        // Stops the compiler from hoisting addresses out of the loop into registers
        int drop_count = args.drop_count;
        asm volatile("" : "+r"(frag_row), "+r"(frag_col), "+r"(drop_count), "+r"(extra_box));
        u32 threshold = drop_threshold(drop_count);
        u32 row_keys[2] = {rng_key(row + frag_row, row_seed),
                           rng_key(row + frag_row + 8, row_seed)};
        if constexpr (BACKWARD) {
            mbarrier_wait(x_hat_full, x_hat_phase);
#pragma unroll
            for (int i = 0; i < RESIDUAL_STAGES; i++, warpgroup_sync(warpgroup), release_stage()) {
                mbarrier_wait(full_barrier + 8 * stage, phase);
#pragma unroll
                for (int k = 0; k < COL_GROUPS / RESIDUAL_STAGES; k++) {
                    int col_group = COL_GROUPS / RESIDUAL_STAGES * i + k;
                    u32 residual_pairs[8], x_hat_pairs[8];
                    float beta_terms[8] = {}, gamma_terms[8] = {};
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        u32 src = base + stage * STAGE_BYTES + (2 * warpgroup + k / 2) * BOX_BYTES;
                        ldmatrix_columns(src, k % 2 * 2 + j, residual_pairs + 4 * j);
                        ldmatrix_columns(boxes + col_group / 2 * BOX_BYTES, k % 2 * 2 + j,
                                         x_hat_pairs + 4 * j);
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        u32 vector = base + SMEM_VECTORS + 4 * (32 * col_group + 8 * j + frag_col);
                        float2 gamma = ld_shared_float2(vector);
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            float* g = acc + 16 * col_group + 4 * j + 2 * h;
                            u32 pair = residual_pairs[2 * j + h];
                            u32 x_hat_pair = x_hat_pairs[2 * j + h];
                            float n0 = bf16_low(x_hat_pair), n1 = bf16_high(x_hat_pair);
                            g[0] += bf16_low(pair), g[1] += bf16_high(pair);
                            beta_terms[2 * j] += g[0], beta_terms[2 * j + 1] += g[1];
                            gamma_terms[2 * j] += g[0] * n0, gamma_terms[2 * j + 1] += g[1] * n1;
                            g[0] *= gamma.x, g[1] *= gamma.y;
                            mean[h] += g[0] + g[1];
                            moment[h] += g[0] * n0 + g[1] * n1;
                        }
                    }
                    grad_beta[col_group] += warp_sum_rows(beta_terms);
                    grad_gamma[col_group] += warp_sum_rows(gamma_terms);
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mean[h] = quad_sum(mean[h]) * (rstd[h] / WIDTH);
                moment[h] = quad_sum(moment[h]) * (rstd[h] / WIDTH);
            }
#pragma unroll
            for (int i = 0; i < COL_BOXES; i++) {
                wait_box_free(i);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    int col_group = 2 * i + k;
                    float bias_terms[8] = {};
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        u32 x_hat_pairs[4], branch_pairs[4];
                        ldmatrix_columns(box_addr(i, false), 2 * k + j, x_hat_pairs);
                        __syncwarp();
#pragma unroll
                        for (int q = 0; q < 4; q++) {
                            int h = q % 2, idx = 4 * j + q / 2 * 2;
                            int col = 32 * col_group + 4 * idx + frag_col;
                            float* g = acc + 16 * col_group + 8 * j + 2 * q;
                            float n0 = bf16_low(x_hat_pairs[q]), n1 = bf16_high(x_hat_pairs[q]);
                            float g0 = g[0] * rstd[h] - mean[h] - n0 * moment[h];
                            float g1 = g[1] * rstd[h] - mean[h] - n1 * moment[h];
                            x_hat_pairs[q] = pack_bf16(g0, g1);
                            u32 bits = rng_bits(row_keys[h], ld_shared(base + SMEM_KEYS + 2 * col));
                            apply_dropout(g0, g1, bits, threshold, args.rescale);
                            branch_pairs[q] = pack_bf16(g0, g1);
                            bias_terms[idx] += g0, bias_terms[idx + 1] += g1;
                        }
                        stmatrix_columns(box_addr(i, false), 2 * k + j, x_hat_pairs);
                        stmatrix_columns(box_addr(i, true), 2 * k + j, branch_pairs);
                    }
                    grad_bias[col_group] += warp_sum_rows(bias_terms);
                }
                store_boxes(i, row);
            }
        } else {
#pragma unroll
            for (int i = 0; i < RESIDUAL_STAGES; i++, warpgroup_sync(warpgroup), release_stage()) {
                mbarrier_wait(full_barrier + 8 * stage, phase);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    u32 residual_pairs[16];
                    ldmatrix_tile(base + stage * STAGE_BYTES + (2 * warpgroup + k) * BOX_BYTES,
                                  residual_pairs);
#pragma unroll
                    for (int j = 0; j < 8; j++) {
                        int col = (2 * i + k) * 64 + 8 * j + frag_col;
                        float* own_acc = acc + (2 * i + k) * 32 + 4 * j;
                        float2 bias =
                            ld_shared_float2(base + SMEM_VECTORS + 2 * VECTOR_BYTES + 4 * col);
                        u32 col_key = ld_shared(base + SMEM_KEYS + 2 * col);
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            float &z0 = own_acc[2 * h], &z1 = own_acc[2 * h + 1];
                            u32 pair = residual_pairs[2 * j + h];
                            z0 += bias.x, z1 += bias.y;
                            dropout_add(z0, z1, rng_bits(row_keys[h], col_key), threshold,
                                        args.rescale, bf16_low(pair), bf16_high(pair));
                            mean[h] += z0 + z1;
                        }
                    }
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++) mean[h] = quad_sum(mean[h]) * (1.0f / WIDTH);
#pragma unroll
            for (int j = 0; j < 128; j++) {
                int h = j / 2 % 2;
                acc[j] -= mean[h];
                moment[h] += acc[j] * acc[j];
            }
#pragma unroll
            for (int h = 0; h < 2; h++)
                rstd[h] = rsqrtf(quad_sum(moment[h]) * (1.0f / WIDTH) + args.eps);
#pragma unroll
            for (int i = 0; i < COL_BOXES; i++) {
                u32 x_hat_pairs[16], out_pairs[16];
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    u32 vectors = base + SMEM_VECTORS + 4 * (64 * i + 8 * j + frag_col);
                    float2 gamma = ld_shared_float2(vectors);
                    float2 beta = ld_shared_float2(vectors + VECTOR_BYTES);
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float* own_acc = acc + 32 * i + 4 * j + 2 * h;
                        float z0 = own_acc[0] * rstd[h], z1 = own_acc[1] * rstd[h];
                        x_hat_pairs[2 * j + h] = pack_bf16(z0, z1);
                        out_pairs[2 * j + h] =
                            pack_bf16(z0 * gamma.x + beta.x, z1 * gamma.y + beta.y);
                    }
                }
                wait_box_free(i);
                stmatrix_tile(box_addr(i, false), x_hat_pairs);
                stmatrix_tile(box_addr(i, true), out_pairs);
                store_boxes(i, row);
            }
            // After the fences, because a fence waits for all earlier writes
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int own_row = row + frag_row + 8 * h;
                if (lane % 4 == 0 && own_row < args.rows) args.rstd[own_row] = rstd[h];
            }
        }
    }
    if (leader) tma_store_wait<0>();  // shared memory may be reused after the block exits
    __syncwarp();
    cluster_sync();  // and the other block's arrivals have come
    if constexpr (BACKWARD) {
        // The memory of the stages is free now, in both thread blocks.
        // The column that `warp_sum_rows` leaves to it
        int col = lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
        float* warp_partial = (float*)smem + warp * PARTIAL + col;
#pragma unroll
        for (int i = 0; i < COL_GROUPS; i++) {
            warp_partial[32 * i] = grad_gamma[i], warp_partial[32 * i + WIDTH] = grad_beta[i];
            warp_partial[32 * i + 2 * WIDTH] = grad_bias[i];
        }
        __syncthreads();
        for (int partial = blockIdx.x; partial < args.num_partials; partial += gridDim.x)
            for (int i = thread; i < PARTIAL; i += WARPGROUPS * 128) {
                float total = 0;
                if (partial == blockIdx.x)
#pragma unroll
                    for (int k = 0; k < WARPGROUPS * 4; k++)
                        total += ((float*)smem)[k * PARTIAL + i];
                args.partials[partial * PARTIAL + i] = total;  // zeros for partials without a block
            }
    }
}

KERNEL __cluster_dims__(CLUSTER, 1, 1) gemm_layernorm(
    MAP x, MAP weight, MAP residual, MAP x_hat, MAP out, const float* bias, const float* gamma,
    const float* beta, float* rstd, const int* seed, int rows, int depth, float eps,
    int drop_count, float rescale)
{
    Params args = {bias, gamma, beta, rstd, nullptr, seed, rows, depth, 0, drop_count, eps,
                   rescale};
    gemm_norm<false>(x, weight, residual, x_hat, x_hat, out, args);
}
KERNEL __cluster_dims__(CLUSTER, 1, 1) gemm_layernorm_backward(
    MAP x, MAP weight, MAP grad_out, MAP x_hat, MAP grad_residual, MAP grad_branch,
    const float* gamma, float* rstd, float* partials, const int* seed, int rows, int depth,
    int num_partials, int drop_count, float rescale)
{
    Params args = {nullptr, gamma, nullptr, rstd, partials, seed, rows, depth, num_partials,
                   drop_count, 0, rescale};
    gemm_norm<true>(x, weight, grad_out, x_hat, grad_residual, grad_branch, args);
}
