// The first and the last launch of a step of v3_wgmma.cu: the hidden layer, and the gradients by its weights and by the
// embeddings. Those of mlp.cuh, but that their products are made by the tensor cores, of operands that are rounded to bf16
// on their way from f32: rounded_tile.cuh. So emb and w1 need no copy.
#include "lab/ptx/dynamic_shared.cuh"
#include "mlp.cuh"
#include "rounded_tile.cuh"

using namespace lab;

// A unit is open or shut by the sign of a sum: rounded operands would have another sign for one in 500 of them, and that is
// an error of 3 % in the gradients. So here what rounding takes off is multiplied, too.
template <int PACK, int BM, int BN>
using HiddenTile = RoundedTile<BM, BN, 64, 16, 32, ALONG_K, ALONG_K, PACK, 2>;
template <int PACK, int BM, int BN>
constexpr int hidden_rounded_shared = sizeof(typename HiddenTile<PACK, BM, BN>::Stages);

template <int PACK, int BM, int BN>
__global__ void __launch_bounds__(BM / 16 * (BN / 32) * 32)
    hidden_rounded(const int* __restrict__ tokens, const int* __restrict__ targets, const int* __restrict__ order,
                   long long* counts, double* numbers, int* __restrict__ ids, const float* __restrict__ emb,
                   const float* __restrict__ w1, const float* __restrict__ b1, float* __restrict__ x,
                   Half* __restrict__ rounded, int pairs, int B, int E, int H, int HB) {
    DYNAMIC_SHARED(Half, memory);
    using Tile = HiddenTile<PACK, BM, BN>;
    hidden_tile<Tile, PACK>(
        *reinterpret_cast<typename Tile::Stages*>(memory), tokens, targets, order, counts, numbers, ids, emb, w1, b1, x, pairs, B, E, H,
        [&](int b, int j, const float(&four)[4]) { Matrix<Half>{rounded, B, HB}.template store<true>(four, b, j); });
}

template <Use USE, int PACK, int BM, int BN, int WM, int WN>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    input_weights_rounded(const int* __restrict__ ids, const float* __restrict__ x, const float* __restrict__ da,
                          const float* __restrict__ dx, float* emb, float* w1, float* b1, long long* counts,
                          const double* __restrict__ rates, const double* __restrict__ losses, int B, int E, int H) {
    using Tile = RoundedTile<BM, BN, 128, WM, WN, ACROSS_K, ACROSS_K, PACK>;
    input_gradient<Tile, USE, 32, PACK, true>(ids, x, da, dx, emb, w1, b1, counts, rates, losses, B, E, H);
}
