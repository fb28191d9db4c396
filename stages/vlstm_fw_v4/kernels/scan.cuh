// The gates of a head, chunk after chunk, by one warp; a lane has two neighbouring positions.
#pragma once
#include "chunk.cuh"

namespace lab {

// With b_i = Σ_{τ <= i} log sigmoid(f_τ) from the chunk's first position on, M the m of the position before the chunk:
//
//   m_i = b_i + R_i             R_i = max(M, max_{j <= i} (i_j - b_j))
//   s D_ij = s exp((i_j - b_j) - R_i)                   s β_i = s exp(M - R_i)
//   α_j = exp((i_j - b_j) - R)  γ = exp(M - R)          R = R_i of the last position
//
// Sums and differences are in f64: after 60 gates of -100 floats would lie 5e-4 apart.
class GateScan {
    static constexpr double LOG2E_64 = 1.4426950408889634;
    // The m of nothing. Were it -∞, exp(M - R) of gates that are all shut would be NaN.
    static constexpr double LOWEST = -1e30;
    static constexpr unsigned ALL = 0xffffffff;
    const float *i_, *f_;
    double m_;
    int S_;
    float in[2], forget[2];  // of the next chunk

    __device__ __forceinline__ static float power(double x) { return power_of_two(static_cast<float>(x * LOG2E_64)); }

  public:
    // Of a head's gates, of S positions.
    __device__ __forceinline__ GateScan(const float* i, const float* f, double m0, int S)
        : i_(i), f_(f), m_(fmax(m0, LOWEST)), S_(S) {
        fetch(0);
    }

    // Asks for the gates of a chunk, a chunk before they are needed. Past the end gates keep all and take nothing.
    __device__ __forceinline__ void fetch(int first) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            int t = first + threadIdx.x % 32 * 2 + n;
            in[n] = t < S_ ? i_[t] : lowest<float>();
            forget[n] = t < S_ ? f_[t] : -lowest<float>();
        }
    }

    // m after the last chunk.
    __device__ __forceinline__ double m() const { return m_ > LOWEST ? m_ : static_cast<double>(lowest<float>()); }

    // ANCHOR: step
    // The gates of the chunk that begins at `first`, those that have been fetched; m to `m_out` if it stores.
    template <class T>
    __device__ __forceinline__ void step(Gates<T>& to, float log2_scale, float* m_out, bool stores, int first) {
        int lane = threadIdx.x % 32;
        double own[2] = {log_sigmoid(forget[0]), log_sigmoid(forget[1])};
        double sum = own[0] + own[1];
        for (int d = 1; d < 32; d *= 2) {
            double before = __shfl_up_sync(ALL, sum, d);
            if (lane >= d) sum += before;
        }
        double b[2] = {sum - own[1], sum}, all = __shfl_sync(ALL, sum, 31);
        double x[2] = {in[0] - b[0], in[1] - b[1]};  // i_j - b_j
        double largest = fmax(x[0], x[1]);
        for (int d = 1; d < 32; d *= 2) largest = fmax(largest, __shfl_up_sync(ALL, largest, d));
        double before = __shfl_up_sync(ALL, largest, 1);
        double R[2] = {fmax(m_, lane > 0 ? fmax(before, x[0]) : x[0]), fmax(m_, largest)};
        double last = __shfl_sync(ALL, R[1], 31);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            int at = 2 * lane + n;
            double m = b[n] + R[n];
            to.row[at] = two_floats(log2_scale - R[n] * LOG2E_64);
            to.column[at] = two_floats(x[n] * LOG2E_64);
            to.read[at] = exp2f(log2_scale) * power(m_ - R[n]);
            to.floor[at] = expf(static_cast<float>(-m));
            to.write[at] = power(x[n] - last);
            to.write_half[at] = from_math<T>(to.write[at]);
            if (stores && first + at < S_) m_out[first + at] = static_cast<float>(R[n] > LOWEST ? m : lowest<float>());
        }
        if (lane == 0) to.kept = power(m_ - last);
        m_ = fmax(all + last, LOWEST);
    }
    // ANCHOR_END: step
};

// n of a head: KEY sums over the chunks before, in the accumulators of WARPS warps. mma.sync takes 16 keys by 16
// positions of K, and α as two columns, what T holds of it and what that leaves out.
template <class T, int KEY, int WARPS> class KeySum {
    static constexpr int TILES = (KEY / 16 + WARPS - 1) / WARPS;
    float sum[TILES][4];

    // The keys of a tile, from which on; KEY or more for none.
    __device__ __forceinline__ static int key(int warp, int tile) { return (warp + tile * WARPS) * 16; }

  public:
    // Of this warp's keys: 0, or what `n0` has.
    __device__ __forceinline__ void begin(int warp, const float* n0, int dhqk) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int at = key(warp, tile) + threadIdx.x % 32 / 4 + e / 2 * 8;
                sum[tile][e] = n0 && e % 2 == 0 && threadIdx.x % 4 == 0 && at < dhqk ? n0[at] : 0;
            }
    }

    // Calls use(key, n) in the lane that has it.
    template <class Use> __device__ __forceinline__ void each(int warp, Use use) const {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                int at = key(warp, tile) + threadIdx.x % 32 / 4 + e / 2 * 8;
                if (threadIdx.x % 4 == 0 && at < KEY) use(at, sum[tile][e] + sum[tile][e + 1]);
            }
    }

    // ANCHOR: sum
    // To the rows behind K's.
    template <class Place> __device__ __forceinline__ void publish(int warp, Place& place) const {
        each(warp, [&](int at, float n) {
            T high = from_math<T>(n);
            *cell(place.k[at / PANEL], CHUNK, at % PANEL) = high;
            *cell(place.k[at / PANEL], CHUNK + 1, at % PANEL) = from_math<T>(n - to_math(high));
        });
    }

    // n⁺ = γ n + Σ α_j k_j
    template <class Place> __device__ __forceinline__ void add(int warp, const Place& place) {
        int lane = threadIdx.x % 32;
        float kept = place.gates.kept;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[tile][e] *= kept;
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16) {
            unsigned b[2];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const float* two = &place.gates.write[j + n * 8 + lane % 4 * 2];
                float x = two[0], y = two[1], high_x = to_math(from_math<T>(x)), high_y = to_math(from_math<T>(y));
                b[n] = lane < 4 ? two_halves<T>(x, y) : lane < 8 ? two_halves<T>(x - high_x, y - high_y) : 0;
            }
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                int at = key(warp, tile);
                unsigned a[4];
                if (KEY % (16 * WARPS) && at >= KEY) continue;
                load_columns(a, place.k[at / PANEL], j, at % PANEL);
                multiply_add<T>(sum[tile], a, b[0], b[1]);
            }
        }
    }
    // ANCHOR_END: sum
};

}  // namespace lab
