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
// a block. All loads of a row are under way before its first sum, and on the way back those of the next row, too:
// for a row's sums and roots take as long as its way from memory.
//
// h, dh: [B, NH, S, D] or [B, S, NH, D], by the strides in `h_batch`, `h_position`, `h_head`; out, dout:
// [B S, NH D]; ogate, dogate: the same, with rows `ogate_stride` and `dogate_stride` apart; weight: [NH D];
// partial: blocks x [NH D].
#include "lab/quick.cuh"
#include "lab/ptx/grid_dependency.cuh"
#include "lab/ptx/prefetch.cuh"
#include "strip.cuh"

using namespace lab;

// Where h of a row b S + s begins. A division takes some forty instructions: where positions lie one behind the other over all
// of the batch, as in [B, S, NH, D], there is none.
__device__ __forceinline__ long long head_of_row(int row, int positions, long long batch, long long position,
                                                 long long head) {
    if (batch == positions * position) return row * position + blockIdx.y * head;
    return row / positions * batch + row % positions * position + blockIdx.y * head;
}

// h becomes n; returns r.
template <int LANES, class Row> __device__ __forceinline__ float normalize(Row& h, int inside, int width, float eps) {
    float mean = 0, squares = 0, part = 1.0f / width;
    Row::for_each_cell(inside, [&](int p, int i) { mean += h.v[p][i]; });
    mean = sum_of_lanes<LANES>(mean) * part;
    Row::for_each_cell(inside, [&](int p, int i) {
        h.v[p][i] -= mean;
        squares += h.v[p][i] * h.v[p][i];
    });
    float scale = 1.0f / sqrtf(sum_of_lanes<LANES>(squares) * part + eps);
    Row::for_each_cell(inside, [&](int p, int i) { h.v[p][i] *= scale; });
    return scale;
}

// ANCHOR: forward
template <class T, int LANES, int PACKS, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    head_norm(const T* h, const T* ogate, const T* __restrict__ weight,
              T* __restrict__ out, int rows, int positions, int heads, int width, long long h_batch,
              long long h_position, long long h_head, long long ogate_stride, float eps) {
    using Asked = Coming<T, LANES, PACKS, N>;
    using Row = Strip<T, LANES, PACKS, N>;
    griddep_launch_dependents();  // a product behind this may ask for its weights, while the launch before this ends
    if (N * sizeof(T) == 16 && blockIdx.x == 0 && threadIdx.x == 0) prefetch_bulk(weight + blockIdx.y * width, width * sizeof(T));
    griddep_wait();               // h is what that one writes
    int r = blockIdx.x * Row::ROWS + Row::row(), inside = r < rows ? width : 0, first = blockIdx.y * width;
    Asked coming_h(h + head_of_row(r, positions, h_batch, h_position, h_head), inside);
    Asked coming_o(ogate + r * ogate_stride + first, inside), coming_w(weight + first, inside);
    Row n = coming_h.arrived();
    normalize<LANES>(n, inside, width, eps);
    Row o = coming_o.arrived(), w = coming_w.arrived();
    Row::for_each_cell(inside, [&](int p, int i) { n.v[p][i] *= quick_sigmoid(o.v[p][i]) * w.v[p][i]; });
    n.store(out + r * 1ll * heads * width + first, inside);
}
// ANCHOR_END: forward

// ANCHOR: backward
template <class T, int LANES, int PACKS, int N>
__global__ void __launch_bounds__(PASS_THREADS, sizeof(T) == 4 ? 1 : 2)
    head_norm_back(const T* __restrict__ dout, const T* __restrict__ h, const T* __restrict__ ogate,
                   const T* __restrict__ weight, T* __restrict__ dh, T* __restrict__ dogate,
                   float* __restrict__ partial, int rows, int positions, int heads, int width,
                   long long h_batch, long long h_position, long long h_head, long long ogate_stride,
                   long long dogate_stride, float eps) {
    using Asked = Coming<T, LANES, PACKS, N>;
    using Row = Strip<T, LANES, PACKS, N>;
    int first = blockIdx.y * width;
    float dw[PACKS][N] = {};
    struct Rows {
        Asked h, dout, ogate;
    };
    auto ask = [&](int r) {
        int inside = r < rows ? width : 0;
        return Rows{{h + head_of_row(r, positions, h_batch, h_position, h_head), inside},
                    {dout + r * 1ll * heads * width + first, inside},
                    {ogate + r * ogate_stride + first, inside}};
    };
    int r = blockIdx.x * Row::ROWS + Row::row(), stride = gridDim.x * Row::ROWS;
    Asked coming_w(weight + first, width);
    Rows next = ask(r);
    for (int r0 = blockIdx.x * Row::ROWS; r0 < rows; r0 += stride, r += stride) {
        int inside = r < rows ? width : 0;
        Rows now = next;
        next = ask(r + stride);
        Row n = now.h.arrived();
        float scale = normalize<LANES>(n, inside, width, eps);
        Row e = now.dout.arrived(), o = now.ogate.arrived(), w = coming_w.arrived();

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
        float part = 1.0f / width;
        dot = sum_of_lanes<LANES>(dot) * part;
        total = sum_of_lanes<LANES>(total) * part;
        Row::for_each_cell(inside, [&](int p, int i) {
            e.v[p][i] = scale * (e.v[p][i] - total - n.v[p][i] * dot);
        });
        e.store(dh + (now.h.row - h), inside);
    }
    store_block_sums<LANES>(dw, partial + (blockIdx.x * 1ll * heads + blockIdx.y) * width, width);
}
// ANCHOR_END: backward
