// O = Q (K^T V) / √DHQK by mma.sync, in three launches of which this file has the first and the last.
//
//   P_s,ij = Σ_{r of segment s} K_ri V_rj       f32, a segment of S each
//   C_ij   = Σ_s P_s,ij                         add_parts.cu: rounded to T, times a power of two
//   O_rj   = factor_j Σ_i Q_ri C_ij             factor: 1 / √DHQK over that power
//
// Products of T's (f32 is rounded to TF32), sums in f32.
//
// Work split: of P a block has 64 x 64 elements of a segment of a head; of O 64 rows and 64 columns. Blocks add nothing
// to each other's: each writes what is its own.
//
// Q, K: heads x S x dhqk, V, O: heads x S x dhhv, row-major. P: heads x segments x dhqk x dhhv, C: heads x dhqk x dhhv,
// factor: heads x dhhv.
#include "lab/tile_product.cuh"

using namespace lab;

template <class T, int PACK> constexpr int qkv_state_parts_shared = TileProduct<T, PACK, true>::BYTES;
template <class T, int PACK> constexpr int qkv_rows_shared = TileProduct<T, PACK, false>::BYTES;

// A grid of heads segments x ceil(dhqk / 64) x ceil(dhhv / 64) blocks; segments of `rows`, a multiple of 64.
template <class T, int PACK>
__global__ void __launch_bounds__(128, 2)
    qkv_state_parts(const T* __restrict__ k, const T* __restrict__ v, float* __restrict__ parts, int S, int dhqk,
                    int dhhv, int segments, int rows) {
    DYNAMIC_SHARED(T, stages);
    long long head = blockIdx.x / segments;
    int r0 = blockIdx.x % segments * rows, i0 = blockIdx.y * TILE, j0 = blockIdx.z * TILE;
    Matrix<const T> K{k + head * S * dhqk, S, dhqk}, V{v + head * S * dhhv, S, dhhv};
    Matrix<float> P{parts + blockIdx.x * 1ll * dhqk * dhhv, dhqk, dhhv};

    TileProduct<T, PACK, true> product;
    product.run(stages, K, V, i0, j0, r0, (min(rows, S - r0) + TILE - 1) / TILE);
    product.each_pair([&](int i, int j, const float* two) { P.template store<PACK != 1, 2>(two, i0 + i, j0 + j); });
}

// A grid of heads ceil(S / 64) x ceil(dhhv / 64) blocks.
template <class T, int PACK>
__global__ void __launch_bounds__(128, 2)
    qkv_rows(const T* __restrict__ q, const T* __restrict__ state, const float* __restrict__ factor, T* __restrict__ o,
             int S, int dhqk, int dhhv, int tiles) {
    DYNAMIC_SHARED(T, stages);
    long long head = blockIdx.x / tiles;
    int r0 = blockIdx.x % tiles * TILE, j0 = blockIdx.y * TILE;
    Matrix<const T> Q{q + head * S * dhqk, S, dhqk}, C{state + head * dhqk * dhhv, dhqk, dhhv};
    Matrix<T> O{o + head * S * dhhv, S, dhhv};

    TileProduct<T, PACK, false> product;
    product.run(stages, Q, C, r0, j0, 0, (dhqk + TILE - 1) / TILE);
    product.each_pair([&](int r, int j, const float* two) {
        float out[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) out[n] = j0 + j + n < dhhv ? two[n] * factor[head * dhhv + j0 + j + n] : 0;
        O.template store<PACK != 1, 2>(out, r0 + r, j0 + j);
    });
}
