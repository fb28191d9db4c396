// What the device layer's own tests launch.
#include <cooperative_groups.h>
#include <cuda_fp16.h>

#include "lab/fields.cuh"
#include "lab/ptx/dynamic_shared.cuh"

__constant__ float weights[4];
__device__ int offset = 10;

template <class T> __global__ void fill(T* x, T value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = value;
}

template <class T> __global__ void add_to(const T* x, T* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = out[i] + x[i];
}

__global__ void weigh(float* out) {
    out[threadIdx.x] = weights[threadIdx.x % 4] + float(offset);
}

// Threads hand values to each other through dynamic shared memory.
__global__ void reverse(int* x, int n) {
    DYNAMIC_SHARED(int, held);
    held[threadIdx.x] = x[threadIdx.x];
    __syncthreads();  // every value is held
    x[threadIdx.x] = held[n - 1 - threadIdx.x];
}

// A barrier of the whole grid a round: each block has counted one round more than its neighbour had.
__global__ void grid_syncs(int* x, int* y, int rounds) {
    for (int r = 0; r < rounds; ++r) {
        int *from = r % 2 ? y : x, *to = r % 2 ? x : y;
        if (threadIdx.x == 0) to[blockIdx.x] = from[(blockIdx.x + 1) % gridDim.x] + 1;
        cooperative_groups::this_grid().sync();  // the neighbour's count is there, and mine is read
    }
}

// Structs by value: a small one, and as much as every GPU takes.
struct Affine {
    float factor, offset;
    int from[2];
};
LAB_FIELDS(Affine, factor, offset, from)
struct Table {
    float values[1000];
};
LAB_FIELDS(Table, values)

__global__ void apply(const __grid_constant__ Affine affine, const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= affine.from[0] && i < n - affine.from[1]) out[i] = affine.factor * x[i] + affine.offset;
}

__global__ void look_up(const __grid_constant__ Table table, float* out) {
    out[threadIdx.x] = table.values[threadIdx.x];
}
