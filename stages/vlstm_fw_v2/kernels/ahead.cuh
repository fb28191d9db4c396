// What a consumer warpgroup does with the tiles that come past, scores one tile ahead.
#pragma once
#include "factors.cuh"

namespace lab {

// out_i = Σ_j C̃_ij v_j and l_i of the warpgroup's rows in tile `first`, from it back to the first tile. Calls
// leave_query() when Q and its exponents are read. The scores of a tile are asked for before the weights of the one
// before multiply V: while they do, the weights are made.
template <class T, int KEY, int VALUE, int L, class Leave>
__device__ __forceinline__ void gather(float (&out)[VALUE / 2], float (&l)[2], FactoredTiles<T, KEY, VALUE, L>& shared,
                                       Barriers& barriers, Turn<2>& turn, const Exponents& exponents, int first,
                                       Leave leave_query) {
    auto& keys = barriers.keys;
    auto& values = barriers.values;
    int row = threadIdx.x / 128 * 64;
    float score[L / 2];
    unsigned pairs[L / 16][4];
    // ANCHOR: diagonal
    keys.wait_full(turn);
    wgmma_fence();
    multiply_scores(score, shared.q, shared.keys[turn.place].k, row);
    wgmma_commit();
    wgmma_wait<0>();
    l[0] = l[1] = 0;
    weigh<true>(score, l, exponents);
    round_pairs<T>(pairs, score);
    leave(keys, turn);
    // ANCHOR_END: diagonal
    // ANCHOR: ahead
    for (int tile = first; tile > 0; --tile) {
        auto next = turn;
        next.advance();
        keys.wait_full(next);
        values.wait_full(turn);
        wgmma_fence();
        multiply_scores(score, shared.q, shared.keys[next.place].k, row);
        wgmma_commit();
        multiply_values(out, pairs, shared.v[turn.place], tile < first);
        wgmma_commit();
        wgmma_wait<1>();
        weigh<false>(score, l, Factored<L>(exponents.row, shared.keys[next.place].factors));
        compute_here(score);  // while V is multiplied
        wgmma_wait<0>();
        round_pairs<T>(pairs, score);  // not before: the product has read the pairs until here
        leave(keys, next);
        leave(values, turn);
        turn = next;
    }
    // ANCHOR_END: ahead
    leave_query();
    values.wait_full(turn);
    wgmma_fence();
    multiply_values(out, pairs, shared.v[turn.place], first > 0);
    wgmma_commit();
    wgmma_wait<0>();
    leave(values, turn);
    turn.advance();
}

}  // namespace lab
