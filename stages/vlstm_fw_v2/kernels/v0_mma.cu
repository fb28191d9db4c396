// The vLSTM's forward pass over all pairs of positions, on the tensor cores by mma.sync:
//
//   C̃_ij = s (q_i·k_j) P_ij  j <= i      l_i = Σ_j C̃_ij
//   n_i  = max(|l_i|, exp(-m_i))         h_i = Σ_j C̃_ij v_j / (n_i + eps)
//
// D and m are of the gates alone: gates.cu has made them in a launch before. So no maximum runs, and nothing that was
// gathered is rescaled.
//
// Work split: a block owns L rows of Q and h of one head, and VALUE columns of V; a warp owns 16 of the rows. Their
// scores with the L rows of K that come past lie in its registers, and so do the weights, as the operand of the second
// product. K and V go from the diagonal back to the first tile, in two places: one is on its way while the other is read.
//
// q, k: heads x S x dhqk, v, h: heads x S x dhhv, m, n: heads x S, row, column: heads x length. A grid of
// tiles heads slices blocks.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/warp_tiles.cuh"
#include "pairs.cuh"

using namespace lab;

// What comes past at once, and all.
template <class T, int KEY, int VALUE, int L> struct Place {
    T k[KEY / PANEL][L * PANEL], v[VALUE / PANEL][L * PANEL];
    float2 column[L];
};
template <class T, int KEY, int VALUE, int L> struct Tiles {
    T q[KEY / PANEL][L * PANEL];
    Place<T, KEY, VALUE, L> places[2];
};

template <class T, int KEY, int VALUE, int L> constexpr int vlstm_fw_mma_shared = sizeof(Tiles<T, KEY, VALUE, L>);

template <class T, int KEY, int VALUE, int L>
__global__ void __launch_bounds__(L * 2, 2)
    vlstm_fw_mma(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ h,
                 const float2* __restrict__ row, const float2* __restrict__ column, const float* __restrict__ m,
                 float* __restrict__ n_out, int tiles, int together, int length, int S, int dhqk, int dhhv, float eps) {
    static_assert(vlstm_fw_mma_shared<T, KEY, VALUE, L> <= 99 * 1024,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower L");
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<Tiles<T, KEY, VALUE, L>*>(memory);
    Part<VALUE> part(tiles, together, dhhv, blockIdx.x, gridDim.x);
    long long at = 1ll * part.head * S;
    int q0 = part.tile * L;
    Matrix<const T> Q{q + at * dhqk, S, dhqk}, K{k + at * dhqk, S, dhqk}, V{v + at * dhhv, S, dhhv};
    row += 1ll * part.head * length, column += 1ll * part.head * length;
    auto fetch = [&](Place<T, KEY, VALUE, L>& place, int kv0) {
        copy_panels<KEY, L>(place.k, K, kv0, 0);
        copy_panels<VALUE, L>(place.v, V, kv0, part.value);
        if (threadIdx.x < L / 2) async_copy<16>(place.column + threadIdx.x * 2, column + kv0 + threadIdx.x * 2);
        async_commit();
    };

    // ANCHOR: loop
    float out[VALUE / 2] = {}, l[2] = {};
    Exponents weights{{row[q0 + own_row()], row[q0 + own_row() + 8]}, nullptr};
    copy_panels<KEY, L>(shared.q, Q, q0, 0);
    fetch(shared.places[0], q0);
    for (int kv0 = q0, turn = 0; kv0 >= 0; kv0 -= L, turn ^= 1) {
        auto& place = shared.places[turn];
        float score[L / 2];
        unsigned pairs[L / 16][4];
        async_wait<0>();
        __syncthreads();  // the tile is there; the one before, whose place comes next, is read
        if (kv0 > 0) fetch(shared.places[turn ^ 1], kv0 - L);
        multiply_scores<T, KEY, L>(score, shared.q, place.k);
        weights.column = place.column;
        if (kv0 == q0)
            weigh<true>(score, l, weights);
        else
            weigh<false>(score, l, weights);
        round_pairs<T>(pairs, score);
        multiply_values<T, VALUE, L>(out, pairs, place.v);
    }
    // ANCHOR_END: loop
    normalise(l, m + at, n_out + at, q0, S, eps, part.value == 0);
    Matrix<T> H{h + at * dhhv, S, dhhv};
#pragma unroll
    for (int n = 0; n < VALUE / 2; n += 2) {
        int r = n / 2 % 2;
        float two[2] = {out[n] * l[r], out[n + 1] * l[r]};
        H.template store<true, 2>(two, q0 + own_row() + 8 * r, part.value + n / 4 * 8 + threadIdx.x % 4 * 2);
    }
}
