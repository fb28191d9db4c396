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

// The same of few rows, which are long: parts of a product's sum. Work split: a thread four columns of all rows.
constexpr int PART_THREADS = 256, FOUR = 4;

__global__ void __launch_bounds__(PART_THREADS)
    part_sums(const float* __restrict__ partial, float* __restrict__ out, int rows, long long columns, bool accumulates) {
    long long c = (blockIdx.x * 1ll * PART_THREADS + threadIdx.x) * FOUR;
    if (c >= columns) return;
    Pack<float> sum = load_pack(partial + c);
    for (int r = 1; r < rows; ++r) {
        Pack<float> more = load_pack(partial + r * columns + c);
#pragma unroll
        for (int i = 0; i < FOUR; ++i) sum.v[i] += more.v[i];
    }
    if (accumulates) {
        Pack<float> before = load_pack(out + c);
#pragma unroll
        for (int i = 0; i < FOUR; ++i) sum.v[i] += before.v[i];
    }
    store_pack(out + c, sum);
}
