// The gradients by the peepholes and by the weights and biases of the norms: sums over the rows of all
// steps, element by element.
//
//   dp_i = Σ_r da_i c_before(r)      dp_f likewise      dp_o = Σ_r da_o c_r
//   dw = Σ_r d_r n_r                 db = Σ_r d_r                 of a norm (norm.cuh)
//
// r is a row of a step, T B of them. Work split: a block has 32 columns (tile_sums.cuh).
//
// da: T x B rows of 4H, d and n: of 5H, in the arithmetic's type. Other tensors are as v0_cell.cu has
// them.
#include "lstm.cuh"
#include "tile_sums.cuh"

using namespace lab;

constexpr int THREADS = SumTile::THREADS, TILE = SumTile::TILE;

// di, df, d_o: the dp of each. A grid of H / 32 blocks, rounded up.
template <class T>
__global__ void __launch_bounds__(THREADS)
    peephole_gradient(const math_t<T>* __restrict__ da, const T* __restrict__ c0,
                      const math_t<T>* __restrict__ c, const int* __restrict__ lengths,
                      T* __restrict__ di, T* __restrict__ df, T* __restrict__ d_o, int rows, int B,
                      int H, int state, int reverse) {
    using M = math_t<T>;
    int j = blockIdx.x * TILE + threadIdx.x % TILE;
    Steps steps{lengths, reverse != 0};
    auto seen = [&](int r, bool before) {
        int t = r / B, row = r % B;
        if (!before) return c[r * 1ll * H + j];
        if (t == steps.first(row)) return to_math(c0[(state * 1ll * B + row) * H + j]);
        return c[(steps.before(t) * 1ll * B + row) * H + j];
    };
    M sum[3];
    SumTile::column_sums(sum, rows, [&](M (&own)[3], int r) {
        if (j >= H || !steps.has(r / B, r % B)) return;
        const M* of_gates = da + r * 4ll * H + j;
        M before = seen(r, true);
        own[0] += of_gates[GATE_I * H] * before;
        own[1] += of_gates[GATE_F * H] * before;
        own[2] += of_gates[GATE_O * H] * seen(r, false);
    });
    if (threadIdx.x >= TILE || j >= H) return;
    di[j] = from_math<T>(sum[0]), df[j] = from_math<T>(sum[1]), d_o[j] = from_math<T>(sum[2]);
}

// dw and db of the gates' norms, 4H columns, and of c's behind them. A grid of 5H / 32 blocks, rounded up.
template <class T>
__global__ void __launch_bounds__(THREADS)
    norm_gradient(const math_t<T>* __restrict__ d, const math_t<T>* __restrict__ n,
                  const int* __restrict__ lengths, T* __restrict__ dweight, T* __restrict__ dbias,
                  T* __restrict__ dc_weight, T* __restrict__ dc_bias, int rows, int B, int H) {
    using M = math_t<T>;
    int j = blockIdx.x * TILE + threadIdx.x % TILE;
    Steps steps{lengths, false};
    M sum[2];
    SumTile::column_sums(sum, rows, [&](M (&own)[2], int r) {
        if (j >= 5 * H || !steps.has(r / B, r % B)) return;
        long long at = r * 5ll * H + j;
        own[0] += d[at] * n[at], own[1] += d[at];
    });
    if (threadIdx.x >= TILE || j >= 5 * H) return;
    bool of_c = j >= 4 * H;
    int at = of_c ? j - 4 * H : j;
    (of_c ? dc_weight : dweight)[at] = from_math<T>(sum[0]);
    (of_c ? dc_bias : dbias)[at] = from_math<T>(sum[1]);
}
