// The gradients of softmax attention by wgmma and TMA. The equations and the two walks are those of mma_back.cu, the roles and
// rings those of wgmma.cu.
//
// Work split: in the first kernel a block owns 64 GROUPS positions j of a head of K and V, a warpgroup 64 of them, with the
// sums dk and dv in its registers; tiles of L rows of q and do come past, with what pairs need of each row, of each head of the
// group. Scores stand there as K Qᵀ: rows are positions, so that weights and slopes are operands of the sums as they are. Where
// the registers of 256 columns have room for one of dk and dv alone, a launch makes dv and one makes dk (WHICH). In the second
// a block owns 64 GROUPS rows i, and K and V come past. Of two
// warpgroups one makes slopes while the other has the tensor cores; AHEAD: and its own sums of the tile before are under way.
//
// q, do, dq: [B, NH, S, D], k, v, dk, dv: [B, NH / group, S, D], by maps of four dimensions; of_row: heads x length, from
// attention_rows. A grid of heads / group tiles blocks, or of heads tiles. PACKED: as in turns.cu; a block looks for the sequence of
// its tile, and ends at once where the tile has no row.
#include "lab/ptx/dynamic_shared.cuh"
#include "warpgroups.cuh"

using namespace lab;

enum Which { BOTH, VALUES_ALONE, KEYS_ALONE };

// Of two warpgroups that multiply and one that asks; one alone has all that a thread can have.
constexpr int ASK_REGISTERS = 24, MULTIPLY_REGISTERS = 240;

template <class T, int ROOM, int GROUPS, int L, int PLACES> struct KeyTiles {
    Panels<T, ROOM, ROWS> k[GROUPS], v[GROUPS];  // and dk, dv, at the end
    Panels<T, ROOM, L> q[PLACES], grad[PLACES];
    float2 of_row[PLACES][L];
};

template <class T, int ROOM, int GROUPS, int L, int PLACES, Which WHICH, bool PACKED>
constexpr int attention_keys_wgmma_shared = sizeof(KeyTiles<T, ROOM, GROUPS, L, PLACES>);

template <class T, int ROOM, int GROUPS, int L, int PLACES, Which WHICH, bool PACKED>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    attention_keys_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                         const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap grad,
                         const __grid_constant__ TensorMap dk, const __grid_constant__ TensorMap dv,
                         const float2* __restrict__ of_row, int heads, int tiles, int together, int NH, int group,
                         int length, int S, float scale, float log2_scale, bool causal,
                         const int* __restrict__ cu_seqlens, int sequences) {
    static_assert(L == ROWS, "a tile of rows is as long as a warpgroup's positions: one is its diagonal");
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<KeyTiles<T, ROOM, GROUPS, L, PLACES>*>(memory);
    constexpr int R = GROUPS * ROWS;
    __shared__ Ring<PLACES> rows;
    __shared__ Ring<1> own;
    if (threadIdx.x == 0) rows.init(GROUPS * 4), own.init(GROUPS);
    __syncthreads();  // nobody waits at a barrier that is not there

    auto [head, later] = Order{heads, tiles, together}.at(blockIdx.x);
    int kv0 = (tiles - 1 - later) * R, positions = S, record = 0, of_sequence = head % NH;
    PackedSequence packed;
    if constexpr (PACKED) {
        int tile = tiles - 1 - later;
        packed = PackedSequence::of_tile<R>(cu_seqlens, sequences, S, tile);
        if (!packed.has<R>(tile)) return;
        kv0 = packed.row<R>(tile), positions = packed.length, record = packed.first_record();
    }
    auto sequence = sequence_of<PACKED>(packed, head / NH);
    int first = causal ? kv0 / L : 0, in_head = (positions + L - 1) / L - first;
    Turn<PLACES> turn;
    if (threadIdx.x >= GROUPS * 128) {
        if constexpr (GROUPS == 2) registers_decrease<ASK_REGISTERS>();
        if (threadIdx.x > GROUPS * 128) return;
        mbarrier_arrive_expect(&own.full[0], 2 * GROUPS * shared.k[0].BYTES);
        for (int g = 0; g < GROUPS; ++g) {
            shared.k[g].load(k, kv0 + g * ROWS, of_sequence, sequence, &own.full[0]);
            shared.v[g].load(v, kv0 + g * ROWS, of_sequence, sequence, &own.full[0]);
        }
        for (int n = 0; n < group * in_head; ++n, turn.advance()) {
            int from = of_sequence * group + n / in_head, q0 = (first + n % in_head) * L;
            Mbarrier* full = &rows.full[turn.place];
            rows.wait_empty(turn);
            mbarrier_arrive_expect(full, 2 * shared.q[0].BYTES + sizeof(shared.of_row[0]));
            shared.q[turn.place].load(q, q0, from, sequence, full);
            shared.grad[turn.place].load(grad, q0, from, sequence, full);
            long long row = (1ll * (head / NH) * NH * group + from) * length + record + q0;
            bulk_load(shared.of_row[turn.place], of_row + row, sizeof(shared.of_row[0]), full);
        }
        return;
    }

    if constexpr (GROUPS == 2) registers_increase<MULTIPLY_REGISTERS>();
    int g = threadIdx.x / 128, row0 = kv0 + g * ROWS;
    bool speaks = threadIdx.x % 128 == 0;
    // ANCHOR: keys
    float dv_j[ROOM / 2] = {}, dk_j[ROOM / 2] = {}, score[L / 2], product[L / 2] = {};
    unsigned weights[L / 16][4], slopes[L / 16][4];
    own.wait_full({});
    for (int n = 0; n < group * in_head; ++n, turn.advance()) {
        int behind = (first + n % in_head) * L - row0;  // of the first row that comes past
        rows.wait_full(turn);
        if (!causal || behind >= 0) {
            auto &q_i = shared.q[turn.place], &grad_i = shared.grad[turn.place];
            wgmma_fence();
            multiply_scores<T, ROOM, L>(score, shared.k[g], q_i);
            if constexpr (WHICH != VALUES_ALONE) multiply_scores<T, ROOM, L>(product, shared.v[g], grad_i);
            wgmma_commit();
            wgmma_wait<0>();
            const float2* of_rows = shared.of_row[turn.place];
            if (causal && behind == 0) slopes_of_columns<true>(score, product, of_rows, log2_scale, own_row() % ROWS);
            else slopes_of_columns<false>(score, product, of_rows, log2_scale, own_row() % ROWS);
            round_pairs<T>(weights, score), round_pairs<T>(slopes, product);
            wgmma_fence();
            if constexpr (WHICH != KEYS_ALONE) multiply_values<T, ROOM, L>(dv_j, weights, grad_i);
            if constexpr (WHICH != VALUES_ALONE) multiply_values<T, ROOM, L>(dk_j, slopes, q_i);
            wgmma_commit();
            wgmma_wait<0>();
        }
        __syncwarp();  // a warp at a time: each thread has read of_row
        if (threadIdx.x % 32 == 0) rows.leave(turn);
    }
    // ANCHOR_END: keys
    if constexpr (WHICH != KEYS_ALONE)
        store_rows<PACKED>(dv, shared.v[g], dv_j, {1, 1}, row0, of_sequence, sequence, 1 + g);
    if constexpr (WHICH != VALUES_ALONE)
        store_rows<PACKED>(dk, shared.k[g], dk_j, {scale, scale}, row0, of_sequence, sequence, 1 + g);
    if (speaks) bulk_wait_read<0>();
}

template <class T, int ROOM, int GROUPS, int L, int PLACES> struct QueryTiles {
    Panels<T, ROOM, ROWS> q[GROUPS], grad[GROUPS];  // and dq, at the end
    Panels<T, ROOM, L> k[PLACES], v[PLACES];
};

template <class T, int ROOM, int GROUPS, int L, int PLACES, bool AHEAD, bool PACKED>
constexpr int attention_queries_wgmma_shared = sizeof(QueryTiles<T, ROOM, GROUPS, L, PLACES>);

template <class T, int ROOM, int GROUPS, int L, int PLACES, bool AHEAD, bool PACKED>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    attention_queries_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                            const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap grad,
                            const __grid_constant__ TensorMap dq, const float2* __restrict__ of_row, int heads, int tiles,
                            int together, int NH, int group, int length, int S, float scale, float log2_scale,
                            bool causal, const int* __restrict__ cu_seqlens, int sequences) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<QueryTiles<T, ROOM, GROUPS, L, PLACES>*>(memory);
    constexpr int R = GROUPS * ROWS;
    __shared__ Ring<PLACES> keys, values;
    __shared__ Ring<1> queries;
    if (threadIdx.x == 0) keys.init(GROUPS), values.init(GROUPS), queries.init(GROUPS);
    __syncthreads();  // nobody waits at a barrier that is not there

    auto [head, tile] = Order{heads, tiles, together}.at(blockIdx.x);
    int q0 = tile * R, positions = S, record = 0;
    PackedSequence packed;
    if constexpr (PACKED) {
        packed = PackedSequence::of_tile<R>(cu_seqlens, sequences, S, tile);
        if (!packed.has<R>(tile)) return;
        q0 = packed.row<R>(tile), positions = packed.length, record = packed.first_record();
    }
    int end = last_tile<L>(causal, q0, R, positions), of_sequence = head % NH;
    auto sequence = sequence_of<PACKED>(packed, head / NH);
    Turn<PLACES> of_keys, of_values;
    if (threadIdx.x >= GROUPS * 128) {
        if constexpr (GROUPS == 2) registers_decrease<ASK_REGISTERS>();
        if (threadIdx.x > GROUPS * 128) return;
        mbarrier_arrive_expect(&queries.full[0], 2 * GROUPS * shared.q[0].BYTES);
        for (int g = 0; g < GROUPS; ++g) {
            shared.q[g].load(q, q0 + g * ROWS, of_sequence, sequence, &queries.full[0]);
            shared.grad[g].load(grad, q0 + g * ROWS, of_sequence, sequence, &queries.full[0]);
        }
        for (int n = end; n >= 0; --n, of_keys.advance()) {
            auto ask = [&](Ring<PLACES>& ring, Panels<T, ROOM, L>& place, const TensorMap& from) {
                ring.wait_empty(of_keys);
                mbarrier_arrive_expect(&ring.full[of_keys.place], place.BYTES);
                place.load(from, n * L, of_sequence / group, sequence, &ring.full[of_keys.place]);
            };
            ask(keys, shared.k[of_keys.place], k);
            ask(values, shared.v[of_keys.place], v);
        }
        return;
    }

    if constexpr (GROUPS == 2) registers_increase<MULTIPLY_REGISTERS>();
    int g = threadIdx.x / 128, row0 = q0 + g * ROWS, own = q0 + own_row(), own_end = last_tile<L>(causal, row0, ROWS, positions);
    int last[2] = {causal ? own : positions - 1, causal ? own + 8 : positions - 1};
    bool speaks = threadIdx.x % 128 == 0;
    float2 rows[2] = {of_row[1ll * head * length + record + own], of_row[1ll * head * length + record + own + 8]};
    // ANCHOR: queries
    float dq_i[ROOM / 2] = {}, score[L / 2], product[L / 2];
    unsigned slopes[L / 16][4];
    auto pass = [&](Ring<PLACES>& ring, Turn<PLACES>& turn) {
        if (speaks) ring.leave(turn);
        turn.advance();
    };
    auto ask_scores = [&] {
        keys.wait_full(of_keys);
        values.wait_full(of_values);
        wgmma_fence();
        multiply_scores<T, ROOM, L>(score, shared.q[g], shared.k[of_keys.place]);
        multiply_scores<T, ROOM, L>(product, shared.grad[g], shared.v[of_values.place]);
        wgmma_commit();
    };
    auto ask_sums = [&](Turn<PLACES> of) {
        wgmma_fence();
        multiply_values<T, ROOM, L>(dq_i, slopes, shared.k[of.place]);
        wgmma_commit();
    };
    queries.wait_full({});
    for (int n = end; n > own_end; --n) {  // tiles that others see
        keys.wait_full(of_keys), pass(keys, of_keys);
        values.wait_full(of_values), pass(values, of_values);
    }
    if constexpr (AHEAD) {
        ask_scores();
        wgmma_wait<0>();
        pass(values, of_values);
        hide_later(score, last, own_end * L);
        slopes_of_rows<true>(product, score, rows, log2_scale);
        round_pairs<T>(slopes, product);
        for (int n = own_end; n > 0; --n) {
            Turn<PLACES> before = of_keys;
            of_keys.advance();
            ask_scores();
            ask_sums(before);
            wgmma_wait<1>();
            pass(values, of_values);
            slopes_of_rows<false>(product, score, rows, log2_scale);  // while the sums are made
            wgmma_wait<0>();
            if (speaks) keys.leave(before);
            round_pairs<T>(slopes, product);
        }
        ask_sums(of_keys);
        wgmma_wait<0>();
    } else {
        for (int n = own_end; n >= 0; --n) {
            ask_scores();
            wgmma_wait<0>();
            pass(values, of_values);
            if (n == own_end) hide_later(score, last, n * L);
            slopes_of_rows<true>(product, score, rows, log2_scale);
            round_pairs<T>(slopes, product);
            ask_sums(of_keys);
            wgmma_wait<0>();
            pass(keys, of_keys);
        }
    }
    // ANCHOR_END: queries
    store_rows<PACKED>(dq, shared.q[g], dq_i, {scale, scale}, row0, of_sequence, sequence, 1 + g);
    if (speaks) bulk_wait_read<0>();
}
