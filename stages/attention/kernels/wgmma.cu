// Softmax attention by wgmma and TMA. The equations, and how a row runs, are those of online.cu; tiles come from the last that
// counts to the first, as in mma.cu.
//
// Work split: a block owns 64 GROUPS rows of Q and o of one head, a warpgroup 64 of them: their scores with the L rows of K that
// come past are 64 x L sums of wgmma in its registers, and so are the weights, as the operand of the second product. One
// thread more asks for K and V, each in a ring of its own: a warpgroup leaves a tile of K once it has its scores. Where a
// warpgroup's rows see nothing of a tile that others of its block see, it lets it go by.
//
// q, o: [B, NH, S, D], k, v: [B, NH / group, S, D], by maps of four dimensions; lse: heads x S. A grid of heads tiles blocks.
#include "lab/ptx/dynamic_shared.cuh"
#include "warpgroups.cuh"

using namespace lab;

template <class T, int ROOM, int GROUPS, int L, int PLACES> struct Tiles {
    Panels<T, ROOM, ROWS> q[GROUPS];  // and o, at the end
    Panels<T, ROOM, L> k[PLACES], v[PLACES];
};

template <class T, int ROOM, int GROUPS, int L, int PLACES>
constexpr int attention_wgmma_shared = sizeof(Tiles<T, ROOM, GROUPS, L, PLACES>);

template <int GROUPS> constexpr int ASK_REGISTERS = GROUPS == 2 ? 24 : 32;
template <int GROUPS> constexpr int MULTIPLY_REGISTERS = GROUPS == 2 ? 240 : 160;

template <class T, int ROOM, int GROUPS, int L, int PLACES>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    attention_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o, float* __restrict__ lse,
                    int heads, int tiles, int together, int NH, int group, int S, float log2_scale, bool causal) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<Tiles<T, ROOM, GROUPS, L, PLACES>*>(memory);
    __shared__ Ring<PLACES> keys, values;
    __shared__ Ring<1> queries;
    if (threadIdx.x == 0) keys.init(GROUPS), values.init(GROUPS), queries.init(GROUPS);
    __syncthreads();  // nobody waits at a barrier that is not there

    auto [head, tile] = Order{heads, tiles, together}.at(blockIdx.x);
    int q0 = tile * GROUPS * ROWS, end = last_tile<L>(causal, q0, GROUPS * ROWS, S);
    int sequence = head / NH, of_sequence = head % NH;
    Turn<PLACES> turn;
    if (threadIdx.x >= GROUPS * 128) {
        registers_decrease<ASK_REGISTERS<GROUPS>>();
        if (threadIdx.x > GROUPS * 128) return;
        mbarrier_arrive_expect(&queries.full[0], GROUPS * shared.q[0].BYTES);
        for (int g = 0; g < GROUPS; ++g) shared.q[g].load(q, q0 + g * ROWS, of_sequence, sequence, &queries.full[0]);
        for (int n = end; n >= 0; --n, turn.advance()) {
            auto ask = [&](Ring<PLACES>& ring, Panels<T, ROOM, L>& place, const TensorMap& from) {
                ring.wait_empty(turn);
                mbarrier_arrive_expect(&ring.full[turn.place], place.BYTES);
                place.load(from, n * L, of_sequence / group, sequence, &ring.full[turn.place]);
            };
            ask(keys, shared.k[turn.place], k);
            ask(values, shared.v[turn.place], v);
        }
        return;
    }

    registers_increase<MULTIPLY_REGISTERS<GROUPS>>();
    int g = threadIdx.x / 128, row0 = q0 + g * ROWS, own = q0 + own_row(), own_end = last_tile<L>(causal, row0, ROWS, S);
    int last[2] = {causal ? own : S - 1, causal ? own + 8 : S - 1};
    bool speaks = threadIdx.x % 128 == 0;
    // ANCHOR: loop
    float out[ROOM / 2] = {};
    Running row;
    queries.wait_full({});
    for (int n = end; n >= 0; --n, turn.advance()) {
        float score[L / 2];
        unsigned pairs[L / 16][4];
        keys.wait_full(turn);
        if (n <= own_end) {
            wgmma_fence();
            multiply_scores<T, ROOM, L>(score, shared.q[g], shared.k[turn.place]);
            wgmma_commit();
            wgmma_wait<0>();
        }
        if (speaks) keys.leave(turn);
        values.wait_full(turn);
        if (n <= own_end) {
            if (n == own_end) hide_later(score, last, n * L);
            scale_rows(out, row.weigh(score, log2_scale));
            round_pairs<T>(pairs, score);
            wgmma_fence();
            multiply_values<T, ROOM, L>(out, pairs, shared.v[turn.place]);
            wgmma_commit();
            wgmma_wait<0>();
        }
        if (speaks) values.leave(turn);
    }
    // ANCHOR_END: loop
    float inverse[2];
    row.finish(inverse, lse + 1ll * head * S, own, S);
    store_rows<false>(o, shared.q[g], out, inverse, row0, of_sequence, sequence, 1 + g);
    if (speaks) bulk_wait_read<0>();
}
