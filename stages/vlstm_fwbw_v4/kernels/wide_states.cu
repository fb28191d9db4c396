// C, or its gradient, at every border between two stretches, of heads with up to 256 keys: a walk for the state alone.
//
//   C ← γ C + Σ_j α_j k_j v_jᵀ                  from the first chunk on
//   dC ← γ dC + Σ_j (s β_j / N_j) q_j dh_jᵀ     from the last one back
//
// Work split: a block walks a head for 64 GROUPS columns of V. A warpgroup holds all keys of 64 of them, transposed, as
// accumulators. Of one more, a thread asks for tiles, and a thread for each of the others takes that one's state to device
// memory. Who walks back also multiplies with the C that the other walk has left.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/bulk.cuh"
#include "lab/ring.cuh"
#include "lab/vlstm/roles.cuh"
#include "weights.cuh"

using namespace lab;

// What a chunk brings.
template <class T, int KEY, int GROUPS> struct alignas(1024) StatePlace {
    static constexpr int PANELS = KEY / PANEL, K_ROWS = CHUNK;
    static constexpr int BYTES = (PANELS + GROUPS) * CHUNK * SPAN + sizeof(Weights);
    T k[PANELS][CHUNK * PANEL], v[GROUPS][CHUNK * PANEL];
    Weights weights;
};

// `rounded` has the states on their way to device memory, rows of keys; before that, those that they are multiplied by.
template <class T, int KEY, int GROUPS> struct StatesShared {
    static constexpr int PLACES = 3;
    StatePlace<T, KEY, GROUPS> places[PLACES];
    T rounded[GROUPS][KEY / PANEL][CHUNK * PANEL];
};
template <class T, int KEY, int GROUPS, bool BACK>
constexpr int vlstm_wide_states_shared = sizeof(StatesShared<T, KEY, GROUPS>);

template <class T, int KEY> struct RoundedState : State<T, KEY> {
    using Base = State<T, KEY>;
    using Base::c, Base::key_of, Base::value_of;

    // ANCHOR: wide_save
    // C, rounded, in place of what the panels hold. If MULTIPLIES, the thread's share of the inner product of the two.
    template <bool MULTIPLIES> __device__ __forceinline__ float replace(T (&panels)[KEY / PANEL][CHUNK * PANEL]) const {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 2) {
            int key = key_of(n);
            auto* at = reinterpret_cast<unsigned*>(cell(panels[n / 32], value_of(n), key % PANEL));
            if constexpr (MULTIPLIES) {
                float2 two = floats_of<T>(*at);
                sum += c[n] * two.x + c[n + 1] * two.y;
            }
            *at = two_halves<T>(c[n], c[n + 1]);
        }
        return sum;
    }
    // ANCHOR_END: wide_save
};

// states, others [head, border between stretches][columns of V, as many as blocks have][KEY]. products [head][border, those
// at both ends as well][64 columns of V][warp].
template <class T, int KEY, int GROUPS, bool BACK>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    vlstm_wide_states(const __grid_constant__ TensorMap y, const __grid_constant__ TensorMap z,
                      const __grid_constant__ TensorMap states, const __grid_constant__ TensorMap others,
                      const Weights* __restrict__ weights, float* __restrict__ products, int chunks, int anchors, int S,
                      int dhhv) {
    DYNAMIC_TILES(unsigned char, memory);
    using Shared = StatesShared<T, KEY, GROUPS>;
    using Place = StatePlace<T, KEY, GROUPS>;
    auto& shared = *reinterpret_cast<Shared*>(memory);
    __shared__ Ring<Shared::PLACES> ring;
    // Room for a state is there, with what it is multiplied by; a state is in it.
    __shared__ Mbarrier free[GROUPS], rounded[GROUPS];
    int slices = (dhhv + GROUPS * PANEL - 1) / (GROUPS * PANEL), head = blockIdx.x / slices;
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    int value = blockIdx.x % slices * GROUPS * PANEL, panels = slices * GROUPS;
    Sequence sequence(head, S);
    weights += 1ll * head * chunks;
    // The chunks that some border needs: of the first stretch back, or of the last on, none does.
    int count = BACK ? chunks - ANCHOR_CHUNKS : anchors * ANCHOR_CHUNKS;
    auto chunk = [&](int n) { return BACK ? chunks - 1 - n : n; };
    auto border = [&](int n) { return BACK ? anchors - n : n + 1; };
    if (threadIdx.x == 0) {
        for (int g = 0; g < GROUPS; ++g) mbarrier_init(&free[g], 1), mbarrier_init(&rounded[g], 4);
        ring.init(4 * GROUPS);
    }
    __syncthreads();  // nobody waits at a barrier that is not there

    Turn<Shared::PLACES> turn, last;
    if (group == GROUPS) {
        registers_decrease<24>();
        if (lane > 0) return;
        // ANCHOR: wide_tiles
        for (int n = 0; n < count && warp == 0; ++n, turn.advance()) {
            auto& place = shared.places[turn.place];
            Mbarrier* full = &ring.full[turn.place];
            ring.wait_empty(turn);
            mbarrier_arrive_expect(full, Place::BYTES);
            bulk_load(&place.weights, weights + chunk(n), sizeof(Weights), full);
#pragma unroll
            for (int p = 0; p < Place::PANELS; ++p)
                tensor_load(place.k[p], y, sequence.box(p * PANEL, chunk(n) * CHUNK).at, full);
#pragma unroll
            for (int p = 0; p < GROUPS; ++p)
                tensor_load(place.v[p], z, sequence.box(value + p * PANEL, chunk(n) * CHUNK).at, full);
        }
        int of = warp - 1, row = value + of * PANEL;
        if (of < 0 || of >= GROUPS) return;
        for (int n = 0; n < anchors; ++n) {
            int at = head * anchors + border(n) - 1;
            if (BACK) {
                mbarrier_arrive_expect(&free[of], Place::PANELS * CHUNK * SPAN);
                for (int p = 0; p < Place::PANELS; ++p)
                    tensor_load(shared.rounded[of][p], others, {p * PANEL, row, at}, &free[of]);
            } else
                mbarrier_arrive(&free[of]);
            mbarrier_wait(&rounded[of], n % 2);
            for (int p = 0; p < Place::PANELS; ++p)
                tensor_store(states, {p * PANEL, row, at}, shared.rounded[of][p]);
            bulk_commit();
            bulk_wait_read<0>();
        }
        return;
        // ANCHOR_END: wide_tiles
    }
    registers_increase<240>();
    RoundedState<T, KEY> state;
    state.begin(nullptr, 0, 0, 0);
    int n = 0;
    for (int stretch = 0; stretch < anchors; ++stretch) {
        // Who walks back begins with the last stretch, which may have fewer chunks.
        for (int end = BACK ? chunks - border(stretch) * ANCHOR_CHUNKS : n + ANCHOR_CHUNKS; n < end; ++n) {
            auto& place = shared.places[turn.place];
            ring.wait_full(turn);
            state.decay(place.weights);  // once the products of the chunk before are there
            if (n > 0) leave(ring, last);
            state.take(place.v[group], reinterpret_cast<const T*>(place.weights.write));
            state.add_keys(place);
            last = turn;
            turn.advance();
        }
        wgmma_wait<0>();
        mbarrier_wait(&free[group], stretch % 2);
        float sum = state.template replace<BACK>(shared.rounded[group]);
        fence_proxy_async_shared();  // TMA reads what was written by plain stores
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&rounded[group]);
        if (!BACK) continue;
        sum = warp_reduce(sum, Add());
        long long at = (head * (anchors + 2ll) + border(stretch)) * panels + value / PANEL + group;
        if (lane == 0) products[at * 4 + warp] = sum;
    }
}
