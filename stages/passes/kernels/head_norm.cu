// The norm over each head with its output gate, as in xLSTM (arXiv 2405.04517, appendix):
//
//     n_c = (h_c − μ) r    μ = Σ_c h_c / D    r = 1 / √(Σ_c (h_c − μ)² / D + ε)    over a head's D
//     out_c = σ(o_c) n_c w_c
//
// and back, with g_c = σ(o_c) and e_c = dout_c g_c w_c:
//
//     do_c = dout_c n_c w_c g_c (1 − g_c)
//     dh_c = r (e_c − Σ_c e_c / D − n_c Σ_c e_c n_c / D)
//     dw_c = Σ over rows of dout_c g_c n_c
//
// Work split: a block rows of one head (blockIdx.y), LANES threads a row of D. The statistics are taken again
// on the way back, from the registers: nothing is kept but h and o. Lanes keep the sums of dw: one partial row
// a block.
//
// h, dh: [B, NH, S, D] or [B, S, NH, D], by the strides in `h_batch`, `h_position`, `h_head`; out, dout:
// [B S, NH D]; ogate, dogate: the same, with rows `ogate_stride` and `dogate_stride` apart; weight: [NH D];
// partial: blocks x [NH D].
#include "lab/quick.cuh"
#include "lab/ptx/grid_dependency.cuh"
#include "strip.cuh"

using namespace lab;

// Where h of a row b S + s begins.
__device__ __forceinline__ long long head_of_row(int row, int positions, long long batch, long long position,
                                                 long long head) {
    return row / positions * batch + row % positions * position + blockIdx.y * head;
}

// h becomes n; returns r.
template <int LANES, class Row> __device__ __forceinline__ float normalize(Row& h, int inside, int width, float eps) {
    float mean = 0, squares = 0;
    Row::for_each_cell(inside, [&](int p, int i) { mean += h.v[p][i]; });
    mean = sum_of_lanes<LANES>(mean) / width;
    Row::for_each_cell(inside, [&](int p, int i) {
        h.v[p][i] -= mean;
        squares += h.v[p][i] * h.v[p][i];
    });
    float scale = 1.0f / sqrtf(sum_of_lanes<LANES>(squares) / width + eps);
    Row::for_each_cell(inside, [&](int p, int i) { h.v[p][i] *= scale; });
    return scale;
}

// ANCHOR: forward
template <class T, int LANES, int PACKS, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    head_norm(const T* h, const T* ogate, const T* __restrict__ weight,
              T* __restrict__ out, int rows, int positions, int heads, int width, long long h_batch,
              long long h_position, long long h_head, long long ogate_stride, float eps) {
    using Row = Strip<T, LANES, PACKS, N>;
    griddep_wait();               // h is what the launch before writes
    griddep_launch_dependents();  // a product behind this may ask for its weights
    int r = blockIdx.x * Row::ROWS + Row::row(), inside = r < rows ? width : 0, first = blockIdx.y * width;
    Row n, o, w;
    n.load(h + head_of_row(r, positions, h_batch, h_position, h_head), inside);
    o.load(ogate + r * ogate_stride + first, inside);
    w.load(weight + first, inside);
    normalize<LANES>(n, inside, width, eps);
    Row::for_each_cell(inside, [&](int p, int i) { n.v[p][i] *= quick_sigmoid(o.v[p][i]) * w.v[p][i]; });
    n.store(out + r * 1ll * heads * width + first, inside);
}
// ANCHOR_END: forward

// ANCHOR: backward
template <class T, int LANES, int PACKS, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    head_norm_back(const T* __restrict__ dout, const T* __restrict__ h, const T* __restrict__ ogate,
                   const T* __restrict__ weight, T* __restrict__ dh, T* __restrict__ dogate,
                   float* __restrict__ partial, int rows, int positions, int heads, int width,
                   long long h_batch, long long h_position, long long h_head, long long ogate_stride,
                   long long dogate_stride, float eps) {
    using Row = Strip<T, LANES, PACKS, N>;
    int first = blockIdx.y * width;
    float dw[PACKS][N] = {};
    for (int r0 = blockIdx.x * Row::ROWS; r0 < rows; r0 += gridDim.x * Row::ROWS) {
        int r = r0 + Row::row(), inside = r < rows ? width : 0;
        long long h_at = head_of_row(r, positions, h_batch, h_position, h_head);
        Row n, o, e, w;
        n.load(h + h_at, inside);
        e.load(dout + r * 1ll * heads * width + first, inside);
        o.load(ogate + r * ogate_stride + first, inside);
        w.load(weight + first, inside);
        float scale = normalize<LANES>(n, inside, width, eps);

        float dot = 0, total = 0;
        Row::for_each_cell(inside, [&](int p, int i) {
            float g = quick_sigmoid(o.v[p][i]), eg = e.v[p][i] * g;
            o.v[p][i] = eg * (1.0f - g) * n.v[p][i] * w.v[p][i];
            dw[p][i] += eg * n.v[p][i];
            e.v[p][i] = eg * w.v[p][i];
            dot += e.v[p][i] * n.v[p][i];
            total += e.v[p][i];
        });
        o.store(dogate + r * dogate_stride + first, inside);
        dot = sum_of_lanes<LANES>(dot) / width;
        total = sum_of_lanes<LANES>(total) / width;
        Row::for_each_cell(inside, [&](int p, int i) {
            e.v[p][i] = scale * (e.v[p][i] - total - n.v[p][i] * dot);
        });
        e.store(dh + h_at, inside);
    }
    store_block_sums<LANES>(dw, partial + (blockIdx.x * 1ll * heads + blockIdx.y) * width, width);
}
// ANCHOR_END: backward
