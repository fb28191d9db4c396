// Products that a warpgroup (four warps) asks for and that are made while it goes on (wgmma, sm_90a). They
// use registers, which the threads may touch only before a fence and after a wait, and shared memory, which
// they read in the async proxy. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/wgmma.cuh"

using namespace lab;

// Most kernels multiply A [64, 16] by B [16, 8], of halves. B is stored by columns, [8, 16].
constexpr int A_CELLS = 64 * 16, B_CELLS = 8 * 16;

// Where a tile of so many rows of A, or columns of B, has element (row, k). No swizzle: a chunk of 16 bytes
// along k of each row, one below the other; then the next chunk of each row.
template <class T> __device__ int at(int row, int k, int rows) {
    constexpr int CELLS = 16 / sizeof(T);
    return (k / CELLS * rows + row) * CELLS + k % CELLS;
}

template <class T> __device__ unsigned long long tile_of(const T* tile, int rows) {
    return descriptor<16>(tile, 16 * rows, 128);
}

// Plain stores of x [rows, ks] into a tile. Nobody knows of them yet.
template <class T> __device__ void store_tile(T* tile, const T* x, int rows, int ks) {
    for (int i = threadIdx.x; i < rows * ks; i += blockDim.x) tile[at<T>(i / ks, i % ks, rows)] = x[i];
}

// Both operands of one product, for products of all threads to see.
__device__ void store_operands(__half* a, __half* b, const __half* A, const __half* B) {
    store_tile(a, A, 64, 16);
    store_tile(b, B, 8, 16);
    fence_proxy_async();
    __syncthreads();  // all of both tiles is written, and fenced
}

// A [64, 16] as registers.
__device__ void load_fragment(unsigned (&a)[4], const __half* A) {
    const unsigned* words = reinterpret_cast<const unsigned*>(A);  // [64, 8]
    int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, word = threadIdx.x % 4;
    for (int r = 0; r < 4; ++r) a[r] = words[(row + r % 2 * 8) * 8 + word + r / 2 * 4];
}

// The warpgroup's share of C [64, 2 COUNT].
template <int COUNT> __device__ void store_sums(float* C, const float (&d)[COUNT]) {
    int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < COUNT; ++i)
        C[(row + i % 4 / 2 * 8) * 2 * COUNT + i / 4 * 8 + column + i % 2] = d[i];
}

// Barriers of so many arrivals. The block and copies know of them.
__device__ void make_barriers(Mbarrier* bars, int count, unsigned arrivals) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < count; ++i) mbarrier_init(&bars[i], arrivals);
        mbarrier_fence_init();
    }
    __syncthreads();
}

// ---- registers: wrong -----------------------------------------------------------------------------

// Asked for is not done.
__global__ void wgmma_read_before_wait(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_read_before_wait
    wgmma_commit();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];  // BUG wgmma_read_before_wait
    wgmma_wait<0>();
}
// Two groups; the wait lets the latest go on, whose sums are read.
__global__ void wgmma_wait_too_few(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float first[4] = {}, second[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(first, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma<__half, 8>(second, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_wait_too_few
    wgmma_commit();
    wgmma_wait<1>();  // BUG wgmma_wait_too_few
    out[threadIdx.x] = second[0] + second[1];  // BUG wgmma_wait_too_few
    wgmma_wait<0>();
    out[threadIdx.x] += first[0] + first[1];
}
// A product that is in no group is waited for by nobody.
__global__ void wgmma_never_committed(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_never_committed
    wgmma_wait<0>();  // BUG wgmma_never_committed
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];  // BUG wgmma_never_committed
    wgmma_commit();
    wgmma_wait<0>();
}
// The threads clear the sums; nothing says that this comes before the product.
__global__ void wgmma_unfenced_sums(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float d[4];
    for (int i = 0; i < 4; ++i) d[i] = threadIdx.x;  // BUG wgmma_unfenced_sums
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_unfenced_sums
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// The fence comes before the threads set the sums.
__global__ void wgmma_fence_too_early(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float d[4];
    wgmma_fence();  // BUG wgmma_fence_too_early
    for (int i = 0; i < 4; ++i) d[i] = threadIdx.x;  // BUG wgmma_fence_too_early
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_fence_too_early
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// Nobody has set the sums to which the product is added.
__global__ void wgmma_sums_never_set(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float d[4];  // BUG wgmma_sums_never_set
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_sums_never_set
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];  // BUG wgmma_sums_never_set
}
// The fence comes before A is loaded into registers.
__global__ void wgmma_unfenced_fragment(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half b[B_CELLS];
    store_tile(b, B, 8, 16);
    fence_proxy_async();
    __syncthreads();
    float d[4] = {};
    unsigned a[4];
    wgmma_fence();  // BUG wgmma_unfenced_fragment
    load_fragment(a, A);  // BUG wgmma_unfenced_fragment
    wgmma<__half, 8>(d, a, tile_of(b, 8));  // BUG wgmma_unfenced_fragment
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// The sums are doubled while the first product is made.
__global__ void wgmma_scaled_before_wait(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_scaled_before_wait
    wgmma_commit();
    for (int i = 0; i < 4; ++i) d[i] *= 2.0f;  // BUG wgmma_scaled_before_wait
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// The sums are doubled between two products: after the first, but with no fence before the second.
__global__ void wgmma_scaled_unfenced(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma_wait<0>();
    for (int i = 0; i < 4; ++i) d[i] *= 2.0f;  // BUG wgmma_scaled_unfenced
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_scaled_unfenced
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// A is negated in its registers while the first product may still read them.
__global__ void wgmma_fragment_overwritten(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half b[B_CELLS];
    store_tile(b, B, 8, 16);
    fence_proxy_async();
    __syncthreads();
    float d[4] = {};
    unsigned a[4];
    load_fragment(a, A);
    wgmma_fence();
    wgmma<__half, 8>(d, a, tile_of(b, 8));  // BUG wgmma_fragment_overwritten
    wgmma_commit();
    for (int r = 0; r < 4; ++r) a[r] ^= 0x80008000;  // BUG wgmma_fragment_overwritten
    wgmma_wait<0>();
    wgmma_fence();
    wgmma<__half, 8>(d, a, tile_of(b, 8));
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

// ---- registers: right -----------------------------------------------------------------------------

// One product. Its sums are added to nothing.
template <class T> __global__ void wgmma_product(const T* A, const T* B, float* C) {
    constexpr int KS = 32 / sizeof(T);  // 16 halves, or 8 floats
    __align__(128) __shared__ T a[64 * KS], b[8 * KS];
    store_tile(a, A, 64, KS);
    store_tile(b, B, 8, KS);
    fence_proxy_async();
    __syncthreads();
    float d[4];
    wgmma_fence();
    wgmma<T, 8>(d, tile_of(a, 64), tile_of(b, 8), false);
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, d);
}
// A comes from registers, other ones for each product.
__global__ void wgmma_fragments(const __half* A, const __half* B, float* C) {
    __align__(128) __shared__ __half b[B_CELLS];
    store_tile(b, B, 8, 16);
    fence_proxy_async();
    __syncthreads();
    float d[4] = {};
    unsigned a[4];
    for (int k = 0; k < 2; ++k) {
        load_fragment(a, A + k * A_CELLS);
        wgmma_fence();
        wgmma<__half, 8>(d, a, tile_of(b, 8));
        wgmma_commit();
        wgmma_wait<0>();
    }
    store_sums(C, d);
}
// Two groups; the first one's sums are read while the second goes on.
__global__ void wgmma_two_groups(const __half* A, const __half* B, float* C) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float first[4] = {}, second[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    wgmma_fence();
    wgmma<__half, 8>(first, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma<__half, 8>(second, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma_wait<1>();
    store_sums(C, first);
    wgmma_wait<0>();
    store_sums(C + 64 * 8, second);
}
// Other sums are set while a product is made. The fence is for them, and does not wait.
__global__ void wgmma_set_meanwhile(const __half* A, const __half* B, float* C) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float first[4] = {}, second[4];
    wgmma_fence();
    wgmma<__half, 8>(first, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    for (int i = 0; i < 4; ++i) second[i] = 1.0f;
    wgmma_fence();
    wgmma<__half, 8>(second, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, first);
    store_sums(C + 64 * 8, second);
}
// Two groups add to the same sums. The second needs neither a wait nor a fence: nobody else touches them.
__global__ void wgmma_groups_of_same_sums(const __half* A, const __half* B, float* C) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, d);
}
// The sums are doubled between two products: after a wait, before a fence.
__global__ void wgmma_scaled_between(const __half* A, const __half* B, float* C) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    for (int k = 0; k < 2; ++k) {
        for (int i = 0; i < 4; ++i) d[i] *= 2.0f;
        wgmma_fence();
        wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
        wgmma_commit();
        wgmma_wait<0>();
    }
    store_sums(C, d);
}
// (A B) B: the sums of one product are A of the next, which takes them from registers as they lie there.
__global__ void wgmma_chain(const __half* A, const __half* B, float* C) {
    __align__(128) __shared__ __half a[A_CELLS], b[16 * 16];
    store_tile(a, A, 64, 16);
    store_tile(b, B, 16, 16);
    fence_proxy_async();
    __syncthreads();
    float first[8] = {}, second[8] = {};
    wgmma_fence();
    wgmma<__half, 16>(first, tile_of(a, 64), tile_of(b, 16));
    wgmma_commit();
    wgmma_wait<0>();
    unsigned packed[4];
    for (int r = 0; r < 4; ++r) {
        unsigned low = __half_as_ushort(__float2half(first[2 * r]));
        unsigned high = __half_as_ushort(__float2half(first[2 * r + 1]));
        packed[r] = high << 16 | low;
    }
    wgmma_fence();
    wgmma<__half, 16>(second, packed, tile_of(b, 16));
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, second);
}

// ---- operands that threads store: wrong -----------------------------------------------------------

// A is stored behind the fence. The products may see what was there before.
__global__ void wgmma_unfenced_A(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_tile(b, B, 8, 16);
    fence_proxy_async();  // BUG wgmma_unfenced_A
    for (int i = threadIdx.x; i < 64 * 16; i += 128)
        a[at<__half>(i / 16, i % 16, 64)] = A[i];  // BUG wgmma_unfenced_A
    __syncthreads();
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_unfenced_A
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// The fence of registers is none of memory: B is not fenced.
__global__ void wgmma_unfenced_B(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half b[B_CELLS];
    for (int i = threadIdx.x; i < 8 * 16; i += 128)
        b[at<__half>(i / 16, i % 16, 8)] = B[i];  // BUG wgmma_unfenced_B
    __syncthreads();
    float d[4] = {};
    unsigned a[4];
    load_fragment(a, A);
    wgmma_fence();  // BUG wgmma_unfenced_B
    wgmma<__half, 8>(d, a, tile_of(b, 8));  // BUG wgmma_unfenced_B
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// One thread fences before it knows of what the others have stored.
__global__ void wgmma_fenced_by_one_writer(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half b[B_CELLS];
    int t = threadIdx.x;
    b[at<__half>(t / 16, t % 16, 8)] = B[t];  // BUG wgmma_fenced_by_one_writer
    if (t == 0) fence_proxy_async();  // BUG wgmma_fenced_by_one_writer
    __syncthreads();
    float d[4] = {};
    unsigned a[4];
    load_fragment(a, A);
    wgmma_fence();
    wgmma<__half, 8>(d, a, tile_of(b, 8));  // BUG wgmma_fenced_by_one_writer
    wgmma_commit();
    wgmma_wait<0>();
    out[t] = d[0] + d[1] + d[2] + d[3];
}
// The first warp fences behind the barrier. The others go on without it: no fence lies between the stores
// and their parts of the product.
__global__ void wgmma_fenced_by_one_warp(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half b[B_CELLS];
    int t = threadIdx.x;
    b[at<__half>(t / 16, t % 16, 8)] = B[t];  // BUG wgmma_fenced_by_one_warp
    __syncthreads();
    if (t < 32) fence_proxy_async();  // BUG wgmma_fenced_by_one_warp
    float d[4] = {};
    unsigned a[4];
    load_fragment(a, A);
    wgmma_fence();
    wgmma<__half, 8>(d, a, tile_of(b, 8));  // BUG wgmma_fenced_by_one_warp
    wgmma_commit();
    wgmma_wait<0>();
    out[t] = d[0] + d[1] + d[2] + d[3];
}
// The next B comes into the tile while it is multiplied.
__global__ void wgmma_operand_overwritten(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    int t = threadIdx.x;
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_operand_overwritten
    wgmma_commit();
    b[at<__half>(t / 16, t % 16, 8)] = B[B_CELLS + t];  // BUG wgmma_operand_overwritten
    wgmma_wait<0>();
    fence_proxy_async();
    __syncthreads();
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma_wait<0>();
    out[t] = d[0] + d[1] + d[2] + d[3];
}
// Each warpgroup has waited for its own product, not for the other one's, which may still read B.
__global__ void wgmma_other_warpgroup_reads(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    int t = threadIdx.x;
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_other_warpgroup_reads
    wgmma_commit();
    wgmma_wait<0>();  // BUG wgmma_other_warpgroup_reads
    if (t < 128) b[t] = __float2half(0.0f);  // BUG wgmma_other_warpgroup_reads
    out[t] = d[0] + d[1] + d[2] + d[3];
}
// One warp stores A and B and arrives at a barrier for the warpgroup. An arrival is no proxy fence.
__global__ void wgmma_producer_unfenced(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 32);
    if (t >= 128) {
        for (int i = t - 128; i < 64 * 16; i += 32)
            a[at<__half>(i / 16, i % 16, 64)] = A[i];  // BUG wgmma_producer_unfenced
        for (int i = t - 128; i < 8 * 16; i += 32)
            b[at<__half>(i / 16, i % 16, 8)] = B[i];  // BUG wgmma_producer_unfenced
        mbarrier_arrive(&full);  // BUG wgmma_producer_unfenced
        return;
    }
    float d[4] = {};
    mbarrier_wait(&full, 0);
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_producer_unfenced
    wgmma_commit();
    wgmma_wait<0>();
    out[t] = d[0] + d[1] + d[2] + d[3];
}
// A has fewer rows than the product takes.
__global__ void wgmma_of_unwritten_rows(const __half* A, const __half* B, float* out, int rows) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    for (int i = threadIdx.x; i < rows * 16; i += 128) a[at<__half>(i / 16, i % 16, 64)] = A[i];
    store_tile(b, B, 8, 16);
    fence_proxy_async();
    __syncthreads();
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_of_unwritten_rows
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// It reads shared memory only, whatever address it gets.
__global__ void wgmma_of_device_memory(const __half* A, const __half* B, float* out) {
    float d[4] = {};
    unsigned a[4];
    load_fragment(a, A);
    wgmma_fence();
    wgmma<__half, 8>(d, a, descriptor<16>(B, 128, 128));  // BUG wgmma_of_device_memory
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// The descriptor begins a row too late, and so ends one past the block's shared memory.
__global__ void wgmma_past_end(const __half* A, const __half* B, float* out) {
    DYNAMIC_SHARED(__half, b);
    store_tile(b, B, 64, 16);
    fence_proxy_async();
    __syncthreads();
    float d[32] = {};
    unsigned a[4];
    load_fragment(a, A);
    wgmma_fence();
    wgmma<__half, 64>(d, a, tile_of(b + 8, 64));  // BUG wgmma_past_end
    wgmma_commit();
    wgmma_wait<0>();
    float sum = 0.0f;
    for (int i = 0; i < 32; ++i) sum += d[i];
    out[threadIdx.x] = sum;
}
// Leading and stride are swapped: the descriptor looks for groups of 8 columns far behind the tile.
__global__ void wgmma_swapped_strides(const __half* A, const __half* B, float* out) {
    DYNAMIC_SHARED(__half, b);
    store_tile(b, B, 64, 16);
    fence_proxy_async();
    __syncthreads();
    float d[32] = {};
    unsigned a[4];
    load_fragment(a, A);
    unsigned long long of_b = descriptor<16>(b, 128, 16 * 64);  // BUG wgmma_swapped_strides
    wgmma_fence();
    wgmma<__half, 64>(d, a, of_b);  // BUG wgmma_swapped_strides
    wgmma_commit();
    wgmma_wait<0>();
    float sum = 0.0f;
    for (int i = 0; i < 32; ++i) sum += d[i];
    out[threadIdx.x] = sum;
}

// ---- operands that threads store: right -----------------------------------------------------------

// Rows are as long as the swizzle's span: SPAN bytes of k. A product takes 32 of them, the next product the
// 32 bytes behind. (SPAN 16 is no swizzle; one product takes two chunks of each row.)
template <int SPAN> __global__ void wgmma_span(const __half* A, const __half* B, float* C) {
    constexpr int KS = SPAN == 16 ? 16 : SPAN / 2;
    __align__(1024) __shared__ __half a[64 * KS], b[64 * KS];
    auto place = [](int row, int k) {
        if (SPAN == 16) return at<__half>(row, k, 64);
        int chunk = row * KS / 8 + k / 8;  // 16 bytes each; 8 of them are 128 bytes
        return (chunk ^ chunk / 8 % (SPAN / 16)) * 8 + k % 8;
    };
    for (int i = threadIdx.x; i < 64 * KS; i += 128) {
        a[place(i / KS, i % KS)] = A[i];
        b[place(i / KS, i % KS)] = B[i];
    }
    fence_proxy_async();
    __syncthreads();
    unsigned leading = SPAN == 16 ? 16 * 64 : 16;
    unsigned long long of_a = descriptor<SPAN>(a, leading, 8 * SPAN);
    unsigned long long of_b = descriptor<SPAN>(b, leading, 8 * SPAN);
    float d[32];
    wgmma_fence();
    for (int k = 0; k < KS; k += 16)
        wgmma<__half, 64>(d, advance(of_a, 2 * k), advance(of_b, 2 * k), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, d);
}
// A is stored by columns [16, 64], B by rows [16, 64]: both transposed, spans of 128 bytes of a step of k.
__global__ void wgmma_transposed(const __half* A, const __half* B, float* C) {
    __align__(1024) __shared__ __half a[16 * 64], b[16 * 64];
    for (int i = threadIdx.x; i < 16 * 64; i += 128) {
        int k = i / 64, row = i % 64, place = k * 64 + (row / 8 ^ k % 8) * 8 + row % 8;
        a[place] = A[i];
        b[place] = B[i];
    }
    fence_proxy_async();
    __syncthreads();
    float d[32] = {};
    wgmma_fence();
    wgmma<__half, 64, true, true>(d, descriptor<128>(a, 2048, 1024), descriptor<128>(b, 2048, 1024));
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, d);
}
// Several steps of k of operands without a swizzle, each two chunks of all rows further on.
__global__ void wgmma_steps(const __half* A, const __half* B, float* C) {
    __align__(128) __shared__ __half a[64 * 64], b[8 * 64];
    store_tile(a, A, 64, 64);
    store_tile(b, B, 8, 64);
    fence_proxy_async();
    __syncthreads();
    unsigned long long of_a = tile_of(a, 64), of_b = tile_of(b, 8);
    float d[4] = {};
    wgmma_fence();
    for (int k = 0; k < 4; ++k)
        wgmma<__half, 8>(d, advance(of_a, k * 32 * 64), advance(of_b, k * 32 * 8));
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, d);
}
// One thread fences for all, between two barriers: it knows what they have stored, and they that it fenced.
__global__ void wgmma_fenced_between_barriers(const __half* A, const __half* B, float* C) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_tile(a, A, 64, 16);
    store_tile(b, B, 8, 16);
    __syncthreads();
    if (threadIdx.x == 0) fence_proxy_async();
    __syncthreads();
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, d);
}
// Behind the barrier, each thread fences for its own part of the product.
__global__ void wgmma_fenced_by_readers(const __half* A, const __half* B, float* C) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_tile(a, A, 64, 16);
    store_tile(b, B, 8, 16);
    __syncthreads();
    fence_proxy_async();
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, d);
}
// One warp stores A and B, fences, and arrives at a barrier for the warpgroup.
__global__ void wgmma_producer_fenced(const __half* A, const __half* B, float* C) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 32);
    if (t >= 128) {
        for (int i = t - 128; i < 64 * 16; i += 32) a[at<__half>(i / 16, i % 16, 64)] = A[i];
        for (int i = t - 128; i < 8 * 16; i += 32) b[at<__half>(i / 16, i % 16, 8)] = B[i];
        fence_proxy_async();
        mbarrier_arrive(&full);
        return;
    }
    float d[4] = {};
    mbarrier_wait(&full, 0);
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, d);
}
// The threads may read the operands while they are multiplied.
__global__ void wgmma_operand_read_meanwhile(const __half* A, const __half* B, float* C, float* x) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    int t = threadIdx.x;
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
    wgmma_commit();
    x[t] = 2.0f * __half2float(b[at<__half>(t / 16, t % 16, 8)]);
    wgmma_wait<0>();
    store_sums(C, d);
}
// Tiles are stored over those whose product is done. What has read them needs no proxy fence.
__global__ void wgmma_tiles_reused(const __half* A, const __half* B, float* C, int steps) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    float d[4] = {};
    for (int k = 0; k < steps; ++k) {
        store_operands(a, b, A + k * A_CELLS, B + k * B_CELLS);
        wgmma_fence();
        wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();  // all have waited for what reads the tiles
    }
    store_sums(C, d);
}

// ---- operands that copies bring: wrong ------------------------------------------------------------

// AB is slots, one a step of k: a tile of A, and one of B behind it. One copy brings both.
constexpr int SLOT = A_CELLS + B_CELLS;
constexpr unsigned SLOT_BYTES = SLOT * sizeof(__half);

// Three warps wait for the copy, the last one does not.
__global__ void wgmma_full_not_awaited(const __half* AB, float* out) {
    __align__(128) __shared__ __half slot[SLOT];
    __shared__ Mbarrier full;
    for (int i = threadIdx.x; i < SLOT; i += 128) slot[i] = __float2half(0.0f);
    fence_proxy_async();
    make_barriers(&full, 1, 1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&full, SLOT_BYTES);
        bulk_load(slot, AB, SLOT_BYTES, &full);  // BUG wgmma_full_not_awaited
    }
    if (threadIdx.x < 96) mbarrier_wait(&full, 0);  // BUG wgmma_full_not_awaited
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(slot, 64), tile_of(slot + A_CELLS, 8));  // BUG wgmma_full_not_awaited
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
    mbarrier_wait(&full, 0);
}
// A slot is given back when its product has been asked for, not when it is done.
__global__ void wgmma_empty_before_wait(const __half* AB, float* out, int steps) {
    __align__(128) __shared__ __half slots[2][SLOT];
    __shared__ Mbarrier full[2], empty[2];
    make_barriers(full, 2, 1);
    make_barriers(empty, 2, 128);
    if (threadIdx.x >= 128) {
        for (int k = 0; k < steps && threadIdx.x == 128; ++k) {
            mbarrier_wait(&empty[k % 2], k / 2 % 2 ^ 1);
            mbarrier_arrive_expect(&full[k % 2], SLOT_BYTES);
            bulk_load(slots[k % 2], AB + k * SLOT, SLOT_BYTES, &full[k % 2]);  // BUG wgmma_empty_before_wait
        }
        return;
    }
    float d[4] = {};
    for (int k = 0; k < steps; ++k) {
        const __half* a = slots[k % 2];
        mbarrier_wait(&full[k % 2], k / 2 % 2);
        wgmma_fence();
        wgmma<__half, 8>(d, tile_of(a, 64), tile_of(a + A_CELLS, 8));  // BUG wgmma_empty_before_wait
        wgmma_commit();
        mbarrier_arrive(&empty[k % 2]);  // BUG wgmma_empty_before_wait
        wgmma_wait<0>();
    }
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// The wait lets the latest product go on, and its slot is given back instead of the one before.
__global__ void wgmma_empty_too_new(const __half* AB, float* out, int steps) {
    __align__(128) __shared__ __half slots[2][SLOT];
    __shared__ Mbarrier full[2], empty[2];
    make_barriers(full, 2, 1);
    make_barriers(empty, 2, 128);
    if (threadIdx.x >= 128) {
        for (int k = 0; k < steps && threadIdx.x == 128; ++k) {
            mbarrier_wait(&empty[k % 2], k / 2 % 2 ^ 1);
            mbarrier_arrive_expect(&full[k % 2], SLOT_BYTES);
            bulk_load(slots[k % 2], AB + k * SLOT, SLOT_BYTES, &full[k % 2]);  // BUG wgmma_empty_too_new
        }
        return;
    }
    float d[4] = {};
    wgmma_fence();
    for (int k = 0; k < steps; ++k) {
        const __half* a = slots[k % 2];
        mbarrier_wait(&full[k % 2], k / 2 % 2);
        wgmma<__half, 8>(d, tile_of(a, 64), tile_of(a + A_CELLS, 8));  // BUG wgmma_empty_too_new
        wgmma_commit();
        wgmma_wait<1>();  // BUG wgmma_empty_too_new
        mbarrier_arrive(&empty[k % 2]);  // BUG wgmma_empty_too_new
    }
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// Two warpgroups read a slot; it is refilled when one of them has.
__global__ void wgmma_empty_of_one_warpgroup(const __half* AB, float* out, int steps) {
    __align__(128) __shared__ __half slot[SLOT];
    __shared__ Mbarrier full, empty;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    make_barriers(&empty, 1, 1);
    if (t >= 256) {
        for (int k = 0; k < steps && t == 256; ++k) {
            mbarrier_wait(&empty, k % 2 ^ 1);
            mbarrier_arrive_expect(&full, SLOT_BYTES);
            bulk_load(slot, AB + k * SLOT, SLOT_BYTES, &full);  // BUG wgmma_empty_of_one_warpgroup
        }
        return;
    }
    float d[4] = {};
    for (int k = 0; k < steps; ++k) {
        mbarrier_wait(&full, k % 2);
        wgmma_fence();
        unsigned long long of_a = tile_of(slot, 64), of_b = tile_of(slot + A_CELLS, 8);
        wgmma<__half, 8>(d, of_a, of_b);  // BUG wgmma_empty_of_one_warpgroup
        wgmma_commit();
        wgmma_wait<0>();
        if (t == 0) mbarrier_arrive(&empty);  // BUG wgmma_empty_of_one_warpgroup
    }
    out[t] = d[0] + d[1] + d[2] + d[3];
}

// ---- operands that copies bring: right ------------------------------------------------------------

// What a copy brings needs no proxy fence: it came in the async proxy.
__global__ void wgmma_bulk_loaded(const __half* AB, float* C) {
    __align__(128) __shared__ __half slot[SLOT];
    __shared__ Mbarrier full;
    make_barriers(&full, 1, 1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&full, SLOT_BYTES);
        bulk_load(slot, AB, SLOT_BYTES, &full);
    }
    mbarrier_wait(&full, 0);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(slot, 64), tile_of(slot + A_CELLS, 8));
    wgmma_commit();
    wgmma_wait<0>();
    store_sums(C, d);
}
// A warp brings slots, a warpgroup multiplies and gives each back when its product is done.
__global__ void wgmma_ring(const __half* AB, float* C, int steps) {
    __align__(128) __shared__ __half slots[2][SLOT];
    __shared__ Mbarrier full[2], empty[2];
    make_barriers(full, 2, 1);
    make_barriers(empty, 2, 128);
    if (threadIdx.x >= 128) {
        for (int k = 0; k < steps && threadIdx.x == 128; ++k) {
            mbarrier_wait(&empty[k % 2], k / 2 % 2 ^ 1);
            mbarrier_arrive_expect(&full[k % 2], SLOT_BYTES);
            bulk_load(slots[k % 2], AB + k * SLOT, SLOT_BYTES, &full[k % 2]);
        }
        return;
    }
    float d[4] = {};
    for (int k = 0; k < steps; ++k) {
        const __half* a = slots[k % 2];
        mbarrier_wait(&full[k % 2], k / 2 % 2);
        wgmma_fence();
        wgmma<__half, 8>(d, tile_of(a, 64), tile_of(a + A_CELLS, 8));
        wgmma_commit();
        wgmma_wait<0>();
        mbarrier_arrive(&empty[k % 2]);
    }
    store_sums(C, d);
}
// The same; the latest product goes on while the slot of the one before is given back.
__global__ void wgmma_ring_behind(const __half* AB, float* C, int steps) {
    __align__(128) __shared__ __half slots[2][SLOT];
    __shared__ Mbarrier full[2], empty[2];
    make_barriers(full, 2, 1);
    make_barriers(empty, 2, 128);
    if (threadIdx.x >= 128) {
        for (int k = 0; k < steps && threadIdx.x == 128; ++k) {
            mbarrier_wait(&empty[k % 2], k / 2 % 2 ^ 1);
            mbarrier_arrive_expect(&full[k % 2], SLOT_BYTES);
            bulk_load(slots[k % 2], AB + k * SLOT, SLOT_BYTES, &full[k % 2]);
        }
        return;
    }
    float d[4] = {};
    wgmma_fence();
    for (int k = 0; k < steps; ++k) {
        const __half* a = slots[k % 2];
        mbarrier_wait(&full[k % 2], k / 2 % 2);
        wgmma<__half, 8>(d, tile_of(a, 64), tile_of(a + A_CELLS, 8));
        wgmma_commit();
        wgmma_wait<1>();
        if (k > 0) mbarrier_arrive(&empty[(k - 1) % 2]);
    }
    wgmma_wait<0>();
    store_sums(C, d);
}
// Two warpgroups, each with its A, share the slot of B. Of each, one thread arrives: a group is the whole
// warpgroup's, and done when its wait is over.
__global__ void wgmma_two_warpgroups(const __half* A, const __half* Bs, float* C, int steps) {
    __align__(128) __shared__ __half a[2][A_CELLS], b[2][B_CELLS];
    __shared__ Mbarrier full[2], empty[2];
    int t = threadIdx.x, group = t / 128;
    store_tile(a[0], A, 64, 16);
    store_tile(a[1], A + A_CELLS, 64, 16);
    fence_proxy_async();
    make_barriers(full, 2, 1);
    make_barriers(empty, 2, 2);
    if (group == 2) {
        for (int k = 0; k < steps && t == 256; ++k) {
            mbarrier_wait(&empty[k % 2], k / 2 % 2 ^ 1);
            mbarrier_arrive_expect(&full[k % 2], sizeof(b[0]));
            bulk_load(b[k % 2], Bs + k * B_CELLS, sizeof(b[0]), &full[k % 2]);
        }
        return;
    }
    float d[4] = {};
    for (int k = 0; k < steps; ++k) {
        mbarrier_wait(&full[k % 2], k / 2 % 2);
        wgmma_fence();
        wgmma<__half, 8>(d, tile_of(a[group], 64), tile_of(b[k % 2], 8));
        wgmma_commit();
        wgmma_wait<0>();
        if (t % 128 == 0) mbarrier_arrive(&empty[k % 2]);
    }
    store_sums(C + group * 64 * 8, d);
}

// ---- not all together: wrong ----------------------------------------------------------------------

// The last warp has no rows, and does not come.
__global__ void wgmma_skipped_by_one_warp(const __half* A, const __half* B, float* out, int rows) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    int warp = threadIdx.x / 32;
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    if (16 * warp < rows)
        wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_skipped_by_one_warp
    wgmma_commit();  // BUG wgmma_skipped_by_one_warp
    wgmma_wait<0>();  // BUG wgmma_skipped_by_one_warp
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// The last warp has no rows, and leaves early.
__global__ void wgmma_after_exit(const __half* A, const __half* B, float* out, int rows) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    int warp = threadIdx.x / 32;
    store_operands(a, b, A, B);
    if (16 * warp >= rows) return;
    float d[4] = {};
    wgmma_fence();  // BUG wgmma_after_exit
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_after_exit
    wgmma_commit();  // BUG wgmma_after_exit
    wgmma_wait<0>();  // BUG wgmma_after_exit
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// Half of each warp does not come.
__global__ void wgmma_by_half_of_each_warp(const __half* A, const __half* B, float* out, int lanes) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    int lane = threadIdx.x % 32;
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    if (lane < lanes)
        wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_by_half_of_each_warp
    wgmma_commit();  // BUG wgmma_by_half_of_each_warp
    wgmma_wait<0>();  // BUG wgmma_by_half_of_each_warp
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// The first warp leaves. The next four are no warpgroup: one begins at a multiple of 128 threads.
__global__ void wgmma_from_second_warp(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    if (threadIdx.x < 32) return;
    float d[4] = {};
    wgmma_fence();  // BUG wgmma_from_second_warp
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_from_second_warp
    wgmma_commit();  // BUG wgmma_from_second_warp
    wgmma_wait<0>();  // BUG wgmma_from_second_warp
    out[threadIdx.x - 32] = d[0] + d[1] + d[2] + d[3];
}
// Two warps take the first B, two the second: but a product is of one B.
__global__ void wgmma_other_operands(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[2][B_CELLS];
    int warp = threadIdx.x / 32;
    store_tile(b[1], B + B_CELLS, 8, 16);
    store_operands(a, b[0], A, B);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b[warp / 2], 8));  // BUG wgmma_other_operands
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// All warps make both steps of k, one of them in the other order.
__global__ void wgmma_other_order(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[2 * A_CELLS], b[2 * B_CELLS];
    int warp = threadIdx.x / 32;
    store_tile(a, A, 64, 32);
    store_tile(b, B, 8, 32);
    fence_proxy_async();
    __syncthreads();
    unsigned long long of_a = tile_of(a, 64), of_b = tile_of(b, 8);
    float d[4] = {};
    wgmma_fence();
    for (int i = 0; i < 2; ++i) {
        int k = warp == 2 ? 1 - i : i;  // BUG wgmma_other_order
        wgmma<__half, 8>(d, advance(of_a, k * 32 * 64), advance(of_b, k * 32 * 8));  // BUG wgmma_other_order
    }
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// Two warps take B as it is, two take it transposed.
__global__ void wgmma_apart(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    int warp = threadIdx.x / 32;
    store_operands(a, b, A, B);
    float d[4] = {};
    wgmma_fence();
    if (warp < 2) {
        wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_apart
    } else {
        wgmma<__half, 8, false, true>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_apart
    }
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
// The block and its shared memory go while they are multiplied.
__global__ void wgmma_exit_without_wait(const __half* A, const __half* B, float* out) {
    __align__(128) __shared__ __half a[A_CELLS], b[B_CELLS];
    store_operands(a, b, A, B);
    out[threadIdx.x] = 1.0f;
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, tile_of(a, 64), tile_of(b, 8));  // BUG wgmma_exit_without_wait
    wgmma_commit();  // BUG wgmma_exit_without_wait
}
