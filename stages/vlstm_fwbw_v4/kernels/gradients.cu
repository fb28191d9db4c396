// dq, dk and dv, each in a walk of its own over the chunks of a head (gradient.cuh).
//
// Work split: a block has a head, one of the gradients, and some columns of it. The walks for dq and dk, whose x and y are
// as wide as V, have the shape WIDE, that for dv, whose are as wide as K, the shape KEYED. A grid of heads × blocks of a
// head; those for dq come first, then dk's and dv's. Of one gradient alone: heads × its blocks.
#include "lab/ptx/dynamic_shared.cuh"
#include "gradient.cuh"

using namespace lab;

// The shape of a walk whose x and y have up to COLUMNS columns.
template <class T, int COLUMNS> struct ShapeOf { using type = Shape<T, 128, 1, 2, 3>; };
template <class T> struct ShapeOf<T, 64> { using type = Shape<T, 64, 1, 1, 4>; };
template <class T> struct ShapeOf<T, 256> { using type = Shape<T, 128, 2, 1, 2>; };

template <class T, int DHQK, int DHHV> union GradientsShared {
    GradientShared<typename ShapeOf<T, DHQK>::type> keyed;
    GradientShared<typename ShapeOf<T, DHHV>::type> wide;
};
template <class T, int DHQK, int DHHV> constexpr int vlstm_gradients_shared = sizeof(GradientsShared<T, DHQK, DHHV>);

// One gradient of a head, from column `column` on. pass(state, group, c) gets the state before chunk c.
template <class W, Gradient OF, class Pass>
__device__ __forceinline__ void walk(void* memory, const TensorMap& x, const TensorMap& y, const TensorMap& z,
                                     const TensorMap& to, const TensorMap& other,
                                     const Weights* weights, float* dots, int heads, int head, int column, int S,
                                     Pass pass) {
    __shared__ Ring<W::PLACES> chunks;
    __shared__ Ring<2> pairs;
    __shared__ Ring<1> outs[W::COLUMNS], others[W::COLUMNS];
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
    GradientWalk<W, OF> walk{
        *static_cast<GradientShared<W>*>(memory), chunks, pairs, outs, others, head, column, S};
    if (threadIdx.x == 0) walk.init();
    __syncthreads();  // nobody waits at a barrier that is not there

    if (group < W::GROUPS) {
        registers_increase<W::STATE>();
        GradientState<W> state(group % W::PARTS);
        state.begin(nullptr, 0, 0, 0);
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
        if (panel >= 0 && panel < W::COLUMNS) walk.hand_on(panel, to, dots + 1ll * panel * heads * S);
    }
}

template <class T, int DHQK, int DHHV>
__global__ void __launch_bounds__(ShapeOf<T, DHQK>::type::THREADS, 1)
    vlstm_gradients(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dh,
                    const __grid_constant__ TensorMap dq, const __grid_constant__ TensorMap dk,
                    const __grid_constant__ TensorMap dv, const Weights* __restrict__ forward,
                    const Weights* __restrict__ reverse, const unsigned* __restrict__ saved,
                    float* __restrict__ q_dq, float* __restrict__ k_dk, float* __restrict__ products, int heads,
                    int anchors, int S, int dhqk, int dhhv, int only) {
    using Wide = typename ShapeOf<T, DHHV>::type;
    using Keyed = typename ShapeOf<T, DHQK>::type;
    static_assert(Wide::THREADS == Keyed::THREADS, "blocks of one launch");
    DYNAMIC_TILES(unsigned char, memory);
    int of_keys = (dhqk + Wide::WIDTH - 1) / Wide::WIDTH, of_values = (dhhv + Keyed::WIDTH - 1) / Keyed::WIDTH;
    int of_head = only < 0 ? 2 * of_keys + of_values : only < 2 ? of_keys : of_values;
    int head = blockIdx.x / of_head, block = blockIdx.x % of_head + (only > 0 ? only * of_keys : 0);
    int column = (block < 2 * of_keys ? block % of_keys : block - 2 * of_keys);
    auto dots = [&](float* all) {
        return all + (1ll * column * (Wide::WIDTH / PANEL) * heads + head) * S;
    };
    auto nothing = [](GradientState<Wide>&, int, int) {};
    if (block < of_keys)
        walk<Wide, Gradient::Q>(memory, dh, v, k, dq, q, forward, dots(q_dq), heads, head, column * Wide::WIDTH, S, nothing);
    else if (block < 2 * of_keys)
        walk<Wide, Gradient::K>(memory, v, dh, q, dk, k, reverse, dots(k_dk), heads, head, column * Wide::WIDTH, S, nothing);
    else
        walk<Keyed, Gradient::V>(
            memory, k, q, dh, dv, k, reverse, nullptr, heads, head, column * Keyed::WIDTH, S,
            [&](GradientState<Keyed>& state, int group, int c) {
                if (c == 0 || c % ANCHOR_CHUNKS != 0) return;
                long long panel = (1ll * head * anchors + c / ANCHOR_CHUNKS - 1) * of_values * Keyed::COLUMNS +
                                  column * Keyed::COLUMNS + group;
                float sum = warp_reduce(state.inner_product(saved + panel * state.SAVED), Add());
                if (threadIdx.x % 32 == 0) products[panel * 4 + threadIdx.x / 32 % 4] = sum;
            });
}
