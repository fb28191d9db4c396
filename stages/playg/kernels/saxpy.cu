// saxpy: out_i = a x_i + y_i
//
// Work split: a grid-stride loop. The grid is as large as the GPU holds, not as the vector is
// long; each thread takes element i, then i + (threads of the grid), and so on. Neighbouring
// threads take neighbouring elements, so that a warp's load is one run of whole sectors.
//
// x, y, out: n elements each.
#include "lab/pack.cuh"

template <class T>
__global__ void saxpy(math_t<T> a, const T* __restrict__ x, const T* __restrict__ y,
                      T* __restrict__ out, unsigned long long n) {
    constexpr int N = Pack<T>::N;
    unsigned long long thread = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    unsigned long long threads = gridDim.x * 1ull * blockDim.x;

    // Whole packs of 16 bytes first.
    for (unsigned long long p = thread; p < n / N; p += threads) {
        Pack<T> xs = load_pack(x + p * N), ys = load_pack(y + p * N);
#pragma unroll
        for (int i = 0; i < N; ++i) ys.v[i] = a * xs.v[i] + ys.v[i];
        store_pack(out + p * N, ys);
    }
    // Then what is left over, less than a pack: one element a thread.
    unsigned long long i = n / N * N + thread;
    if (i < n) out[i] = from_math<T>(a * to_math(x[i]) + to_math(y[i]));
}
