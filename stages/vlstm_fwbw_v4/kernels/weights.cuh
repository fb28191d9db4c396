// What the gates and the normaliser say of a chunk, for one direction of a walk.
#pragma once
#include "lab/vlstm/scan.cuh"

namespace lab {

// A chunk takes part in two ways: with A_i = log2(s / N_i) - R_i log2(e), a_i = s β_i / N_i of its rows, and with
// B_j = (i_j - b_j) log2(e), α_j of its columns; N = n + eps, and the others as scan.cuh has them. Of pair i, j the
// weight s D_ij / N_i is 2^(A_i + B_j). Who walks forward reads with β = a and writes with α, who walks back reads with β = α and
// writes with α = a (gradient.cuh).
//
// In f16 a gradient of the state is counted in units, 1 / U of the chunk that was walked last (lab/vlstm/powers.cuh), and in
// ones where the walk back begins: a U is what a chunk writes with, α / U of the chunk behind what it reads with, and the
// quotient of both goes with γ. So halves hold a U where N is large and where it is small.
struct alignas(16) Weights {
    float2 row[CHUNK], column[CHUNK];  // the weight of a pair is 2^(row + column), each the sum of two floats
    float beta[CHUNK];                 // β: what a row of out reads the state with
    float rho[CHUNK];                  // ρ (normaliser.cuh), which only those read who are asked for the exact gradient
    unsigned alpha[CHUNK / 2];         // α: what a column adds to the state with, two halves in a word
    float gamma, alpha_sum;            // γ; what Mass asks for (chunk.cuh), of which nobody makes use here
    float unit;                        // of f16: the state behind the walk's chunk times this is the state; else 0
    float nothing;                     // 0, up to what a bulk copy takes
};

}  // namespace lab
