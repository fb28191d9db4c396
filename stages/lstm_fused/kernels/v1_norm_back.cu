// The way back of v1_norm.cu in one launch, from the last step to the first. With back(d) the gradient by
// what a norm gets (norm.cuh),
//
//   dh_j = dy_{t,j} + Σ_g Σ_k W_hh[gH + k, j] da_{g,k}
//   da_o = back(dh tanh(norm(c)) o (1 − o))       dc += back(dh o (1 − tanh²(norm(c))))
//   da_i, da_f, da_g = back(dc by the gates' slopes)
//
// Work split: a block has a row of the batch, and thread 4 j + g gate g of unit j, as there; the products
// are those of v1_sequence_back.cu. Again two norms a step, c and o first, and three barriers, of which
// the last is for da.
//
// n: T x B x 5H, scales: T x B x 5, as the forward pass has left them; d: T x B x 5H, nothing past a row's
// end. gates: T x B x 4H, for da. HT is H or more: weights and da past H are zero. Other tensors are as
// norm_cell.cu has them. A grid of B blocks.
#include "norm.cuh"
#include "resident.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

// What a thread needs of a step, to be fetched a step before: of its gate, and of o or c.
template <class M> struct Left {
    M n_a, n_c, scale, scale_of_c, c_before, dy;
};

// da, and what the warps have of two norms.
template <class T, int HT, int, int IN_SHARED>
constexpr int norm_sequence_back_shared = BYTES_WITH_WEIGHTS<T, 4 * HT, IN_SHARED, 6 * HT>;

// da and d of all steps, dh0 and dc0.
template <class T, int HT, int KEPT, int IN_SHARED>
__global__ void __launch_bounds__(4 * HT)
    norm_sequence_back(const T* __restrict__ dy, const T* __restrict__ weight_hh,
                       const T* __restrict__ peephole_i, const T* __restrict__ peephole_f,
                       const T* __restrict__ peephole_o, const T* __restrict__ ln_weight,
                       const T* __restrict__ ln_bias, const T* __restrict__ ln_c_weight,
                       const T* __restrict__ ln_c_bias, const T* __restrict__ c0,
                       const T* __restrict__ dhn, const T* __restrict__ dcn,
                       const int* __restrict__ lengths, const math_t<T>* __restrict__ c,
                       const math_t<T>* __restrict__ n, const math_t<T>* __restrict__ scales,
                       math_t<T>* __restrict__ d, math_t<T>* __restrict__ gates,
                       T* __restrict__ dh0, T* __restrict__ dc0, int count, int B, int H, int stride,
                       int column, int state, int reverse, int peephole) {
    using M = math_t<T>;
    constexpr int ROW = GATES * HT;
    DYNAMIC_SHARED(M, da);
    int j = threadIdx.x / GATES, g = threadIdx.x % GATES, row = blockIdx.x, steps = lengths[row];
    bool unit = j < H, is_o = g == GATE_O;
    auto weights = resident<M, 4 * HT, HT / 4, KEPT, IN_SHARED>(
        da + ROW + 2 * HT,
        ByColumns<T, 16, HT>{weight_hh, int(threadIdx.x % 16), H, j / 4 * 4, 0});
    Norms<T> norms{ln_weight, ln_bias, ln_c_weight, ln_c_bias, H};
    int second = is_o ? GATE_O : C;
    NormOfLanes<T, HT> of_gates(da + ROW, norms, g), of_c(da + ROW + HT, norms, second);
    const T* own_peephole = g == GATE_I ? peephole_i : g == GATE_F ? peephole_f : peephole_o;
    M p = peephole && unit && g != GATE_G ? to_math(own_peephole[j]) : M(0);

    long long of_state = (state * 1ll * B + row) * H + j;
    M past = unit ? to_math(dhn[of_state]) : M(0);  // dhn, until the last step has it
    M dc = unit ? to_math(dcn[of_state]) : M(0);
    auto at_step = [&](int s) { return (reverse ? s : steps - 1 - s) * 1ll * B + row; };
    auto fetch = [&](int s) -> Left<M> {  // zeros where there is no unit: its lanes are in the sums
        if (s >= steps || !unit) return {};
        long long at = at_step(s);
        const M *n_at = n + at * PARTS * H + j, *scales_at = scales + at * PARTS;
        M c_before = s + 1 == steps ? to_math(c0[of_state]) : c[at_step(s + 1) * H + j];
        return {n_at[g * H],       n_at[second * H], scales_at[g],
                scales_at[second], c_before,         to_math(dy[at * stride + column + j])};
    };
    Left<M> next = fetch(0);
    for (int t = steps; unit && t < count; ++t) gates[((t * 1ll * B + row) * GATES + g) * H + j] = 0;
    da[g * HT + j] = 0;
    __syncthreads();  // all read da of all units, which are zero so far

    M sum[1][4];
    for (int s = 0; s < steps; ++s) {
        long long at = at_step(s);
        // ANCHOR: step_back
        Left<M> now = next;
        M gate = activation(of_gates.output(now.n_a), g == GATE_G);
        M half = activation(of_c.output(now.n_c), !is_o);
        M i = of_gate(gate, GATE_I), f = of_gate(gate, GATE_F), u_g = of_gate(gate, GATE_G);
        M o = of_gate(half, GATE_O), u = of_gate(half, GATE_I);
        next = fetch(s + 1);
        weights.template sums<ROW, 16>(sum, da + threadIdx.x % 16 * 4);
        M dh = past + now.dy + one_of_four<16>(sum[0]);  // that of unit j
        M d_c = is_o ? dh * u * o * (1 - o) : dh * o * (1 - u * u);
        M by_c = of_c.back(now.n_c, d_c, now.scale_of_c);
        dc += of_gate(by_c, GATE_I);
        if (peephole) dc += of_gate(p * by_c, GATE_O);
        M d_a = g == GATE_I   ? dc * u_g * i * (1 - i)
                : g == GATE_F ? dc * now.c_before * f * (1 - f)
                              : dc * i * (1 - u_g * u_g);
        M by_a = of_gates.back(now.n_a, d_a, now.scale);
        dc *= f;
        if (peephole) dc += of_gate(p * by_a, GATE_I) + of_gate(p * by_a, GATE_F);
        // ANCHOR_END: step_back
        past = 0;
        if (is_o) by_a = by_c, d_a = d_c;
        if (unit) {
            da[g * HT + j] = gates[(at * GATES + g) * H + j] = by_a;
            d[(at * PARTS + g) * H + j] = d_a;
        }
        if (unit && g == 0) d[(at * PARTS + C) * H + j] = d_c;
        __syncthreads();  // the next step reads da
    }
    weights.template sums<ROW, 16>(sum, da + threadIdx.x % 16 * 4);
    M dh = past + one_of_four<16>(sum[0]);
    if (unit && g == 0) dh0[of_state] = from_math<T>(dh), dc0[of_state] = from_math<T>(dc);
}
