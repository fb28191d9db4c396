// What a pair of positions needs of the one that looks back.
#pragma once

namespace lab {

// s / N_i and s r_i of position i, where N = n + eps: the gradient of pair i, j is (dh_i · v_j inverse + r) D_ij. Zeros past
// the end.
struct Row {
    float inverse, r;
};

}  // namespace lab
