// Back through a layer and the SwiGLU before it, in one launch, by wgmma and TMA: y = u Wᵀ, u = silu(a) b. Of T's, sums in f32.
//
//   du_ic = Σ_k dy_ik W_kc                           dy [M, K], W [K, H]; rounded to T, and not stored
//   dgate_up_ic, dgate_up_i(H + c), u_ic             of gate_up_ic, gate_up_i(H + c) and du_ic: lab/swiglu.cuh; u where `makes_u`
//
// Work split: as linear_behind.cu, with a ring of fewer places. While the next tile is multiplied a warpgroup makes both gradients and u of a
// panel of du and the same panels of gate and up. A thread of its own has these brought, and the results stored.
#include "behind.cuh"
#include "kept_gate_up.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/tile_order.cuh"

using namespace lab;

constexpr int BRING_REGISTERS = 40, MULTIPLY_REGISTERS = 232;

struct Place { int i, j; };

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int linear_swiglu_back_shared =
    PLACES * OperandTiles<T, ALONG_K, ACROSS_K, BM, BN, BK>::BYTES + BM / 64 * GatePanels<T>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    linear_swiglu_back(const __grid_constant__ TensorMap DY, const __grid_constant__ TensorMap W,
                       const __grid_constant__ TensorMap gate_up, const __grid_constant__ TensorMap dgate_up,
                       const __grid_constant__ TensorMap U, int M, int H, int K, int makes_u) {
    using Order = TileOrder<HIGH>;
    using Tiles = OperandTiles<T, ALONG_K, ACROSS_K, BM, BN, BK>;
    using Panels = GatePanels<T>;
    using Kept = KeptUpstream<T, BN>;
    constexpr int GROUPS = BM / 64;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    __shared__ typename Panels::Barriers barriers[GROUPS];
    if (threadIdx.x == 0) {
        for (int group = 0; group < GROUPS; ++group) barriers[group].init();
        ring.init(GROUPS);  // its fence is behind these, too
    }
    __syncthreads();  // nobody waits at a barrier that is not there

    Order order{(M + BM - 1) / BM, (H + BN - 1) / BN};
    int all = order.down * order.across, warp = threadIdx.x / 32 - BM / 16;
    int group = threadIdx.x < BM * 2 ? threadIdx.x / 128 : (warp + GROUPS - 1) % GROUPS;
    Panels panels{tiles + PLACES * Tiles::CELLS + group * (Panels::BYTES / sizeof(T)), barriers[group]};
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<BRING_REGISTERS>();
        if (threadIdx.x % 32 || warp > GROUPS) return;
        if (warp == 0) {
            for (int n = blockIdx.x; n < all; n += gridDim.x) {
                auto [i, j, one] = order.at(n);
                ask<Tiles, Tiles::CELLS>(DY, W, tiles, ring, turn, i * BM, j * BN, 0, K);
            }
            return;
        }
        // All panels of this block's tiles, one after the other.
        int count = (all - blockIdx.x + gridDim.x - 1) / gridDim.x * Kept::PANELS;
        auto place = [&](int n) {
            auto [i, j, one] = order.at(blockIdx.x + n / Kept::PANELS * gridDim.x);
            return Place{i * BM + group * 64, j * BN + n % Kept::PANELS * Panels::PANEL};
        };
        for (int n = 0; n < count + Panels::SETS; ++n) {
            int before = n - Panels::SETS;
            if (before >= 0) {
                auto [i, j] = place(before);
                panels.send(dgate_up, U, before, i, j, makes_u != 0);
            }
            if (n < count) {
                auto [i, j] = place(n);
                panels.bring(gate_up, n, i, j);
            }
        }
    } else {
        registers_increase<MULTIPLY_REGISTERS>();
        Kept kept{panels, makes_u != 0};
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            float sum[BN / 2];
            multiply<Tiles, Tiles::CELLS>(sum, kept, tiles, ring, turn, group * 64, K);
            kept.keep(sum, n);
        }
#pragma unroll
        for (int p = 0; p < Kept::PANELS; ++p) kept.store(p);
    }
}
