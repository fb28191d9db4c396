// out_c = Σ_r partial_rc, or out_c += Σ_r partial_rc: the last step of a parameter's gradient.
//
// Work split: a block 32 columns, a warp every 32nd row of them. Each thread adds its rows up in their order,
// then each column its warps' sums: the same bits each run.
//
// partial: rows x columns; out: columns.
#include "lab/pack.cuh"

using namespace lab;

constexpr int COLUMNS = 32, WARPS = 32;

__global__ void __launch_bounds__(COLUMNS* WARPS)
    column_sums(const float* __restrict__ partial, float* __restrict__ out, int rows, int columns,
                bool accumulates) {
    __shared__ float sums[WARPS][COLUMNS];
    int lane = threadIdx.x % COLUMNS, warp = threadIdx.x / COLUMNS, c = blockIdx.x * COLUMNS + lane;
    float sum = 0;
    if (c < columns)
        for (int r = warp; r < rows; r += WARPS) sum += partial[r * 1ll * columns + c];
    sums[warp][lane] = sum;
    __syncthreads();  // the first warp reads the sums of all
    if (warp > 0 || c >= columns) return;
    float total = 0;
    for (int w = 0; w < WARPS; ++w) total += sums[w][lane];
    out[c] = accumulates ? out[c] + total : total;
}
