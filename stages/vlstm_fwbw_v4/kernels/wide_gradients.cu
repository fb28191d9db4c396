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
template <class T, bool THROUGH_N> constexpr int vlstm_wide_gradients_shared = sizeof(WideShared<T>);

// The tensors of one of the three, and the state at one end of a stretch: where it is in memory, and whether it is there.
struct WideTensors { const TensorMap &x, &y, &z, &other, &to, &states; };
struct StateAtBorder {
    const float *scales, *n;
    int panels, slot;
    bool is_there;
};

template <class T, int DX, bool BACK, bool BY_KEYS, bool THROUGH_N>
__device__ __forceinline__ void make(void* memory, const WideTensors& of, const Weights* weights, float* dots,
                                     const Sequence& sequence, int stretch, int half, int column, int keys,
                                     const StateAtBorder& state) {
    using Gradient = WideGradient<T, DX, BACK, BY_KEYS, THROUGH_N>;
    __shared__ WideBarriers<Gradient::PLACES, Gradient::PANELS> barriers;
    int begin = stretch * ANCHOR_CHUNKS, group = threadIdx.x / 128;
    int tiles = min(ANCHOR_CHUNKS, (sequence.length - begin * CHUNK + CHUNK - 1) / CHUNK);
    if (2 * half >= tiles) return;
    Gradient gradient{*static_cast<typename Gradient::Tiles*>(memory), barriers, sequence, begin, tiles, half, column,
                      state.is_there, state.scales, state.n, state.panels, keys};
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();  // nobody waits at a barrier that is not there

    if (group == 2) {
        registers_decrease<24>();
        if (threadIdx.x % 128 == 0) gradient.bring(of.x, of.y, of.z, of.other, of.states, state.slot, weights);
        return;
    }
    registers_increase<240>();
    // Rows of a chunk that is not there are made like the last one's, and go nowhere.
    bool is_there = 2 * half + group < tiles;
    const Weights& own = weights[begin + min(2 * half + group, tiles - 1)];
    float out[2][Gradient::HALF / 2] = {};
    Turn<Gradient::PLACES> turn;
    gradient.read_state(out, group, own, turn);
    gradient.add_chunk_pairs_to_out(out, group, own, weights, turn);
    if (Gradient::DOTS && is_there) gradient.multiply_rows(out, group, dots + sequence.row(), turn);
    if (is_there) gradient.store(out, group, of.to);
}

// THROUGH_N: n and its gradient go with the states, as an exact gradient wants it, and one of a state that goes in.
// forward, reverse [head][chunk]: weights of stretches. C, dC and their scales: as vlstm_wide_states leaves them, of values in
// `panels` 64s. saved_n, saved_dn [head][border between stretches][keys], n0, dnN [head][dhqk]. q_dq, k_dk [head][S].
template <class T, bool THROUGH_N>
__global__ void __launch_bounds__(3 * 128, 1)
    vlstm_wide_gradients(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                         const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dh,
                         const __grid_constant__ TensorMap dq, const __grid_constant__ TensorMap dk,
                         const __grid_constant__ TensorMap dv, const __grid_constant__ TensorMap C,
                         const __grid_constant__ TensorMap dC, const float* __restrict__ C_scales,
                         const float* __restrict__ dC_scales, const Weights* __restrict__ forward,
                         const Weights* __restrict__ reverse, const float* __restrict__ saved_n,
                         const float* __restrict__ saved_dn, const float* __restrict__ n0,
                         const float* __restrict__ dnN, float* __restrict__ q_dq, float* __restrict__ k_dk,
                         bool given, bool given_last, int chunks, int stretches, int panels, int keys, int S, int dhqk,
                         int dhhv) {
    DYNAMIC_TILES(unsigned char, memory);
    int each = 2 * (2 + (dhhv + WIDE - 1) / WIDE), part = blockIdx.x % each, stretch = blockIdx.x / each % stretches;
    Sequence sequence(blockIdx.x / each / stretches, S);
    forward += 1ll * sequence.index * chunks, reverse += 1ll * sequence.index * chunks;
    given = given && THROUGH_N, given_last = given_last && THROUGH_N;  // where there is a state, there is n
    // The borders before and behind: inside, and in memory.
    int inside = sequence.index * (stretches - 1) + stretch;
    int before = inside - 1 + given * (sequence.index + 1), behind = inside + given_last * sequence.index;
    bool first = stretch == 0, last = stretch == stretches - 1;
    const float* n = first ? n0 + 1ll * sequence.index * dhqk : saved_n + (inside - 1ll) * keys;
    const float* dn = last ? dnN + 1ll * sequence.index * dhqk : saved_dn + 1ll * inside * keys;
    StateAtBorder at_begin{C_scales + 1ll * before * panels, n, panels, before, !first || given};
    StateAtBorder at_end{dC_scales + 1ll * behind * panels, dn, panels, behind, !last || given_last};
    if (part < 2)
        make<T, 512, false, false, THROUGH_N>(memory, {dh, v, k, q, dq, C}, forward, q_dq, sequence, stretch, part, 0,
                                              dhqk, at_begin);
    else if (part < 4)
        make<T, 512, true, false, THROUGH_N>(memory, {v, dh, q, k, dk, dC}, reverse, k_dk, sequence, stretch, part - 2,
                                             0, dhqk, at_end);
    else
        make<T, 256, true, true, THROUGH_N>(memory, {k, q, dh, k, dv, dC}, reverse, nullptr, sequence, stretch,
                                            part % 2, (part - 4) / 2 * WIDE, dhqk, at_end);
}
