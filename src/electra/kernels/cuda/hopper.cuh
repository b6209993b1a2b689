// What kernels for Hopper GPUs are made of: barriers, copies of tiles, and products of them.
//
// Each source here is compiled with this before it. A program has groups of four warps that
// compute, mostly two, and a thread of one more that brings the tiles.

typedef unsigned int u32;
typedef unsigned long long u64;
// A matrix in tiles of 64 columns and 64 rows, or fewer, as the host describes it.
struct __align__(64) Map { u64 words[16]; };

// --- Barriers in shared memory: `parity` is that of the round that is waited for.

__device__ __forceinline__ u32 at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void bar_init(u32 bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
// Other threads and the copies see barriers as they were set.
__device__ __forceinline__ void bars_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void wait(u32 bar, u32 parity) {
    asm volatile(
        "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
        " @!p bra AGAIN; }" ::"r"(bar), "r"(parity) : "memory");
}

// --- Copies of tiles, without threads: from memory they arrive at a barrier, to memory they go in
// groups. Beyond a matrix's end zeros are read and nothing is written.

__device__ __forceinline__ void load(u32 to, const Map* map, int x, int y, u32 bar) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
// Bytes side by side, a multiple of 16 from a multiple of 16 on
__device__ __forceinline__ void load(u32 to, const void* from, int bytes, u32 bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
// Bytes that someone will read are brought nearer, into the cache.
__device__ __forceinline__ void fetch(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void fetch(const Map* map, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
                 ::"l"(map), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void store(const Map* map, u32 from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(x), "r"(y), "r"(from) : "memory");
}
__device__ __forceinline__ void commit_store() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until so many groups at most still have to be read from shared memory.
template <int LEFT> __device__ __forceinline__ void wait_store() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}
// What this thread wrote to shared memory is seen by copies and products.
__device__ __forceinline__ void written() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- Launches: one begins while the one before still runs, as soon as there is room on the chip

// Until all that was written before this launch is there. Before, a kernel reads nothing but
// matrices, which are older (see cuda.py), and writes nothing.
__device__ __forceinline__ void await_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
// The next launch may begin.
__device__ __forceinline__ void call_next() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// --- Groups of four warps

__device__ __forceinline__ void group_sync(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
// Both groups that compute
__device__ __forceinline__ void both_sync() { asm volatile("bar.sync 5, 256;" ::: "memory"); }
// Two groups take turns at the tensor cores: while one multiplies, the other computes.
__device__ __forceinline__ void await_turn(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(group + 3) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(4 - group) : "memory");
}
// Registers of a thread: the group that brings tiles leaves its own to those that compute.
template <int COUNT> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// --- Products of tiles in shared memory

// Rows of 128 bytes, of which 16 at a time have changed places (128-byte swizzle).
__device__ __forceinline__ u64 tile(u32 where, u32 step) {
    return (1ull << 62) | ((u64)(1024 >> 4) << 32) | ((u64)(step >> 4) << 16)
        | ((where & 0x3FFFF) >> 4);
}
__device__ __forceinline__ void mma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void mma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void mma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define WGMMA(width) "wgmma.mma_async.sync.aligned.m64n" width "k16.f32.bf16.bf16 "

// A thread's numbers of a product, as the assembler wants them: "%0, %1, ..."
#define TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, " \
               "%" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define N32 TEN() TEN(1) TEN(2) "%30, %31"
#define N64 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define N128 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) \
    "%120, %121, %122, %123, %124, %125, %126, %127"
#define F4(how, d, i) how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3])
#define F16(how, d, i) F4(how, d, i), F4(how, d, i + 4), F4(how, d, i + 8), F4(how, d, i + 12)
#define F32(how, d) F16(how, d, 0), F16(how, d, 16)
#define F64(how, d, i) F16(how, d, i), F16(how, d, i + 16), F16(how, d, i + 32), F16(how, d, i + 48)
#define F128(how, d) F64(how, d, 0), F64(how, d, 64)

// (64, 16) times (16, 64). LEFT, RIGHT: what has to be a row of this factor is a column
template <int LEFT, int RIGHT> __device__ __forceinline__ void mma(float (&d)[32], u64 a, u64 b) {
    asm volatile(WGMMA("64") "{" N32 "}, %32, %33, 1, 1, 1, %34, %35;"
                 : F32("+f", d) : "l"(a), "l"(b), "n"(LEFT), "n"(RIGHT));
}
// The same without what was there before, whose registers are free until now
template <int LEFT, int RIGHT>
__device__ __forceinline__ void first_mma(float (&d)[32], u64 a, u64 b) {
    asm volatile(WGMMA("64") "{" N32 "}, %32, %33, 0, 1, 1, %34, %35;"
                 : F32("=f", d) : "l"(a), "l"(b), "n"(LEFT), "n"(RIGHT));
}
// The first factor from registers
#define FOUR(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
template <int RIGHT> __device__ __forceinline__ void mma(float (&d)[32], const u32* a, u64 b) {
    asm volatile(WGMMA("64") "{" N32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                 : F32("+f", d) : FOUR(a), "l"(b), "n"(RIGHT));
}
template <int RIGHT>
__device__ __forceinline__ void first_mma(float (&d)[32], const u32* a, u64 b) {
    asm volatile(WGMMA("64") "{" N32 "}, {%32, %33, %34, %35}, %36, 0, 1, 1, %37;"
                 : F32("=f", d) : FOUR(a), "l"(b), "n"(RIGHT));
}

// (64, 16) times (16, 128); RIGHT as above
template <int RIGHT = 0> __device__ __forceinline__ void mma(float (&d)[64], u64 a, u64 b) {
    asm volatile(WGMMA("128") "{" N64 "}, %64, %65, 1, 1, 1, 0, %66;"
                 : F64("+f", d, 0) : "l"(a), "l"(b), "n"(RIGHT));
}
__device__ __forceinline__ void first_mma(float (&d)[64], u64 a, u64 b) {
    asm volatile(WGMMA("128") "{" N64 "}, %64, %65, 0, 1, 1, 0, 0;"
                 : F64("=f", d, 0) : "l"(a), "l"(b));
}

// (64, 16) times (16, 256); ACROSS: the second lies in memory with columns side by side
template <int ACROSS> __device__ __forceinline__ void mma(float (&d)[128], u64 a, u64 b) {
    asm volatile(WGMMA("256") "{" N128 "}, %128, %129, 1, 1, 1, 0, %130;"
                 : F128("+f", d) : "l"(a), "l"(b), "n"(ACROSS));
}
// The same without what was there before, whose registers are free until now
template <int ACROSS> __device__ __forceinline__ void first_mma(float (&d)[128], u64 a, u64 b) {
    asm volatile(WGMMA("256") "{" N128 "}, %128, %129, 0, 1, 1, 0, %130;"
                 : F128("=f", d) : "l"(a), "l"(b), "n"(ACROSS));
}

// Sums over 16 rows of a tile, in all eight columns, by a product of its columns with ones
__device__ __forceinline__ void sum_mma(float (&d)[4], u64 a, u64 ones) {
    asm volatile(
        WGMMA("8") "{%0, %1, %2, %3}, %4, %5, 1, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(ones));
}

// Sixteen rows of eight ones, wherever 256 bytes of them are
__device__ __forceinline__ u64 ones_at(u32 where) {
    return (8ull << 32) | (8ull << 16) | ((where & 0x3FFFF) >> 4);
}
constexpr u32 ONES = 0x3F803F80u;

// --- Numbers in pairs, and words of shared memory

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ __forceinline__ float dot(u32 a, u32 b) { return low(a) * low(b) + high(a) * high(b); }
__device__ __forceinline__ float dot(uint4 a, uint4 b) {
    return dot(a.x, b.x) + dot(a.y, b.y) + dot(a.z, b.z) + dot(a.w, b.w);
}
// Of a row of a product, which four threads have
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}
__device__ __forceinline__ u32 shared_word(u32 where) {
    u32 r;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(r) : "r"(where));
    return r;
}
__device__ __forceinline__ uint2 shared_pair(u32 where) {
    uint2 r;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "r"(where));
    return r;
}
__device__ __forceinline__ float2 shared_floats(u32 where) {
    uint2 r = shared_pair(where);
    return make_float2(__uint_as_float(r.x), __uint_as_float(r.y));
}
__device__ __forceinline__ uint4 shared_four(u32 where) {
    uint4 r;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(where));
    return r;
}
__device__ __forceinline__ void set_shared(u32 where, u32 value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(where), "r"(value) : "memory");
}
// Where in a swizzled tile a thread has its part of 16 columns, the k-th
__device__ __forceinline__ u32 columns_at(u32 where, int k) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    return where + row * 128 + (((2 * k + lane / 16) ^ (row & 7)) << 4);
}
// They come there from a group, each thread of which has 8 numbers.
__device__ __forceinline__ void put_columns(u32 where, int k, const u32* pairs) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(columns_at(where, k)), FOUR(pairs) : "memory");
}
__device__ __forceinline__ void put(u32 where, const u32 (&pairs)[16]) {
#pragma unroll
    for (int k = 0; k < 4; k++) put_columns(where, k, pairs + 4 * k);
}
// The counterparts of both
__device__ __forceinline__ void get_columns(u32 where, int k, u32* pairs) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(columns_at(where, k)) : "memory");
}
__device__ __forceinline__ void get(u32 where, u32 (&pairs)[16]) {
#pragma unroll
    for (int k = 0; k < 4; k++) get_columns(where, k, pairs + 4 * k);
}
// A thread's numbers of a box with their bias, in pairs; at `bias` is that of its first two columns
__device__ __forceinline__ void add_box(const float* z, u32 bias, u32* pairs) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float* four = z + 4 * j;
        float2 b = shared_floats(bias + 8 * j * 4);
        pairs[2 * j] = pack(four[0] + b.x, four[1] + b.y);
        pairs[2 * j + 1] = pack(four[2] + b.x, four[3] + b.y);
    }
}

// --- Programs: groups that compute, and one that brings tiles

constexpr int GROUPS = 2, BOX = 64 * 64 * 2;
#define KERNEL extern "C" __global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
#define MAP const __grid_constant__ Map
