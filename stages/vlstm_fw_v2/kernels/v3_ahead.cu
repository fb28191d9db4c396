// The vLSTM's forward pass over all pairs of positions by wgmma, scores one tile ahead. Equations: v0_mma.cu and
// factors.cuh.
//
// Work split: as v2, but for the order of a warpgroup's products (ahead.cuh).
//
// TensorMaps: q and k {dhqk, S, heads}, v and h {dhhv, S, heads}. m, n: heads x S, row, column: heads x length, factors:
// heads x length / 64. A grid of tiles heads slices blocks.
#include "ahead.cuh"

using namespace lab;

template <class T, int KEY, int VALUE, int L>
constexpr int vlstm_fw_ahead_shared = sizeof(FactoredTiles<T, KEY, VALUE, L>);

template <class T, int KEY, int VALUE, int L>
__global__ void __launch_bounds__(L * 2 + 128, 1)
    vlstm_fw_ahead(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                   const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap h,
                   const float2* __restrict__ row, const float2* __restrict__ column,
                   const Factors* __restrict__ factors, const float* __restrict__ m, float* __restrict__ n_out,
                   int tiles, int together, int length, int S, int dhhv, float eps) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<FactoredTiles<T, KEY, VALUE, L>*>(memory);
    __shared__ Barriers barriers;
    Part<VALUE> part(tiles, together, dhhv, blockIdx.x, gridDim.x);
    if (threadIdx.x == 0) barriers.init(L / 16);
    __syncthreads();  // nobody waits at a barrier that is not there

    Turn<2> turn;
    long long positions = 1ll * part.head * length;
    if (threadIdx.x >= L * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == L * 2)
            bring(shared, barriers, turn, q, k, v, column + positions, factors + positions / PANEL, part);
        return;
    }

    registers_increase<CONSUMER_REGISTERS>();
    float out[VALUE / 2], l[2];
    row += positions + part.tile * L;
    Exponents exponents{{row[own_row()], row[own_row() + 8]}, shared.column};
    mbarrier_wait(&barriers.query, 0);
    gather(out, l, shared, barriers, turn, exponents, part.tile, [] {});
    long long at = 1ll * part.head * S;
    normalise(l, m + at, n_out + at, part.tile * L, S, eps, part.value == 0);
    store_rows<T, VALUE>(h, shared.q, out, l, part.value, part.tile * L, part.head);
    bulk_wait_read<0>();  // the block's shared memory is there until TMA has read it
}
