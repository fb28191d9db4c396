// All steps of the LSTM in one launch. What does not wait for another step is there for all of them:
// ax = W_ih x and the biases (projection.cu). In the loop remain, for unit j of a row,
//
//   a_g = ax_{t,g} + Σ_k W_hh[gH + j, k] h_k        g one of the gates i, f, g, o
//   c = f c + i g        h_j = o tanh(c)
//
// The way back is v1_sequence_back.cu.
//
// Work split: a block has ROWS rows of the batch, and four neighbouring lanes a unit: thread 4 j + g goes
// on with gate g. In the products each of them has a quarter of the columns, for all four gates, so
// that an h from shared memory serves four; then they show each other their parts (resident.cuh).
//
// W_hh stays where it is from step to step: of its H weights a thread has those of the first KEPT columns
// in registers and of the next IN_SHARED in shared memory; only what is left comes from device
// memory, at every step. What a step hands to the next is in shared memory, twice: a step reads the one
// and writes the other, and needs one barrier.
//
// x of few columns is multiplied here, else its products are in gates on entry, and `columns` is 0.
// gates: T x B x 4H; with `keep` the gates after. HT is H or more: weights and h past H are zero. Other
// tensors are as v0_cell.cu has them; h is rounded to T where it is stored, not from step to step. A grid
// of ceil(B / ROWS) blocks.
#include "lstm.cuh"
#include "resident.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

// ANCHOR: shared
// h of this step and of the next, and the weights in shared memory.
template <class T, int HT, int ROWS, int, int IN_SHARED>
constexpr int lstm_sequence_shared = BYTES_WITH_WEIGHTS<T, 4 * HT, IN_SHARED, 2 * ROWS * HT>;

template <class T, int HT, int ROWS, int KEPT, int IN_SHARED>
__global__ void __launch_bounds__(4 * HT)
    lstm_sequence(const T* __restrict__ x, const T* __restrict__ weight_ih,
// ANCHOR_END: shared
                  const T* __restrict__ bias_ih, const T* __restrict__ bias_hh,
                  const T* __restrict__ weight_hh, const T* __restrict__ peephole_i,
                  const T* __restrict__ peephole_f, const T* __restrict__ peephole_o,
                  const T* __restrict__ h0, const T* __restrict__ c0,
                  const int* __restrict__ lengths, T* __restrict__ y, math_t<T>* __restrict__ c,
                  math_t<T>* __restrict__ gates, T* __restrict__ hn, T* __restrict__ cn, int count,
                  int B, int H, int columns, int stride, int column, int state, int reverse,
                  int biased, int peephole, int keep) {
    using M = math_t<T>;
    DYNAMIC_SHARED(M, memory);
    M(*h)[ROWS][HT] = reinterpret_cast<M(*)[ROWS][HT]>(memory);  // of this step and of the next
    int j = threadIdx.x / GATES, g = threadIdx.x % GATES, first_row = blockIdx.x * ROWS;
    bool unit = j < H;
    auto weights = resident<M, 4 * HT, HT / 4, KEPT, IN_SHARED>(
        memory + 2 * ROWS * HT, ByGates<T, 4>{weight_hh + j * 1ll * H, g, unit ? H : 0});
    Added<T> added(x, gates, weight_ih, bias_ih, bias_hh, columns, biased, unit, g, j, H);
    const T* own_peephole = g == GATE_I ? peephole_i : g == GATE_F ? peephole_f : peephole_o;
    M p = peephole && unit && g != GATE_G ? to_math(own_peephole[j]) : M(0);

    M own_h[ROWS], own_c[ROWS];
    int steps[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        int row = first_row + r;
        bool there = row < B && unit;
        long long at = (state * 1ll * B + row) * H + j;
        own_h[r] = there ? to_math(h0[at]) : M(0), own_c[r] = there ? to_math(c0[at]) : M(0);
        steps[r] = row < B ? lengths[row] : 0;
        if (g == 0) h[0][r][j] = own_h[r], h[1][r][j] = 0;
    }
    typename Added<T>::Fetched next[ROWS];
    auto fetch = [&](int s) {
        int t = reverse ? count - 1 - s : s;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            bool has = s < count && t < steps[r] && unit;
            next[r] = added.fetch(t * 1ll * B + first_row + r, has);
        }
    };
    fetch(0);
    __syncthreads();  // all read h of all units, and weights in shared memory are their thread's own

    for (int s = 0; s < count; ++s) {
        int t = reverse ? count - 1 - s : s;
        // ANCHOR: step
        M a[ROWS], sum[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) a[r] = added.of(next[r]);
        fetch(s + 1);
        weights.template sums<HT, 4>(sum, h[s % 2][0] + 4 * g);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            a[r] += one_of_four<4>(sum[r]);
            if (peephole && g != GATE_G && g != GATE_O) a[r] += p * own_c[r];
            M gate = activation(a[r], g == GATE_G);
            M c_t = of_gate(gate, GATE_F) * own_c[r] + of_gate(gate, GATE_I) * of_gate(gate, GATE_G);
            if (peephole && g == GATE_O) gate = sigmoid(a[r] + p * c_t);
            M h_t = of_gate(gate, GATE_O) * tangent(c_t);
            // ANCHOR_END: step
            long long at = t * 1ll * B + first_row + r;
            bool live = t < steps[r];
            if (live) own_h[r] = h_t, own_c[r] = c_t;
            if (!unit || first_row + r >= B) continue;
            if (live && keep) gates[(at * GATES + g) * H + j] = gate;
            if (g != 0) continue;
            h[(s + 1) % 2][r][j] = own_h[r];
            y[at * stride + column + j] = from_math<T>(live ? h_t : M(0));
            if (live && keep) c[at * H + j] = c_t;
        }
        __syncthreads();  // the next step reads what this wrote, and writes what this has read
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (!unit || g != 0 || first_row + r >= B) continue;
        long long at = (state * 1ll * B + first_row + r) * H + j;
        hn[at] = from_math<T>(own_h[r]), cn[at] = from_math<T>(own_c[r]);
    }
}
