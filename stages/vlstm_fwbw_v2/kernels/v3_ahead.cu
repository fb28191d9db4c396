// The gradients of the vLSTM over all pairs of positions by wgmma, where the tensor cores work while pairs are weighed.
// Equations: v0_mma.cu, gradients.cuh and rows.cu.
//
// Work split: as v2, but for the order of a warpgroup's products (ahead.cuh).
//
// TensorMaps: q, k, dq and dk {dhqk, S, heads}, v, dh and dv {dhhv, S, heads}. exponent, rho, column: heads x length,
// row_factors, factors: heads x length / 64, shares: heads x tiles x length. A grid of tiles heads blocks.
#include "ahead.cuh"

using namespace lab;

template <class T, int KEY, int VALUE, int L>
constexpr int vlstm_keys_ahead_shared = sizeof(FactoredKeyTiles<T, KEY, VALUE, L>);

template <class T, int KEY, int VALUE, int L>
__global__ void __launch_bounds__(L * 2 + 128, 1)
    vlstm_keys_ahead(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
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
    if (threadIdx.x == 0) barriers.init(L / 16);
    __syncthreads();  // nobody waits at a barrier that is not there

    if (threadIdx.x >= L * 2) {
        registers_decrease<KEYS_PRODUCER_REGISTERS>();
        if (threadIdx.x == L * 2)
            bring_rows(shared, barriers, q, k, v, dh, weights, tile, count, share.head);
        if (threadIdx.x / 32 == L / 16 + 1)
            add_up(shared, barriers.sums, shares + (1ll * share.head * tiles + tile) * length + tile * L, count);
        return;
    }

    registers_increase<KEYS_REGISTERS>();
    float dv_j[VALUE / 2], dk_j[KEY / 2], of_G[2] = {};
    mbarrier_wait(&barriers.own, 0);
    gather_keys<false>(dv_j, dk_j, of_G, shared, barriers, count);
    float one[2] = {1, 1};
    store_rows<T, VALUE>(dv, shared.v, dv_j, one, 0, tile * L, share.head);
    store_rows<T, KEY>(dk, shared.k, dk_j, one, 0, tile * L, share.head);
    store_sums(of_G, di + 1ll * share.head * S, tile * L, S);
    bulk_wait_read<0>();  // the block's shared memory is there until TMA has read it
}

template <class T, int KEY, int VALUE, int L>
constexpr int vlstm_queries_ahead_shared = sizeof(FactoredQueryTiles<T, KEY, VALUE, L>);

template <class T, int KEY, int VALUE, int L>
__global__ void __launch_bounds__(L * 2 + 128, 1)
    vlstm_queries_ahead(const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
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
    if (threadIdx.x == 0) barriers.init(L / 16);
    __syncthreads();  // nobody waits at a barrier that is not there

    Turn<2> turn;
    if (threadIdx.x >= L * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == L * 2)
            bring_positions(shared, barriers, turn, k, v, dh, weights, own_tile, share.head);
        return;
    }

    registers_increase<CONSUMER_REGISTERS>();
    int at = own_tile * L + own_row();
    float dq_i[KEY / 2], of_n[2] = {weights.rho[at], weights.rho[at + 8]};
    Exponents exponents{{weights.exponent[at], weights.exponent[at + 8]}, shared.column};
    mbarrier_wait(&barriers.own, 0);
    gather_queries(dq_i, shared, barriers, turn, of_n, exponents, own_tile, [] {});
    float one[2] = {1, 1};
    store_rows<T, KEY>(dq, shared.dh, dq_i, one, 0, own_tile * L, share.head);
    bulk_wait_read<0>();  // the block's shared memory is there until TMA has read it
}
