// The loss of a language model, and its gradient in the place of the logits:
//
//     z_c = cap tanh(x_c / cap), or x_c            lse = log Σ_c exp z_c
//     loss_r = lse − z_target + ζ lse²             0 where the target is no word of the vocabulary: it is ignored
//     dx_c = scale / count · (exp(z_c − lse) (1 + 2 ζ lse) − [c = target]) (1 − (z_c / cap)²)
//
// with count the targets that are not ignored. A cap bounds the logits: exp(z − cap) neither overflows nor,
// over a row, vanishes, and there is no running maximum.
//
// Work split: a block a row at a time. HELD packs a thread stay in registers between the sum and the gradient;
// packs beyond those are read again. As a pack's gradient is stored, the pack of the block's next row is
// asked for: it is on its way during the rest of this one. The columns behind the last whole pack are few, and
// are read one by one; those behind the vocabulary get zeros.
//
// logits: rows x stride, V of them words; targets, row_losses: rows; count, loss, loss_scale: one number.
#include "logits.cuh"

using namespace lab;

constexpr int HELD = 7, COUNT_THREADS = 1024;

// ANCHOR: losses
// The losses alone: logits stay as they are.
template <class T, int THREADS, int N, bool CAPPED>
__global__ void __launch_bounds__(THREADS)
    losses(const T* __restrict__ logits, const int* __restrict__ targets, float* __restrict__ row_losses,
           int vocabulary, int stride, float cap, float z_loss) {
    Columns<THREADS, N> columns(vocabulary);
    Cap<T, CAPPED> bounds(cap);
    const T* row = logits + blockIdx.x * 1ll * stride;
    Powers<T, CAPPED> powers(bounds);
#pragma unroll 4
    for (int p = threadIdx.x; p < columns.packs; p += THREADS) {
        float z[N];
        load_cells<N>(z, row + p * 1ll * N);
        powers.take(z);
    }
    float one[1];
    if (int c = columns.single(); c < vocabulary) {
        one[0] = to_math(row[c]);
        powers.take(one);
    }
    float lse = powers.template over_block<THREADS>();
    if (threadIdx.x > 0) return;
    int target = targets[blockIdx.x];
    bool counts = is_counted(target, vocabulary);
    float of_target = counts ? bounds.bound(to_math(row[target])) : 0.0f;
    row_losses[blockIdx.x] = counts ? lse - of_target + z_loss * lse * lse : 0.0f;
}
// ANCHOR_END: losses

// ANCHOR: gradient
template <class T, int THREADS, int N, bool CAPPED>
__global__ void __launch_bounds__(THREADS)
    cross_entropy(T* __restrict__ logits, const int* __restrict__ targets, const int* __restrict__ count,
                  const double* __restrict__ loss_scale, float* __restrict__ row_losses, long long rows,
                  int vocabulary, int stride, float cap, float z_loss, float scale) {
    constexpr int KEPT = N > 1 ? HELD : 0;
    Columns<THREADS, N> columns(vocabulary);
    Cap<T, CAPPED> bounds(cap);
    float of_all = float(scale * *loss_scale / *count);
    Raw<T> held[HELD];
    auto fetch = [&](long long r, int p) {
        int pack = columns.pack(p);
        if (r < rows && pack < columns.packs) held[p] = load_raw(logits + r * stride + pack * 1ll * N);
    };
#pragma unroll
    for (int p = 0; p < KEPT; ++p) fetch(blockIdx.x, p);
    for (long long r = blockIdx.x; r < rows; r += gridDim.x) {
        T* row = logits + r * stride;
        int target = targets[r];
        bool counts = is_counted(target, vocabulary);
        float of_target = counts ? to_math(row[target]) : 0.0f, z[N];
        Powers<T, CAPPED> powers(bounds);
#pragma unroll
        for (int p = 0; p < KEPT; ++p) {
            if (columns.pack(p) >= columns.packs) continue;
            cells_of(z, held[p]);
            powers.take(z);
        }
        for (int p = columns.pack(KEPT); p < columns.packs; p += THREADS) {
            load_cells<N>(z, row + p * 1ll * N);
            powers.take(z);
        }
        float one[1];
        if (int c = columns.single(); c < vocabulary) {
            one[0] = to_math(row[c]);
            powers.take(one);
        }
        // Its barriers are also between what threads have read of the row and what they store.
        float lse = powers.template over_block<THREADS>();

        if (threadIdx.x == 0) row_losses[r] = counts ? lse - bounds.bound(of_target) + z_loss * lse * lse : 0.0f;
        float by = counts ? of_all : 0.0f;
        Gradient<T, CAPPED> gradient{bounds, lse, by * (1.0f + 2.0f * z_loss * lse), by, target};
#pragma unroll
        for (int p = 0; p < KEPT; ++p) {
            int pack = columns.pack(p);
            if (pack < columns.packs) {
                cells_of(z, held[p]);
                gradient.replace(z, pack * N);
                store_cells<N>(row + pack * 1ll * N, z);
            }
            fetch(r + gridDim.x, p);
        }
        for (int p = columns.pack(KEPT); p < columns.packs; p += THREADS) {
            load_cells<N>(z, row + p * 1ll * N);
            gradient.replace(z, p * N);
            store_cells<N>(row + p * 1ll * N, z);
        }
        for (int c = columns.single(); c < stride; c += THREADS) {
            one[0] = c < vocabulary ? to_math(row[c]) : 0.0f;
            gradient.replace(one, c);
            row[c] = from_math<T>(c < vocabulary ? one[0] : 0.0f);
        }
    }
}
// ANCHOR_END: gradient

// The targets that are not ignored, by one block.
__global__ void __launch_bounds__(COUNT_THREADS)
    count_targets(const int* __restrict__ targets, int* __restrict__ count, long long rows, int vocabulary) {
    int own = 0;
    for (long long r = threadIdx.x; r < rows; r += COUNT_THREADS) own += is_counted(targets[r], vocabulary);
    own = block_reduce<COUNT_THREADS>(own, Add{}, 0);
    if (threadIdx.x == 0) *count = own;
}

// loss = Σ_r loss_r / count, by one block, in f64: a mean over many rows keeps their digits. NaN where all are
// ignored.
__global__ void __launch_bounds__(COUNT_THREADS)
    mean_loss(const float* __restrict__ row_losses, const int* __restrict__ count, double* __restrict__ loss,
              long long rows) {
    double own = 0;
    for (long long r = threadIdx.x; r < rows; r += COUNT_THREADS) own += row_losses[r];
    own = block_reduce<COUNT_THREADS>(own, Add{}, 0.0);
    if (threadIdx.x == 0) *loss = own / *count;
}
