// All steps of the LSTM's way back in one launch, for many rows: what a step's da hand back to the h before it is a
// product of matrices, on tensor cores.
//
//   dh_{t−1} = W_hhᵀ da_t + dy_{t−1}     products of T's, sums in f32; da as in lstm.cuh
//
// Work split: a cluster has ROWS rows of the batch, a block the da of UNITS units. It keeps the rows of W_hh that belong to
// their gates, by columns: their product with its da is a part of dh of all HT units. A warp multiplies for one or two
// blocks of the cluster, and sends each its part (lab/slices.cuh), in f32; who owns a unit adds up the parts of all blocks, always in
// the same order. A part leaves a block for each row and unit, where da would be four.
//
// Steps: parts have come · cells, da of this block · a barrier · products, each warp's, which it sends. All that a cell
// takes from the gates and c alone is computed before the parts come.
//
// gates, c: as v3_tensor.cu leaves them, or, if `together`, v5_wgmma.cu. da goes to the gates' place in f32, or, if `halves`,
// as it is then, to da_halves [T B, 4H] in T; zero where a row has no step. first_da [B, 4H]: da of each row's first step; bias_sums [B, 4H]: of all its steps.
// Other tensors are as v1_sequence_back.cu has them. A grid of B / ROWS clusters, rounded up. f16 and bf16 alone, no
// peepholes.
#include "lab/fragments.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/slices.cuh"
#include "tensor_back.cuh"

using namespace lab;

// A cluster's shares of the products: a warp has the rows of W_hhᵀ that are units of the blocks w and, of 16, w + 8; all
// da of the block.
template <int HT, int BLOCKS, int ROWS, int KEPT>
struct BackShares : WarpShare<HT / 16 / 8, HT / BLOCKS / 4, (ROWS + 7) / 8, KEPT> {
    static constexpr int UNITS = HT / BLOCKS, CELLS = UNITS * ROWS, DA = GATES * CELLS, OF_BLOCK = UNITS / 16;
    // Rows of a slice lie 4 further than a multiple of 16 numbers: lanes of a fragment's rows store to all banks.
    static constexpr int PITCH = UNITS + 4, SLICE = ROWS * PITCH, BOX = BLOCKS * SLICE;
    // Fragments, sums of da, boxes and slices, da of two steps; barriers and words of lab/slices.cuh.
    static constexpr int BYTES = 16 * (BackShares::IN_SHARED * BackShares::THREADS + CELLS) + 4 * 4 * BOX + 2 * 2 * DA +
                                 sizeof(Arrived<BLOCKS>);
    static_assert(UNITS % 16 == 0 && UNITS * BLOCKS == HT, "whole tiles for each block: change HT or BLOCKS");
    static_assert(BLOCKS % 8 == 0, "a warp has all units of a block, or of two");
};

template <class T, int HT, int BLOCKS, int ROWS, int KEPT>
constexpr int lstm_tensor_back_shared = BackShares<HT, BLOCKS, ROWS, KEPT>::BYTES;

template <class T, int HT, int BLOCKS, int ROWS, int KEPT>
__global__ void __launch_bounds__(256, 1)
    lstm_tensor_back(const T* __restrict__ dy, const T* __restrict__ weight_hh, const T* __restrict__ c0,
                     const T* __restrict__ dhn, const T* __restrict__ dcn, const int* __restrict__ lengths,
                     const float* __restrict__ c, float* __restrict__ gates, T* __restrict__ da_halves,
                     T* __restrict__ first_da, float* __restrict__ bias_sums, T* __restrict__ dh0,
                     T* __restrict__ dc0, int count, int B, int H, int stride, int column, int state, int reverse,
                     int together, int halves) {
    using S = BackShares<HT, BLOCKS, ROWS, KEPT>;
    using Cell = CellOf<S, ROWS>;
    DYNAMIC_SHARED(uint4, fragments);
    // This thread's cells' sums of da, for the biases; they have no place in registers.
    float4* bias = reinterpret_cast<float4*>(fragments + S::IN_SHARED * S::THREADS) + threadIdx.x;
    float* boxes = reinterpret_cast<float*>(fragments + S::IN_SHARED * S::THREADS + S::CELLS);
    T* das = reinterpret_cast<T*>(boxes + 4 * S::BOX);  // of even steps and of odd ones
    auto* arrived = reinterpret_cast<Arrived<BLOCKS>*>(das + 2 * S::DA);
    int rank = blockIdx.x % BLOCKS, first_row = blockIdx.x / BLOCKS * ROWS, first_unit = rank * S::UNITS;
    int warp = threadIdx.x / 32;
    Slices<float, BLOCKS, S::SLICE, S::THREADS, BLOCKS> parts(boxes, boxes + 2 * S::BOX, *arrived, rank);
    // Tile m has the units of block peer(m), from unit(m) on.
    auto peer = [&](int m) { return warp + m / S::OF_BLOCK * S::WARPS; };
    auto unit = [](int m) { return m % S::OF_BLOCK * 16; };
    Fragments<T, S> weights(fragments);
    fill_by_gates(weights, weight_hh, H, H * 1ll * H, [&](int m, int k) {
        return make_int2(peer(m) * S::UNITS + unit(m), first_unit + k * 4);
    });

    for (int i = threadIdx.x; i < S::BOX; i += S::THREADS) parts.box(0)[i] = 0;
    for (int i = threadIdx.x; i < 2 * S::BOX; i += S::THREADS) parts.slice(0)[i] = 0;  // what lies between rows goes along
    auto cell = [&](int n) { return Cell(n, first_unit, first_row, B, H); };
    long long of_states = state * 1ll * B * H;
    auto step = [&](int s) { return reverse ? s : count - 1 - s; };
    KeptCell<T> now[Cell::COUNT];
    float dc[Cell::COUNT];
    int length[Cell::COUNT];
    uint2 own_da[Cell::COUNT];  // of the latest step that the row has
    auto live = [&](int n, int s) { return s < count && step(s) < length[n]; };
    int apart = together ? 1 : H;
    // Of the row's first step, forward, c_before is c0, and dh gets dhn at its last: both are seen to later.
    auto fetch = [&](int s) {
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n) {
            Cell of = cell(n);
            int t = step(s);
            bool there = live(n, s), begins = Ends(t, length[n], reverse != 0).first;
            long long at = (t * 1ll * B + of.row) * H + of.j, before = (reverse ? 1ll : -1ll) * B * H;
            const float* g = gates + (together ? at * GATES : at + (t * 1ll * B + of.row) * (GATES - 1) * H);
            now[n].gates = there ? make_float4(g[0], g[apart], g[2 * apart], g[3 * apart]) : make_float4(0, 0, 0, 0);
            now[n].c = there ? c[at] : 0.0f, now[n].c_before = there && !begins ? c[at + before] : 0.0f;
            now[n].dy = there ? dy[(t * 1ll * B + of.row) * stride + column + of.j] : from_math<T>(0);
        }
    };
    auto sum_of_parts = [&](Cell of, int s) {
        const float* own = parts.box(s) + of.r * S::PITCH + of.u;
        float sum = 0;
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) sum += own[b * S::SLICE];
        return sum;
    };
#pragma unroll
    for (int n = 0; n < Cell::COUNT; ++n) {
        dc[n] = cell(n).there ? to_math(dcn[of_states + cell(n).in_step]) : 0.0f;
        length[n] = cell(n).there ? lengths[cell(n).row] : 0, own_da[n] = make_uint2(0, 0);
        if (cell(n).is) bias[n * S::THREADS] = make_float4(0, 0, 0, 0);
    }
    fetch(0);
    parts.begin();

    for (int s = 0; s < count; ++s) {
        T* da = das + s % 2 * S::DA;
        // ANCHOR: step_back
        Factors factors[Cell::COUNT];
        float upstream[Cell::COUNT];
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n) {
            Ends ends(step(s), length[n], reverse != 0);
            long long at = of_states + cell(n).in_step;
            upstream[n] = live(n, s) && ends.last ? to_math(dhn[at]) : 0.0f;
            if (live(n, s) && ends.first) now[n].c_before = to_math(c0[at]);
            factors[n].template take<T>(now[n].gates, now[n].c, now[n].c_before);
        }
        if (s > 0) parts.wait(s);
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n) {
            Cell of = cell(n);
            if (!of.is) continue;
            float dh = sum_of_parts(of, s) + to_math(now[n].dy) + upstream[n];
            float4 own = make_float4(0, 0, 0, 0);
            if (live(n, s)) {
                own = factors[n].step(dh, dc[n]), add(bias[n * S::THREADS], own);
                own_da[n] = four_halves_of<T>(own);
            }
            // Of a row that has no more steps, those of its first: their products are dh0.
            *reinterpret_cast<uint2*>(da + (of.u / 4 * ROWS + of.r) * 16 + of.u % 4 * 4) = own_da[n];
            long long at = (step(s) * 1ll * B + of.row) * GATES * H + of.j;
            if (of.there && !halves) store_gates(gates + at, H, own);
            if (of.there && halves) store_gates(da_halves + at, H, own);
        }
        __syncthreads();  // warps multiply da of all units of the block, and the box is read
        parts.tell(s);
        fetch(s + 1);  // on its way while the blocks meet
        float sum[S::TILES][S::COLUMNS][4];
        weights.template multiply<ROWS>(sum, da);
#pragma unroll
        for (int m = 0; m < S::TILES; ++m) store_part<S, ROWS>(parts.slice(s, peer(m)) + unit(m), sum[m]);
        parts.send(s);  // da may still be read, and so the next step writes the other
        // ANCHOR_END: step_back
    }
    parts.wait(count);
#pragma unroll
    for (int n = 0; n < Cell::COUNT; ++n) {
        Cell of = cell(n);
        if (!of.there) continue;
        float dh = length[n] > 0 ? sum_of_parts(of, count) : to_math(dhn[of_states + of.in_step]);
        dh0[of_states + of.in_step] = from_math<T>(dh), dc0[of_states + of.in_step] = from_math<T>(dc[n]);
        long long at = of.row * 1ll * GATES * H + of.j;
        store_gates(first_da + at, H, four_floats<T>(own_da[n])), store_gates(bias_sums + at, H, bias[n * S::THREADS]);
    }
    parts.end();
}
