// All steps of the LSTM in one launch, where a cluster has more than four rows: W_hh h of a step by wgmma.
//
//   a_t = ax_t + W_hh h_{t−1}        products of T's, sums in f32; then as in lstm.cuh
//
// Work split: a cluster has ROWS rows of the batch, and keeps all of W_hh: a block the four gates of UNITS units, a
// warpgroup of it those of 16, 64 rows of weights, and all of the sum over h. KEPT steps of the sum are fragments in
// registers, the others operands in shared memory. The gates of a unit are neighbours, so that two lanes have all four of
// two cells: each takes one, and no sum leaves the registers. A thread keeps the c and h of its cells.
//
// Steps: h comes, and the products of what has come (lab/slices.cuh) · cells, h of this block · send · y. A box of h has,
// for each 8 units, the rows one below the other: an operand without swizzle.
//
// ax: T x B rows of H units, the four gates of a unit side by side, T's. `together`: gates are kept likewise, [T B, H, 4],
// for v6_wgmma_back.cu; else [T B, 4, H]. Other tensors are as v1_sequence.cu has them. A
// grid of B / ROWS clusters, rounded up. f16 and bf16 alone, no peepholes.
#include "lab/gate_groups.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/slices.cuh"
#include "lstm.cuh"
#include "quick_step.cuh"

using namespace lab;

template <class T, int HT, int BLOCKS, int ROWS, int KEPT>
constexpr int lstm_wgmma_shared = GroupShares<HT, BLOCKS, ROWS, KEPT>::BYTES;

template <class T, int HT, int BLOCKS, int ROWS, int KEPT>
__global__ void __launch_bounds__(GroupShares<HT, BLOCKS, ROWS, KEPT>::THREADS, 1)
    lstm_wgmma(const T* __restrict__ ax, const T* __restrict__ weight_hh, const T* __restrict__ h0,
               const T* __restrict__ c0, const int* __restrict__ lengths, T* __restrict__ y, float* __restrict__ c,
               float* __restrict__ gates, T* __restrict__ hn, T* __restrict__ cn, int count, int B, int H, int stride,
               int column, int state, int reverse, int keep, int together) {
    using S = GroupShares<HT, BLOCKS, ROWS, KEPT>;
    DYNAMIC_SHARED(uint4, operands);
    T* boxes = reinterpret_cast<T*>(operands + S::IN_SHARED * S::GROUPS * S::OPERAND);
    T* slices = boxes + 2 * S::BOX;
    auto* arrived = reinterpret_cast<Arrived<BLOCKS>*>(slices + 2 * S::SLICE);
    int rank = blockIdx.x % BLOCKS, first_row = blockIdx.x / BLOCKS * ROWS, first_unit = rank * S::UNITS;
    Slices<T, BLOCKS, S::SLICE, S::THREADS, 1, S::GAP> h(boxes, slices, *arrived, rank);
    GateGroups<T, S> weights(operands, weight_hh, first_unit, H);

    for (int i = threadIdx.x; i < 2 * S::BOX; i += S::THREADS) {
        int of_part = i % (S::PART + S::GAP), n = i / (S::PART + S::GAP) * S::PART + of_part;
        int row = first_row + n / 8 % ROWS, k = n / 8 / ROWS * 8 + n % 8;
        bool is = of_part < S::PART && row < B && k < H;
        boxes[i] = is && i < S::BOX ? h0[(state * 1ll * B + row) * H + k] : from_math<T>(0);
    }
    long long of_states = state * 1ll * B * H;
    auto step = [&](int s) { return reverse ? count - 1 - s : s; };
    GroupCells<S, ROWS> cells(first_unit, first_row, B, H);
    // This thread's cells of a step; of the next one.
    auto x_of = reinterpret_cast<const uint2*>(ax) + step(0) * 1ll * B * H + cells.in_step(0);
    T* y_of = y + (step(0) * 1ll * B + cells.row(0)) * stride + column + cells.unit();
    long long onwards = (reverse ? -1ll : 1ll) * B;
    auto fetch = [&](uint2(&to)[S::CELLS]) {
#pragma unroll
        for (int n = 0; n < S::CELLS; ++n) to[n] = cells.there(n) ? x_of[8 * n * H] : make_uint2(0, 0);
    };
    float own_c[S::CELLS];
    T own_h[S::CELLS];
    int length[S::CELLS];
    uint2 next[S::CELLS];
#pragma unroll
    for (int n = 0; n < S::CELLS; ++n) {
        own_c[n] = cells.there(n) ? to_math(c0[of_states + cells.in_step(n)]) : 0.0f;
        own_h[n] = cells.there(n) ? h0[of_states + cells.in_step(n)] : from_math<T>(0);
        length[n] = cells.there(n) ? lengths[cells.row(n)] : 0;
    }
    h.begin();
    fetch(next);

    for (int s = 0; s < count; ++s) {
        int t = step(s);
        // ANCHOR: step
        uint2 x[S::CELLS];
#pragma unroll
        for (int n = 0; n < S::CELLS; ++n) x[n] = next[n];
        if (s + 1 < count) x_of += onwards * H;  // the last step's come twice
        float sum[S::CELLS][4];
        weights.template multiply<S::PARTS>(sum, h.box(s), [&](int part) {
            if (s > 0) h.wait(s, part);
            if (part == 0) fetch(next);
        });
        float4 kept[S::CELLS];
#pragma unroll
        for (int n = 0; n < S::CELLS; ++n) {
            float4 a = weights.gates(sum[n]);
            float2 i_f = floats_of<T>(x[n].x), g_o = floats_of<T>(x[n].y);
            a.x += i_f.x, a.y += i_f.y, a.z += g_o.x, a.w += g_o.y;
            float c_t = own_c[n], h_t = quick_step(a, c_t);
            bool live = t < length[n];
            own_c[n] = live ? c_t : own_c[n];
            own_h[n] = live ? from_math<T>(h_t) : own_h[n];
            if (cells.is(n)) h.slice(s)[cells.in_slice(n)] = own_h[n];
            kept[n] = a;
        }
        if (s + 1 < count) h.send(s), h.tell(s);
        // ANCHOR_END: step
#pragma unroll
        for (int n = 0; n < S::CELLS; ++n) {
            if (!cells.there(n)) continue;
            bool live = t < length[n];
            y_of[8 * n * stride] = live ? own_h[n] : from_math<T>(0);
            if (!keep || !live) continue;
            long long at = t * 1ll * B + cells.row(n);
            if (together) store_together(gates, c, kept[n], own_c[n], at, cells.unit(), H);
            else store_kept(gates, c, kept[n], own_c[n], at, cells.unit(), H);
        }
        y_of += onwards * stride;
    }
#pragma unroll
    for (int n = 0; n < S::CELLS; ++n)
        if (cells.there(n)) {
            hn[of_states + cells.in_step(n)] = own_h[n];
            cn[of_states + cells.in_step(n)] = from_math<T>(own_c[n]);
        }
    h.end();
}
