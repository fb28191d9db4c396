// The gradients of the vLSTM over all pairs of positions by wgmma, with one power for a row or a position and 64 of the
// others in place of one for each pair. Equations: v0_mma.cu, gradients.cuh and rows.cu.
//
// Work split: as v1. What comes past comes with factors.
//
// TensorMaps: q, k, dq and dk {dhqk, S, heads}, v, dh and dv {dhhv, S, heads}. exponent, rho, column: heads x length,
// row_factors, factors: heads x length / 64, shares: heads x tiles x length. A grid of tiles heads blocks.
#include "factors.cuh"

using namespace lab;

template <class T, int KEY, int VALUE, int L>
constexpr int vlstm_keys_factors_shared = sizeof(FactoredKeyTiles<T, KEY, VALUE, L>);

template <class T, int KEY, int VALUE, int L>
__global__ void __launch_bounds__(L * 2 + 128, 1)
    vlstm_keys_factors(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                       const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dh,
                       const __grid_constant__ TensorMap dk, const __grid_constant__ TensorMap dv,
                       const float2* __restrict__ exponent, const Factors* __restrict__ row_factors,
                       const float* __restrict__ rho, const float2* __restrict__ column, float* __restrict__ di,
                       float* __restrict__ shares, int tiles, int together, int length, int S) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<FactoredKeyTiles<T, KEY, VALUE, L>*>(memory);
    __shared__ KeyBarriers barriers;
    Share share(tiles, together, blockIdx.x, gridDim.x);
    int tile = share.longer, count = (S + PANEL - 1) / PANEL - tile * (L / PANEL);  // times 64 rows
    auto weights = Weights{exponent, column, row_factors, rho}.of_head(share.head, length);
    auto& [own, rows, sums] = barriers;
    if (threadIdx.x == 0) barriers.init(L / 16);
    __syncthreads();  // nobody waits at a barrier that is not there

    if (threadIdx.x >= L * 2) {
        registers_decrease<KEYS_PRODUCER_REGISTERS>();
        if (threadIdx.x == L * 2)
            bring_rows(shared, barriers, q, k, v, dh, weights, tile, count, share.head);
        if (threadIdx.x / 32 == L / 16 + 1)
            add_up(shared, sums, shares + (1ll * share.head * tiles + tile) * length + tile * L, count);
        return;
    }

    // ANCHOR: keys
    registers_increase<KEYS_REGISTERS>();
    float dv_j[VALUE / 2], dk_j[KEY / 2], of_G[2] = {};
    int group = threadIdx.x / 128;
    mbarrier_wait(&own, 0);
    for (int n = 0; n < count; ++n) {
        auto turn = turn_of<PLACES>(n);
        auto& place = shared.places[turn.place];
        float score[PANEL / 2], product[PANEL / 2], sum[PANEL / 4];
        unsigned c[PANEL / 16][4], dS[PANEL / 16][4];
        rows.wait_full(turn);
        wgmma_fence();
        multiply_scores(score, shared.k, place.q, group * 64);
        multiply_scores(product, shared.v, place.dh, group * 64);
        wgmma_commit();
        wgmma_wait<0>();
        Exponents exponents{{shared.column[own_row()], shared.column[own_row() + 8]}, shared.exponent + n * PANEL};
        if (n <= group)
            weigh_keys<T, true>(c, dS, score, product, of_G, sum, place.rho, exponents, own_row() - n * PANEL);
        else
            weigh_keys<T, false>(c, dS, score, product, of_G, sum, place.rho,
                                 Factored<PANEL>(exponents.row, &place.factors), 0);
        wgmma_fence();
        multiply_values(dv_j, c, place.dh, n > 0);
        multiply_values(dk_j, dS, place.q, n > 0);
        wgmma_commit();
        send_sums(shared, sums, turn_of<2>(n), sum);
        wgmma_wait<0>();
        leave(rows, turn);
    }
    // ANCHOR_END: keys
    float one[2] = {1, 1};
    store_rows<T, VALUE>(dv, shared.v, dv_j, one, 0, tile * L, share.head);
    store_rows<T, KEY>(dk, shared.k, dk_j, one, 0, tile * L, share.head);
    store_sums(of_G, di + 1ll * share.head * S, tile * L, S);
    bulk_wait_read<0>();  // the block's shared memory is there until TMA has read it
}

template <class T, int KEY, int VALUE, int L>
constexpr int vlstm_queries_factors_shared = sizeof(FactoredQueryTiles<T, KEY, VALUE, L>);

template <class T, int KEY, int VALUE, int L>
__global__ void __launch_bounds__(L * 2 + 128, 1)
    vlstm_queries_factors(const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                          const __grid_constant__ TensorMap dh, const __grid_constant__ TensorMap dq,
                          const float2* __restrict__ exponent, const float* __restrict__ rho,
                          const float2* __restrict__ column, const Factors* __restrict__ factors, int tiles,
                          int together, int length) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<FactoredQueryTiles<T, KEY, VALUE, L>*>(memory);
    __shared__ QueryBarriers barriers;
    Share share(tiles, together, blockIdx.x, gridDim.x);
    int own_tile = tiles - 1 - share.longer;
    auto weights = Weights{exponent, column, factors, rho}.of_head(share.head, length);
    auto& [own, values, keys] = barriers;
    if (threadIdx.x == 0) barriers.init(L / 16);
    __syncthreads();  // nobody waits at a barrier that is not there

    Turn<2> turn;
    if (threadIdx.x >= L * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == L * 2)
            bring_positions(shared, barriers, turn, k, v, dh, weights, own_tile, share.head);
        return;
    }

    // ANCHOR: queries
    registers_increase<CONSUMER_REGISTERS>();
    int at = own_tile * L + own_row();
    float dq_i[KEY / 2], of_n[2] = {weights.rho[at], weights.rho[at + 8]};
    Exponents exponents{{weights.exponent[at], weights.exponent[at + 8]}, shared.column};
    mbarrier_wait(&own, 0);
    for (int tile = own_tile; tile >= 0; --tile, turn.advance()) {
        auto& place = shared.values[turn.place];
        float product[L / 2];
        unsigned pairs[L / 16][4];
        values.wait_full(turn);
        wgmma_fence();
        multiply_scores(product, shared.dh, place.v, threadIdx.x / 128 * 64);
        wgmma_commit();
        wgmma_wait<0>();
        if (tile == own_tile)
            weigh_queries<true>(product, of_n, exponents);
        else
            weigh_queries<false>(product, of_n, Factored<L>(exponents.row, place.factors));
        round_pairs<T>(pairs, product);
        leave(values, turn);
        keys.wait_full(turn);
        wgmma_fence();
        multiply_values(dq_i, pairs, shared.k[turn.place], tile < own_tile);
        wgmma_commit();
        wgmma_wait<0>();
        leave(keys, turn);
    }
    // ANCHOR_END: queries
    float one[2] = {1, 1};
    store_rows<T, KEY>(dq, shared.dh, dq_i, one, 0, own_tile * L, share.head);
    bulk_wait_read<0>();  // the block's shared memory is there until TMA has read it
}
