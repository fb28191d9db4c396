// What needs no order of steps, for all of them at once: what x adds to the gates, and, from da of all
// steps, the gradients by x and the parameters.
//
//   ax = x W_ihᵀ + b_ih + b_hh
//   dx = da W_ih        dW_ih = Σ_r da_rᵀ x_r        dW_hh = Σ_r da_rᵀ h_before(r)
//   db = Σ_r da_r       dp_i = Σ_r da_i c_before(r)   dp_f likewise, dp_o = Σ_r da_o c_r
//
// and of the linear layer on top of the network (head.cu), with r the rows that it reads,
//
//   dW_head = Σ_r dz_rᵀ y_r       db_head = Σ_r dz_r       loss = Σ_r loss_r
//
// r is a row of a step, T B of them. Each sum is one block's, from its first term to its last, so
// that it is the same at every run: nobody adds to what another has written.
//
// Work split: of the products a block has a tile of 32 x 32 results, a thread 4 of them; of the sums
// it has 32 columns, and 8 threads share the rows of each.
//
// da: T x B rows of 4H in the arithmetic's type, zero where a row has no step. The GRU has three gates,
// G = 3H rows of weights, and four da: the third gate's by x and, in the fourth's place, by h. Other tensors are as
// v0_cell.cu has them. C: the columns of x.
#include "lab/lstm.cuh"
#include "lab/progress.cuh"
#include "lab/reduce.cuh"

constexpr int THREADS = 256, TILE = 32, LANES = THREADS / TILE, EACH = TILE / LANES;

// ANCHOR: product
// sum_e = Σ_k a(m, k) b(k, n) for m = ti + 8 e and n = tj, places within the tile. a and b are zero
// outside of their matrices. Neighbouring threads load neighbours: of a along m if ALONG_M, of b
// along n if ALONG_N, else along k.
template <bool ALONG_M, bool ALONG_N, class M, class A, class B>
__device__ __forceinline__ void tile_product(M (&sum)[EACH], int K, A a, B b,
                                             bool wanted = true) {
    __shared__ M as[TILE][TILE + 1], bs[TILE][TILE + 1];  // as[k][m], bs[k][n]
    int ti = threadIdx.x / TILE, tj = threadIdx.x % TILE;
    for (int k0 = 0; k0 < K; k0 += TILE) {
#pragma unroll
        for (int r = ti; r < TILE; r += LANES) {
            if constexpr (ALONG_M) as[r][tj] = a(tj, k0 + r);
            else as[tj][r] = a(r, k0 + tj);
            if constexpr (ALONG_N) bs[r][tj] = b(k0 + r, tj);
            else bs[tj][r] = b(k0 + tj, r);
        }
        __syncthreads();  // a thread multiplies what others have stored
        if (wanted)
            for (int k = 0; k < TILE; ++k)
#pragma unroll
                for (int e = 0; e < EACH; ++e) sum[e] += as[k][ti + LANES * e] * bs[k][tj];
        __syncthreads();  // the tiles are read: the next ones may overwrite them
    }
}
// ANCHOR_END: product

// ANCHOR: projection
// ax. A grid of T B / 32 x 4H / 32 blocks, rounded up.
template <class T>
__global__ void __launch_bounds__(THREADS)
    projection(const T* __restrict__ x, const T* __restrict__ weight_ih,
                    const T* __restrict__ bias_ih, const T* __restrict__ bias_hh,
                    math_t<T>* __restrict__ ax, int rows, int G, int C, int biased) {
    using M = math_t<T>;
    int ti = threadIdx.x / TILE, m0 = blockIdx.x * TILE, n0 = blockIdx.y * TILE;
    M sum[EACH] = {};
    auto x_of = [&](int m, int k) {
        return m0 + m < rows && k < C ? to_math(x[(m0 + m) * 1ll * C + k]) : M(0);
    };
    auto weight = [&](int k, int n) {
        return k < C && n0 + n < G ? to_math(weight_ih[(n0 + n) * 1ll * C + k]) : M(0);
    };
    tile_product<false, false>(sum, C, x_of, weight);
    int n = n0 + threadIdx.x % TILE;
    if (n >= G) return;
    M bias = biased ? to_math(bias_ih[n]) + to_math(bias_hh[n]) : M(0);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        int m = m0 + ti + LANES * e;
        if (m < rows) ax[m * 1ll * G + n] = sum[e] + bias;
    }
}
// ANCHOR_END: projection

// dx of one direction, or of both together. A grid of T B / 32 x C / 32 blocks, rounded up.
template <class T>
__global__ void __launch_bounds__(THREADS)
    input_gradient(const math_t<T>* __restrict__ da, const T* __restrict__ weight_ih,
                        const math_t<T>* __restrict__ da_reverse,
                        const T* __restrict__ weight_ih_reverse, T* __restrict__ dx, int rows,
                        int G, int H, int C, int both) {
    using M = math_t<T>;
    int ti = threadIdx.x / TILE, n = blockIdx.y * TILE + threadIdx.x % TILE;
    int m0 = blockIdx.x * TILE;
    M sum[EACH] = {};
    for (int direction = 0; direction <= both; ++direction) {
        const M* of = direction == 0 ? da : da_reverse;
        const T* w = direction == 0 ? weight_ih : weight_ih_reverse;
        auto da_of = [&](int m, int k) {
            return m0 + m < rows && k < G ? of[(m0 + m) * 4ll * H + k] : M(0);
        };
        auto weight = [&](int k, int) { return k < G && n < C ? to_math(w[k * 1ll * C + n]) : M(0); };
        tile_product<false, true>(sum, G, da_of, weight);
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        int m = m0 + ti + LANES * e;
        if (m < rows && n < C) dx[m * 1ll * C + n] = from_math<T>(sum[e]);
    }
}

// ANCHOR: weights
// A tile of dW, from row `m0` and column `n0` on: of weight_hh if `of_h`, with y as x, else of weight_ih; G
// x C. What a row of the batch holds past its length is not read, be it NaN.
template <class T>
__device__ __forceinline__ void weight_gradient(const math_t<T>* da, const T* x, const T* h0,
                                                const int* lengths, T* dw, int rows, int B, int G,
                                                int H, int C, int m0, int n0, int stride,
                                                int reverse, bool of_h) {
    using M = math_t<T>;
    int ti = threadIdx.x / TILE, n = n0 + threadIdx.x % TILE;
    Steps steps{lengths, reverse != 0};
    Hidden<T> hidden{h0, x, B, H, stride};
    M sum[EACH] = {};
    auto da_of = [&](int m, int r) {
        int n = m0 + m, at = n + (of_h && G < 4 * H && n >= 2 * H ? H : 0);
        return n < G && r < rows ? da[r * 4ll * H + at] : M(0);
    };
    auto input = [&](int r, int) {
        int t = r / B, row = r % B;
        if (r >= rows || n >= C || !steps.has(t, row)) return M(0);
        const T* from = of_h ? hidden.before(steps, t, row) : x + r * 1ll * C;
        return to_math(from[n]);
    };
    tile_product<true, true>(sum, rows, da_of, input, n < C);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        int m = m0 + ti + LANES * e;
        if (m < G && n < C) dw[m * 1ll * C + n] = from_math<T>(sum[e]);
    }
}
// ANCHOR_END: weights

// Σ_r term(r) of a column, in the thread of its first lane: a lane adds up every 8th row, and the
// first adds up the lanes.
template <class M, class Term> __device__ __forceinline__ M column_sum(int rows, Term term) {
    __shared__ M partial[LANES][TILE];
    int lane = threadIdx.x / TILE, n = threadIdx.x % TILE;
    M own = 0;
    for (int r = lane; r < rows; r += LANES) own += term(r);
    partial[lane][n] = own;
    __syncthreads();  // the sums of all lanes are written
    M sum = 0;
    if (lane == 0)
        for (int l = 0; l < LANES; ++l) sum += partial[l][n];
    __syncthreads();  // nobody reads them any more: the next call may write
    return sum;
}

// Both biases, which add up, have the same gradient; but those of the GRU's third gate.
template <class T>
__device__ __forceinline__ void bias_gradient(const math_t<T>* da, T* dbias_ih, T* dbias_hh,
                                              int rows, int G, int H, int n0) {
    int n = n0 + threadIdx.x % TILE;
    auto sum = column_sum<math_t<T>>(
        rows, [&](int r) { return n < 4 * H ? da[r * 4ll * H + n] : math_t<T>(0); });
    if (threadIdx.x >= TILE || n >= 4 * H) return;
    bool third = G < 4 * H && n >= 2 * H;
    if (!third || n < G) dbias_ih[n] = from_math<T>(sum);
    if (!third) dbias_hh[n] = from_math<T>(sum);
    if (third && n >= G) dbias_hh[n - H] = from_math<T>(sum);
}

// The linear layer on top of the network, O of K: its gradients, from `rows` rows of y and of dz.
template <class T> struct Head {
    const math_t<T>* dz;
    const double* row_losses;
    T *dweight, *dbias;
    double* loss;
    int rows, O;

    // A tile of dW, from row m0 and column n0 on.
    __device__ __forceinline__ void by_weight(const T* y, int K, int m0, int n0) const {
        using M = math_t<T>;
        int ti = threadIdx.x / TILE, n = n0 + threadIdx.x % TILE;
        M sum[EACH] = {};
        auto dz_of = [&](int m, int r) {
            return m0 + m < O && r < rows ? dz[r * 1ll * O + m0 + m] : M(0);
        };
        auto y_of = [&](int r, int) {
            return r < rows && n < K ? to_math(y[r * 1ll * K + n]) : M(0);
        };
        tile_product<true, true>(sum, rows, dz_of, y_of, n < K);
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            int m = m0 + ti + LANES * e;
            if (m < O && n < K) dweight[m * 1ll * K + n] = from_math<T>(sum[e]);
        }
    }
    __device__ __forceinline__ void by_bias(int m0) const {
        using M = math_t<T>;
        int o = m0 + threadIdx.x % TILE;
        M sum = column_sum<M>(rows, [&](int r) { return o < O ? dz[r * 1ll * O + o] : M(0); });
        if (threadIdx.x < TILE && o < O) dbias[o] = from_math<T>(sum);
    }
    __device__ __forceinline__ void add_losses() const {
        double sum = 0;
        for (int r = threadIdx.x; r < rows; r += THREADS) sum += row_losses[r];
        sum = block_reduce<THREADS>(sum, Add{}, 0.0);
        if (threadIdx.x == 0) *loss = sum;
    }
};

// The gradients by both matrices and both biases, a block a tile: 4H / 32 by C / 32 for weight_ih, H / 32
// for weight_hh and, where there are biases, one. Behind them, where O is not 0, those of the head, O / 32
// by stride / 32 and one more, and a block for the loss of the step. All rounded up. The head reads
// y from row `from` on, `head_rows` of them.
template <class T>
__global__ void __launch_bounds__(THREADS)
    parameter_gradient(const math_t<T>* __restrict__ da, const T* __restrict__ x,
                       const T* __restrict__ y, const T* __restrict__ h0,
                       const int* __restrict__ lengths, T* __restrict__ dweight_ih,
                       T* __restrict__ dweight_hh, T* __restrict__ dbias_ih,
                       T* __restrict__ dbias_hh, const math_t<T>* __restrict__ dz,
                       const double* __restrict__ row_losses, const long long* __restrict__ counts,
                       T* __restrict__ dhead_weight, T* __restrict__ dhead_bias,
                       double* __restrict__ losses, int rows, int B, int G, int H, int C,
                       int stride, int column, int state, int reverse, int biased, int from,
                       int head_rows, int O) {
    int of_x = (C + TILE - 1) / TILE, of_h = (H + TILE - 1) / TILE, tiles = (4 * H + TILE - 1) / TILE;
    int job = blockIdx.x, of_network = tiles * (of_x + of_h + biased);
    if (job >= of_network) {
        job -= of_network;
        Head<T> head{dz, row_losses, dhead_weight, dhead_bias, losses, head_rows, O};
        int of_y = (stride + TILE - 1) / TILE, m0 = job / (of_y + 1) * TILE, part = job % (of_y + 1);
        if (m0 >= O) {
            head.loss += counts[STEP];
            return head.add_losses();
        }
        if (part == of_y) return head.by_bias(m0);
        return head.by_weight(y + from * 1ll * stride, stride, m0, part * TILE);
    }
    int part = job / tiles, m0 = job % tiles * TILE;
    if (part >= of_x + of_h) return bias_gradient(da, dbias_ih, dbias_hh, rows, G, H, m0);
    bool is_h = part >= of_x;
    weight_gradient(da, is_h ? y + column : x, h0 + state * 1ll * B * H, lengths,
                    is_h ? dweight_hh : dweight_ih, rows, B, G, H, is_h ? H : C, m0,
                    (is_h ? part - of_x : part) * TILE, stride, reverse, is_h);
}

// The gates of all steps once more, where the forward pass has left but h and c: a tile of a, from x and the h
// before, then what c adds and the gates' functions. A grid of T B / 32 x 4H / 32 blocks, rounded up.
template <class T>
__global__ void __launch_bounds__(THREADS)
    gates_again(const T* __restrict__ x, const T* __restrict__ weight_ih,
                const T* __restrict__ weight_hh, const T* __restrict__ bias_ih,
                const T* __restrict__ bias_hh, const T* __restrict__ peephole_i,
                const T* __restrict__ peephole_f, const T* __restrict__ peephole_o,
                const T* __restrict__ h0, const T* __restrict__ c0, const int* __restrict__ lengths,
                const T* __restrict__ y, const math_t<T>* __restrict__ c,
                math_t<T>* __restrict__ gates, int rows, int B, int H, int C, int stride,
                int column, int state, int reverse, int biased, int peephole) {
    using M = math_t<T>;
    Steps steps{lengths, reverse != 0};
    Hidden<T> hidden{h0 + state * 1ll * B * H, y + column, B, H, stride};
    int ti = threadIdx.x / TILE, m0 = blockIdx.x * TILE, n0 = blockIdx.y * TILE;
    M sum[EACH] = {};
    auto live = [&](int r) { return r < rows && steps.has(r / B, r % B); };
    auto x_of = [&](int m, int k) {
        return k < C && live(m0 + m) ? to_math(x[(m0 + m) * 1ll * C + k]) : M(0);
    };
    auto h_of = [&](int m, int k) {
        int r = m0 + m;
        return k < H && live(r) ? to_math(hidden.before(steps, r / B, r % B)[k]) : M(0);
    };
    auto weight = [&](const T* w, int columns) {
        return [=](int k, int n) {
            return k < columns && n0 + n < 4 * H ? to_math(w[(n0 + n) * 1ll * columns + k]) : M(0);
        };
    };
    tile_product<false, false>(sum, C, x_of, weight(weight_ih, C));
    tile_product<false, false>(sum, H, h_of, weight(weight_hh, H));
    int n = n0 + threadIdx.x % TILE, g = n / H, j = n % H;
    if (n >= 4 * H) return;
    M bias = biased ? to_math(bias_ih[n]) + to_math(bias_hh[n]) : M(0);
    const T* own_peephole = g == GATE_I ? peephole_i : g == GATE_F ? peephole_f : peephole_o;
    M p = peephole && g != GATE_G ? to_math(own_peephole[j]) : M(0);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        int r = m0 + ti + LANES * e, t = r / B, row = r % B;
        if (!live(r)) continue;
        M a = sum[e] + bias;
        if (peephole && g != GATE_G) {
            bool first = g != GATE_O && t == steps.first(row);
            int at = g == GATE_O ? t : steps.before(t);
            a += p * (first ? to_math(c0[(state * 1ll * B + row) * H + j])
                            : c[(at * 1ll * B + row) * H + j]);
        }
        gates[r * 4ll * H + n] = activation(a, g == GATE_G);
    }
}

// A grid of H / 32 blocks, rounded up.
template <class T>
__global__ void __launch_bounds__(THREADS)
    peephole_gradient(const math_t<T>* __restrict__ da, const T* __restrict__ c0,
                           const math_t<T>* __restrict__ c, const int* __restrict__ lengths,
                           T* __restrict__ di, T* __restrict__ df, T* __restrict__ d_o, int rows,
                           int B, int H, int state, int reverse) {
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

// The gradients by the weights and biases of a norm: Σ_r d_r n_r and Σ_r d_r, of `columns` behind `from`
// of rows of 5H. A grid of columns / 32 blocks, rounded up.
template <class T>
__global__ void __launch_bounds__(THREADS)
    norm_gradient(const math_t<T>* __restrict__ d, const math_t<T>* __restrict__ n,
                  const int* __restrict__ lengths, T* __restrict__ dweight,
                  T* __restrict__ dbias, int rows, int B, int H, int from, int columns) {
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
