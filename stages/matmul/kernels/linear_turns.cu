// linear.cu, whose two warpgroups take turns: while one multiplies, the other makes of its sums what stands behind the product. The
// equations and the operands are linear.cu's.
//
// Work split: a block a multiprocessor goes from tile to tile, BM x BN, and its warpgroups have every second one each, all of it. One
// ring serves both (turns.cuh): a thread asks for the steps of tile after tile. Each has a warp that fetches R and the bias of its tiles
// and stores C (tile_of_c.cuh).
#include "lab/epilogue.cuh"
#include "lab/product.cuh"
#include "tile_of_c.cuh"
#include "turns.cuh"

using namespace lab;

constexpr int ASK_REGISTERS = 40, MULTIPLY_REGISTERS = 232;

// ANCHOR: end
// A tile's sums become its elements.
template <class F, class OfC, int HALVES, int SUMS>
__device__ __forceinline__ void end(OfC& of_c, const float (&sum)[HALVES][SUMS], float scale, bool has_added) {
    F f;
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
        of_c.exchange(
            sum[half], has_added,
            [&](float2 two, float2 bias, float2 added) {
                return make_float2(f(scale * two.x + bias.x) + added.x, f(scale * two.y + bias.y) + added.y);
            },
            half);
    of_c.parity ^= 1;
}
// ANCHOR_END: end

template <class T, class OUT, Along A_LIES, Along B_LIES, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int linear_turns_shared =
    PLACES * OperandTiles<T, A_LIES, B_LIES, BM, BN, BK>::BYTES + IN_TURNS * TileOfC<OUT, BM, BN>::BYTES;

template <class T, class OUT, Along A_LIES, Along B_LIES, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(IN_TURNS * 128 + 128, 1)
    linear_turns(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                 const __grid_constant__ TensorMap C, const __grid_constant__ TensorMap R, const T* bias, int G, int M,
                 int N, int K, float scale, int activation, int has_added, int accumulates) {
    using Tiles = OperandTiles<T, A_LIES, B_LIES, BM, BN, BK>;
    using OfC = TileOfC<OUT, BM, BN>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    __shared__ typename OfC::Barriers barriers[IN_TURNS];
    __shared__ Mbarrier passed[IN_TURNS];  // all steps of a warpgroup's tile have come
    if (threadIdx.x == 0) {
        for (auto& of_one : passed) mbarrier_init(&of_one, 128);
        for (auto& of_one : barriers) of_one.init();
        ring.init(1);  // its fence is behind these, too
    }
    __syncthreads();  // nobody waits at a barrier that is not there

    TileOrder<HIGH> order{(M + BM - 1) / BM, (N + BN - 1) / BN};
    int all = order.down * order.across * G, steps = (K + BK - 1) / BK;
    bool multiplies = threadIdx.x < IN_TURNS * 128;
    // Which warpgroup's tiles are this thread's business. Of the warps behind them the first asks for both, then comes one for each.
    int own = multiplies ? threadIdx.x / 128 : threadIdx.x / 32 - IN_TURNS * 4 - 1;
    OUT* places = reinterpret_cast<OUT*>(tiles + PLACES * Tiles::CELLS);
    OfC of_c{places + max(own, 0) % IN_TURNS * BM * BN, barriers[max(own, 0) % IN_TURNS]};
    if (!multiplies) {
        registers_decrease<ASK_REGISTERS>();
        if (own < 0 && threadIdx.x % 32 == 0) {
            Turn<PLACES> turn;
            for (int n = blockIdx.x; n < all; n += gridDim.x) {
                auto [i, j, g] = order.at(n);
                for (int s = 0; s < steps; ++s, turn.advance()) {
                    ring.wait_empty(turn);
                    Tiles(tiles + turn.place * Tiles::CELLS).load(A, B, i * BM, j * BN, s * BK, &ring.full[turn.place], g);
                }
            }
        } else if (own >= 0 && own < IN_TURNS) {
            for (int n = blockIdx.x + own * gridDim.x; n < all; n += IN_TURNS * gridDim.x) {
                auto [i, j, g] = order.at(n);
                of_c.fetch(R, has_added, i * BM, j * BN, g, bias, N);
                of_c.store(C, i * BM, j * BN, g, accumulates);
            }
            of_c.finish();
        }
    } else {
        registers_increase<MULTIPLY_REGISTERS>();
        float sum[BM / 64][BN / 2];
        for (int t = own, n = blockIdx.x + own * gridDim.x; n < all; t += IN_TURNS, n += IN_TURNS * gridDim.x) {
            if (t > 0) mbarrier_wait(&passed[1 - own], (t - 1) / IN_TURNS % 2);
            multiply_rows<Tiles>(sum, tiles, ring, t * steps, steps, &passed[own]);
            switch (activation) {
                case RELU: end<Relu>(of_c, sum, scale, has_added); break;
                case GELU: end<Gelu>(of_c, sum, scale, has_added); break;
                case SILU: end<Silu>(of_c, sum, scale, has_added); break;
                default: end<Identity>(of_c, sum, scale, has_added);
            }
        }
    }
}
