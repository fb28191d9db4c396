// cross_entropy.cu for capped halves, with one exponential a logit: the equations are its own. A cap bounds exp z by itself, so
//
//     sum = Σ_c exp z_c            lse = log sum            no offset
//     e_c = exp(z_c) (1 − (z_c / cap)²)                     which needs no sum, and is kept in f32
//     dx_c = e_c · scale / count · (1 + 2 ζ lse) / sum      and at the target less scale / count · (1 − (z_c / cap)²)
//
// Work split: a block a row at a time, one block a multiprocessor. Rows of logits come to two places in shared memory by TMA. The block
// keeps all e of a row in its registers, HELD packs a thread, and leaves a row pack by pack: the gradient of a pack is stored, one
// product, and the e of the next row's pack take its registers. So memory is read, written and computed with all the time; threads
// wait for each other once a row, for its sum. The target's gradient is put right behind the others by the thread that has stored it.
//
// logits: rows x stride, V of them words, rows at multiples of 16 bytes; targets, row_losses: rows; count, loss_scale: one number.
// Dynamic shared memory: two rows.
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ring.cuh"
#include "logits.cuh"

using namespace lab;

// ANCHOR: gradient
template <class T, int THREADS, int HELD>
__global__ void __launch_bounds__(THREADS, 1)
    cross_entropy_kept(T* __restrict__ logits, const int* __restrict__ targets, const int* __restrict__ count,
                       const double* __restrict__ loss_scale, float* __restrict__ row_losses, long long rows,
                       int vocabulary, int stride, float cap, float z_loss, float scale) {
    constexpr int N = Pack<T>::N;
    DYNAMIC_TILES(T, places);
    __shared__ Mbarrier full[2];
    Columns<THREADS, N> columns(vocabulary);
    Cap<T, true> bounds(cap);
    float of_all = float(scale * *loss_scale / *count);
    auto ask = [&](long long r, int place) {
        if (threadIdx.x > 0 || r >= rows) return;
        unsigned bytes = stride * sizeof(T);
        mbarrier_arrive_expect(&full[place], bytes);
        bulk_load(places + place * stride, logits + r * stride, bytes, &full[place]);
    };
    if (threadIdx.x == 0) {
        for (Mbarrier& barrier : full) mbarrier_init(&barrier, 1);
        mbarrier_fence_init();
    }
    __syncthreads();  // nobody waits at a barrier that is not there yet
    for (int place = 0; place < 2; ++place) ask(blockIdx.x + place * gridDim.x, place);
    Turn<2> turn;
    float e[HELD][N], last[1] = {}, of_e = 0, of_target = 0;
    T* kept = nullptr;  // where the row lies that the registers hold
    bool counts = false;
    int target = -1, single = columns.single();
    for (long long r = blockIdx.x;; r += gridDim.x, turn.advance()) {
        bool comes = r < rows;
        const T* row = places + turn.place * stride;
        int its_target = comes ? targets[r] : -1;
        float sum = 0;
        if (comes) mbarrier_wait(&full[turn.place], turn.parity);
#pragma unroll
        for (int p = 0; p < HELD; ++p) {
            int pack = columns.pack(p);
            if (pack >= columns.packs) continue;
            if (kept) {
#pragma unroll
                for (int i = 0; i < N; ++i) e[p][i] *= of_e;
                store_cells<N>(kept + pack * N, e[p]);
            }
            if (comes) bounds.weigh(e[p], load_raw(row + pack * N), sum);
        }
        if (kept) {
            for (int c = single; c < stride; c += THREADS) kept[c] = from_math<T>(c < vocabulary ? last[0] * of_e : 0.0f);
            if (counts && columns.owner(target) == int(threadIdx.x)) {
                float of_one[1], power = 0;
                bounds.weigh(of_one, of_target, power);
                kept[target] = from_math<T>(of_one[0] * of_e - of_all * of_one[0] / power);  // e / exp z is the slope
            }
        }
        if (!comes) break;
        target = its_target;
        counts = is_counted(target, vocabulary);
        if (single < vocabulary) bounds.weigh(last, to_math(row[single]), sum);
        of_target = counts ? to_math(row[target]) : 0.0f;
        // Its barriers are also between what threads have read of the row and the copy of a later one to its place.
        sum = block_reduce<THREADS>(sum, Add{}, 0.0f);
        ask(r + 2 * gridDim.x, turn.place);

        float lse = logf(sum);
        of_e = counts ? of_all * (1.0f + 2.0f * z_loss * lse) / sum : 0.0f;
        if (threadIdx.x == 0) row_losses[r] = counts ? lse - bounds.bound(of_target) + z_loss * lse * lse : 0.0f;
        if (!counts) {  // zeros, whatever its logits are
            last[0] = 0;
#pragma unroll
            for (int p = 0; p < HELD; ++p) {
#pragma unroll
                for (int i = 0; i < N; ++i) e[p][i] = 0;
            }
        }
        kept = logits + r * stride;
    }
}
// ANCHOR_END: gradient
