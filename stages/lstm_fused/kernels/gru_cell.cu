// A step of the GRU a launch, a thread for each unit of each row: v0_cell.cu with another cell.
//
//   r, z = sigmoid(W_ih x_t + b_ih + W_hh h_{t−1} + b_hh)          gates in the order r, z, n
//   q    = W_hn h_{t−1} + b_hn        n = tanh(W_in x_t + b_in + r q)
//   h_t  = (1 − z) n + z h_{t−1}
//
// and back through time, from dy_t and what comes from the step after:
//
//   dh_t = dy_t + W_hhᵀ da_{t+1} + dh_{t+1} z_{t+1}                 (at the last step dhn for both)
//   da_n = dh (1 − z) (1 − n²)   da_r = da_n q r (1 − r)   da_z = dh (h_{t−1} − n) z (1 − z)
//
// q has the gradient da_n r: there are four da, of r, z and n by x, and of n by h in the fourth place.
//
// Work split: a thread has unit j of row b and all its gates. h_{t−1} and da_{t+1} of its row have been
// left by the launch before.
//
// weight_ih: 3H x I, weight_hh: 3H x H, biases: 3H. gates: T x B x 4H, of which r, z, n, q are left for
// the backward pass, and the four da take their place. Other tensors are as v0_cell.cu has them. A
// grid of ceil(B H / 128) blocks.
#include "recurrent.cuh"

using namespace lab;

constexpr int THREADS = 128, R = 0, Z = 1, N = 2, Q = 3, GATES = 3, KEPT = 4;

// The launch of step t. With `keep` it leaves r, z, n and q.
template <class T>
__global__ void __launch_bounds__(THREADS)
    gru_cell(const T* __restrict__ x, const T* __restrict__ weight_ih,
             const T* __restrict__ weight_hh, const T* __restrict__ bias_ih,
             const T* __restrict__ bias_hh, const T* __restrict__ h0,
             const int* __restrict__ lengths, T* y, math_t<T>* __restrict__ gates,
             T* __restrict__ hn, int t, int B, int I, int H, int stride, int column, int state,
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
        if (lengths[row] == 0 && t == 0) hn[of_state] = h0[of_state];
        return;
    }

    // ANCHOR: forward
    M ax[GATES], ah[GATES];
#pragma unroll
    for (int g = 0; g < GATES; ++g) {
        ax[g] = biased ? to_math(bias_ih[g * H + j]) : M(0);
        ah[g] = biased ? to_math(bias_hh[g * H + j]) : M(0);
    }
    Hidden<T> hidden{h0 + state * 1ll * B * H, y + column, B, H, stride};
    const T* h_before = hidden.before(steps, t, row);
    add_products(ax, weight_ih, x + at * I, j, H, I);
    add_products(ah, weight_hh, h_before, j, H, H);
    M r = sigmoid(ax[R] + ah[R]), z = sigmoid(ax[Z] + ah[Z]), n = tangent(ax[N] + r * ah[N]);
    M h_t = (1 - z) * n + z * to_math(h_before[j]);
    // ANCHOR_END: forward

    *y_t = from_math<T>(h_t);
    if (keep) {
        M* left = gates + at * KEPT * H + j;
        left[R * H] = r, left[Z * H] = z, left[N * H] = n, left[Q * H] = ah[N];
    }
    if (t == steps.last(row)) hn[of_state] = from_math<T>(h_t);
}

// Σ_k da_k w_{k,j} over the rows of weight_hh, from the da by h.
template <class T>
__device__ __forceinline__ math_t<T> through_weights(const math_t<T>* da,
                                                     const T* __restrict__ weight_hh, int j,
                                                     int H) {
    math_t<T> sum = 0;
    for (int k = 0; k < GATES * H; ++k)
        sum += da[k < N * H ? k : k + H] * to_math(weight_hh[k * 1ll * H + j]);
    return sum;
}

// The launch of step t, after those of all later ones. da holds r, z, n and q, and from this launch on
// da_t in their place. dh: B x H, what goes past the gates, from launch to launch.
template <class T>
__global__ void __launch_bounds__(THREADS)
    gru_cell_back(const T* __restrict__ dy, const T* __restrict__ weight_hh,
                  const T* __restrict__ h0, const T* __restrict__ y, const T* __restrict__ dhn,
                  const int* __restrict__ lengths, math_t<T>* da, math_t<T>* __restrict__ dh,
                  int t, int B, int H, int stride, int column, int state, int reverse) {
    using M = math_t<T>;
    Unit<THREADS> unit(B, H);
    if (!unit.inside) return;
    Steps steps{lengths, reverse != 0};
    int row = unit.row, j = unit.j;
    long long at = t * 1ll * B + row, of_state = unit.of_state(state, B, H);
    M* da_t = da + at * KEPT * H + j;
    if (!steps.has(t, row)) {
#pragma unroll
        for (int g = 0; g < KEPT; ++g) da_t[g * H] = 0;
        return;
    }

    // ANCHOR: backward
    const M* da_after = da + (steps.after(t) * 1ll * B + row) * KEPT * H;
    M* past = dh + row * 1ll * H + j;
    M dh_t = to_math(dy[at * stride + column + j]);
    if (t == steps.last(row)) dh_t += to_math(dhn[of_state]);
    else dh_t += through_weights(da_after, weight_hh, j, H) + *past;

    Hidden<T> hidden{h0 + state * 1ll * B * H, y + column, B, H, stride};
    M h_before = to_math(hidden.before(steps, t, row)[j]);
    M r = da_t[R * H], z = da_t[Z * H], n = da_t[N * H], q = da_t[Q * H];
    M da_n = dh_t * (1 - z) * (1 - n * n);
    da_t[R * H] = da_n * q * r * (1 - r);
    da_t[Z * H] = dh_t * (h_before - n) * z * (1 - z);
    da_t[N * H] = da_n;
    da_t[Q * H] = da_n * r;
    *past = dh_t * z;
    // ANCHOR_END: backward
}

// What the first steps leave for h0. A row without steps hands on what came.
template <class T>
__global__ void __launch_bounds__(THREADS)
    gru_cell_first(const T* __restrict__ weight_hh, const T* __restrict__ dhn,
                   const int* __restrict__ lengths, const math_t<T>* __restrict__ da,
                   const math_t<T>* __restrict__ dh, T* __restrict__ dh0, int B, int H, int state,
                   int reverse) {
    Unit<THREADS> unit(B, H);
    if (!unit.inside) return;
    Steps steps{lengths, reverse != 0};
    int row = unit.row;
    long long of_state = unit.of_state(state, B, H);
    if (lengths[row] == 0) {
        dh0[of_state] = dhn[of_state];
        return;
    }
    const math_t<T>* first = da + (steps.first(row) * 1ll * B + row) * KEPT * H;
    math_t<T> past = dh[row * 1ll * H + unit.j];
    dh0[of_state] = from_math<T>(through_weights(first, weight_hh, unit.j, H) + past);
}
