// What the versions share beside the weights of pairs: n, and which block has what.
#pragma once
#include "lab/reduce.cuh"
#include "lab/vlstm/pairs.cuh"

namespace lab {

// ANCHOR: normalise
// n_i = max(|l_i|, exp(-m_i)) of a lane's rows, of which each of four lanes has a part of l, to n_out; 1 / (n_i + eps)
// in place of l. `first` is the position of the tile's first row.
__device__ __forceinline__ void normalise(float (&l)[2], const float* m, float* n_out, int first, int S, float eps,
                                          bool stores) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        int i = first + own_row() + 8 * r;
        float of_row = fabsf(warp_reduce<4>(l[r], Add())), floor = i < S ? expf(-m[i]) : 1;
        float n = of_row <= floor ? floor : of_row;  // NaN stays
        if (stores && i < S && threadIdx.x % 4 == 0) n_out[i] = n;
        l[r] = 1 / (n + eps);
    }
}
// ANCHOR_END: normalise

// ANCHOR: part
// Which tile of Q a block has, of which head, and from which column of V on: the n-th of `parts`. Heads come `together`
// at a time, as many as the second-level cache holds K and V of. Of those, tiles that look back furthest come first: what
// is short fills the gaps at the end.
template <int VALUE> struct Part {
    int tile, head, value;

    __device__ __forceinline__ Part(int tiles, int together, int dhhv, int n, int parts) {
        int slices = (dhhv + VALUE - 1) / VALUE, of_a_head = tiles * slices;
        int first = n / (together * of_a_head) * together, heads = min(together, parts / of_a_head - first);
        int at = n - first * of_a_head;
        tile = tiles - 1 - at / (heads * slices);
        head = first + at / slices % heads, value = at % slices * VALUE;
    }
};
// ANCHOR_END: part

}  // namespace lab
