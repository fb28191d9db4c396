// Accesses outside of shared memory and of local copies, and accesses that stay just inside.
#include "lab/ptx/dynamic_shared.cuh"

// One past the end of an array is the start of another: no fault, a wrong number.
__global__ void shared_neighbour(int* out, int shift) {
    __shared__ int before[32], middle[32], after[32];
    int t = threadIdx.x;
    before[t] = middle[t] = after[t] = t;
    __syncthreads();
    middle[t + shift] = -1;  // BUG shared_neighbour
    __syncthreads();
    out[t] = before[t] + middle[t] + after[t];
}
// Past the end of the row is the next row, past the end of the last row is nothing.
__global__ void row_overflow(float* out, int shift) {
    __shared__ float tile[4][8];
    tile[threadIdx.y][threadIdx.x] = 0.0f;
    __syncthreads();
    tile[threadIdx.y][threadIdx.x + shift] = 1.0f;  // BUG row_overflow
    __syncthreads();
    out[8 * threadIdx.y + threadIdx.x] = tile[threadIdx.y][threadIdx.x];
}
// A padded row: the shift ends in the padding.
__global__ void row_with_padding(float* out, int shift) {
    __shared__ float tile[4][9];
    tile[threadIdx.y][threadIdx.x + shift] = 8.0f * threadIdx.y + threadIdx.x;
    __syncthreads();
    out[8 * threadIdx.y + threadIdx.x] = tile[threadIdx.y][threadIdx.x + shift];
}
// The first threads reach to the left of the tile.
__global__ void negative_shared_index(int* out, int shift) {
    __shared__ int tile[64];
    int t = threadIdx.x;
    tile[t] = t;
    __syncthreads();
    out[t] = tile[t - shift];  // BUG negative_shared_index
}
// A halo on both sides, and the tile starts behind the left one.
__global__ void halo(int* out, int shift) {
    __shared__ int padded[64 + 2];
    int* tile = padded + 1;
    int t = threadIdx.x;
    tile[t] = t;
    if (t == 0) tile[-1] = tile[64] = 100;
    __syncthreads();
    out[t] = tile[t - shift] + tile[t + shift];
}
// The launch asked for half of the bytes.
__global__ void dynamic_shared_too_small(float* out) {
    DYNAMIC_SHARED(float, tile);
    tile[threadIdx.x] = threadIdx.x;  // BUG dynamic_shared_too_small
    __syncthreads();
    out[threadIdx.x] = tile[63 - threadIdx.x];  // BUG dynamic_shared_too_small
}
// One piece of memory, two arrays of different types.
__global__ void dynamic_shared_carved(double* out, int n) {
    DYNAMIC_SHARED(double, sums);
    unsigned char* flags = reinterpret_cast<unsigned char*>(sums + n);
    int t = threadIdx.x;
    sums[t] = 0.5 * t, flags[t] = t % 3 == 0;
    __syncthreads();
    int other = n - 1 - t;
    out[t] = flags[other] ? sums[other] : -1.0;
}
// The count is in bytes and one too high.
__global__ void memcpy_too_many(const unsigned char* x, unsigned char* out, int bytes) {
    if (threadIdx.x == 0) memcpy(out, x, bytes);  // BUG memcpy_too_many
}
// The tile is filled past its end.
__global__ void memset_too_many(int* out, int bytes) {
    __shared__ int tile[16];
    if (threadIdx.x == 0) memset(tile, 0, bytes);  // BUG memset_too_many
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}
struct Record {
    int key;
    float value[3];
};
// Structs moved as bytes, each by its owner.
__global__ void struct_memcpy(const float* x, float* out) {
    Record r;
    memcpy(&r, x + 4 * threadIdx.x, sizeof r);
    r.value[0] += 1.0f;
    memcpy(out + 4 * threadIdx.x, &r, sizeof r);
}
// Scalars written, vectors read: the same bytes, aligned.
__global__ void shared_vectors(const float* x, float4* out) {
    __align__(16) __shared__ float tile[128];
    for (int i = threadIdx.x; i < 128; i += blockDim.x) tile[i] = x[i];
    __syncthreads();
    out[threadIdx.x] = *reinterpret_cast<float4*>(&tile[124 - 4 * threadIdx.x]);
}
// A vector of shared memory at an odd word.
__global__ void misaligned_shared(float* out, int offset) {
    __align__(16) __shared__ float tile[64];
    tile[threadIdx.x] = tile[threadIdx.x + 32] = 1.0f;
    __syncthreads();
    float2 v = *reinterpret_cast<float2*>(&tile[threadIdx.x + offset]);  // BUG misaligned_shared
    out[threadIdx.x] = v.x + v.y;
}
// The flag lies before the tile, which asks for no more than a float's alignment: it begins at the second word.
__global__ void vectors_behind_a_flag(const float* x, float4* out) {
    __shared__ int flag;
    __shared__ float tile[128];
    if (threadIdx.x == 0) flag = x[0] > 0.0f;
    for (int i = threadIdx.x; i < 128; i += blockDim.x) tile[i] = x[i];
    __syncthreads();
    float4 v = reinterpret_cast<float4*>(tile)[threadIdx.x];  // BUG vectors_behind_a_flag
    if (flag) v.x = -v.x;
    out[threadIdx.x] = v;
}
// Behind an odd number of words, but the tile asks for what its vectors need.
__global__ void vectors_behind_a_table(const float* x, float4* out) {
    __shared__ float table[3];
    __shared__ __align__(16) float tile[128];
    if (threadIdx.x < 3) table[threadIdx.x] = threadIdx.x;
    for (int i = threadIdx.x; i < 128; i += blockDim.x) tile[i] = x[i];
    __syncthreads();
    float4 v = reinterpret_cast<float4*>(tile)[threadIdx.x];
    v.w += table[threadIdx.x % 3];
    out[threadIdx.x] = v;
}
