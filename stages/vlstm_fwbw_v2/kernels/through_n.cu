// What the gradient through the normaliser brings to all pairs of a row, where n is not held constant:
//
//   ρ_i = -sign(l_i) dh_i·h_i  where n_i = |l_i|, else 0       l_i = Σ_j C̃_ij
//
// The forward pass tells n, which has lost the sign of l. So l is made once more.
//
// Work split: as v0_mma.cu of the forward pass, without V.
//
// q, k: heads x S x dhqk, h, dh: heads x S x dhhv, m: heads x S, row, column, rho: heads x length. A grid of tiles heads
// blocks.
#include "gradients.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/warp_tiles.cuh"

using namespace lab;

template <class T, int KEY, int L> struct Scores {
    T q[KEY / PANEL][L * PANEL];
    struct Place {
        T k[KEY / PANEL][L * PANEL];
        float2 column[L];
    } places[2];
};

template <class T, int KEY, int L> constexpr int vlstm_through_n_shared = sizeof(Scores<T, KEY, L>);

template <class T, int KEY, int L>
__global__ void __launch_bounds__(L * 2)
    vlstm_through_n(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ h, const T* __restrict__ dh,
                    const float2* __restrict__ row, const float2* __restrict__ column, const float* __restrict__ m,
                    float* __restrict__ rho, int tiles, int together, int length, int S, int dhqk, int dhhv) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<Scores<T, KEY, L>*>(memory);
    Share share(tiles, together, blockIdx.x, gridDim.x);
    long long at = 1ll * share.head * S;
    int q0 = (tiles - 1 - share.longer) * L;
    Matrix<const T> Q{q + at * dhqk, S, dhqk}, K{k + at * dhqk, S, dhqk};
    Matrix<const T> H{h + at * dhhv, S, dhhv}, dH{dh + at * dhhv, S, dhhv};
    row += 1ll * share.head * length, column += 1ll * share.head * length, rho += 1ll * share.head * length;
    auto fetch = [&](typename Scores<T, KEY, L>::Place& place, int kv0) {
        copy_panels<KEY, L>(place.k, K, kv0, 0);
        if (threadIdx.x < L / 2) async_copy<16>(place.column + threadIdx.x * 2, column + kv0 + threadIdx.x * 2);
        async_commit();
    };

    float l[2] = {};
    Exponents weights{{row[q0 + own_row()], row[q0 + own_row() + 8]}, nullptr};
    copy_panels<KEY, L>(shared.q, Q, q0, 0);
    fetch(shared.places[0], q0);
    for (int kv0 = q0, turn = 0; kv0 >= 0; kv0 -= L, turn ^= 1) {
        float score[L / 2];
        async_wait<0>();
        __syncthreads();  // the tile is there; the one before, whose place comes next, is read
        if (kv0 > 0) fetch(shared.places[turn ^ 1], kv0 - L);
        multiply_scores<T, KEY, L>(score, shared.q, shared.places[turn].k);
        weights.column = shared.places[turn].column;
        if (kv0 == q0)
            weigh<true>(score, l, weights);
        else
            weigh<false>(score, l, weights);
    }
    // ANCHOR: through_n
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        int i = q0 + own_row() + 8 * r;
        float of_row = warp_reduce<4>(l[r], Add()), along = 0;
        for (int c = threadIdx.x % 4; c < dhhv; c += 4) along += dH.cell(i, c) * H.cell(i, c);
        along = warp_reduce<4>(along, Add());
        bool holds = i < S && fabsf(of_row) > expf(-m[at + min(i, S - 1)]);  // not 0 · ∞, where it does not
        if (threadIdx.x % 4 == 0) rho[i] = !holds ? 0 : of_row > 0 ? -along : along;
    }
    // ANCHOR_END: through_n
}
