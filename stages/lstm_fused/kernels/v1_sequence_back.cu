// The way back of v1_sequence.cu in one launch, from the last step to the first:
//
//   dh_j = dy_{t,j} + Σ_g Σ_k W_hh[gH + k, j] da_{g,k}        da, dc by the gates' slopes
//
// Work split: a block has ROWS rows of the batch, and thread 4 j + g gate g of unit j, as there. In the
// products 16 lanes have a sixteenth of da each, for the dh of four units. W_hh stays where it is from
// step to step; da goes to the next through shared memory, twice, with one barrier a step.
//
// gates: T x B x 4H, as the forward pass has left them; da take their place. HT is H or more: weights and
// da past H are zero. Other tensors are as v0_cell.cu has them. A grid of ceil(B / ROWS) blocks.
#include "lstm.cuh"
#include "resident.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

// da of this step and of the next.
template <class T, int HT, int ROWS, int, int IN_SHARED>
constexpr int lstm_sequence_back_shared = BYTES_WITH_WEIGHTS<T, 4 * HT, IN_SHARED, 2 * ROWS * 4 * HT>;

// da of all steps in place of the gates, dh0 and dc0.
template <class T, int HT, int ROWS, int KEPT, int IN_SHARED>
__global__ void __launch_bounds__(4 * HT)
    lstm_sequence_back(const T* __restrict__ dy, const T* __restrict__ weight_hh,
                       const T* __restrict__ peephole_i, const T* __restrict__ peephole_f,
                       const T* __restrict__ peephole_o, const T* __restrict__ c0,
                       const T* __restrict__ dhn, const T* __restrict__ dcn,
                       const int* __restrict__ lengths, const math_t<T>* __restrict__ c,
                       math_t<T>* __restrict__ gates, T* __restrict__ dh0, T* __restrict__ dc0,
                       int count, int B, int H, int stride, int column, int state, int reverse,
                       int peephole) {
    using M = math_t<T>;
    constexpr int ROW = GATES * HT;  // da of a row of the batch
    DYNAMIC_SHARED(M, memory);
    int j = threadIdx.x / GATES, g = threadIdx.x % GATES, first_row = blockIdx.x * ROWS;
    bool unit = j < H;
    Steps steps{lengths, reverse != 0};
    auto weights = resident<M, 4 * HT, HT / 4, KEPT, IN_SHARED>(
        memory + 2 * ROWS * ROW,
        ByColumns<T, 16, HT>{weight_hh, int(threadIdx.x % 16), H, j / 4 * 4, 0});
    Peepholes<M> p{};
    if (peephole && unit) p = peepholes<true>(peephole_i, peephole_f, peephole_o, j);

    M own_da[ROWS], past[ROWS], dc[ROWS];  // past: dhn, until the last step has it
    int own_steps[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        int row = first_row + r;
        bool there = row < B && unit;
        long long at = (state * 1ll * B + row) * H + j;
        past[r] = there ? to_math(dhn[at]) : M(0), dc[r] = there ? to_math(dcn[at]) : M(0);
        own_da[r] = 0, own_steps[r] = row < B ? lengths[row] : 0;
        M* of_row = memory + r * ROW + g * HT + j;
        of_row[0] = of_row[ROWS * ROW] = 0;
    }
    __syncthreads();  // all read da of all units, which are zero so far

    M sum[ROWS][4];
    Kept<T> next[ROWS];
    auto fetch = [&](int s) {
        int t = reverse ? s : count - 1 - s;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            bool there = s < count && unit && first_row + r < B;
            next[r] = kept_of(gates, c, c0, dy, steps, t, first_row + r, j, B, H, stride, column,
                              state, there);
        }
    };
    fetch(0);
    for (int s = 0; s < count; ++s) {
        int t = reverse ? s : count - 1 - s;
        M* read = memory + s % 2 * ROWS * ROW;
        M* write = memory + (s + 1) % 2 * ROWS * ROW;
        // ANCHOR: step_back
        Kept<T> now[ROWS];
        M u[ROWS];  // tanh(c_t), before the sums are needed
#pragma unroll
        for (int r = 0; r < ROWS; ++r) now[r] = next[r], u[r] = tangent(now[r].c);
        fetch(s + 1);
        weights.template sums<ROW, 16>(sum, read + threadIdx.x % 16 * 4);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            M dh = past[r] + one_of_four<16>(sum[r]);  // that of unit j
            int row = first_row + r;
            if (!unit || row >= B) continue;
            if (t < own_steps[r]) {
                M(&a)[GATES] = now[r].gates;
                dh += to_math(now[r].dy);
                dc[r] = peephole ? lstm_step_back<true>(a, now[r].c_before, u[r], p, dh, dc[r])
                                 : lstm_step_back<false>(a, now[r].c_before, u[r], p, dh, dc[r]);
                own_da[r] = g == 0 ? a[0] : g == 1 ? a[1] : g == 2 ? a[2] : a[3];
                past[r] = 0;
            }
            // ANCHOR_END: step_back
            write[r * ROW + g * HT + j] = own_da[r];
        }
        __syncthreads();  // the gates are read that da overwrite; the next step reads this one's da
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            int row = first_row + r;
            if (!unit || row >= B) continue;
            M da = t < own_steps[r] ? own_da[r] : M(0);
            gates[((t * 1ll * B + row) * GATES + g) * H + j] = da;
        }
    }
    weights.template sums<ROW, 16>(sum, memory + count % 2 * ROWS * ROW + threadIdx.x % 16 * 4);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        M dh = past[r] + one_of_four<16>(sum[r]);  // that of unit j
        if (!unit || g != 0 || first_row + r >= B) continue;
        long long at = (state * 1ll * B + first_row + r) * H + j;
        dh0[at] = from_math<T>(dh), dc0[at] = from_math<T>(dc[r]);
    }
}
