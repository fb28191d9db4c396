// A product with all that stands behind it in a network, in one launch, by wgmma and TMA: a linear layer and its gradients.
//
//   C_ij = f(scale Σ_k A_ik B_kj + bias_j) + R_ij      products of T's, sums in f32; f: lab/epilogue.cuh
//   C_ij += the same                                   where C is of f32
//
// G matrices C [M, N], of T or f32, and R likewise. A along k is [M, K], across it [K, M]; B along k is [N, K], across it
// [K, N]. With x, W [N, K] and dy, row-major:
//
//   y = f(x Wᵀ + b)     both along k
//   dx = dy W           W across k
//   dW = dyᵀ x          both across k, M of them the columns of dy
//
// Work split: as v13_stores, a block a multiprocessor goes from tile to tile; one thread asks for tiles of A and B, two
// warpgroups multiply 64 rows each. One warp more fetches R and the bias, and stores C (tile_of_c.cuh).
#include "lab/epilogue.cuh"
#include "lab/product.cuh"
#include "tile_of_c.cuh"

using namespace lab;

constexpr int ASK_REGISTERS = 40, MULTIPLY_REGISTERS = 232;

// ANCHOR: epilogue
// A tile's sums become its elements.
template <class F, class OfC, int SUMS>
__device__ __forceinline__ void end(OfC& of_c, const float (&sum)[SUMS], float scale, bool has_added) {
    F f;
    of_c.exchange(sum, has_added, [&](float2 two, float2 bias, float2 added) {
        return make_float2(f(scale * two.x + bias.x) + added.x, f(scale * two.y + bias.y) + added.y);
    });
}
// ANCHOR_END: epilogue

template <class T, class OUT, Along A_LIES, Along B_LIES, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int linear_shared = PLACES * OperandTiles<T, A_LIES, B_LIES, BM, BN, BK>::BYTES + TileOfC<OUT, BM, BN>::BYTES;

template <class T, class OUT, Along A_LIES, Along B_LIES, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(PRODUCT_THREADS<BM>, 1)
    linear(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, const __grid_constant__ TensorMap C,
           const __grid_constant__ TensorMap R, const T* bias, int G, int M, int N, int K, float scale, int activation,
           int has_added, int accumulates) {
    using Tiles = OperandTiles<T, A_LIES, B_LIES, BM, BN, BK>;
    using OfC = TileOfC<OUT, BM, BN>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    __shared__ typename OfC::Barriers barriers;
    if (threadIdx.x == 0) {
        ring.init(BM / 64);
        barriers.init();
    }
    __syncthreads();  // nobody waits at a barrier that is not there

    TileOrder<HIGH> order{(M + BM - 1) / BM, (N + BN - 1) / BN};
    int all = order.down * order.across * G, steps = (K + BK - 1) / BK;
    Pipeline<Tiles, T, BN, PLACES> pipeline{tiles, ring};
    OfC of_c{reinterpret_cast<OUT*>(tiles + PLACES * Tiles::CELLS), barriers};
    if (threadIdx.x >= BM * 2) {
        registers_decrease<ASK_REGISTERS>();
        int warp = threadIdx.x / 32 - BM / 16;
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            auto [i, j, g] = order.at(n);
            if (warp == 0 && threadIdx.x % 32 == 0) {
                for (int s = 0; s < steps; ++s, pipeline.turn.advance()) {
                    ring.wait_empty(pipeline.turn);
                    pipeline.at(pipeline.turn).load(A, B, i * BM, j * BN, s * BK, &ring.full[pipeline.turn.place], g);
                }
            } else if (warp == 1) {
                of_c.fetch(R, has_added, i * BM, j * BN, g, bias, N);
                of_c.store(C, i * BM, j * BN, g, accumulates);
            }
        }
        if (warp == 1) of_c.finish();
    } else {
        registers_increase<MULTIPLY_REGISTERS>();
        float sum[BN / 2];
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            pipeline.multiply(sum, threadIdx.x / 128 * 64, steps);
            switch (activation) {
                case RELU: end<Relu>(of_c, sum, scale, has_added); break;
                case GELU: end<Gelu>(of_c, sum, scale, has_added); break;
                case SILU: end<Silu>(of_c, sum, scale, has_added); break;
                default: end<Identity>(of_c, sum, scale, has_added);
            }
        }
    }
}
