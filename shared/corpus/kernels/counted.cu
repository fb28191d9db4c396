// Kernels whose traffic is known: what the emulator counts of them is held against Nsight Compute.
// Each moves n elements, a thread one of them, unless it says otherwise; blocks have 256 threads.
#include <cuda_fp16.h>

#include "lab/ptx/cvt.cuh"
#include "lab/ptx/ldmatrix.cuh"
#include "lab/ptx/mma.cuh"

using namespace lab;

__device__ int thread_of_grid() { return blockIdx.x * blockDim.x + threadIdx.x; }

// ---- device memory ------------------------------------------------------------------------------

// Neighbours read neighbours: 4 sectors a warp.
__global__ void copy_f32(const float* x, float* out, int n) {
    int i = thread_of_grid();
    if (i < n) out[i] = x[i];
}
// Every second element: twice the sectors.
__global__ void copy_strided(const float* x, float* out, int n) {
    int i = thread_of_grid();
    if (i < n) out[i] = x[2 * i];
}
// From the second element on: one sector more a warp.
__global__ void copy_misaligned(const float* x, float* out, int n) {
    int i = thread_of_grid();
    if (i < n) out[i] = x[i + 1];
}
// 2 bytes a lane: 2 sectors a warp.
__global__ void copy_half(const __half* x, __half* out, int n) {
    int i = thread_of_grid();
    if (i < n) out[i] = x[i];
}
// 16 bytes a lane: 16 sectors in one request.
__global__ void copy_float4(const float4* x, float4* out, int n) {
    int i = thread_of_grid();
    if (i < n) out[i] = x[i];
}
// 8 bytes a lane.
__global__ void copy_double(const double* x, double* out, int n) {
    int i = thread_of_grid();
    if (i < n) out[i] = x[i];
}
// A column of a matrix 32 wide: every lane its own sector.
__global__ void read_columns(const float* x, float* out, int n) {
    int i = thread_of_grid();
    if (i < n) out[i] = x[i % 32 * 32 + i / 32 % 32 + i / 1024 * 1024];
}
// All lanes the same element.
__global__ void read_one(const float* x, float* out, int n) {
    int i = thread_of_grid();
    if (i < n) out[i] = x[i / 32];
}
// Wherever the index says.
__global__ void gather(const float* x, const int* index, float* out, int n) {
    int i = thread_of_grid();
    if (i < n) out[i] = x[index[i]];
}
// Half of the lanes stay away.
__global__ void copy_even(const float* x, float* out, int n) {
    int i = thread_of_grid();
    if (i < n && i % 2 == 0) out[i] = x[i];
}

// ---- shared memory ------------------------------------------------------------------------------

// Each warp writes rows and reads columns: all lanes ask the same bank.
__global__ void shared_columns(const float* x, float* out) {
    __shared__ float tile[32][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int r = warp; r < 32; r += 8) tile[r][lane] = x[blockIdx.x * 1024 + r * 32 + lane];
    __syncthreads();
    for (int r = warp; r < 32; r += 8) out[blockIdx.x * 1024 + r * 32 + lane] = tile[lane][r];
}
// The same with a column more: every lane another bank.
__global__ void shared_padded(const float* x, float* out) {
    __shared__ float tile[32][33];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int r = warp; r < 32; r += 8) tile[r][lane] = x[blockIdx.x * 1024 + r * 32 + lane];
    __syncthreads();
    for (int r = warp; r < 32; r += 8) out[blockIdx.x * 1024 + r * 32 + lane] = tile[lane][r];
}
// 16 bytes a lane, written in order and read in order.
__global__ void shared_float4(const float4* x, float4* out) {
    __shared__ float4 row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[t ^ 32];
}
// 16 bytes a lane, 64 bytes apart: within a quarter of a warp, four lanes meet in a bank.
__global__ void shared_float4_apart(const float4* x, float4* out) {
    __shared__ float4 row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[t % 64 * 4 + t / 64];
}
// 8 bytes a lane.
__global__ void shared_double(const double* x, double* out) {
    __shared__ double row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[255 - t];
}
// 16 bytes a lane, all lanes of a warp the same.
__global__ void shared_float4_one(const float4* x, float4* out) {
    __shared__ float4 row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[t / 32];
}
// 16 bytes a lane, 16 lanes the same: as a tile's row that half a warp multiplies with.
__global__ void shared_float4_halves(const float4* x, float4* out) {
    __shared__ float4 row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[t / 16 * 4];
}
// 16 bytes a lane, quarter by quarter the same.
__global__ void shared_float4_quarters(const float4* x, float4* out) {
    __shared__ float4 row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[t / 8 * 4];
}
// 16 bytes a lane, each for two lanes, which are two apart.
__global__ void shared_float4_two_apart(const float4* x, float4* out) {
    __shared__ float4 row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[t / 4 * 2 + t % 2];
}
// 16 bytes a lane, two different ones in each quarter of a warp, in turns.
__global__ void shared_float4_in_turns(const float4* x, float4* out) {
    __shared__ float4 row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[t / 8 * 2 + t % 2];
}
// ldmatrix of rows that lie side by side.
__global__ void ldmatrix_dense(const float4* x, float4* out) {
    __shared__ float4 row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    unsigned r[4];
    load_matrices(r, &row[t]);
    out[blockIdx.x * 256 + t] = make_float4(__uint_as_float(r[0]), __uint_as_float(r[1]),
                                            __uint_as_float(r[2]), __uint_as_float(r[3]));
}
// ldmatrix of rows that lie 128 bytes apart: all in the same banks.
__global__ void ldmatrix_column(const float4* x, float4* out) {
    __shared__ float4 row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    unsigned r[4];
    load_matrices(r, &row[t % 32 * 8 + t / 32]);
    out[blockIdx.x * 256 + t] = make_float4(__uint_as_float(r[0]), __uint_as_float(r[1]),
                                            __uint_as_float(r[2]), __uint_as_float(r[3]));
}
// 8 bytes a lane, all lanes the same.
__global__ void shared_double_one(const double* x, double* out) {
    __shared__ double row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[t / 32];
}
// 8 bytes a lane, half by half the same.
__global__ void shared_double_halves(const double* x, double* out) {
    __shared__ double row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[t / 16 * 4];
}
// 8 bytes a lane, the second half of the warp as the first.
__global__ void shared_double_twice(const double* x, double* out) {
    __shared__ double row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[t % 16];
}
// Every second word.
__global__ void shared_stride_2(const float* x, float* out) {
    __shared__ float row[512];
    int t = threadIdx.x;
    row[2 * t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[2 * (255 - t)];
}
// Two lanes a word.
__global__ void shared_half(const __half* x, __half* out) {
    __shared__ __half row[256];
    int t = threadIdx.x;
    row[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    out[blockIdx.x * 256 + t] = row[255 - t];
}
// The sum of a block by a tree: fewer and fewer lanes.
__global__ void tree(const float* x, float* out) {
    __shared__ float part[256];
    int t = threadIdx.x;
    part[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

// ---- matrix products, n a multiple of 16 ----------------------------------------------------------

// Neighbours share a row of a and read neighbouring columns of b.
__global__ void matmul_naive(const float* a, const float* b, float* c, int n) {
    int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    float sum = 0.0f;
    for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}
// Through tiles of 16 x 16.
__global__ void matmul_tiled(const float* a, const float* b, float* c, int n) {
    __shared__ float a_tile[16][16];
    __shared__ float b_tile[16][16];
    int x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * 16 + x, row = blockIdx.y * 16 + y;
    float sum = 0.0f;
    for (int k0 = 0; k0 < n; k0 += 16) {
        a_tile[y][x] = a[row * n + k0 + x];
        b_tile[y][x] = b[(k0 + y) * n + column];
        __syncthreads();  // the tiles are there
        for (int k = 0; k < 16; ++k) sum += a_tile[y][k] * b_tile[k][x];
        __syncthreads();  // nobody reads them any more
    }
    c[row * n + column] = sum;
}
