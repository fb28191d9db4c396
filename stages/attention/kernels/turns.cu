// Softmax attention by wgmma, its tensor cores kept at work. The equations, the roles and the rings are those of wgmma.cu.
//
// Work split: as there, but that a block stays, one a multiprocessor, and takes tiles of rows as they come, the longest first: who
// asks for K and V counts them on a number in device memory, which the last block to ask leaves at 0, and up to 128 columns
// is at the next tile while the results of this one leave. Two products are asked for together: that of the next scores, and
// that of the last weights by V. While the second is under way, a warpgroup makes weights of the first. And warpgroups take
// turns: one has the tensor cores do both while another exponentiates.
//
// As wgmma.cu, and `counter`, 0. A grid of as many blocks as run at once, at most. PACKED: sequences one behind the other, of which
// `cu_seqlens` [sequences + 1] has begins and ends, S positions in all, by maps that end anywhere (packed.cuh). Who asks looks for the
// sequence of a tile, and leaves it in shared memory.
#include "lab/ptx/dynamic_shared.cuh"
#include "warpgroups.cuh"

using namespace lab;

// o leaves from a place of its own where there is room, else from that of q.
template <class T, int ROOM, int GROUPS, int L, int PLACES, bool APART = ROOM < 256> struct Tiles {
    Panels<T, ROOM, ROWS> q[GROUPS], o[GROUPS];
    Panels<T, ROOM, L> k[PLACES], v[PLACES];
};
template <class T, int ROOM, int GROUPS, int L, int PLACES> struct Tiles<T, ROOM, GROUPS, L, PLACES, false> {
    union {
        Panels<T, ROOM, ROWS> q[GROUPS], o[GROUPS];
    };
    Panels<T, ROOM, L> k[PLACES], v[PLACES];
};

template <class T, int ROOM, int GROUPS, int L, int PLACES, bool PACKED>
constexpr int attention_turns_shared = sizeof(Tiles<T, ROOM, GROUPS, L, PLACES>);

template <int GROUPS> constexpr int ASK_REGISTERS = GROUPS == 2 ? 24 : 32;
template <int GROUPS> constexpr int MULTIPLY_REGISTERS = GROUPS == 2 ? 240 : 160;

// The number of the next tile that has rows; where sequences are packed, also whose they are. Each block asks once in vain.
template <bool PACKED, int R>
__device__ __forceinline__ int take(unsigned* counter, const Order& order, PackedSequence& packed,
                                    const int* cu_seqlens, int sequences, int S) {
    int all = order.heads * order.tiles;
    while (true) {
        int n = atomicInc(counter, all + gridDim.x - 1);
        if (!PACKED || n >= all) return n;
        int tile = order.at(n).tile;
        packed = PackedSequence::of_tile<R>(cu_seqlens, sequences, S, tile);
        if (packed.has<R>(tile)) return n;
    }
}

// Named barriers: each warpgroup's own, and that of its turn.
template <int GROUPS> struct Turns {
    int own;

    __device__ __forceinline__ int meets() const { return 1 + own; }
    __device__ __forceinline__ void begin() const { if (own == GROUPS - 1) pass(); }
    __device__ __forceinline__ void take() const { named_barrier_sync(1 + GROUPS + own, 256); }
    __device__ __forceinline__ void pass() const { named_barrier_arrive(1 + GROUPS + (own + 1) % GROUPS, 256); }
    __device__ __forceinline__ void end() const { if (own == 0) take(); }  // what the last one passes on
};

template <class T, int ROOM, int GROUPS, int L, int PLACES, bool PACKED>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    attention_turns(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o, float* __restrict__ lse,
                    unsigned* counter, int heads, int tiles, int together, int NH, int group, int S, float log2_scale,
                    bool causal, const int* __restrict__ cu_seqlens, int sequences) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<Tiles<T, ROOM, GROUPS, L, PLACES>*>(memory);
    __shared__ Ring<PLACES> keys, values;
    __shared__ Ring<1> queries;
    __shared__ int next;
    __shared__ PackedSequence next_sequence;  // of packed ones
    constexpr bool APART = ROOM < 256;
    constexpr int R = GROUPS * ROWS;
    if (threadIdx.x == 0) keys.init(GROUPS), values.init(GROUPS), queries.init(GROUPS * 4);
    __syncthreads();  // nobody waits at a barrier that is not there

    Order order{heads, tiles, together};
    int all = heads * tiles;
    Turn<PLACES> of_keys, of_values;
    Turn<1> of_queries;
    if (threadIdx.x >= GROUPS * 128) {
        registers_decrease<ASK_REGISTERS<GROUPS>>();
        if (threadIdx.x > GROUPS * 128) return;
        for (;; of_queries.advance()) {
            PackedSequence packed;
            int n = take<PACKED, R>(counter, order, packed, cu_seqlens, sequences, S);
            queries.wait_empty(of_queries);
            next = n;
            if (n >= all) break;
            if constexpr (PACKED) next_sequence = packed;
            auto [head, tile] = order.at(n);
            int q0 = PACKED ? packed.row<R>(tile) : tile * R, length = PACKED ? packed.length : S;
            auto sequence = sequence_of<PACKED>(packed, head / NH);
            int of_sequence = head % NH;
            mbarrier_arrive_expect(&queries.full[0], GROUPS * shared.q[0].BYTES);
            for (int g = 0; g < GROUPS; ++g) shared.q[g].load(q, q0 + g * ROWS, of_sequence, sequence, &queries.full[0]);
            for (int n = last_tile<L>(causal, q0, R, length); n >= 0; --n, of_keys.advance()) {
                auto ask = [&](Ring<PLACES>& ring, Panels<T, ROOM, L>& place, const TensorMap& from) {
                    ring.wait_empty(of_keys);
                    mbarrier_arrive_expect(&ring.full[of_keys.place], place.BYTES);
                    place.load(from, n * L, of_sequence / group, sequence, &ring.full[of_keys.place]);
                };
                ask(keys, shared.k[of_keys.place], k);
                ask(values, shared.v[of_keys.place], v);
            }
        }
        mbarrier_arrive(&queries.full[0]);
        return;
    }

    registers_increase<MULTIPLY_REGISTERS<GROUPS>>();
    Turns<GROUPS> turns{int(threadIdx.x / 128)};
    auto& place = shared.o[turns.own];
    bool speaks = threadIdx.x % 128 == 0;
    turns.begin();
    for (;; of_queries.advance()) {
        queries.wait_full(of_queries);
        int n = next;
        if (n >= all) break;
        auto [head, tile] = order.at(n);
        PackedSequence packed;
        if constexpr (PACKED) packed = next_sequence;
        int length = PACKED ? packed.length : S, begin = PACKED ? packed.begin : 0;
        int q0 = PACKED ? packed.row<R>(tile) : tile * R, row0 = q0 + turns.own * ROWS, own = q0 + own_row();
        int end = last_tile<L>(causal, row0, ROWS, length);
        int last[2] = {causal ? own : length - 1, causal ? own + 8 : length - 1};
        // A warp at a time: each thread has read `next`.
        auto leave_queries = [&] {
            __syncwarp();
            if (threadIdx.x % 32 == 0) queries.leave(of_queries);
        };
        auto leave = [&](Ring<PLACES>& ring, Turn<PLACES>& turn) {
            if (speaks) ring.leave(turn);
            turn.advance();
        };
        for (int n = last_tile<L>(causal, q0, R, length); n > end; --n) {  // tiles that others see
            keys.wait_full(of_keys), leave(keys, of_keys);
            values.wait_full(of_values), leave(values, of_values);
            turns.take(), turns.pass();
        }

        // ANCHOR: loop
        float out[ROOM / 2] = {}, score[L / 2];
        unsigned pairs[L / 16][4];
        Running row;
        auto add_values = [&] {
            values.wait_full(of_values);
            wgmma_fence();
            multiply_values<T, ROOM, L>(out, pairs, shared.v[of_values.place]);
            wgmma_commit();
        };
        keys.wait_full(of_keys);
        wgmma_fence();
        multiply_scores<T, ROOM, L>(score, shared.q[turns.own], shared.k[of_keys.place]);
        wgmma_commit();
        wgmma_wait<0>();
        leave(keys, of_keys);
        hide_later(score, last, end * L);
        row.weigh(score, log2_scale);
        round_pairs<T>(pairs, score);
        for (int n = end; n > 0; --n) {
            keys.wait_full(of_keys);
            turns.take();
            wgmma_fence();
            multiply_scores<T, ROOM, L>(score, shared.q[turns.own], shared.k[of_keys.place]);
            wgmma_commit();
            add_values();
            turns.pass();
            wgmma_wait<1>();
            leave(keys, of_keys);
            float2 shrinks = row.weigh(score, log2_scale);
            wgmma_wait<0>();
            leave(values, of_values);
            scale_rows(out, shrinks);
            round_pairs<T>(pairs, score);
        }
        if (APART) leave_queries();
        add_values();
        wgmma_wait<0>();
        leave(values, of_values);
        // ANCHOR_END: loop
        float inverse[2];
        row.finish(inverse, lse + 1ll * head * S + begin, own, length);
        if (speaks) bulk_wait_read<0>();  // the rows before have left
        store_rows<PACKED>(o, place, out, inverse, row0, head % NH, sequence_of<PACKED>(packed, head / NH), turns.meets());
        if (!APART) {
            if (speaks) bulk_wait_read<0>();
            leave_queries();
        }
    }
    turns.end();
    if (speaks) bulk_wait_read<0>();
}
