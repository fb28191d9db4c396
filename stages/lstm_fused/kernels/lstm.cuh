// A step of the LSTM for one unit of one row, forward and backward.
//
//   i, f, o = sigmoid(a)   g = tanh(a)      a of the gates in the order i, f, g, o
//   c_t = f c_{t−1} + i g                   h_t = o tanh(c_t)
//
// Peepholes add p_i c_{t−1}, p_f c_{t−1} and p_o c_t to the a of their gates.
#pragma once
#include "recurrent.cuh"

namespace lab {

enum Gate { GATE_I, GATE_F, GATE_G, GATE_O, GATES };

// Where thread 4 j + g has gate g of unit j: the value that a gate's lane of this unit has.
template <class M> __device__ __forceinline__ M of_gate(M v, Gate gate) {
    return __shfl_sync(0xffffffffu, v, gate, GATES);
}

// What a unit's gates see of c; not read without peepholes.
template <class M> struct Peepholes {
    M i, f, o;
};
template <bool PEEPHOLE, class T>
__device__ __forceinline__ Peepholes<math_t<T>> peepholes(const T* i, const T* f, const T* o,
                                                          int unit) {
    if constexpr (PEEPHOLE) return {to_math(i[unit]), to_math(f[unit]), to_math(o[unit])};
    return {};
}

// ANCHOR: step
// Turns the a of the gates into the gates, and gives c_t.
template <bool PEEPHOLE, class M>
__device__ __forceinline__ M lstm_step(M (&a)[GATES], M c_before, Peepholes<M> p) {
    if constexpr (PEEPHOLE) {
        a[GATE_I] += p.i * c_before;
        a[GATE_F] += p.f * c_before;
    }
    a[GATE_I] = sigmoid(a[GATE_I]);
    a[GATE_F] = sigmoid(a[GATE_F]);
    a[GATE_G] = tangent(a[GATE_G]);
    M c = a[GATE_F] * c_before + a[GATE_I] * a[GATE_G];
    if constexpr (PEEPHOLE) a[GATE_O] += p.o * c;
    a[GATE_O] = sigmoid(a[GATE_O]);
    return c;
}
// ANCHOR_END: step

// ANCHOR: step_back
// Turns the gates into the gradients by their a, from those by h_t and by c_t, and gives that by
// c_{t−1}. u: tanh(c_t), which waits for no other step.
template <bool PEEPHOLE, class M>
__device__ __forceinline__ M lstm_step_back(M (&y)[GATES], M c_before, M u, Peepholes<M> p, M dh,
                                            M dc) {
    M i = y[GATE_I], f = y[GATE_F], g = y[GATE_G], o = y[GATE_O];
    y[GATE_O] = dh * u * o * (1 - o);
    dc += dh * o * (1 - u * u);
    if constexpr (PEEPHOLE) dc += p.o * y[GATE_O];
    y[GATE_I] = dc * g * i * (1 - i);
    y[GATE_F] = dc * c_before * f * (1 - f);
    y[GATE_G] = dc * i * (1 - g * g);
    M by_c_before = dc * f;
    if constexpr (PEEPHOLE) by_c_before += p.i * y[GATE_I] + p.f * y[GATE_F];
    return by_c_before;
}
// ANCHOR_END: step_back

// ANCHOR: added
// What x adds to gate g of unit j in row `at` of all steps: where x has few columns, this launch has
// their weights, and `columns` says how many; else it is zero, and a launch before has left the sums in
// `gates`. To be fetched a step before it is needed.
template <class T> struct Added {
    static constexpr int FEW = 2;
    struct Fetched {
        T x[FEW];
        math_t<T> sum;
    };
    const T* x;
    const math_t<T>* gates;
    math_t<T> w[FEW], bias;
    int columns, g, j, H;

    __device__ __forceinline__ Added(const T* x, const math_t<T>* gates, const T* weight_ih,
                                     const T* bias_ih, const T* bias_hh, int columns, bool biased,
                                     bool unit, int g, int j, int H)
        : x(x), gates(gates), bias(0), columns(columns), g(g), j(j), H(H) {
#pragma unroll
        for (int k = 0; k < FEW; ++k)
            w[k] = unit && k < columns ? to_math(weight_ih[(g * 1ll * H + j) * columns + k])
                                       : math_t<T>(0);
        if (unit && columns > 0 && biased)
            bias = to_math(bias_ih[g * H + j]) + to_math(bias_hh[g * H + j]);
    }
    // Nothing of a row that is not there.
    __device__ __forceinline__ Fetched fetch(long long at, bool there) const {
        Fetched of;
        of.sum = there && columns == 0 ? gates[(at * GATES + g) * H + j] : bias;
#pragma unroll
        for (int k = 0; k < FEW; ++k)
            of.x[k] = there && k < columns ? x[at * columns + k] : from_math<T>(math_t<T>(0));
        return of;
    }
    __device__ __forceinline__ math_t<T> of(const Fetched& of) const {
        math_t<T> sum = of.sum;
#pragma unroll
        for (int k = 0; k < FEW; ++k) sum += w[k] * to_math(of.x[k]);
        return sum;
    }
};
// ANCHOR_END: added

// ANCHOR: kept
// What the way back needs of a step that the forward pass has left, and dy. To be fetched a step
// before it is needed: what is converted has to have come, and so dy is left as it is.
template <class T> struct Kept {
    math_t<T> gates[GATES], c_before, c;
    T dy;
};

// Of unit j of row `row` at step t; zeros of a step that the row does not have.
template <class T>
__device__ __forceinline__ Kept<T> kept_of(const math_t<T>* gates, const math_t<T>* c, const T* c0,
                                           const T* dy, Steps steps, int t, int row, int j, int B,
                                           int H, int stride, int column, int state, bool there) {
    Kept<T> of{};
    if (!there || !steps.has(t, row)) return of;
    long long at = t * 1ll * B + row;
#pragma unroll
    for (int n = 0; n < GATES; ++n) of.gates[n] = gates[(at * GATES + n) * H + j];
    of.c_before = t == steps.first(row) ? to_math(c0[(state * 1ll * B + row) * H + j])
                                        : c[(steps.before(t) * 1ll * B + row) * H + j];
    of.c = c[at * H + j], of.dy = dy[at * stride + column + j];
    return of;
}
// ANCHOR_END: kept

// ANCHOR: through
// Σ_k da_k w_{k,j} over all 4H rows of weight_hh: what a step's a hand back to the h before it.
template <class T>
__device__ __forceinline__ math_t<T> through_weights(const math_t<T>* da,
                                                     const T* __restrict__ weight_hh, int j,
                                                     int H) {
    math_t<T> sum = 0;
    for (int k = 0; k < GATES * H; ++k) sum += da[k] * to_math(weight_hh[k * 1ll * H + j]);
    return sum;
}
// ANCHOR_END: through

// Gate by gate, H apart.
template <class M> __device__ __forceinline__ void store_gates(M* to, int H, float4 of) {
    to[0] = from_math<M>(of.x), to[H] = from_math<M>(of.y);
    to[2 * H] = from_math<M>(of.z), to[3 * H] = from_math<M>(of.w);
}

// What the way back needs, of unit j of row `at` of all steps.
__device__ __forceinline__ void store_kept(float* gates, float* c, float4 of, float c_t, long long at, int j, int H) {
    store_gates(gates + at * GATES * H + j, H, of), c[at * H + j] = c_t;
}
// The same, the gates of a unit side by side: 16 bytes at once.
__device__ __forceinline__ void store_together(float* gates, float* c, float4 of, float c_t, long long at, int j, int H) {
    reinterpret_cast<float4*>(gates)[at * H + j] = of, c[at * H + j] = c_t;
}

}  // namespace lab
