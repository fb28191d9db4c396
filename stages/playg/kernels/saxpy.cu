// saxpy: out_i = a x_i + y_i
//
// Work split: a grid-stride loop. The grid is as large as the GPU holds, not as the vector is
// long; each thread takes pack p of 16 bytes, then p + (threads of the grid), and so on.
// Neighbouring threads take neighbouring packs, so that a warp's load is one run of whole sectors.
//
// x, y, out: n elements each.
#include "lab/pack.cuh"

using namespace lab;

// ANCHOR: saxpy
template <class T>
__global__ void saxpy(const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out,
                      math_t<T> a, unsigned long long n) {
    constexpr int N = Pack<T>::N;
    unsigned long long thread = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    unsigned long long threads = gridDim.x * 1ull * blockDim.x;

    for (unsigned long long p = thread; p < n / N; p += threads) {
        Pack<T> xs = load_pack(x + p * N), ys = load_pack(y + p * N);
#pragma unroll
        for (int i = 0; i < N; ++i) ys.v[i] = a * xs.v[i] + ys.v[i];
        store_pack(out + p * N, ys);
    }
    // What is left over is less than a pack: one element a thread.
    unsigned long long i = n / N * N + thread;
    if (i < n) out[i] = from_math<T>(a * to_math(x[i]) + to_math(y[i]));
}
// ANCHOR_END: saxpy
