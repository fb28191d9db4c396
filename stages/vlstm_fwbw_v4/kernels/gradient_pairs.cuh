// The pairs of a walk for one gradient (gradient.cuh): a role of it.
#pragma once
#include "gradient.cuh"

namespace lab {

// ANCHOR: pairs
// A warpgroup: (x_t·y_τ) 2^(row_t + column_τ), rounded.
template <class W, Gradient OF, bool THROUGH_N>
__device__ __forceinline__ void GradientWalk<W, OF, THROUGH_N>::make_pairs() const {
    Turn<W::PLACES> turn;
    Turn<2> pair;
    for (int n = 0; n < count(); ++n, turn.advance(), pair.advance()) {
        auto& place = shared.places[turn.place];
        float score[32], weight[32];
        places.wait_full(turn);
        wgmma_fence();
        multiply_scores<T, W::PARTS * W::KEY>(score, place);
        wgmma_commit();
        weights_of(weight, place.weights);  // while the product is made
        pairs.wait_empty(pair);
        wgmma_wait<0>();
        if constexpr (HAS_RHO) add_rho(score, place.weights);
        if constexpr (is_f16<T>) weigh(score, weight, shared.pairs[pair.place], shared.powers[pair.place]);
        else weigh(score, weight, shared.pairs[pair.place]);
        fence_proxy_async_shared();   // wgmma reads what was written by plain stores
        named_barrier_sync(2, 128);  // all warps have written and fenced theirs
        if (threadIdx.x % 128 == 0) mbarrier_arrive(&pairs.full[pair.place]);
        leave(places, turn);
    }
}

// x'_t y'_τ
template <class W, Gradient OF, bool THROUGH_N>
__device__ __forceinline__ void GradientWalk<W, OF, THROUGH_N>::add_rho(float (&score)[32], const Weights& weights) {
    int own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int at = 0; at < 32; ++at) {
        int row = own + at / 2 % 2 * 8, column = at / 4 * 8 + threadIdx.x % 4 * 2 + at % 2;
        score[at] += weights.rho[OF == Gradient::Q ? row : column];
    }
}

template <class W, Gradient OF, bool THROUGH_N>
__device__ __forceinline__ void GradientWalk<W, OF, THROUGH_N>::weigh(const float (&score)[32], const float (&weight)[32],
                                                                      T* to) {
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, own = warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < CHUNK; j += 16) {
        unsigned words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            int row = own + w % 2 * 8, column = j + w / 2 * 8 + lane % 4 * 2, at = (j + w / 2 * 8) / 2 + w % 2 * 2;
            // Not 0 · NaN, of a pair that does not count.
            words[w] = two_halves<T>(counts(row, column) ? score[at] * weight[at] : 0,
                                     counts(row, column + 1) ? score[at + 1] * weight[at + 1] : 0);
        }
        store_matrices(cell(to, warp * 16 + lane % 16, j + lane / 16 * 8), words);
    }
}

// The same of f16, each row times a power of two, which goes to `powers`: 1 / N and dh may be beyond what halves hold.
template <class W, Gradient OF, bool THROUGH_N>
__device__ __forceinline__ void GradientWalk<W, OF, THROUGH_N>::weigh(float (&score)[32], const float (&weight)[32], T* to,
                                                                      float* powers) {
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, own = warp * 16 + lane / 4;
    float power[2], largest[2] = {};
#pragma unroll
    for (int at = 0; at < 32; ++at) {
        int row = own + at / 2 % 2 * 8, column = at / 4 * 8 + lane % 4 * 2 + at % 2;
        // Not 0 · NaN, of a pair that does not count.
        score[at] = counts(row, column) ? score[at] * weight[at] : 0;
        largest[at / 2 % 2] = fmaxf(largest[at / 2 % 2], fabsf(score[at]));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        power[r] = power_for_f16(warp_reduce<4>(largest[r], Max()));
        if (lane % 4 == 0) powers[own + 8 * r] = power[r];
    }
#pragma unroll
    for (int j = 0; j < CHUNK; j += 16) {
        unsigned words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            int at = j / 2 + 2 * w;
            words[w] = two_halves<T>(score[at] * power[w % 2], score[at + 1] * power[w % 2]);
        }
        store_matrices(cell(to, warp * 16 + lane % 16, j + lane / 16 * 8), words);
    }
}
// ANCHOR_END: pairs

}  // namespace lab
