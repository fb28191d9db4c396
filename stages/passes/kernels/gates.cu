// The gates of a vLSTM layer, from columns of a product to the layout that the mixer reads:
//
//     a = pre_rc + bias_c        gate[b, h, s] = cap tanh(a / cap)         r = b S + s,  c = h of i, NH + h of f
//     dpre_rc = dgate[b, h, s] (1 − tanh²(a / cap))                        dbias_c = Σ_r dpre_rc
//
// Work split: a thread a row with all its columns: the row's sector is fetched once, and the threads of a warp
// store neighbouring positions. On the way back each block adds up its 256 rows, lanes first, then warp by warp:
// one partial row a block.
//
// pre, dpre: rows x 2 NH, rows `stride` and `dstride` apart; bias: 2 NH; i, f, di, df: [B, NH, S] in f32;
// partial: blocks x 2 NH.
#include "strip.cuh"

using namespace lab;

constexpr int AT_ONCE = 12;  // columns between two barriers: those of six heads

// a of a row and a column.
template <class P, class T>
__device__ __forceinline__ float with_bias(const P* pre, const T* bias, int c, bool has_bias) {
    return to_math(pre[c]) + (has_bias ? to_math(bias[c]) : 0.0f);
}

// Where gate h of a row lies.
__device__ __forceinline__ long long gate_at(int row, int h, int positions, int heads) {
    return (row / positions * 1ll * heads + h) * positions + row % positions;
}

// ANCHOR: forward
template <class P, class T>
__global__ void __launch_bounds__(PASS_THREADS)
    soft_cap_gates(const P* __restrict__ pre, const T* __restrict__ bias, float* __restrict__ i,
                   float* __restrict__ f, int rows, int positions, int heads, long long stride, float cap,
                   bool has_bias) {
    int r = blockIdx.x * PASS_THREADS + threadIdx.x;
    if (r >= rows) return;
    for (int h = 0; h < heads; ++h) {
        long long to = gate_at(r, h, positions, heads);
        i[to] = cap * tanhf(with_bias(pre + r * stride, bias, h, has_bias) / cap);
        f[to] = cap * tanhf(with_bias(pre + r * stride, bias, heads + h, has_bias) / cap);
    }
}
// ANCHOR_END: forward

template <class P, class T>
__global__ void __launch_bounds__(PASS_THREADS)
    soft_cap_gates_back(const P* __restrict__ pre, const T* __restrict__ bias, const float* __restrict__ di,
                        const float* __restrict__ df, P* __restrict__ dpre, float* __restrict__ partial,
                        int rows, int positions, int heads, long long stride, long long dstride, float cap,
                        bool has_bias) {
    __shared__ float sums[PASS_THREADS / 32][AT_ONCE];
    int r = blockIdx.x * PASS_THREADS + threadIdx.x, columns = 2 * heads;
    long long first = gate_at(r, 0, positions, heads);
    for (int c0 = 0; c0 < columns; c0 += AT_ONCE) {
        float x[AT_ONCE], d[AT_ONCE] = {};
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {  // all are on their way before the first is computed with
            int c = c0 + k;
            if (r >= rows || c >= columns) continue;
            x[k] = with_bias(pre + r * stride, bias, c, has_bias);
            d[k] = c < heads ? di[first + c * 1ll * positions] : df[first + (c - heads) * 1ll * positions];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            if (r >= rows || c0 + k >= columns) continue;
            float t = tanhf(x[k] / cap);
            d[k] *= 1.0f - t * t;
            dpre[r * dstride + c0 + k] = from_math<P>(d[k]);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            if (c0 + k >= columns) break;
            d[k] = warp_reduce(d[k], Add{});
            if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][k] = d[k];
        }
        __syncthreads();  // the sums of all warps are there
        if (int c = c0 + threadIdx.x; threadIdx.x < AT_ONCE && c < columns) {
            float sum = 0;
            for (int w = 0; w < PASS_THREADS / 32; ++w) sum += sums[w][threadIdx.x];
            partial[blockIdx.x * 1ll * columns + c] = sum;
        }
        __syncthreads();  // they are read: those of the next columns may take their place
    }
}
