// The vLSTM's forward pass over all pairs of positions by wgmma, by blocks that stay. Equations: v0_mma.cu and
// factors.cuh.
//
// Work split: as v3, but that there are as many blocks as multiprocessors, and each takes part after part, whichever is
// next: its tiles are on their way while the warpgroups end the last one. `taken` counts the parts, from 0 on.
//
// TensorMaps: q and k {dhqk, S, heads}, v and h {dhhv, S, heads}. m, n: heads x S, row, column: heads x length, factors:
// heads x length / 64. `parts` is tiles heads slices; a grid of as many blocks or fewer.
#include "ahead.cuh"

using namespace lab;

template <class T, int KEY, int VALUE, int L> struct StayingTiles {
    FactoredTiles<T, KEY, VALUE, L> tiles;
    Panels<T, VALUE, L> out;  // h on its way
};

template <class T, int KEY, int VALUE, int L>
constexpr int vlstm_fw_persistent_shared = sizeof(StayingTiles<T, KEY, VALUE, L>);

template <class T, int KEY, int VALUE, int L>
__global__ void __launch_bounds__(L * 2 + 128, 1)
    vlstm_fw_persistent(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                        const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap h,
                        const float2* __restrict__ row, const float2* __restrict__ column,
                        const Factors* __restrict__ factors, const float* __restrict__ m, float* __restrict__ n_out,
                        int* taken, int tiles, int together, int parts, int length, int S, int dhhv, float eps) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<StayingTiles<T, KEY, VALUE, L>*>(memory);
    __shared__ Barriers barriers;
    __shared__ Mbarrier query_left;
    __shared__ int own;  // the part whose Q comes, or came last
    if (threadIdx.x == 0) {
        barriers.init(L / 16);
        mbarrier_init(&query_left, L / 16);
        mbarrier_fence_init();
    }
    __syncthreads();  // nobody waits at a barrier that is not there

    Turn<2> turn;
    // ANCHOR: producer
    if (threadIdx.x >= L * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x > L * 2) return;
        for (int round = 0;; ++round) {
            int n = atomicAdd(taken, 1);
            mbarrier_wait(&query_left, (round + 1) % 2);  // all have read `own`, too
            own = n;
            if (n >= parts) break;
            Part<VALUE> part(tiles, together, dhhv, n, parts);
            long long positions = 1ll * part.head * length;
            bring(shared.tiles, barriers, turn, q, k, v, column + positions, factors + positions / PANEL, part);
        }
        mbarrier_arrive(&barriers.query);  // nothing comes any more
        return;
    }
    // ANCHOR_END: producer

    registers_increase<CONSUMER_REGISTERS>();
    float out[VALUE / 2], l[2];
    // All lanes have met since they read `own` and Q's exponents: on the diagonal, when they left K.
    auto leave_query = [&] { if (threadIdx.x % 32 == 0) mbarrier_arrive(&query_left); };
    // ANCHOR: rounds
    for (int round = 0;; ++round) {
        mbarrier_wait(&barriers.query, round % 2);
        if (own >= parts) break;
        Part<VALUE> part(tiles, together, dhhv, own, parts);
        const float2* rows = row + 1ll * part.head * length + part.tile * L;
        Exponents exponents{{rows[own_row()], rows[own_row() + 8]}, shared.tiles.column};
        gather(out, l, shared.tiles, barriers, turn, exponents, part.tile, leave_query);
        long long at = 1ll * part.head * S;
        normalise(l, m + at, n_out + at, part.tile * L, S, eps, part.value == 0);
        bulk_wait_read<0>();
        named_barrier_sync(1 + threadIdx.x / 128, 128);  // nobody overwrites the last h before TMA has read it
        store_rows<T, VALUE>(h, shared.out, out, l, part.value, part.tile * L, part.head);
    }
    // ANCHOR_END: rounds
    bulk_wait_read<0>();  // as in v3
}
