// The likeliest token of each sequence: tokens[b] = argmax_v logits[b, v], of several the first.
//
// Work split: a block a sequence, a thread 16 bytes at a time. A NaN is never the largest; a row of NaN alone gives token 0.
//
// logits: B x stride, of which the first V are looked at; stride is a multiple of 8.
#include "lab/pack.cuh"
#include "lab/reduce.cuh"

using namespace lab;

constexpr int THREADS = 1024;

struct Found {
    float logit;
    int token;
    __device__ __forceinline__ void join(float other, int at) {
        if (other > logit || (other == logit && at < token)) logit = other, token = at;
    }
};

template <class T>
__global__ void __launch_bounds__(THREADS)
    likeliest(const T* __restrict__ logits, int* __restrict__ tokens, int V, int stride) {
    constexpr int N = Pack<T>::N;
    __shared__ float of_warp[THREADS / 32];
    __shared__ int at_warp[THREADS / 32];
    const T* row = logits + 1ll * blockIdx.x * stride;
    Found found{lowest<float>(), 0x7fffffff};
    for (int v = threadIdx.x * N; v < V; v += THREADS * N) {
        Pack<T> pack = load_pack(row + v);
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (v + i < V) found.join(pack.v[i], v + i);
    }
    for (int d = 16; d > 0; d /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, found.logit, d);
        int at = __shfl_xor_sync(0xffffffffu, found.token, d);
        found.join(other, at);
    }
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = found.logit, at_warp[threadIdx.x / 32] = found.token;
    __syncthreads();  // what each warp has found is there
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / 32; ++w) found.join(of_warp[w], at_warp[w]);
        tokens[blockIdx.x] = found.token < V ? found.token : 0;
    }
}
