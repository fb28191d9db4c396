// y = s (x Wᵀ) + residual of one row or two: a warp walks down its columns of W, and waits for nobody before the last row.
//
//     y_rn = s_n Σ_k W_nk z_rk + residual_rn        z: x, or its norm (normed_rows.cuh)
//
// Work split: each block has as many columns of y as any other, ± 1, and so as many rows of W. A row is cut into slices of
// 1 kB or more, one for each warp of a group; the groups of a block take turns at EACH rows. So all warps have the same work, and a
// warp's loads go on from rows to rows, DEPTH steps of EACH packs of a lane ahead. Its sums of a row meet those of the other
// slices in shared memory, where all rows of the block have their places: one barrier, behind the last row.
//
// z lies in shared memory. A lane loads its columns of it once for EACH rows of W. CUDA cores multiply: one or two products for
// each number of W leave most of their time unused.
//
// The launch behind this one may begin when a warp has asked for its last weights: LATE. Its first weights then come while the last
// sums of this one meet. It asks for these itself, and for the state that a step reads (ahead.cuh).
//
// With `gated` W is [2 N, K], and y = silu(W_gate z) ⊙ (W_up z): rows of gate and of up take turns. Columns from p4 on may be the
// gates of a mixer: gates = cap tanh((y + bias) / cap), in f32, [2, R, heads].
//
// weight: N x K, or 2 N x K; scale: one for each of its rows; x: R x K; norm: K; ogate (o): R x K; residual: R x N; y: R x N, in
// parts (cell_of). K is a multiple of 16; R is ROWS.
#include "ahead.cuh"
#include "columns.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

// ANCHOR: columns
template <class T, class W, int ROWS, Norm NORM, int WARPS, int EACH, int DEPTH, int BLOCKS, int LATE>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    few_rows_columns(const W* __restrict__ weight, const float* __restrict__ scale, const T* x, const T* __restrict__ norm,
                     const T* ogate, const T* __restrict__ bias, const T* residual, T* y, float* gates, int N, int K, int D,
                     int has_residual, int gated, float eps, int heads, float cap, int p1, int p2, int p3, int p4,
                     const W* __restrict__ next, long long next_half, int next_share, int next_bytes, const float* state,
                     int state_bytes) {
    constexpr int THREADS = 32 * WARPS;
    DYNAMIC_SHARED(T, z);  // [ROWS, K]; behind it what the norm needs, and the sums
    using Own = Share<W, WARPS, EACH>;
    Own own(N, K, gated);
    T* own_norm = z + ROWS * K;
    BlockSums<ROWS> sums(own_norm + of_norm<NORM, ROWS>(K), own);

    if (!LATE) griddep_launch_dependents();
    Loads<W, Own> ahead(weight + 1ll * own.first * K, own);
    uint4 raw[DEPTH][EACH] = {};
    auto ask = [&](int d) { ahead.next(own, [&](int j, const W* from) { raw[d][j] = load_once(from); }); };
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) ask(d);
    // W is nobody's result: it is on its way before x is there.
    if (heads && threadIdx.x == 0) prefetch_line(bias);
    bring_rows<NORM, ROWS, THREADS>(z, own_norm, x, norm, ogate, eps, K, D);
    if (has_residual) sums.template bring_added<THREADS>(residual, own, N);
    __syncthreads();  // z is there

    int steps = own.steps();
    float sum[EACH * ROWS] = {};
    Place<Own> here(own);
#pragma unroll 1
    for (int s = 0; s < steps; s += DEPTH) {
        if (LATE && s + LATE * DEPTH >= steps) griddep_launch_dependents();
        if (s + DEPTH >= steps && threadIdx.x % 32 == 0)
            ask_ahead(threadIdx.x / 32, WARPS, next, next_half, next_share, next_bytes, state, state_bytes);
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (s + d >= steps) break;
            if (here.k < own.end) multiply_packs<W, EACH, ROWS>(sum, raw[d], z + here.k, K);
            ask(d);
            int row = here.row;
            if (!here.advance(own)) continue;
            sums.put(own, row, sum);
#pragma unroll
            for (int i = 0; i < EACH * ROWS; ++i) sum[i] = 0;
        }
    }
    __syncthreads();  // the sums of all slices are there
    auto scale_at = [&](int i) { return scale_of<W>(scale, own.row_of(i, N, gated)); };
    store_columns<ROWS, THREADS>(sums, own, scale_at, has_residual, gated, Columns<T>{y, gates, bias, ROWS, N, heads, cap, p1, p2, p3, p4});
}
// ANCHOR_END: columns
