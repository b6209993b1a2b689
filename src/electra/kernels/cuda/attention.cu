// Attention forward and backward for sequences of 128 tokens and heads of 64, in bf16.
//
// Queries, keys and values are read from the fused projection (tokens, 3 x heads x 64); a token
// attends to the tokens of its own document. Persistent thread blocks loop over the heads of all
// sequences; a producer thread loads the next heads with the TMA while the consumer warpgroups
// compute. The Triton kernels in any_gpu/attention.py compute the same, with the same dropout.

constexpr int HEAD_DIM = 64, HEAD_BYTES = SEQ_LENGTH * HEAD_DIM * 2;

// Forward: scores are tiles (queries, keys). Three consumer warpgroups take half heads (64 queries)
// in turn, independently of each other: while one multiplies, the others compute.
namespace forward {
constexpr int WARPGROUPS = 3, STAGES = 4, STAGE_BYTES = 3 * HEAD_BYTES, DOC_BYTES = SEQ_LENGTH * 4;
// Heads arrive at these barriers. With 2 x WARPGROUPS of them a warpgroup works on the same ones in
// every round and misses no phase of a barrier that it waits for; with four, one per stage, it
// would.
constexpr int FULL_BARRIERS = 2 * WARPGROUPS;
// Shared memory: q, k and v of four heads; one output box per warpgroup; the document ids of the
// heads' tokens; barriers
constexpr int SMEM_OUT = STAGES * STAGE_BYTES, SMEM_DOC_IDS = SMEM_OUT + WARPGROUPS * BOX_BYTES;
constexpr int SMEM_BARRIERS = SMEM_DOC_IDS + STAGES * DOC_BYTES;
static_assert(SMEM_BARRIERS + 128 == 223360, "attention.py launches with as many bytes");

KERNEL attention_forward(
    MAP qkv, MAP out, const int* doc_ids, float* lse, const int* seed, int batch_size, int heads,
    float scale, int drop_count, float rescale)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    u32 base = smem_addr(smem), full_barrier = base + SMEM_BARRIERS;
    u32 empty_barrier = full_barrier + 8 * FULL_BARRIERS;
    int thread = threadIdx.x, hidden = heads * HEAD_DIM, total_heads = batch_size * heads;
    int warpgroup = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);  // uniform in a warp
    if (thread == 0) {
        for (int i = 0; i < FULL_BARRIERS; i++) mbarrier_init(full_barrier + 8 * i, 1);
        // Each of the four warps arrives for each of the two halves.
        for (int i = 0; i < STAGES; i++) mbarrier_init(empty_barrier + 8 * i, 2 * 4);
        mbarrier_init_fence();
    }
    pdl_launch_dependents();
    pdl_wait();
    __syncthreads();

    if (warpgroup == WARPGROUPS) {
        decrease_registers<32>();
        if (thread == WARPGROUPS * 128)
            for (int n = 0, bh = blockIdx.x; bh < total_heads; n++, bh += gridDim.x) {
                int stage = n % STAGES, token = bh / heads * SEQ_LENGTH;
                int col = bh % heads * HEAD_DIM;
                u32 dst = base + stage * STAGE_BYTES;
                u32 barrier = full_barrier + n % FULL_BARRIERS * 8;
                mbarrier_wait(empty_barrier + stage * 8, (n / STAGES & 1) ^ 1);
                mbarrier_expect_tx(barrier, STAGE_BYTES + DOC_BYTES);
                tma_load(base + SMEM_DOC_IDS + stage * DOC_BYTES, doc_ids + token, DOC_BYTES,
                         barrier);
                for (int i = 0; i < 2; i++, dst += BOX_BYTES, token += 64)
                    for (int k = 0; k < 3; k++)
                        tma_load(dst + k * HEAD_BYTES, &qkv, col + k * hidden, token, barrier);
            }
        return;
    }
    increase_registers<160>();
    int lane = thread % 32, warp = thread / 32 % 4;
    // Row and column of the thread's first accumulator
    int frag_row = warp * 16 + lane / 4, frag_col = lane % 4 * 2;
    u32 out_addr = base + SMEM_OUT + warpgroup * BOX_BYTES, threshold = drop_threshold(drop_count);
    u32 query_seed = mix_bits(seed[0]), pair_keys[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        pair_keys[i] = rng_key(i / 2 * 8 + frag_col + i % 2, mix_bits(seed[1]));
    for (int half_head = warpgroup;; half_head += WARPGROUPS) {
        int n = half_head / 2, half = half_head % 2, stage = n % STAGES;
        int bh = blockIdx.x + n * gridDim.x;
        if (bh >= total_heads) break;
        u32 stage_addr = base + stage * STAGE_BYTES, q = stage_addr + half * BOX_BYTES;
        u32 k = stage_addr + HEAD_BYTES, v = k + HEAD_BYTES;
        u32 docs_addr = base + SMEM_DOC_IDS + stage * DOC_BYTES, probs[32], pairs[16];
        float scores[64], row_max[2], row_sum[2], acc[32];
        mbarrier_wait(full_barrier + n % FULL_BARRIERS * 8, n / FULL_BARRIERS & 1);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            u64 a_desc = smem_desc(q, 16) + i * (32 >> 4);
            u64 b_desc = smem_desc(k, 16) + i * (32 >> 4);
            if (i == 0) wgmma_first(scores, a_desc, b_desc);
            else wgmma(scores, a_desc, b_desc);
        }
        wgmma_commit();
        int query = bh * SEQ_LENGTH + half * 64 + frag_row;
        u32 query_keys[2] = {rng_key(query, query_seed), rng_key(query + 8, query_seed)};
        wgmma_wait<0>();
        mask_other_documents(scores, docs_addr, docs_addr + 4 * (half * 64 + frag_row), frag_col);
        softmax_dropout(scores, scale, pair_keys, query_keys, threshold, row_max, row_sum, probs);

        wgmma_fence();
        u64 b_desc = smem_desc(v, 16);
        wgmma_first<1>(acc, probs, b_desc);
#pragma unroll
        for (int i = 1; i < SEQ_LENGTH / 16; i++)
            wgmma<1>(acc, probs + 4 * i, b_desc + i * (2048 >> 4));
        wgmma_commit();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float log_sum = log2_approx(quad_sum(row_sum[h]));
            row_max[h] += log_sum;
            row_sum[h] = rescale * exp2_approx(-log_sum);
        }
        wgmma_wait<0>();
        if (lane == 0) {
            mbarrier_arrive(empty_barrier + stage * 8);
            tma_store_wait<0>();  // this warp's previous output
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 16; j++)
            pairs[j] = pack_bf16(acc[2 * j] * row_sum[j % 2], acc[2 * j + 1] * row_sum[j % 2]);
        stmatrix_tile(out_addr, pairs);
        async_proxy_fence();
        __syncwarp();
        if (lane == 0) {
            int token = bh / heads * SEQ_LENGTH + half * 64 + warp * 16;
            int col = bh % heads * HEAD_DIM;
            tma_store(&out, out_addr + warp * 2048, col, token);
            tma_store_commit();
        }
        // Last, because a fence waits for all earlier writes
        if (lane % 4 == 0) lse[query] = row_max[0], lse[query + 8] = row_max[1];
    }
    if (lane == 0) tma_store_wait<0>();  // shared memory may be reused after the block exits
}
}  // namespace forward

// Backward: scores are tiles (keys, queries); each of two consumer warpgroups has 64 keys.
namespace backward {
constexpr int STAGE_BYTES = 5 * HEAD_BYTES;
// Shared memory: q, k, v, gradient and output of two heads; gradients of the scores; two output
// boxes per warpgroup; barriers; ones; for each query its lse, `neg_delta`, dropout key and
// document id
constexpr int SMEM_GRAD_SCORES = 2 * STAGE_BYTES;
constexpr int SMEM_OUT = SMEM_GRAD_SCORES + SEQ_LENGTH * SEQ_LENGTH * 2;
constexpr int SMEM_BARRIERS = SMEM_OUT + WARPGROUPS * 2 * BOX_BYTES;
constexpr int SMEM_ONES = SMEM_BARRIERS + 128;
constexpr int SMEM_LSE = SMEM_ONES + 256, SMEM_NEG_DELTA = SMEM_LSE + SEQ_LENGTH * 4;
constexpr int SMEM_KEYS = SMEM_NEG_DELTA + SEQ_LENGTH * 4;
constexpr int SMEM_DOC_IDS = SMEM_KEYS + SEQ_LENGTH * 4;
static_assert(SMEM_DOC_IDS + SEQ_LENGTH * 4 == 231808, "attention.py launches with as many bytes");

KERNEL attention_backward(
    MAP grad_out, MAP qkv, MAP out, MAP grad_qkv, const int* doc_ids, const float* lse,
    float* bias_partials, const int* seed, int batch_size, int heads, float scale, int drop_count,
    float rescale)
{
    extern __shared__ __align__(1024) unsigned char smem[];
    u32 base = smem_addr(smem), full_barrier = base + SMEM_BARRIERS;
    u32 empty_barrier = full_barrier + 16;
    int thread = threadIdx.x, warpgroup = thread / 128, hidden = heads * HEAD_DIM;
    int total_heads = batch_size * heads;
    if (thread == 0) {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(full_barrier + 8 * i, 1);
            mbarrier_init(empty_barrier + 8 * i, WARPGROUPS);
        }
        mbarrier_init_fence();
    }
    pdl_launch_dependents();
    pdl_wait();
    if (thread < 64) st_shared(base + SMEM_ONES + 4 * thread, BF16_ONES);
    async_proxy_fence();
    __syncthreads();

    if (warpgroup == WARPGROUPS) {
        decrease_registers<24>();
        if (thread == WARPGROUPS * 128)
            for (int n = 0, bh = blockIdx.x; bh < total_heads; n++, bh += gridDim.x) {
                int token = bh / heads * SEQ_LENGTH, col = bh % heads * HEAD_DIM;
                u32 dst = base + n % 2 * STAGE_BYTES, barrier = full_barrier + n % 2 * 8;
                mbarrier_wait(empty_barrier + n % 2 * 8, (n / 2 & 1) ^ 1);
                mbarrier_expect_tx(barrier, STAGE_BYTES);
                for (int i = 0; i < 2; i++, dst += BOX_BYTES, token += 64) {
                    for (int k = 0; k < 3; k++)
                        tma_load(dst + k * HEAD_BYTES, &qkv, col + k * hidden, token, barrier);
                    tma_load(dst + 3 * HEAD_BYTES, &grad_out, col, token, barrier);
                    tma_load(dst + 4 * HEAD_BYTES, &out, col, token, barrier);
                }
            }
        return;
    }
    increase_registers<240>();
    int lane = thread % 32, warp = thread / 32 % 4, leader = thread % 128 == 0;
    // Row and column of the thread's first accumulator
    int frag_row = warp * 16 + lane / 4, frag_col = lane % 4 * 2;
    int query = thread / 2, half = thread % 2;  // two threads share a query
    // Keys n and n + 8 form a dropout pair; a thread has exactly one pair.
    u32 pair_key = rng_key((4 * warpgroup + warp) * 8 + lane / 4, mix_bits(seed[1]));
    u32 query_seed = mix_bits(seed[0]);
    u32 threshold = drop_threshold(drop_count);
    auto load_row_stat = [&](int bh) {
        return half ? doc_ids[bh / heads * SEQ_LENGTH + query]
                    : __float_as_int(lse[bh * SEQ_LENGTH + query]);
    };
    int row_stat = load_row_stat(blockIdx.x);
    for (int n = 0, bh = blockIdx.x; bh < total_heads; n++, bh += gridDim.x) {
        u32 q = base + n % 2 * STAGE_BYTES, k = q + HEAD_BYTES, v = k + HEAD_BYTES;
        u32 g = v + HEAD_BYTES, o = g + HEAD_BYTES;
        float scores[64], grad_probs[64];
        mbarrier_wait(full_barrier + n % 2 * 8, n / 2 & 1);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            u64 a_desc = smem_desc(k + warpgroup * BOX_BYTES + i * 32, 16);
            u64 b_desc = smem_desc(q + i * 32, 16);
            if (i == 0) wgmma_first(scores, a_desc, b_desc);
            else wgmma(scores, a_desc, b_desc);
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            u64 a_desc = smem_desc(v + warpgroup * BOX_BYTES + i * 32, 16);
            u64 b_desc = smem_desc(g + i * 32, 16);
            if (i == 0) wgmma_first(grad_probs, a_desc, b_desc);
            else wgmma(grad_probs, a_desc, b_desc);
        }
        wgmma_commit();
        float neg_delta = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 offset = query * 128 + (((4 * half + i) ^ (query & 7)) << 4);
            neg_delta += dot_bf16(ld_shared4(g + offset), ld_shared4(o + offset));
        }
        neg_delta = (neg_delta + __shfl_xor_sync(0xFFFFFFFFu, neg_delta, 1)) * (-1 / rescale);
        st_shared(base + (half ? SMEM_DOC_IDS : SMEM_LSE) + 4 * query, row_stat);
        if (half)
            st_shared(base + SMEM_KEYS + 4 * query, rng_key(bh * SEQ_LENGTH + query, query_seed));
        else
            st_shared(base + SMEM_NEG_DELTA + 4 * query, __float_as_uint(neg_delta));
        if (leader) tma_store_wait<0>();  // the stores that read the memory of the score gradients
        consumers_sync();
        if (bh + gridDim.x < total_heads) row_stat = load_row_stat(bh + gridDim.x);
        wgmma_wait<0>();

        u32 docs_addr = base + SMEM_DOC_IDS, own_doc = docs_addr + 4 * (warpgroup * 64 + frag_row);
        mask_other_documents(scores, docs_addr, own_doc, frag_col);
        u32 probs[32], grad_scores[32];
#pragma unroll
        for (int j = 0; j < 16; j++) {
            u32 addr = base + 4 * (8 * j + frag_col);
            float2 lse_pair = ld_shared_float2(addr + SMEM_LSE);
            float2 neg_delta = ld_shared_float2(addr + SMEM_NEG_DELTA);
            uint2 query_keys = ld_shared2(addr + SMEM_KEYS);
            softmax_backward(scores + 4 * j, grad_probs + 4 * j, scale, lse_pair, neg_delta,
                             query_keys, pair_key, threshold, probs + 2 * j, grad_scores + 2 * j);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            stmatrix_columns(base + SMEM_GRAD_SCORES + i / 4 * HEAD_BYTES + warpgroup * BOX_BYTES,
                             i % 4, grad_scores + 4 * i);
        async_proxy_fence();

        float grad_v[32], grad_k[32], grad_q[32];
        wgmma_fence();
        wgmma_first<1>(grad_v, probs, smem_desc(g, 16));
#pragma unroll
        for (int i = 1; i < 8; i++) wgmma<1>(grad_v, probs + 4 * i, smem_desc(g + i * 2048, 16));
        wgmma_first<1>(grad_k, grad_scores, smem_desc(q, 16));
#pragma unroll
        for (int i = 1; i < 8; i++)
            wgmma<1>(grad_k, grad_scores + 4 * i, smem_desc(q + i * 2048, 16));
        consumers_sync();  // each warpgroup now has the score gradients of all keys
        u32 own_grad_scores = base + SMEM_GRAD_SCORES + warpgroup * HEAD_BYTES;
        wgmma_first<1, 1>(grad_q, smem_desc(own_grad_scores, 16), smem_desc(k, 16));
#pragma unroll
        for (int i = 1; i < 8; i++)
            wgmma<1, 1>(grad_q, smem_desc(own_grad_scores + i * 2048, 16),
                        smem_desc(k + i * 2048, 16));
        wgmma_commit();
        wgmma_wait<0>();
        if (leader) mbarrier_arrive(empty_barrier + n % 2 * 8);

        int seq = bh / heads, col = bh % heads * HEAD_DIM;
        float factor = scale * 0.6931471805599453f * rescale;
        auto stage_tile = [&](u32 addr, const float* x, float factor) {
            u32 pairs[16];
#pragma unroll
            for (int j = 0; j < 16; j++)
                pairs[j] = pack_bf16(x[2 * j] * factor, x[2 * j + 1] * factor);
            stmatrix_tile(addr, pairs);
        };
        // No other warpgroup reads these score gradients any more: reuse them as a third output
        // box.
        u32 out_q = base + SMEM_OUT + warpgroup * 2 * BOX_BYTES, out_v = out_q + BOX_BYTES;
        u32 out_k = own_grad_scores;
        stage_tile(out_q, grad_q, factor);
        stage_tile(out_k, grad_k, factor);
        stage_tile(out_v, grad_v, rescale);
        async_proxy_fence();
        warpgroup_sync(warpgroup);
        if (leader) {
            int first_token = seq * SEQ_LENGTH + warpgroup * 64;
            tma_store(&grad_qkv, out_q, col, first_token);
            tma_store(&grad_qkv, out_k, col + hidden, first_token);
            tma_store(&grad_qkv, out_v, col + 2 * hidden, first_token);
            tma_store_commit();
        }
        float q_sums[4] = {}, v_sums[4] = {};
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            wgmma_sum_rows(q_sums, smem_desc(out_q + i * 2048, 16), ones_desc(base + SMEM_ONES));
            wgmma_sum_rows(v_sums, smem_desc(out_v + i * 2048, 16), ones_desc(base + SMEM_ONES));
        }
        wgmma_commit();
        wgmma_wait<0>();
        if (lane % 4 == 0) {
            float* dst =
                bias_partials + (u64)(seq * WARPGROUPS + warpgroup) * 3 * hidden + col + frag_row;
            dst[0] = q_sums[0], dst[8] = q_sums[2];
            dst[hidden] = 0, dst[hidden + 8] = 0;
            dst[2 * hidden] = v_sums[0], dst[2 * hidden + 8] = v_sums[2];
        }
    }
    if (leader) tma_store_wait<0>();  // shared memory may be reused after the block exits
}
}  // namespace backward
