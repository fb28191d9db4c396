// dq, dk and dv of heads with up to 256 keys and 512 values, from C and its gradient at every border between stretches.
// No walk: all stretches of all heads at once.
//
// Work split: a work is 128 positions of a stretch and 256 columns of one of the three. So there are heads × stretches × (dq,
// dk, each 256 columns of dv) × 2 halves of a stretch. A block makes one after the other. Two warpgroups have 64 of the
// positions each. Of a third, a thread asks for the states and tiles, and one for each warpgroup for its rows of x: they go on
// to the next work while the warpgroups end this one.
#include "lab/ptx/dynamic_shared.cuh"
#include "wide.cuh"

using namespace lab;

template <class T, bool THROUGH_N> constexpr int vlstm_wide_gradients_shared = sizeof(WideTiles<T>);

// The tensors of one of the three, and the state at one end of a stretch: where it is in memory, and whether it is there.
struct WideTensors {
    const TensorMap &x, &y, &z, &other, &to, &states;
    const Weights* weights;
    float* dots;
};
struct StateAtBorder {
    const float *scales, *n;
    int slot;
    bool is_there;
};

// Roles: what one does of each work.
template <class Turn> struct Make {
    int group;
    Turn& turn;

    template <class Gradient>
    __device__ __forceinline__ void operator()(const Gradient& gradient, const WideTensors& of, int) const {
        // Rows of a chunk that is not there are made like the last one's, and go nowhere.
        int tile = 2 * gradient.half + group, at = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        const Weights& own = of.weights[gradient.begin + min(tile, gradient.tiles - 1)];
        float2 row[2] = {own.row[at], own.row[at + 8]};
        float out[2][HALF / 2] = {};
        gradient.read_state(out, group, own, turn);
        gradient.add_chunk_pairs_to_out(out, group, own, row, of.weights, turn);
        gradient.make_dots(out, group, of.dots, turn);
        if (tile < gradient.tiles) gradient.store(out, group, of.to);
    }
};
template <class Turn> struct BringUnits {
    Turn& turn;

    template <class Gradient>
    __device__ __forceinline__ void operator()(const Gradient& gradient, const WideTensors& of, int state) const {
        gradient.bring_units(of.y, of.z, of.other, of.states, state, of.weights, turn);
    }
};
struct BringRows {
    int group;

    template <class Gradient>
    __device__ __forceinline__ void operator()(const Gradient& gradient, const WideTensors& of, int) const {
        gradient.bring_rows(of.x, group);
    }
};

// The block's works, of what the kernel is given.
template <class T, bool THROUGH_N> struct WideWorks {
    using Tiles = WideTiles<T>;
    using Barriers = WideBarriers<Tiles::PLACES, Tiles::X_PLACES>;
    Tiles& shared;
    Barriers& barriers;
    const TensorMap &q, &k, &v, &dh, &dq, &dk, &dv, &C, &dC;
    const float *C_scales, *dC_scales;
    const Weights *forward, *reverse;
    const float *saved_n, *saved_dn, *n0, *dnN;
    float *q_dq, *k_dk;
    bool given, given_last;
    int heads, chunks, stretches, panels, keys, S, dhqk, dhhv;

    // ANCHOR: works
    // do_work(gradient, tensors, slot of the state) for each. Neighbours work at one stretch at a time; a block's place among
    // them moves on every second time, so that none has the long works alone.
    template <class Do> __device__ __forceinline__ void each(const Do& do_work) const {
        int of_stretch = 2 * (2 + (dhhv + WIDE - 1) / WIDE), works = heads * stretches * of_stretch;
        unsigned made = 0;
        for (int step = 0; step * int(gridDim.x) < works; ++step) {
            int work = step * gridDim.x + (blockIdx.x + step / 2) % gridDim.x, part = work % of_stretch;
            int stretch = work / of_stretch % stretches, tiles = min(ANCHOR_CHUNKS, chunks - stretch * ANCHOR_CHUNKS);
            int half = (part ^ part / 2 * (part >= 4)) % 2;  // of dv every second 256 columns begin with the other one
            if (work >= works || 2 * half >= tiles) continue;
            Sequence sequence(work / of_stretch / stretches, S);
            // The borders before and behind: inside, and in memory.
            int inside = sequence.index * (stretches - 1) + stretch;
            int before = inside - 1 + given * (sequence.index + 1), behind = inside + given_last * sequence.index;
            bool first = stretch == 0, last = stretch == stretches - 1;
            const float* n = first ? n0 + 1ll * sequence.index * dhqk : saved_n + (inside - 1ll) * keys;
            const float* dn = last ? dnN + 1ll * sequence.index * dhqk : saved_dn + 1ll * inside * keys;
            StateAtBorder at_begin{C_scales + 1ll * before * panels, n, before, !first || given};
            StateAtBorder at_end{dC_scales + 1ll * behind * panels, dn, behind, !last || given_last};
            const Weights *on = forward + 1ll * sequence.index * chunks, *back = reverse + 1ll * sequence.index * chunks;
            Work own{sequence, stretch * ANCHOR_CHUNKS, tiles, half, max(part - 4, 0) / 2 * WIDE, made++};
            if (part < 2)
                with<512, false, false>(do_work, own, {dh, v, k, q, dq, C, on, q_dq + sequence.row()}, at_begin);
            else if (part < 4)
                with<512, true, false>(do_work, own, {v, dh, q, k, dk, dC, back, k_dk + sequence.row()}, at_end);
            else
                with<256, true, true>(do_work, own, {k, q, dh, k, dv, dC, back, nullptr}, at_end);
        }
    }
    // ANCHOR_END: works

  private:
    struct Work {
        Sequence sequence;
        int begin, tiles, half, column;
        unsigned made;
    };
    template <int DX, bool BACK, bool BY_KEYS, class Do>
    __device__ __forceinline__ void with(const Do& do_work, const Work& own, const WideTensors& of,
                                         const StateAtBorder& state) const {
        do_work(WideGradient<T, DX, BACK, BY_KEYS, THROUGH_N>{shared, barriers, own.sequence, own.begin, own.tiles,
                                                              own.half, own.column, state.is_there, state.scales,
                                                              state.n, panels, dhqk, own.made % 2, own.made == 0},
                of, state.slot);
    }
};

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
                         bool given, bool given_last, int heads, int chunks, int stretches, int panels, int keys, int S, int dhqk,
                         int dhhv) {
    using Works = WideWorks<T, THROUGH_N>;
    DYNAMIC_TILES(unsigned char, memory);
    __shared__ typename Works::Barriers barriers;
    auto& shared = *reinterpret_cast<typename Works::Tiles*>(memory);
    // Where there is a state, there is n.
    Works works{shared, barriers, q, k, v, dh, dq, dk, dv, C, dC, C_scales, dC_scales, forward, reverse, saved_n,
                saved_dn, n0, dnN, q_dq, k_dk, given && THROUGH_N, given_last && THROUGH_N, heads, chunks, stretches,
                panels, keys, S, dhqk, dhhv};
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();  // nobody waits at a barrier that is not there

    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
    using Turn = lab::Turn<Works::Tiles::PLACES>;
    Turn turn;
    if (group < 2) {
        registers_increase<224>();
        works.each(Make<Turn>{group, turn});
        if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // shared memory is read until here
        return;
    }
    registers_decrease<56>();
    if (threadIdx.x % 32 > 0) return;
    if (warp == 0) works.each(BringUnits<Turn>{turn});
    else if (warp < 3) works.each(BringRows{warp - 1});
}
