// All steps of the LSTM in one launch, with the units of a row spread over several blocks. The
// equations are those of v1_sequence.cu, whose block of 256 units finds no place for their weights:
// here a group of BLOCKS blocks has room for all of them, and pays for it by handing h around at each
// step, from block to block (lab/exchange.cuh).
//
// Work split: a group has ROWS rows of the batch, a block UNITS of the HT units, and 16 neighbouring
// lanes are a unit's. Each has a sixteenth of the columns for all four gates; after they have added up
// their parts, lane 4 g + q goes on with gate g, and of four rows with row q.
//
// Backward, a block has the same weights, by columns: its own 4 UNITS rows of da give a part of dh of
// every unit; LANES neighbours have a part of the rows each, for four columns. The parts go to the
// block whose unit it is, which adds up those of all blocks: H numbers a block leave it, where da to
// everybody would be 4 H.
//
// Other tensors are as v1_sequence.cu has them. A grid of groups x BLOCKS blocks, in clusters of BLOCKS
// if `clustered`, else all resident; the first group has the rows from `first_row` on. post, flags:
// of lab/exchange.cuh, for each group.
#include "lab/exchange.cuh"
#include "lstm.cuh"
#include "resident.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

// Which unit, gate, quarter and row a thread has.
template <int BLOCKS, int UNITS, int ROWS> struct Part {
    static_assert(ROWS == 1 || ROWS == 4, "of several rows, a lane of four has one");
    int rank, group, u, g, q, j, r, row;
    bool unit, first;  // whether the unit is there; whether this lane stores what several have

    __device__ __forceinline__ Part(int first_row, int H) {
        rank = blockIdx.x % BLOCKS, group = blockIdx.x / BLOCKS;
        u = threadIdx.x / 16, g = threadIdx.x / 4 % GATES, q = threadIdx.x % 4;
        j = rank * UNITS + u, r = ROWS == 1 ? 0 : q, row = first_row + group * ROWS + r;
        unit = j < H, first = ROWS > 1 || q == 0;
    }
};

// Selects this lane's row among the values that its four lanes have of each row.
template <class M, int ROWS> __device__ __forceinline__ M own_row(const M (&of)[ROWS], int r) {
    M own = of[0];
#pragma unroll
    for (int n = 1; n < ROWS; ++n) own = r == n ? of[n] : own;
    return own;
}

// The value that a gate's lane of this unit and row has.
template <class M> __device__ __forceinline__ M of_gate(M v, Gate gate, int q) {
    return __shfl_sync(0xffffffffu, v, gate * 4 + q, 16);
}

// Two boxes of h.
template <class T, int HT, int UNITS, int ROWS, int, int IN_SHARED>
constexpr int lstm_spread_shared = BYTES_WITH_WEIGHTS<T, 16 * UNITS, IN_SHARED, 2 * ROWS * HT>;

template <class T, int HT, int UNITS, int ROWS, int KEPT, int IN_SHARED>
__global__ void __launch_bounds__(16 * UNITS)
    lstm_spread(const T* __restrict__ x, const T* __restrict__ weight_ih,
                const T* __restrict__ bias_ih, const T* __restrict__ bias_hh,
                const T* __restrict__ weight_hh, const T* __restrict__ peephole_i,
                const T* __restrict__ peephole_f, const T* __restrict__ peephole_o,
                const T* __restrict__ h0, const T* __restrict__ c0, const int* __restrict__ lengths,
                T* __restrict__ y, math_t<T>* __restrict__ c, math_t<T>* __restrict__ gates,
                T* __restrict__ hn, T* __restrict__ cn, math_t<T>* post, unsigned* flags,
                int first_row, int count, int B, int H, int columns, int stride, int column,
                int state, int reverse, int biased, int peephole, int keep, int clustered) {
    using M = math_t<T>;
    constexpr int BLOCKS = HT / UNITS, THREADS = 16 * UNITS, COUNT = ROWS * HT;
    DYNAMIC_SHARED(M, memory);
    Part<BLOCKS, UNITS, ROWS> own(first_row, H);
    int g = own.g, j = own.j, row = own.row;
    bool there = own.unit && row < B;
    Exchange<M, COUNT, BLOCKS, THREADS> h{memory, post + own.group * BLOCKS * 2 * COUNT,
                                          flags + own.group * BLOCKS, own.rank, clustered != 0};
    int lane = threadIdx.x % 16;
    auto weights = resident<M, THREADS, HT / 16, KEPT, IN_SHARED>(
        memory + 2 * COUNT, ByGates<T, 16>{weight_hh + j * 1ll * H, lane, own.unit ? H : 0});
    Added<T> added(x, gates, weight_ih, bias_ih, bias_hh, columns, biased, own.unit, g, j, H);
    const T* own_peephole = g == GATE_I ? peephole_i : g == GATE_F ? peephole_f : peephole_o;
    M p = peephole && own.unit && g != GATE_G ? to_math(own_peephole[j]) : M(0);

    for (int i = threadIdx.x; i < COUNT; i += THREADS) {
        int of = first_row + own.group * ROWS + i / HT, k = i % HT;
        bool is = of < B && k < H;
        memory[i] = is ? to_math(h0[(state * 1ll * B + of) * H + k]) : M(0);
    }
    long long of_state = (state * 1ll * B + row) * H + j;
    M own_h = there ? to_math(h0[of_state]) : M(0), own_c = there ? to_math(c0[of_state]) : M(0);
    int steps = row < B ? lengths[row] : 0;
    auto step = [&](int s) { return reverse ? count - 1 - s : s; };
    auto fetch = [&](int s) {
        int t = step(s);
        return added.fetch(t * 1ll * B + row, s < count && t < steps && own.unit);
    };
    auto next = fetch(0);
    h.begin();

    for (int s = 0; s < count; ++s) {
        int t = step(s);
        // ANCHOR: step
        M sum[ROWS][4], whole[ROWS];
        weights.template sums<HT, 16>(sum, h.read() + 4 * lane);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) whole[r] = one_of_four<16>(sum[r]);
        M a = own_row(whole, own.r) + added.of(next);
        if (peephole && g != GATE_G && g != GATE_O) a += p * own_c;
        M gate = activation(a, g == GATE_G);
        M i = of_gate(gate, GATE_I, own.q), f = of_gate(gate, GATE_F, own.q);
        M c_t = f * own_c + i * of_gate(gate, GATE_G, own.q);
        if (peephole && g == GATE_O) gate = sigmoid(a + p * c_t);
        M h_t = of_gate(gate, GATE_O, own.q) * tangent(c_t);
        bool live = t < steps;
        if (live) own_h = h_t, own_c = c_t;
        // All lanes have read h of this step, and the sums of x. What is sent lets other blocks write into
        // that box, and the first lanes of this warp write gates where the sums were.
        __syncwarp();
        // Sixteen lanes have h of one row, or four of them that of each of four.
        for (int b = ROWS == 1 ? lane : g; b < BLOCKS; b += ROWS == 1 ? 16 : 4)
            h.send(b, own.r * HT + j, own_h);
        next = fetch(s + 1);  // on its way while the blocks meet
        h.meet();
        // ANCHOR_END: step
        long long at = t * 1ll * B + row;
        if (!there || !own.first) continue;
        if (live && keep) gates[(at * GATES + g) * H + j] = gate;
        if (g != 0) continue;
        y[at * stride + column + j] = from_math<T>(live ? h_t : M(0));
        if (live && keep) c[at * H + j] = c_t;
    }
    if (there && own.first && g == 0) hn[of_state] = from_math<T>(own_h), cn[of_state] = from_math<T>(own_c);
}

// Two boxes of the parts of dh, and da of the block twice.
template <class T, int HT, int UNITS, int ROWS, int, int IN_SHARED>
constexpr int lstm_spread_back_shared =
    BYTES_WITH_WEIGHTS<T, 16 * UNITS, IN_SHARED, 2 * ROWS * (HT + 4 * UNITS)>;

// da of all steps in place of the gates, dh0 and dc0.
template <class T, int HT, int UNITS, int ROWS, int KEPT, int IN_SHARED>
__global__ void __launch_bounds__(16 * UNITS)
    lstm_spread_back(const T* __restrict__ dy, const T* __restrict__ weight_hh,
                     const T* __restrict__ peephole_i, const T* __restrict__ peephole_f,
                     const T* __restrict__ peephole_o, const T* __restrict__ c0,
                     const T* __restrict__ dhn, const T* __restrict__ dcn,
                     const int* __restrict__ lengths, const math_t<T>* __restrict__ c,
                     math_t<T>* __restrict__ gates, T* __restrict__ dh0, T* __restrict__ dc0,
                     math_t<T>* post, unsigned* flags, int first_row, int count, int B, int H,
                     int stride, int column, int state, int reverse, int peephole,
                     int clustered) {
    using M = math_t<T>;
    constexpr int BLOCKS = HT / UNITS, THREADS = 16 * UNITS, COUNT = ROWS * HT;
    constexpr int LANES = 4 * THREADS / HT, DA = GATES * UNITS;
    DYNAMIC_SHARED(M, memory);
    M* da = memory + 2 * COUNT;  // of this block's units, a row of the batch DA numbers; twice
    Part<BLOCKS, UNITS, ROWS> own(first_row, H);
    int g = own.g, j = own.j, row = own.row, u = own.u;
    bool there = own.unit && row < B;
    Exchange<M, COUNT, BLOCKS, THREADS> dh{memory, post + own.group * BLOCKS * 2 * COUNT,
                                           flags + own.group * BLOCKS, own.rank, clustered != 0};
    int lane = threadIdx.x % LANES, first = threadIdx.x / LANES * 4;  // of four columns
    int k = first + lane / (LANES / 4);  // the one whose sum this lane gets
    auto weights = resident<M, THREADS, DA / LANES, KEPT, IN_SHARED>(
        da + 2 * ROWS * DA, ByColumns<T, LANES, UNITS>{weight_hh, lane, H, first, own.rank * UNITS});
    Peepholes<M> p{};
    if (peephole && own.unit) p = peepholes<true>(peephole_i, peephole_f, peephole_o, j);

    for (int i = threadIdx.x; i < COUNT; i += THREADS) memory[i] = 0;
    long long of_state = (state * 1ll * B + row) * H + j;
    M past = there ? to_math(dhn[of_state]) : M(0);  // until the last step has it
    M dc = there ? to_math(dcn[of_state]) : M(0), own_da = 0;
    Steps steps{lengths, reverse != 0};
    auto step = [&](int s) { return reverse ? s : count - 1 - s; };
    auto fetch = [&](int s) {
        return kept_of(gates, c, c0, dy, steps, step(s), row, j, B, H, stride, column, state,
                       s < count && there);
    };
    auto sum_of_parts = [&] {  // those of all blocks, four lanes of the row together
        M sum = 0;
        for (int b = g; b < BLOCKS; b += GATES) sum += dh.read()[(b * ROWS + own.r) * UNITS + u];
        sum += __shfl_xor_sync(0xffffffffu, sum, 4);
        return sum + __shfl_xor_sync(0xffffffffu, sum, 8);
    };
    Kept<T> now = fetch(0);
    dh.begin();

    for (int s = 0; s < count; ++s) {
        int t = step(s);
        // ANCHOR: step_back
        M tanh_c = tangent(now.c), dh_t = past + sum_of_parts() + to_math(now.dy);
        bool live = there && steps.has(t, row);
        if (live) {
            M* a = now.gates;
            dc = peephole ? lstm_step_back<true>(now.gates, now.c_before, tanh_c, p, dh_t, dc)
                          : lstm_step_back<false>(now.gates, now.c_before, tanh_c, p, dh_t, dc);
            own_da = g == 0 ? a[0] : g == 1 ? a[1] : g == 2 ? a[2] : a[3], past = 0;
        }
        M* write = da + s % 2 * ROWS * DA;
        if (own.first) write[own.r * DA + g * UNITS + u] = own_da;
        __syncthreads();  // all threads read da of all units of the block
        M sum[ROWS][4];
        weights.template sums<DA, LANES>(sum, write + 4 * lane);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            M part = one_of_four<LANES>(sum[r]);  // LANES / 4 of them have it
            if (lane % (LANES / 4) == r % (LANES / 4))
                dh.send(k / UNITS, (own.rank * ROWS + r) * UNITS + k % UNITS, part);
        }
        now = fetch(s + 1);  // on its way while the blocks meet
        dh.meet();          // da may still be read, and so the next step writes the other
        // ANCHOR_END: step_back
        if (there && own.first)
            gates[((t * 1ll * B + row) * GATES + g) * H + j] = live ? own_da : M(0);
    }
    M dh_0 = past + sum_of_parts();
    if (there && own.first && g == 0) dh0[of_state] = from_math<T>(dh_0), dc0[of_state] = from_math<T>(dc);
}
