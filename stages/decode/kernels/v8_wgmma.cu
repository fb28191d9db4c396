// y = s (x Wᵀ) + residual of 9 to 128 rows by wgmma: W and x come by TMA, and a cluster shares k.
//
//     y_rn = s_n Σ_k W_nk x_rk + residual_rn
//
//     yᵀ = W xᵀ:   A = 64 rows of W,  B = all rows of x,  C = 64 x ROWS of yᵀ      (wgmma m64nROWSk16, sums in f32)
//
// A block has M = 64 GROUPS rows of W, a warpgroup 64 of them, and a part of k. One thread asks for a step of both operands after
// the other: 128 bytes of each row of W, and as many columns of x. They wait in a ring of PLACES. Two blocks fit a multiprocessor: one ends,
// or the next launch's begins, while the other one loads. The blocks of a cluster have the other parts of k. Their sums meet in
// shared memory, and each block ends some cells of the tile.
//
// wgmma reads halves of W where TMA has put them. Of int8 each lane makes halves of the bytes that its fragments need.
//
// Gated, the first M / 2 rows of a tile are those of gate, the others the same columns of up.
//
// weight: N x K, or 2 N x K; scale: one for each of its rows; x: R x K; residual: R x N; y: R x N, in parts (cell_of); the columns
// from p4 on may be gates. K is a multiple of 16; R at most ROWS.
#include "ahead.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/grid_dependency.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "wgmma_rows.cuh"

using namespace lab;

template <class T, class W, int ROWS, int GROUPS, int PLACES> constexpr int of_places = PLACES * Step<T, W, ROWS, GROUPS>::BYTES;
template <class T, class W, int ROWS, int GROUPS, int PLACES, int BLOCKS>
constexpr int few_rows_wgmma_shared = of_places<T, W, ROWS, GROUPS, PLACES> > TileSums<ROWS, GROUPS>::BYTES
                                          ? of_places<T, W, ROWS, GROUPS, PLACES>
                                          : TileSums<ROWS, GROUPS>::BYTES;

// Rows of W whose sums begin at the same columns: whole pairs of tiles of 128 and of 192.
constexpr int ALIKE = 768;

// ANCHOR: wgmma
template <class T, class W, int ROWS, int GROUPS, int PLACES, int BLOCKS>
__global__ void __launch_bounds__(MULTIPLIERS<GROUPS> + 32, BLOCKS)
    few_rows_wgmma(const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x, const float* __restrict__ scale,
                   const T* __restrict__ bias, const T* residual, T* y, float* gates, int R, int N, int K, int has_residual, int gated,
                   int heads, float cap, int beside, int p1, int p2, int p3, int p4,
                   const float* state, int state_bytes) {
    using Step = lab::Step<T, W, ROWS, GROUPS>;
    constexpr int ASKS = MULTIPLIERS<GROUPS>;  // the thread that asks: the first behind those that multiply
    DYNAMIC_TILES(unsigned char, places);
    __shared__ Ring<PLACES> ring;
    __shared__ Factors<W, ROWS, GROUPS> factors;
    Stand stand(beside);
    int tile = stand.tile;
    int steps = (K + Step::DEEP - 1) / Step::DEEP, first = steps * stand.part / stand.parts;
    int count = steps * (stand.part + 1) / stand.parts - first, ahead = min(PLACES, count);
    griddep_launch_dependents();

    TileSums<ROWS, GROUPS> sums{reinterpret_cast<float*>(places), stand};
    Turn<PLACES> turn;
    auto step = [&] { return Step{places + turn.place * Step::BYTES}; };
    // Tiles begin at different columns, and come round to those before them: else all would ask for the same x at the same time. It is
    // the same for a row of W in tiles of any height: sums are rounded in this order.
    int start = tile * Step::M / ALIKE % count;
    auto column = [&](int s) { return (first + (s + start < count ? s + start : s + start - count)) * Step::DEEP; };
    auto ask_weights = [&](int s) { step().ask_weights(weight, tile, column(s), gated, &ring.full[turn.place]); };
    if (threadIdx.x == ASKS) {
        ring.init(ASKS / 32 * beside);
        fence_proxy_async_shared();  // copies count at barriers that this thread has made
        for (int s = 0; s < ahead; ++s, turn.advance()) ask_weights(s);  // W is nobody's result: it is on its way before x is there
        prefetch_map(x);
        if (heads) prefetch_line(bias);
    }
    stand.sync();  // nobody waits or arrives at a barrier that is not there
    turn = {};
    if (threadIdx.x == ASKS) {
        auto ask_x = [&](int s) { step().ask_x(x, column(s), stand, &ring.full[turn.place]); };
        griddep_wait();
        for (int s = 0; s < ahead; ++s, turn.advance()) ask_x(s);
        for (int s = ahead; s < count; ++s, turn.advance()) {
            ring.wait_empty_for_copies(turn);
            ask_weights(s);
            ask_x(s);
        }
        ask_state(0, 1, state, state_bytes);
    } else if (threadIdx.x < ASKS) {
        float sum[ROWS / 2];
        Turn<PLACES> last;
        factors.bring(scale, tile, N, gated);
        for (int s = 0; s < count; ++s, turn.advance()) {
            ring.wait_full_of_copies(turn);
            step().multiply(sum, s > 0);
            if constexpr (!is_int8<W>) wgmma_wait<1>();  // the products of the step before have ended
            __syncwarp();                                // all lanes have read their place
            if ((is_int8<W> || s > 0) && threadIdx.x % 32 < beside)
                ring.leave_to_copies(is_int8<W> ? turn : last, stand.part * beside + threadIdx.x % 32);
            last = turn;
        }
        wgmma_wait<0>();
        named_barrier_sync(1, ASKS);  // all have read the places: sums take their room
        sums.store(sum);
    }
    // The sums of all blocks are there; and the launch before has ended, as the thread that asks has seen.
    if (stand.parts == 1) __syncthreads();
    else stand.sync();
    if (threadIdx.x < ASKS) {
        Columns<T> to{y, gates, bias, R, N, heads, cap, p1, p2, p3, p4};
        sums.end(to, factors, has_residual ? residual : nullptr, gated);
    }
    if (stand.beside * stand.parts > 1) cluster_meet();  // nobody ends while others may read his sums, or arrive at his barriers
}
// ANCHOR_END: wgmma
