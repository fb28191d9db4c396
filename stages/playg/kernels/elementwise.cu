// out_i = f(x_i) and out_i = f(x_i, y_i)
//
// Work split: a grid-stride loop over packs of 16 bytes, as in saxpy.cu. The operation is a
// template argument: it is inlined, and every element crosses device memory once each way.
//
// x, y, out: n elements each.
#include "lab/pack.cuh"

using namespace lab;

struct Relu {
    // NaN stays NaN, as in every framework; max(v, 0) would turn it into 0.
    template <class M> __device__ static M apply(M v) { return v < M(0) ? M(0) : v; }
};
struct Sigmoid {
    __device__ static float apply(float v) { return 1.0f / (1.0f + expf(-v)); }
};
struct Tanh {
    __device__ static float apply(float v) { return tanhf(v); }
};
struct Plus {
    template <class M> __device__ static M apply(M a, M b) { return a + b; }
};
struct Times {
    template <class M> __device__ static M apply(M a, M b) { return a * b; }
};

template <class T, class Op>
__global__ void unary(const T* __restrict__ x, T* __restrict__ out, unsigned long long n) {
    constexpr int N = Pack<T>::N;
    unsigned long long thread = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    unsigned long long threads = gridDim.x * 1ull * blockDim.x;
    for (unsigned long long p = thread; p < n / N; p += threads) {
        Pack<T> pack = load_pack(x + p * N);
#pragma unroll
        for (int i = 0; i < N; ++i) pack.v[i] = Op::apply(pack.v[i]);
        store_pack(out + p * N, pack);
    }
    unsigned long long i = n / N * N + thread;
    if (i < n) out[i] = from_math<T>(Op::apply(to_math(x[i])));
}

template <class T, class Op>
__global__ void binary(const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out,
                       unsigned long long n) {
    constexpr int N = Pack<T>::N;
    unsigned long long thread = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    unsigned long long threads = gridDim.x * 1ull * blockDim.x;
    for (unsigned long long p = thread; p < n / N; p += threads) {
        Pack<T> xs = load_pack(x + p * N), ys = load_pack(y + p * N);
#pragma unroll
        for (int i = 0; i < N; ++i) ys.v[i] = Op::apply(xs.v[i], ys.v[i]);
        store_pack(out + p * N, ys);
    }
    unsigned long long i = n / N * N + thread;
    if (i < n) out[i] = from_math<T>(Op::apply(to_math(x[i]), to_math(y[i])));
}
