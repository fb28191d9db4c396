// What the gates and the normaliser say of a chunk, for one direction of a walk.
#pragma once
#include "lab/vlstm/scan.cuh"

namespace lab {

// A chunk takes part in two ways: with A_i = log2(s / N_i) - R_i log2(e), a_i = s β_i / N_i of its rows, and with
// B_j = (i_j - b_j) log2(e), α_j of its columns; N = n + eps, and the others as scan.cuh has them. Of pair i, j the
// weight s D_ij / N_i is 2^(A_i + B_j). Who walks forward reads with a and writes with α, who walks back the other way round.
struct alignas(16) Weights {
    float2 row[CHUNK], column[CHUNK];  // the weight of a pair is 2^(row + column), each the sum of two floats
    float read[CHUNK];                 // of the state, for a row of what comes out
    float rho[CHUNK];                  // ρ (normaliser.cuh), which only those read who are asked for the exact gradient
    unsigned write[CHUNK / 2];         // to the state, two halves in a word
    float kept, taken, nothing[2];     // γ, and Σ write, which only f16 asks for; zeros up to what a bulk copy takes
};

}  // namespace lab
