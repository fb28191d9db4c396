// What each segment of a head but the first adds to the gradients of the state before it, C and n: a walk back from
// nothing, for these alone.
//
// Work split: a block has a segment of a head, and columns of dh.
#include "lab/ptx/dynamic_shared.cuh"
#include "shapes.cuh"

using namespace lab;

template <class T, int DHQK, bool THROUGH_N>
constexpr int vlstm_gradient_parts_shared = sizeof(GradientShared<typename ShapeOf<T, DHQK>::type>);

// parts [head][segment but the first][64 columns of V], as accumulators lie; n_parts [head][segment but the first][DHQK];
// gammas [head][segment but the first]: Π γ.
template <class T, int DHQK, bool THROUGH_N>
__global__ void __launch_bounds__(ShapeOf<T, DHQK>::type::THREADS, 1)
    vlstm_gradient_parts(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap dh,
                         const Weights* __restrict__ reverse, float* __restrict__ parts, float* __restrict__ n_parts,
                         float* __restrict__ gammas, int chunks, int S, int dhhv, int segments, int chunks_each) {
    using W = typename ShapeOf<T, DHQK>::type;
    DYNAMIC_TILES(unsigned char, memory);
    __shared__ Ring<W::PLACES> places;
    __shared__ Ring<2> pairs;
    __shared__ Ring<1> outs[W::COLUMNS], others[W::COLUMNS];
    Segment own(blockIdx.x, (dhhv + W::WIDTH - 1) / W::WIDTH, segments - 1, chunks_each, S);
    int slices = (dhhv + W::WIDTH - 1) / W::WIDTH, group = threadIdx.x / 128;
    long long part = 1ll * own.sequence.index * (segments - 1) + own.index;
    own.from += chunks_each, own.to = min((S + CHUNK - 1) / CHUNK, own.from + chunks_each);
    GradientWalk<W, Gradient::V, THROUGH_N> walk{*reinterpret_cast<GradientShared<W>*>(memory), places, pairs, outs, others,
                                      own.sequence, own.column * W::WIDTH, own.from, own.to};
    if (threadIdx.x == 0) walk.init();
    __syncthreads();  // nobody waits at a barrier that is not there

    if (group < W::GROUPS) {
        registers_increase<W::STATE>();
        GradientState<W> state;
        state.begin(nullptr, 0, 0, 0);
        float all = walk.gather(state, group);
        state.store_part(parts + ((part * slices + own.column) * W::COLUMNS + group) * state.PART);
        if (own.column == 0 && threadIdx.x == 0) gammas[part] = all;
    } else if (group == W::GROUPS) {
        registers_decrease<W::SCORES>();
        float sum = walk.gather_normaliser();
        int key = threadIdx.x % 128;
        if (THROUGH_N && own.column == 0 && key < DHQK) n_parts[part * DHQK + key] = sum;
    } else {
        registers_decrease<W::SCAN>();
        if (threadIdx.x % 128 == 0) walk.template bring<false>(q, q, dh, reverse + own.sequence.slot(CHUNK, chunks));
    }
}
