// W of int8 as a matrix of T: what products of many rows read.
//
//     to_nk = s_n W_nk
//
// Work split: a thread 16 numbers of a row: 16 bytes of W.
//
// weight, to: N x K; scale: N. K is a multiple of 16.
#include "few_rows.cuh"

using namespace lab;

constexpr int THREADS = 256;

template <class T>
__global__ void __launch_bounds__(THREADS)
    dequantize(const signed char* __restrict__ weight, const float* __restrict__ scale, T* __restrict__ to, long long packs, int K) {
    long long pack = blockIdx.x * 1ll * THREADS + threadIdx.x;
    if (pack >= packs) return;
    float v[16], s = scale[pack * 16 / K];
    widen<signed char>(v, load_once(weight + pack * 16));
    constexpr int E = Pack<T>::N;
#pragma unroll
    for (int p = 0; p < 16 / E; ++p) {
        Pack<T> out;
#pragma unroll
        for (int i = 0; i < E; ++i) out.v[i] = s * v[p * E + i];
        store_pack(to + pack * 16 + p * E, out);
    }
}
