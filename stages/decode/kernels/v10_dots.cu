// y = s (x Wᵀ) + residual of one row or two, W of int8: v6_columns by products of bytes, four of them an instruction.
//
//     y_rn = s_n e_r Σ_k W_nk (256 high_rk + low_rk) + residual_rn        z_rk ≈ e_r (256 high_rk + low_rk),  e_r = max_k |z_rk| / 32512
//
// z is x, or its norm. Each block makes whole numbers of 16 bits of it, as v9_bytes' first launch does, and leaves their bytes in two
// planes in shared memory. dp4a multiplies four bytes of W with four of a plane: half an instruction for each number of W, where v6 has
// three. When the last weights of a block arrive, that many fewer are left to do. Sums are whole numbers: exact in any order.
//
// Work split, weights ahead, sums, gates, parts: as v6_columns. Scales come to shared memory before x is there.
//
// weight: N x K, or 2 N x K; scale: one for each of its rows; x: R x K; norm: K; ogate (o): R x K; residual: R x N; y: R x N, in
// parts (cell_of). K is a multiple of 16; R is ROWS.
#include "ahead.cuh"
#include "columns.cuh"
#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/dp4a.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "units.cuh"

using namespace lab;

// ANCHOR: dots
// high[j][r] += W times the upper bytes, low[j][r] += W times the lower ones, over a lane's pack of each of EACH rows.
template <int EACH, int ROWS>
__device__ __forceinline__ void multiply_bytes(int (&high)[EACH * ROWS], int (&low)[EACH * ROWS], const uint4 (&raw)[EACH],
                                               const signed char* planes, int K) {
    auto add = [](int sum, const uint4& w, const uint4& x) {
        return dot_bytes(w.w, x.w, dot_bytes(w.z, x.z, dot_bytes(w.y, x.y, dot_bytes(w.x, x.x, sum))));
    };
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        uint4 upper = *reinterpret_cast<const uint4*>(planes + r * K), lower = *reinterpret_cast<const uint4*>(planes + (ROWS + r) * K);
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            high[j * ROWS + r] = add(high[j * ROWS + r], raw[j], upper);
            low[j * ROWS + r] = add(low[j * ROWS + r], raw[j], lower);
        }
    }
}
// ANCHOR_END: dots

template <class T, int ROWS, Norm NORM, int WARPS, int EACH, int DEPTH, int BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    few_rows_dots(const signed char* __restrict__ weight, const float* __restrict__ scale, const T* x, const T* __restrict__ norm,
                  const T* ogate, const T* __restrict__ bias, const T* residual, T* y, float* gates, int N, int K, int D,
                  int has_residual, int gated, float eps, int heads, float cap, int p1, int p2, int p3, int p4,
                  const signed char* __restrict__ next, long long next_half, int next_share, int next_bytes, const float* state,
                  int state_bytes) {
    constexpr int THREADS = 32 * WARPS, E = Pack<T>::N;
    DYNAMIC_SHARED(signed char, planes);  // [2, ROWS, K]; behind it what the norm needs, the sums, and the scales
    __shared__ float2 of_warp[ROWS][WARPS];
    using Own = Share<signed char, WARPS, EACH>;
    Own own(N, K, gated);
    // A row of x, the norm's weight, and the heads' gate of a row: K of each.
    T *own_row = reinterpret_cast<T*>(planes + 2 * ROWS * K), *own_weight = own_row + K, *own_gate = own_weight + K;
    BlockSums<ROWS> sums(own_row + (1 + static_cast<int>(NORM)) * K, own);
    float* scales = sums.sums + sums.room * sums.slices;

    Loads<signed char, Own> ahead(weight + 1ll * own.first * K, own);
    uint4 raw[DEPTH][EACH] = {};
    auto ask = [&](int d) { ahead.next(own, [&](int j, const signed char* from) { raw[d][j] = load_once(from); }); };
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) ask(d);
    // W, its scales and the norm's weight are nobody's result: they are on their way before x is there.
#pragma unroll 1
    for (int i = threadIdx.x; i < own.rows; i += THREADS) async_copy<4>(scales + i, scale + own.row_of(i, N, gated));
    if (NORM != NONE)
#pragma unroll 1
        for (int k = threadIdx.x * E; k < K; k += THREADS * E) async_copy<16>(own_weight + k, norm + k);
    if (heads && threadIdx.x == 0) prefetch_line(bias);
    griddep_wait();
    float unit[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        // Registers have weights under way: so x comes past them.
#pragma unroll 1
        for (int k = threadIdx.x * E; k < K; k += THREADS * E) {
            async_copy<16>(own_row + k, x + r * K + k);
            if (NORM == HEADS) async_copy<16>(own_gate + k, ogate + r * K + k);
        }
        async_commit();
        if (r == 0 && has_residual) sums.template bring_added<THREADS>(residual, own, N);
        async_wait<0>();
        signed char* high = planes + r * K;
        unit[r] = split_row<NORM, THREADS, 1>(high, high + ROWS * K, of_warp[r], own_weight, own_row, own_row, own_gate, eps, K, D);
        if (r + 1 < ROWS) __syncthreads();  // all have read the row: the next one takes its place
    }
    __syncthreads();  // the planes are there

    int steps = own.steps(), high[EACH * ROWS] = {}, low[EACH * ROWS] = {};
    Place<Own> here(own);
#pragma unroll 1
    for (int s = 0; s < steps; s += DEPTH) {
        if (s + DEPTH >= steps) {
            griddep_launch_dependents();
            if (threadIdx.x % 32 == 0)
                ask_ahead(threadIdx.x / 32, WARPS, next, next_half, next_share, next_bytes, state, state_bytes);
        }
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (s + d >= steps) break;
            if (here.k < own.end) multiply_bytes<EACH, ROWS>(high, low, raw[d], planes + here.k, K);
            ask(d);
            int row = here.row;
            if (!here.advance(own)) continue;
            float sum[EACH * ROWS];
#pragma unroll
            for (int i = 0; i < EACH * ROWS; ++i)  // a lane has 64 products at most, of 22 bits and a sign
                sum[i] = static_cast<float>(256 * high[i] + low[i]) * unit[i % ROWS], high[i] = low[i] = 0;
            sums.put(own, row, sum);
        }
    }
    __syncthreads();  // the sums of all slices are there
    auto scale_at = [&](int i) { return scales[i]; };
    store_columns<ROWS, THREADS>(sums, own, scale_at, has_residual, gated, Columns<T>{y, gates, bias, ROWS, N, heads, cap, p1, p2, p3, p4});
}
