// Threads that meet in one place of memory without a barrier between them, and threads that do not.
// Two lines that race are both marked.
#include <cuda_fp16.h>

#include "lab/reduce.cuh"

using namespace lab;

// ---- the threads of a block -------------------------------------------------------------------

// Read before all have written.
__global__ void tile_without_barrier(const float* x, float* out) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = x[t];  // BUG tile_without_barrier
    out[t] = tile[63 - t];  // BUG tile_without_barrier
}
// The same with the barrier.
__global__ void tile_with_barrier(const float* x, float* out) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = x[t];
    __syncthreads();
    out[t] = tile[63 - t];
}
// A quick warp fills the next tile while others still read this one.
__global__ void refill_without_barrier(const float* x, float* out, int tiles) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < tiles; ++k) {
        tile[t] = x[64 * k + t];  // BUG refill_without_barrier
        __syncthreads();
        sum += tile[63 - t];  // BUG refill_without_barrier
    }
    out[t] = sum;
}
// Two barriers a tile: one before the reads, one behind them.
__global__ void refill_with_barriers(const float* x, float* out, int tiles) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < tiles; ++k) {
        tile[t] = x[64 * k + t];
        __syncthreads();
        sum += tile[63 - t];
        __syncthreads();
    }
    out[t] = sum;
}
// One barrier a tile is enough for two buffers; this has one.
__global__ void single_buffer(const float* x, float* out, int tiles, int buffers) {
    __shared__ float tile[2][64];
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < tiles; ++k) {
        tile[k % buffers][t] = x[64 * k + t];  // BUG single_buffer
        __syncthreads();
        sum += tile[k % buffers][63 - t];  // BUG single_buffer
    }
    out[t] = sum;
}
// Two buffers: who fills the first again has passed the barrier behind all reads of it.
__global__ void double_buffer(const float* x, float* out, int tiles) {
    __shared__ float tile[2][64];
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < tiles; ++k) {
        tile[k % 2][t] = x[64 * k + t];
        __syncthreads();
        sum += tile[k % 2][63 - t];
    }
    out[t] = sum;
}
// Each level of the tree reads what other warps wrote in the one before.
__global__ void tree_without_barrier(const float* x, float* out) {
    __shared__ float sums[128];
    int t = threadIdx.x;
    sums[t] = x[t];
    __syncthreads();
    for (int d = 64; d > 0; d /= 2)
        if (t < d) sums[t] += sums[t + d];  // BUG tree_without_barrier
    if (t == 0) out[0] = sums[0];
}
// A barrier a level, outside of the branch.
__global__ void tree_with_barriers(const float* x, float* out) {
    __shared__ float sums[128];
    int t = threadIdx.x;
    sums[t] = x[t];
    __syncthreads();
    for (int d = 64; d > 0; d /= 2) {
        if (t < d) sums[t] += sums[t + d];
        __syncthreads();
    }
    if (t == 0) out[0] = sums[0];
}
// The lanes of a warp do not run in step.
__global__ void warp_without_sync(int* out) {
    __shared__ int lanes[32];
    int t = threadIdx.x;
    lanes[t] = t;  // BUG warp_without_sync
    out[t] = lanes[t ^ 1];  // BUG warp_without_sync
}
// A warp needs its own barrier and no more.
__global__ void warp_with_sync(int* out) {
    __shared__ int lanes[4][32];
    int w = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int d = 1; d < 4; ++d) {
        lanes[w][lane] = threadIdx.x * d;
        __syncwarp();
        out[blockDim.x * (d - 1) + threadIdx.x] = lanes[w][lane ^ d];
        __syncwarp();
    }
}
// The warp's barrier where the block's is needed.
__global__ void syncwarp_for_block(int* out) {
    __shared__ int tile[64];
    int t = threadIdx.x;
    tile[t] = t;  // BUG syncwarp_for_block
    __syncwarp();
    out[t] = tile[63 - t];  // BUG syncwarp_for_block
}
// A tile written along rows by one warp, read along columns by the other.
__global__ void transpose_without_barrier(const float* x, float* out) {
    __shared__ float tile[8][9];
    int c = threadIdx.x, r = threadIdx.y;
    tile[r][c] = x[8 * r + c];  // BUG transpose_without_barrier
    out[8 * r + c] = tile[c][r];  // BUG transpose_without_barrier
}
// The same with the barrier.
__global__ void transpose_with_barrier(const float* x, float* out) {
    __shared__ float tile[8][9];
    int c = threadIdx.x, r = threadIdx.y;
    tile[r][c] = x[8 * r + c];
    __syncthreads();
    out[8 * r + c] = tile[c][r];
}
// One vector store meets four scalar reads.
__global__ void vector_against_scalars(const float4* x, float* out) {
    __shared__ float4 tile[64];
    int t = threadIdx.x;
    tile[t] = x[t];  // BUG vector_against_scalars
    const float* scalars = reinterpret_cast<float*>(tile);
    for (int k = 0; k < 4; ++k) out[64 * k + t] = scalars[64 * k + t];  // BUG vector_against_scalars
}
// The value of the next round is there before everyone has read that of this one.
__global__ void broadcast_overwritten(const int* x, int* out, int rounds) {
    __shared__ int value;
    int sum = 0;
    for (int k = 0; k < rounds; ++k) {
        if (threadIdx.x == 0) value = x[k];  // BUG broadcast_overwritten
        __syncthreads();
        sum += value;  // BUG broadcast_overwritten
    }
    out[threadIdx.x] = sum;
}
// A reduction whose partials are free again only behind a barrier that is not there.
__device__ float reduce_unguarded(float v) {
    __shared__ float partial[8];
    v = warp_reduce(v, Add());
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;  // BUG reduce_twice
    __syncthreads();
    float sum = 0.0f;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += partial[w];  // BUG reduce_twice
    return sum;
}
// Once for the sum, and with it once more.
__global__ void reduce_twice(const float* x, float* out) {
    float sum = reduce_unguarded(x[threadIdx.x]);
    out[threadIdx.x] = reduce_unguarded(x[threadIdx.x] * sum);
}
// The lab's own reduction guards its partials.
__global__ void block_reduce_twice(const float* x, float* out) {
    float v = x[threadIdx.x];
    float sum = block_reduce<128>(v, Add(), 0.0f);
    out[threadIdx.x] = sum + block_reduce<128>(v, Max(), 0.0f);
}
// A shared array first of ints, then of halves, with a barrier between.
__global__ void reused_for_another_type(int* out) {
    __align__(4) __shared__ unsigned char bytes[256];
    int* ints = reinterpret_cast<int*>(bytes);
    __half* halves = reinterpret_cast<__half*>(bytes);
    int t = threadIdx.x;
    ints[t] = t;
    __syncthreads();
    int other = ints[63 - t];
    __syncthreads();
    halves[t] = __int2half_rn(other);
    __syncthreads();
    out[t] = int(__half2float(halves[t ^ 1]));
}

// ---- parts of words ---------------------------------------------------------------------------

// Each thread writes its own half and its neighbour's.
__global__ void overlapping_pairs(float* out) {
    __shared__ __half halves[65];
    int t = threadIdx.x;
    halves[t] = __int2half_rn(t);  // BUG overlapping_pairs
    halves[t + 1] = __int2half_rn(-t);  // BUG overlapping_pairs
    __syncthreads();
    out[t] = __half2float(halves[t]);
}
// Neighbouring halves are different places, although one word.
__global__ void neighbouring_halves(__half* out) { out[threadIdx.x] = __int2half_rn(threadIdx.x); }
// A byte set by way of its word takes its neighbours back to what they were.
__global__ void byte_by_word(unsigned* words) {
    int t = threadIdx.x, shift = 8 * (t % 4);
    unsigned word = words[t / 4];  // BUG byte_by_word
    words[t / 4] = (word & ~(0xffu << shift)) | unsigned(t) << shift;  // BUG byte_by_word
}
// Neighbouring bytes in shared memory, each its thread's own.
__global__ void neighbouring_bytes(unsigned* out) {
    __align__(4) __shared__ unsigned char bytes[128];
    bytes[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x < 32) out[threadIdx.x] = reinterpret_cast<unsigned*>(bytes)[threadIdx.x];
}
// Pieces of 16 bytes every 12.
__global__ void overlapping_memcpy(const unsigned char* x, unsigned char* out, int bytes) {
    int start = 12 * threadIdx.x;
    memcpy(out + start, x + 16 * threadIdx.x, bytes);  // BUG overlapping_memcpy
}
// Pieces of 12 bytes every 12.
__global__ void disjoint_memcpy(const unsigned char* x, unsigned char* out, int bytes) {
    int start = 12 * threadIdx.x;
    memcpy(out + start, x + 16 * threadIdx.x, bytes);
}
