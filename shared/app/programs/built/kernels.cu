// Kernels as nvcc has compiled them (kernels.ptx); host.cpp registers and launches them as nvcc's host code does.
//   nvcc -ptx -lineinfo -arch=compute_90 kernels.cu
#include <cstdio>

__constant__ float scale;
__device__ int count = 5;

__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) c[i] = a[i] + b[i];  // one too many
}

struct Range {
    float* x;
    long n, padding[5];
};

__global__ void reverse_scaled(Range range) {
    __shared__ float tile[128];
    extern __shared__ float more[];
    int i = blockIdx.x * 128 + threadIdx.x;
    tile[threadIdx.x] = range.x[i];
    more[threadIdx.x] = scale;
    __syncthreads();
    range.x[i] = tile[127 - threadIdx.x] * more[127 - threadIdx.x];
    atomicAdd(&count, 1);
    if (i == 0) printf("of %ld: %g\n", range.n, range.x[0]);
}
