// A step of the LSTM with layer norm a launch, a block for each row: v0_cell.cu, and between the
// products and the gates a unit waits for all others of its row.
//
//   i, f, o = sigmoid(norm(a))   g = tanh(norm(a))   c_t = f c_{t−1} + i g   h_t = o tanh(norm(c_t))
//
// norm and the gradients by what it gets are in norm.cuh.
//
// Work split: a block has a row, and a thread every THREADS-th unit of it. What a thread leaves in
// device memory within a launch it reads again itself; means go through block_reduce.
//
// n and d: T x B x 5H, the four gates and behind them c; d has nothing past a row's end. scales: T x B
// x 5, 1 / √(var + ε). ln_weight, ln_bias: 4H, those of c: H. da: T x B x 4H. Other tensors are as
// v0_cell.cu has them. A grid of B blocks.
#include "norm.cuh"
#include "lab/reduce.cuh"

using namespace lab;

constexpr int THREADS = 128;

// The sum of value(j) over the units of a row, for all threads.
template <class M, class F> __device__ __forceinline__ M row_sum(int H, F value) {
    M own = 0;
    for (int j = threadIdx.x; j < H; j += THREADS) own += value(j);
    return block_reduce<THREADS>(own, Add{}, M(0));
}

// ANCHOR: norm
// n in place of a; gives its scale.
template <class M> __device__ __forceinline__ M normalise(M* a, int H, M eps) {
    M mean = row_sum<M>(H, [&](int j) { return a[j]; }) / H;
    M variance = row_sum<M>(H, [&](int j) { return (a[j] - mean) * (a[j] - mean); }) / H;
    M scale = 1 / root(variance + eps);
    for (int j = threadIdx.x; j < H; j += THREADS) a[j] = (a[j] - mean) * scale;
    return scale;
}

// The gradient by a of each unit, to be had from out(j, da).
template <class M, class T, class Out>
__device__ __forceinline__ void normalise_back(const M* n, const M* d, const T* w, M scale, int H,
                                               Out out) {
    auto e = [&](int j) { return product(to_math(w[j]), d[j]); };
    M mean = row_sum<M>(H, e) / H, along = row_sum<M>(H, [&](int j) { return e(j) * n[j]; }) / H;
    for (int j = threadIdx.x; j < H; j += THREADS) out(j, (e(j) - mean - n[j] * along) * scale);
}
// ANCHOR_END: norm

// The gradients by a of the gates or of c, of a row and step.
template <class T> struct NormsBack {
    Norms<T> norms;
    const math_t<T> *n, *d, *scale;

    template <class Out> __device__ __forceinline__ void operator()(int part, Out out) const {
        int H = norms.H;
        normalise_back(n + part * H, d + part * H, norms.of(part), scale[part], H, out);
    }
};

// The launch of step t. c, n and scales of all steps are left for the way back.
template <class T, bool PEEPHOLE>
__global__ void __launch_bounds__(THREADS)
    norm_cell(const T* __restrict__ x, const T* __restrict__ weight_ih,
              const T* __restrict__ weight_hh, const T* __restrict__ bias_ih,
              const T* __restrict__ bias_hh, const T* __restrict__ peephole_i,
              const T* __restrict__ peephole_f, const T* __restrict__ peephole_o,
              const T* __restrict__ ln_weight, const T* __restrict__ ln_bias,
              const T* __restrict__ ln_c_weight, const T* __restrict__ ln_c_bias,
              const T* __restrict__ h0, const T* __restrict__ c0, const int* __restrict__ lengths,
              T* y, math_t<T>* c, math_t<T>* n, math_t<T>* __restrict__ scales,
              T* __restrict__ hn, T* __restrict__ cn, int t, int B, int I, int H, int stride,
              int column, int state, int reverse, int biased, math_t<T> eps) {
    using M = math_t<T>;
    Steps steps{lengths, reverse != 0};
    Norms<T> norms{ln_weight, ln_bias, ln_c_weight, ln_c_bias, H};
    int row = blockIdx.x;
    long long at = t * 1ll * B + row, of_state = (state * 1ll * B + row) * H;
    T* y_t = y + at * stride + column;
    if (!steps.has(t, row)) {
        for (int j = threadIdx.x; j < H; j += THREADS) {
            y_t[j] = from_math<T>(M(0));
            if (lengths[row] != 0 || t != 0) continue;
            hn[of_state + j] = h0[of_state + j], cn[of_state + j] = c0[of_state + j];
        }
        return;
    }
    Hidden<T> hidden{h0 + state * 1ll * B * H, y + column, B, H, stride};
    bool first = t == steps.first(row);
    const M* c_row = c + (steps.before(t) * 1ll * B + row) * H;
    auto c_before = [&](int j) { return first ? to_math(c0[of_state + j]) : c_row[j]; };
    M *c_t = c + at * H, *n_t = n + at * PARTS * H, *scale = scales + at * PARTS;

    for (int j = threadIdx.x; j < H; j += THREADS) {
        M a[GATES];
#pragma unroll
        for (int g = 0; g < GATES; ++g)
            a[g] = biased ? to_math(bias_ih[g * H + j]) + to_math(bias_hh[g * H + j]) : M(0);
        add_products(a, weight_ih, x + at * I, j, H, I);
        add_products(a, weight_hh, hidden.before(steps, t, row), j, H, H);
        if constexpr (PEEPHOLE) a[GATE_I] += to_math(peephole_i[j]) * c_before(j);
        if constexpr (PEEPHOLE) a[GATE_F] += to_math(peephole_f[j]) * c_before(j);
#pragma unroll
        for (int g = 0; g < GATES; ++g) n_t[g * H + j] = a[g];
    }
    M s_i = normalise(n_t + GATE_I * H, H, eps), s_f = normalise(n_t + GATE_F * H, H, eps);
    M s_g = normalise(n_t + GATE_G * H, H, eps);
    for (int j = threadIdx.x; j < H; j += THREADS) {
        M i = sigmoid(norms.output(n_t, GATE_I, j)), f = sigmoid(norms.output(n_t, GATE_F, j));
        c_t[j] = n_t[C * H + j] = f * c_before(j) + i * tangent(norms.output(n_t, GATE_G, j));
        if constexpr (PEEPHOLE) n_t[GATE_O * H + j] += to_math(peephole_o[j]) * c_t[j];
    }
    M s_o = normalise(n_t + GATE_O * H, H, eps), s_c = normalise(n_t + C * H, H, eps);
    for (int j = threadIdx.x; j < H; j += THREADS) {
        M h = sigmoid(norms.output(n_t, GATE_O, j)) * tangent(norms.output(n_t, C, j));
        y_t[j] = from_math<T>(h);
        if (t != steps.last(row)) continue;
        hn[of_state + j] = from_math<T>(h), cn[of_state + j] = from_math<T>(c_t[j]);
    }
    if (threadIdx.x == 0)
        scale[GATE_I] = s_i, scale[GATE_F] = s_f, scale[GATE_G] = s_g, scale[GATE_O] = s_o,
        scale[C] = s_c;
}

// The launch of step t, after those of all later ones. dc: B x H, from launch to launch.
template <class T, bool PEEPHOLE>
__global__ void __launch_bounds__(THREADS)
    norm_cell_back(const T* __restrict__ dy, const T* __restrict__ weight_hh,
                   const T* __restrict__ peephole_i, const T* __restrict__ peephole_f,
                   const T* __restrict__ peephole_o, const T* __restrict__ ln_weight,
                   const T* __restrict__ ln_bias, const T* __restrict__ ln_c_weight,
                   const T* __restrict__ ln_c_bias, const T* __restrict__ c0,
                   const T* __restrict__ dhn, const T* __restrict__ dcn,
                   const int* __restrict__ lengths, const math_t<T>* __restrict__ c,
                   const math_t<T>* __restrict__ n, const math_t<T>* __restrict__ scales,
                   math_t<T>* d, math_t<T>* da, math_t<T>* dc, int t, int B, int H, int stride,
                   int column, int state, int reverse) {
    using M = math_t<T>;
    Steps steps{lengths, reverse != 0};
    Norms<T> norms{ln_weight, ln_bias, ln_c_weight, ln_c_bias, H};
    int row = blockIdx.x;
    long long at = t * 1ll * B + row, of_state = (state * 1ll * B + row) * H;
    M *da_t = da + at * GATES * H, *d_t = d + at * PARTS * H, *dc_row = dc + row * 1ll * H;
    if (!steps.has(t, row)) {
        for (int j = threadIdx.x; j < GATES * H; j += THREADS) da_t[j] = 0;
        return;
    }
    bool first = t == steps.first(row), last = t == steps.last(row);
    const M *n_t = n + at * PARTS * H, *scale = scales + at * PARTS;
    const M* da_after = da + (steps.after(t) * 1ll * B + row) * GATES * H;
    const M* c_row = c + (steps.before(t) * 1ll * B + row) * H;
    for (int j = threadIdx.x; j < H; j += THREADS) {
        M dh = to_math(dy[at * stride + column + j]);
        dh += last ? to_math(dhn[of_state + j]) : through_weights(da_after, weight_hh, j, H);
        M o = sigmoid(norms.output(n_t, GATE_O, j)), u = tangent(norms.output(n_t, C, j));
        d_t[GATE_O * H + j] = dh * u * o * (1 - o), d_t[C * H + j] = dh * o * (1 - u * u);
        if (last) dc_row[j] = to_math(dcn[of_state + j]);
    }
    NormsBack<T> back{norms, n_t, d_t, scale};
    back(C, [&](int j, M by_c) { dc_row[j] += by_c; });
    back(GATE_O, [&](int j, M by_a) {
        da_t[GATE_O * H + j] = by_a;
        if constexpr (PEEPHOLE) dc_row[j] += to_math(peephole_o[j]) * by_a;
    });
    for (int j = threadIdx.x; j < H; j += THREADS) {
        M i = sigmoid(norms.output(n_t, GATE_I, j)), f = sigmoid(norms.output(n_t, GATE_F, j));
        M g = tangent(norms.output(n_t, GATE_G, j)), dc_t = dc_row[j];
        M c_before = first ? to_math(c0[of_state + j]) : c_row[j];
        d_t[GATE_I * H + j] = dc_t * g * i * (1 - i);
        d_t[GATE_F * H + j] = dc_t * c_before * f * (1 - f);
        d_t[GATE_G * H + j] = dc_t * i * (1 - g * g);
        dc_row[j] = dc_t * f;
    }
    back(GATE_I, [&](int j, M by_a) {
        da_t[GATE_I * H + j] = by_a;
        if constexpr (PEEPHOLE) dc_row[j] += to_math(peephole_i[j]) * by_a;
    });
    back(GATE_F, [&](int j, M by_a) {
        da_t[GATE_F * H + j] = by_a;
        if constexpr (PEEPHOLE) dc_row[j] += to_math(peephole_f[j]) * by_a;
    });
    back(GATE_G, [&](int j, M by_a) { da_t[GATE_G * H + j] = by_a; });
}
