// cross_entropy.cu where a block has room for two rows of logits in shared memory: the equations and the order of all sums are its own.
//
// Work split: a block a row at a time. While all threads make the sum and then the gradient of one row, one thread has asked for the
// next. So memory is read in all of the time; a row that waits in registers is asked for in that of its gradient alone.
//
// logits: rows x stride, V of them words, rows at multiples of 16 bytes; targets, row_losses: rows; count, loss_scale: one number.
// Dynamic shared memory: two rows.
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ring.cuh"
#include "logits.cuh"

using namespace lab;

// ANCHOR: gradient
template <class T, int THREADS, int N, bool CAPPED>
__global__ void __launch_bounds__(THREADS)
    cross_entropy_ring(T* logits, const int* __restrict__ targets, const int* __restrict__ count,
                       const double* __restrict__ loss_scale, float* __restrict__ row_losses, long long rows, int vocabulary,
                       int stride, float cap, float z_loss, float scale) {
    DYNAMIC_TILES(T, places);
    __shared__ Mbarrier full[2];
    Columns<THREADS, N> columns(vocabulary);
    Cap<T, CAPPED> bounds(cap);
    auto ask = [&](long long r, int place) {
        if (threadIdx.x > 0 || r >= rows) return;
        unsigned bytes = stride * sizeof(T);
        mbarrier_arrive_expect(&full[place], bytes);
        bulk_load(places + place * stride, logits + r * stride, bytes, &full[place]);
    };
    if (threadIdx.x == 0) {
        mbarrier_init(&full[0], 1);
        mbarrier_init(&full[1], 1);
        mbarrier_fence_init();
    }
    __syncthreads();  // nobody waits at a barrier that is not there yet
    ask(blockIdx.x, 0);
    ask(blockIdx.x + gridDim.x, 1);
    Turn<2> turn;
    for (long long r = blockIdx.x; r < rows; r += gridDim.x, turn.advance()) {
        const T* row = places + turn.place * stride;
        T* to = logits + r * stride;
        int target = targets[r];
        bool counts = is_counted(target, vocabulary);
        float z[N], one[1];
        Powers<CAPPED> powers(cap);
        mbarrier_wait(&full[turn.place], turn.parity);
#pragma unroll 4
        for (int p = threadIdx.x; p < columns.packs; p += THREADS) {
            load_cells<N>(z, row + p * N);
            bounds.bound(z);
            powers.take(z);
        }
        if (int c = columns.single(); c < vocabulary) {
            one[0] = to_math(row[c]);
            bounds.bound(one);
            powers.take(one);
        }
        float lse = powers.template over_block<THREADS>();

        if (threadIdx.x == 0) {
            one[0] = counts ? to_math(row[target]) : 0.0f;
            bounds.bound(one);
            row_losses[r] = counts ? lse - one[0] + z_loss * lse * lse : 0.0f;
        }
        float by = counts ? float(scale * *loss_scale / *count) : 0.0f;
        Gradient<CAPPED> gradient{bounds.inverse, lse, by * (1.0f + 2.0f * z_loss * lse), by, target};
#pragma unroll 4
        for (int p = threadIdx.x; p < columns.packs; p += THREADS) {
            load_cells<N>(z, row + p * N);
            bounds.bound(z);
            gradient.replace(z, p * N);
            store_cells<N>(to + p * N, z);
        }
        for (int c = columns.single(); c < stride; c += THREADS) {
            one[0] = c < vocabulary ? to_math(row[c]) : 0.0f;
            bounds.bound(one);
            gradient.replace(one, c);
            to[c] = from_math<T>(c < vocabulary ? one[0] : 0.0f);
        }
        __syncthreads();  // all have read the row, in whose place the one after the next comes
        ask(r + 2ll * gridDim.x, turn.place);
    }
}
// ANCHOR_END: gradient
