// y = s (x Wᵀ) + residual of few rows: blocks that stay, W always in flight, the norm of x on the way.
//
//     y_rn = s_n Σ_k W_nk z_rk + residual_rn
//     z = x;  or of RMS  z_rk = x_rk w_k / √(Σ_k x_rk² / K + ε);  or of HEADS  z = σ(o) ⊙ layer norm of each head of x ⊙ w
//
// As v3_mma, but blocks are as many as fit, and go through the tiles of 16 rows of W. While a tile's sums meet in shared memory,
// the first steps of the next one are on their way: no tile begins with an empty pipe. Each warp has as many steps of every tile,
// in rounds of DEPTH; those past K load nothing.
//
// And x stays in shared memory: with a NORM a block norms its rows once, while W is on its way. That costs no launch, and the
// product behind another begins before that has ended: its W is nobody's result (griddep_wait).
//
// The columns from p4 on may be the gates of a mixer: gates = cap tanh((y + bias) / cap), in f32, [2, R, heads].
//
// weight: N x K, or 2 N x K; scale: one for each of its rows; x: R x K; norm: K; ogate (o): R x K; residual: R x N; y: R x N, in parts (cell_of).
// K is a multiple of 16; R at most 8 TILES.
#include "ahead.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/grid_dependency.cuh"
#include "mma_rows.cuh"

using namespace lab;

// to = the norm of each row of x. Each thread has the same columns of all rows.
template <class T> __device__ __forceinline__ void norm_rows(T* to, const T* x, const T* norm, float eps, int R, int K) {
    constexpr int E = Pack<T>::N;
    constexpr int TURN = 4;  // rows at a time, for the sake of registers: W is waiting in some
    __shared__ float squares[WARPS][8];
    for (int r0 = 0; r0 < R; r0 += TURN) {
        float own[TURN] = {};
        for (int k = threadIdx.x * E; k < K; k += THREADS * E)
#pragma unroll
            for (int r = 0; r < TURN; ++r) {
                if (r0 + r >= R) break;
                Pack<T> v = load_pack(x + 1ll * (r0 + r) * K + k);
#pragma unroll
                for (int i = 0; i < E; ++i) own[r] += v.v[i] * v.v[i];
            }
#pragma unroll
        for (int r = 0; r < TURN; ++r) {
            float sum = warp_reduce(own[r], Add{});
            if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32][r0 + r] = sum;
        }
    }
    __syncthreads();  // the squares of all warps are there
#pragma unroll 1
    for (int r = 0; r < R; ++r) {
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += squares[w][r];
        float rstd = 1.0f / sqrtf(sum / K + eps);
        for (int k = threadIdx.x * E; k < K; k += THREADS * E) {
            Pack<T> v = load_pack(x + 1ll * r * K + k), w = load_pack(norm + k);
#pragma unroll
            for (int i = 0; i < E; ++i) v.v[i] *= rstd * w.v[i];
            store_pack(to + r * K + k, v);
        }
    }
    __syncthreads();  // fragments read what other threads have normed
}

// to = σ(o) ⊙ the layer norm of each head of x ⊙ w. A warp has a head of a row at a time, a lane at most two packs of it.
template <class T>
__device__ __forceinline__ void norm_heads(T* to, const T* x, const T* ogate, const T* norm, float eps, int R, int K, int D) {
    constexpr int E = Pack<T>::N;
    int lane = threadIdx.x % 32, heads = K / D;
    for (int n = threadIdx.x / 32; n < R * heads; n += WARPS) {
        int first = n % heads * D, at = n / heads * K + first;
        Pack<T> v[2];
        float mean = 0, squares = 0;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            int k = (p * 32 + lane) * E;
            if (k < D) v[p] = load_pack(x + at + k);
#pragma unroll
            for (int i = 0; i < E; ++i) mean += k < D ? v[p].v[i] : 0.0f;
        }
        mean = warp_reduce(mean, Add{}) / D;
#pragma unroll
        for (int p = 0; p < 2; ++p)
#pragma unroll
            for (int i = 0; i < E; ++i) {
                if ((p * 32 + lane) * E >= D) break;
                v[p].v[i] -= mean;
                squares += v[p].v[i] * v[p].v[i];
            }
        float rstd = 1.0f / sqrtf(warp_reduce(squares, Add{}) / D + eps);
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            int k = (p * 32 + lane) * E;
            if (k >= D) break;
            Pack<T> o = load_pack(ogate + at + k), w = load_pack(norm + first + k);
#pragma unroll
            for (int i = 0; i < E; ++i) v[p].v[i] *= rstd * quick_sigmoid(o.v[i]) * w.v[i];
            store_pack(to + at + k, v[p]);
        }
    }
    __syncthreads();  // fragments read what other warps have normed
}

// What is done to x on the way.
enum Norm { NONE, RMS, HEADS };

// ANCHOR: persistent
template <class T, class W, int TILES, int DEPTH, Norm NORM>
__global__ void __launch_bounds__(THREADS, TILES == 1 || (TILES == 2 && is_int8<W>) ? 3 : TILES == 2 ? 2 : 1)
    few_rows_persistent(const W* __restrict__ weight, const float* __restrict__ scale, const T* x, const T* __restrict__ norm,
                        const T* ogate, const T* __restrict__ bias, const T* residual, T* y, float* gates, int R, int N, int K,
                        int D, int has_residual, int gated, float eps, int heads, float cap, int p1, int p2, int p3, int p4,
                        const W* __restrict__ next, long long next_half, int next_share, int next_bytes, const float* state,
                        int state_bytes) {
    static_assert(NORM == NONE || TILES == 1, "norm_rows has sums of eight rows");
    __shared__ Sums<TILES> sums[2];
    DYNAMIC_SHARED(T, normed);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int tiles = (N + wide_of(gated) - 1) / wide_of(gated);
    constexpr int ROUND = Rows<W>::STEP * WARPS * DEPTH;
    int mine = (K + ROUND - 1) / ROUND * DEPTH;  // steps of a warp in a tile

    griddep_launch_dependents();
    Rows<W> ahead(weight, blockIdx.x, N, K, gated, g);
    Part parts[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) parts[d] = ahead.load(warp + d * WARPS, t);
    griddep_wait();  // W is nobody's result: it is on its way before x is there
    if constexpr (NORM == RMS) norm_rows(normed, x, norm, eps, R, K);
    if constexpr (NORM == HEADS) norm_heads(normed, x, ogate, norm, eps, R, K, D);
    const T* z = (NORM == NONE ? x : normed) + 1ll * g * K;

    for (int tile = blockIdx.x, n = 0; tile < tiles; tile += gridDim.x, ++n) {
        float c[TILES][4] = {};
        if (tile + static_cast<int>(gridDim.x) >= tiles && lane == 0)
            ask_ahead(warp, WARPS, next, next_half, next_share, next_bytes, state, state_bytes);
        for (int s = 0; s < mine; s += DEPTH) {
            // The loads from here on are those of the next tile, if there is one.
            if (s + DEPTH == mine) ahead = Rows<W>(weight, min(tile + static_cast<int>(gridDim.x), tiles - 1), N, K, gated, g);
            int next = s + DEPTH == mine ? (tile + static_cast<int>(gridDim.x) < tiles ? 0 : mine) : s + DEPTH;
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) {
                multiply<T, W>(c, parts[d], z, R, K, warp + (s + d) * WARPS, g, t);
                parts[d] = ahead.load(warp + (next + d) * WARPS, t);
            }
        }
        sums[n % 2].put(c, warp, g, t);
        // The sums of all warps are written; those of the tile before last are read, in whose place the next ones go.
        __syncthreads();
        store_rows<W>(sums[n % 2], tile, scale, residual, y, R, heads ? p4 : N, has_residual, gated, p1, p2, p3, p4);
        if (heads && (tile + 1) * HIGH > p4) store_gates<W>(sums[n % 2], tile, scale, bias, gates, R, N, heads, cap, p4);
    }
}
// ANCHOR_END: persistent
