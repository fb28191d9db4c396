// What comes from the gates alone, and n.
#pragma once
#include "lab/ptx/named_barrier.cuh"
#include "lab/reduce.cuh"
#include "lab/vlstm/chunk.cuh"
#include "lab/vlstm/policy.cuh"
#include "lab/vlstm/weights.cuh"

namespace lab {

// What is before a chunk: M, and the sum of log sigmoid(f) from where the walk began.
struct Before {
    double m, sum;
};

// The m of nothing. Were it -∞, exp(M - R) of gates that are all shut would be NaN.
constexpr double LOWEST = -1e30f;
__device__ __forceinline__ double m_from(float m) { return m < LOWEST ? LOWEST : m; }
__device__ __forceinline__ float m_of(double m) { return m > LOWEST / 2 ? static_cast<float>(m) : lowest<float>(); }

constexpr double LOG2E_64 = 1.4426950408889634;
__device__ __forceinline__ float power(double x) { return power_of_two(static_cast<float>(x * LOG2E_64)); }

// What a chunk's gates say without M; of a lane's two neighbouring positions, as b_i below. Where there is no m, nothing asks
// for what is largest.
template <bool STABILISED = true> struct ChunkGates {
    double b[2], x[2];     // b_i, and i_i - b_i
    double before, largest;  // the largest x before the two, and with them
    double all;            // b of the last position

    // The second, if one is NaN.
    __device__ __forceinline__ static double larger(double a, double b) { return a > b ? a : b; }

    // Of a warp; log sigmoid(f) is `own`.
    __device__ __forceinline__ ChunkGates(const float (&input)[2], const double (&own)[2]) {
        constexpr unsigned ALL = 0xffffffff;
        int lane = threadIdx.x % 32;
        double sum = own[0] + own[1];
        for (int d = 1; d < 32; d *= 2) {
            double before = __shfl_up_sync(ALL, sum, d);
            if (lane >= d) sum += before;
        }
        double earlier = __shfl_up_sync(ALL, sum, 1);
        b[0] = (lane > 0 ? earlier : 0) + own[0], b[1] = sum, all = __shfl_sync(ALL, sum, 31);
        x[0] = input[0] - b[0], x[1] = input[1] - b[1];
        if constexpr (!STABILISED) return;
        largest = larger(x[0], x[1]);
        for (int d = 1; d < 32; d *= 2) largest = larger(__shfl_up_sync(ALL, largest, d), largest);
        before = __shfl_up_sync(ALL, largest, 1);
        if (lane == 0) before = LOWEST;
    }

    // R_i of the two, where M is before the chunk; such that m_i is 0 where there is none.
    __device__ __forceinline__ double R(double M, int n) const {
        if constexpr (!STABILISED) return -b[n];
        return larger(M, n > 0 ? largest : larger(before, x[0]));
    }
};

// The gates of a head. With b_i = Σ_{τ <= i} log sigmoid(f_τ) from a chunk's first position on, and M the m of the
// position before the chunk:
//
//   m_i = b_i + R_i             R_i = max(M, max_{j <= i} (i_j - b_j))
//   s P_ij = s exp((i_j - b_j) - R_i)                   s β_i = s exp(M - R_i)
//   α_j = exp((i_j - b_j) - R)  γ = exp(M - R)          R = R_i of the last position
//
// These are Exponential gates. Of others (lab/vlstm/policy.cuh) log w_i stands for i_i; m and M are 0, and so R_i = -b_i.
// Sums and differences are in f64: after 60 gates of -100 floats would lie 5e-4 apart. A warp takes every
// WARPS-th chunk, a lane two neighbouring positions of it. All but M it knows without the others; M goes from warp
// to warp.
template <int WARPS, class GATES = Exponential, class NORMALIZER = MaxExp> class GateScan {
    static constexpr unsigned ALL = 0xffffffff;
    const float *i_, *f_;
    int from_, to_, S_, warp_;
    Before* before_;         // WARPS of them, for each warp what it waits for
    float in[2], forget[2];  // of the warp's next chunk

    // Asks for the gates of a chunk, long before they are needed. Past the end gates keep all and take nothing.
    __device__ __forceinline__ void fetch(int first) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            int t = first + threadIdx.x % 32 * 2 + n;
            in[n] = t < S_ ? GATES::input(i_, t) : GATES::nothing();
            forget[n] = t < S_ ? f_[t] : GATES::open();
        }
    }

  public:
    static constexpr int FIRST_BARRIER = 4;

    // Of a head of S positions those from `from` to `to`. `before` has room for WARPS, of which the first is there.
    __device__ __forceinline__ GateScan(const float* i, const float* f, int from, int to, int S, int warp,
                                        Before* before)
        : i_(i), f_(f), from_(from), to_(to), S_(S), warp_(warp), before_(before) {
        fetch(from + warp * CHUNK);
    }

    // ANCHOR: step
    // The gates of the chunk that begins at `first`; its m to `m_out`, if it stores. Returns what is behind it. Calls
    // claim() once the warps of all chunks before have called theirs, IN_ORDER. Who only adds to the state needs no rows. Without m
    // and N these are all that a backward pass needs: where `left` is a place, its weights go there.
    template <bool WITH_ROWS, bool IN_ORDER = true, class T, class Claim>
    __device__ __forceinline__ Before step(Gates& to, T* alpha, float log2_scale, float* m_out, bool stores, int first,
                                           Claim claim, BothWeights left = {}) {
        int lane = threadIdx.x % 32;
        float input[2] = {GATES::log_weight(in[0]), GATES::log_weight(in[1])};
        double own[2] = {GATES::log_kept(forget[0]), GATES::log_kept(forget[1])};
        fetch(first + WARPS * CHUNK);
        ChunkGates<GATES::STABILISED> chunk(input, own);
        const double(&b)[2] = chunk.b, (&x)[2] = chunk.x, all = chunk.all;
        if (IN_ORDER && WARPS > 1 && first > from_) named_barrier_sync(FIRST_BARRIER + warp_, 64);  // that of the chunk before has left M
        claim();
        double M = GATES::STABILISED ? before_[warp_].m : 0;
        double R[2] = {chunk.R(M, 0), chunk.R(M, 1)}, last = __shfl_sync(ALL, R[1], 31);
        Before next{GATES::STABILISED ? ChunkGates<>::larger(all + last, LOWEST) : 0, IN_ORDER ? before_[warp_].sum + all : all};
        if (GATES::STABILISED && first + CHUNK >= S_) {
            // It may go out, as a float: then α and γ make C a multiple of exp(m) for just this m.
            next.m = static_cast<float>(next.m);
            last = next.m - all;
        }
        if (IN_ORDER && WARPS > 1 && first + CHUNK < to_) {
            if (lane == 0) before_[(warp_ + 1) % WARPS] = next;
            named_barrier_arrive(FIRST_BARRIER + (warp_ + 1) % WARPS, 64);
        }
        float alpha_sum = 0;
        constexpr bool LEAVES = WITH_ROWS && !GATES::STABILISED && !NORMALIZER::DIVIDES;
        WeightsOfTwo two;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            int at = 2 * lane + n;
            float weight = power(x[n] - last);
            T held = from_math<T>(weight);
            *cell(alpha, 0, at) = held;
            *cell(alpha, 1, at) = from_math<T>(weight - to_math(held));
            alpha_sum += weight;
            if constexpr (WITH_ROWS) {
                double m = GATES::STABILISED ? b[n] + R[n] : 0;
                to.row[at] = two_floats(log2_scale - R[n] * LOG2E_64);
                to.column[at] = two_floats(x[n] * LOG2E_64);
                to.beta[at] = exp2f(log2_scale) * power(M - R[n]);
                if constexpr (NORMALIZER::DIVIDES) to.floor[at] = NORMALIZER::floor(m);
                if (GATES::STABILISED && stores && first + at < S_) m_out[first + at] = m_of(m);
                if constexpr (LEAVES) {
                    two.A[n] = to.row[at], two.B[n] = to.column[at], two.a[n] = to.beta[at];
                    two.alpha[n] = weight, two.rho[n] = 0;
                    if (first + at >= S_) two.a[n] = 0;  // nothing reads the state there, and dh is 0
                }
            }
        }
        if constexpr (is_f16<T>) alpha_sum = warp_reduce(alpha_sum, Add());
        if (lane == 0) to.gamma = power(M - last), to.alpha_sum = alpha_sum;
        if constexpr (LEAVES)
            if (stores && left.forward) left.template store<T>(two, first / CHUNK, first + CHUNK >= S_, power(M - last));
        return next;
    }
    // ANCHOR_END: step
};

// n of a head: KEY sums over the chunks before. One warpgroup; a lane of every four has two keys of each 64.
template <class T, int KEY, class NORMALIZER = MaxExp> class KeySum {
    static constexpr int TILES = KEY / 64;
    float n[TILES][2], part[TILES][4];
    Mass<T> mass;

    __device__ __forceinline__ static int key(int tile, int half) {
        return tile * 64 + threadIdx.x / 32 % 4 * 16 + half * 8 + threadIdx.x % 32 / 4;
    }

  public:
    // 0, or what `n0` has.
    __device__ __forceinline__ void begin(const float* n0, int dhqk) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
            for (int half = 0; half < 2; ++half)
                n[tile][half] = n0 && key(tile, half) < dhqk ? n0[key(tile, half)] : 0;
    }

    // Of what n has, before the first chunk; by way of four floats of shared memory.
    __device__ __forceinline__ void weigh(float* room, int barrier) {
        if constexpr (is_f16<T>) {
            float largest = 0;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
                for (int half = 0; half < 2; ++half) largest = fmaxf(largest, fabsf(n[tile][half]));
            largest = warp_reduce(largest, Max());
            if (threadIdx.x % 32 == 0) room[threadIdx.x / 32 % 4] = largest;
            named_barrier_sync(barrier, 128);  // those of all warps are there
            for (int warp = 0; warp < 4; ++warp) largest = fmaxf(largest, room[warp]);
            mass = Mass<T>(largest);
        }
    }

    // n ← gamma n + alpha part
    __device__ __forceinline__ void join(const float* part, float gamma, float alpha) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
            for (int half = 0; half < 2; ++half)
                n[tile][half] = gamma * n[tile][half] + alpha * part[key(tile, half)];
    }

    // Calls use(key, n) in the lane that has it.
    template <class Use> __device__ __forceinline__ void each(Use use) const {
        if (threadIdx.x % 4 > 0) return;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
            for (int half = 0; half < 2; ++half) use(key(tile, half), n[tile][half]);
    }

    // ANCHOR: sum
    // Σ_j α_j k_j, as Kᵀ by two columns.
    template <class Place> __device__ __forceinline__ void multiply(const Place& place) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int j = 0; j < CHUNK; j += 16)
                wgmma<T, 8, true>(part[tile], advance(mn_major<SPAN>(place.y[tile], 0, 8 * SPAN), j * SPAN),
                                  advance(k_major<SPAN>(place.alpha, 8 * SPAN), j * 2), j > 0);
    }

    // n⁺ = γ n + Σ_j α_j k_j, once the product is there.
    __device__ __forceinline__ void add(const Gates& gates) {
        mass.add(gates);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
            for (int half = 0; half < 2; ++half)
                n[tile][half] = gates.gamma * n[tile][half] + (part[tile][2 * half] + part[tile][2 * half + 1]);
    }

    // What a product with the rows behind K's is to be multiplied by.
    __device__ __forceinline__ float up() const { return mass.up(); }

    // To the rows behind K's.
    template <class Place> __device__ __forceinline__ void publish(Place& place) const {
        each([&](int at, float n) {
            n *= mass.down();
            T high = from_math<T>(n);
            *cell(place.y[at / PANEL], CHUNK, at % PANEL) = high;
            *cell(place.y[at / PANEL], CHUNK + 1, at % PANEL) = from_math<T>(n - to_math(high));
        });
    }
    // ANCHOR_END: sum
};

// Where there is no n.
template <class T, int KEY> class KeySum<T, KEY, None> {
  public:
    __device__ __forceinline__ void begin(const float*, int) {}
    __device__ __forceinline__ void weigh(float*, int) {}
    template <class Use> __device__ __forceinline__ void each(Use) const {}
    template <class Place> __device__ __forceinline__ void multiply(const Place&) {}
    __device__ __forceinline__ void add(const Gates&) {}
    __device__ __forceinline__ float up() const { return 1; }
    template <class Place> __device__ __forceinline__ void publish(Place&) const {}
};

}  // namespace lab
