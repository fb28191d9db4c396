// What the gates and the normaliser say of a chunk, for one direction of a walk.
#pragma once
#include "lab/vlstm/powers.cuh"
#include "lab/vlstm/scan.cuh"

namespace lab {

// A chunk takes part in two ways: with A_i = log2(s / N_i) - R_i log2(e), a_i = s β_i / N_i of its rows, and with
// B_j = (i_j - b_j) log2(e), α_j of its columns; N = n + eps, and the others as scan.cuh has them. Of pair i, j the
// weight s P_ij / N_i is 2^(A_i + B_j). Who walks forward reads with β = a and writes with α, who walks back reads with β = α and
// writes with α = a (gradient.cuh).
//
// In f16 a gradient of the state is counted in units, 1 / U of the chunk that was walked last (lab/vlstm/powers.cuh), and in
// ones where the walk back begins. A chunk writes with a U, which halves hold where N is large and where it is small. What reads
// the state multiplies by the unit of the chunk behind, and γ by that over the chunk's own.
struct alignas(16) Weights {
    float2 row[CHUNK], column[CHUNK];  // the weight of a pair is 2^(row + column), each the sum of two floats
    float beta[CHUNK];                 // β: what a row of out reads the state with
    float rho[CHUNK];                  // ρ (normaliser.cuh), which only those read who are asked for the exact gradient
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

}  // namespace lab
