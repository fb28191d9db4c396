// As v6_columns, but weights wait in shared memory: the blocks of two launches fit a multiprocessor side by side.
//
//     y_rn = s_n Σ_k W_nk z_rk + residual_rn        z: x, or its norm (normed_rows.cuh)
//
// Work split: as v6_columns, with one block a multiprocessor. A lane has a ring of DEPTH steps of EACH packs of 16 bytes in shared
// memory, and copies its packs there itself (cp.async): nobody else reads them, so that no barrier is needed. What is under way takes no
// registers. So the blocks of the launch behind this one begin when the last steps are under way, LATE rounds before the end, and their
// first DEPTH steps come while the last sums of this launch meet.
//
// Operands as v6_columns.
#include "columns.cuh"
#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

// ANCHOR: ring
template <class T, class W, int ROWS, Norm NORM, int WARPS, int EACH, int DEPTH, int BLOCKS, int LATE>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    few_rows_ring(const W* __restrict__ weight, const float* __restrict__ scale, const T* x, const T* __restrict__ norm,
                  const T* ogate, const T* __restrict__ bias, const T* residual, T* y, float* gates, int N, int K, int D,
                  int has_residual, int gated, float eps, int heads, float cap, int p1, int p2, int p3, int p4) {
    constexpr int THREADS = 32 * WARPS;
    DYNAMIC_SHARED(uint4, ring);  // [DEPTH, EACH, THREADS]; behind it z [ROWS, K], what the norm needs, and the sums
    using Own = Share<W, WARPS, EACH>;
    Own own(N, K, gated);
    T* z = reinterpret_cast<T*>(ring + DEPTH * EACH * THREADS);
    T* own_norm = z + ROWS * K;
    BlockSums<ROWS> sums(own_norm + of_norm<NORM, ROWS>(K), own);

    if (!LATE) griddep_launch_dependents();
    Loads<W, Own> ahead(weight + 1ll * own.first * K, own);
    uint4* first = ring + threadIdx.x;
    auto ask = [&](uint4* place) {
        ahead.next(own, [&](int j, const W* from) { async_copy<16>(place + j * THREADS, from); });
        async_commit();
    };
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) ask(first + d * EACH * THREADS);
    // W is nobody's result: it is on its way before x is there.
    bring_rows<NORM, ROWS, THREADS>(z, own_norm, x, norm, ogate, eps, K, D);
    if (has_residual) sums.template bring_added<THREADS>(residual, own, N);
    __syncthreads();  // z is there

    int steps = own.steps(), d = 0;
    float sum[EACH * ROWS] = {};
    Place<Own> here(own);
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
        if (LATE && s + LATE * DEPTH >= steps) griddep_launch_dependents();
        uint4* place = first + d * EACH * THREADS;
        async_wait<DEPTH - 1>();  // of this lane's own copies
        if (here.k < own.end) {
            uint4 raw[EACH];
#pragma unroll
            for (int j = 0; j < EACH; ++j) raw[j] = here.row + j < own.rows ? place[j * THREADS] : uint4{0, 0, 0, 0};
            multiply_packs<W, EACH, ROWS>(sum, raw, z + here.k, K);
        }
        ask(place);
        d = d + 1 < DEPTH ? d + 1 : 0;
        int row = here.row;
        if (!here.advance(own)) continue;
        sums.put(own, row, sum);
#pragma unroll
        for (int i = 0; i < EACH * ROWS; ++i) sum[i] = 0;
    }
    __syncthreads();  // the sums of all slices are there
    auto scale_at = [&](int i) { return scale_of<W>(scale, own.row_of(i, N, gated)); };
    store_columns<ROWS, THREADS>(sums, own, scale_at, has_residual, gated, Columns<T>{y, gates, bias, ROWS, N, heads, cap, p1, p2, p3, p4});
}
// ANCHOR_END: ring
