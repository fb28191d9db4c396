// What a pair of positions needs of the one that looks back.
#pragma once
#include "lab/scalar.cuh"

namespace lab {

// Of a chunk what bounds dC: Σ s β_i / N_i of its rows. Of f16 two numbers: Σ s β_i / N_i |q_i| |dh_i|, of each row's largest
// elements, for dh may be as large as its loss has been scaled; and 1 / U, the unit that the chunk adds in: its α are
// U s β_i / N_i, 1 at most (lab/vlstm/powers.cuh).
template <class T> constexpr int TAKEN = is_f16<T> ? 2 : 1;

// s / N_i and s r_i of position i, where N = n + eps: the gradient of pair i, j is (dh_i · v_j inverse + r) P_ij. Zeros past
// the end.
struct Row {
    float inverse, r;
};

}  // namespace lab
