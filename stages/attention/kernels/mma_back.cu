// The gradients of softmax attention on the tensor cores by mma.sync. P and dS of a pair as weights.cuh has them:
//
//   dv_j = Σ_i P_ij do_i      dk_j = scale Σ_i dS_ij q_i      dq_i = scale Σ_j dS_ij k_j
//
// Work split: in the first kernel LANES lanes have a row, of which they make what pairs need of it. In the second a block owns L
// positions j of a head of K and V, a warp 16 of them; L rows of Q and do come past, of each head of its group, from the
// block's own on where it is causal, in two places. In the third a block owns L rows i, and K and V come past as in the
// forward pass. The second walk makes scores and do·v once more, seven products for five. For that nobody adds to what
// another has written: each run gives the same bits.
//
// q, do, dq: heads x S x D, k, v, dk, dv: heads / group x S x D, of_row: heads x length, whole tiles. Of o and do the first
// kernel is told how many elements apart rows lie, heads of a sequence, and sequences; PACKED, it leaves RECORDS rows for each
// tile of packed sequences (packed.cuh), and length is that of all of them. A grid of heads
// tiles blocks, or of heads / group tiles.
#include "lab/ptx/dynamic_shared.cuh"
#include "packed.cuh"
#include "weights.cuh"

using namespace lab;

// ANCHOR: rows
template <class T, int THREADS, int LANES, bool PACKED>
__global__ void __launch_bounds__(THREADS)
    attention_rows(const T* __restrict__ o, const T* __restrict__ grad, const float* __restrict__ lse,
                   float2* __restrict__ of_row, int NH, int length, int S, int D, long long o_row, long long o_head,
                   long long o_sequence, long long grad_row, long long grad_head, long long grad_sequence, long long all,
                   const int* __restrict__ cu_seqlens, int sequences) {
    long long at = (1ll * blockIdx.x * THREADS + threadIdx.x) / LANES, n = at / length, row = at % length;
    int c = threadIdx.x % LANES * 8;
    bool is = at < all && row < S;
    if constexpr (PACKED) {
        auto packed = PackedSequence::of_tile<RECORDS>(cu_seqlens, sequences, S, row / RECORDS);
        row -= packed.first_record();
        is = at < all && row >= 0 && row < packed.length;
        row += packed.begin;
    }
    float sum = 0;
    if (is && c < D) {
        auto left = load_pack(o + n / NH * o_sequence + n % NH * o_head + row * o_row + c);
        auto right = load_pack(grad + n / NH * grad_sequence + n % NH * grad_head + row * grad_row + c);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += left.v[i] * right.v[i];
    }
    sum = warp_reduce<LANES>(sum, Add{});
    if (c == 0 && at < all) of_row[at] = make_float2(is ? lse[n * S + row] * LOG2E : -lowest<float>(), sum);
}
// ANCHOR_END: rows

template <class T, int ROOM, int L> struct KeyTiles {
    T k[ROOM / PANEL][L * PANEL], v[ROOM / PANEL][L * PANEL];
    struct Place {
        T q[ROOM / PANEL][L * PANEL], grad[ROOM / PANEL][L * PANEL];
        float2 of_row[L];
    } places[2];
};

template <class T, int ROOM, int L> constexpr int attention_keys_mma_shared = sizeof(KeyTiles<T, ROOM, L>);

template <class T, int ROOM, int L>
__global__ void __launch_bounds__(L * 2, 2)
    attention_keys_mma(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                       const T* __restrict__ grad, const float2* __restrict__ of_row, T* __restrict__ dk,
                       T* __restrict__ dv, int tiles, int group, int length, int S, int D, float scale, float log2_scale,
                       bool causal) {
    static_assert(attention_keys_mma_shared<T, ROOM, L> <= 99 * 1024,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower L");
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<KeyTiles<T, ROOM, L>*>(memory);
    long long head = blockIdx.x / tiles, at = head * S * D;
    int kv0 = blockIdx.x % tiles * L, first = causal ? kv0 : 0, in_head = tiles - first / L;
    Matrix<const T> K{k + at, S, D}, V{v + at, S, D};
    // The n-th tile that comes past: those of the group's first head, then those of the next.
    auto fetch = [&](typename KeyTiles<T, ROOM, L>::Place& place, int n) {
        long long from = head * group + n / in_head;
        int q0 = first + n % in_head * L;
        copy_panels<ROOM, L>(place.q, Matrix<const T>{q + from * S * D, S, D}, q0, 0);
        copy_panels<ROOM, L>(place.grad, Matrix<const T>{grad + from * S * D, S, D}, q0, 0);
        if (threadIdx.x < L / 2) {
            int two = threadIdx.x * 2;
            async_copy<16>(place.of_row + two, of_row + from * length + q0 + two);
        }
        async_commit();
    };

    // ANCHOR: keys
    float dv_j[ROOM / 2] = {}, dk_j[ROOM / 2] = {};
    copy_panels<ROOM, L>(shared.k, K, kv0, 0);
    copy_panels<ROOM, L>(shared.v, V, kv0, 0);
    fetch(shared.places[0], 0);
    for (int n = 0; n < group * in_head; ++n) {
        auto& place = shared.places[n % 2];
        float score[L / 2], product[L / 2];
        unsigned weights[L / 16][4], slopes[L / 16][4];
        async_wait<0>();
        __syncthreads();  // the tile is there; the one before, whose place comes next, is read
        if (n + 1 < group * in_head) fetch(shared.places[(n + 1) % 2], n + 1);
        multiply_scores<T, ROOM, L>(score, shared.k, place.q);
        multiply_scores<T, ROOM, L>(product, shared.v, place.grad);
        if (causal && n % in_head == 0)
            slopes_of_columns<true>(score, product, place.of_row, log2_scale, own_row());
        else
            slopes_of_columns<false>(score, product, place.of_row, log2_scale, own_row());
        round_pairs<T>(weights, score), round_pairs<T>(slopes, product);
        multiply_values<T, ROOM, L>(dv_j, weights, place.grad);
        multiply_values<T, ROOM, L>(dk_j, slopes, place.q);
    }
    // ANCHOR_END: keys
    store_rows(Matrix<T>{dv + at, S, D}, dv_j, {1, 1}, kv0);
    store_rows(Matrix<T>{dk + at, S, D}, dk_j, {scale, scale}, kv0);
}

template <class T, int ROOM, int L> struct QueryTiles {
    T q[ROOM / PANEL][L * PANEL], grad[ROOM / PANEL][L * PANEL];
    struct Place {
        T k[ROOM / PANEL][L * PANEL], v[ROOM / PANEL][L * PANEL];
    } places[2];
};

template <class T, int ROOM, int L> constexpr int attention_queries_mma_shared = sizeof(QueryTiles<T, ROOM, L>);

template <class T, int ROOM, int L>
__global__ void __launch_bounds__(L * 2, 2)
    attention_queries_mma(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                          const T* __restrict__ grad, const float2* __restrict__ of_row, T* __restrict__ dq, int tiles,
                          int group, int length, int S, int D, float scale, float log2_scale, bool causal) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<QueryTiles<T, ROOM, L>*>(memory);
    long long head = blockIdx.x / tiles, at = head * S * D, kv = head / group * S * D;
    int q0 = (tiles - 1 - blockIdx.x % tiles) * L, own = q0 + own_row(), end = causal ? q0 : (tiles - 1) * L;
    Matrix<const T> Q{q + at, S, D}, dO{grad + at, S, D}, K{k + kv, S, D}, V{v + kv, S, D};
    int last[2] = {causal ? own : S - 1, causal ? own + 8 : S - 1};
    float2 rows[2] = {of_row[head * length + own], of_row[head * length + own + 8]};
    auto fetch = [&](typename QueryTiles<T, ROOM, L>::Place& place, int kv0) {
        copy_panels<ROOM, L>(place.k, K, kv0, 0);
        copy_panels<ROOM, L>(place.v, V, kv0, 0);
        async_commit();
    };

    // ANCHOR: queries
    float dq_i[ROOM / 2] = {};
    copy_panels<ROOM, L>(shared.q, Q, q0, 0);
    copy_panels<ROOM, L>(shared.grad, dO, q0, 0);
    fetch(shared.places[0], end);
    for (int kv0 = end, turn = 0; kv0 >= 0; kv0 -= L, turn ^= 1) {
        auto& place = shared.places[turn];
        float score[L / 2], product[L / 2];
        unsigned slopes[L / 16][4];
        async_wait<0>();
        __syncthreads();  // the tile is there; the one before, whose place comes next, is read
        if (kv0 > 0) fetch(shared.places[turn ^ 1], kv0 - L);
        multiply_scores<T, ROOM, L>(score, shared.q, place.k);
        multiply_scores<T, ROOM, L>(product, shared.grad, place.v);
        if (kv0 == end) {
            hide_later(score, last, kv0);
            slopes_of_rows<true>(product, score, rows, log2_scale);
        } else {
            slopes_of_rows<false>(product, score, rows, log2_scale);
        }
        round_pairs<T>(slopes, product);
        multiply_values<T, ROOM, L>(dq_i, slopes, place.k);
    }
    // ANCHOR_END: queries
    store_rows(Matrix<T>{dq + at, S, D}, dq_i, {scale, scale}, q0);
}
