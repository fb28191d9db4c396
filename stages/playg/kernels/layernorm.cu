// Layer norm (Ba, Kiros & Hinton 2016, arXiv 1607.06450), forward:
//     μ_r = Σ_c x_rc / C,   σ²_r = Σ_c (x_rc − μ_r)² / C
//     out_rc = (x_rc − μ_r) / √(σ²_r + ε) · gamma_c + beta_c
//
// Work split: a block a row, the row in registers. The variance is taken from the differences, in
// a second look at the registers: E[x²] − μ² would subtract two large numbers.
//
// x, out: rows x columns; gamma, beta: columns.
#include "lab/reduce.cuh"
#include "row.cuh"

using namespace lab;

// ANCHOR: layernorm
template <class T, int THREADS, int PACKS, int N>
__global__ void __launch_bounds__(THREADS)
    layernorm(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
              T* __restrict__ out, int columns, float eps) {
    Row<T, THREADS, PACKS, N> row;
    row.load(x + blockIdx.x * 1ull * columns, columns, 0.0f);

    float mean = 0;
    row.for_each_cell(columns, [&](float& v) { mean += v; });
    mean = block_reduce<THREADS>(mean, Add{}, 0.0f) / columns;

    float variance = 0;
    row.for_each_cell(columns, [&](float& v) {
        v -= mean;
        variance += v * v;
    });
    variance = block_reduce<THREADS>(variance, Add{}, 0.0f) / columns;
    float scale = 1.0f / sqrtf(variance + eps);

#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        float weight[N], shift[N];
        row.load_cells(weight, gamma, p, columns, 0.0f);
        row.load_cells(shift, beta, p, columns, 0.0f);
#pragma unroll
        for (int i = 0; i < N; ++i) row.v[p][i] = row.v[p][i] * scale * weight[i] + shift[i];
    }
    row.store(out + blockIdx.x * 1ull * columns, columns);
}
// ANCHOR_END: layernorm
