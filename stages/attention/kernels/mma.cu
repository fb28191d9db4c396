// Softmax attention on the tensor cores by mma.sync. The equations, and how a row runs, are those of online.cu.
//
// Work split: a block owns L rows of Q and o of one head, a warp 16 of them. Their scores with the L rows of K that come
// past lie in its registers, and so do the weights, as the operand of the second product: nothing of a pair is in shared
// memory. K and V go from the last tile that counts back to the first, in two places: one is on its way while the other
// is read. Only in the tile that comes first, on the diagonal or at the end of S, are there pairs that do not count.
//
// q, o: heads x S x D, k, v: heads / group x S x D, lse: heads x S. A grid of heads tiles blocks, the longest of a head
// first.
#include "lab/ptx/dynamic_shared.cuh"
#include "weights.cuh"

using namespace lab;

// A tile of K and one of V; and all that a block has in shared memory.
template <class T, int ROOM, int L> struct Place {
    T k[ROOM / PANEL][L * PANEL], v[ROOM / PANEL][L * PANEL];
};
template <class T, int ROOM, int L> struct Tiles {
    T q[ROOM / PANEL][L * PANEL];
    Place<T, ROOM, L> places[2];
};

template <class T, int ROOM, int L> constexpr int attention_mma_shared = sizeof(Tiles<T, ROOM, L>);

template <class T, int ROOM, int L>
__global__ void __launch_bounds__(L * 2, 2)
    attention_mma(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ o,
                  float* __restrict__ lse, int tiles, int group, int S, int D, float log2_scale, bool causal) {
    static_assert(attention_mma_shared<T, ROOM, L> <= 99 * 1024,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower L");
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<Tiles<T, ROOM, L>*>(memory);
    long long head = blockIdx.x / tiles, kv = head / group * S * D;
    int q0 = (tiles - 1 - blockIdx.x % tiles) * L, own = q0 + own_row(), end = causal ? q0 : (tiles - 1) * L;
    Matrix<const T> Q{q + head * S * D, S, D}, K{k + kv, S, D}, V{v + kv, S, D};
    int last[2] = {causal ? own : S - 1, causal ? own + 8 : S - 1};
    auto fetch = [&](Place<T, ROOM, L>& place, int kv0) {
        copy_panels<ROOM, L>(place.k, K, kv0, 0);
        copy_panels<ROOM, L>(place.v, V, kv0, 0);
        async_commit();
    };

    // ANCHOR: loop
    float out[ROOM / 2] = {};
    Running row;
    copy_panels<ROOM, L>(shared.q, Q, q0, 0);
    fetch(shared.places[0], end);
    for (int kv0 = end, turn = 0; kv0 >= 0; kv0 -= L, turn ^= 1) {
        auto& place = shared.places[turn];
        float score[L / 2];
        unsigned pairs[L / 16][4];
        async_wait<0>();
        __syncthreads();  // the tile is there; the one before, whose place comes next, is read
        if (kv0 > 0) fetch(shared.places[turn ^ 1], kv0 - L);
        multiply_scores<T, ROOM, L>(score, shared.q, place.k);
        if (kv0 == end) hide_later(score, last, kv0);
        scale_rows(out, row.weigh(score, log2_scale));
        round_pairs<T>(pairs, score);
        multiply_values<T, ROOM, L>(out, pairs, place.v);
    }
    // ANCHOR_END: loop
    float inverse[2];
    row.finish(inverse, lse + head * S, own, S);
    store_rows(Matrix<T>{o + head * S * D, S, D}, out, inverse, q0);
}
