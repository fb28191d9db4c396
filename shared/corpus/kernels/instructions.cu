// Single instructions in every form in which their headers (lab/ptx) have them, so that what one of these hands
// on wrongly changes a number or what is found: `lab dev mutate corpus`.
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/cvt.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/order.cuh"
#include "lab/ptx/stmatrix.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/ptx/wgmma.cuh"

using namespace lab;

// ---- wrong --------------------------------------------------------------------------------------

// Who has only arrived has not waited.
__global__ void named_arrival_is_no_wait(const int* x, int* out) {
    __shared__ int box[64];
    int t = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        box[t] = x[t];  // BUG named_arrival_is_no_wait
        named_barrier_arrive(1, 128);
    } else {
        named_barrier_arrive(1, 128);
        out[t] = box[63 - t];  // BUG named_arrival_is_no_wait
    }
}
// Two warpgroups ask for 248 registers where one has given back as many as make 240.
__global__ void __launch_bounds__(384, 1) registers_more_than_there_are(int* out) {
    if (threadIdx.x < 128) registers_decrease<24>();
    else registers_increase<248>();  // BUG registers_more_than_there_are
    out[threadIdx.x] = 1;
}
// One unit less is given back than is asked for.
__global__ void __launch_bounds__(384, 1) registers_too_few_given_back(int* out) {
    if (threadIdx.x < 128) registers_decrease<32>();
    else registers_increase<240>();  // BUG registers_too_few_given_back
    out[threadIdx.x] = 1;
}
// Half of the warp comes, whose other half is somewhere else.
__global__ void elected_by_half_a_warp(int* out) {
    if (threadIdx.x >= 16)
        __syncwarp();  // BUG elected_by_half_a_warp
    else if (elect_one())  // BUG elected_by_half_a_warp
        out[0] = 1;
}

// ---- right --------------------------------------------------------------------------------------

// Words go through shared memory, 1, 2 and 4 at a time; every third piece is outside and comes as zeros.
template <int WORDS> __device__ void pieces(const unsigned* x, unsigned* out) {
    __align__(16) __shared__ unsigned tile[32 * WORDS];
    int t = threadIdx.x;
    for (int i = 0; i < WORDS; ++i) tile[t * WORDS + i] = 7;
    async_copy_or_zero<4 * WORDS>(&tile[t * WORDS], &x[t * WORDS], t % 3 != 0);
    async_commit();
    async_wait<0>();
    for (int i = 0; i < WORDS; ++i) out[t * WORDS + i] = tile[t * WORDS + i];
}
// The same for each of the three sizes.
__global__ void async_pieces_or_zeros(const unsigned* x, unsigned* out) {
    pieces<1>(x, out);
    pieces<2>(x, out + 32);
    pieces<4>(x, out + 96);
}
// The bits of numbers close below, at and above the middle between two TF32, of which 13 are not looked at.
__global__ void tf32_rounds(const unsigned* x, unsigned* out) {
    out[threadIdx.x] = to_tf32(x[threadIdx.x]) & ~0x1FFFu;
}
// Two warps hand rows to two others through one box: out [rounds, 64] has each row of x backwards.
__global__ void named_handover(const int* x, int* out, int rounds) {
    __shared__ int box[64];
    int t = threadIdx.x % 64;
    for (int n = 0; n < rounds; ++n)
        if (threadIdx.x < 64) {
            if (n > 0) named_barrier_sync(2, 128);  // the row before is read
            box[t] = x[n * 64 + t];
            named_barrier_arrive(1, 128);
        } else {
            named_barrier_sync(1, 128);  // the box is full
            out[n * 64 + t] = box[63 - t];
            if (n + 1 < rounds) named_barrier_arrive(2, 128);
        }
}
// Each half arrives where the other waits, and only then waits itself: whoever waited at an arrival would for ever.
__global__ void named_crossed(const int* x, int* out) {
    __shared__ int box[64];
    int t = threadIdx.x, half = t / 32;
    box[t] = x[t];
    named_barrier_arrive(1 + half, 64);
    named_barrier_sync(2 - half, 64);  // the other half's words are there
    out[t] = box[63 - t];
}
// A warpgroup gives registers back, two take all of them.
__global__ void __launch_bounds__(384, 1) registers_handed_over(int* out) {
    if (threadIdx.x < 128) registers_decrease<24>();
    else registers_increase<240>();
    out[threadIdx.x] = threadIdx.x;
}
// How many lanes of each warp are elected, and whether they are the same ones again, in a block of 4 rows of 16.
__global__ void elected_once(int* out) {
    unsigned first = __ballot_sync(0xffffffffu, elect_one());
    unsigned again = __ballot_sync(0xffffffffu, elect_one());
    out[threadIdx.y * 16 + threadIdx.x] = __popc(first) + (first == again ? 10 : 0);
}
// N matrices of 8 x 8 halves, as they are and transposed, of which each lane has its words of `fragments`
// [32, 4]; rows beyond them stay as they were. Each of the two warps does so, in a block of 8 rows of 8 threads.
template <int N> __device__ void matrices(const unsigned* fragments, unsigned* out) {
    __shared__ __align__(16) unsigned short rows[2][64][8];
    int t = threadIdx.y * 8 + threadIdx.x, lane = t % 32;
    unsigned words[N];
    for (int m = 0; m < N; ++m) words[m] = fragments[lane * 4 + m];
    for (int side = 0; side < 2; ++side)
        for (int c = 0; c < 8; ++c) rows[side][t][c] = 7;
    __syncwarp();  // a row is stored by the lane that names it, of words that other lanes have
    store_matrices(rows[0][t], words);
    store_matrices_transposed(rows[1][t], words);
    __syncwarp();  // each row is read by the lane that named it
    for (int side = 0; side < 2; ++side)
        for (int c = 0; c < 8; ++c) out[(side * 64 + t) * 8 + c] = rows[side][t][c];
}
// The same for 1, 2 and 4 matrices.
__global__ void matrices_stored(const unsigned* fragments, unsigned* out) {
    matrices<1>(fragments, out);
    matrices<2>(fragments, out + 1024);
    matrices<4>(fragments, out + 2048);
}
// The fence lets a flag that orders nothing by itself tell the peer that the barrier is there.
__global__ void mbarrier_init_fenced_for_peer(unsigned* flag, int* out) {
    __shared__ Mbarrier met;
    cooperative_groups::this_cluster().sync();
    if (threadIdx.x != 0) return;
    if (cooperative_groups::this_cluster().block_rank() == 0) {
        mbarrier_init(&met, 1);
        mbarrier_fence_init();
        *static_cast<volatile unsigned*>(flag) = 1;
        mbarrier_wait_cluster(&met, 0);
        out[0] = 1;
    } else {
        while (load_acquire(flag) == 0) {}
        mbarrier_arrive_cluster(address_in_block(&met, 0));
    }
}
// Where the byte of a swizzled tile lies that would lie at `plain`, in spans of so many bytes.
__device__ int swizzled(int plain, int span) { return plain ^ (plain / 128 % (span / 16)) * 16; }
// Each sum of a thread, whose warpgroup has 64 x N: its number, its row and its column.
template <int N, class F> __device__ void for_each_sum(F use) {
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
    for (int i = 0; i < N / 2; ++i) use(i, first + i % 4 / 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2);
}
// C [64, 128] = A [64, 16] B [16, 128] of halves: rows of A in spans of 32 bytes, B as it is, in two panels of 64
// columns. What the sums held is not added to.
__global__ void __launch_bounds__(128) wgmma_majors(const __half* A, const __half* B, float* C) {
    DYNAMIC_TILES(unsigned char, memory);
    unsigned char* tile_of_b = memory + 64 * 32;
    for (int i = threadIdx.x; i < 64 * 16; i += 128)
        *reinterpret_cast<__half*>(memory + swizzled(2 * i, 32)) = A[i];
    for (int i = threadIdx.x; i < 16 * 128; i += 128) {
        int k = i / 128, panel = i % 128 / 64, column = i % 64;
        *reinterpret_cast<__half*>(tile_of_b + swizzled(panel * 2048 + k * 128 + column * 2, 128)) = B[i];
    }
    fence_proxy_async();
    __syncthreads();  // both tiles are written, and fenced
    float d[64];
    for (float& sum : d) sum = 5.0f;
    wgmma_fence();
    wgmma<__half, 128, false, true>(d, k_major<32>(memory, 256), mn_major<128>(tile_of_b, 2048, 1024), false);
    wgmma_commit();
    wgmma_wait<0>();
    for_each_sum<128>([&](int i, int row, int column) { C[row * 128 + column] = d[i]; });
}
// C [64, 8] = A [64, 8] B, given by columns [8, 8], of TF32 with more digits than a bfloat16 has; A in registers.
__global__ void __launch_bounds__(128) wgmma_digits(const float* A, const float* B, float* C) {
    __shared__ __align__(1024) unsigned char tile[8 * 32];
    if (threadIdx.x < 64) *reinterpret_cast<float*>(tile + swizzled(4 * threadIdx.x, 32)) = B[threadIdx.x];
    fence_proxy_async();
    __syncthreads();  // the tile is written, and fenced
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
    unsigned a[4];
    for (int r = 0; r < 4; ++r) a[r] = __float_as_uint(A[(first + r % 2 * 8) * 8 + r / 2 * 4 + lane % 4]);
    float d[4] = {5.0f, 5.0f, 5.0f, 5.0f};
    wgmma_fence();
    wgmma<float, 8>(d, a, k_major<32>(tile, 256), false);
    wgmma_commit();
    wgmma_wait<0>();
    for_each_sum<8>([&](int i, int row, int column) { C[row * 8 + column] = d[i]; });
}
