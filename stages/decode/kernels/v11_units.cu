// As v9_bytes of 3 to 64 rows, but a unit of x is that of some columns of a row: so a product writes its results as bytes for the next one.
//
//     y_rn = s_n g_r Σ_b e_rb Σ_{k of b} W_nk (256 hi_rk + lo_rk) + residual_rn      x_rk or x_rk w_k ≈ e_rb (256 hi_rk + lo_rk)
//     e_rb = max_{k of b} |x_rk w_k| / 32512                                          g_r = 1 / √(Σ_b squares_rb / K + ε), or 1
//
// A stretch b is as many columns as a tile of the product before has, or 128 that rows_as_units makes. What an RMS norm divides by is
// a factor of the whole row: so a product leaves y w and the sum of the squares of each stretch, and the next one multiplies its sums.
//
// A stretch may end within a step. Then the tensor cores wait until its sums are added to those of floats. Tiles begin at
// different columns, as in v9_bytes: the same for a row among any others.
//
// weight: N x K, or 2 N x K where it is gated; scale: one for each of its rows; planes: 2 x R x K; units, squares: stretches x R;
// residual: R x N; y: R x N, in parts (cell_of); the columns from p4 on may be gates. The same of y, where it `makes` bytes: of N
// columns, a multiple of 16. K is a multiple of 16; R at most ROWS; a part of K has at most MOST_STRETCHES.
#include "ahead.cuh"
#include "lab/ptx/compute_here.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "stretches.cuh"

using namespace lab;

constexpr int SPLIT_THREADS = 512;
constexpr int STRETCH = 128;        // columns of a unit of rows_as_units
constexpr int MOST_STRETCHES = 48;

// A row of x to both planes, 128 columns a stretch: a block a row, half a warp a stretch. What an RMS norm divides by is left out.
template <class T, Norm NORM>
__global__ void __launch_bounds__(SPLIT_THREADS)
    rows_as_units(const T* x, const T* norm, const T* ogate, signed char* __restrict__ planes, float* units, float* squares, int R, int K, int D,
                  float eps) {
    constexpr int E = Pack<T>::N;
    DYNAMIC_SHARED(T, own_weight);  // [K] of a norm; behind it heads that are normed, [K]
    int r = blockIdx.x, warp = threadIdx.x / 32;
    long long row = 1ll * r * K;
    griddep_launch_dependents();
    bring_weight<NORM, SPLIT_THREADS>(own_weight, norm, K);  // nobody's result
    griddep_wait();
    const T* z = x + row;
    if constexpr (NORM == HEADS) {
        __syncthreads();  // the weight is there
        for (int c = warp * D; c < K; c += SPLIT_THREADS / 32 * D)
            norm_head<true>(own_weight + K + c, z + c, ogate + row + c, own_weight + c, eps, D);
        __syncthreads();  // all heads are there
        z = own_weight + K;
    }
    for (int first = 0; first < K; first += SPLIT_THREADS * E) {
        int k = first + threadIdx.x * E;
        Pack<T> v = k < K ? load_pack(z + k) : Pack<T>{};
        float of_squares = 0, largest = 0;
#pragma unroll
        for (int i = 0; i < E; ++i) {
            of_squares += v.v[i] * v.v[i];
            if (NORM == RMS && k < K) v.v[i] *= to_math(own_weight[k + i]);  // this thread has copied it itself
            largest = Larger{}(largest, fabsf(v.v[i]));
        }
        largest = warp_reduce<STRETCH / E>(largest, Larger{}), of_squares = warp_reduce<STRETCH / E>(of_squares, Add{});
        if (k >= K) continue;
        store_units(planes + row + k, planes + 1ll * R * K + row + k, v, largest > 0 ? 1.0f / largest : 0.0f);
        if (k % STRETCH > 0) continue;
        units[k / STRETCH * R + r] = largest / MOST_UNITS;
        squares[k / STRETCH * R + r] = of_squares;
    }
}

// What this block needs to know of x: units of the stretches of its part, and of each row what the norm divides by.
template <int ROWS> struct Units {
    static constexpr int BYTES = MOST_STRETCHES * ROWS * sizeof(float);
    float* of;  // shared memory

    // All threads that multiply; a barrier before it is read. `count` stretches from `first` on, zeros behind the last one.
    __device__ __forceinline__ void bring(const float* units, int first, int count, int stretches, int R, int threads) {
#pragma unroll 4
        for (int i = threadIdx.x; i < count * ROWS; i += threads) {
            int b = first + i / ROWS, r = i % ROWS;
            of[i] = b < stretches && r < R ? units[b * R + r] : 0.0f;
        }
    }
    // g of row threadIdx.x / 4, whose threads add up the squares of all stretches.
    __device__ __forceinline__ static float factor(const float* squares, int stretches, int R, int K, float eps) {
        int r = threadIdx.x / 4;
        float sum = 0;
        if (r < R)
#pragma unroll 8
            for (int b = threadIdx.x % 4; b < stretches; b += 4) sum += squares[b * R + r];
        return 1.0f / sqrtf(warp_reduce<4>(sum, Add{}) / K + eps);
    }
};

template <class T, int ROWS, int GROUPS, int PLACES, int BLOCKS>
constexpr int few_rows_units_shared = byte_places<T, ROWS, GROUPS, PLACES> + Units<ROWS>::BYTES;  // units lie behind the places

// ANCHOR: units_of_stretches
template <class T, int ROWS, int GROUPS, int PLACES, int BLOCKS>
__global__ void __launch_bounds__(MULTIPLIERS<GROUPS> + 32, BLOCKS)
    few_rows_units(const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap planes, const float* __restrict__ scale,
                   const float* units, const float* squares, const T* __restrict__ bias, const T* residual, T* y, float* gates, int R, int N,
                   int K, int quarters, int normed, float eps, int has_residual, int gated, int heads, float cap, int p1, int p2, int p3, int p4,
                   const float* state, int state_bytes, int makes, const T* __restrict__ next_norm, signed char* next_planes,
                   float* next_units, float* next_squares) {
    using Step = ByteStep<T, ROWS, GROUPS>;
    constexpr int ASKS = MULTIPLIERS<GROUPS>, M = 64 * GROUPS;  // the thread that asks: the first behind those that multiply
    DYNAMIC_TILES(unsigned char, places);
    Units<ROWS> own{reinterpret_cast<float*>(places + byte_places<T, ROWS, GROUPS, PLACES>)};
    __shared__ Ring<PLACES> ring;
    __shared__ Factors<signed char, ROWS, GROUPS> factors;
    __shared__ float own_norm[M];
    Stand stand(1);
    int tile = stand.tile, wide = gated ? M / 2 : M;
    int steps = (K + SPAN - 1) / SPAN, first = steps * stand.part / stand.parts;
    int count = steps * (stand.part + 1) / stand.parts - first, ahead = min(PLACES, count);
    griddep_launch_dependents();

    TileSums<ROWS, GROUPS> sums{reinterpret_cast<float*>(places), stand};
    Turn<PLACES> turn;
    auto step = [&] { return Step{places + turn.place * Step::BYTES}; };
    int start = tile % count;
    auto column = [&](int s) { return (first + (s + start < count ? s + start : s + start - count)) * SPAN; };
    auto ask_weights = [&](int s) { step().ask_weights(weight, tile, column(s), gated, &ring.full[turn.place]); };
    if (threadIdx.x == ASKS) {
        ring.init(ASKS / 32);
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
            ring.wait_empty(turn);
            ask_weights(s);
            ask_planes(s);
        }
        ask_state(0, 1, state, state_bytes);
    } else if (threadIdx.x < ASKS) {
        factors.bring(scale, tile, N, gated);
        if (makes > 1 && threadIdx.x < wide)
            own_norm[threadIdx.x] = tile * wide + threadIdx.x < N ? to_math(next_norm[tile * wide + threadIdx.x]) : 0.0f;
        griddep_wait();  // x is there
        constexpr int deep = SPAN / 32;
        int from = first * deep / quarters, to = ((first + count) * deep - 1) / quarters;
        int stretches = (K + 32 * quarters - 1) / (32 * quarters);
        own.bring(units, from, to + 1 - from, stretches, R, ASKS);
        float factor = normed && threadIdx.x < 4 * ROWS ? own.factor(squares, stretches, R, K, eps) : 1.0f;
        named_barrier_sync(1, ASKS);  // units of all rows are there, and factors of 1
        if (threadIdx.x < 4 * R && threadIdx.x % 4 == 0) factors.of_x[threadIdx.x / 4] = factor;

        int sum[ROWS];
        float both[ROWS / 2] = {};
        int quarter = (first + start) * deep, stretch = quarter / quarters, left = quarters - quarter % quarters;
        bool adds = false;
        for (int s = 0; s < count; ++s, turn.advance()) {
            ring.wait_full(turn);
            bool turns = s + start + 1 == count || s + 1 == count;  // what comes next are the part's first columns
            for (int k = 0; k < deep;) {
                // As many quarters as the step and the stretch have left.
                int some = min(left, deep - k);
                if (some == 1) step().template multiply<32>(sum, adds, 32 * k);
                else if (some == 2) step().template multiply<64>(sum, adds, 32 * k);
                else if (some == 3) step().template multiply<96>(sum, adds, 32 * k);
                else step().multiply(sum, adds);
                k += some, left -= some;
                adds = left > 0 && !(turns && k == deep);
                wgmma_wait<0>();
                if (k == deep && threadIdx.x % 32 == 0) ring.leave(turn);
                if (adds) continue;
                add_stretch<ROWS>(both, sum, own.of + (stretch - from) * ROWS);
                if (left == 0) ++stretch, left = quarters;
            }
            if (turns) stretch = from, left = quarters - first * deep % quarters;
        }
        named_barrier_sync(1, ASKS);  // all have read the places: sums take their room
        sums.store(both);
    }
    // The sums of all blocks are there; and the launch before has ended, as the thread that asks has seen.
    if (stand.parts == 1) __syncthreads();
    else stand.sync();
    if (threadIdx.x < ASKS) {
        Columns<T> to{y, gates, bias, R, N, heads, cap, p1, p2, p3, p4};
        const T* added = has_residual ? residual : nullptr;
        if (makes) end_as_bytes(sums, to, factors, added, gated, Bytes<T>{next_planes, next_units, next_squares, makes > 1 ? own_norm : nullptr});
        else sums.end(to, factors, added, gated);
    }
    if (stand.parts > 1) cluster_meet();  // nobody ends while others may read his sums
}
// ANCHOR_END: units_of_stretches
