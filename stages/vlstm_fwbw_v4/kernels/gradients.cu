// dq, dk and dv, each in a walk of its own over the chunks of a head, or of a segment of one (gradient.cuh).
//
// Work split: a block has a segment of a head, one of the gradients, and some columns of it. The walks for dq and dk,
// whose x and y are as wide as V, have the shape WIDE, that for dv, whose are as wide as K, the shape KEYED. A grid of
// heads × segments × blocks of a segment: those for dq, dk's and dv's, or those of one gradient only.
#include "lab/ptx/dynamic_shared.cuh"
#include "shapes.cuh"

using namespace lab;

template <class T, int DHQK, int DHHV> union GradientsShared {
    GradientShared<typename ShapeOf<T, DHQK>::type> keyed;
    GradientShared<typename ShapeOf<T, DHHV>::type> wide;
};
template <class T, int DHQK, int DHHV> constexpr int vlstm_gradients_shared = sizeof(GradientsShared<T, DHQK, DHHV>);

// One gradient of a segment, from column own.column × W::WIDTH on. begin(state, group) makes the state that the walk begins
// with of nothing; pass(state, group, c) gets it as it is before chunk c.
template <class W, Gradient OF, class Begin, class Pass>
__device__ __forceinline__ void walk(void* memory, const TensorMap& x, const TensorMap& y, const TensorMap& z,
                                     const TensorMap& to, const TensorMap& other, const Weights* weights, float* dots,
                                     int heads, const Segment& own, int S, Begin begin, Pass pass) {
    __shared__ Ring<W::PLACES> chunks;
    __shared__ Ring<2> pairs;
    __shared__ Ring<1> outs[W::COLUMNS], others[W::COLUMNS];
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
    GradientWalk<W, OF> walk{*static_cast<GradientShared<W>*>(memory), chunks, pairs, outs, others,
                             own.head, own.column * W::WIDTH, own.from, own.to, S};
    if (threadIdx.x == 0) walk.init();
    __syncthreads();  // nobody waits at a barrier that is not there

    if (group < W::GROUPS) {
        registers_increase<W::STATE>();
        GradientState<W> state(group % W::PARTS);
        state.begin(nullptr, 0, 0, 0);
        begin(state, group);
        walk.hold(state, group, [&](int c) { pass(state, group, c); });
    } else if (group == W::GROUPS) {
        registers_decrease<W::SCORES>();
        walk.make_pairs();
    } else {
        registers_decrease<W::SCAN>();
        bool one = threadIdx.x % 32 == 0;
        if (warp == 0 && one) walk.bring(x, y, z, weights);
        if (warp == 3 && one && walk.DOTS) walk.bring_others(other);
        int panel = warp - 1;
        dots += ((1ll * own.column * W::COLUMNS + panel) * heads + own.head) * S;
        if (panel >= 0 && panel < W::COLUMNS) walk.hand_on(panel, to, dots);
    }
}

// What the segments behind one add to the state's gradient: join(part, Π γ) of each, the last first.
struct Later {
    const float *parts, *kept;
    int segments, size;

    template <class Join> __device__ __forceinline__ void each(const Segment& own, Join join) const {
        for (int p = segments - 2; p >= own.index; --p) {
            long long part = 1ll * own.head * (segments - 1) + p;
            join(parts + part * size, kept[part]);
        }
    }
};

// saved: the state at anchors, as Anchors of the forward pass. parts, kept: as vlstm_gradient_parts leaves them.
// q_dq, k_dk [64 columns of Q][heads][S]: dots. products [anchor as in saved][warp]: <C, dC>.
template <class T, int DHQK, int DHHV>
__global__ void __launch_bounds__(ShapeOf<T, DHQK>::type::THREADS, 1)
    vlstm_gradients(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dh,
                    const __grid_constant__ TensorMap dq, const __grid_constant__ TensorMap dk,
                    const __grid_constant__ TensorMap dv, const Weights* __restrict__ forward,
                    const Weights* __restrict__ reverse, unsigned* __restrict__ saved,
                    const float* __restrict__ parts, const float* __restrict__ kept, float* __restrict__ q_dq,
                    float* __restrict__ k_dk, float* __restrict__ products, int heads, int anchors, int S, int dhqk,
                    int dhhv, int segments, int chunks_each, int only) {
    using Wide = typename ShapeOf<T, DHHV>::type;
    using Keyed = typename ShapeOf<T, DHQK>::type;
    using Saved = State<T, Keyed::KEY>;
    static_assert(Wide::THREADS == Keyed::THREADS, "blocks of one launch");
    DYNAMIC_TILES(unsigned char, memory);
    int of_keys = (dhqk + Wide::WIDTH - 1) / Wide::WIDTH, of_values = (dhhv + Keyed::WIDTH - 1) / Keyed::WIDTH;
    Segment own(only < 0 ? 2 * of_keys + of_values : only < 2 ? of_keys : of_values, segments, chunks_each, S);
    int gradient = only >= 0 ? only : min(own.column / of_keys, 2);
    if (only < 0) own.column -= gradient * of_keys;
    int panels = of_values * Keyed::COLUMNS, key = own.column * Wide::WIDTH;
    Anchors at_anchors{saved, anchors, panels};
    Later later{parts, kept, segments, panels * Saved::PART};

    if (gradient == 0)
        walk<Wide, Gradient::Q>(
            memory, dh, v, k, dq, q, forward, q_dq, heads, own, S,
            [&](GradientState<Wide>& state, int group) {
                if (own.from == 0) return;
                const unsigned* from = at_anchors.at(own.head, own.from * CHUNK, 0, Saved::SAVED);
                state.template begin_transposed<Saved::SAVED>(from, key + group / Wide::PARTS * PANEL);
            },
            [](GradientState<Wide>&, int, int) {});
    else if (gradient == 1)
        walk<Wide, Gradient::K>(
            memory, v, dh, q, dk, k, reverse, k_dk, heads, own, S,
            [&](GradientState<Wide>& state, int group) {
                later.each(own, [&](const float* part, float by) {
                    state.template join_transposed<Saved::PART>(part, by, key + group / Wide::PARTS * PANEL);
                });
            },
            [](GradientState<Wide>&, int, int) {});
    else
        walk<Keyed, Gradient::V>(
            memory, k, q, dh, dv, k, reverse, nullptr, heads, own, S,
            [&](GradientState<Keyed>& state, int group) {
                later.each(own, [&](const float* part, float by) {
                    state.join(part + (own.column * Keyed::COLUMNS + group) * Saved::PART, by, 1);
                });
            },
            [&](GradientState<Keyed>& state, int group, int c) {
                int panel = own.column * Keyed::COLUMNS + group;
                if (!at_anchors.has(c * CHUNK)) return;
                const unsigned* from = at_anchors.at(own.head, c * CHUNK, panel, Saved::SAVED);
                float sum = warp_reduce(state.inner_product(from), Add());
                if (threadIdx.x % 32 == 0)
                    products[at_anchors.index(own.head, c * CHUNK, panel) * 4 + threadIdx.x / 32 % 4] = sum;
            });
}
