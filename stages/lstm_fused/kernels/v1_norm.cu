// All steps of the LSTM with layer norm in one launch: v1_sequence.cu, with a norm of each gate and of c
// in between (norm_cell.cu). For unit j of a row,
//
//   a_g = ax_{t,g} + Σ_k W_hh[gH + j, k] h_k                    g one of the gates i, f, g, o
//   i, f, o = sigmoid(norm(a))   g = tanh(norm(a))   c = f c + i g   h_j = o tanh(norm(c))
//
// The way back is v1_norm_back.cu.
//
// Work split: a block has a row of the batch, and thread 4 j + g goes on with gate g of unit j, as there.
// A norm is a sum over all units: within a warp by shuffles, then through shared memory. Twice a step:
// first the gates i, f and g, each by its own lanes; then c, by these same lanes, and o by its own, which
// may see c. So a step needs three barriers, one for each norm and one for h.
//
// W_hh stays where it is from step to step. A block takes the steps of its row and no more.
//
// x of few columns is multiplied here, else its products are in gates on entry, T x B x 4H, and `columns`
// is 0. n, scales, and c are kept with `keep`. HT is H or more: weights and h past H are zero. Other
// tensors are as norm_cell.cu has them; h is rounded to T where it is stored, not from step to step. A
// grid of B blocks.
#include "norm.cuh"
#include "resident.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

// h, and what the warps have of two norms.
template <class T, int HT, int, int IN_SHARED>
constexpr int norm_sequence_shared = BYTES_WITH_WEIGHTS<T, 4 * HT, IN_SHARED, 3 * HT>;

template <class T, int HT, int KEPT, int IN_SHARED>
__global__ void __launch_bounds__(4 * HT)
    norm_sequence(const T* __restrict__ x, const T* __restrict__ weight_ih,
                  const T* __restrict__ bias_ih, const T* __restrict__ bias_hh,
                  const T* __restrict__ weight_hh, const T* __restrict__ peephole_i,
                  const T* __restrict__ peephole_f, const T* __restrict__ peephole_o,
                  const T* __restrict__ ln_weight, const T* __restrict__ ln_bias,
                  const T* __restrict__ ln_c_weight, const T* __restrict__ ln_c_bias,
                  const T* __restrict__ h0, const T* __restrict__ c0,
                  const int* __restrict__ lengths, T* __restrict__ y, math_t<T>* __restrict__ c,
                  const math_t<T>* __restrict__ gates, math_t<T>* __restrict__ n,
                  math_t<T>* __restrict__ scales, T* __restrict__ hn, T* __restrict__ cn, int count,
                  int B, int H, int columns, int stride, int column, int state, int reverse,
                  int biased, int peephole, int keep, math_t<T> eps) {
    using M = math_t<T>;
    DYNAMIC_SHARED(M, h);
    int j = threadIdx.x / GATES, g = threadIdx.x % GATES, row = blockIdx.x, steps = lengths[row];
    bool unit = j < H, first_lane = unit && g == 0;
    auto weights = resident<M, 4 * HT, HT / 4, KEPT, IN_SHARED>(
        h + 3 * HT, ByGates<T, 4>{weight_hh + j * 1ll * H, g, unit ? H : 0});
    Norms<T> norms{ln_weight, ln_bias, ln_c_weight, ln_c_bias, H};
    NormOfLanes<T, HT> of_gates(h + HT, norms, g);
    NormOfLanes<T, HT> of_c(h + 2 * HT, norms, g == GATE_O ? GATE_O : C);
    Added<T> added(x, gates, weight_ih, bias_ih, bias_hh, columns, biased, unit, g, j, H);
    const T* own_peephole = g == GATE_I ? peephole_i : g == GATE_F ? peephole_f : peephole_o;
    M p = peephole && unit && g != GATE_G ? to_math(own_peephole[j]) : M(0);

    long long of_state = (state * 1ll * B + row) * H + j;
    M own_h = unit ? to_math(h0[of_state]) : M(0), own_c = unit ? to_math(c0[of_state]) : M(0);
    if (g == 0) h[j] = own_h;
    auto at_step = [&](int s) { return (reverse ? steps - 1 - s : s) * 1ll * B + row; };
    auto fetch = [&](int s) { return added.fetch(at_step(s), s < steps && unit); };
    auto next = fetch(0);
    for (int t = steps; first_lane && t < count; ++t)
        y[(t * 1ll * B + row) * stride + column + j] = from_math<T>(M(0));
    __syncthreads();  // all read h of all units, and weights in shared memory are their thread's own

    for (int s = 0; s < steps; ++s) {
        long long at = at_step(s);
        // ANCHOR: step
        M a = added.of(next), sum[1][4], scale, scale_of_c;
        next = fetch(s + 1);
        weights.template sums<HT, 4>(sum, h + 4 * g);
        a += one_of_four<4>(sum[0]);
        if (peephole && (g == GATE_I || g == GATE_F)) a += p * own_c;
        M n_a = of_gates.normalise(a, eps, scale);  // not yet that of o
        M gate = activation(of_gates.output(n_a), g == GATE_G);
        own_c = of_gate(gate, GATE_F) * own_c + of_gate(gate, GATE_I) * of_gate(gate, GATE_G);
        if (peephole && g == GATE_O) a += p * own_c;
        M n_c = of_c.normalise(g == GATE_O ? a : own_c, eps, scale_of_c);
        M half = activation(of_c.output(n_c), g != GATE_O);  // o, or the tanh beside it
        own_h = of_gate(half, GATE_O) * of_gate(half, GATE_I);
        // ANCHOR_END: step
        if (g == GATE_O) n_a = n_c, scale = scale_of_c;
        if (first_lane) h[j] = own_h, y[at * stride + column + j] = from_math<T>(own_h);
        if (unit && keep) n[(at * PARTS + g) * H + j] = n_a;
        if (first_lane && keep) n[(at * PARTS + C) * H + j] = n_c, c[at * H + j] = own_c;
        if (j == 0 && keep) scales[at * PARTS + g] = scale;
        if (threadIdx.x == 0 && keep) scales[at * PARTS + C] = scale_of_c;
        __syncthreads();  // the next step reads h
    }
    if (first_lane) hn[of_state] = from_math<T>(own_h), cn[of_state] = from_math<T>(own_c);
}
