// The forward pass of all layers of an encoder with hidden size 64, one head and FFN size 256, for
// sequences of 128 tokens, in bf16.
//
// Sequences are independent: a thread block takes one through all layers, each of its two consumer
// warpgroups half of the tokens. The result of one GEMM stays in registers as the A operand of the
// next; queries, keys and values are in shared memory. A producer thread loads a layer's weights
// during the layer before, each as soon as that layer is done with its own.

constexpr int HIDDEN = 64, FFN = 256, FFN_BOXES = FFN / 64, SEQ_BYTES = 2 * BOX_BYTES;
enum Weight { QKV_PROJ, OUT_PROJ, UP_PROJ, DOWN_PROJ, WEIGHTS };
// Shared memory: weights; q, k and v of the sequence; three output boxes per warpgroup; the input;
// barriers; and the vectors of the layer, once per warpgroup
constexpr int SMEM_OUT_PROJ = 3 * BOX_BYTES, SMEM_UP_PROJ = SMEM_OUT_PROJ + BOX_BYTES;
constexpr int SMEM_DOWN_PROJ = SMEM_UP_PROJ + FFN_BOXES * BOX_BYTES;
constexpr int SMEM_QKV = SMEM_DOWN_PROJ + FFN_BOXES * BOX_BYTES;
constexpr int SMEM_OUT = SMEM_QKV + 3 * SEQ_BYTES, SMEM_X = SMEM_OUT + WARPGROUPS * 3 * BOX_BYTES;
constexpr int SMEM_BARRIERS = SMEM_X + SEQ_BYTES, SMEM_PARAMS = SMEM_BARRIERS + 128;
// The vectors: of both LayerNorms bias, gamma, beta and dropout keys; the up projection's bias in
// half precision; the bias of the qkv projection
constexpr int GAMMA = HIDDEN * 4, BETA = 2 * GAMMA, KEYS = 3 * GAMMA, NORM = KEYS + HIDDEN * 2;
constexpr int UP_BIAS = 2 * NORM, QKV_BIAS = UP_BIAS + FFN * 2, PARAMS = QKV_BIAS + 3 * HIDDEN * 4;
static_assert(SMEM_PARAMS + WARPGROUPS * PARAMS == 219264,
              "fused_encoder.py launches with as many bytes");
// Vectors of a layer in global memory: of both LayerNorms bias, gamma and beta, then the bias of
// the up projection
constexpr int LAYER_PARAMS = 6 * HIDDEN + FFN;

// A 64 x 64 tile in registers times 64 columns of a weight. FIRST overwrites the accumulators.
template <bool FIRST>
DEVICE void gemm(float (&d)[32], const u32 (&a)[16], u32 weight) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u64 b_desc = smem_desc(weight + k * 32, 16);
        if (FIRST && k == 0) wgmma_first<0>(d, a, b_desc);
        else wgmma<0>(d, a + 4 * k, b_desc);
    }
}

KERNEL fused_encoder_forward(
    MAP x, MAP qkv_proj, MAP out_proj, MAP up_proj, MAP down_proj, MAP qkv, MAP context, MAP y,
    MAP activation, MAP x_hat1, MAP x_hat2, MAP out, const float* layer_params,
    const unsigned short* qkv_bias, float* lse, float* rstd1, float* rstd2,
    unsigned char* gelu_grad, const int* doc_ids, const int* seeds, int batch_size, int layers,
    float scale, float eps, int drop_count, float rescale, int attention_drop_count,
    float attention_rescale)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    u32 base = smem_addr(smem), full_barrier = base + SMEM_BARRIERS;
    u32 empty_barrier = full_barrier + 8 * WEIGHTS;
    u32 x_full = empty_barrier + 8 * WEIGHTS, x_empty = x_full + 8;
    int thread = threadIdx.x, warpgroup = thread / 128, tokens = batch_size * SEQ_LENGTH;
    bool is_producer = thread == WARPGROUPS * 128;
    auto load_weight = [&](int weight, int layer) {
        u32 barrier = full_barrier + 8 * weight;
        int boxes = weight == QKV_PROJ ? 3 : weight == OUT_PROJ ? 1 : FFN_BOXES;
        mbarrier_expect_tx(barrier, boxes * BOX_BYTES);
        if (weight == QKV_PROJ)
            for (int i = 0; i < 3; i++)
                tma_load(base + i * BOX_BYTES, &qkv_proj, 0, layer * 192 + i * 64, barrier);
        else if (weight == OUT_PROJ)
            tma_load(base + SMEM_OUT_PROJ, &out_proj, 0, layer * 64, barrier);
        else if (weight == UP_PROJ)
            for (int i = 0; i < FFN_BOXES; i++)
                tma_load(base + SMEM_UP_PROJ + i * BOX_BYTES, &up_proj, 0, layer * FFN + i * 64,
                         barrier);
        else
            for (int i = 0; i < FFN_BOXES; i++)
                tma_load(base + SMEM_DOWN_PROJ + i * BOX_BYTES, &down_proj, i * 64, layer * 64,
                         barrier);
    };
    if (is_producer) {
        for (int i = 0; i < WEIGHTS; i++) {
            mbarrier_init(full_barrier + 8 * i, 1);
            mbarrier_init(empty_barrier + 8 * i, WARPGROUPS);
        }
        mbarrier_init(x_full, 1), mbarrier_init(x_empty, WARPGROUPS);
        mbarrier_init_fence();
        for (int i = 0; i < WEIGHTS; i++) load_weight(i, 0);
    }
    pdl_launch_dependents();
    pdl_wait();
    __syncthreads();

    if (warpgroup == WARPGROUPS) {
        decrease_registers<24>();
        if (is_producer) {
            u32 layer_count = 0, seq_count = 0;
            for (int seq = blockIdx.x; seq < batch_size; seq += gridDim.x, seq_count++) {
                mbarrier_wait(x_empty, (seq_count & 1) ^ 1);
                mbarrier_expect_tx(x_full, SEQ_BYTES);
                for (int i = 0; i < 2; i++)
                    tma_load(base + SMEM_X + i * BOX_BYTES, &x, 0, seq * SEQ_LENGTH + i * 64,
                             x_full);
                for (int layer = 0; layer < layers; layer++, layer_count++)
                    for (int i = 0; i < WEIGHTS && layer_count; i++) {
                        mbarrier_wait(empty_barrier + 8 * i, (layer_count & 1) ^ 1);
                        load_weight(i, layer);
                    }
            }
        }
        return;
    }
    increase_registers<240>();
    int lane = thread % 32, warp = thread / 32 % 4, frag_col = lane % 4 * 2;
    int wg_thread = thread % 128;
    bool leader = wg_thread == 0;
    u32 params = base + SMEM_PARAMS + warpgroup * PARAMS;
    u32 out_boxes = base + SMEM_OUT + warpgroup * 3 * BOX_BYTES;
    u32 threshold = drop_threshold(drop_count);
    u32 attention_threshold = drop_threshold(attention_drop_count), next_box = 0;
    u32 layer_count = 0, seq_count = 0;
    for (int seq = blockIdx.x; seq < batch_size; seq += gridDim.x, seq_count++) {
        int first_token = seq * SEQ_LENGTH + warpgroup * 64;
        int token = first_token + warp * 16 + lane / 4;
        const int* seq_docs = doc_ids + seq * SEQ_LENGTH;
        bool several_docs = seq_docs[0] != seq_docs[SEQ_LENGTH - 1];
        u32 x_pairs[16], bias_pair;
        float vector_values[5];
        // Reads the vectors of a layer before they are needed.
        auto prefetch_params = [&](int layer) {
            const float* vector = layer_params + layer * LAYER_PARAMS;
#pragma unroll
            for (int i = 0; i < 3; i++) vector_values[i] = vector[i * 128 + wg_thread];
            vector_values[3] = vector[6 * HIDDEN + 2 * wg_thread];
            vector_values[4] = vector[6 * HIDDEN + 2 * wg_thread + 1];
            bias_pair = wg_thread < 96 ? ((const u32*)(qkv_bias + layer * 192))[wg_thread] : 0;
        };
        prefetch_params(0);
        mbarrier_wait(x_full, seq_count & 1);
        ldmatrix_tile(base + SMEM_X + warpgroup * BOX_BYTES, x_pairs);
        warpgroup_sync(warpgroup);
        if (leader) mbarrier_arrive(x_empty);
        for (int layer = 0; layer < layers; layer++, layer_count++) {
            int layer_offset = layer * tokens;  // first row of this layer's tensors
            const int* seed = seeds + layer * 12;
            auto wait_weight = [&](int weight) {
                mbarrier_wait(full_barrier + 8 * weight, layer_count & 1);
            };
            auto release_weight = [&](int weight) {
                if (leader) mbarrier_arrive(empty_barrier + 8 * weight);
            };
            auto take_box = [&] {
                u32 box = out_boxes + next_box * BOX_BYTES;
                next_box = next_box == 2 ? 0 : next_box + 1;
                return box;
            };
            auto store_box = [&](const TensorMap& map, u32 box, int col, int offset) {
                tma_store(&map, box + warp * 2048, col, offset + first_token + warp * 16);
            };
            auto store_tile = [&](const TensorMap& map, const u32 (&pairs)[16], int col) {
                u32 box = take_box();
                if (lane == 0) tma_store_wait<1>();
                __syncwarp();
                stmatrix_tile(box, pairs);
                async_proxy_fence();
                __syncwarp();
                if (lane == 0) store_box(map, box, col, layer_offset), tma_store_commit();
            };
            // Two tiles with one fence; never twice in a row, because there are three boxes only.
            auto store_two_tiles = [&](
                const TensorMap& map1, const u32 (&pairs1)[16], const TensorMap& map2,
                const u32 (&pairs2)[16], int offset2) {
                u32 box1 = take_box(), box2 = take_box();
                if (lane == 0) tma_store_wait<1>();
                __syncwarp();
                stmatrix_tile(box1, pairs1);
                stmatrix_tile(box2, pairs2);
                async_proxy_fence();
                __syncwarp();
                if (lane == 0) {
                    store_box(map1, box1, 0, layer_offset), store_box(map2, box2, 0, offset2);
                    tma_store_commit();
                }
            };
            // LayerNorm(residual + dropout(z + bias)); x_hat is the result before gamma and beta.
            auto layernorm = [&](
                float (&z)[32], const u32 (&residual)[16], u32 norm_params, u32 row_seed,
                float (&rstd)[2], u32 (&x_hat)[16], u32 (&out_pairs)[16]) {
                float mean[2] = {}, sum_sq[2] = {};
                u32 row_keys[2] = {rng_key(token, row_seed), rng_key(token + 8, row_seed)};
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    float2 bias = ld_shared_float2(norm_params + 4 * (8 * j + frag_col));
                    u32 col_key = ld_shared(norm_params + KEYS + 4 * (4 * j + frag_col / 2));
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float &z0 = z[4 * j + 2 * h], &z1 = z[4 * j + 2 * h + 1];
                        z0 += bias.x, z1 += bias.y;
                        if (drop_count)
                            apply_dropout(z0, z1, rng_bits(row_keys[h], col_key), threshold,
                                          rescale);
                        z0 += bf16_low(residual[2 * j + h]), z1 += bf16_high(residual[2 * j + h]);
                        mean[h] += z0 + z1;
                    }
                }
#pragma unroll
                for (int h = 0; h < 2; h++) mean[h] = quad_sum(mean[h]) * (1.0f / HIDDEN);
#pragma unroll
                for (int j = 0; j < 32; j++) {
                    z[j] -= mean[j / 2 % 2];
                    sum_sq[j / 2 % 2] += z[j] * z[j];
                }
#pragma unroll
                for (int h = 0; h < 2; h++)
                    rstd[h] = rsqrtf(quad_sum(sum_sq[h]) * (1.0f / HIDDEN) + eps);
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    u32 addr = norm_params + 4 * (j / 2 * 8 + frag_col);
                    float2 gamma = ld_shared_float2(addr + GAMMA);
                    float2 beta = ld_shared_float2(addr + BETA);
                    float z0 = z[2 * j] * rstd[j % 2], z1 = z[2 * j + 1] * rstd[j % 2];
                    x_hat[j] = pack_bf16(z0, z1);
                    out_pairs[j] = pack_bf16(z0 * gamma.x + beta.x, z1 * gamma.y + beta.y);
                }
            };
            float acc[32], own_rstd1[2], own_rstd2[2], own_lse[2];
            u32 pairs[16], x_hat[16], y_pairs[16], grad_words[FFN_BOXES][8];

            // q, k and v. The previous layer and its stores have read theirs.
            wait_weight(QKV_PROJ);
            wgmma_fence();
            gemm<true>(acc, x_pairs, base);
            wgmma_commit();
            if (leader) tma_store_wait<0>();
            consumers_sync();
#pragma unroll
            for (int i = 0; i < 3; i++) {
                int which = 2 * i + wg_thread / 64;  // of the six vectors of both LayerNorms
                u32 addr = params + which / 3 * NORM + which % 3 * GAMMA + wg_thread % 64 * 4;
                st_shared(addr, __float_as_uint(vector_values[i]));
            }
            st_shared(params + UP_BIAS + 4 * wg_thread,
                      pack_half(vector_values[3], vector_values[4]));
            if (wg_thread < 96) {  // bf16 is the upper half of fp32
                st_shared(params + QKV_BIAS + 8 * wg_thread, bias_pair << 16);
                st_shared(params + QKV_BIAS + 8 * wg_thread + 4, bias_pair & 0xFFFF0000u);
            }
            if (wg_thread < 64) {
                u32 key = rng_key(wg_thread % 32, mix_bits(seed[4 + wg_thread / 32 * 4 + 1]));
                st_shared(params + wg_thread / 32 * NORM + KEYS + wg_thread % 32 * 4, key);
            }
            warpgroup_sync(warpgroup);
#pragma unroll
            for (int c = 0; c < 3; c++) {
                wgmma_wait<0>();
                add_bias_tile(acc, params + QKV_BIAS + (64 * c + frag_col) * 4, pairs);
                if (c < 2) {
                    wgmma_fence();
                    gemm<true>(acc, x_pairs, base + (c + 1) * BOX_BYTES);
                    wgmma_commit();
                } else {
                    release_weight(QKV_PROJ);
                }
                stmatrix_tile(base + SMEM_QKV + c * SEQ_BYTES + warpgroup * BOX_BYTES, pairs);
            }
            async_proxy_fence();
            consumers_sync();
            if (leader) {
                for (int c = 0; c < 3; c++)
                    tma_store(&qkv, base + SMEM_QKV + c * SEQ_BYTES + warpgroup * BOX_BYTES, c * 64,
                              layer_offset + first_token);
                tma_store_commit();
            }

            // Attention of the warpgroup's queries to all keys
            u32 q = base + SMEM_QKV + warpgroup * BOX_BYTES, k = base + SMEM_QKV + SEQ_BYTES;
            u32 v = k + SEQ_BYTES;
            float scores[64], row_max[2], row_sum[2];
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u64 a_desc = smem_desc(q + i * 32, 16), b_desc = smem_desc(k + i * 32, 16);
                if (i == 0) wgmma_first(scores, a_desc, b_desc);
                else wgmma(scores, a_desc, b_desc);
            }
            wgmma_commit();
            u32 query_seed = mix_bits(seed[0]), probs[32], pair_keys[16];
            u32 row_keys[2] = {rng_key(token, query_seed), rng_key(token + 8, query_seed)};
#pragma unroll
            for (int i = 0; i < 16; i++)
                pair_keys[i] = rng_key(i / 2 * 8 + frag_col + i % 2, mix_bits(seed[1]));
            wgmma_wait<0>();
            if (several_docs) {
                int own_docs[2] = {doc_ids[token], doc_ids[token + 8]};
#pragma unroll
                for (int j = 0; j < 64; j++)
                    if (seq_docs[j / 4 * 8 + frag_col + j % 2] != own_docs[j / 2 % 2])
                        scores[j] = -1e30f;
            }
            softmax_dropout(scores, scale, pair_keys, row_keys, attention_threshold, row_max,
                            row_sum, probs);
            wgmma_fence();
            wgmma_first<1>(acc, probs, smem_desc(v, 16));
#pragma unroll
            for (int i = 1; i < 8; i++) wgmma<1>(acc, probs + 4 * i, smem_desc(v + i * 2048, 16));
            wgmma_commit();
#pragma unroll
            for (int h = 0; h < 2; h++) {
                row_sum[h] = quad_sum(row_sum[h]);
                own_lse[h] = row_max[h] + log2f(row_sum[h]);
                row_sum[h] = attention_rescale / row_sum[h];
            }
            wgmma_wait<0>();
#pragma unroll
            for (int j = 0; j < 16; j++)
                pairs[j] = pack_bf16(acc[2 * j] * row_sum[j % 2], acc[2 * j + 1] * row_sum[j % 2]);

            wait_weight(OUT_PROJ);
            wgmma_fence();
            gemm<true>(acc, pairs, base + SMEM_OUT_PROJ);
            wgmma_commit();
            store_tile(context, pairs, 0);
            wgmma_wait<0>();
            release_weight(OUT_PROJ);
            layernorm(acc, x_pairs, params, mix_bits(seed[4]), own_rstd1, x_hat, y_pairs);
            wait_weight(UP_PROJ);
            wgmma_fence();
            gemm<true>(acc, y_pairs, base + SMEM_UP_PROJ);
            wgmma_commit();
            store_two_tiles(x_hat1, x_hat, y, y_pairs, layer_offset);
            wait_weight(DOWN_PROJ);
            float down_acc[32];
#pragma unroll
            for (int c = 0; c < FFN_BOXES; c++) {
                wgmma_wait<0>();
                if (c == FFN_BOXES - 1) release_weight(UP_PROJ);
                gelu_tile(acc, params + UP_BIAS + (64 * c + frag_col) * 2, pairs, grad_words[c]);
                wgmma_fence();
                if (c == 0) gemm<true>(down_acc, pairs, base + SMEM_DOWN_PROJ);
                else gemm<false>(down_acc, pairs, base + SMEM_DOWN_PROJ + c * BOX_BYTES);
                if (c + 1 < FFN_BOXES)
                    gemm<true>(acc, y_pairs, base + SMEM_UP_PROJ + (c + 1) * BOX_BYTES);
                wgmma_commit();
                store_tile(activation, pairs, 64 * c);
            }
            if (layer + 1 < layers) prefetch_params(layer + 1);
            wgmma_wait<0>();
            release_weight(DOWN_PROJ);
            layernorm(down_acc, y_pairs, params + NORM, mix_bits(seed[8]), own_rstd2, x_hat,
                      x_pairs);
            store_two_tiles(x_hat2, x_hat, out, x_pairs, layer_offset + tokens);
            // Last, because a fence waits for all earlier writes
            u64 first_box = (u64)((layer_offset + first_token) / 64) * FFN_BOXES;
            uint4* dst = (uint4*)(gelu_grad + first_box * 4096) + wg_thread;
#pragma unroll
            for (int c = 0; c < FFN_BOXES; c++) {
                u32* words = grad_words[c];
                dst[c * 256] = make_uint4(words[0], words[1], words[2], words[3]);
                dst[c * 256 + 128] = make_uint4(words[4], words[5], words[6], words[7]);
            }
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (lane % 4 == 0) {
                    int row = layer_offset + token + 8 * h;
                    rstd1[row] = own_rstd1[h], rstd2[row] = own_rstd2[h], lse[row] = own_lse[h];
                }
        }
    }
    if (lane == 0) tma_store_wait<0>();  // shared memory may be reused after the block exits
}
