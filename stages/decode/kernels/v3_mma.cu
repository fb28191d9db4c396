// y = s (x Wᵀ) + residual of few rows on the tensor cores, W from memory into fragments.
//
//     yᵀ = W xᵀ:   A = 16 rows of W,  B = 8 rows of x,  C = 16 x 8 of yᵀ      (mma.sync m16n8k16, sums in f32)
//
// CUDA cores need R multiplications for each number of W: with 16 rows more than they can do while memory delivers. Here the
// tensor cores multiply, and W still needs no shared memory. A sum over k may take its columns in any order, if A and B agree:
// lane (g, t) of a fragment holds four columns of rows g and g + 8, whichever these are. So it loads 16 contiguous bytes of each
// row, and these are its columns of as many products as they hold: 2 of halves, 4 of int8.
//
// Work split: a block has 16 rows of W; its 8 warps take turns at steps of 128 bytes of each row (two packs of a lane in two
// rows). A lane has DEPTH steps in flight: 8 packs, 4 kB a warp. x comes through the L1 cache. The partial sums of the warps are
// added in shared memory, in their order: the bits do not depend on R.
//
// With `gated` W is [2 N, K], and y = silu(W_gate x) ⊙ (W_up x): rows g of a fragment are gates and rows g + 8 the same columns
// of up, so that both numbers of a cell are in one block.
//
// weight: N x K, or 2 N x K; scale: one for each of its rows; x: R x K; residual: R x N; y: R x N, in parts (cell_of).
// K is a multiple of 16.
#include "lab/ptx/grid_dependency.cuh"
#include "mma_rows.cuh"

using namespace lab;

// ANCHOR: mma
template <class T, class W, int TILES, int DEPTH>
__global__ void __launch_bounds__(THREADS, TILES <= 2 ? 3 : TILES <= 4 ? 2 : 1)
    few_rows_mma(const W* __restrict__ weight, const float* __restrict__ scale, const T* x, const T* residual, T* y, int R, int N,
                 int K, int has_residual, int gated, int p1, int p2, int p3, int p4) {
    __shared__ Sums<TILES> sums;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Rows<W> rows(weight, blockIdx.x, N, K, gated, g);
    int steps = (K + rows.STEP - 1) / rows.STEP;

    griddep_launch_dependents();
    Part parts[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) parts[d] = rows.load(warp + d * WARPS, t);
    griddep_wait();  // W is nobody's result: it is on its way before x is there

    float c[TILES][4] = {};
    for (int s = warp; s < steps; s += DEPTH * WARPS)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            int step = s + d * WARPS;
            if (step >= steps) break;
            multiply<T, W>(c, parts[d], x + 1ll * g * K, R, K, step, g, t);
            parts[d] = rows.load(step + DEPTH * WARPS, t);
        }
    sums.put(c, warp, g, t);
    __syncthreads();  // the sums of all warps are written
    store_rows<W>(sums, blockIdx.x, scale, residual, y, R, N, has_residual, gated, p1, p2, p3, p4);
}
// ANCHOR_END: mma
