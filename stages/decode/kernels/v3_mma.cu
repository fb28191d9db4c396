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
#include "few_rows.cuh"
#include "lab/halves.cuh"
#include "lab/ptx/grid_dependency.cuh"

using namespace lab;

constexpr int WARPS = 8, THREADS = 32 * WARPS, HIGH = 16;  // rows of W of a block

// Two elements of a pack, from element 2 i on, as a fragment has them.
template <class T, class W> __device__ __forceinline__ unsigned two_of(const unsigned (&words)[4], int i) {
    if constexpr (!is_int8<W>) return words[i];
    else return two_halves<T>(signed_byte(words[i / 2], i % 2 * 2), signed_byte(words[i / 2], i % 2 * 2 + 1));
}

// A lane's part of a step: two packs of each of its two rows.
struct Part {
    uint4 low[2], high[2];
};

template <class W> struct Rows {
    static constexpr int E = OF_PACK<W>, STEP = 8 * E;  // columns of a step
    const W *low, *high;
    int K;

    __device__ __forceinline__ Part load(int step, int t) const {
        Part part;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            int k = step * STEP + p * 4 * E + t * E;
            bool inside = k < K;
            part.low[p] = inside ? load_once(low + k) : uint4{0, 0, 0, 0};
            part.high[p] = inside ? load_once(high + k) : uint4{0, 0, 0, 0};
        }
        return part;
    }
};

// c += W xᵀ over the columns of a step. `x` is row g of each tile of eight, from column 0 on.
template <class T, class W, int TILES>
__device__ __forceinline__ void multiply(float (&c)[TILES][4], const Part& part, const T* x, int R, int K, int step, int g, int t) {
    constexpr int E = OF_PACK<W>;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
        int k = step * Rows<W>::STEP + p * 4 * E + t * E;
        const uint4 &l = part.low[p], &h = part.high[p];
        unsigned low[4] = {l.x, l.y, l.z, l.w}, high[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
            unsigned b[E / 2] = {};
            if (n * 8 + g < R && k < K) {
#pragma unroll
                for (int q = 0; q < E / 8; ++q) {
                    uint4 raw = *reinterpret_cast<const uint4*>(x + 8ll * n * K + k + q * 8);
                    b[4 * q] = raw.x, b[4 * q + 1] = raw.y, b[4 * q + 2] = raw.z, b[4 * q + 3] = raw.w;
                }
            }
#pragma unroll
            for (int j = 0; j < E / 4; ++j) {
                unsigned a[4] = {two_of<T, W>(low, 2 * j), two_of<T, W>(high, 2 * j), two_of<T, W>(low, 2 * j + 1),
                                 two_of<T, W>(high, 2 * j + 1)};
                multiply_add<T>(c[n], a, b[2 * j], b[2 * j + 1]);
            }
        }
    }
}

// ANCHOR: mma
template <class T, class W, int TILES, int DEPTH>
__global__ void __launch_bounds__(THREADS, TILES <= 2 ? 3 : TILES <= 4 ? 2 : 1)
    few_rows_mma(const W* __restrict__ weight, const float* __restrict__ scale, const T* x, const T* residual, T* y, int R, int N,
                 int K, int has_residual, int gated, int p1, int p2, int p3, int p4) {
    __shared__ float sums[WARPS][TILES * 8][HIGH + 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int wide = gated ? HIGH / 2 : HIGH, n0 = blockIdx.x * wide;
    // Rows past the end are the last one again; nobody stores their sums.
    int low = min(n0 + g, N - 1), high = gated ? low + N : min(n0 + g + 8, N - 1);
    Rows<W> rows{weight + 1ll * low * K, weight + 1ll * high * K, K};
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
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[warp][n * 8 + 2 * t + i % 2][g + i / 2 * 8] = c[n][i];
    __syncthreads();  // the sums of all warps are written

    for (int e = threadIdx.x; e < R * wide; e += THREADS) {
        int r = e / wide, i = e % wide, n = n0 + i;
        if (n >= N) continue;
        float sum = 0, up = 0;
        for (int w = 0; w < WARPS; ++w) sum += sums[w][r][i];
        sum *= scale_of<W>(scale, n);
        if (gated) {
            for (int w = 0; w < WARPS; ++w) up += sums[w][r][i + 8];
            sum *= quick_sigmoid(sum) * up * scale_of<W>(scale, N + n);
        }
        if (has_residual) sum += to_math(residual[1ll * r * N + n]);
        y[cell_of(r, n, R, N, p1, p2, p3, p4)] = from_math<T>(sum);
    }
}
// ANCHOR_END: mma
