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
#include "units.cuh"
#include "wgmma_rows.cuh"

using namespace lab;

constexpr int SPLIT_THREADS = 512;

// f(column, pack) of all packs of a row, a thread's loads of four at a time.
template <class T, class F> __device__ __forceinline__ void for_each_pack(const T* row, int K, F f) {
    constexpr int LOADS = 4, STEP = SPLIT_THREADS * Pack<T>::N;
#pragma unroll 1
    for (int k = threadIdx.x * Pack<T>::N; k < K; k += LOADS * STEP) {
        Raw<T> raw[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i)
            if (k + i * STEP < K) raw[i] = load_raw(row + k + i * STEP);
#pragma unroll
        for (int i = 0; i < LOADS; ++i)
            if (k + i * STEP < K) f(k + i * STEP, in_math(raw[i]));
    }
}

// A warp. z = σ(o) ⊙ the layer norm of a head of x ⊙ w; the largest of this lane's numbers.
template <class T> __device__ __forceinline__ float norm_head(T* z, const T* x, const T* ogate, const T* weight, float eps, int D) {
    constexpr int E = Pack<T>::N, PACKS = 2;  // of a lane: heads have 512 columns at most
    int k = threadIdx.x % 32 * E;
    Raw<T> gate[PACKS];
    Pack<T> own[PACKS] = {};
    bool has[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        has[p] = k + p * 32 * E < D;
        if (has[p]) own[p] = load_pack(x + k + p * 32 * E), gate[p] = load_raw(ogate + k + p * 32 * E);
    }
    float mean = 0, squares = 0, largest = 0;
#pragma unroll
    for (int e = 0; e < PACKS * E; ++e) mean += own[e / E].v[e % E];
    mean = warp_reduce(mean, Add{}) / D;
#pragma unroll
    for (int e = 0; e < PACKS * E; ++e) {
        float off = own[e / E].v[e % E] - mean;
        if (has[e / E]) squares += off * off;
    }
    float rstd = 1.0f / sqrtf(warp_reduce(squares, Add{}) / D + eps);
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (!has[p]) break;
        Pack<T> v = own[p], o = in_math(gate[p]), w = load_pack(weight + k + p * 32 * E);
#pragma unroll
        for (int i = 0; i < E; ++i) {
            v.v[i] = to_math(from_math<T>((v.v[i] - mean) * rstd * quick_sigmoid(o.v[i]) * w.v[i]));
            largest = Larger{}(largest, fabsf(v.v[i]));
        }
        store_pack(z + k + p * 32 * E, v);
    }
    return largest;
}

// A row of x, normed or not, as whole numbers of `quantum`: a block a row. What a norm of rows divides by is a factor of the whole row: so
// it goes into the quantum, and one reduction finds it and the largest number.
template <class T, Norm NORM>
__global__ void __launch_bounds__(SPLIT_THREADS)
    rows_as_bytes(const T* x, const T* norm, const T* ogate, signed char* __restrict__ planes, float* quantum, int R, int K, int D, float eps) {
    constexpr int E = Pack<T>::N, WARPS = SPLIT_THREADS / 32;
    DYNAMIC_SHARED(T, own_weight);  // [K] of a norm; behind it heads that are normed, [K]
    __shared__ float2 of_warp[WARPS];
    int r = blockIdx.x, warp = threadIdx.x / 32;
    const T* z = x + 1ll * r * K;
    griddep_launch_dependents();
    if constexpr (NORM != NONE)  // nobody's result
#pragma unroll 1
        for (int k = threadIdx.x * E; k < K; k += SPLIT_THREADS * E) copy_pack(own_weight + k, norm + k);
    griddep_wait();

    float squares = 0, largest = 0;
    auto weighted = [&](int k, Pack<T> v) {
        if constexpr (NORM == RMS) {  // this thread has copied the weight of its columns itself
            Pack<T> w = load_pack(own_weight + k);
#pragma unroll
            for (int i = 0; i < E; ++i) v.v[i] *= w.v[i];
        }
        return v;
    };
    if constexpr (NORM == HEADS) {
        __syncthreads();  // the weight is there
        T* normed = own_weight + K;
        for (int c = warp * D; c < K; c += WARPS * D)
            largest = Larger{}(largest, norm_head(normed + c, z + c, ogate + 1ll * r * K + c, own_weight + c, eps, D));
        z = normed;
    } else {
        for_each_pack(z, K, [&](int k, const Pack<T>& v) {
            Pack<T> of = weighted(k, v);
#pragma unroll
            for (int i = 0; i < E; ++i) squares += v.v[i] * v.v[i], largest = Larger{}(largest, fabsf(of.v[i]));
        });
    }
    squares = warp_reduce(squares, Add{}), largest = warp_reduce(largest, Larger{});
    if (threadIdx.x % 32 == 0) of_warp[warp] = {squares, largest};
    __syncthreads();  // what all warps have found is there, and so are the heads
    float2 part = of_warp[threadIdx.x % WARPS];
    squares = warp_reduce<WARPS>(part.x, Add{}), largest = warp_reduce<WARPS>(part.y, Larger{});

    float inverse = inverse_of(largest);
    signed char* own = planes + 1ll * r * K;
    for_each_pack(z, K, [&](int k, const Pack<T>& v) {
        store_units(own + k, own + 1ll * R * K + k, weighted(k, v), inverse);
    });
    float rstd = NORM == RMS ? 1.0f / sqrtf(squares / K + eps) : 1.0f;
    if (threadIdx.x == 0) quantum[r] = rstd * largest / MOST_UNITS;
}

// A step whose columns of x are two planes of bytes, 128 columns of each.
template <class T, int ROWS, int GROUPS> struct ByteStep : Step<T, signed char, ROWS, GROUPS> {
    using Base = Step<T, signed char, ROWS, GROUPS>;
    using Base::place;

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
                   int has_residual, int gated, int heads, float cap, int beside, int p1, int p2, int p3, int p4) {
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
    if (stand.beside * stand.parts > 1) stand.sync();  // nobody ends while others may read his sums, or arrive at his barriers
}
// ANCHOR_END: bytes_of_both
