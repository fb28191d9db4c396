// dq, dk and dv of heads with up to 256 keys and 512 values, from C and its gradient at every border between stretches.
// No walk: all stretches of all heads at once.
//
// Work split: a block has 128 positions of a stretch and 256 columns of one of the three. Two warpgroups have 64 of the
// positions each, a thread of a third asks for tiles. A grid of heads × stretches × (dq, dk, each 256 columns of dv) × 2
// halves of a stretch.
#include "lab/ptx/dynamic_shared.cuh"
#include "wide.cuh"

using namespace lab;

template <class T> union WideShared {
    WideTiles<T, 512> by_values;
    WideTiles<T, 256> by_keys;
};
template <class T> constexpr int vlstm_wide_gradients_shared = sizeof(WideShared<T>);

// The tensors of one of the three.
struct WideTensors { const TensorMap &x, &y, &z, &other, &to, &states; };

template <class T, int DX, bool BACK, bool BY_KEYS>
__device__ __forceinline__ void make(void* memory, const WideTensors& of, const Weights* weights, float* dots,
                                     const Sequence& sequence, int stretch, int half, int column, int state,
                                     bool has_state) {
    using Gradient = WideGradient<T, DX, BACK, BY_KEYS>;
    __shared__ WideBarriers<Gradient::PLACES, Gradient::PANELS> barriers;
    int begin = stretch * ANCHOR_CHUNKS, group = threadIdx.x / 128;
    int tiles = min(ANCHOR_CHUNKS, (sequence.length - begin * CHUNK + CHUNK - 1) / CHUNK);
    if (2 * half >= tiles) return;
    Gradient gradient{*static_cast<typename Gradient::Tiles*>(memory), barriers, sequence, begin, tiles, half, column,
                      has_state};
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();  // nobody waits at a barrier that is not there

    if (group == 2) {
        registers_decrease<24>();
        if (threadIdx.x % 128 == 0) gradient.bring(of.x, of.y, of.z, of.other, of.states, state, weights);
        return;
    }
    registers_increase<240>();
    // Rows of a chunk that is not there are made like the last one's, and go nowhere.
    bool is_there = 2 * half + group < tiles;
    const Weights& own = weights[begin + min(2 * half + group, tiles - 1)];
    float out[2][Gradient::HALF / 2] = {};
    Turn<Gradient::PLACES> turn;
    gradient.read_state(out, group, own.read, turn);
    gradient.add_pairs(out, group, own.row, turn);
    if (Gradient::DOTS && is_there) gradient.multiply_rows(out, group, dots + sequence.row(), turn);
    if (is_there) gradient.store(out, group, of.to);
}

// forward, reverse [head][chunk]: weights of stretches. C, dC [head, border][columns of V][256]. q_dq, k_dk [head][S].
template <class T>
__global__ void __launch_bounds__(3 * 128, 1)
    vlstm_wide_gradients(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                         const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dh,
                         const __grid_constant__ TensorMap dq, const __grid_constant__ TensorMap dk,
                         const __grid_constant__ TensorMap dv, const __grid_constant__ TensorMap C,
                         const __grid_constant__ TensorMap dC, const Weights* __restrict__ forward,
                         const Weights* __restrict__ reverse, float* __restrict__ q_dq, float* __restrict__ k_dk,
                         int chunks, int stretches, int S, int dhhv) {
    DYNAMIC_TILES(unsigned char, memory);
    int each = 2 * (2 + (dhhv + WIDE - 1) / WIDE), part = blockIdx.x % each, stretch = blockIdx.x / each % stretches;
    Sequence sequence(blockIdx.x / each / stretches, S);
    // The borders before and behind, among those inside.
    int before = sequence.index * (stretches - 1) + stretch - 1;
    bool first = stretch == 0, last = stretch == stretches - 1;
    forward += 1ll * sequence.index * chunks, reverse += 1ll * sequence.index * chunks;
    if (part < 2)
        make<T, 512, false, false>(memory, {dh, v, k, q, dq, C}, forward, q_dq, sequence, stretch, part, 0, before,
                                   !first);
    else if (part < 4)
        make<T, 512, true, false>(memory, {v, dh, q, k, dk, dC}, reverse, k_dk, sequence, stretch, part - 2, 0,
                                  before + 1, !last);
    else
        make<T, 256, true, true>(memory, {k, q, dh, k, dv, dC}, reverse, nullptr, sequence, stretch, part % 2,
                                 (part - 4) / 2 * WIDE, before + 1, !last);
}
