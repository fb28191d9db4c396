// linear_swiglu_back.cu, whose warpgroups take turns (turns.cuh): while one multiplies, the other makes both gradients and u of its tile.
//
// Work split: a tile of BM x BN of du is one warpgroup's, in panels of 64 x 64. A thread of its own has the panels of gate and up brought, two of
// them during the products, and the results stored. Nothing is kept but the sums.
#include "kept_gate_up.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/tile_order.cuh"
#include "turns.cuh"

using namespace lab;

constexpr int BRING_REGISTERS = 40, MULTIPLY_REGISTERS = 232;

struct Place { int i, j; };

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int linear_swiglu_back_turns_shared =
    PLACES * OperandTiles<T, ALONG_K, ACROSS_K, BM, BN, BK>::BYTES + IN_TURNS * GatePanels<T, 2>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(IN_TURNS * 128 + 128, 1)
    linear_swiglu_back_turns(const __grid_constant__ TensorMap DY, const __grid_constant__ TensorMap W,
                             const __grid_constant__ TensorMap gate_up, const __grid_constant__ TensorMap dgate_up,
                             const __grid_constant__ TensorMap U, int M, int H, int K, int makes_u) {
    using Tiles = OperandTiles<T, ALONG_K, ACROSS_K, BM, BN, BK>;
    using Panels = GatePanels<T, 2>;
    constexpr int ACROSS = BN / Panels::PANEL, OF_TILE = BM / 64 * ACROSS;
    static_assert(OF_TILE % (2 * Panels::SETS) == 0, "each tile begins with the first set, and with the same phases");
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    __shared__ typename Panels::Barriers barriers[IN_TURNS];
    __shared__ Mbarrier passed[IN_TURNS];  // all steps of a warpgroup's tile have come
    if (threadIdx.x == 0) {
        for (auto& of_one : passed) mbarrier_init(&of_one, 128);
        for (auto& of_one : barriers) of_one.init();
        ring.init(1);  // its fence is behind these, too
    }
    __syncthreads();  // nobody waits at a barrier that is not there

    TileOrder<HIGH> order{(M + BM - 1) / BM, (H + BN - 1) / BN};
    int all = order.down * order.across, steps = (K + BK - 1) / BK, warp = threadIdx.x / 32 - IN_TURNS * 4;
    // Which warpgroup's tiles are this thread's business. Of the warps behind them the first asks for both.
    int own = warp < 0 ? threadIdx.x / 128 : (warp + IN_TURNS - 1) % IN_TURNS;
    Panels panels{tiles + PLACES * Tiles::CELLS + own * (Panels::BYTES / sizeof(T)), barriers[own]};
    int begin = blockIdx.x + own * gridDim.x, stride = IN_TURNS * gridDim.x;
    if (warp >= 0) {
        registers_decrease<BRING_REGISTERS>();
        if (threadIdx.x % 32 || warp > IN_TURNS) return;
        if (warp == 0) {
            Turn<PLACES> turn;
            for (int n = blockIdx.x; n < all; n += gridDim.x) {
                auto [i, j, g] = order.at(n);
                for (int s = 0; s < steps; ++s, turn.advance()) {
                    ring.wait_empty(turn);
                    Tiles(tiles + turn.place * Tiles::CELLS).load(DY, W, i * BM, j * BN, s * BK, &ring.full[turn.place], 0);
                }
            }
            return;
        }
        int count = begin < all ? (all - begin + stride - 1) / stride * OF_TILE : 0;
        auto place = [&](int n) {
            auto [i, j, one] = order.at(begin + n / OF_TILE * stride);
            return Place{i * BM + n % OF_TILE / ACROSS * 64, j * BN + n % ACROSS * Panels::PANEL};
        };
        for (int n = 0; n < count + Panels::SETS; ++n) {
            int before = n - Panels::SETS;
            if (before >= 0 && before < count) {
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
        float sum[BM / 64][BN / 2];
        for (int t = own, n = begin; n < all; t += IN_TURNS, n += stride) {
            if (t > 0) mbarrier_wait(&passed[1 - own], (t - 1) / IN_TURNS % 2);
            multiply_rows<Tiles>(sum, tiles, ring, t * steps, steps, &passed[own]);
#pragma unroll
            for (int p = 0; p < OF_TILE; ++p) {
                const float* of_panel = &sum[p / ACROSS][p % ACROSS * Panels::PANEL / 2];
                mbarrier_wait(&panels.barriers.come[p % Panels::SETS], p / Panels::SETS % 2);
                panels.exchange(p, makes_u != 0, [&](int w) { return two_halves<T>(of_panel[2 * w], of_panel[2 * w + 1]); });
            }
        }
    }
}
