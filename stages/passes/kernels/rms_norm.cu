// RMSNorm of a sum (Zhang & Sennrich 2019, arXiv 1910.07467), and layer norm without a shift:
//
//     s_rc = x_rc + added_rc                            the residual stream, rounded to T
//     r_r  = 1 / √(Σ_c (s_rc − μ_r)² / C + ε)           μ_r = Σ_c s_rc / C where centered, else 0
//     y_rc = n_rc w_c                                   n_rc = (s_rc − μ_r) r_r
//
// and back, with e_rc = dy_rc w_c and the gradient `residual` that comes down the stream:
//
//     ds_rc = residual_rc + r_r (e_rc − n_rc Σ_c e_rc n_rc / C)        − r_r Σ_c e_rc / C where centered
//     dw_c  = Σ_r dy_rc n_rc
//
// Work split: LANES threads a row, which stays in their registers: each tensor crosses device memory once. On
// the way back a block has many rows, and its lanes keep the sums of dw: one partial row a block.
//
// x, added, sum, y, dy, residual, dx: rows x width; weight: width; rstd: rows; partial: blocks x width.
#include "lab/ptx/grid_dependency.cuh"
#include "lab/ptx/prefetch.cuh"
#include "strip.cuh"

using namespace lab;

// ANCHOR: forward
template <class T, int LANES, int PACKS, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    rms_norm(const T* x, const T* added, const T* __restrict__ weight,
             T* __restrict__ sum, T* __restrict__ y, float* __restrict__ rstd, long long rows, int width,
             float eps, bool has_added, bool centered) {
    using Asked = Coming<T, LANES, PACKS, N>;
    using Row = Strip<T, LANES, PACKS, N>;
    griddep_launch_dependents();  // a product behind this may ask for its weights, while the launch before this ends
    if (N * sizeof(T) == 16 && blockIdx.x == 0 && threadIdx.x == 0) prefetch_bulk(weight, width * sizeof(T));
    griddep_wait();               // x is what that one writes
    long long r = blockIdx.x * 1ll * Row::ROWS + Row::row(), at = r * width;
    int inside = r < rows ? width : 0;
    // All loads are under way before the first sum.
    Asked coming_x(x + at, inside), coming_added(added + at, has_added ? inside : 0), coming_w(weight, inside);
    Row s = coming_x.arrived();
    if (has_added) {
        Row a = coming_added.arrived();
        // The norm is that of the stream as it is stored: the way back reads no other.
        Row::for_each_cell(inside, [&](int p, int i) { s.v[p][i] = to_math(from_math<T>(s.v[p][i] + a.v[p][i])); });
        s.store(sum + at, inside);
    }

    float mean = 0;
    if (centered) {
        Row::for_each_cell(inside, [&](int p, int i) { mean += s.v[p][i]; });
        mean = sum_of_lanes<LANES>(mean) / width;
    }
    float squares = 0;
    Row::for_each_cell(inside, [&](int p, int i) {
        s.v[p][i] -= mean;
        squares += s.v[p][i] * s.v[p][i];
    });
    float scale = 1.0f / sqrtf(sum_of_lanes<LANES>(squares) / width + eps);
    if (threadIdx.x % LANES == 0 && inside) rstd[r] = scale;

    Row w = coming_w.arrived();
    Row::for_each_cell(inside, [&](int p, int i) { s.v[p][i] *= scale * w.v[p][i]; });
    s.store(y + at, inside);
}
// ANCHOR_END: forward

// ANCHOR: backward
template <class T, int LANES, int PACKS, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    rms_norm_back(const T* __restrict__ dy, const T* __restrict__ s, const T* __restrict__ weight,
                  const float* __restrict__ rstd, const T* __restrict__ residual, T* __restrict__ dx,
                  float* __restrict__ partial, long long rows, int width, bool has_residual, bool centered) {
    using Row = Strip<T, LANES, PACKS, N>;
    float dw[PACKS][N] = {}, part = 1.0f / width;
    for (long long r0 = blockIdx.x * 1ll * Row::ROWS; r0 < rows; r0 += gridDim.x * 1ll * Row::ROWS) {
        long long r = r0 + Row::row(), at = r * width;
        int inside = r < rows ? width : 0;
        Row n, e, w;
        n.load(s + at, inside);
        e.load(dy + at, inside);
        Coming<T, LANES, PACKS, N> above(residual + at, has_residual ? inside : 0);
        w.load(weight, inside);
        float scale = inside ? rstd[r] : 0, mean = 0;
        if (centered) {
            Row::for_each_cell(inside, [&](int p, int i) { mean += n.v[p][i]; });
            mean = sum_of_lanes<LANES>(mean) * part;
        }

        float dot = 0, total = 0;
        Row::for_each_cell(inside, [&](int p, int i) {
            n.v[p][i] = (n.v[p][i] - mean) * scale;
            dw[p][i] += e.v[p][i] * n.v[p][i];
            e.v[p][i] *= w.v[p][i];
            dot += e.v[p][i] * n.v[p][i];
            total += e.v[p][i];
        });
        dot = sum_of_lanes<LANES>(dot) * part;
        total = centered ? sum_of_lanes<LANES>(total) * part : 0.0f;

        w = above.arrived();  // zeros where there is none
        Row::for_each_cell(inside, [&](int p, int i) {
            e.v[p][i] = w.v[p][i] + scale * (e.v[p][i] - total - n.v[p][i] * dot);
        });
        e.store(dx + at, inside);
    }
    store_block_sums<LANES>(dw, partial + blockIdx.x * 1ll * width, width);
}
// ANCHOR_END: backward
