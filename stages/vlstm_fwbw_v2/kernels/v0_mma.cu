// The gradients of the vLSTM over all pairs of positions, on the tensor cores by mma.sync. With c, dS and G of a pair as
// gradients.cuh has them, and j <= i throughout
//
//   dv_j = Σ_i c_ij dh_i      dk_j = Σ_i dS_ij q_i      di_j = Σ_i G_ij      dq_i = Σ_j dS_ij k_j
//
// Work split: in the first kernel a block owns L positions j of one head, a warp 16 of them. Their products with L rows of
// Q and dh that come past lie in its registers as [j][i], and so do the weighed pairs, as the left operand of the sums
// over i. Rows come from the block's own on to the last, in two places. In the second a block owns L rows i; K and V come
// past it, from its own positions back to the first, as in the forward pass. It needs no q_i·k_j. Nobody adds to what
// another has written.
//
// q, k, dq, dk: heads x S x dhqk, v, dh, dv: heads x S x dhhv, di: heads x S, exponent, rho, column: heads x length,
// shares: heads x tiles x length. A grid of tiles heads blocks.
#include "gradients.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/warp_tiles.cuh"

using namespace lab;

template <class T, int KEY, int VALUE, int L> struct KeyTiles {
    T k[KEY / PANEL][L * PANEL], v[VALUE / PANEL][L * PANEL];
    struct Place {
        T q[KEY / PANEL][L * PANEL], dh[VALUE / PANEL][L * PANEL];
        float2 exponent[L];
        float rho[L];
    } places[2];
    float sums[L / 16][L];  // of G over each warp's positions
};
template <class T, int KEY, int VALUE, int L> struct QueryTiles {
    T dh[VALUE / PANEL][L * PANEL];
    struct Place {
        T k[KEY / PANEL][L * PANEL], v[VALUE / PANEL][L * PANEL];
        float2 column[L];
    } places[2];
};

// A lane's rows of what has been summed up, rounded.
template <class T, int N>
__device__ __forceinline__ void store_rows(Matrix<T> to, const float (&sum)[N], int first) {
#pragma unroll
    for (int n = 0; n < N; n += 2)
        to.template store<true, 2>(sum + n, first + own_row() + n / 2 % 2 * 8, n / 4 * 8 + threadIdx.x % 4 * 2);
}

template <class T, int KEY, int VALUE, int L> constexpr int vlstm_keys_mma_shared = sizeof(KeyTiles<T, KEY, VALUE, L>);

template <class T, int KEY, int VALUE, int L>
__global__ void __launch_bounds__(L * 2, 2)
    vlstm_keys_mma(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ dh,
                   const float2* __restrict__ exponent, const float* __restrict__ rho, const float2* __restrict__ column,
                   T* __restrict__ dk, T* __restrict__ dv, float* __restrict__ di, float* __restrict__ shares, int tiles,
                   int together, int length, int S, int dhqk, int dhhv) {
    static_assert(vlstm_keys_mma_shared<T, KEY, VALUE, L> <= 99 * 1024,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower L");
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<KeyTiles<T, KEY, VALUE, L>*>(memory);
    Share share(tiles, together, blockIdx.x, gridDim.x);
    long long at = 1ll * share.head * S, positions = 1ll * share.head * length;
    int tile = share.longer, kv0 = tile * L;
    Matrix<const T> Q{q + at * dhqk, S, dhqk}, K{k + at * dhqk, S, dhqk}, V{v + at * dhhv, S, dhhv};
    Matrix<const T> dH{dh + at * dhhv, S, dhhv};
    exponent += positions, rho += positions, column += positions + kv0;
    shares += (1ll * share.head * tiles + tile) * length;
    auto fetch = [&](typename KeyTiles<T, KEY, VALUE, L>::Place& place, int q0) {
        copy_panels<KEY, L>(place.q, Q, q0, 0);
        copy_panels<VALUE, L>(place.dh, dH, q0, 0);
        if (threadIdx.x < L / 2) async_copy<16>(place.exponent + threadIdx.x * 2, exponent + q0 + threadIdx.x * 2);
        if (threadIdx.x < L / 4) async_copy<16>(place.rho + threadIdx.x * 4, rho + q0 + threadIdx.x * 4);
        async_commit();
    };
    auto add_up = [&](int q0) {
        if (threadIdx.x >= L) return;
        float sum = 0;
        for (int w = 0; w < L / 16; ++w) sum += shared.sums[w][threadIdx.x];
        shares[q0 + threadIdx.x] = sum;
    };

    // ANCHOR: keys
    float dv_j[VALUE / 2] = {}, dk_j[KEY / 2] = {}, of_G[2] = {};
    Exponents weights{{column[own_row()], column[own_row() + 8]}, nullptr};
    copy_panels<KEY, L>(shared.k, K, kv0, 0);
    copy_panels<VALUE, L>(shared.v, V, kv0, 0);
    fetch(shared.places[0], kv0);
    for (int q0 = kv0, turn = 0; q0 < S; q0 += L, turn ^= 1) {
        auto& place = shared.places[turn];
        float score[L / 2], product[L / 2], sum[L / 4];
        unsigned c[L / 16][4], dS[L / 16][4];
        async_wait<0>();
        __syncthreads();  // the tile is there, and so are the last one's sums; that one, whose place comes next, is read
        if (q0 + L < S) fetch(shared.places[turn ^ 1], q0 + L);
        if (q0 > kv0) add_up(q0 - L);
        multiply_scores<T, KEY, L>(score, shared.k, place.q);
        multiply_scores<T, VALUE, L>(product, shared.v, place.dh);
        weights.column = place.exponent;
        if (q0 == kv0)
            weigh_keys<T, true>(c, dS, score, product, of_G, sum, place.rho, weights, own_row());
        else
            weigh_keys<T, false>(c, dS, score, product, of_G, sum, place.rho, weights, own_row());
        multiply_values<T, VALUE, L>(dv_j, c, place.dh);
        multiply_values<T, KEY, L>(dk_j, dS, place.q);
        float2 kept = sum_columns(sum);
        __syncthreads();  // the last tile's sums are added up
        *reinterpret_cast<float2*>(&shared.sums[threadIdx.x / 32][kept_column()]) = kept;
    }
    // ANCHOR_END: keys
    __syncthreads();  // the last sums are there
    add_up((S - 1) / L * L);
    store_rows(Matrix<T>{dv + at * dhhv, S, dhhv}, dv_j, kv0);
    store_rows(Matrix<T>{dk + at * dhqk, S, dhqk}, dk_j, kv0);
    store_sums(of_G, di + at, kv0, S);
}

template <class T, int KEY, int VALUE, int L> constexpr int vlstm_queries_mma_shared = sizeof(QueryTiles<T, KEY, VALUE, L>);

template <class T, int KEY, int VALUE, int L>
__global__ void __launch_bounds__(L * 2, 2)
    vlstm_queries_mma(const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ dh,
                      const float2* __restrict__ exponent, const float* __restrict__ rho,
                      const float2* __restrict__ column, T* __restrict__ dq, int tiles, int together, int length, int S,
                      int dhqk, int dhhv) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<QueryTiles<T, KEY, VALUE, L>*>(memory);
    Share share(tiles, together, blockIdx.x, gridDim.x);
    long long at = 1ll * share.head * S, positions = 1ll * share.head * length;
    int q0 = (tiles - 1 - share.longer) * L, own = q0 + own_row();
    Matrix<const T> K{k + at * dhqk, S, dhqk}, V{v + at * dhhv, S, dhhv}, dH{dh + at * dhhv, S, dhhv};
    exponent += positions, rho += positions, column += positions;
    auto fetch = [&](typename QueryTiles<T, KEY, VALUE, L>::Place& place, int kv0) {
        copy_panels<KEY, L>(place.k, K, kv0, 0);
        copy_panels<VALUE, L>(place.v, V, kv0, 0);
        if (threadIdx.x < L / 2) async_copy<16>(place.column + threadIdx.x * 2, column + kv0 + threadIdx.x * 2);
        async_commit();
    };

    // ANCHOR: queries
    float dq_i[KEY / 2] = {}, of_n[2] = {rho[own], rho[own + 8]};
    Exponents weights{{exponent[own], exponent[own + 8]}, nullptr};
    copy_panels<VALUE, L>(shared.dh, dH, q0, 0);
    fetch(shared.places[0], q0);
    for (int kv0 = q0, turn = 0; kv0 >= 0; kv0 -= L, turn ^= 1) {
        auto& place = shared.places[turn];
        float product[L / 2];
        unsigned pairs[L / 16][4];
        async_wait<0>();
        __syncthreads();  // the tile is there; the one before, whose place comes next, is read
        if (kv0 > 0) fetch(shared.places[turn ^ 1], kv0 - L);
        multiply_scores<T, VALUE, L>(product, shared.dh, place.v);
        weights.column = place.column;
        if (kv0 == q0)
            weigh_queries<true>(product, of_n, weights);
        else
            weigh_queries<false>(product, of_n, weights);
        round_pairs<T>(pairs, product);
        multiply_values<T, KEY, L>(dq_i, pairs, place.k);
    }
    // ANCHOR_END: queries
    store_rows(Matrix<T>{dq + at * dhqk, S, dhqk}, dq_i, q0);
}
