// What a consumer warpgroup does with the tiles that come past, so that the tensor cores have something to do while it
// weighs pairs.
#pragma once
#include "factors.cuh"

namespace lab {

// c_ij in place of q_i·k_j, and rounded, off the diagonal.
template <class T, int N, class Weight>
__device__ __forceinline__ void weigh_scores(unsigned (&pairs)[N / 8][4], float (&c)[N], const Weight& weight) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        float2 w = weight(n / 4 * 8 + threadIdx.x % 4 * 2, n / 2 % 2);
        c[n] *= w.x, c[n + 1] *= w.y;
        pairs[n / 8][n / 2 % 4] = two_halves<T>(c[n], c[n + 1]);
    }
}

// The rest of weigh_keys, once c is there.
template <class T, int N, class Weight>
__device__ __forceinline__ void weigh_products(unsigned (&pairs)[N / 8][4], const float (&product)[N],
                                               const float (&c)[N], float (&di)[2], float (&sum)[N / 2],
                                               const float* rho, const Weight& weight) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        int r = n / 2 % 2, i = n / 4 * 8 + threadIdx.x % 4 * 2;
        float2 w = weight(i, r), of_n = *reinterpret_cast<const float2*>(rho + i);
        float p[2] = {product[n] + of_n.x, product[n + 1] + of_n.y}, G[2] = {c[n] * p[0], c[n + 1] * p[1]};
        di[r] += G[0] + G[1];
#pragma unroll
        for (int e = 0; e < 2; ++e) sum[n / 4 * 2 + e] = r > 0 ? sum[n / 4 * 2 + e] + G[e] : G[e];
        pairs[n / 8][n / 2 % 4] = two_halves<T>(p[0] * w.x, p[1] * w.y);
    }
}

// dv_j, dk_j and G's sums of the warpgroup's 64 positions, of a block's tile, over `count` times 64 rows.
// Rows on the diagonal come first, one step after the other. Behind it dh·v is made while q·k is weighed, and dv while
// dh·v is. With SKIPS the second warpgroup leaves the first 64 rows, which come before all of its positions; sums are 0
// before.
template <bool SKIPS, class T, int KEY, int VALUE, int L>
__device__ __forceinline__ void gather_keys(float (&dv)[VALUE / 2], float (&dk)[KEY / 2], float (&di)[2],
                                            FactoredKeyTiles<T, KEY, VALUE, L>& shared, KeyBarriers& barriers, int count) {
    auto& rows = barriers.rows;
    int group = threadIdx.x / 128, n = SKIPS ? group : 0;
    float score[PANEL / 2], product[PANEL / 2], sum[PANEL / 4];
    unsigned c[PANEL / 16][4], dS[PANEL / 16][4];
    if (SKIPS && group > 0) {
        float none[PANEL / 4] = {};
        leave(rows, turn_of<PLACES>(0));
        send_sums(shared, barriers.sums, turn_of<2>(0), none);
    }
    for (; n < min(SKIPS ? group + 1 : L / PANEL, count); ++n) {
        auto turn = turn_of<PLACES>(n);
        auto& place = shared.places[turn.place];
        rows.wait_full(turn);
        wgmma_fence();
        multiply_scores(score, shared.k, place.q, group * 64);
        multiply_scores(product, shared.v, place.dh, group * 64);
        wgmma_commit();
        wgmma_wait<0>();
        Exponents exponents{{shared.column[own_row()], shared.column[own_row() + 8]}, shared.exponent + n * PANEL};
        weigh_keys<T, true>(c, dS, score, product, di, sum, place.rho, exponents, own_row() - n * PANEL);
        wgmma_fence();
        multiply_values(dv, c, place.dh, SKIPS || n > 0);
        multiply_values(dk, dS, place.q, SKIPS || n > 0);
        wgmma_commit();
        send_sums(shared, barriers.sums, turn_of<2>(n), sum);
        wgmma_wait<0>();
        leave(rows, turn);
    }
    // ANCHOR: keys
    for (; n < count; ++n) {
        auto turn = turn_of<PLACES>(n);
        auto& place = shared.places[turn.place];
        rows.wait_full(turn);
        Factored<PANEL> weight({shared.column[own_row()], shared.column[own_row() + 8]}, &place.factors);
        wgmma_fence();
        multiply_scores(score, shared.k, place.q, group * 64);
        wgmma_commit();
        multiply_scores(product, shared.v, place.dh, group * 64);
        wgmma_commit();
        wgmma_wait<1>();
        weigh_scores<T>(c, score, weight);  // while dh·v is made
        wgmma_fence();
        multiply_values(dv, c, place.dh, true);
        wgmma_commit();
        wgmma_wait<1>();
        weigh_products<T>(dS, product, score, di, sum, place.rho, weight);  // while dv is
        wgmma_fence();
        multiply_values(dk, dS, place.q, true);
        wgmma_commit();
        send_sums(shared, barriers.sums, turn_of<2>(n), sum);
        wgmma_wait<0>();
        leave(rows, turn);
    }
    // ANCHOR_END: keys
}

// dq_i of the warpgroup's 64 rows, over positions of tile `own` back to the first. dh·v of a tile is asked for before
// the pairs of the one before multiply K: while they do, the next are weighed.
template <class T, int KEY, int VALUE, int L, class Leave>
__device__ __forceinline__ void gather_queries(float (&dq)[KEY / 2], FactoredQueryTiles<T, KEY, VALUE, L>& shared,
                                               QueryBarriers& barriers, Turn<2>& turn, const float (&rho)[2],
                                               const Exponents& exponents, int own, Leave leave_own) {
    auto& values = barriers.values;
    auto& keys = barriers.keys;
    int row = threadIdx.x / 128 * 64;
    float product[L / 2];
    unsigned pairs[L / 16][4];
    values.wait_full(turn);
    wgmma_fence();
    multiply_scores(product, shared.dh, shared.values[turn.place].v, row);
    wgmma_commit();
    wgmma_wait<0>();
    weigh_queries<true>(product, rho, exponents);
    round_pairs<T>(pairs, product);
    leave(values, turn);
    // ANCHOR: queries
    for (int tile = own; tile > 0; --tile) {
        auto next = turn;
        next.advance();
        values.wait_full(next);
        keys.wait_full(turn);
        wgmma_fence();
        multiply_scores(product, shared.dh, shared.values[next.place].v, row);
        wgmma_commit();
        multiply_values(dq, pairs, shared.k[turn.place], tile < own);
        wgmma_commit();
        wgmma_wait<1>();
        weigh_queries<false>(product, rho, Factored<L>(exponents.row, shared.values[next.place].factors));
        compute_here(product);  // while K is multiplied
        wgmma_wait<0>();
        round_pairs<T>(pairs, product);  // not before: the product has read the pairs until here
        leave(values, next);
        leave(keys, turn);
        turn = next;
    }
    // ANCHOR_END: queries
    leave_own();
    keys.wait_full(turn);
    wgmma_fence();
    multiply_values(dq, pairs, shared.k[turn.place], own > 0);
    wgmma_commit();
    wgmma_wait<0>();
    leave(keys, turn);
    turn.advance();
}

}  // namespace lab
