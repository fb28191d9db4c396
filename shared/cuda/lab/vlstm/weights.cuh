// What the gates and the normaliser say of a chunk, for one direction of a walk.
#pragma once
#include "lab/halves.cuh"
#include "lab/reduce.cuh"
#include "lab/vlstm/chunk.cuh"
#include "lab/vlstm/powers.cuh"

namespace lab {

// A chunk takes part in two ways: with A_i = log2(s / N_i) - R_i log2(e), a_i = s β_i / N_i of its rows, and with
// B_j = (i_j - b_j) log2(e), α_j of its columns; N = n + eps, and the others as lab/vlstm/scan.cuh has them. Of pair i, j the
// weight s P_ij / N_i is 2^(A_i + B_j). Who walks forward reads with β = a and writes with α, who walks back reads with β = α and
// writes with α = a (vlstm_fwbw_v4).
//
// In f16 a gradient of the state is counted in units, 1 / U of the chunk that was walked last (lab/vlstm/powers.cuh), and in
// ones where the walk back begins. A chunk writes with a U, which halves hold where N is large and where it is small. What reads
// the state multiplies by the unit of the chunk behind, and γ by that over the chunk's own.
struct alignas(16) Weights {
    float2 row[CHUNK], column[CHUNK];  // the weight of a pair is 2^(row + column), each the sum of two floats
    float beta[CHUNK];                 // β: what a row of out reads the state with
    float rho[CHUNK];                  // ρ, which only those read who are asked for the exact gradient
    unsigned alpha[CHUNK / 2];         // α: what a column adds to the state with, two halves in a word
    float gamma, alpha_sum;            // γ; what Mass asks for (chunk.cuh), of which nobody makes use here
    float unit, behind;                // of f16: what the state is counted in once the chunk is written, and before; else 0

    // What the state is multiplied by before the chunk is written to it.
    template <class T> __device__ __forceinline__ float carried() const {
        return is_f16<T> ? gamma * behind * inverse_of_power(unit) : gamma;
    }
};

// What a state decays by, where that is not γ alone.
struct Gamma { float gamma; };

// ANCHOR: store
// Of a lane's two neighbouring positions.
struct WeightsOfTwo {
    float2 A[2], B[2];
    float a[2], alpha[2], rho[2];

    // To both directions, a warp. Of f16 the gradient of the state is counted in units, IN_UNITS; `before` is the chunk before in
    // reverse, null where there is none.
    template <class T, bool IN_UNITS>
    __device__ __forceinline__ void store(Weights& to, Weights& back, Weights* before, bool is_last, float gamma) {
        int lane = threadIdx.x % 32, at = 2 * lane;
        float4 row = make_float4(A[0].x, A[0].y, A[1].x, A[1].y), column = make_float4(B[0].x, B[0].y, B[1].x, B[1].y);
        *reinterpret_cast<float4*>(&to.row[at]) = *reinterpret_cast<float4*>(&back.column[at]) = row;
        *reinterpret_cast<float4*>(&to.column[at]) = *reinterpret_cast<float4*>(&back.row[at]) = column;
        *reinterpret_cast<float2*>(&to.beta[at]) = make_float2(a[0], a[1]);
        *reinterpret_cast<float2*>(&back.beta[at]) = make_float2(alpha[0], alpha[1]);
        *reinterpret_cast<float2*>(&to.rho[at]) = *reinterpret_cast<float2*>(&back.rho[at]) = make_float2(rho[0], rho[1]);
        to.alpha[lane] = two_halves<T>(alpha[0], alpha[1]);
        float unit = 1;
        if constexpr (is_f16<T> && IN_UNITS) {
            float U = unit_of(warp_reduce(fmaxf(a[0], a[1]), Max()));
            a[0] *= U, a[1] *= U, unit = 1 / U;
        }
        back.alpha[lane] = two_halves<T>(a[0], a[1]);
        if (lane > 0) return;
        to.gamma = back.gamma = gamma, to.alpha_sum = alpha[0] + alpha[1], back.alpha_sum = a[0] + a[1];
        if constexpr (is_f16<T>) {
            to.unit = to.behind = 1, back.unit = unit;
            // The chunk before this one reads the state in this one's unit.
            if (is_last) back.behind = 1;
            if (before) before->behind = unit;
        } else {
            for (Weights* both : {&to, &back}) both->unit = both->behind = 0;
        }
    }
};

// Of a sequence, for both directions; or nowhere.
struct BothWeights {
    Weights *forward = nullptr, *reverse = nullptr;

    template <class T>
    __device__ __forceinline__ void store(WeightsOfTwo& two, int chunk, bool is_last, float gamma) const {
        two.store<T, true>(forward[chunk], reverse[chunk], chunk > 0 ? &reverse[chunk - 1] : nullptr, is_last, gamma);
    }
};
// ANCHOR_END: store

}  // namespace lab
