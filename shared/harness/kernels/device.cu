// What the device layer's own tests launch.
#include <cuda_fp16.h>

#include "lab/shared.cuh"

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
