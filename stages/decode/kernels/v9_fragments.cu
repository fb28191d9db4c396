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
#include "fragments.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/prefetch.cuh"

using namespace lab;

// A warp's part of what its block asks for.
template <int WARPS> __device__ __forceinline__ void ask_ahead(const void* from, int bytes) {
    int warp = threadIdx.x / 32, each = ((bytes + WARPS - 1) / WARPS + 127) / 128 * 128, own = min(each, bytes - warp * each);
    if (threadIdx.x % 32 == 0 && own > 0) prefetch_bulk(static_cast<const char*>(from) + warp * each, own);
}

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
    Rows2 raw[DEPTH][TILES];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) load_tiles<W>(raw[d], ahead, own, lane.sub);
    // W is nobody's result: it is on its way before x is there.
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
            const char* first = reinterpret_cast<const char*>(next + 1ll * blockIdx.x * next_share);
            ask_ahead<WARPS>(reinterpret_cast<const char*>(state) + 1ll * blockIdx.x * state_bytes, state_bytes);
            ask_ahead<WARPS>(first, next_bytes);
            if (next_half > 0) ask_ahead<WARPS>(first + next_half * sizeof(W), next_bytes);
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
    store_columns<W, ROWS, BLOCK>(sums, own, scale, has_residual, gated, Columns<T>{y, gates, bias, R, N, heads, cap, p1, p2, p3, p4});
}
// ANCHOR_END: fragments
