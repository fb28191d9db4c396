// sum: out = Σ_i x_i
//
// Work split: each thread of a grid as large as the GPU holds adds up a stride of x; each block
// adds up its threads; then the blocks' sums must come together. Four ways to do the last two.
//
// x: n elements; sums are f32, or f64 for f64.
#include <cooperative_groups.h>

#include "lab/pack.cuh"
#include "lab/reduce.cuh"

using namespace lab;

// ANCHOR: stride
// This thread's share. Four packs are loaded before the first is used, so that four loads are on
// their way at once.
template <class T, int THREADS>
__device__ __forceinline__ math_t<T> strided_sum(const T* __restrict__ x, unsigned long long n) {
    constexpr int N = Pack<T>::N, AHEAD = 4;
    unsigned long long thread = blockIdx.x * 1ull * THREADS + threadIdx.x;
    unsigned long long threads = gridDim.x * 1ull * THREADS, packs = n / N;
    math_t<T> own = 0;
    unsigned long long p = thread;
    for (; p + (AHEAD - 1) * threads < packs; p += AHEAD * threads) {
        Pack<T> ahead[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) ahead[k] = load_pack(x + (p + k * threads) * N);
#pragma unroll
        for (int k = 0; k < AHEAD; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i) own += ahead[k].v[i];
    }
    for (; p < packs; p += threads) {
        Pack<T> pack = load_pack(x + p * N);
#pragma unroll
        for (int i = 0; i < N; ++i) own += pack.v[i];
    }
    unsigned long long i = packs * N + thread;
    return i < n ? own + to_math(x[i]) : own;
}
// ANCHOR_END: stride

// Block by a tree in shared memory: half of the threads add the other half's values, then a
// quarter, … ; a barrier after each level. partial: one a block; a second launch adds those up.
template <class T, int THREADS>
__global__ void sum_tree(const T* __restrict__ x, math_t<T>* __restrict__ partial,
                         unsigned long long n) {
    __shared__ math_t<T> value[THREADS];
    value[threadIdx.x] = strided_sum<T, THREADS>(x, n);
    __syncthreads();  // all values are written
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) value[threadIdx.x] += value[threadIdx.x + half];
        __syncthreads();  // the next level reads what this one wrote
    }
    if (threadIdx.x == 0) partial[blockIdx.x] = value[0];
}

// Block by shuffles within each warp, then over the warps: two barriers instead of nine.
template <class T, int THREADS>
__global__ void sum_shuffle(const T* __restrict__ x, math_t<T>* __restrict__ partial,
                            unsigned long long n) {
    math_t<T> own = block_reduce<THREADS>(strided_sum<T, THREADS>(x, n), Add{}, math_t<T>(0));
    if (threadIdx.x == 0) partial[blockIdx.x] = own;
}

// Blocks by an atomic. out must be zero before. Which block comes first is nobody's to say, and
// floating-point addition is not associative: the last digits change from run to run.
template <class T, int THREADS>
__global__ void sum_atomic(const T* __restrict__ x, math_t<T>* __restrict__ out,
                           unsigned long long n) {
    math_t<T> own = block_reduce<THREADS>(strided_sum<T, THREADS>(x, n), Add{}, math_t<T>(0));
    if (threadIdx.x == 0) atomicAdd(out, own);
}

// ANCHOR: grid
// Blocks by a grid-wide sync, in the same launch and in the same order each time. The sync needs
// all blocks resident at once: a cooperative launch. partial: one a block.
template <class T, int THREADS>
__global__ void sum(const T* __restrict__ x, math_t<T>* __restrict__ partial,
                    math_t<T>* __restrict__ out, unsigned long long n) {
    using M = math_t<T>;
    M own = block_reduce<THREADS>(strided_sum<T, THREADS>(x, n), Add{}, M(0));
    if (threadIdx.x == 0) partial[blockIdx.x] = own;
    cooperative_groups::this_grid().sync();  // the partial sums of all blocks are written
    if (blockIdx.x != 0) return;

    M total = 0;
    for (unsigned b = threadIdx.x; b < gridDim.x; b += THREADS) total += partial[b];
    total = block_reduce<THREADS>(total, Add{}, M(0));
    if (threadIdx.x == 0) *out = total;
}
// ANCHOR_END: grid
