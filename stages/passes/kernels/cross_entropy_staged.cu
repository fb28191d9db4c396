// cross_entropy.cu where a multiprocessor has room for two rows of logits and more in shared memory: the equations are its own.
//
// Work split: a block a row at a time, which lies in shared memory between the sum and the gradient. When all threads have read it for
// the last time, one asks for the block's next row. A multiprocessor has several blocks: while one waits, for its row, for the sum of
// its threads or at its row's end, the others compute.
//
// logits: rows x stride, V of them words, rows at multiples of 16 bytes; targets, row_losses: rows; count, loss_scale: one number.
// Dynamic shared memory: a row.
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ring.cuh"
#include "logits.cuh"

using namespace lab;

// ANCHOR: gradient
template <class T, int THREADS, int N, bool CAPPED>
__global__ void __launch_bounds__(THREADS)
    cross_entropy_staged(T* __restrict__ logits, const int* __restrict__ targets, const int* __restrict__ count,
                         const double* __restrict__ loss_scale, float* __restrict__ row_losses, long long rows,
                         int vocabulary, int stride, float cap, float z_loss, float scale) {
    DYNAMIC_TILES(T, row);
    __shared__ Mbarrier full;
    Columns<THREADS, N> columns(vocabulary);
    Cap<T, CAPPED> bounds(cap);
    float of_all = float(scale * *loss_scale / *count);
    auto ask = [&](long long r) {
        if (threadIdx.x > 0 || r >= rows) return;
        unsigned bytes = stride * sizeof(T);
        mbarrier_arrive_expect(&full, bytes);
        bulk_load(row, logits + r * stride, bytes, &full);
    };
    if (threadIdx.x == 0) mbarrier_init(&full, 1), mbarrier_fence_init();
    __syncthreads();  // nobody waits at a barrier that is not there yet
    ask(blockIdx.x);
    Turn<1> turn;
    for (long long r = blockIdx.x; r < rows; r += gridDim.x, turn.advance()) {
        T* to = logits + r * stride;
        int target = targets[r];
        bool counts = is_counted(target, vocabulary);
        float x[N], one[1];
        Powers<T, CAPPED> powers(bounds);
        mbarrier_wait(&full, turn.parity);
#pragma unroll 4
        for (int p = threadIdx.x; p < columns.packs; p += THREADS) {
            load_cells<N>(x, row + p * N);
            powers.take(x);
        }
        if (int c = columns.single(); c < vocabulary) {
            one[0] = to_math(row[c]);
            powers.take(one);
        }
        float lse = powers.template over_block<THREADS>();

        if (threadIdx.x == 0) row_losses[r] = counts ? lse - bounds.bound(to_math(row[target])) + z_loss * lse * lse : 0.0f;
        float by = counts ? of_all : 0.0f;
        Gradient<T, CAPPED> gradient{bounds, lse, by * (1.0f + 2.0f * z_loss * lse), by, target};
#pragma unroll 4
        for (int p = threadIdx.x; p < columns.packs; p += THREADS) {
            load_cells<N>(x, row + p * N);
            gradient.replace(x, p * N);
            store_cells<N>(to + p * N, x);
        }
        for (int c = columns.single(); c < stride; c += THREADS) {
            one[0] = c < vocabulary ? to_math(row[c]) : 0.0f;
            gradient.replace(one, c);
            to[c] = from_math<T>(c < vocabulary ? one[0] : 0.0f);
        }
        __syncthreads();  // all have read the row, in whose place the next one comes
        ask(r + gridDim.x);
    }
}
// ANCHOR_END: gradient
