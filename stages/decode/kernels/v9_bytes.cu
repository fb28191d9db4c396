// y = s (x Wᵀ) + residual of 3 to 128 rows, W of int8, by products of bytes: the tensor cores multiply W as memory has it.
//
//     y_rn = s_n e_r Σ_k W_nk (256 hi_rk + lo_rk) + residual_rn        x_rk ≈ e_r (256 hi_rk + lo_rk),  e_r = max_k |x_rk| / 32512
//
//     yᵀ = W [hi lo]ᵀ:   A = 64 rows of W,  B = the two planes of all rows of x     (wgmma m64n(2 ROWS)k32, sums of int)
//
// First rows_as_bytes makes whole numbers of 16 bits of each row of x, which it may norm before, and leaves their upper and lower bytes in
// two planes. Then the product is as v8_wgmma's, without a conversion: one thread asks for steps of both operands, 128 columns of each,
// and a cluster shares k. Sums of whole numbers are exact, so their order does not matter: blocks begin at different columns, for
// else all of them would ask the L2 cache for the same bytes of x at the same time.
//
// weight: N x K, or 2 N x K where it is gated; scale: one for each of its rows; x: R x K; planes: 2 x R x K; quantum: R; residual: R x N;
// y: R x N, in parts that begin at p1, p2, p3 (cell_of); from p4 on it may be gates of `heads` heads, capped. D: columns of a head that is normed.
// K is a multiple of 16, at most 131,056, so that sums fit 32 bits; R at most ROWS. `state` is only asked for: the launch behind reads it.
#include "ahead.cuh"
#include "byte_step.cuh"
#include "lab/ptx/compute_here.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "normed_rows.cuh"
#include "units.cuh"

using namespace lab;

constexpr int SPLIT_THREADS = 512;

// A row of x, normed or not, as whole numbers of `quantum`: a block a row.
template <class T, Norm NORM>
__global__ void __launch_bounds__(SPLIT_THREADS)
    rows_as_bytes(const T* x, const T* norm, const T* ogate, signed char* __restrict__ planes, float* quantum, int R, int K, int D, float eps) {
    DYNAMIC_SHARED(T, own_weight);  // [K] of a norm; behind it heads that are normed, [K]
    __shared__ float2 of_warp[SPLIT_THREADS / 32];
    int r = blockIdx.x;
    long long row = 1ll * r * K;
    griddep_launch_dependents();
    bring_weight<NORM, SPLIT_THREADS>(own_weight, norm, K);  // nobody's result
    griddep_wait();
    float unit = split_row<NORM, SPLIT_THREADS, 4>(planes + row, planes + 1ll * R * K + row, of_warp, own_weight, own_weight + K, x + row,
                                                ogate + row, eps, K, D);
    if (threadIdx.x == 0) quantum[r] = unit;
}

template <class T, int ROWS, int GROUPS, int PLACES, int BLOCKS>
constexpr int few_rows_bytes_shared = byte_places<T, ROWS, GROUPS, PLACES>;

// ANCHOR: bytes_of_both
template <class T, int ROWS, int GROUPS, int PLACES, int BLOCKS>
__global__ void __launch_bounds__(MULTIPLIERS<GROUPS> + 32, BLOCKS)
    few_rows_bytes(const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap planes, const float* __restrict__ scale,
                   const float* quantum, const T* __restrict__ bias, const T* residual, T* y, float* gates, int R, int N, int K,
                   int has_residual, int gated, int heads, float cap, int beside, int p1, int p2, int p3, int p4,
                   const float* state, int state_bytes) {
    using Step = ByteStep<T, ROWS, GROUPS>;
    constexpr int ASKS = MULTIPLIERS<GROUPS>;  // the thread that asks: the first behind those that multiply
    DYNAMIC_TILES(unsigned char, places);
    __shared__ Ring<PLACES> ring;
    __shared__ Factors<signed char, ROWS, GROUPS> factors;
    Stand stand(beside);
    int tile = stand.tile;
    int steps = (K + SPAN - 1) / SPAN, first = steps * stand.part / stand.parts;
    int count = steps * (stand.part + 1) / stand.parts - first, ahead = min(PLACES, count);
    griddep_launch_dependents();

    TileSums<ROWS, GROUPS> sums{reinterpret_cast<float*>(places), stand};
    Turn<PLACES> turn;
    auto step = [&] { return Step{places + turn.place * Step::BYTES}; };
    // A tile begins at columns of its own, and comes round to those before them: else all would ask for the same x at the same time.
    int start = tile / beside % count;
    auto column = [&](int s) { return (first + (s + start < count ? s + start : s + start - count)) * SPAN; };
    auto ask_weights = [&](int s) { step().ask_weights(weight, tile, column(s), gated, &ring.full[turn.place]); };
    if (threadIdx.x == ASKS) {
        ring.init(ASKS / 32 * beside);
        fence_proxy_async_shared();  // copies count at barriers that this thread has made
        for (int s = 0; s < ahead; ++s, turn.advance()) ask_weights(s);  // W is nobody's result: it is on its way before x is there
        prefetch_map(planes);
        if (heads) prefetch_line(bias);
    }
    stand.sync();  // nobody waits or arrives at a barrier that is not there
    turn = {};
    if (threadIdx.x == ASKS) {
        auto ask_planes = [&](int s) { step().ask_x(planes, column(s), stand, &ring.full[turn.place], 0, 1); };
        griddep_wait();
        for (int s = 0; s < ahead; ++s, turn.advance()) ask_planes(s);
        for (int s = ahead; s < count; ++s, turn.advance()) {
            ring.wait_empty_for_copies(turn);
            ask_weights(s);
            ask_planes(s);
        }
        ask_state(0, 1, state, state_bytes);
    } else if (threadIdx.x < ASKS) {
        int sum[ROWS];
        Turn<PLACES> last;
        factors.bring(scale, tile, N, gated);
        griddep_wait();  // its units are there
        float unit = threadIdx.x < R ? quantum[threadIdx.x] : 0.0f;
        for (int s = 0; s < count; ++s, turn.advance()) {
            ring.wait_full_of_copies(turn);
            step().multiply(sum, s > 0);
            wgmma_wait<1>();  // the products of the step before have ended
            if (s > 0 && threadIdx.x % 32 < beside) ring.leave_to_copies(last, stand.part * beside + threadIdx.x % 32);
            last = turn;
        }
        wgmma_wait<0>();
        named_barrier_sync(1, ASKS);  // all have read the places: sums take their room
        if (threadIdx.x < R) factors.of_x[threadIdx.x] = unit;
        float both[ROWS / 2];
#pragma unroll
        for (int i = 0; i < ROWS / 2; ++i)  // conversions would move before the wait, where products still write
            both[i] = fmaf(256.0f, float(computed_here(sum[i])), float(computed_here(sum[ROWS / 2 + i])));
        sums.store(both);
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
// ANCHOR_END: bytes_of_both
