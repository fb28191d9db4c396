// All steps of the LSTM in one launch, where a cluster has more than four rows: W_hh h of a step by wgmma.
//
//   a_t = ax_t + W_hh h_{t−1}        products of T's, sums in f32; then as in lstm.cuh
//
// Work split: a cluster has ROWS rows of the batch, and keeps all of W_hh: a block the four gates of UNITS units, a
// warpgroup of it those of 16, 64 rows of weights, and all of the sum over h. KEPT steps of the sum are fragments in
// registers, the others operands in shared memory. The gates of a unit are neighbours, so that two lanes have all four of
// two cells: each takes one, and no sum leaves the registers. A thread keeps the c and h of its cells.
//
// Steps: h comes, and the products of what has come (lab/slices.cuh) · cells, h of this block · send · what this step leaves
// (cell_boxes.cuh) is put down, and stored behind the next step's barrier. A box of h has, for each 8 units, the rows one
// below the other: an operand without swizzle.
//
// ax: T x B rows of H units, the four gates of a unit side by side, T's; H is a multiple of 8. Gates are kept likewise,
// [T B, H, 4], and c, if `keep`. To TMA these and y are [T, H / 8, B, lines of 8 units]. Other tensors are as v1_sequence.cu
// has them. A grid of B / ROWS clusters, rounded up. f16 and bf16 alone, no peepholes.
#include "cell_boxes.cuh"
#include "gate_groups.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/grid_dependency.cuh"
#include "lab/slices.cuh"
#include "lstm.cuh"
#include "quick_step.cuh"

using namespace lab;

template <class T, int HT, int BLOCKS, int ROWS, int KEPT>
constexpr int lstm_wgmma_shared = GroupShares<HT, BLOCKS, ROWS, KEPT>::BYTES + 2 * sizeof(Mbarrier) +
                                  CellBoxes<T, GroupShares<HT, BLOCKS, ROWS, KEPT>, ROWS>::BYTES;

template <class T, int HT, int BLOCKS, int ROWS, int KEPT>
__global__ void __launch_bounds__(GroupShares<HT, BLOCKS, ROWS, KEPT>::THREADS, 1)
    lstm_wgmma(const __grid_constant__ TensorMap AX, const __grid_constant__ TensorMap GATES_KEPT,
               const __grid_constant__ TensorMap C_KEPT, const __grid_constant__ TensorMap Y,
               const T* __restrict__ weight_hh, const T* __restrict__ h0, const T* __restrict__ c0,
               const int* __restrict__ lengths, T* __restrict__ hn, T* __restrict__ cn, int count, int B, int H,
               int state, int reverse, int keep) {
    using S = GroupShares<HT, BLOCKS, ROWS, KEPT>;
    using Boxes = CellBoxes<T, S, ROWS>;
    DYNAMIC_TILES(char, memory);
    uint4* operands = reinterpret_cast<uint4*>(memory + Boxes::BYTES);
    T* boxes = reinterpret_cast<T*>(operands + S::IN_SHARED * S::GROUPS * S::OPERAND);
    T* slices = boxes + 2 * S::BOX;
    auto* arrived = reinterpret_cast<Arrived<BLOCKS>*>(slices + 2 * S::SLICE);
    int rank = blockIdx.x % BLOCKS, first_row = blockIdx.x / BLOCKS * ROWS, first_unit = rank * S::UNITS;
    Boxes of_cells{memory, reinterpret_cast<Mbarrier*>(arrived + 1), AX, GATES_KEPT, C_KEPT, Y,
                   first_row, first_unit / 8, keep != 0};
    Slices<T, BLOCKS, S::SLICE, S::THREADS, 1, S::GAP> h(boxes, slices, *arrived, rank);
    GateGroups<T, S> weights(operands, weight_hh, first_unit, H);

    for (int i = threadIdx.x; i < 2 * S::BOX; i += S::THREADS) {
        int of_part = i % (S::PART + S::GAP), n = i / (S::PART + S::GAP) * S::PART + of_part;
        int row = first_row + n / 8 % ROWS, k = n / 8 / ROWS * 8 + n % 8;
        bool is = of_part < S::PART && row < B && k < H;  // in the box of odd steps none: k is HT and more
        boxes[i] = is ? h0[(state * 1ll * B + row) * H + k] : from_math<T>(0);
    }
    long long of_states = state * 1ll * B * H;
    auto step = [&](int s) { return reverse ? count - 1 - s : s; };
    GroupCells<S, ROWS> cells(first_unit, first_row, B, H);
    float own_c[S::CELLS];
    T own_h[S::CELLS];
    int length[S::CELLS];
#pragma unroll
    for (int n = 0; n < S::CELLS; ++n) {
        own_c[n] = cells.there(n) ? to_math(c0[of_states + cells.in_step(n)]) : 0.0f;
        own_h[n] = cells.there(n) ? h0[of_states + cells.in_step(n)] : from_math<T>(0);
        length[n] = cells.there(n) ? lengths[cells.row(n)] : 0;
    }
    of_cells.init();
    griddep_wait();  // for ax: all else was there before
    h.begin();
    if (of_cells.is_asking())
        for (int s = 0; s < 2 && s < count; ++s) of_cells.load(s, step(s));

    for (int s = 0; s < count; ++s) {
        int t = step(s);
        // ANCHOR: step
        of_cells.wait(s);
        uint2 x[S::CELLS];  // while h is on its way: later they would be waited for
#pragma unroll
        for (int n = 0; n < S::CELLS; ++n) x[n] = of_cells.ax(s, cells.u, cells.is(n) ? cells.first + 8 * n : 0);
        float sum[S::CELLS][4];
        weights.template multiply<S::PARTS>(sum, h.box(s), [&](int part) {
            if (s > 0) h.wait(s, part);
        });
        float4 kept[S::CELLS];
#pragma unroll
        for (int n = 0; n < S::CELLS; ++n) {
            float4 a = weights.gates(sum[n]);
            float2 i_f = floats_of<T>(x[n].x), g_o = floats_of<T>(x[n].y);
            a.x += i_f.x, a.y += i_f.y, a.z += g_o.x, a.w += g_o.y;
            float c_t = own_c[n], h_t = quick_step<T>(a, c_t);
            bool live = t < length[n];
            own_c[n] = live ? c_t : own_c[n];
            own_h[n] = live ? from_math<T>(h_t) : own_h[n];
            if (cells.is(n)) h.slice(s)[cells.in_slice(n)] = own_h[n];
            kept[n] = a;
        }
        of_cells.wait_stored();  // of the step before the last
        if (s + 1 < count) h.send(s), h.tell(s);
        else fence_proxy_async_shared(), __syncthreads();  // copies see what threads have put
        // ANCHOR_END: step
        if (of_cells.is_asking()) {
            if (s + 2 < count) of_cells.load(s + 2, step(s + 2));
            if (s > 0) of_cells.store(s - 1, step(s - 1));
        }
#pragma unroll
        for (int n = 0; n < S::CELLS; ++n) {
            if (!cells.is(n)) continue;
            bool live = t < length[n];
            of_cells.put(s, cells.u, cells.first + 8 * n, kept[n], own_c[n], live ? own_h[n] : from_math<T>(0));
        }
    }
    fence_proxy_async_shared(), __syncthreads();  // copies see what the last step has put
    if (of_cells.is_asking()) of_cells.store(count - 1, step(count - 1));
#pragma unroll
    for (int n = 0; n < S::CELLS; ++n)
        if (cells.there(n)) {
            hn[of_states + cells.in_step(n)] = own_h[n];
            cn[of_states + cells.in_step(n)] = from_math<T>(own_c[n]);
        }
    of_cells.wait_stored();
    h.end();
}
