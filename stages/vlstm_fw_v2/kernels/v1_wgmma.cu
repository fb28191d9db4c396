// The vLSTM's forward pass over all pairs of positions, on the tensor cores by wgmma. Equations: v0_mma.cu.
//
// Work split: a block owns L = 128 rows of Q and h of one head, and VALUE columns of V; each of two consumer warpgroups
// has 64 of the rows. One thread of a third asks for tiles by TMA, K's with its exponents, from the diagonal back to the
// first, as places get free. Q, K and V are read where they lie. Weights stay in registers: what a lane has of a product
// is what it must have of the next one's left operand.
//
// TensorMaps: q and k {dhqk, S, heads}, v and h {dhhv, S, heads}. m, n: heads x S, row, column: heads x length. A grid
// of tiles heads slices blocks.
#include "tiles.cuh"

using namespace lab;

template <class T, int KEY, int VALUE, int L> struct Tiles {
    Panels<T, KEY, L> q;
    struct {
        Panels<T, KEY, L> k;
        float2 column[L];
    } keys[2];
    Panels<T, VALUE, L> v[2];
};

template <class T, int KEY, int VALUE, int L> constexpr int vlstm_fw_wgmma_shared = sizeof(Tiles<T, KEY, VALUE, L>);

template <class T, int KEY, int VALUE, int L>
__global__ void __launch_bounds__(L * 2 + 128, 1)
    vlstm_fw_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                   const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap h,
                   const float2* __restrict__ row, const float2* __restrict__ column, const float* __restrict__ m,
                   float* __restrict__ n_out, int tiles, int together, int length, int S, int dhhv, float eps) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<Tiles<T, KEY, VALUE, L>*>(memory);
    __shared__ Barriers barriers;
    Part<VALUE> part(tiles, together, dhhv, blockIdx.x, gridDim.x);
    auto& [query, keys, values] = barriers;
    if (threadIdx.x == 0) barriers.init(L / 16);
    __syncthreads();  // nobody waits at a barrier that is not there

    Turn<2> turn;
    // ANCHOR: producer
    if (threadIdx.x >= L * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x > L * 2) return;
        column += 1ll * part.head * length;
        mbarrier_arrive_expect(&query, shared.q.BYTES);
        shared.q.load(q, 0, part.tile, part.head, &query);
        for (int tile = part.tile; tile >= 0; --tile, turn.advance()) {
            auto& place = shared.keys[turn.place];
            keys.wait_empty(turn);
            mbarrier_arrive_expect(&keys.full[turn.place], place.k.BYTES + sizeof place.column);
            place.k.load(k, 0, tile, part.head, &keys.full[turn.place]);
            bulk_load(place.column, column + tile * L, sizeof place.column, &keys.full[turn.place]);
            values.wait_empty(turn);
            mbarrier_arrive_expect(&values.full[turn.place], shared.v[0].BYTES);
            shared.v[turn.place].load(v, part.value, tile, part.head, &values.full[turn.place]);
        }
        return;
    }
    // ANCHOR_END: producer

    // ANCHOR: consumer
    registers_increase<CONSUMER_REGISTERS>();
    float out[VALUE / 2], l[2] = {};
    row += 1ll * part.head * length + part.tile * L;
    Exponents weights{{row[own_row()], row[own_row() + 8]}, nullptr};
    mbarrier_wait(&query, 0);
    for (int tile = part.tile; tile >= 0; --tile, turn.advance()) {
        float score[L / 2];
        unsigned pairs[L / 16][4];
        keys.wait_full(turn);
        wgmma_fence();
        multiply_scores(score, shared.q, shared.keys[turn.place].k, threadIdx.x / 128 * 64);
        wgmma_commit();
        wgmma_wait<0>();
        weights.column = shared.keys[turn.place].column;
        if (tile == part.tile)
            weigh<true>(score, l, weights);
        else
            weigh<false>(score, l, weights);
        round_pairs<T>(pairs, score);
        leave(keys, turn);
        values.wait_full(turn);
        wgmma_fence();
        multiply_values(out, pairs, shared.v[turn.place], tile < part.tile);
        wgmma_commit();
        wgmma_wait<0>();
        leave(values, turn);
    }
    // ANCHOR_END: consumer
    long long at = 1ll * part.head * S;
    normalise(l, m + at, n_out + at, part.tile * L, S, eps, part.value == 0);
    store_rows<T, VALUE>(h, shared.q, out, l, part.value, part.tile * L, part.head);
    bulk_wait_read<0>();  // the block's shared memory is there until TMA has read it
}
