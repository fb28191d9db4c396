// The gradients by the weights and biases, from da of all steps, and those of the linear layer on top of
// the network, where one is trained (shared/models/lstm), all in one launch.
//
//   dW_ih = Σ_r da_rᵀ x_r        dW_hh = Σ_r da_rᵀ h_before(r)        db = Σ_r da_r
//   dW_head = Σ_r dz_rᵀ y_r      db_head = Σ_r dz_r                   loss = Σ_r loss_r
//
// r is a row of a step, T B of them; of the head, those that it reads. Work split: a block has a tile of
// a product, or 32 columns of a sum (tile_sums.cuh).
//
// da: T x B rows of 4H in the arithmetic's type, of an sLSTM in the type itself; zero where a row has no
// step. The GRU has three gates, G = 3H rows of weights, and four da: the third gate's by x and, in the
// fourth's place, by h. Other tensors are as v0_cell.cu has them. C: the columns of x.
#include "lstm.cuh"
#include "lab/progress.cuh"
#include "lab/reduce.cuh"
#include "tile_sums.cuh"

using namespace lab;

constexpr int THREADS = SumTile::THREADS, TILE = SumTile::TILE, EACH = SumTile::EACH;

// ANCHOR: weights
// A tile of dW, from row `m0` and column `n0` on: of weight_hh if `of_h`, with y as x, else
// of weight_ih; G x C. What a row of the batch holds past its length is not read, be it NaN.
template <class T, class Gates>
__device__ __forceinline__ void weight_gradient(const Gates* da, const T* x, const T* h0,
                                                const int* lengths, T* dw, int rows, int B, int G,
                                                int H, int C, int m0, int n0, int stride,
                                                int reverse, bool of_h) {
    using M = math_t<T>;
    int n = n0 + threadIdx.x % TILE;
    Steps steps{lengths, reverse != 0};
    Hidden<T> hidden{h0, x, B, H, stride};
    M sum[EACH] = {};
    auto da_of = [&](int m, int r) {
        int n = m0 + m, at = n + (of_h && G < 4 * H && n >= 2 * H ? H : 0);
        return n < G && r < rows ? to_math(da[r * 4ll * H + at]) : M(0);
    };
    auto input = [&](int r, int) {
        int t = r / B, row = r % B;
        if (r >= rows || n >= C || !steps.has(t, row)) return M(0);
        const T* from = of_h ? hidden.before(steps, t, row) : x + r * 1ll * C;
        return to_math(from[n]);
    };
    SumTile::product<true, true>(sum, rows, da_of, input, n < C);
    SumTile::store(sum, dw, m0, n, G, C);
}
// ANCHOR_END: weights

// Both biases, which add up, have the same gradient; but those of the GRU's third gate.
template <class T, class Gates>
__device__ __forceinline__ void bias_gradient(const Gates* da, T* dbias_ih, T* dbias_hh,
                                              int rows, int G, int H, int n0) {
    using M = math_t<T>;
    int n = n0 + threadIdx.x % TILE;
    M sum[1];
    SumTile::column_sums(sum, rows, [&](M (&own)[1], int r) {
        if (n < 4 * H) own[0] += to_math(da[r * 4ll * H + n]);
    });
    if (threadIdx.x >= TILE || n >= 4 * H) return;
    T result = from_math<T>(sum[0]);
    bool third = G < 4 * H && n >= 2 * H;
    if (!third || n < G) dbias_ih[n] = result;
    if (!third) dbias_hh[n] = result;
    if (n >= G) dbias_hh[n - H] = result;
}

// The linear layer on top of the network, O of K: its gradients, from `rows` rows of y and of dz.
template <class T> struct Head {
    const math_t<T>* dz;
    const double* row_losses;
    T *dweight, *dbias;
    double* loss;
    int rows, dz_rows, O;

    // A tile of dW, from row m0 and column n0 on.
    __device__ __forceinline__ void by_weight(const T* y, int K, int m0, int n0) const {
        using M = math_t<T>;
        int n = n0 + threadIdx.x % TILE;
        M sum[EACH] = {};
        auto dz_of = [&](int m, int r) {
            return m0 + m < O && r < rows ? dz[r * 1ll * O + m0 + m] : M(0);
        };
        auto y_of = [&](int r, int) {
            return r < rows && n < K ? to_math(y[r * 1ll * K + n]) : M(0);
        };
        SumTile::product<true, true>(sum, rows, dz_of, y_of, n < K);
        SumTile::store(sum, dweight, m0, n, O, K);
    }
    __device__ __forceinline__ void by_bias(int m0) const {
        using M = math_t<T>;
        int o = m0 + threadIdx.x % TILE;
        M sum[1];
        SumTile::column_sums(sum, dz_rows, [&](M (&own)[1], int r) {
            if (o < O) own[0] += dz[r * 1ll * O + o];
        });
        if (threadIdx.x < TILE && o < O) dbias[o] = from_math<T>(sum[0]);
    }
    __device__ __forceinline__ void add_losses() const {
        double sum = 0;
        for (int r = threadIdx.x; r < rows; r += THREADS) sum += row_losses[r];
        sum = block_reduce<THREADS>(sum, Add{}, 0.0);
        if (threadIdx.x == 0) *loss = sum;
    }
};

// A block a tile: 4H / 32 by C / 32 for weight_ih, H / 32 for weight_hh and, where there are biases, one.
// Behind them, where O is not 0, those of the head, O / 32 by K / 32 and one more, and a block for
// the loss of the step. All rounded up. The grid begins with block `first` of these. The head reads y from row `from` on,
// `head_rows` of them of K columns; where others compute dW, K is 0. dz has `dz_rows` rows: as many, or sums of several.
template <class T, class Gates = math_t<T>>
__global__ void __launch_bounds__(THREADS)
    parameter_gradient(const Gates* __restrict__ da, const T* __restrict__ x,
                       const T* __restrict__ y, const T* __restrict__ h0,
                       const int* __restrict__ lengths, T* __restrict__ dweight_ih,
                       T* __restrict__ dweight_hh, T* __restrict__ dbias_ih,
                       T* __restrict__ dbias_hh, const math_t<T>* __restrict__ dz,
                       const double* __restrict__ row_losses, const long long* __restrict__ counts,
                       T* __restrict__ dhead_weight, T* __restrict__ dhead_bias,
                       double* __restrict__ losses, int rows, int B, int G, int H, int C,
                       int stride, int column, int state, int reverse, int biased, int from,
                       int head_rows, int dz_rows, int K, int O, int first) {
    int of_x = (C + TILE - 1) / TILE, of_h = (H + TILE - 1) / TILE, tiles = (4 * H + TILE - 1) / TILE;
    int job = first + blockIdx.x, of_network = tiles * (of_x + of_h + biased);
    if (job >= of_network) {
        job -= of_network;
        Head<T> head{dz, row_losses, dhead_weight, dhead_bias, losses, head_rows, dz_rows, O};
        int of_y = (K + TILE - 1) / TILE, m0 = job / (of_y + 1) * TILE, part = job % (of_y + 1);
        if (m0 >= O) {
            head.loss += counts[STEP];
            return head.add_losses();
        }
        if (part == of_y) return head.by_bias(m0);
        return head.by_weight(y + from * 1ll * K, K, m0, part * TILE);
    }
    int part = job / tiles, m0 = job % tiles * TILE;
    if (part >= of_x + of_h) return bias_gradient(da, dbias_ih, dbias_hh, rows, G, H, m0);
    bool is_h = part >= of_x;
    weight_gradient(da, is_h ? y + column : x, h0 + state * 1ll * B * H, lengths,
                    is_h ? dweight_hh : dweight_ih, rows, B, G, H, is_h ? H : C, m0,
                    (is_h ? part - of_x : part) * TILE, stride, reverse, is_h);
}
