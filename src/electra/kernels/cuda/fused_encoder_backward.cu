// The backward pass of all layers of an encoder with hidden size 64, one head and FFN size 256, for
// sequences of 128 tokens, in bf16.
//
// Sequences are independent: a thread block takes one from the last layer to the first, each of its
// two consumer warpgroups half of the tokens. The gradient of the residual stays in registers,
// those of the attention output and of q, k and v in shared memory. A producer thread loads weights
// and tiles ahead, each as soon as its place is free.

constexpr int HIDDEN = 64, FFN = 256, FFN_BOXES = FFN / 64, SEQ_BYTES = 2 * BOX_BYTES;
// Shared memory: the weights of one layer; tiles of the sequence: q, k, v, attention output
// (context), half of the score gradients, the gradient of the context, x_hat of both LayerNorms;
// barriers; ones; the stats, once per warpgroup; document ids
constexpr int SMEM_DOWN_PROJ = 3 * BOX_BYTES, SMEM_UP_PROJ = SMEM_DOWN_PROJ + FFN_BOXES * BOX_BYTES;
constexpr int SMEM_OUT_PROJ = SMEM_UP_PROJ + FFN_BOXES * BOX_BYTES;
constexpr int SMEM_Q = SMEM_OUT_PROJ + BOX_BYTES;
constexpr int SMEM_K = SMEM_Q + SEQ_BYTES, SMEM_V = SMEM_K + SEQ_BYTES;
constexpr int SMEM_CONTEXT = SMEM_V + SEQ_BYTES, SMEM_GRAD_SCORES = SMEM_CONTEXT + SEQ_BYTES;
constexpr int SMEM_GRAD_CONTEXT = SMEM_GRAD_SCORES + SEQ_BYTES;
constexpr int SMEM_X_HAT1 = SMEM_GRAD_CONTEXT + SEQ_BYTES, SMEM_X_HAT2 = SMEM_X_HAT1 + SEQ_BYTES;
constexpr int SMEM_BARRIERS = SMEM_X_HAT2 + SEQ_BYTES, SMEM_ONES = SMEM_BARRIERS + 256;
constexpr int SMEM_STATS = SMEM_ONES + 256;
// Stats: gamma and the dropout keys of both LayerNorms; during attention, for each of the
// warpgroup's queries, its lse, `neg_delta` and dropout key
constexpr int GAMMA_BYTES = HIDDEN * 4, KEYS = 2 * GAMMA_BYTES, KEY_BYTES = HIDDEN * 2;
constexpr int STATS_BYTES = KEYS + 2 * KEY_BYTES;
constexpr int NEG_DELTA = 64 * 4, QUERY_KEYS = 2 * NEG_DELTA;
constexpr int SMEM_DOC_IDS = SMEM_STATS + WARPGROUPS * STATS_BYTES;
static_assert(QUERY_KEYS + 64 * 4 == STATS_BYTES && SMEM_DOC_IDS + SEQ_LENGTH * 4 <= 232448,
              "shared memory of an SM");
static_assert(SMEM_DOC_IDS + SEQ_LENGTH * 4 == 231936,
              "fused_encoder.py launches with as many bytes");
// Vectors of a layer in global memory: of both LayerNorms bias, gamma and beta, then the bias of
// the up projection
constexpr int LAYER_PARAMS = 6 * HIDDEN + FFN;
// What the producer loads; each has a barrier for its arrival and one for its place being free.
enum Load { QKV_PROJ, DOWN_PROJ, UP_PROJ, OUT_PROJ, X_HATS, Q_AND_K, V, CONTEXT, GRAD_OUT, LOADS };

// --- GEMMs

// The low word of a descriptor. Advancing it is one addition (in units of 16 bytes), where
// `smem_desc` from an address takes a few instructions.
DEVICE u32 desc_low(u32 addr) { return (u32)smem_desc(addr, 16); }
DEVICE u64 smem_desc(u32 low) {
    u64 r;
    asm("mov.b64 %0, {%1, %2};" : "=l"(r) : "r"(low), "n"(1 << 30 | 1024 >> 4));
    return r;
}
constexpr int ROWS16 = 16 * 128 / 16, COLS16 = 16 * 2 / 16;  // advance by 16 rows or columns
// A 64 x 64 tile times the transpose of one with 128 rows
DEVICE void gemm(float (&d)[64], u32 a_low, u32 b_low) {
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k == 0) wgmma_first(d, smem_desc(a_low), smem_desc(b_low));
        else wgmma(d, smem_desc(a_low + k * COLS16), smem_desc(b_low + k * COLS16));
}
// A 64 x 64 tile in registers times 64 columns of a weight, whose rows are K. FIRST overwrites the
// accumulators.
template <bool FIRST>
DEVICE void gemm(float (&d)[32], const u32 (&a)[16], u32 weight) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u64 b_desc = smem_desc(weight + k * ROWS16);
        if (FIRST && k == 0) wgmma_first<1>(d, a, b_desc);
        else wgmma<1>(d, a + 4 * k, b_desc);
    }
}
// The same with K = 128
DEVICE void gemm(float (&d)[32], const u32 (&a)[32], u32 weight) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
        u64 b_desc = smem_desc(weight + k * ROWS16);
        if (k == 0) wgmma_first<1>(d, a, b_desc);
        else wgmma<1>(d, a + 4 * k, b_desc);
    }
}
// Sums over the rows of a box, for each column, as `wgmma_sum_rows`; overwrites.
DEVICE void wgmma_col_sums(float (&d)[4], u32 box_low, u64 ones) {
    asm volatile(WGMMA("8") "{%0, %1, %2, %3}, %4, %5, 0, 1, 1, 1, 0;"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "l"(smem_desc(box_low)), "l"(ones));
#pragma unroll
    for (int k = 1; k < 4; k++) wgmma_sum_rows(d, smem_desc(box_low + k * ROWS16), ones);
}

KERNEL fused_encoder_backward(
    MAP grad_out, MAP qkv_proj, MAP out_proj, MAP up_proj, MAP down_proj, MAP qkv, MAP context,
    MAP x_hat1, MAP x_hat2, MAP grad_qkv, MAP grad_out_proj, MAP grad_up, MAP grad_down,
    MAP grad_x, const float* layer_params, const unsigned char* gelu_grad, const float* rstd1,
    const float* rstd2, const float* lse, const int* doc_ids, const int* seeds,
    float* norm_partials, float* up_bias_partials, float* qkv_bias_partials, int batch_size,
    int layers, float scale, int drop_count, float rescale, int attention_drop_count,
    float attention_rescale)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    u32 base = smem_addr(smem), full_barrier = base + SMEM_BARRIERS;
    u32 empty_barrier = full_barrier + 8 * LOADS;
    u32 thread = threadIdx.x, lane = thread % 32, wg_thread = thread % 128;
    int warpgroup = __shfl_sync(0xFFFFFFFFu, thread / 128, 0), tokens = batch_size * SEQ_LENGTH;
    bool is_producer = thread == WARPGROUPS * 128;
    // The barrier, set to expect this many boxes
    auto expect_boxes = [&](int load, int boxes) {
        mbarrier_expect_tx(full_barrier + 8 * load, boxes * BOX_BYTES);
        return full_barrier + 8 * load;
    };
    auto load_qkv_proj = [&](int layer) {
        u32 barrier = expect_boxes(QKV_PROJ, 3);
        for (int i = 0; i < 3; i++)
            tma_load(base + i * BOX_BYTES, &qkv_proj, 0, (layer * 3 + i) * 64, barrier);
    };
    auto load_down_proj = [&](int layer) {
        u32 barrier = expect_boxes(DOWN_PROJ, FFN_BOXES);
        for (int i = 0; i < FFN_BOXES; i++)
            tma_load(base + SMEM_DOWN_PROJ + i * BOX_BYTES, &down_proj, i * 64, layer * 64,
                     barrier);
    };
    auto load_up_proj = [&](int layer) {
        u32 barrier = expect_boxes(UP_PROJ, FFN_BOXES);
        for (int i = 0; i < FFN_BOXES; i++)
            tma_load(base + SMEM_UP_PROJ + i * BOX_BYTES, &up_proj, 0, (layer * FFN_BOXES + i) * 64,
                     barrier);
    };
    auto load_out_proj = [&](int layer) {
        tma_load(base + SMEM_OUT_PROJ, &out_proj, 0, layer * 64, expect_boxes(OUT_PROJ, 1));
    };
    // Both halves of a tile of the sequence
    auto load_seq = [&](int dst, const TensorMap& map, int x, int y, u32 barrier) {
        for (int i = 0; i < WARPGROUPS; i++)
            tma_load(base + dst + i * BOX_BYTES, &map, x, y + i * 64, barrier);
    };
    auto load_x_hats = [&](int y) {
        u32 barrier = expect_boxes(X_HATS, 4);
        load_seq(SMEM_X_HAT2, x_hat2, 0, y, barrier);
        load_seq(SMEM_X_HAT1, x_hat1, 0, y, barrier);
    };
    pdl_launch_dependents();
    if (is_producer) {
        for (int i = 0; i < LOADS; i++) {
            mbarrier_init(full_barrier + 8 * i, 1);
            mbarrier_init(empty_barrier + 8 * i, WARPGROUPS * 4);
        }
        mbarrier_init_fence();
        load_down_proj(layers - 1);
        load_up_proj(layers - 1);
        load_out_proj(layers - 1);
        load_qkv_proj(layers - 1);
    }
    pdl_wait();
    if (is_producer) load_x_hats((layers - 1) * tokens + blockIdx.x * SEQ_LENGTH);
    if (thread < 64) st_shared(base + SMEM_ONES + 4 * thread, BF16_ONES);
    async_proxy_fence();
    __syncthreads();

    if (warpgroup == WARPGROUPS) {
        decrease_registers<24>();
        if (!is_producer) return;
        // In the order in which places become free, so that no wait is for something later. What
        // the first half of a layer frees is loaded for the layer below, or for the last layer of
        // the next sequence.
        u32 layer_count = 0, seq_count = 0;
        for (int seq = blockIdx.x; seq < batch_size; seq += gridDim.x, seq_count++)
            for (int layer = layers - 1; layer >= 0; layer--, layer_count++) {
                u32 barrier, phase = layer_count & 1, other_phase = phase ^ 1;
                int y = layer * tokens + seq * SEQ_LENGTH, below = layer ? layer - 1 : layers - 1;
                int next_seq = layer ? seq : seq + gridDim.x;
                bool more = next_seq < batch_size;
                if (layer == layers - 1) {
                    mbarrier_wait(empty_barrier + 8 * GRAD_OUT, (seq_count & 1) ^ 1);
                    load_seq(SMEM_GRAD_SCORES, grad_out, 0, seq * SEQ_LENGTH,
                             expect_boxes(GRAD_OUT, 2));
                }
                mbarrier_wait(empty_barrier + 8 * Q_AND_K, other_phase);
                barrier = expect_boxes(Q_AND_K, 4);
                load_seq(SMEM_Q, qkv, 0, y, barrier);
                load_seq(SMEM_K, qkv, 64, y, barrier);
                for (int i = 0; i < WARPGROUPS; i++) l2_prefetch(&context, 0, y + i * 64);
                mbarrier_wait(empty_barrier + 8 * V, other_phase);
                load_seq(SMEM_V, qkv, 128, y, expect_boxes(V, 2));
                if (layer_count) {
                    mbarrier_wait(empty_barrier + 8 * QKV_PROJ, other_phase);
                    load_qkv_proj(layer);
                }
                int layer_row = below * tokens + next_seq * SEQ_LENGTH;
                if (more) {
                    for (int i = 0; i < WARPGROUPS; i++) {
                        l2_prefetch(&x_hat1, 0, layer_row + i * 64);
                        l2_prefetch(&x_hat2, 0, layer_row + i * 64);
                    }
                    l2_prefetch(gelu_grad + (u64)layer_row * FFN, SEQ_LENGTH * FFN);
                    l2_prefetch(rstd1 + layer_row, SEQ_LENGTH * 4);
                    l2_prefetch(rstd2 + layer_row, SEQ_LENGTH * 4);
                    l2_prefetch(lse + layer_row, SEQ_LENGTH * 4);
                    mbarrier_wait(empty_barrier + 8 * DOWN_PROJ, phase);
                    load_down_proj(below);
                    mbarrier_wait(empty_barrier + 8 * UP_PROJ, phase);
                    load_up_proj(below);
                }
                mbarrier_wait(empty_barrier + 8 * CONTEXT, phase);
                load_seq(SMEM_CONTEXT, context, 0, y, expect_boxes(CONTEXT, 2));
                if (more) {
                    mbarrier_wait(empty_barrier + 8 * OUT_PROJ, phase);
                    load_out_proj(below);
                    mbarrier_wait(empty_barrier + 8 * X_HATS, phase);
                    load_x_hats(layer_row);
                }
            }
        return;
    }
    increase_registers<240>();
    bool leader = wg_thread == 0;
    // Row and column of the thread's first accumulator
    u32 frag_row = wg_thread / 32 * 16 + lane / 4, frag_col = lane % 4 * 2;
    u32 query = thread / 2, half = thread % 2;  // two threads share a query
    u32 stats = base + SMEM_STATS + warpgroup * STATS_BYTES;
    u32 own_base = base + warpgroup * BOX_BYTES;
    u32 v_box = own_base + SMEM_V, context_box = own_base + SMEM_CONTEXT;
    u32 scores_box = own_base + SMEM_GRAD_SCORES, grad_box = own_base + SMEM_GRAD_CONTEXT;
    u32 x_hat1_box = own_base + SMEM_X_HAT1, x_hat2_box = own_base + SMEM_X_HAT2;
    u32 threshold = drop_threshold(drop_count);
    u32 attention_threshold = drop_threshold(attention_drop_count);
    u32 layer_count = 0, seq_count = 0;  // layers and sequences done
    auto wait_load = [&](int load) { mbarrier_wait(full_barrier + 8 * load, layer_count & 1); };
    auto release = [&](int load) {  // by each warp
        if (lane == 0) mbarrier_arrive(empty_barrier + 8 * load);
    };
    // Descriptors of a place in shared memory, for the sequence and for the warpgroup's half
    u32 base_low = desc_low(base), own_low = desc_low(own_base);
    auto seq_desc = [&](int offset) { return base_low + offset / 16; };
    auto own_desc = [&](int offset) { return own_low + offset / 16; };
    u64 ones = ones_desc(base + SMEM_ONES);
    // Sums over rows come as one partial per warpgroup and sequence.
    auto store_sums = [&](float* dst, const float (&sums)[4]) {
        if (lane % 4 == 0) dst[frag_row] = sums[0], dst[frag_row + 8] = sums[2];
    };
    // Waits until the stores have read their boxes, and for the whole warpgroup.
    auto wait_stores = [&] {
        if (leader) tma_store_wait<0>();
        warpgroup_sync(warpgroup);
    };
    for (int seq = blockIdx.x; seq < batch_size; seq += gridDim.x, seq_count++) {
        int first_token = seq * SEQ_LENGTH + warpgroup * 64;  // of the warpgroup
        int partial = seq * WARPGROUPS + warpgroup, num_partials = batch_size * WARPGROUPS;
        // Gradient of the layer's input, without the part through q, k and v
        u32 residual_grad[16];
        // Adds the part through a layer's q, k and v, whose gradients attention has left there.
        auto add_qkv_grad = [&](float (&z)[32], int layer) {
            float q_sums[4], v_sums[4];
            constexpr int boxes[3] = {SMEM_CONTEXT, SMEM_GRAD_SCORES, SMEM_V};
            mbarrier_wait(full_barrier + 8 * QKV_PROJ, (layer_count & 1) ^ 1);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 12; k++) {
                u64 a_desc = smem_desc(own_desc(boxes[k / 4]) + k % 4 * COLS16);
                u64 b_desc = smem_desc(base_low + k * ROWS16);
                if (k == 0) wgmma_first<0, 1>(z, a_desc, b_desc);
                else wgmma<0, 1>(z, a_desc, b_desc);
            }
            wgmma_col_sums(q_sums, own_desc(SMEM_CONTEXT), ones);
            wgmma_col_sums(v_sums, own_desc(SMEM_V), ones);
            wgmma_commit();
            wgmma_wait<0>();
            float* dst = qkv_bias_partials + (layer * num_partials + partial) * 3 * HIDDEN;
            const float zeros[4] = {};
            store_sums(dst, q_sums), store_sums(dst + HIDDEN, zeros);
            store_sums(dst + 2 * HIDDEN, v_sums);
#pragma unroll
            for (int j = 0; j < 16; j++) {
                z[2 * j] = bf16_low(residual_grad[j]) + z[2 * j];
                z[2 * j + 1] = bf16_high(residual_grad[j]) + z[2 * j + 1];
            }
        };
        mbarrier_wait(full_barrier + 8 * GRAD_OUT, seq_count & 1);
        ldmatrix_tile(scores_box, residual_grad);
        for (int layer = layers - 1; layer >= 0; layer--, layer_count++) {
            int layer_row = layer * tokens + first_token;
            const int* seed = seeds + layer * 12;
            const float* vector = layer_params + layer * LAYER_PARAMS;
            // Turns the gradient z of a LayerNorm's output into that of its residual; `branch` gets
            // it after dropout. `gamma_terms` and `beta_terms` get what sums over rows to their
            // gradients.
            auto layernorm_backward = [&](
                float (&z)[32], const u32 (&x_hat)[16], int norm, u32 row_seed,
                const float (&rstd)[2], u32 (&gamma_terms)[16], u32 (&beta_terms)[16],
                u32 (&branch)[16]) {
                float mean[2] = {}, moment[2] = {};
                u32 gamma_addr = stats + norm * GAMMA_BYTES;
                u32 key_addr = stats + KEYS + norm * KEY_BYTES;
                u32 row_keys[2] = {rng_key(first_token + frag_row, row_seed),
                                   rng_key(first_token + frag_row + 8, row_seed)};
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    int h = j % 2;
                    float2 gamma = ld_shared_float2(gamma_addr + 4 * (j / 2 * 8 + frag_col));
                    float &g0 = z[2 * j], &g1 = z[2 * j + 1];
                    float p0 = g0 * bf16_low(x_hat[j]), p1 = g1 * bf16_high(x_hat[j]);
                    gamma_terms[j] = pack_bf16(p0, p1), beta_terms[j] = pack_bf16(g0, g1);
                    g0 *= gamma.x, g1 *= gamma.y;
                    mean[h] += g0 + g1;
                    moment[h] += p0 * gamma.x + p1 * gamma.y;
                }
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    mean[h] = quad_sum(mean[h]) * (rstd[h] / HIDDEN);
                    moment[h] = quad_sum(moment[h]) * (rstd[h] / HIDDEN);
                }
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    int h = j % 2;
                    float &d0 = z[2 * j], &d1 = z[2 * j + 1];
                    d0 = d0 * rstd[h] - mean[h] - bf16_low(x_hat[j]) * moment[h];
                    d1 = d1 * rstd[h] - mean[h] - bf16_high(x_hat[j]) * moment[h];
                    float u0 = d0, u1 = d1;
                    u32 col_key = ld_shared(key_addr + 4 * (j / 2 * 4 + frag_col / 2));
                    if (drop_count)
                        apply_dropout(u0, u1, rng_bits(row_keys[h], col_key), threshold, rescale);
                    branch[j] = pack_bf16(u0, u1);
                }
            };
            // Issues all global loads of the threads before the first GEMM.
            u32 grad_words[8 * FFN_BOXES];
            const uint4* grad_ptr = (const uint4*)(gelu_grad + (u64)layer_row * FFN) + wg_thread;
#pragma unroll
            for (int i = 0; i < 2 * FFN_BOXES; i++) {
                uint4 a = __ldcs(grad_ptr + i * 128);
                grad_words[4 * i] = a.x, grad_words[4 * i + 1] = a.y;
                grad_words[4 * i + 2] = a.z, grad_words[4 * i + 3] = a.w;
            }
            float own_rstd1[2], own_rstd2[2];
            float gamma = vector[(wg_thread / 64 * 3 + 1) * HIDDEN + wg_thread % 64];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                own_rstd1[h] = rstd1[layer_row + frag_row + 8 * h];
                own_rstd2[h] = rstd2[layer_row + frag_row + 8 * h];
            }
            u32 seed1 = seed[4], seed2 = seed[8], key_seed = seed[wg_thread / 32 % 2 * 4 + 5];
            u32 query_seed = seed[0], pair_key = seed[1];
            int row_stat = half ? doc_ids[seq * SEQ_LENGTH + query]
                                : __float_as_int(lse[layer * tokens + seq * SEQ_LENGTH + query]);

            // Stops the compiler from keeping loop-invariant addresses in registers
            asm volatile("" : "+r"(stats), "+r"(own_base));

            // LayerNorm of the output
            float z[32], acc[32], up_acc[32];
            u32 x_hat[16], beta_terms[16], gamma_terms[16], branch[16], pairs[16];
            if (layer < layers - 1) {
                add_qkv_grad(z, layer + 1);
                release(QKV_PROJ);
            } else {
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    z[2 * j] = bf16_low(residual_grad[j]);
                    z[2 * j + 1] = bf16_high(residual_grad[j]);
                }
            }
            wait_load(X_HATS);
            ldmatrix_tile(x_hat2_box, x_hat);
            st_shared(stats + 4 * wg_thread, __float_as_uint(gamma));
            if (wg_thread < 64)
                st_shared(stats + KEYS + 4 * wg_thread,
                          rng_key(wg_thread % 32, mix_bits(key_seed)));
            wait_stores();
            if (layer < layers - 1) release(V);
            layernorm_backward(z, x_hat, 1, mix_bits(seed2), own_rstd2, gamma_terms, beta_terms,
                               branch);
            wait_load(DOWN_PROJ);
            wgmma_fence();
            gemm<true>(acc, branch, seq_desc(SMEM_DOWN_PROJ));
            wgmma_commit();
            stmatrix_tile(context_box, beta_terms);
            stmatrix_tile(scores_box, gamma_terms);
            stmatrix_tile(x_hat2_box, branch);
            async_proxy_fence();
            warpgroup_sync(warpgroup);
            if (leader) tma_store(&grad_down, x_hat2_box, 0, layer_row), tma_store_commit();

            // Feed-forward block
            float sums[3][4];
            constexpr int ffn_boxes[FFN_BOXES] = {SMEM_GRAD_CONTEXT, SMEM_CONTEXT,
                                                  SMEM_GRAD_SCORES, SMEM_X_HAT2};
            wait_load(UP_PROJ);
#pragma unroll
            for (int c = 0; c < FFN_BOXES; c++) {
                wgmma_wait<0>();
                if (c == 3) release(DOWN_PROJ);
                mul_gelu_grad_tile(acc, grad_words + 8 * c, pairs);
                wgmma_fence();
                if (c == 0) {
                    gemm<true>(up_acc, pairs, seq_desc(SMEM_UP_PROJ));
                    wgmma_col_sums(sums[0], own_desc(SMEM_GRAD_SCORES), ones);
                    wgmma_col_sums(sums[1], own_desc(SMEM_CONTEXT), ones);
                    wgmma_col_sums(sums[2], own_desc(SMEM_X_HAT2), ones);
                } else {
                    gemm<false>(up_acc, pairs, seq_desc(SMEM_UP_PROJ + c * BOX_BYTES));
                }
                if (c + 1 < FFN_BOXES)
                    gemm<true>(acc, branch, seq_desc(SMEM_DOWN_PROJ + (c + 1) * BOX_BYTES));
                wgmma_commit();
                // A box is free when the other warpgroup's attention has read the gradient there,
                // as the scores; when all warps' sums over it are done; when its store has read it.
                if (c == 0) mbarrier_wait(empty_barrier + 8 * Q_AND_K, (layer_count & 1) ^ 1);
                if (c == 1) warpgroup_sync(warpgroup);
                if (c == 3) wait_stores();
                stmatrix_tile(own_base + ffn_boxes[c], pairs);
            }
            async_proxy_fence();
            warpgroup_sync(warpgroup);
            if (leader) {
                for (int c = 0; c < FFN_BOXES; c++)
                    tma_store(&grad_up, own_base + ffn_boxes[c], 64 * c, layer_row);
                tma_store_commit();
            }
#pragma unroll
            for (int i = 0; i < 3; i++)
                store_sums(
                    norm_partials + (((layer * 2 + 1) * num_partials + partial) * 3 + i) * HIDDEN,
                    sums[i]);
            float up_bias_sums[FFN_BOXES][4];
            ldmatrix_tile(x_hat1_box, x_hat);
            wgmma_wait<0>();
            release(UP_PROJ);
            wgmma_fence();
#pragma unroll
            for (int c = 0; c < FFN_BOXES; c++)
                wgmma_col_sums(up_bias_sums[c], own_desc(ffn_boxes[c]), ones);
            wgmma_commit();

            // LayerNorm of the attention block
#pragma unroll
            for (int j = 0; j < 32; j++) z[j] += up_acc[j];
            layernorm_backward(z, x_hat, 0, mix_bits(seed1), own_rstd1, gamma_terms, beta_terms,
                               branch);
            wgmma_wait<0>();
            wait_stores();
            release(CONTEXT);
            wait_load(OUT_PROJ);
            wgmma_fence();
            gemm<true>(acc, branch, seq_desc(SMEM_OUT_PROJ));
            wgmma_commit();
            stmatrix_tile(scores_box, branch);
            stmatrix_tile(x_hat1_box, gamma_terms);
            stmatrix_tile(x_hat2_box, beta_terms);
#pragma unroll
            for (int j = 0; j < 16; j++) residual_grad[j] = pack_bf16(z[2 * j], z[2 * j + 1]);
            wgmma_wait<0>();
            release(OUT_PROJ);
#pragma unroll
            for (int j = 0; j < 16; j++) pairs[j] = pack_bf16(acc[2 * j], acc[2 * j + 1]);
            stmatrix_tile(grad_box, pairs);
            async_proxy_fence();

            // Attention: scores are tiles (keys, queries); the warpgroup has its own keys.
            float scores[64], grad_probs[64];
            wait_load(Q_AND_K);
            wgmma_fence();
            gemm(scores, own_desc(SMEM_K), seq_desc(SMEM_Q));
            wgmma_commit();
            consumers_sync();  // both warpgroups' gradients of the context are written
            if (leader) tma_store(&grad_out_proj, scores_box, 0, layer_row), tma_store_commit();
#pragma unroll
            for (int c = 0; c < FFN_BOXES; c++)
                store_sums(up_bias_partials + (layer * num_partials + partial) * FFN + 64 * c,
                           up_bias_sums[c]);
            wait_load(V);
            wgmma_fence();
            gemm(grad_probs, own_desc(SMEM_V), seq_desc(SMEM_GRAD_CONTEXT));
            wgmma_col_sums(sums[0], own_desc(SMEM_X_HAT1), ones);
            wgmma_col_sums(sums[1], own_desc(SMEM_X_HAT2), ones);
            wgmma_col_sums(sums[2], own_desc(SMEM_GRAD_SCORES), ones);
            wgmma_commit();
            wait_load(CONTEXT);
            float neg_delta = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 offset = query * 128 + (((4 * half + i) ^ (query & 7)) << 4);
                uint4 g = ld_shared4(base + SMEM_GRAD_CONTEXT + offset);
                uint4 o = ld_shared4(base + SMEM_CONTEXT + offset);
                neg_delta += dot_bf16(g, o);
            }
            neg_delta += __shfl_xor_sync(0xFFFFFFFFu, neg_delta, 1);
            neg_delta *= -1 / attention_rescale;
            u32 stat = stats + 4 * (query % 64);
            if (half) {
                st_shared(base + SMEM_DOC_IDS + 4 * query, row_stat);
                st_shared(stat + QUERY_KEYS,
                          rng_key(seq * SEQ_LENGTH + query, mix_bits(query_seed)));
            } else {
                st_shared(stat, row_stat);
                st_shared(stat + NEG_DELTA, __float_as_uint(neg_delta));
            }
            wgmma_wait<0>();
            if (leader) tma_store_wait<0>();
            // All stats are written, and nobody reads what the score gradients overwrite
            consumers_sync();
            release(X_HATS);
#pragma unroll
            for (int i = 0; i < 3; i++)
                store_sums(norm_partials + ((layer * 2 * num_partials + partial) * 3 + i) * HIDDEN,
                           sums[i]);

            u32 docs_addr = base + SMEM_DOC_IDS;
            u32 own_doc = docs_addr + 4 * (warpgroup * 64 + frag_row);
            mask_other_documents(scores, docs_addr, own_doc, frag_col);
            // Keys n and n + 8 form a dropout pair; a thread has exactly one pair.
            pair_key = rng_key(thread / 32 * 8 + lane / 4, mix_bits(pair_key));
            u32 probs[32], grad_scores[32];
#pragma unroll
            for (int j = 0; j < 16; j++) {
                u32 addr = base + SMEM_STATS + j / 8 * STATS_BYTES + 4 * (j % 8 * 8 + frag_col);
                float2 lse_pair = ld_shared_float2(addr);
                float2 neg_delta = ld_shared_float2(addr + NEG_DELTA);
                uint2 query_keys = ld_shared2(addr + QUERY_KEYS);
                softmax_backward(scores + 4 * j, grad_probs + 4 * j, scale, lse_pair, neg_delta,
                                 query_keys, pair_key, attention_threshold, probs + 2 * j,
                                 grad_scores + 2 * j);
            }
            // A half of the queries has the score gradients of its own keys in the place of its
            // values, and those of the other keys, from the other warpgroup, in a box of their own.
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 dst =
                    base + (i / 4 == warpgroup ? SMEM_V : SMEM_GRAD_SCORES) + i / 4 * BOX_BYTES;
                stmatrix_columns(dst, i % 4, grad_scores + 4 * i);
            }
            async_proxy_fence();
            float grad_v[32], grad_k[32], grad_q[32];
            wgmma_fence();
            gemm(grad_v, probs, seq_desc(SMEM_GRAD_CONTEXT));
            gemm(grad_k, grad_scores, seq_desc(SMEM_Q));
            consumers_sync();  // each warpgroup now has the score gradients of all keys
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 a_low = own_desc(i / 4 == warpgroup ? SMEM_V : SMEM_GRAD_SCORES);
                u64 a_desc = smem_desc(a_low + i % 4 * ROWS16);
                u64 b_desc = smem_desc(seq_desc(SMEM_K) + i * ROWS16);
                if (i == 0) wgmma_first<1, 1>(grad_q, a_desc, b_desc);
                else wgmma<1, 1>(grad_q, a_desc, b_desc);
            }
            wgmma_commit();
            wgmma_wait<0>();
            release(Q_AND_K);
            warpgroup_sync(warpgroup);
            auto stage_tile = [&](u32 addr, const float (&x)[32], float factor) {
#pragma unroll
                for (int j = 0; j < 16; j++)
                    pairs[j] = pack_bf16(x[2 * j] * factor, x[2 * j + 1] * factor);
                stmatrix_tile(addr, pairs);
            };
            float factor = scale * 0.6931471805599453f * attention_rescale;
            stage_tile(context_box, grad_q, factor);
            stage_tile(scores_box, grad_k, factor);
            stage_tile(v_box, grad_v, attention_rescale);
            async_proxy_fence();
            warpgroup_sync(warpgroup);
            if (leader) {
                tma_store(&grad_qkv, context_box, 0, layer_row);
                tma_store(&grad_qkv, scores_box, 64, layer_row);
                tma_store(&grad_qkv, v_box, 128, layer_row);
                tma_store_commit();
            }
        }
        // Gradient of the sequence's input
        float z[32];
        u32 pairs[16];
        add_qkv_grad(z, 0);
        release(QKV_PROJ);
        wait_stores();
        release(V);
        release(GRAD_OUT);
#pragma unroll
        for (int j = 0; j < 16; j++) pairs[j] = pack_bf16(z[2 * j], z[2 * j + 1]);
        mbarrier_wait(empty_barrier + 8 * Q_AND_K, (layer_count & 1) ^ 1);
        stmatrix_tile(grad_box, pairs);
        async_proxy_fence();
        warpgroup_sync(warpgroup);
        if (leader) tma_store(&grad_x, grad_box, 0, first_token), tma_store_commit();
    }
    if (leader) tma_store_wait<0>();  // shared memory may be reused after the block exits
}
