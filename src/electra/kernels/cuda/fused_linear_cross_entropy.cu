// A masked language model's words, for Hopper GPUs: the products with a table that is 128 wide, and
// what follows them, without ever writing the logits.
//
// A program has 192 slots, 64 for each of three groups, and goes with them over tiles of 128 words;
// a fourth group brings these. Pairs of slots and words are dealt out evenly: a program may begin
// and end within the words of its slots, so that what is found of a slot comes in parts. Forth a
// thread keeps to itself what it has seen of two slots; nothing is exchanged (see words.py).

namespace words {
constexpr int GROUPS = 3, TALL = GROUPS * 64, WIDE = 128, DEPTH = 128, STAGES = 4;
constexpr int SLOTS = GROUPS * 2 * BOX, TABLE = WIDE * DEPTH * 2, BIAS = WIDE * 4;
// Shared memory: the slots; tiles of the table; two boxes of slopes for each group; the bias of the
// tiles; barriers
constexpr int AT_TABLE = SLOTS, AT_OUT = AT_TABLE + STAGES * TABLE;
constexpr int AT_BIAS = AT_OUT + GROUPS * 2 * BOX, AT_BARS = AT_BIAS + STAGES * BIAS;
static_assert(AT_BARS + 128 == 231552, "words.py asks for as much");
constexpr float LOG2E = 1.4426950408889634f, NEVER = 1e30f;

// What is the same in both kernels. Units are tiles of slots with tiles of words, the latter in
// turn; a program has some that follow each other.
struct Work {
    u32 base, full, empty, come, gone;
    int across, units, first, last;

    __device__ __forceinline__ Work(unsigned char* memory, int slots, int across) : across(across) {
        base = at(memory), full = base + AT_BARS, empty = full + 8 * STAGES;
        come = empty + 8 * STAGES, gone = come + 8;
        units = (slots + TALL - 1) / TALL * across;
        first = blockIdx.x * units / gridDim.x, last = (blockIdx.x + 1) * units / gridDim.x;
    }
    // Barriers: each warp that computes says when it is done with something. Registers each kernel
    // asks for by itself, or the compiler would not know on which side of a branch it has them.
    __device__ __forceinline__ void begin() {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++)
                bar_init(full + 8 * i, 1), bar_init(empty + 8 * i, GROUPS * 4);
            bar_init(come, 1), bar_init(gone, GROUPS * 4);
            bars_ready();
        }
        call_next();
        await_before();
        __syncthreads();
    }
    // Which of the parts of these slots is this program's
    __device__ __forceinline__ int part(int tall) {
        return blockIdx.x - ((tall * across + 1) * gridDim.x - 1) / units;
    }
    __device__ __forceinline__ u32 stage(int n) { return base + AT_TABLE + n % STAGES * TABLE; }
    __device__ __forceinline__ u32 bias(int n) { return base + AT_BIAS + n % STAGES * BIAS; }
    __device__ __forceinline__ void await(int n) {
        wait(full + 8 * (n % STAGES), n / STAGES & 1);
    }
    // Of this warp, after all that it reads there
    __device__ __forceinline__ void release(u32 bar) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(bar);
    }
    __device__ __forceinline__ void release(int n) { release(empty + 8 * (n % STAGES)); }
    // One thread brings words; another brings slots, for which words of the next need not wait.
    __device__ __forceinline__ void bring(const Map& x, const Map& table, const float* bias) {
        if (threadIdx.x == GROUPS * 128)
#pragma unroll 1
            for (int n = 0, u = first; u < last; n++, u++) {
                int wide = u % across;
                u32 to = stage(n), bar = full + 8 * (n % STAGES);
                wait(empty + 8 * (n % STAGES), (n / STAGES & 1) ^ 1);
                expect(bar, TABLE + BIAS);
                for (int i = 0; i < 4; i++)
                    load(to + i * BOX, &table, i / 2 * 64, wide * WIDE + i % 2 * 64, bar);
                load(this->bias(n), bias + wide * WIDE, BIAS, bar);
            }
        if (threadIdx.x == GROUPS * 128 + 32)
            for (int n = 0, u = first; u < last; n++, u += across - u % across) {
                int tall = u / across;
                wait(gone, (n & 1) ^ 1);
                expect(come, SLOTS);
                for (int i = 0; i < GROUPS * 2; i++)
                    load(base + i * BOX, &x, i % 2 * 64, tall * TALL + i / 2 * 64, come);
            }
    }
};

// Three groups take turns at the tensor cores, which would share their time among all that ask:
// all would multiply at once, and then compute at once. A turn ends a little before its products,
// so that the next ones are there in time.
__device__ __forceinline__ void await_turn(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(group + 1 + GROUPS) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"((group + 1) % GROUPS + 1 + GROUPS) : "memory");
}
__device__ __forceinline__ void set_half(u32 where, u32 value) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(where), "h"((unsigned short)value) : "memory");
}
// A group's slots times a tile of words. What says where these are goes on by an addition, so that
// registers hold one of each, not eight. Near its end there is a point to wait for.
__device__ __forceinline__ void multiply(float (&z)[64], u64 slots, u64 words) {
    mma_fence();
    first_mma(z, slots, words);
#pragma unroll
    for (int k = 1; k < DEPTH / 16; k++) {
        int box = k / 4 * BOX, column = k % 4 * 32;
        mma(z, slots + (box + column) / 16, words + (2 * box + column) / 16);
        if (k == DEPTH / 16 - 3) mma_commit();
    }
    mma_commit();
}

// Each four threads that have a slot leave {top, total, place, chosen} each, of what each has seen:
// the highest logit, the sum of odds beside it, the tile where that was, and one by its odds. All
// logits are in units of log 2, as `bias` is.
KERNEL words_look(
    MAP x, MAP table, const float* bias, const int* seed, float* stats, int slots, int across,
    int parts)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Work work(memory, slots, across);
    work.begin();
    int thread = threadIdx.x, group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);
    if (group == GROUPS) {
        fewer_registers<32>();
        work.bring(x, table, bias);
        return;
    }
    more_registers<160>();
    int lane = thread % 32, side = lane % 4 * 2, n = 0;
    int line = group * 64 + thread / 32 % 4 * 16 + lane / 4;  // of two rows the first
    u64 mine = tile(work.base + group * 2 * BOX, 16);
    u32 down_start = mix(seed[0]), across_start = mix(seed[1]);
    if (group == GROUPS - 1) pass_turn(group);
    int tall = work.first / across, wide = work.first % across, left = work.last - work.first;
    for (int turn = 0; left > 0; turn++, tall++, wide = 0) {
        int slot = tall * TALL + line, end = min(across, wide + left);
        left -= end - wide;
        float top[2] = {-1e30f, -1e30f}, total[2] = {};
        int place[2] = {wide, wide}, chosen[2] = {wide, wide};
        u32 down[2];
#pragma unroll
        for (int h = 0; h < 2; h++) down[h] = key_at((slot + 8 * h) * 4 + lane % 4, down_start);
        wait(work.come, turn & 1);
        for (; wide < end; wide++, n++) {
            float z[64], most[4], sum[4] = {};
            work.await(n);
            await_turn(group);
            multiply(z, mine, tile(work.stage(n), 16));
            u32 over = work.bias(n) + side * 4, key = key_at(wide, across_start);
            mma_wait<1>();
            pass_turn(group);
            mma_wait<0>();
#pragma unroll
            for (int j = 0; j < 16; j++) {
                float2 b = shared_floats(over + 8 * j * 4);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float& t = z[4 * j + i];
                    t = t * LOG2E + (i % 2 ? b.y : b.x);
                    most[i] = j ? fmaxf(most[i], t) : t;
                }
            }
            work.release(n);
            float before[2] = {top[0], top[1]};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float high = fmaxf(most[2 * h], most[2 * h + 1]);
                if (high > top[h]) top[h] = high, place[h] = wide;
            }
#pragma unroll
            for (int j = 0; j < 64; j++) sum[j % 4] += power(z[j] - top[j / 2 % 2]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float here = sum[2 * h] + sum[2 * h + 1];
                total[h] = total[h] * power(before[h] - top[h]) + here;
                // Of all tiles until now this one, by its share
                float number = __uint2float_rz(mix(fold(down[h], key)));
                if (number * total[h] < here * 4294967296.0f) chosen[h] = wide;
            }
        }
        work.release(work.gone);
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (slot + 8 * h < slots)
                ((float4*)stats)[((slot + 8 * h) * parts + work.part(tall)) * 4 + lane % 4] =
                    make_float4(top[h], total[h], place[h], chosen[h]);
    }
}

// Slopes of the losses: odds, less one for the truth where a slot is drawn. `level` is the
// logarithm of the sum of odds, NEVER or more where it is not. They go to memory, and times the
// table they give parts of the slots' gradient. The truth's odds are known from its loss: no thread
// has to look for them among its own.
KERNEL words_slopes(
    MAP x, MAP table, MAP slopes, const float* bias, const float* level, const float* losses,
    const long long* truth, float* of_x, int slots, int across)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    Work work(memory, slots, across);
    work.begin();
    int thread = threadIdx.x, group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);
    if (group == GROUPS) {
        fewer_registers<32>();
        work.bring(x, table, bias);
        return;
    }
    more_registers<160>();
    int lane = thread % 32, side = lane % 4 * 2, n = 0;
    int line = group * 64 + thread / 32 % 4 * 16 + lane / 4;  // of two rows the first
    int own = line + lane % 2 * 8;  // the row of which it knows the truth, if it is one of two
    bool leader = thread % 128 == 0;
    u64 mine = tile(work.base + group * 2 * BOX, 16);
    u32 out = work.base + AT_OUT + group * 2 * BOX;
    if (group == GROUPS - 1) pass_turn(group);
    int tall = work.first / across, wide = work.first % across, left = work.last - work.first;
    for (int turn = 0; left > 0; turn++, tall++, wide = 0) {
        int slot = tall * TALL + line, end = min(across, wide + left);
        left -= end - wide;
        float log[2], sums[64] = {};
#pragma unroll
        for (int h = 0; h < 2; h++)
            log[h] = slot + 8 * h < slots ? level[slot + 8 * h] : NEVER;
        int target = -1;
        u32 less = 0;
        if (lane % 4 < 2 && (lane % 2 ? log[1] : log[0]) < NEVER) {
            target = truth[tall * TALL + own];
            less = pack(power(-LOG2E * losses[tall * TALL + own]) - 1, 0);
        }
        wait(work.come, turn & 1);
        await_turn(group);
        for (; wide < end; wide++, n++) {
            float z[64];
            u32 words = work.stage(n), over = work.bias(n) + side * 4;
            work.await(n);
            multiply(z, mine, tile(words, 16));
            if (leader) wait_store<0>();
            mma_wait<1>();
            pass_turn(group);
            mma_wait<0>();
            if (n) work.release(n - 1);  // the second product of that one is done too
            group_sync(group);  // and the boxes of its slopes are free
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 pairs[4];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float* two = z + 8 * i + 2 * k;
                    float2 b = shared_floats(over + (2 * i + k / 2) * 32);
                    pairs[k] = pack(power(two[0] * LOG2E + (b.x - log[k % 2])),
                                    power(two[1] * LOG2E + (b.y - log[k % 2])));
                }
                put_columns(out + i / 4 * BOX, i % 4, pairs);
            }
            __syncwarp();  // the truth comes after what others put there
            if (u32 at = target - wide * WIDE; at < WIDE) {
                int row = own % 64;
                set_half(out + at / 64 * BOX + row * 128 + ((at % 64 / 8 ^ row % 8) << 4)
                         + at % 8 * 2, less);
            }
            written();
            group_sync(group);
            if (leader) {
                for (int i = 0; i < 2; i++)
                    store(&slopes, out + i * BOX, wide * WIDE + i * 64, tall * TALL + group * 64);
                commit_store();
            }
            u64 odds = tile(out, 16), right = tile(words, 2 * BOX);
            await_turn(group);  // for this and for the next one's first
            mma_fence();
#pragma unroll
            for (int i = 0; i < WIDE / 16; i++)
                mma<1>(sums, odds + (i / 4 * BOX + i % 4 * 32) / 16, right + i * 2048 / 16);
            mma_commit();
        }
        pass_turn(group);
        mma_wait<0>();
        work.release(work.gone);
        float* to = of_x + ((u64)work.part(tall) * slots + slot) * DEPTH + side;
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (slot + 8 * h < slots)
#pragma unroll
                for (int j = 0; j < 16; j++)
                    *(float2*)(to + 8 * h * DEPTH + 8 * j) =
                        make_float2(sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]);
    }
    if (leader) wait_store<0>();  // shared memory is another program's after the end
}
}  // namespace words
