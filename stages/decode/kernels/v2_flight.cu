// y = s (x Wᵀ) + residual of few rows: eight loads of a lane in flight.
//
//     y_rn = s_n Σ_k W_nk x_rk + residual_rn
//
// Work split: a warp has two rows of W and asks for four packs of 16 bytes of each before it uses the first: 4 kB of W in flight,
// where v1_warp has 512 bytes. Both rows use the same columns of x: each pack of x is loaded once for two of W. W goes past the L1
// cache (load_once), which keeps x.
//
// weight: N x K; scale: N; x: R x K; residual: R x N; y: R x N, in parts (cell_of). K is a multiple of 16.
#include "few_rows.cuh"

using namespace lab;

constexpr int THREADS = 256, EACH = 2, DEPTH = 4;  // rows of W of a warp, packs of each in flight

// ANCHOR: flight
template <class T, class W, int ROWS>
__global__ void __launch_bounds__(THREADS)
    few_rows_flight(const W* __restrict__ weight, const float* __restrict__ scale, const T* __restrict__ x,
                    const T* __restrict__ residual, T* __restrict__ y, int R, int N, int K, int has_residual, int p1, int p2,
                    int p3, int p4) {
    constexpr int E = OF_PACK<W>;
    int first = (blockIdx.x * THREADS + threadIdx.x) / 32 * EACH, lane = threadIdx.x % 32;
    if (first >= N) return;
    // A warp whose second row is past the end has the last one twice.
    const W *rows[EACH] = {weight + 1ll * first * K, weight + 1ll * min(first + 1, N - 1) * K};
    float sum[EACH][ROWS] = {};
    for (int k0 = lane * E; k0 < K; k0 += 32 * E * DEPTH) {
        uint4 raw[DEPTH][EACH];
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                int k = k0 + d * 32 * E;
                raw[d][j] = k < K ? load_once(rows[j] + k) : uint4{0, 0, 0, 0};
            }
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            int k = k0 + d * 32 * E;
            if (k >= K) break;
            float w[EACH][E];
#pragma unroll
            for (int j = 0; j < EACH; ++j) widen<W>(w[j], raw[d][j]);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (r >= R) break;
                float v[E];
                load_x(v, x + 1ll * r * K + k);
#pragma unroll
                for (int j = 0; j < EACH; ++j)
#pragma unroll
                    for (int i = 0; i < E; ++i) sum[j][r] += w[j][i] * v[i];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (r >= R) break;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            float all = warp_reduce(sum[j][r], Add{});
            int n = first + j;
            if (lane != 0 || n >= N) continue;
            all *= scale_of<W>(scale, n);
            if (has_residual) all += to_math(residual[1ll * r * N + n]);
            y[cell_of(r, n, R, N, p1, p2, p3, p4)] = from_math<T>(all);
        }
    }
}
// ANCHOR_END: flight
