// Reads of what nobody has written, to the byte, and reads that look like it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "lab/ptx/dynamic_shared.cuh"

// ---- global memory ----------------------------------------------------------------------------

// The buffer was made and never filled.
__global__ void never_written(const float* x, float* out) {
    out[threadIdx.x] = 2.0f * x[threadIdx.x];  // BUG never_written
}
// `+=` on a buffer that starts with nothing.
__global__ void accumulates_in_output(const __nv_bfloat16* x, __nv_bfloat16* out) {
    out[threadIdx.x] = out[threadIdx.x] + x[threadIdx.x];  // BUG accumulates_in_output
}
// Written first, then added to.
__global__ void written_then_added(const __nv_bfloat16* x, __nv_bfloat16* out) {
    int t = threadIdx.x;
    out[t] = x[t];
    out[t] = out[t] + x[t];
}
// An atomic reads, too.
__global__ void counter_never_zeroed(int* counter) {
    atomicAdd(counter, 1);  // BUG counter_never_zeroed
}
// The host zeroed it.
__global__ void counter_zeroed(int* counter) { atomicAdd(counter, 1); }
// The workspace has one element more than there are threads to write it.
__global__ void last_neighbour_missing(double* workspace, double* out) {
    int t = threadIdx.x;
    workspace[t] = t;
    __syncthreads();
    out[t] = workspace[t + 1];  // BUG last_neighbour_missing
}
// The first thread writes the additional element.
__global__ void last_neighbour_written(double* workspace, double* out) {
    int t = threadIdx.x;
    workspace[t] = t;
    if (t == 0) workspace[blockDim.x] = -1.0;
    __syncthreads();
    out[t] = workspace[t + 1];
}
// The upper triangle is written, the whole is read.
__global__ void one_triangle(float* matrix, float* out, int n) {
    int t = threadIdx.x;
    for (int c = t; c < n; ++c) matrix[t * n + c] = 1.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int c = 0; c < n; ++c) sum += matrix[t * n + c];  // BUG one_triangle
    out[t] = sum;
}
// The upper triangle is written and read, the rest left alone.
__global__ void triangle_alone(float* matrix, float* out, int n) {
    int t = threadIdx.x;
    for (int c = t; c < n; ++c) matrix[t * n + c] = 1.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int r = 0; r <= t; ++r) sum += matrix[r * n + t];
    out[t] = sum;
}
// Half of each double is written.
__global__ void low_word_only(double* x, double* out) {
    int t = threadIdx.x;
    reinterpret_cast<unsigned*>(x)[2 * t] = 0;
    __syncthreads();
    out[t] = x[31 - t];  // BUG low_word_only
}
// Both words of each double, by two stores.
__global__ void double_by_words(double* x, double* out) {
    int t = threadIdx.x;
    unsigned* words = reinterpret_cast<unsigned*>(x);
    words[2 * t] = 0, words[2 * t + 1] = 0x3ff00000;
    __syncthreads();
    out[t] = x[31 - t];
}

// ---- shared memory ----------------------------------------------------------------------------

// The last tile is not full, and all of it is summed.
__global__ void ragged_tile(const float* x, float* out, int n) {
    __shared__ float tile[32];
    int i = blockIdx.x * 32 + threadIdx.x;
    if (i < n) tile[threadIdx.x] = x[i];
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < 32; ++k) sum += tile[k];  // BUG ragged_tile
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
// What the data does not fill is zero.
__global__ void ragged_tile_filled(const float* x, float* out, int n) {
    __shared__ float tile[32];
    int i = blockIdx.x * 32 + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < 32; ++k) sum += tile[k];
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
// Nobody sets the sum to zero.
__global__ void shared_accumulator(const float* x, float* out) {
    __shared__ float sum;
    atomicAdd(&sum, x[threadIdx.x]);  // BUG shared_accumulator
    __syncthreads();
    if (threadIdx.x == 0) out[0] = sum;
}
// One thread sets it, a barrier, all add.
__global__ void shared_accumulator_set(const float* x, float* out) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0.0f;
    __syncthreads();
    atomicAdd(&sum, x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = sum;
}
// The thread that should set the start value is not in the block.
__global__ void leader_is_absent(const int* x, int* out, int leader) {
    __shared__ int best;
    if (int(threadIdx.x) == leader) best = 0;
    __syncthreads();
    atomicMax(&best, x[threadIdx.x]);  // BUG leader_is_absent
    __syncthreads();
    if (threadIdx.x == 0) out[0] = best;
}
// Twice as much is read as is written.
__global__ void dynamic_shared_unwritten(float* out) {
    DYNAMIC_SHARED(float, tile);
    int t = threadIdx.x;
    tile[t] = 1.0f;
    __syncthreads();
    out[t] = tile[t] + tile[t + blockDim.x];  // BUG dynamic_shared_unwritten
}
// The low halves are written, the pairs are read.
__global__ void low_half_only(__half2* out) {
    __align__(4) __shared__ __half pairs[64];
    int t = threadIdx.x;
    pairs[2 * t] = __int2half_rn(t);
    __syncwarp();
    out[t] = *reinterpret_cast<__half2*>(&pairs[2 * t]);  // BUG low_half_only
}
// Each half by another thread, then the pairs.
__global__ void both_halves(__half2* out) {
    __align__(4) __shared__ __half pairs[64];
    int t = threadIdx.x;
    pairs[t] = __int2half_rn(t), pairs[t + 32] = __int2half_rn(t + 32);
    __syncwarp();
    out[t] = *reinterpret_cast<__half2*>(&pairs[2 * t]);
}
// Three bytes of the word.
__global__ void three_of_four_bytes(unsigned* out, int written) {
    __align__(4) __shared__ unsigned char bytes[128];
    int t = threadIdx.x;
    for (int b = 0; b < written; ++b) bytes[4 * t + b] = b;
    out[t] = *reinterpret_cast<unsigned*>(&bytes[4 * t]);  // BUG three_of_four_bytes
}
// The column that pads the rows is copied with them.
__global__ void padding_column(float* out) {
    __shared__ float tile[8][9];
    int t = threadIdx.x;
    for (int c = 0; c < 8; ++c) tile[t][c] = c;
    __syncthreads();
    const float* flat = &tile[0][0];
    for (int i = t; i < 72; i += 8) out[i] = flat[i];  // BUG padding_column
}
// The padding is there and stays alone.
__global__ void padding_left_alone(float* out) {
    __shared__ float tile[8][9];
    int t = threadIdx.x;
    for (int c = 0; c < 8; ++c) tile[t][c] = 8 * t + c;
    __syncthreads();
    for (int r = 0; r < 8; ++r) out[8 * r + t] = tile[t][r];
}

// ---- local variables --------------------------------------------------------------------------

// A sum that starts with whatever the register held.
__global__ void local_accumulator(const float* x, float* out, int n) {
    float sum;  // BUG local_accumulator
    for (int i = 0; i < n; ++i) sum += x[i];
    out[threadIdx.x] = sum;
}
// A local array of sums, of which the last are not set.
__global__ void local_array(const int* x, float* out, int n, int set) {
    float sums[8];  // BUG local_array
    for (int k = 0; k < set; ++k) sums[k] = 0.0f;
    for (int i = 0; i < n; ++i) sums[x[i] % 8] += 1.0f;
    for (int k = 0; k < 8; ++k) out[8 * threadIdx.x + k] = sums[k];  // BUG local_array
}
// Sums of which the last is not set are added up: nothing of the last is left but that it was there.
__global__ void local_sums_added(const float* x, float* out, int n, int set) {
    float sums[4];  // BUG local_sums_added
    for (int k = 0; k < set; ++k) sums[k] = 0.0f;
    for (int i = 0; i < n; ++i) sums[i % 4] = sums[i % 4] * 0.5f + x[i];
    out[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];  // BUG local_sums_added
}
// A table that does not fit into registers, of which one row is forgotten; in f64.
__global__ void local_table_added(double* out, int rows) {
    double table[16][8];  // BUG local_table_added
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < 8; ++c) table[r][c] = r + c;
    double sum = 0;
    for (int r = 0; r < 16; ++r) sum += table[r][(r + threadIdx.x) % 8];
    out[threadIdx.x] = sum;  // BUG local_table_added
}
// What is not a number came of the data.
__global__ void not_a_number(const float* x, float* out) {
    float ratios[4];
    for (int k = 0; k < 4; ++k) ratios[k] = x[k] / x[k];
    float sum = ratios[0] + ratios[1] + ratios[2] + ratios[3];
    out[threadIdx.x] = sum;
    if (!(sum == sum)) out[threadIdx.x] = -1.0f;
}
// All of them set.
__global__ void local_array_set(const int* x, float* out, int n) {
    float sums[8];
    for (int k = 0; k < 8; ++k) sums[k] = 0.0f;
    for (int i = 0; i < n; ++i) sums[x[i] % 8] += 1.0f;
    for (int k = 0; k < 8; ++k) out[8 * threadIdx.x + k] = sums[k];
}
// Written as two shorts, read as one word.
__global__ void union_of_halves(unsigned* out, int high) {
    union {
        unsigned word;
        unsigned short half[2];
    } u;
    u.half[0] = threadIdx.x, u.half[1] = high;
    out[threadIdx.x] = u.word;
}
