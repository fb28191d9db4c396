// A step of the LSTM a launch, a thread for each unit of each row.
//
//   a_t = W_ih x_t + b_ih + W_hh h_{t−1} + b_hh            [B, 4H], gates in the order i, f, g, o
//   i, f, o = sigmoid(a)   g = tanh(a)   c_t = f c_{t−1} + i g   h_t = o tanh(c_t)
//
// and back through time, from dy_t and what comes from the step after:
//
//   dh_t = dy_t + W_hhᵀ da_{t+1}     (at the last step dhn in place of the product)
//   dc_t = dh_t o (1 − tanh²(c_t)) + what step t + 1 left     (at the last step dcn)
//   da_t by the gates' slopes        dc_{t−1} = dc_t f
//
// Work split: a thread has unit j of row b, all four gates of it, and its c. What it needs of other
// threads is h_{t−1}, or da_{t+1}, of its row: the launch before has left that in y, or in da.
// Weights come from device memory, all of them at every step.
//
// x: T x B x I, weight_ih: 4H x I, weight_hh: 4H x H, biases: 4H, peepholes: H, lengths: B. y is
// T x B rows of `stride` elements, of which H from `column` on are this direction's; dy is as y.
// h0, c0, hn, cn, dhn, dcn, dh0, dc0: several B x H, of which number `state` is this direction's.
// gates and da, which takes their place: T x B x 4H, c: T x B x H, in the arithmetic's type. A grid
// of B H / 128 blocks, rounded up.
#include "lstm.cuh"

using namespace lab;

constexpr int THREADS = 128;

// The launch of step t. With `keep` it leaves what the backward pass needs, c and gates of all
// steps; without it, c has room for two steps, and the gates are not written.
template <class T, bool PEEPHOLE>
__global__ void __launch_bounds__(THREADS)
    lstm_cell(const T* __restrict__ x, const T* __restrict__ weight_ih,
              const T* __restrict__ weight_hh, const T* __restrict__ bias_ih,
              const T* __restrict__ bias_hh, const T* __restrict__ peephole_i,
              const T* __restrict__ peephole_f, const T* __restrict__ peephole_o,
              const T* __restrict__ h0, const T* __restrict__ c0, const int* __restrict__ lengths,
              T* y, math_t<T>* c, math_t<T>* __restrict__ gates, T* __restrict__ hn,
              T* __restrict__ cn, int t, int B, int I, int H, int stride, int column, int state,
              int reverse, int biased, int keep) {
    using M = math_t<T>;
    Unit<THREADS> unit(B, H);
    if (!unit.inside) return;
    Steps steps{lengths, reverse != 0};
    int row = unit.row, j = unit.j;
    long long at = t * 1ll * B + row, of_state = unit.of_state(state, B, H);
    T* y_t = y + at * stride + column + j;
    if (!steps.has(t, row)) {
        *y_t = from_math<T>(M(0));
        if (lengths[row] == 0 && t == 0) hn[of_state] = h0[of_state], cn[of_state] = c0[of_state];
        return;
    }

    // ANCHOR: forward
    M a[GATES];
#pragma unroll
    for (int g = 0; g < GATES; ++g)
        a[g] = biased ? to_math(bias_ih[g * H + j]) + to_math(bias_hh[g * H + j]) : M(0);
    Hidden<T> hidden{h0 + state * 1ll * B * H, y + column, B, H, stride};
    add_products(a, weight_ih, x + at * I, j, H, I);
    add_products(a, weight_hh, hidden.before(steps, t, row), j, H, H);

    // c of a step: all of them, or every second in the other's place.
    auto c_of = [&](int t) { return c + ((keep ? t : t % 2) * 1ll * B + row) * H + j; };
    M c_before = t == steps.first(row) ? to_math(c0[of_state]) : *c_of(steps.before(t));
    auto p = peepholes<PEEPHOLE>(peephole_i, peephole_f, peephole_o, j);
    M c_t = lstm_step<PEEPHOLE>(a, c_before, p), h_t = a[GATE_O] * tangent(c_t);
    // ANCHOR_END: forward

    *y_t = from_math<T>(h_t);
    *c_of(t) = c_t;
    if (keep)
#pragma unroll
        for (int g = 0; g < GATES; ++g) gates[(at * GATES + g) * H + j] = a[g];
    if (t == steps.last(row)) hn[of_state] = from_math<T>(h_t), cn[of_state] = from_math<T>(c_t);
}

// The launch of step t, after those of all later ones. da holds the gates, and from this launch on
// da_t in their place. dc: B x H, from launch to launch.
template <class T, bool PEEPHOLE>
__global__ void __launch_bounds__(THREADS)
    lstm_cell_back(const T* __restrict__ dy, const T* __restrict__ weight_hh,
                   const T* __restrict__ peephole_i, const T* __restrict__ peephole_f,
                   const T* __restrict__ peephole_o, const T* __restrict__ c0,
                   const T* __restrict__ dhn, const T* __restrict__ dcn,
                   const int* __restrict__ lengths, const math_t<T>* __restrict__ c,
                   math_t<T>* da, math_t<T>* __restrict__ dc, int t, int B, int H, int stride,
                   int column, int state, int reverse) {
    using M = math_t<T>;
    Unit<THREADS> unit(B, H);
    if (!unit.inside) return;
    Steps steps{lengths, reverse != 0};
    int row = unit.row, j = unit.j;
    long long at = t * 1ll * B + row, of_state = unit.of_state(state, B, H);
    M* da_t = da + at * GATES * H + j;
    if (!steps.has(t, row)) {
#pragma unroll
        for (int g = 0; g < GATES; ++g) da_t[g * H] = 0;
        return;
    }

    // ANCHOR: backward
    bool last = t == steps.last(row);
    const M* da_after = da + (steps.after(t) * 1ll * B + row) * GATES * H;
    M dh = to_math(dy[at * stride + column + j]);
    dh += last ? to_math(dhn[of_state]) : through_weights(da_after, weight_hh, j, H);
    M dc_t = last ? to_math(dcn[of_state]) : dc[row * 1ll * H + j];

    auto c_of = [&](int t) { return c[(t * 1ll * B + row) * H + j]; };
    M c_before = t == steps.first(row) ? to_math(c0[of_state]) : c_of(steps.before(t));
    auto p = peepholes<PEEPHOLE>(peephole_i, peephole_f, peephole_o, j);
    M a[GATES];
#pragma unroll
    for (int g = 0; g < GATES; ++g) a[g] = da_t[g * H];
    M u = tangent(c_of(t));
    dc[row * 1ll * H + j] = lstm_step_back<PEEPHOLE>(a, c_before, u, p, dh, dc_t);
    // ANCHOR_END: backward
#pragma unroll
    for (int g = 0; g < GATES; ++g) da_t[g * H] = a[g];
}

// What the first steps leave for h0 and c0. A row without steps hands on what came.
template <class T>
__global__ void __launch_bounds__(THREADS)
    lstm_cell_first(const T* __restrict__ weight_hh, const T* __restrict__ dhn,
                    const T* __restrict__ dcn, const int* __restrict__ lengths,
                    const math_t<T>* __restrict__ da, const math_t<T>* __restrict__ dc,
                    T* __restrict__ dh0, T* __restrict__ dc0, int B, int H, int state,
                    int reverse) {
    Unit<THREADS> unit(B, H);
    if (!unit.inside) return;
    Steps steps{lengths, reverse != 0};
    long long of_state = unit.of_state(state, B, H);
    if (lengths[unit.row] == 0) {
        dh0[of_state] = dhn[of_state];
        dc0[of_state] = dcn[of_state];
        return;
    }
    const math_t<T>* first = da + (steps.first(unit.row) * 1ll * B + unit.row) * GATES * H;
    dh0[of_state] = from_math<T>(through_weights(first, weight_hh, unit.j, H));
    dc0[of_state] = from_math<T>(dc[unit.row * 1ll * H + unit.j]);
}
