// Building blocks of the Hopper kernels: mbarriers, TMA copies, wgmma, and programmatic dependent
// launch.
//
// This header comes before every source. A kernel has two or three consumer warpgroups, which
// compute, and one producer warpgroup, of which one or two threads issue the TMA loads. Tiles in
// shared memory have 128-byte rows with 128-byte swizzle.

#define DEVICE __device__ __forceinline__
typedef unsigned int u32;
typedef unsigned long long u64;
// A bf16 matrix as the TMA sees it: boxes of 64 columns and at most 64 rows. The host encodes it
// (`tensor_map` in runtime.py).
struct __align__(64) TensorMap { u64 opaque[16]; };

// --- mbarriers in shared memory. `parity` is the phase to wait for.

DEVICE u32 smem_addr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void mbarrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes the initialized barriers visible to other threads and to the TMA.
DEVICE void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEVICE void mbarrier_expect_tx(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
        " @!p bra AGAIN; }" ::"r"(barrier), "r"(parity) : "memory");
}

// --- TMA copies. Loads complete on an mbarrier, stores in bulk groups. Outside the matrix a load
// reads zeros and a store writes nothing.

DEVICE void tma_load(u32 dst, const TensorMap* map, int x, int y, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];"
        ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
// Copies contiguous bytes; address and size are multiples of 16.
DEVICE void tma_load(u32 dst, const void* src, int bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(dst), "l"(src), "r"(bytes), "r"(barrier) : "memory");
}
// Prefetches into L2.
DEVICE void l2_prefetch(const void* src, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes) : "memory");
}
DEVICE void l2_prefetch(const TensorMap* map, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
                 ::"l"(map), "r"(x), "r"(y) : "memory");
}
DEVICE void tma_store(const TensorMap* map, u32 src, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(x), "r"(y), "r"(src) : "memory");
}
DEVICE void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most PENDING store groups still read shared memory.
template <int PENDING> DEVICE void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
// Makes this thread's writes to shared memory visible to the TMA and to wgmma.
DEVICE void async_proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- Programmatic dependent launch (PDL): a launch begins while the one before it still runs, as
// soon as an SM has space.

// Waits until everything written before this launch is visible. Before this call a kernel writes
// nothing and reads nothing but weights, which are older (see `launch` in runtime.py).
DEVICE void pdl_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
// Lets the next launch begin.
DEVICE void pdl_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// --- Warpgroups

DEVICE void warpgroup_sync(int warpgroup) {
    asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory");
}
// Both consumer warpgroups
DEVICE void consumers_sync() { asm volatile("bar.sync 5, 256;" ::: "memory"); }
// Ping-pong: two warpgroups alternate on the tensor cores, so that one multiplies while the other
// runs its epilogue.
DEVICE void pingpong_wait(int warpgroup) {
    asm volatile("bar.sync %0, 256;" ::"r"(warpgroup + 3) : "memory");
}
DEVICE void pingpong_arrive(int warpgroup) {
    asm volatile("bar.arrive %0, 256;" ::"r"(4 - warpgroup) : "memory");
}
// Moves registers from the producer warpgroup to the consumers.
template <int COUNT> DEVICE void decrease_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> DEVICE void increase_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// --- wgmma on tiles in shared memory

// Descriptor of a tile with 128-byte rows and 128-byte swizzle.
DEVICE u64 smem_desc(u32 addr, u32 leading_bytes) {
    return (1ull << 62) | ((u64)(1024 >> 4) << 32) | ((u64)(leading_bytes >> 4) << 16)
        | ((addr & 0x3FFFF) >> 4);
}
DEVICE void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DEVICE void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define WGMMA(width) "wgmma.mma_async.sync.aligned.m64n" width "k16.f32.bf16.bf16 "

// Operand lists for the assembler: "%0, %1, ..."
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

// (64, 16) times (16, 64). TRANS_A, TRANS_B: the operand is stored transposed (MN-major).
template <int TRANS_A, int TRANS_B> DEVICE void wgmma(float (&d)[32], u64 a, u64 b) {
    asm volatile(WGMMA("64") "{" N32 "}, %32, %33, 1, 1, 1, %34, %35;"
                 : F32("+f", d) : "l"(a), "l"(b), "n"(TRANS_A), "n"(TRANS_B));
}
// Overwrites the accumulators, whose registers are free until then.
template <int TRANS_A, int TRANS_B>
DEVICE void wgmma_first(float (&d)[32], u64 a, u64 b) {
    asm volatile(WGMMA("64") "{" N32 "}, %32, %33, 0, 1, 1, %34, %35;"
                 : F32("=f", d) : "l"(a), "l"(b), "n"(TRANS_A), "n"(TRANS_B));
}
// A from registers
#define FOUR(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
template <int TRANS_B> DEVICE void wgmma(float (&d)[32], const u32* a, u64 b) {
    asm volatile(WGMMA("64") "{" N32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                 : F32("+f", d) : FOUR(a), "l"(b), "n"(TRANS_B));
}
template <int TRANS_B>
DEVICE void wgmma_first(float (&d)[32], const u32* a, u64 b) {
    asm volatile(WGMMA("64") "{" N32 "}, {%32, %33, %34, %35}, %36, 0, 1, 1, %37;"
                 : F32("=f", d) : FOUR(a), "l"(b), "n"(TRANS_B));
}

// (64, 16) times (16, 128)
template <int TRANS_B = 0> DEVICE void wgmma(float (&d)[64], u64 a, u64 b) {
    asm volatile(WGMMA("128") "{" N64 "}, %64, %65, 1, 1, 1, 0, %66;"
                 : F64("+f", d, 0) : "l"(a), "l"(b), "n"(TRANS_B));
}
DEVICE void wgmma_first(float (&d)[64], u64 a, u64 b) {
    asm volatile(WGMMA("128") "{" N64 "}, %64, %65, 0, 1, 1, 0, 0;"
                 : F64("=f", d, 0) : "l"(a), "l"(b));
}

// (64, 16) times (16, 256)
template <int TRANS_B> DEVICE void wgmma(float (&d)[128], u64 a, u64 b) {
    asm volatile(WGMMA("256") "{" N128 "}, %128, %129, 1, 1, 1, 0, %130;"
                 : F128("+f", d) : "l"(a), "l"(b), "n"(TRANS_B));
}
// Overwrites the accumulators.
template <int TRANS_B> DEVICE void wgmma_first(float (&d)[128], u64 a, u64 b) {
    asm volatile(WGMMA("256") "{" N128 "}, %128, %129, 0, 1, 1, 0, %130;"
                 : F128("=f", d) : "l"(a), "l"(b), "n"(TRANS_B));
}

// Adds, for each of a tile's 64 columns, the sum over 16 rows: a GEMM of its transpose with ones.
// All eight columns of the accumulators get the same sums.
DEVICE void wgmma_sum_rows(float (&d)[4], u64 a, u64 ones) {
    asm volatile(
        WGMMA("8") "{%0, %1, %2, %3}, %4, %5, 1, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(ones));
}

// Descriptor of 16 rows of eight ones: 256 bytes, not swizzled.
DEVICE u64 ones_desc(u32 addr) {
    return (8ull << 32) | (8ull << 16) | ((addr & 0x3FFFF) >> 4);
}
constexpr u32 BF16_ONES = 0x3F803F80u;

// --- Packed bf16 pairs and shared memory

DEVICE u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DEVICE float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float bf16_high(u32 pair) { return __uint_as_float(pair & 0xFFFF0000u); }
DEVICE float dot_bf16(u32 a, u32 b) {
    return bf16_low(a) * bf16_low(b) + bf16_high(a) * bf16_high(b);
}
DEVICE float dot_bf16(uint4 a, uint4 b) {
    return dot_bf16(a.x, b.x) + dot_bf16(a.y, b.y) + dot_bf16(a.z, b.z) + dot_bf16(a.w, b.w);
}
// Sum over the four threads that share a row of the accumulators.
DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}
DEVICE u32 ld_shared(u32 addr) {
    u32 r;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(r) : "r"(addr));
    return r;
}
DEVICE uint2 ld_shared2(u32 addr) {
    uint2 r;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "r"(addr));
    return r;
}
DEVICE float2 ld_shared_float2(u32 addr) {
    uint2 r = ld_shared2(addr);
    return make_float2(__uint_as_float(r.x), __uint_as_float(r.y));
}
DEVICE uint4 ld_shared4(u32 addr) {
    uint4 r;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(addr));
    return r;
}
DEVICE void st_shared(u32 addr, u32 value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(addr), "r"(value) : "memory");
}
// Address of this thread's 16 bytes of columns 16 k to 16 k + 15 of a swizzled tile.
DEVICE u32 swizzled_addr(u32 addr, int k) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    return addr + row * 128 + (((2 * k + lane / 16) ^ (row & 7)) << 4);
}
// Stores the accumulators of a warpgroup as bf16: eight numbers of each thread, or a 64 x 64 tile.
DEVICE void stmatrix_columns(u32 addr, int k, const u32* pairs) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(swizzled_addr(addr, k)), FOUR(pairs) : "memory");
}
DEVICE void stmatrix_tile(u32 addr, const u32 (&pairs)[16]) {
#pragma unroll
    for (int k = 0; k < 4; k++) stmatrix_columns(addr, k, pairs + 4 * k);
}
// The inverse of both.
DEVICE void ldmatrix_columns(u32 addr, int k, u32* pairs) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(swizzled_addr(addr, k)) : "memory");
}
DEVICE void ldmatrix_tile(u32 addr, u32 (&pairs)[16]) {
#pragma unroll
    for (int k = 0; k < 4; k++) ldmatrix_columns(addr, k, pairs + 4 * k);
}
// Accumulators of a 64 x 64 tile plus bias, packed; `bias` is the address for the first two
// columns.
DEVICE void add_bias_tile(const float* z, u32 bias, u32* pairs) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float* quad = z + 4 * j;
        float2 b = ld_shared_float2(bias + 8 * j * 4);
        pairs[2 * j] = pack_bf16(quad[0] + b.x, quad[1] + b.y);
        pairs[2 * j + 1] = pack_bf16(quad[2] + b.x, quad[3] + b.y);
    }
}

// --- Consumer warpgroups, bytes of a TMA box, and how kernels are declared

constexpr int WARPGROUPS = 2, BOX_BYTES = 64 * 64 * 2;
#define KERNEL extern "C" __global__ void __launch_bounds__((WARPGROUPS + 1) * 128, 1)
#define MAP const __grid_constant__ TensorMap
