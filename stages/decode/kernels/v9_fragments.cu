// y = s (x Wᵀ) + residual of one row to eight: warps walk down their columns of W, and the tensor cores multiply.
//
//     y_rn = s_n Σ_k W_nk z_rk + residual_rn        z: x, or its norm (normed_rows.cuh)
//
// As v6_columns: a block has as many columns of y as any other, ± 1; a warp keeps its slice of the columns of W, and its loads never stop; the
// sums of all rows meet once, behind the last row. But a step is 128 bytes of each of 8 TILES rows of W, as fragments have them
// (fragments.cuh), so eight rows of x cost hardly more than one, and int8 two instructions a number. One block fills a
// multiprocessor: x is there once, and each block norms all rows of it.
//
// When a warp has asked for its last weights, it also asks for what the next launches begin with, to the L2 cache: the first rows
// of each block's share of `next`, the weights of the product behind this one, and `state`. So memory is busy while the last sums meet,
// and until the next blocks have begun. Nobody waits for it, and no result depends on it.
//
// weight: N x K, or 2 N x K; scale: one for each of its rows; x: R x K; norm: K; ogate (o): R x K; residual: R x N; y: R x N, in
// parts (cell_of). next: a half has `next_half` elements, of which a block asks for `next_bytes` from each `next_share` on; state:
// `state_bytes` for each block. K is a multiple of 16; R is ROWS at most; a row has 2^slices slices.
#include "ahead.cuh"
#include "fragments.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

// ANCHOR: fragments
template <class T, class W, int ROWS, Norm NORM, int WARPS, int TILES, int DEPTH>
__global__ void __launch_bounds__(32 * WARPS, 1)
    few_rows_fragments(const W* __restrict__ weight, const float* __restrict__ scale, const T* x, const T* __restrict__ norm,
                       const T* ogate, const T* __restrict__ bias, const T* residual, T* y, float* gates, int R, int N, int K,
                       int D, int slices, int has_residual, int gated, float eps, int heads, float cap, int p1, int p2, int p3,
                       int p4, const W* __restrict__ next, long long next_half, int next_share, int next_bytes,
                       const float* state, int state_bytes) {
    constexpr int BLOCK = 32 * WARPS, FOURS = (ROWS + 3) / 4;
    using Own = Share<W, WARPS, 8 * TILES, ACROSS>;
    DYNAMIC_SHARED(T, z);  // [R, K]; behind it what the norm needs, and the sums
    Own own(N, K, gated, slices);
    T* own_norm = z + R * K;
    BlockSums<ROWS> sums(own_norm + of_norm<NORM>(K, R), own);
    LanePlace lane;

    Loads<W, Own> ahead(weight + 1ll * own.first * K, own);
    Rows2 raw[DEPTH][TILES] = {};
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) load_tiles<W>(raw[d], ahead, own, lane.sub);
    float* scales = sums.sums + own.slices * sums.room;
    if constexpr (is_int8<W>)
#pragma unroll 1
        for (int i = threadIdx.x; i < own.rows; i += BLOCK) scales[i] = scale[own.row_of(i, N, gated)];
    // W is nobody's result: it is on its way before x is there, as scales are.
    bring_rows<NORM, ROWS, BLOCK>(z, own_norm, x, norm, ogate, eps, K, D, R);
    if (has_residual) sums.template bring_added<BLOCK>(residual, own, N, R);
    __syncthreads();  // z is there

    const T* own_z[FOURS];  // rows past the last are it again: nobody stores their sums
#pragma unroll
    for (int n = 0; n < FOURS; ++n) own_z[n] = z + min(4 * n + lane.sub, R - 1) * K;
    int steps = own.steps(), s = 0;
    float sum[TILES][FOURS][4] = {};
    Place<Own> here(own);
#pragma unroll 1
    do {
        if (s + DEPTH >= steps) {
            griddep_launch_dependents();
            ask_ahead<WARPS>(next, next_half, next_share, next_bytes, state, state_bytes);
        }
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (s + d >= steps) break;
            multiply_tiles<T, W>(sum, raw[d], own_z, here.k, here.k < own.end);
            load_tiles<W>(raw[d], ahead, own, lane.sub);
            int row = here.row;
            if (here.advance(own)) put_tiles(sums, own, row, sum, lane, R);
        }
        s += DEPTH;
    } while (s < steps);
    __syncthreads();  // the sums of all slices are there
    auto scale_at = [&](int i) { return is_int8<W> ? scales[i] : 1.0f; };
    store_columns<ROWS, BLOCK>(sums, own, scale_at, has_residual, gated, Columns<T>{y, gates, bias, R, N, heads, cap, p1, p2, p3, p4});
}
// ANCHOR_END: fragments
