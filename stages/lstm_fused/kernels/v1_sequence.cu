// All steps of the LSTM in one launch. What does not wait for the step before, W_ih x_t and the
// biases, is there for all steps (products.cu). In the loop remain, for unit j of a row,
//
//   a_g = ax_{t,g} + Σ_k W_hh[gH + j, k] h_k        g one of the gates i, f, g, o
//   c = f c + i g        h_j = o tanh(c)
//
// Work split: a block has ROWS rows of the batch, and a thread has a gate of a unit: thread 4 j + g. So
// the four gates of a unit lie in neighbouring lanes, that show each other their values, and each of
// the four has c. W_hh stays where it is from step to step: of its row a thread has the first KEPT
// weights in registers and the next IN_SHARED in shared memory; only what is left comes from device
// memory, at every step. h is in shared memory, twice: a step reads the one and writes the other, and
// needs one barrier.
//
// gates: T x B x 4H, on entry ax, and with `keep` the gates in their places after. HT is H or more:
// weights and h past H are zero. Other tensors are as v0_cell.cu has them; h is rounded to T where it
// is stored, not from step to step. A grid of ceil(B / ROWS) blocks.
#include "lab/lstm.cuh"
#include "lab/pack.cuh"
#include "lab/shared.cuh"

// Four neighbours, 16 bytes at a time.
template <class M> __device__ __forceinline__ void load_four(M (&to)[4], const M* from) {
    constexpr int N = Pack<M>::N;
#pragma unroll
    for (int i = 0; i < 4; i += N) {
        Pack<M> pack = load_pack(from + i);
#pragma unroll
        for (int p = 0; p < N; ++p) to[i + p] = pack.v[p];
    }
}

// ANCHOR: weights
// The row of weight_hh of a thread of 4 HT.
template <class T, int HT, int KEPT, int IN_SHARED> struct WeightRow {
    using M = math_t<T>;
    static constexpr int RESIDENT = KEPT + IN_SHARED;
    static_assert(KEPT % 4 == 0 && IN_SHARED % 4 == 0, "weights meet h in fours");
    static_assert(RESIDENT <= HT, "no more than a row has");
    M kept[KEPT];
    M* shared;     // k of it at 4 HT k: neighbouring threads read neighbours
    const T* row;  // in device memory; none of a unit past H
    int H;

    __device__ __forceinline__ WeightRow(const T* row, M* memory, int H)
        : shared(memory + threadIdx.x), row(row), H(row ? H : 0) {
#pragma unroll
        for (int k = 0; k < KEPT; ++k) kept[k] = weight(k);
        for (int k = 0; k < IN_SHARED; ++k) shared[k * 4 * HT] = weight(KEPT + k);
    }
    __device__ __forceinline__ M weight(int k) const { return k < H ? to_math(row[k]) : M(0); }

    // sum_r += Σ_k w_k h_rk, in four sums for four neighbours.
    template <int ROWS>
    __device__ __forceinline__ void add_dots(M (&sum)[ROWS][4], const M (*h)[HT]) const {
#pragma unroll
        for (int k = 0; k < KEPT; k += 4)
            add_four(sum, h, k, kept[k], kept[k + 1], kept[k + 2], kept[k + 3]);
#pragma unroll 4
        for (int k = 0; k < IN_SHARED; k += 4) {
            const M* w = shared + k * 4 * HT;
            add_four(sum, h, KEPT + k, w[0], w[4 * HT], w[8 * HT], w[12 * HT]);
        }
        if constexpr (RESIDENT < HT)
            for (int k = RESIDENT; k < H; k += 4)
                add_four(sum, h, k, weight(k), weight(k + 1), weight(k + 2), weight(k + 3));
    }

    template <int ROWS>
    __device__ __forceinline__ static void add_four(M (&sum)[ROWS][4], const M (*h)[HT], int k,
                                                    M w0, M w1, M w2, M w3) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            M h_k[4];
            load_four(h_k, &h[r][k]);
            sum[r][0] += w0 * h_k[0];
            sum[r][1] += w1 * h_k[1];
            sum[r][2] += w2 * h_k[2];
            sum[r][3] += w3 * h_k[3];
        }
    }
};
// ANCHOR_END: weights

// The value that a gate's lane of this unit has.
template <class M> __device__ __forceinline__ M of_gate(M v, Gate gate) {
    return __shfl_sync(0xffffffffu, v, gate, GATES);
}

template <class T, int HT, int ROWS, int KEPT, int IN_SHARED>
__global__ void __launch_bounds__(4 * HT)
    lstm_sequence(const T* __restrict__ weight_hh, const T* __restrict__ peephole_i,
                  const T* __restrict__ peephole_f, const T* __restrict__ peephole_o,
                  const T* __restrict__ h0, const T* __restrict__ c0,
                  const int* __restrict__ lengths, T* __restrict__ y, math_t<T>* __restrict__ c,
                  math_t<T>* __restrict__ gates, T* __restrict__ hn, T* __restrict__ cn, int count,
                  int B, int H, int stride, int column, int state, int reverse, int peephole,
                  int keep) {
    using M = math_t<T>;
    DYNAMIC_SHARED(M, memory);
    M(*h)[ROWS][HT] = reinterpret_cast<M(*)[ROWS][HT]>(memory);  // of this step and of the next
    int j = threadIdx.x / GATES, g = threadIdx.x % GATES, first_row = blockIdx.x * ROWS;
    bool unit = j < H;
    WeightRow<T, HT, KEPT, IN_SHARED> weights(
        unit ? weight_hh + (g * 1ll * H + j) * H : nullptr, memory + 2 * ROWS * HT, H);
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
    __syncthreads();  // all read h of all units, and weights in shared memory are their thread's own

    for (int s = 0; s < count; ++s) {
        int t = reverse ? count - 1 - s : s;
        // ANCHOR: step
        M a[ROWS], sum[ROWS][4] = {};
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {  // on their way during the products
            long long at = t * 1ll * B + first_row + r;
            a[r] = t < steps[r] && unit ? gates[(at * GATES + g) * H + j] : M(0);
        }
        weights.add_dots(sum, h[s % 2]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            a[r] += (sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]);
            if (peephole && g != GATE_G && g != GATE_O) a[r] += p * own_c[r];
            M gate = g == GATE_G ? tangent(a[r]) : sigmoid(a[r]);
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
