// GEMMs with a resident weight tile and a fused epilogue: bias, bias + GELU, or the derivative of
// GELU.
//
// bf16 with K = 256; N is a multiple of 256, M arbitrary. A persistent thread block keeps a 256 x
// 256 tile of the weight in shared memory while tiles of 64 rows of x stream by. Two consumer
// warpgroups ping-pong: one multiplies while the other runs the epilogue of its own tile and stores
// it. A thread of a third warpgroup is the TMA producer.

enum Epilogue { BIAS, BIAS_GELU, NONE, GELU_GRAD };
constexpr int TILE_K = 256, TILE_N = 256, TILE_M = 64;
constexpr int X_BYTES = TILE_K / 64 * BOX_BYTES, WEIGHT_BYTES = TILE_K * TILE_N * 2;
// Shared memory: the weight tile; a tile of x and two output boxes per warpgroup; barriers; the
// bias or ones
constexpr int SMEM_X = WEIGHT_BYTES, SMEM_OUT = SMEM_X + WARPGROUPS * X_BYTES;
constexpr int SMEM_BARRIERS = SMEM_OUT + WARPGROUPS * 2 * BOX_BYTES;
constexpr int SMEM_BIAS = SMEM_BARRIERS + 128;
static_assert(SMEM_BIAS + TILE_N * 4 == 230528, "gemm.py launches with as many bytes");

// BIAS: x @ weight.t() + bias. BIAS_GELU: GELU of that, and its derivative in `gelu_grad`.
// NONE: x @ weight. GELU_GRAD: x @ weight times `gelu_grad`, and its sums over rows in
// `bias_partials`.
template <Epilogue EPILOGUE>
DEVICE void gemm(
    const TensorMap& x, const TensorMap& weight, const TensorMap& out, const void* bias,
    unsigned char* gelu_grad, float* bias_partials, int rows, int width)
{
    constexpr bool TRANS_B = EPILOGUE == NONE || EPILOGUE == GELU_GRAD;
    extern __shared__ __align__(1024) unsigned char smem[];
    u32 base = smem_addr(smem), bias_addr = base + SMEM_BIAS;
    u32 full_barrier = base + SMEM_BARRIERS, empty_barrier = full_barrier + 8 * WARPGROUPS;
    u32 weight_barrier = empty_barrier + 8 * WARPGROUPS;
    int thread = threadIdx.x, warpgroup = thread / 128, tiles_n = width / TILE_N;
    int n_offset = blockIdx.x % tiles_n * TILE_N, cta_m = blockIdx.x / tiles_n;
    int ctas_m = gridDim.x / tiles_n, tiles_m = (rows + TILE_M - 1) / TILE_M;
    bool is_producer = thread == WARPGROUPS * 128;
    auto load_x = [&](int n, int tile_m) {
        u32 dst = base + SMEM_X + n % 2 * X_BYTES, barrier = full_barrier + n % 2 * 8;
        mbarrier_expect_tx(barrier, X_BYTES);
        for (int i = 0; i < 4; i++)
            tma_load(dst + i * BOX_BYTES, &x, i * 64, tile_m * TILE_M, barrier);
        if (EPILOGUE == GELU_GRAD)
            l2_prefetch(gelu_grad + ((u64)tile_m * width + n_offset) * 64, 4 * 4096);
    };
    if (is_producer) {
        for (int i = 0; i < WARPGROUPS; i++) {
            mbarrier_init(full_barrier + 8 * i, 1);
            mbarrier_init(empty_barrier + 8 * i, 1);
        }
        for (int i = 0; i < 4; i++) mbarrier_init(weight_barrier + 8 * i, 1);
        mbarrier_init_fence();
        // In slices of K, so that the first wgmma starts when the first slice has arrived
        for (int k = 0; k < 4; k++) {
            mbarrier_expect_tx(weight_barrier + 8 * k, WEIGHT_BYTES / 4);
            for (int i = 0; i < 4; i++) {
                int box = TRANS_B ? 4 * i + k : 4 * k + i;
                int col = box / 4 * 64, row = box % 4 * 64;
                (TRANS_B ? col : row) += n_offset;
                tma_load(base + box * BOX_BYTES, &weight, col, row, weight_barrier + 8 * k);
            }
        }
    }
    pdl_launch_dependents();
    pdl_wait();
    if (is_producer) load_x(0, cta_m);
    for (int i = thread; i < TILE_N; i += blockDim.x)
        if constexpr (TRANS_B) {
            // Ones to sum rows with, or a bias of zero
            st_shared(bias_addr + 4 * i, EPILOGUE == GELU_GRAD ? BF16_ONES : 0);
        } else if constexpr (EPILOGUE == BIAS_GELU) {
            const float* pair = (const float*)bias + n_offset + 2 * i;
            if (i < TILE_N / 2) st_shared(bias_addr + 4 * i, pack_half(pair[0], pair[1]));
        } else {
            // bf16 is the upper half of fp32
            st_shared(bias_addr + 4 * i, (u32)((const unsigned short*)bias)[n_offset + i] << 16);
        }
    async_proxy_fence();
    __syncthreads();

    if (warpgroup == WARPGROUPS) {
        decrease_registers<24>();
        if (is_producer)
            for (int n = 1, tile_m = cta_m + ctas_m; tile_m < tiles_m; n++, tile_m += ctas_m) {
                mbarrier_wait(empty_barrier + n % 2 * 8, (n / 2 & 1) ^ 1);
                load_x(n, tile_m);
            }
        return;
    }
    increase_registers<240>();
    int lane = thread % 32, warp = thread / 32 % 4, leader = thread % 128 == 0;
    // Row and column of the thread's first accumulator
    int frag_row = warp * 16 + lane / 4, frag_col = lane % 4 * 2;
    u32 x_addr = base + SMEM_X + warpgroup * X_BYTES;
    u32 out_addr = base + SMEM_OUT + warpgroup * 2 * BOX_BYTES;
    float acc[128], col_sums[4][4] = {};
    u32 pairs[16], grad_words[32];
    if (warpgroup == 1) pingpong_arrive(warpgroup);
    for (int n = warpgroup, tile_m = cta_m + warpgroup * ctas_m; tile_m < tiles_m;
         n += 2, tile_m += 2 * ctas_m) {
        // The derivative is stored in the order of the threads' accumulators, by 64 x 64 boxes.
        u64 first_box = (u64)tile_m * (width / 64) + n_offset / 64;
        uint4* grad_ptr = (uint4*)(gelu_grad + first_box * 4096) + thread % 128;
        if constexpr (EPILOGUE == GELU_GRAD) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint4 a = __ldcs(grad_ptr + i * 128);
                grad_words[4 * i] = a.x, grad_words[4 * i + 1] = a.y;
                grad_words[4 * i + 2] = a.z, grad_words[4 * i + 3] = a.w;
            }
        }
        pingpong_wait(warpgroup);
        mbarrier_wait(full_barrier + 8 * warpgroup, n / 2 & 1);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < TILE_K / 16; k++) {
            u64 a_desc = smem_desc(x_addr + k / 4 * BOX_BYTES + k % 4 * 32, 16);
            u64 b_desc = TRANS_B ? smem_desc(base + k * 2048, X_BYTES)
                                 : smem_desc(base + k / 4 * X_BYTES + k % 4 * 32, 16);
            if (k % 4 == 0) mbarrier_wait(weight_barrier + 2 * k, 0);
            if (k == 0) wgmma_first<TRANS_B>(acc, a_desc, b_desc);
            else wgmma<TRANS_B>(acc, a_desc, b_desc);
            if (k == TILE_K / 16 - 3) wgmma_commit();
        }
        wgmma_commit();
        // Both warpgroups would share the tensor cores, so the turn passes only when the GEMM is
        // nearly done.
        wgmma_wait<1>();
        pingpong_arrive(warpgroup);
        wgmma_wait<0>();
        if (leader) mbarrier_arrive(empty_barrier + 8 * warpgroup);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float* acc_box = acc + 32 * i;
            u32 out_box = out_addr + (i & 1) * BOX_BYTES;
            if constexpr (EPILOGUE == BIAS_GELU) {
                gelu_tile(acc_box, bias_addr + (64 * i + frag_col) * 2, pairs, grad_words + 8 * i);
            } else if constexpr (EPILOGUE == GELU_GRAD) {
                mul_gelu_grad_tile(acc_box, grad_words + 8 * i, pairs);
            } else {
                add_bias_tile(acc_box, bias_addr + (64 * i + frag_col) * 4, pairs);
            }
            // This box is free when the store before the last and the sums over it are done.
            if (leader) tma_store_wait<1>();
            if constexpr (EPILOGUE == GELU_GRAD) wgmma_wait<1>();
            warpgroup_sync(warpgroup);
            stmatrix_tile(out_box, pairs);
            async_proxy_fence();
            warpgroup_sync(warpgroup);
            if (leader)
                tma_store(&out, out_box, n_offset + 64 * i, tile_m * TILE_M), tma_store_commit();
            if constexpr (EPILOGUE == GELU_GRAD) {
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    wgmma_sum_rows(col_sums[i], smem_desc(out_box + k * 2048, 16),
                                   ones_desc(bias_addr));
                wgmma_commit();
            }
        }
        if constexpr (EPILOGUE == BIAS_GELU)
            // After the last fence, because a fence waits for all earlier writes
#pragma unroll
            for (int i = 0; i < 8; i++)
                grad_ptr[i * 128] = make_uint4(grad_words[4 * i], grad_words[4 * i + 1],
                                               grad_words[4 * i + 2], grad_words[4 * i + 3]);
    }
    if (leader) tma_store_wait<0>();  // shared memory may be reused after the block exits
    if constexpr (EPILOGUE == GELU_GRAD) {
        wgmma_wait<0>();
        float* dst =
            bias_partials + (u64)(cta_m * WARPGROUPS + warpgroup) * width + n_offset + frag_row;
        if (lane % 4 == 0)
#pragma unroll
            for (int i = 0; i < 4; i++)
                dst[64 * i] = col_sums[i][0], dst[64 * i + 8] = col_sums[i][2];
    }
}

KERNEL gemm_bias(MAP x, MAP weight, MAP out, const unsigned short* bias, int rows, int width) {
    gemm<BIAS>(x, weight, out, bias, nullptr, nullptr, rows, width);
}
KERNEL gemm_bias_gelu(
    MAP x, MAP weight, MAP out, const float* bias, unsigned char* gelu_grad, int rows, int width)
{
    gemm<BIAS_GELU>(x, weight, out, bias, gelu_grad, nullptr, rows, width);
}
KERNEL gemm_grad_input(MAP x, MAP weight, MAP out, int rows, int width) {
    gemm<NONE>(x, weight, out, nullptr, nullptr, nullptr, rows, width);
}
KERNEL gemm_grad_gelu(
    MAP x, MAP weight, MAP out, unsigned char* gelu_grad, float* bias_partials, int rows, int width)
{
    gemm<GELU_GRAD>(x, weight, out, nullptr, gelu_grad, bias_partials, rows, width);
}
