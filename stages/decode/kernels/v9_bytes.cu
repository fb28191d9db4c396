// y = s (x Wᵀ) + residual of 9 to 128 rows, W of int8, by products of bytes: the tensor cores multiply W as memory has it.
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
// y: R x N, in parts (cell_of); the columns from p4 on may be gates. K is a multiple of 16, at most 131,056, so
// that sums fit 32 bits; R at most ROWS.
#include "lab/ptx/compute_here.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "normed_rows.cuh"
#include "wgmma_rows.cuh"

using namespace lab;

// ANCHOR: planes
constexpr int SPLIT_THREADS = 512;
constexpr float MOST_UNITS = 127.0f * 256;  // of a row's largest number: its upper byte is 127

// The larger one, or NaN where either is; fmaxf would drop it.
struct Larger {
    __device__ __forceinline__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

// The nearest whole number of one below 2²²: the last digits of 1.5 · 2²³ and it. No conversion, which has a sixteenth of the throughput.
__device__ __forceinline__ int nearest(float v) { return __float_as_int(v + 12582912.0f) - 0x4b400000; }

// A row of x, normed or not, as whole numbers of `quantum`: a block a row.
template <class T, Norm NORM>
__global__ void __launch_bounds__(SPLIT_THREADS)
    rows_as_bytes(const T* x, const T* norm, const T* ogate, signed char* __restrict__ planes, float* quantum, int R, int K, int D, float eps) {
    constexpr int E = Pack<T>::N;
    static_assert(E == 8, "two words of bytes a pack: of halves");
    DYNAMIC_SHARED(T, normed);
    int r = blockIdx.x;
    const T* z = x + 1ll * r * K;
    griddep_launch_dependents();
    if constexpr (NORM == NONE) {
        griddep_wait();
    } else {
        bring_rows<NORM, 1, SPLIT_THREADS>(normed, normed + K, z, norm, ogate + 1ll * r * K, eps, K, D);
        z = normed;
        __syncthreads();  // the row is normed
    }
    float largest = 0;
#pragma unroll 2
    for (int k = threadIdx.x * E; k < K; k += SPLIT_THREADS * E) {
        Pack<T> v = load_pack(z + k);
#pragma unroll
        for (int i = 0; i < E; ++i) largest = Larger{}(largest, fabsf(v.v[i]));
    }
    largest = block_reduce<SPLIT_THREADS>(largest, Larger{}, 0.0f);
    float inverse = largest > 0 ? 1.0f / largest : 0.0f;
    signed char* own = planes + 1ll * r * K;
    for (int k = threadIdx.x * E; k < K; k += SPLIT_THREADS * E) {
        Pack<T> v = load_pack(z + k);
        unsigned high[E / 4] = {}, low[E / 4] = {};
#pragma unroll
        for (int i = 0; i < E; ++i) {
            int units = nearest(v.v[i] * inverse * MOST_UNITS), upper = (units + 128) >> 8;
            high[i / 4] |= (upper & 0xff) << i % 4 * 8;
            low[i / 4] |= (units & 0xff) << i % 4 * 8;
        }
        *reinterpret_cast<uint2*>(own + k) = {high[0], high[1]};
        *reinterpret_cast<uint2*>(own + 1ll * R * K + k) = {low[0], low[1]};
    }
    if (threadIdx.x == 0) quantum[r] = largest / MOST_UNITS;
}
// ANCHOR_END: planes

// A step whose columns of x are two planes of bytes, 128 columns of each.
template <class T, int ROWS, int GROUPS> struct ByteStep : Step<T, signed char, ROWS, GROUPS> {
    using Base = Step<T, signed char, ROWS, GROUPS>;
    using Base::place;

    __device__ __forceinline__ void ask_planes(const TensorMap& planes, int k, Mbarrier* full) const {
#pragma unroll
        for (int p = 0; p < 2; ++p) tensor_load(place + Base::OF_WEIGHTS + p * Base::OF_BOX, planes, {k, 0, p}, full);
    }
    // sum = or += the products of this warpgroup's rows of W, those of the upper bytes and behind them those of the lower: one group
    // of wgmma, which goes on.
    __device__ __forceinline__ void multiply(int (&sum)[ROWS], bool adds) const {
        const unsigned char* rows = place + threadIdx.x / 128 * 64 * SPAN;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < SPAN; k += 32)
            wgmma_bytes<2 * ROWS>(sum, advance(k_major<SPAN>(rows, 8 * SPAN), k),
                                  advance(k_major<SPAN>(place + Base::OF_WEIGHTS, 8 * SPAN), k), adds || k > 0);
        wgmma_commit();
    }
};

template <class T, int ROWS, int GROUPS, int PLACES, int BLOCKS>
constexpr int few_rows_bytes_shared = PLACES * ByteStep<T, ROWS, GROUPS>::BYTES > TileSums<ROWS, GROUPS>::BYTES
                                          ? PLACES * ByteStep<T, ROWS, GROUPS>::BYTES
                                          : TileSums<ROWS, GROUPS>::BYTES;

// ANCHOR: bytes_of_both
template <class T, int ROWS, int GROUPS, int PLACES, int BLOCKS>
__global__ void __launch_bounds__(MULTIPLIERS<GROUPS> + 32, BLOCKS)
    few_rows_bytes(const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap planes, const float* __restrict__ scale,
                   const float* quantum, const T* __restrict__ bias, const T* residual, T* y, float* gates, int R, int N, int K,
                   int has_residual, int gated, int heads, float cap, int p1, int p2, int p3, int p4) {
    using Step = ByteStep<T, ROWS, GROUPS>;
    constexpr int ASKS = MULTIPLIERS<GROUPS>;  // the thread that asks: the first behind those that multiply
    DYNAMIC_TILES(unsigned char, places);
    __shared__ Ring<PLACES> ring;
    auto cluster = cooperative_groups::this_cluster();
    int parts = cluster.num_blocks(), rank = cluster.block_rank(), tile = blockIdx.x / parts;
    int steps = (K + SPAN - 1) / SPAN, first = steps * rank / parts, count = steps * (rank + 1) / parts - first;
    griddep_launch_dependents();
    if (threadIdx.x == 0) ring.init(ASKS / 32);
    __syncthreads();  // nobody waits at a barrier that is not there

    TileSums<ROWS, GROUPS> sums{reinterpret_cast<float*>(places), cluster};
    Turn<PLACES> turn;
    auto step = [&] { return Step{places + turn.place * Step::BYTES}; };
    if (threadIdx.x == ASKS) {
        // A tile begins at columns of its own, and comes round to those before them.
        int start = tile % count;
        auto column = [&](int s) { return (first + (s + start < count ? s + start : s + start - count)) * SPAN; };
        auto ask_weights = [&](int s) { step().ask_weights(weight, tile, column(s), gated, &ring.full[turn.place]); };
        auto ask_planes = [&](int s) { step().ask_planes(planes, column(s), &ring.full[turn.place]); };
        int ahead = min(PLACES, count);
        for (int s = 0; s < ahead; ++s, turn.advance()) ask_weights(s);
        griddep_wait();  // W is nobody's result: it is on its way before x is there
        turn = {};
        for (int s = 0; s < ahead; ++s, turn.advance()) ask_planes(s);
        for (int s = ahead; s < count; ++s, turn.advance()) {
            ring.wait_empty(turn);
            ask_weights(s);
            ask_planes(s);
        }
    } else if (threadIdx.x < ASKS) {
        int sum[ROWS];
        Turn<PLACES> last;
        for (int s = 0; s < count; ++s, turn.advance()) {
            ring.wait_full(turn);
            step().multiply(sum, s > 0);
            wgmma_wait<1>();  // the products of the step before have ended
            if (s > 0 && threadIdx.x % 32 == 0) ring.leave(last);
            last = turn;
        }
        wgmma_wait<0>();
        named_barrier_sync(1, ASKS);  // all have read the places: sums take their room
        float both[ROWS / 2];
#pragma unroll
        for (int i = 0; i < ROWS / 2; ++i)  // conversions would move before the wait, where products still write
            both[i] = fmaf(256.0f, float(computed_here(sum[i])), float(computed_here(sum[ROWS / 2 + i])));
        sums.store(both);
    }
    // The sums of all blocks are there; and the launch before has ended, as the thread that asks has seen.
    if (parts == 1) __syncthreads();
    else cluster.sync();
    if (threadIdx.x < ASKS) {
        Columns<T> to{y, gates, bias, R, N, heads, cap, p1, p2, p3, p4};
        sums.template end<signed char>(to, tile, scale, has_residual ? residual : nullptr, gated, quantum);
    }
    if (parts > 1) cluster.sync();  // nobody ends while others may read his sums
}
// ANCHOR_END: bytes_of_both
