// All steps of the sLSTM in one launch: a cluster for a head of some rows, whose weights stay in registers.
//
//   a_t = wx_t + R h_{t−1} + b        products of T's, sums in f32, on tensor cores; then as in slstm.cuh
//
// Work split: heads do not meet, so a cluster is a head of ROWS rows, and a block the four gates of UNITS units (heads.cuh).
// Its eight warps have them as fragments: half of the warps have one half of the sum over h. All leave their sums in shared
// memory, where a thread finds the four gates of its cells: a unit of a row each. It keeps their c, n and m (slstm.cuh).
//
// Steps: h comes, and the products of what has come · sums · cells, h of this block · send. wx of the next step is on its
// way meanwhile; what a step stores, it stores when h has been sent.
//
// Tensors as v0_cell.cu has them. A grid of NH ⌈B / ROWS⌉ clusters. f16 and bf16 alone.
#include "heads.cuh"

using namespace lab;

template <class T, int HT, int BLOCKS, int ROWS>
constexpr int slstm_heads_shared = ForwardShares<HT, BLOCKS, ROWS>::BYTES;

template <class T, int HT, int BLOCKS, int ROWS>
__global__ void __launch_bounds__(256, 1)
    slstm_heads(const T* __restrict__ wx, const T* __restrict__ r, const T* __restrict__ b, const T* __restrict__ h0,
                const float* __restrict__ c0, const float* __restrict__ n0, const float* __restrict__ m0,
                T* __restrict__ y, float* __restrict__ kept, float* __restrict__ first, T* __restrict__ hn,
                float* __restrict__ cn, float* __restrict__ nn, float* __restrict__ mn, int count, int B, int NH, int DH,
                int keep) {
    using S = ForwardShares<HT, BLOCKS, ROWS>;
    using Cell = CellOf<S, ROWS>;
    DYNAMIC_SHARED(float4, sums);
    T* boxes = reinterpret_cast<T*>(sums + S::HALVES * S::SUMS);
    auto* arrived = reinterpret_cast<Arrived<BLOCKS>*>(boxes + 2 * (S::BOX + S::SLICE));
    int H = NH * DH, fourth = threadIdx.x / 32 % S::FOURTHS, half = threadIdx.x / 32 / S::FOURTHS;
    Place place(BLOCKS, S::UNITS, ROWS, NH);
    using Exchange = Slices<T, BLOCKS, S::SLICE, S::THREADS>;
    Exchange h(boxes, boxes + 2 * S::BOX, *arrived, place.rank);
    constexpr int PIECES = (Exchange::PARTS + 1) / S::HALVES;  // of what a warp needs of h
    GateFragments<T, S> weights(nullptr, r + place.head * 1ll * DH * DH, place.first_unit + fourth * S::TILES * 4,
                                half * S::STEPS * 16, DH, H * 1ll * DH);
    Leave<S, ROWS> leave(sums + half * S::SUMS + fourth * S::TILES * 4);

    auto cell = [&](int n) { return Cell(n, place.first_unit, place.first_row, B, DH); };
    auto column = [&](Cell of) { return place.head * DH + of.j; };
    auto in_states = [&](Cell of) { return of.row * 1ll * H + column(of); };
    auto in_slice = [](Cell of) { return (of.u / 16 * ROWS + of.r) * 16 + of.u % 16; };
    for (int i = threadIdx.x; i < S::BOX; i += S::THREADS) {
        int row = place.first_row + i / 16 % ROWS, k = i / 16 / ROWS * 16 + i % 16;
        h.box(0)[i] = row < B && k < DH ? h0[row * 1ll * H + place.head * DH + k] : from_math<T>(0);
    }
    Memory memory[Cell::COUNT];
    float bias[Cell::COUNT][GATES];
    T x[Cell::COUNT][GATES];
    auto fetch = [&](int t) {
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n)
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) {
                const T* from = wx + ((t * 1ll * B + cell(n).row) * GATES + gate) * H + column(cell(n));
                x[n][gate] = cell(n).there ? *from : from_math<T>(0);
            }
    };
#pragma unroll
    for (int n = 0; n < Cell::COUNT; ++n) {
        long long at = in_states(cell(n));
        memory[n] = cell(n).there ? Memory{c0[at], n0[at], m0[at]} : Memory{};
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate)
            bias[n][gate] = cell(n).there ? to_math(b[gate * H + column(cell(n))]) : 0.0f;
    }
    fetch(0);
    h.begin();

    for (int t = 0; t < count; ++t) {
        // ANCHOR: step
        float sum[S::TILES][S::COLUMNS][4];
        weights.template multiply<ROWS, PIECES>(sum, h.box(t) + half * S::STEPS * 16 * ROWS, [&](int piece) {
            if (t > 0) h.wait(t, half * PIECES + piece);
        });
        leave(sum);
        __syncthreads();  // threads add up what both halves of the warps have left; the box is read
        if (t + 1 < count) h.tell(t);
        Saved of_step[Cell::COUNT];
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n) {
            Cell of = cell(n);
            if (!of.is) continue;
            const float4 *one = sums + of.r * S::SUM_ROW + of.u, *other = one + S::SUMS;
            float a[GATES] = {one->x + other->x, one->y + other->y, one->z + other->z, one->w + other->w};
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) a[gate] += to_math(x[n][gate]) + bias[n][gate];
            float f_of_n = slstm_step(a, memory[n], of_step[n]);
            // Units from DH on and rows from B on are padding: their h is 0.
            h.slice(t)[in_slice(of)] = from_math<T>(of.there ? of_step[n].o * of_step[n].u : 0.0f);
            if (keep && t == 0 && of.there) first[in_states(of)] = f_of_n;
        }
        if (t + 1 < count) h.send(t);
        // ANCHOR_END: step
        if (t + 1 < count) fetch(t + 1);
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n) {
            Cell of = cell(n);
            if (!of.there) continue;
            long long row = t * 1ll * B + of.row;
            y[row * H + column(of)] = from_math<T>(of_step[n].o * of_step[n].u);
            if (keep) store_saved(kept + row * KEPT * H + column(of), of_step[n], H);
            if (t + 1 < count) continue;
            long long at = in_states(of);
            hn[at] = from_math<T>(of_step[n].o * of_step[n].u);
            cn[at] = memory[n].c, nn[at] = memory[n].n, mn[at] = memory[n].m;
        }
    }
    h.end();
}
