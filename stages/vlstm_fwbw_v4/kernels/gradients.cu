// dq, dk and dv, each in a walk of its own over the chunks of a head, or of a segment of one (gradient.cuh).
//
// Work split: a block has a segment of a head, one of the gradients, and some columns of it. The walks for dq and dk,
// whose x and y are as wide as V, have the shape WIDE, that for dv, whose are as wide as K, the shape KEYED. A grid of
// heads × segments × blocks of a segment: those for dq, dk's and dv's, or those of one gradient only.
#include "lab/ptx/dynamic_shared.cuh"
#include "shapes.cuh"

using namespace lab;

template <class T, int DHQK, int DHHV> struct Shapes {
    static constexpr bool FOUR = DHQK > 64 || DHHV > 64;  // warpgroups
    using Keyed = typename ShapeOf<T, DHQK, FOUR>::type;
    using Wide = typename ShapeOf<T, DHHV, FOUR>::type;
};
template <class T, int DHQK, int DHHV> union GradientsShared {
    GradientShared<typename Shapes<T, DHQK, DHHV>::Keyed> keyed;
    GradientShared<typename Shapes<T, DHQK, DHHV>::Wide> wide;
};
template <class T, int DHQK, int DHHV, bool THROUGH_N, class NORMALIZER = MaxExp>
constexpr int vlstm_gradients_shared = sizeof(GradientsShared<T, DHQK, DHHV>);

// One gradient of a segment, from column own.column × W::WIDTH on. begin(state, group) makes the state that the walk begins
// with; pass(state, group, c) gets it as it is before chunk c; end(state, group) what it is in the end.
template <class W, Gradient OF, bool THROUGH_N, class Begin, class Pass, class End>
__device__ __forceinline__ void walk(void* memory, const TensorMap& x, const TensorMap& y, const TensorMap& z,
                                     const TensorMap& to, const TensorMap& other, const Weights* weights, float* dots,
                                     long long positions, const Segment& own, int sharing, Begin begin, Pass pass, End end) {
    __shared__ Ring<W::PLACES> places;
    __shared__ Ring<2> pairs;
    __shared__ Ring<1> outs[W::COLUMNS], others[W::COLUMNS];
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
    GradientWalk<W, OF, THROUGH_N> walk{*static_cast<GradientShared<W>*>(memory), places, pairs, outs, others,
                             own.sequence, own.column * W::WIDTH, own.from, own.to, sharing};
    if (threadIdx.x == 0) walk.init();
    __syncthreads();  // nobody waits at a barrier that is not there

    if (group < W::GROUPS) {
        registers_increase<W::STATE>();
        GradientState<W> state(group % W::PARTS);
        begin(state, group);
        walk.hold(state, group, [&](int c) { pass(state, group, c); });
        end(state, group);
    } else if (group == W::GROUPS) {
        registers_decrease<W::SCORES>();
        walk.make_pairs();
    } else {
        registers_decrease<W::SCAN>();
        bool one = threadIdx.x % 32 == 0;
        if (warp == 0 && one) walk.bring(x, y, z, weights);
        if (warp == 3 && one && walk.DOTS) walk.bring_others(other);
        int panel = warp - 1;
        dots += (own.column * W::COLUMNS + panel) * positions + own.sequence.row();
        if (panel >= 0 && panel < W::COLUMNS) walk.hand_on(panel, to, dots);
    }
}

// What the segments behind one add to the gradient of its last state: join(part, Π γ) of each, the last first.
struct Later {
    const float* gammas;
    int segments;

    template <class Join> __device__ __forceinline__ void each(const Segment& own, Join join) const {
        for (int p = segments - 2; p >= own.index; --p) {
            long long part = 1ll * own.sequence.index * (segments - 1) + p;
            join(part, gammas[part]);
        }
    }
};

// Which block this is, of `blocks` in units of `columns`, where the first `wide` of a unit take longest: of the last `late` units
// those of all units come first. Who is short comes last, and nobody ends long after the others.
__device__ __forceinline__ int short_ones_last(int block, int blocks, int columns, int wide, int late) {
    int units = blocks / columns, begin = max(units - late, 0), at = block - begin * columns;
    if (at < 0) return block;
    int longs = (units - begin) * wide, narrow = columns - wide, rest = at - longs;
    int unit = rest < 0 ? at / wide : rest / narrow, column = rest < 0 ? at % wide : wide + rest % narrow;
    return (begin + unit) * columns + column;
}

// THROUGH_N: n and its gradient go with the states, as an exact gradient wants it, and one of a state that goes in.
// saved, saved_n: the states at anchors, as Anchors of the forward pass. parts, n_parts, gammas: as vlstm_gradient_parts
// leaves them. q_dq, k_dk [64 columns of Q][heads][S]: dots. saved_dn as saved_n. products [head][first state, anchors, last
// state][64 columns of V][warp]: <C, dC>; of packed sequences [head][sequence][the same]. chunks: those that a head has room for.
// Without a normaliser (lab/vlstm/policy.cuh) `sharing` heads of V may have the same Q and K; dq and dk are of each.
template <class T, int DHQK, int DHHV, bool THROUGH_N, class NORMALIZER = MaxExp>
__global__ void __launch_bounds__(Shapes<T, DHQK, DHHV>::Keyed::THREADS, 1)
    vlstm_gradients(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dh,
                    const __grid_constant__ TensorMap dq, const __grid_constant__ TensorMap dk,
                    const __grid_constant__ TensorMap dv, const Weights* __restrict__ forward,
                    const Weights* __restrict__ reverse, const unsigned* __restrict__ saved,
                    const float* __restrict__ saved_n, const float* __restrict__ parts, const float* __restrict__ n_parts,
                    const float* __restrict__ gammas, float* __restrict__ q_dq, float* __restrict__ k_dk,
                    float* __restrict__ saved_dn, float* __restrict__ products, const float* __restrict__ C0,
                    const float* __restrict__ n0, const float* __restrict__ CN, const float* __restrict__ dCN,
                    const float* __restrict__ dnN, float* __restrict__ dC0, float* __restrict__ dn0,
                    const int* __restrict__ cu_seqlens, bool packed, bool given, bool given_last, bool wanted, int heads,
                    int sequences, int chunks, int anchors, int S, int dhqk, int dhhv, int segments, int chunks_each,
                    int only, int late, int sharing) {
    using Wide = typename Shapes<T, DHQK, DHHV>::Wide;
    using Keyed = typename Shapes<T, DHQK, DHHV>::Keyed;
    using Saved = State<T, Keyed::KEY>;
    static_assert(Wide::THREADS == Keyed::THREADS, "blocks of one launch");
    DYNAMIC_TILES(unsigned char, memory);
    int of_keys = (dhqk + Wide::WIDTH - 1) / Wide::WIDTH, of_values = (dhhv + Keyed::WIDTH - 1) / Keyed::WIDTH;
    int columns = only < 0 ? 2 * of_keys + of_values : only < 2 ? of_keys : of_values;
    Segment own(short_ones_last(blockIdx.x, gridDim.x, columns, 2 * of_keys, late), columns, segments, chunks_each, S, packed ? cu_seqlens : nullptr, heads);
    const Sequence& sequence = own.sequence;
    int gradient = only >= 0 ? only : min(own.column / of_keys, 2);
    if (only < 0) own.column -= gradient * of_keys;
    int panels = of_values * Keyed::COLUMNS, key = own.column * Wide::WIDTH;
    long long n_at = 1ll * sequence.index * dhqk, C_at = n_at * dhhv, positions = 1ll * heads * S;
    Anchors at_anchors(sequence, anchors, panels, const_cast<unsigned*>(saved), nullptr, nullptr);  // read
    forward += sequence.slot(CHUNK, chunks), reverse += sequence.slot(CHUNK, chunks);
    Later later{gammas, segments};
    bool first = own.from == 0, last = own.to * CHUNK >= sequence.length;
    constexpr bool STATES = THROUGH_N || !NORMALIZER::DIVIDES;
    given = given && STATES, given_last = given_last && STATES;  // where there is a state, there is n
    if (NORMALIZER::DIVIDES) sharing = 1;

    // The state that a walk begins with, what it leaves on its way, and in the end; for dq and dk from column `column` of the keys on.
    auto column_of = [&](int group) { return key + group / Wide::PARTS * PANEL; };
    auto begin_q = [&](GradientState<Wide>& state, int group) {
        int column = column_of(group);
        state.template begin<true>(given && first ? C0 + C_at : nullptr, column, dhhv, dhqk);
        if (THROUGH_N && given && first) state.n.join(n0 + n_at, 0, column, dhqk);
        if (first) return;
        const unsigned* from = at_anchors.at(own.from * CHUNK, 0, Saved::SAVED);
        state.template begin_transposed<Saved::SAVED>(from, column);
        if (THROUGH_N) state.n.join(saved_n + at_anchors.index(own.from * CHUNK) * DHQK, 0, column, dhqk);
    };
    auto begin_k = [&](GradientState<Wide>& state, int group) {
        int column = column_of(group);
        state.template begin<true>(given_last ? dCN + C_at : nullptr, column, dhhv, dhqk);
        if (THROUGH_N && given_last) state.n.join(dnN + n_at, 0, column, dhqk);
        later.each(own, [&](long long part, float by) {
            const float* of_part = parts + part * panels * Saved::PART;
            state.template join_transposed<Saved::PART>(of_part, by, column);
            if (THROUGH_N) state.n.join(n_parts + part * DHQK, by, column, dhqk);
        });
    };
    // What the gradient of the first state is counted in; in ones of a sequence of none.
    auto first_unit = [&] { return sequence.length > 0 ? reverse[0].unit : 1; };
    auto save_dn = [&](GradientState<Wide>& state, int group, int c) {
        if (!THROUGH_N || !state.is_first_part() || !at_anchors.has(c * CHUNK)) return;
        if constexpr (is_f16<T>) {
            NormaliserState n = state.n;
            n.multiply(reverse[c].unit);
            n.store(saved_dn + at_anchors.index(c * CHUNK) * DHQK, column_of(group), dhqk);
        } else {
            state.n.store(saved_dn + at_anchors.index(c * CHUNK) * DHQK, column_of(group), dhqk);
        }
    };
    auto end_k = [&](GradientState<Wide>& state, int group) {
        if (!THROUGH_N) return;
        if constexpr (is_f16<T>) if (given && first) state.n.multiply(first_unit());
        if (given && first && state.is_first_part()) state.n.store(dn0 + n_at, column_of(group), dhqk);
    };
    // Likewise for dv, from a panel of the values on. <C, dC> at a border between stretches: the thread's share is `sum`.
    auto panel_of = [&](int group) { return own.column * Keyed::COLUMNS + group; };
    auto store_product = [&](float sum, int border, int panel) {
        sum = warp_reduce(sum, Add());
        long long at = (sequence.borders(anchors, sequences) + border) * panels + panel;
        if (threadIdx.x % 32 == 0) products[at * 4 + threadIdx.x / 32 % 4] = sum;
    };
    auto begin_v = [&](GradientState<Keyed>& state, int group) {
        int panel = panel_of(group), column = panel * PANEL;
        state.begin(given_last ? dCN + C_at : nullptr, column, dhqk, dhhv);
        if (given_last && last)
            store_product(state.inner_product(CN + C_at, column, dhqk, dhhv), sequence.stretches(), panel);
        later.each(own, [&](long long part, float by) {
            state.join(parts + (part * panels + panel) * Saved::PART, by, 1);
        });
    };
    auto multiply_saved = [&](GradientState<Keyed>& state, int group, int c) {
        int panel = panel_of(group);
        if (!at_anchors.has(c * CHUNK)) return;
        const unsigned* from = at_anchors.at(c * CHUNK, panel, Saved::SAVED);
        float product = state.inner_product(from);
        if constexpr (is_f16<T>) product *= reverse[c].unit;
        store_product(product, c / ANCHOR_CHUNKS, panel);
    };
    auto end_v = [&](GradientState<Keyed>& state, int group) {
        int panel = panel_of(group), column = panel * PANEL;
        if (!given || !first) return;
        if constexpr (is_f16<T>) state.multiply(first_unit());
        store_product(state.inner_product(C0 + C_at, column, dhqk, dhhv), 0, panel);
        if (wanted) state.end(dC0 + C_at, column, dhqk, dhhv);
    };

    if (gradient == 0)
        walk<Wide, Gradient::Q, THROUGH_N>(memory, dh, v, k, dq, q, forward, q_dq, positions, own, sharing, begin_q,
                                           [](GradientState<Wide>&, int, int) {}, [](GradientState<Wide>&, int) {});
    else if (gradient == 1)
        walk<Wide, Gradient::K, THROUGH_N>(memory, v, dh, q, dk, k, reverse, k_dk, positions, own, sharing, begin_k, save_dn,
                                           end_k);
    else
        walk<Keyed, Gradient::V, THROUGH_N>(memory, k, q, dh, dv, k, reverse, nullptr, positions, own, sharing, begin_v,
                                            multiply_saved, end_v);
}
