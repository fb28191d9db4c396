// The gates of all steps at once: what x adds to them, before any step; and all of them once more, where
// h and c of all steps are known.
//
//   ax = x W_ihᵀ + b_ih + b_hh        a = ax + h_before W_hhᵀ + what c adds
//
// Products over r, a row of a step, of which there are T B. Work split: a block has a tile of results
// (tile_sums.cuh).
//
// gates: T x B rows of 4H in the arithmetic's type. Other tensors are as v0_cell.cu has them. C: the
// columns of x.
#include "lstm.cuh"
#include "tile_sums.cuh"

using namespace lab;

constexpr int THREADS = SumTile::THREADS, TILE = SumTile::TILE, EACH = SumTile::EACH;

// Weight n0 + n of input k, of a matrix of G x C.
template <class T> struct Rows {
    const T* w;
    int n0, G, C;

    __device__ __forceinline__ math_t<T> operator()(int k, int n) const {
        return k < C && n0 + n < G ? to_math(w[(n0 + n) * 1ll * C + k]) : math_t<T>(0);
    }
};

// ANCHOR: projection
// ax, of an sLSTM in the type itself. A grid of T B / 32 x 4H / 32 blocks, rounded up.
template <class T, class Gates = math_t<T>>
__global__ void __launch_bounds__(THREADS)
    projection(const T* __restrict__ x, const T* __restrict__ weight_ih,
               const T* __restrict__ bias_ih, const T* __restrict__ bias_hh,
               Gates* __restrict__ ax, int rows, int G, int C, int biased) {
    using M = math_t<T>;
    int m0 = blockIdx.x * TILE, n0 = blockIdx.y * TILE, n = n0 + threadIdx.x % TILE;
    M sum[EACH] = {};
    auto x_of = [&](int m, int k) {
        return m0 + m < rows && k < C ? to_math(x[(m0 + m) * 1ll * C + k]) : M(0);
    };
    SumTile::product<false, false>(sum, C, x_of, Rows<T>{weight_ih, n0, G, C});
    if (biased && n < G) {
        M bias = to_math(bias_ih[n]) + to_math(bias_hh[n]);
#pragma unroll
        for (int e = 0; e < EACH; ++e) sum[e] += bias;
    }
    SumTile::store(sum, ax, m0, n, rows, G);
}
// ANCHOR_END: projection

// The same in the type itself, with the gates of a unit side by side, as v3_tensor.cu reads it: T B rows of H x 4.
template <class T>
__global__ void __launch_bounds__(THREADS)
    projection_by_units(const T* __restrict__ x, const T* __restrict__ weight_ih, const T* __restrict__ bias_ih,
                        const T* __restrict__ bias_hh, T* __restrict__ ax, int rows, int H, int C, int biased) {
    using M = math_t<T>;
    int m0 = blockIdx.x * TILE, n0 = blockIdx.y * TILE, n = n0 + threadIdx.x % TILE;
    M sum[EACH] = {};
    auto x_of = [&](int m, int k) {
        return m0 + m < rows && k < C ? to_math(x[(m0 + m) * 1ll * C + k]) : M(0);
    };
    SumTile::product<false, false>(sum, C, x_of, Rows<T>{weight_ih, n0, 4 * H, C});
    if (n >= 4 * H) return;
    M bias = biased ? to_math(bias_ih[n]) + to_math(bias_hh[n]) : M(0);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        int r = m0 + SumTile::own_row(e);
        if (r < rows) ax[(r * 1ll * H + n % H) * 4 + n / H] = from_math<T>(sum[e] + bias);
    }
}

// The gates of all steps once more, where the forward pass has left but h and c: a tile of a, from x and
// the h before, then what c adds and the gates' functions. `together`: the gates of a unit lie side by side, as
// v5_wgmma.cu leaves them. A grid of T B / 32 x 4H / 32 blocks, rounded up.
template <class T>
__global__ void __launch_bounds__(THREADS)
    gates_again(const T* __restrict__ x, const T* __restrict__ weight_ih,
                const T* __restrict__ weight_hh, const T* __restrict__ bias_ih,
                const T* __restrict__ bias_hh, const T* __restrict__ peephole_i,
                const T* __restrict__ peephole_f, const T* __restrict__ peephole_o,
                const T* __restrict__ h0, const T* __restrict__ c0, const int* __restrict__ lengths,
                const T* __restrict__ y, const math_t<T>* __restrict__ c,
                math_t<T>* __restrict__ gates, int rows, int B, int H, int C, int stride,
                int column, int state, int reverse, int biased, int peephole,
                int together) {
    using M = math_t<T>;
    Steps steps{lengths, reverse != 0};
    Hidden<T> hidden{h0 + state * 1ll * B * H, y + column, B, H, stride};
    int m0 = blockIdx.x * TILE, n0 = blockIdx.y * TILE;
    M sum[EACH] = {};
    auto live = [&](int r) { return r < rows && steps.has(r / B, r % B); };
    auto x_of = [&](int m, int k) {
        return k < C && live(m0 + m) ? to_math(x[(m0 + m) * 1ll * C + k]) : M(0);
    };
    auto h_of = [&](int m, int k) {
        int r = m0 + m;
        return k < H && live(r) ? to_math(hidden.before(steps, r / B, r % B)[k]) : M(0);
    };
    SumTile::product<false, false>(sum, C, x_of, Rows<T>{weight_ih, n0, 4 * H, C});
    SumTile::product<false, false>(sum, H, h_of, Rows<T>{weight_hh, n0, 4 * H, H});
    int n = n0 + threadIdx.x % TILE, g = n / H, j = n % H;
    if (n >= 4 * H) return;
    M bias = biased ? to_math(bias_ih[n]) + to_math(bias_hh[n]) : M(0);
    const T* own_peephole = g == GATE_I ? peephole_i : g == GATE_F ? peephole_f : peephole_o;
    M p = peephole && g != GATE_G ? to_math(own_peephole[j]) : M(0);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        int r = m0 + SumTile::own_row(e), t = r / B, row = r % B;
        if (!live(r)) continue;
        M a = sum[e] + bias;
        if (peephole && g != GATE_G) {
            bool first = g != GATE_O && t == steps.first(row);
            int at = g == GATE_O ? t : steps.before(t);
            a += p * (first ? to_math(c0[(state * 1ll * B + row) * H + j])
                            : c[(at * 1ll * B + row) * H + j]);
        }
        gates[r * 4ll * H + (together ? j * 4 + g : n)] = activation(a, g == GATE_G);
    }
}
