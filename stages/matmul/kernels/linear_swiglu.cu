// A gated layer in one launch, by wgmma and TMA: of T's, sums in f32.
//
//   gate_up_ic = Σ_k x_ik W_ck        x [M, K], W [2 H, K]: the rows of gate, then those of up
//   u_ic = silu(gate_up_ic) gate_up_i(H + c)        c < H
//
// Work split: as linear_behind.cu, but that a tile is 128 columns of gate and the same 128 of up. A warpgroup keeps the rounded
// sums, and makes u of them on their way out, behind the next tile's products. So u is what a pass over gate_up would
// give, and none reads gate_up for it. Where `keeps` is 0 only u is stored.
#include "behind.cuh"
#include "kept_gate_up.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/tile_order.cuh"

using namespace lab;

// x along k, and W: BN / 2 rows of each of its two matrices.
template <class T, int BM, int BN, int BK> struct GateUpTiles : OperandTiles<T, ALONG_K, ALONG_K, BM, BN, BK> {
    using OperandTiles<T, ALONG_K, ALONG_K, BM, BN, BK>::OperandTiles;

    __device__ __forceinline__ void load(const TensorMap& X, const TensorMap& W, int i, int j, int k, Mbarrier* full,
                                         int) const {
        this->expect(full);
        this->issue_load_of_a(X, i, k, full);
        tensor_load(this->b, W, {k, j, 0}, full);
        tensor_load(this->b + BN / 2 * BK, W, {k, j, 1}, full);
    }
};

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int linear_swiglu_shared = PLACES * GateUpTiles<T, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    linear_swiglu(const __grid_constant__ TensorMap X, const __grid_constant__ TensorMap W,
                  const __grid_constant__ TensorMap C, const __grid_constant__ TensorMap U, int M, int H, int K, int keeps) {
    using Order = TileOrder<HIGH>;
    using Tiles = GateUpTiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    Order order{(M + BM - 1) / BM, (H + BN / 2 - 1) / (BN / 2)};
    int all = order.down * order.across;
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x > BM * 2) return;
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            auto [i, j, one] = order.at(n);
            ask<Tiles, Tiles::CELLS>(X, W, tiles, ring, turn, i * BM, j * (BN / 2), 0, K);
        }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        int group = threadIdx.x / 128, row = group * 64;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        KeptGateUp<T, BM, BN, Order> kept{C, U, staged, order, row, keeps != 0};
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            float sum[BN / 2];
            multiply<Tiles, Tiles::CELLS>(sum, kept, tiles, ring, turn, row, K);
            kept.keep(sum, n);
        }
#pragma unroll
        for (int p = 0; p < kept.PANELS; ++p) kept.store(p);
        staged.finish();
    }
}
