// The gradients by the peepholes and by the weights and biases of the norms: sums over the rows of all
// steps, element by element.
//
//   dp_i = Σ_r da_i c_before(r)      dp_f likewise      dp_o = Σ_r da_o c_r
//   dw = Σ_r d_r n_r                 db = Σ_r d_r                 of a norm (lab/norm.cuh)
//
// r is a row of a step, T B of them. Work split: a block has 32 columns (lab/tile_sums.cuh).
//
// da: T x B rows of 4H, d and n: of 5H, in the arithmetic's type. Other tensors are as v0_cell.cu has
// them.
#include "lab/lstm.cuh"
#include "lab/tile_sums.cuh"

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
    T* out[] = {di, df, d_o};
    int gate[] = {GATE_I, GATE_F, GATE_O};
#pragma unroll
    for (int p = 0; p < 3; ++p) {
        M sum = column_sum<M>(rows, [&](int r) {
            if (j >= H || !steps.has(r / B, r % B)) return M(0);
            return da[(r * 1ll * GATES + gate[p]) * H + j] * seen(r, gate[p] != GATE_O);
        });
        if (threadIdx.x < TILE && j < H) out[p][j] = from_math<T>(sum);
    }
}

// dw and db of `columns` behind `from` of the rows of 5H. A grid of columns / 32 blocks, rounded up.
template <class T>
__global__ void __launch_bounds__(THREADS)
    norm_gradient(const math_t<T>* __restrict__ d, const math_t<T>* __restrict__ n,
                  const int* __restrict__ lengths, T* __restrict__ dweight, T* __restrict__ dbias,
                  int rows, int B, int H, int from, int columns) {
    using M = math_t<T>;
    int j = blockIdx.x * TILE + threadIdx.x % TILE;
    auto of = [&](int r, bool times_n) {
        if (j >= columns || r / B >= lengths[r % B]) return M(0);
        long long at = r * 5ll * H + from + j;
        return times_n ? d[at] * n[at] : d[at];
    };
    M by_weight = column_sum<M>(rows, [&](int r) { return of(r, true); });
    M by_bias = column_sum<M>(rows, [&](int r) { return of(r, false); });
    if (threadIdx.x >= TILE || j >= columns) return;
    dweight[j] = from_math<T>(by_weight), dbias[j] = from_math<T>(by_bias);
}
