// A program as people write it: the sum of n ones, a block's part in shared memory. With -D FORGETFUL one
// barrier is missing.
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int THREADS = 128;

template <class T> __global__ void sum_blocks(const T* x, T* sums, int n) {
    extern __shared__ float part[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : T(0);
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
#ifndef FORGETFUL
        __syncthreads();
#endif
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

int main(int count, char** arguments) {
    int n = count > 1 ? atoi(arguments[1]) : 1000;
    int blocks = (n + THREADS - 1) / THREADS;
    std::vector<float> ones(n, 1.0f), sums(blocks);
    float *x, *parts;
    cudaMalloc(&x, n * sizeof(float));
    cudaMalloc(&parts, blocks * sizeof(float));
    cudaMemcpy(x, ones.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    sum_blocks<<<blocks, THREADS, THREADS * sizeof(float)>>>(x, parts, n);
    cudaError_t error = cudaMemcpy(sums.data(), parts, blocks * sizeof(float), cudaMemcpyDeviceToHost);
    if (error != cudaSuccess) return fprintf(stderr, "%s\n", cudaGetErrorString(error)), 1;
    float sum = 0;
    for (float part : sums) sum += part;
    printf("%d ones: %g\n", n, sum);
    cudaFree(x), cudaFree(parts);
    return sum == n ? 0 : 1;
}
