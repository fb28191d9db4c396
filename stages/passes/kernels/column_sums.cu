// out_c = Σ_r partial_rc, or out_c += Σ_r partial_rc: the last step of a parameter's gradient. Of four parameters at once,
// for a launch takes longer than such a sum.
//
// Work split: a block 32 columns of a parameter, a warp every 32nd row of them. Each thread adds its rows up in their
// order, then each column its warps' sums: the same bits each run.
//
// partial_n: rows_n x columns_n; out_n: columns_n.
#include "lab/pack.cuh"

using namespace lab;

constexpr int COLUMNS = 32, WARPS = 32;

struct Parameter {
    const float* partial;
    float* out;
    int rows, columns;
    bool accumulates;
};

// blockIdx.y: the parameter.
__global__ void __launch_bounds__(COLUMNS* WARPS)
    column_sums(const float* partial0, float* out0, int rows0, int columns0, bool accumulates0,
                const float* partial1, float* out1, int rows1, int columns1, bool accumulates1,
                const float* partial2, float* out2, int rows2, int columns2, bool accumulates2,
                const float* partial3, float* out3, int rows3, int columns3, bool accumulates3) {
    __shared__ float sums[WARPS][COLUMNS];
    Parameter own{partial0, out0, rows0, columns0, accumulates0};
    if (blockIdx.y == 1) own = {partial1, out1, rows1, columns1, accumulates1};
    if (blockIdx.y == 2) own = {partial2, out2, rows2, columns2, accumulates2};
    if (blockIdx.y == 3) own = {partial3, out3, rows3, columns3, accumulates3};
    int lane = threadIdx.x % COLUMNS, warp = threadIdx.x / COLUMNS, c = blockIdx.x * COLUMNS + lane;
    float sum = 0;
    if (c < own.columns)
        for (int r = warp; r < own.rows; r += WARPS) sum += own.partial[r * 1ll * own.columns + c];
    sums[warp][lane] = sum;
    __syncthreads();  // the first warp reads the sums of all
    if (warp > 0 || c >= own.columns) return;
    float total = 0;
    for (int w = 0; w < WARPS; ++w) total += sums[w][lane];
    own.out[c] = own.accumulates ? own.out[c] + total : total;
}
