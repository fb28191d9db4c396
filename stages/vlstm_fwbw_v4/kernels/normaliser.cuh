// The gradient through the normaliser. With it the gradient of a pair is (dh_i·v_j + ρ_i) / N_i, where
//
//   ρ_i = r_i N_i = -(dh_i·h_i) dn_i / dl_i
//
// as if V had one more column, of ones, and dh one of ρ. So the state of the walks for dq and dk has one more row: n, or the
// gradient of n. A walk whose x' and y' are these columns of x and y:
//
//   out_t += β_t x'_t n      n ← γ n + Σ_τ α_τ y'_τ z_τ          dq: x' = ρ, y' = 1     dk: x' = 1, y' = ρ
#pragma once
#include "lab/vlstm/weights.cuh"
#include "lab/vlstm/state.cuh"

namespace lab {

// n of 64 columns of z, in the warpgroup that has their state: of rows lane / 4 and 8 more; a lane of every four has a share.
class NormaliserState {
    float n[2] = {};

    __device__ __forceinline__ static int column(int half) {
        return threadIdx.x / 32 % 4 * 16 + half * 8 + threadIdx.x % 32 / 4;
    }

  public:
    // n ← gamma n + part, of columns `first` to `end`.
    __device__ __forceinline__ void join(const float* part, float gamma, int first, int end) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            bool own = threadIdx.x % 4 == 0 && first + column(half) < end;
            n[half] = gamma * n[half] + (own ? part[first + column(half)] : 0);
        }
    }

    // ANCHOR: normaliser
    // out += β x' n; BY_ROW where x' is ρ, else it is 1. Of f16 times `powers` of the positions.
    template <class T, bool BY_ROW>
    __device__ __forceinline__ void read(float (&out)[32], const Weights& weights, const float* powers) const {
        float all[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            all[half] = warp_reduce<4>(n[half], Add());
            if constexpr (is_f16<T>) all[half] *= weights.behind;
        }
#pragma unroll
        for (int m = 0; m < CHUNK / 8; ++m) {
            int at = m * 8 + threadIdx.x % 4 * 2;
            float2 by = *reinterpret_cast<const float2*>(&weights.beta[at]);
            if (BY_ROW) {
                float2 x = *reinterpret_cast<const float2*>(&weights.rho[at]);
                by.x *= x.x, by.y *= x.y;
            }
            if constexpr (is_f16<T>) by.x *= powers[at], by.y *= powers[at + 1];
#pragma unroll
            for (int half = 0; half < 2; ++half)
                out[4 * m + 2 * half] += by.x * all[half], out[4 * m + 2 * half + 1] += by.y * all[half];
        }
    }

    // n ← γ n + Σ y' (α z), of 16 positions from `at(j)` on as an A operand has them.
    template <class T, bool BY_COLUMN, class At>
    __device__ __forceinline__ void add(const unsigned (&weighted)[CHUNK / 16][4], const Weights& weights, At at) {
        float sum[2] = {};
#pragma unroll
        for (int j = 0; j < CHUNK / 16; ++j)
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                float2 z = floats_of<T>(weighted[j][w]), y = make_float2(1, 1);
                if (BY_COLUMN) y = *reinterpret_cast<const float2*>(&weights.rho[at(j) + w / 2 * 8 + threadIdx.x % 4 * 2]);
                sum[w % 2] += z.x * y.x + z.y * y.y;
            }
#pragma unroll
        for (int half = 0; half < 2; ++half) n[half] = weights.carried<T>() * n[half] + sum[half];
    }
    // ANCHOR_END: normaliser

    __device__ __forceinline__ void multiply(float by) { n[0] *= by, n[1] *= by; }

    // Columns `first` to `end`.
    __device__ __forceinline__ void store(float* to, int first, int end) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float all = warp_reduce<4>(n[half], Add());
            if (threadIdx.x % 4 == 0 && first + column(half) < end) to[first + column(half)] = all;
        }
    }
};

}  // namespace lab
