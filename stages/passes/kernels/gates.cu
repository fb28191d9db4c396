// The gates of a vLSTM layer, from columns of a product to the layout that the mixer reads:
//
//     a = pre_rc + bias_c        gate[b, h, s] = cap tanh(a / cap)         r = b S + s,  c = h of i, NH + h of f
//     dpre_rc = dgate[b, h, s] (1 − tanh²(a / cap))                        dbias_c = Σ_r dpre_rc
//
// Work split: a thread a row with all its columns: the row's sector is fetched once, and the threads of a warp
// store neighbouring positions. On the way back each block adds up its 256 rows: one partial row a block.
//
// pre, dpre: rows x 2 NH, rows `stride` and `dstride` apart; bias: 2 NH; i, f, di, df: [B, NH, S] in f32;
// partial: blocks x 2 NH.
#include "strip.cuh"

using namespace lab;

// tanh(a / cap) of a row and a column.
template <class P, class T>
__device__ __forceinline__ float capped_tangent(const P* pre, const T* bias, int c, float cap, bool has_bias) {
    float a = to_math(pre[c]) + (has_bias ? to_math(bias[c]) : 0.0f);
    return tanhf(a / cap);
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
        i[to] = cap * capped_tangent(pre + r * stride, bias, h, cap, has_bias);
        f[to] = cap * capped_tangent(pre + r * stride, bias, heads + h, cap, has_bias);
    }
}
// ANCHOR_END: forward

template <class P, class T>
__global__ void __launch_bounds__(PASS_THREADS)
    soft_cap_gates_back(const P* __restrict__ pre, const T* __restrict__ bias, const float* __restrict__ di,
                        const float* __restrict__ df, P* __restrict__ dpre, float* __restrict__ partial,
                        int rows, int positions, int heads, long long stride, long long dstride, float cap,
                        bool has_bias) {
    int r = blockIdx.x * PASS_THREADS + threadIdx.x;
    for (int c = 0; c < 2 * heads; ++c) {
        float d = 0;
        if (r < rows) {
            float t = capped_tangent(pre + r * stride, bias, c, cap, has_bias);
            const float* of_gate = c < heads ? di : df;
            d = of_gate[gate_at(r, c % heads, positions, heads)] * (1.0f - t * t);
            dpre[r * dstride + c] = from_math<P>(d);
        }
        d = block_reduce<PASS_THREADS>(d, Add{}, 0.0f);
        if (threadIdx.x == 0) partial[blockIdx.x * 2ll * heads + c] = d;
    }
}
