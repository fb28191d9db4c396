// sum: out = Σ_i x_i, in one launch
//
// Work split: each thread of a grid as large as the GPU holds adds up a stride of x; each block
// adds up its threads; then the grid meets, and block 0 adds up the blocks. A grid-wide sync needs
// all blocks resident at once: a cooperative launch.
//
// x: n elements; partial: one a block; out: one. Sums are f32, or f64 for f64.
#include <cooperative_groups.h>

#include "lab/pack.cuh"
#include "lab/reduce.cuh"

template <class T, int THREADS>
__global__ void sum(const T* __restrict__ x, math_t<T>* __restrict__ partial,
                    math_t<T>* __restrict__ out, unsigned long long n) {
    constexpr int N = Pack<T>::N;
    using M = math_t<T>;
    unsigned long long thread = blockIdx.x * 1ull * THREADS + threadIdx.x;
    unsigned long long threads = gridDim.x * 1ull * THREADS;

    M own = 0;
    for (unsigned long long p = thread; p < n / N; p += threads) {
        Pack<T> xs = load_pack(x + p * N);
#pragma unroll
        for (int i = 0; i < N; ++i) own += xs.v[i];
    }
    unsigned long long i = n / N * N + thread;
    if (i < n) own += to_math(x[i]);

    own = block_reduce<THREADS>(own, Add{}, M(0));
    if (threadIdx.x == 0) partial[blockIdx.x] = own;
    cooperative_groups::this_grid().sync();  // the partial sums of all blocks are written
    if (blockIdx.x != 0) return;

    M total = 0;
    for (unsigned b = threadIdx.x; b < gridDim.x; b += THREADS) total += partial[b];
    total = block_reduce<THREADS>(total, Add{}, M(0));
    if (threadIdx.x == 0) *out = total;
}
