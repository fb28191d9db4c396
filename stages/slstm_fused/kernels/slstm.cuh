// A step of the sLSTM for one unit of one row, forward and backward.
//
//   m_t = max(ĩ, log σ(f̃) + m_{t−1})                        where n_{t−1} = 0 there is no state: m_t = ĩ
//   i = exp(ĩ − m_t)   f = exp(log σ(f̃) + m_{t−1} − m_t)    z = tanh(z̃)   o = σ(õ)
//   c_t = f c_{t−1} + i z      n_t = f n_{t−1} + i          h_t = o c_t / n_t
//
// The mean u = c / n is all that h sees, and a step takes a share p = i / n_t of z into it:
//
//   u_t = (1 − p) u_{t−1} + p z          h_t = o u_t          1 − p = f n_{t−1} / n_t
//
// The way back is shorter with U = n ∂/∂c and N = n ∂/∂n, which have no factor of m either:
//
//   U_t = dh o + (1 − p_{t+1}) U_{t+1}        N_t = −dh h + (1 − p_{t+1}) N_{t+1}
//   dĩ = (U z + N) p      df̃ = (U u_{t−1} + N) (1 − p) (1 − σ(f̃))      dz̃ = U p (1 − z²)      dõ = dh u o (1 − o)
//
// Behind the last step U = n dc and N = n dn of what comes from there; before the first, dc = U f / n_1, dn = N f / n_1.
#pragma once
#include "lab/gates.cuh"
#include "lab/quick.cuh"

namespace lab {

enum Gate { GATE_I, GATE_F, GATE_Z, GATE_O, GATES };

// What a unit hands on from step to step beside h.
struct Memory {
    float c, n, m;
    // c / n; 0 where there is no state.
    __device__ __forceinline__ float mean() const { return n == 0 ? 0.0f : c / n; }
};

// What the way back needs of a step.
struct Saved {
    float p, forget, z, o, u;  // forget: (1 − p) (1 − σ(f̃))
};
enum { KEPT = sizeof(Saved) / sizeof(float) };

// Of unit `at` of a step's H; they lie H apart.
__device__ __forceinline__ void store_saved(float* to, const Saved& of, long long H) {
    to[0] = of.p, to[H] = of.forget, to[2 * H] = of.z, to[3 * H] = of.o, to[4 * H] = of.u;
}
__device__ __forceinline__ Saved load_saved(const float* from, long long H) {
    return {from[0], from[H], from[2 * H], from[3 * H], from[4 * H]};
}

// ANCHOR: step
// From what goes into the gates: the memory behind the step, what is kept of it, and f / n_t.
__device__ __forceinline__ float slstm_step(const float (&a)[GATES], Memory& of, Saved& kept) {
    float old_m = log_sigmoid(a[GATE_F]) + (of.n == 0 ? lowest<float>() : of.m);
    of.m = fmaxf(a[GATE_I], old_m);
    float i = exponential(a[GATE_I] - of.m), f = exponential(old_m - of.m);
    kept.z = quick_tangent(a[GATE_Z]), kept.o = quick_sigmoid(a[GATE_O]);
    float old_n = f * of.n;
    of.c = f * of.c + i * kept.z, of.n = old_n + i;
    float of_n = 1 / of.n;
    kept.p = i * of_n, kept.u = of.c * of_n;
    kept.forget = old_n * of_n * quick_sigmoid(-a[GATE_F]);
    return f * of_n;
}
// ANCHOR_END: step

// ANCHOR: step_back
// The gradient by what goes into the gates, from dh, U and N of this step and the mean u before it.
__device__ __forceinline__ void slstm_step_back(float (&da)[GATES], const Saved& of, float u_before, float dh, float& U,
                                                float& N) {
    U += dh * of.o, N -= dh * of.o * of.u;
    da[GATE_I] = (U * of.z + N) * of.p;
    da[GATE_F] = (U * u_before + N) * of.forget;
    da[GATE_Z] = U * of.p * (1 - of.z * of.z);
    da[GATE_O] = dh * of.u * of.o * (1 - of.o);
}
// ANCHOR_END: step_back

}  // namespace lab
