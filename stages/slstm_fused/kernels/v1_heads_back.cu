// All steps of the sLSTM's way back in one launch: a cluster for a head of some rows, whose weights stay in registers.
//
//   dh_{t−1} = Rᵀ da_t + dy_{t−1}     products of T's, sums in f32, on tensor cores; da as in slstm.cuh
//
// Work split: as v1_heads.cu. A block keeps the rows of Rᵀ of its units, and a box has da of all units of the head. Each
// warp has an eighth of the sum, and leaves a part of dh in shared memory; who owns a unit adds up the parts of all warps,
// always in the same order.
//
// Steps: da has come · products · parts · cells, da of this block · send. What was kept of the next step is on its way
// meanwhile. A turn more than there are steps gives dh0.
//
// Tensors as v0_cell.cu has them. A grid of NH ⌈B / ROWS⌉ clusters. f16 and bf16 alone.
#include "heads.cuh"

using namespace lab;

// What a cell's step back takes from device memory.
struct Fetched {
    Saved kept;
    float u_before, dy;
};

template <class T, int HT, int BLOCKS, int ROWS>
constexpr int slstm_heads_back_shared = BackShares<HT, BLOCKS, ROWS>::BYTES;

template <class T, int HT, int BLOCKS, int ROWS>
__global__ void __launch_bounds__(256, 1)
    slstm_heads_back(const T* __restrict__ dy, const T* __restrict__ r, const float* __restrict__ c0,
                     const float* __restrict__ n0, const T* __restrict__ dhn, const float* __restrict__ dcn,
                     const float* __restrict__ dnn, const float* __restrict__ nn, const float* __restrict__ kept,
                     const float* __restrict__ first, T* __restrict__ dwx, T* __restrict__ dh0, float* __restrict__ dc0,
                     float* __restrict__ dn0, int count, int B, int NH, int DH) {
    using S = BackShares<HT, BLOCKS, ROWS>;
    using Cell = CellOf<S, ROWS>;
    DYNAMIC_SHARED(float, parts);
    T* boxes = reinterpret_cast<T*>(parts + S::WARPS * S::PART);
    auto* arrived = reinterpret_cast<Arrived<BLOCKS>*>(boxes + 2 * (S::BOX + S::SLICE));
    int H = NH * DH, warp = threadIdx.x / 32;
    Place place(BLOCKS, S::UNITS, ROWS, NH);
    Slices<T, BLOCKS, S::SLICE, S::THREADS> das(boxes, boxes + 2 * S::BOX, *arrived, place.rank);
    Fragments<T, S> weights(nullptr);
    fill_by_gates(weights, r + place.head * 1ll * DH * DH, DH, H * 1ll * DH, [&](int m, int k) {
        return make_int2(place.first_unit + m * 16, (warp * S::STEPS + k) * 4);
    });

    auto cell = [&](int n) { return Cell(n, place.first_unit, place.first_row, B, DH); };
    auto in_states = [&](Cell of) { return of.row * 1ll * H + place.head * DH + of.j; };
    Fetched now[Cell::COUNT];
    auto fetch = [&](int t) {
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n) {
            now[n] = {};
            if (!cell(n).there) continue;
            long long at = in_states(cell(n)), of_rows = at + cell(n).row * (KEPT - 1ll) * H;
            const float* of_step = kept + t * 1ll * B * KEPT * H + of_rows;
            now[n].kept = load_saved(of_step, H), now[n].dy = to_math(dy[t * 1ll * B * H + at]);
            now[n].u_before = t == 0 ? Memory{c0[at], n0[at], 0}.mean()
                                     : load_saved(of_step - B * 1ll * KEPT * H, H).u;
        }
    };
    float U[Cell::COUNT], N[Cell::COUNT];
#pragma unroll
    for (int n = 0; n < Cell::COUNT; ++n) {
        long long at = in_states(cell(n));
        U[n] = cell(n).there ? dcn[at] * nn[at] : 0.0f, N[n] = cell(n).there ? dnn[at] * nn[at] : 0.0f;
    }
    fetch(count - 1);
    das.begin();

    for (int s = 0; s <= count; ++s) {
        int t = count - 1 - s;
        // ANCHOR: step_back
        if (s > 0) {
            das.wait(s, warp * das.PARTS / S::WARPS);  // a warp's share of the sum is within one part
            float sum[S::TILES][S::COLUMNS][4];
            weights.template multiply<ROWS>(sum, das.box(s) + warp * S::STEPS * 16 * ROWS);
#pragma unroll
            for (int m = 0; m < S::TILES; ++m) store_part<S, ROWS>(parts + warp * S::PART + m * 16, sum[m]);
            __syncthreads();  // threads add up the parts of all warps, and the box is read
        }
        if (s < count) das.tell(s);
        float da[Cell::COUNT][GATES];
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n) {
            Cell of = cell(n);
            if (!of.is) continue;
            float dh = s == 0 && of.there ? to_math(dhn[in_states(of)]) : 0.0f;
#pragma unroll
            for (int w = 0; w < S::WARPS; ++w)
                if (s > 0) dh += parts[w * S::PART + of.r * S::PITCH + of.u];
            if (s == count) {
                if (of.there) dh0[in_states(of)] = from_math<T>(dh);
                continue;
            }
            slstm_step_back(da[n], now[n].kept, now[n].u_before, dh + now[n].dy, U[n], N[n]);
            float keeps = t > 0 || !of.there ? 1 - now[n].kept.p : first[in_states(of)];
            U[n] *= keeps, N[n] *= keeps;
            *reinterpret_cast<uint2*>(das.slice(s) + (of.u / 4 * ROWS + of.r) * 16 + of.u % 4 * 4) =
                make_uint2(two_halves<T>(da[n][0], da[n][1]), two_halves<T>(da[n][2], da[n][3]));
        }
        if (s == count) break;
        das.send(s);
        // ANCHOR_END: step_back
        if (t > 0) fetch(t - 1);
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n) {
            Cell of = cell(n);
            if (!of.there) continue;
            T* to = dwx + t * 1ll * B * GATES * H + in_states(of) + of.row * (GATES - 1ll) * H;
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) to[gate * 1ll * H] = from_math<T>(da[n][gate]);
            if (t == 0) dc0[in_states(of)] = U[n], dn0[in_states(of)] = N[n];
        }
    }
    das.end();
}
