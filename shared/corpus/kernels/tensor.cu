// Small matrices of a warp: ldmatrix and mma.sync (sm_80), and wmma.
#include <mma.h>

#include "lab/ptx/cvt.cuh"
#include "lab/ptx/ldmatrix.cuh"
#include "lab/ptx/mma.cuh"

using namespace lab;

using namespace nvcuda;

// ---- right --------------------------------------------------------------------------------------

// Four 8 x 8 matrices side by side, as they are or each transposed; a lane stores what it got.
__global__ void ldmatrix_spreads(const __half* x, float* plain, float* transposed) {
    __align__(16) __shared__ __half tile[4][8][8];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) (&tile[0][0][0])[i] = x[i];
    __syncwarp();
    unsigned a[4], b[4];
    load_matrices(a, tile[lane / 8][lane % 8]);
    load_matrices_transposed(b, tile[lane / 8][lane % 8]);
    for (int m = 0; m < 4; ++m) {
        for (int h = 0; h < 2; ++h) {
            unsigned short of_a = a[m] >> 16 * h, of_b = b[m] >> 16 * h;
            plain[m * 64 + lane * 2 + h] = __half2float(__ushort_as_half(of_a));
            transposed[m * 64 + lane * 2 + h] = __half2float(__ushort_as_half(of_b));
        }
    }
}
// C = A B of 16 x K by K x 8, K as many as one instruction takes: A and B by ldmatrix, where it can.
template <class T> __global__ void mma_product(const T* A, const T* B, float* C) {
    constexpr int K = MMA_K<T>, CELLS = K / 2;
    __align__(16) __shared__ T a[16][K], b[K][8];
    int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    for (int i = lane; i < 16 * K; i += 32) (&a[0][0])[i] = A[i];
    for (int i = lane; i < 8 * K; i += 32) (&b[0][0])[i] = B[i];
    __syncwarp();
    unsigned of_a[4], of_b[4];
    load_matrices(of_a, &a[lane % 16][lane / 16 * CELLS]);
    if constexpr (sizeof(T) == 4) {
        of_b[0] = to_tf32(__float_as_uint(b[t][g]));
        of_b[1] = to_tf32(__float_as_uint(b[t + 4][g]));
    } else {
        load_matrices_transposed(of_b, b[lane % 16]);
    }
    float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    multiply_add<T>(c, of_a, of_b[0], of_b[1]);
    for (int i = 0; i < 4; ++i) C[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}
template <class Layout> constexpr bool is_row_major = false;
template <> constexpr bool is_row_major<wmma::row_major> = true;
// C = 2 A B + 1 of 16 x 2K by 2K x 16, in either layout of each, straight from device memory.
template <class T, int K, class LayoutA, class LayoutB, class E>
__device__ void wmma_tile(const E* A, const E* B, float* C) {
    constexpr bool rows_a = is_row_major<LayoutA>, rows_b = is_row_major<LayoutB>;
    wmma::fragment<wmma::matrix_a, 16, 16, K, T, LayoutA> a;
    wmma::fragment<wmma::matrix_b, 16, 16, K, T, LayoutB> b;
    wmma::fragment<wmma::accumulator, 16, 16, K, float> c;
    wmma::fill_fragment(c, 0.5f);
    for (int k = 0; k < 2 * K; k += K) {
        wmma::load_matrix_sync(a, A + (rows_a ? k : k * 16), rows_a ? 2 * K : 16);
        wmma::load_matrix_sync(b, B + (rows_b ? k * 16 : k), rows_b ? 16 : 2 * K);
        wmma::mma_sync(c, a, b, c);
    }
    for (int i = 0; i < c.num_elements; ++i) c.x[i] *= 2.0f;
    wmma::store_matrix_sync(C, c, 16, wmma::mem_row_major);
}
// Of halves.
__global__ void wmma_half(const __half* A, const __half* At, const __half* B, const __half* Bt,
                          float* C) {
    wmma_tile<__half, 16, wmma::row_major, wmma::row_major>(A, B, C);
    wmma_tile<__half, 16, wmma::row_major, wmma::col_major>(A, Bt, C + 256);
    wmma_tile<__half, 16, wmma::col_major, wmma::row_major>(At, B, C + 512);
    wmma_tile<__half, 16, wmma::col_major, wmma::col_major>(At, Bt, C + 768);
}
// Of the other halves.
__global__ void wmma_bfloat(const __nv_bfloat16* A, const __nv_bfloat16* At, const __nv_bfloat16* B,
                            const __nv_bfloat16* Bt, float* C) {
    wmma_tile<__nv_bfloat16, 16, wmma::row_major, wmma::row_major>(A, B, C);
    wmma_tile<__nv_bfloat16, 16, wmma::row_major, wmma::col_major>(A, Bt, C + 256);
    wmma_tile<__nv_bfloat16, 16, wmma::col_major, wmma::row_major>(At, B, C + 512);
    wmma_tile<__nv_bfloat16, 16, wmma::col_major, wmma::col_major>(At, Bt, C + 768);
}
// Of f32; small integers are TF32 as they are.
__global__ void wmma_tf32(const float* A, const float* At, const float* B, const float* Bt,
                          float* C) {
    using wmma::precision::tf32;
    wmma_tile<tf32, 8, wmma::row_major, wmma::row_major>(A, B, C);
    wmma_tile<tf32, 8, wmma::row_major, wmma::col_major>(A, Bt, C + 256);
    wmma_tile<tf32, 8, wmma::col_major, wmma::row_major>(At, B, C + 512);
    wmma_tile<tf32, 8, wmma::col_major, wmma::col_major>(At, Bt, C + 768);
}
// Sums that are loaded, and stored by columns.
__global__ void wmma_sums(const float* x, float* transposed) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::load_matrix_sync(c, x, 16, wmma::mem_row_major);
    wmma::store_matrix_sync(transposed, c, 16, wmma::mem_col_major);
}

// ---- bugs ---------------------------------------------------------------------------------------

// What a lane got, so that nothing is dropped.
__device__ float sum_of(const unsigned (&r)[4]) {
    float sum = 0.0f;
    for (int m = 0; m < 4; ++m) sum += __half2float(__ushort_as_half(r[m] & 0xffff));
    return sum;
}
// Each lane writes the row that its neighbour's address names. A collective is no fence.
__global__ void ldmatrix_before_syncwarp(const __half* x, float* out) {
    __align__(16) __shared__ __half tile[32][8];
    int lane = threadIdx.x;
    for (int i = 0; i < 8; ++i) tile[lane ^ 1][i] = x[lane * 8 + i];  // BUG ldmatrix_before_syncwarp
    unsigned r[4];
    load_matrices(r, tile[lane]);  // BUG ldmatrix_before_syncwarp
    out[lane] = sum_of(r);
}
// One warp fills the tile, the other reads it.
__global__ void ldmatrix_before_barrier(const __half* x, float* out) {
    __align__(16) __shared__ __half tile[32][8];
    int lane = threadIdx.x % 32;
    if (threadIdx.x < 32)
        for (int i = 0; i < 8; ++i) tile[lane][i] = x[lane * 8 + i];  // BUG ldmatrix_before_barrier
    __syncwarp();
    unsigned r[4];
    load_matrices(r, tile[lane]);  // BUG ldmatrix_before_barrier
    out[threadIdx.x] = sum_of(r);
}
// A tile of 24 rows, loaded as 32.
__global__ void ldmatrix_of_unwritten_rows(const __half* x, float* out, int rows) {
    __align__(16) __shared__ __half tile[32][8];
    int lane = threadIdx.x;
    if (lane < rows)
        for (int i = 0; i < 8; ++i) tile[lane][i] = x[lane * 8 + i];
    __syncwarp();
    unsigned r[4];
    load_matrices(r, tile[lane]);  // BUG ldmatrix_of_unwritten_rows
    out[lane] = sum_of(r);
}
// Rows that are padded by 8 bytes begin at no multiple of 16.
__global__ void ldmatrix_of_padded_rows(const __half* x, float* out) {
    __align__(16) __shared__ __half tile[32][12];
    int lane = threadIdx.x;
    for (int i = 0; i < 12; ++i) tile[lane][i] = x[lane * 8 + i % 8];
    __syncwarp();
    unsigned r[4];
    load_matrices(r, tile[lane]);  // BUG ldmatrix_of_padded_rows
    out[lane] = sum_of(r);
}
// The last row is one past the tile.
__global__ void ldmatrix_past_end(const __half* x, float* out, int shift) {
    __align__(16) __shared__ __half tile[32][8];
    int lane = threadIdx.x;
    for (int i = 0; i < 8; ++i) tile[lane][i] = x[lane * 8 + i];
    __syncwarp();
    unsigned r[4];
    load_matrices(r, tile[0] + (lane + shift) * 8);  // BUG ldmatrix_past_end
    out[lane] = sum_of(r);
}
// It reads shared memory only, whatever address it gets.
__global__ void ldmatrix_of_device_memory(const __half* x, float* out) {
    unsigned r[4];
    load_matrices(r, x + threadIdx.x * 8);  // BUG ldmatrix_of_device_memory
    out[threadIdx.x] = sum_of(r);
}
// The others do not come.
__global__ void mma_by_half_a_warp(const unsigned* x, float* out, int lanes) {
    int lane = threadIdx.x;
    float c[4] = {};
    unsigned a[4] = {x[lane], x[lane], x[lane], x[lane]};
    if (lane < lanes) multiply_add<__half>(c, a, a[0], a[1]);  // BUG mma_by_half_a_warp
    out[lane] = c[0];
}
// Lanes past the end of the data leave early.
__global__ void mma_after_exit(const unsigned* x, float* out, int lanes) {
    int lane = threadIdx.x;
    if (lane >= lanes) return;
    float c[4] = {};
    unsigned a[4] = {x[lane], x[lane], x[lane], x[lane]};
    multiply_add<__half>(c, a, a[0], a[1]);  // BUG mma_after_exit
    out[lane] = c[0];
}
// Each half of the warp has its own.
__global__ void mma_apart(const unsigned* x, float* out, int lanes) {
    int lane = threadIdx.x;
    float c[4] = {};
    unsigned a[4] = {x[lane], x[lane], x[lane], x[lane]};
    if (lane < lanes) {
        multiply_add<__half>(c, a, a[0], a[1]);  // BUG mma_apart
    } else {
        multiply_add<__half>(c, a, a[2], a[3]);  // BUG mma_apart
        c[0] += 1.0f;
    }
    out[lane] = c[0];
}
// A tile that begins at an odd row of 16 bytes.
__global__ void wmma_misaligned(const __half* x, float* out) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 0.0f);
    wmma::load_matrix_sync(a, x + 4, 16);  // BUG wmma_misaligned
    wmma::load_matrix_sync(b, x, 16);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(out, c, 16, wmma::mem_row_major);
}
// Another warp's tile of sums, not waited for.
__global__ void wmma_store_before_barrier(const __half* x, float* out) {
    __align__(32) __shared__ float sums[2][256];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 0.0f);
    wmma::load_matrix_sync(a, x, 16);
    wmma::load_matrix_sync(b, x, 16);
    wmma::mma_sync(c, a, b, c);
    int t = threadIdx.x;
    wmma::store_matrix_sync(sums[t / 32], c, 16, wmma::mem_row_major);  // BUG wmma_store_before_barrier
    for (int i = t; i < 256; i += 64) out[i] = sums[0][i] + sums[1][i];  // BUG wmma_store_before_barrier
}
