// C, or its gradient, at every border between two stretches, of heads with up to 256 keys: a walk for the state alone.
//
//   C ← γ C + Σ_j α_j k_j v_jᵀ    from the first chunk on       dC ← γ dC + Σ_j (s β_j / N_j) q_j dh_jᵀ    from the last one back
//
// Work split: a block walks a head for 64 GROUPS columns of V. A warpgroup holds all keys of 64 of them, transposed, as
// accumulators; one thread of a third asks for tiles. Who walks back also multiplies with the C that the other walk has left.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/bulk.cuh"
#include "lab/ring.cuh"
#include "lab/vlstm/roles.cuh"
#include "weights.cuh"

using namespace lab;

// What a chunk brings.
template <class T, int KEY, int GROUPS> struct alignas(1024) StatePlace {
    static constexpr int PANELS = KEY / PANEL, K_ROWS = CHUNK;
    T k[PANELS][CHUNK * PANEL], v[GROUPS][CHUNK * PANEL];
    Weights weights;
};

constexpr int STATE_PLACES = 4;
template <class T, int KEY, int GROUPS, bool BACK>
constexpr int vlstm_wide_states_shared = STATE_PLACES * sizeof(StatePlace<T, KEY, GROUPS>);

// C as rows of KEY keys, one for each column of V.
template <class T, int KEY> struct RowState : State<T, KEY> {
    using Base = State<T, KEY>;
    using Base::c, Base::key_of, Base::value_of;

    // ANCHOR: wide_save
    // To `to`; the thread's share of the inner product with `other`, where there is one. The two may be the same memory
    // for all that the compiler knows: it loads a few words ahead, not all, for which there are no registers.
    template <bool MULTIPLIES> __device__ __forceinline__ float save_rows(T* to, const T* other) const {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 2) {
            int at = value_of(n) * KEY + key_of(n);
            if constexpr (MULTIPLIES) {
                float2 two = floats_of<T>(*reinterpret_cast<const unsigned*>(other + at));
                sum += c[n] * two.x + c[n + 1] * two.y;
            }
            *reinterpret_cast<unsigned*>(to + at) = two_halves<T>(c[n], c[n + 1]);
        }
        return sum;
    }
    // ANCHOR_END: wide_save
};

// states [head][border between stretches][columns of V, as many as blocks have][KEY], and `other` alike: C, which who
// walks back multiplies with, to products [head][border, with those at both ends][64 columns of V][warp].
template <class T, int KEY, int GROUPS, bool BACK>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    vlstm_wide_states(const __grid_constant__ TensorMap y, const __grid_constant__ TensorMap z,
                      const Weights* __restrict__ weights, T* states, const T* other,
                      float* __restrict__ products, int chunks, int anchors, int S, int dhhv) {
    DYNAMIC_TILES(unsigned char, memory);
    using Place = StatePlace<T, KEY, GROUPS>;
    auto* places = reinterpret_cast<Place*>(memory);
    __shared__ Ring<STATE_PLACES> ring;
    int slices = (dhhv + GROUPS * PANEL - 1) / (GROUPS * PANEL), head = blockIdx.x / slices;
    int group = threadIdx.x / 128, value = blockIdx.x % slices * GROUPS * PANEL, rows = slices * GROUPS * PANEL;
    Sequence sequence(head, S);
    weights += 1ll * head * chunks;
    // The chunks that some border needs: of the first stretch back, or of the last on, none does.
    int count = BACK ? chunks - ANCHOR_CHUNKS : anchors * ANCHOR_CHUNKS;
    auto chunk = [&](int n) { return BACK ? chunks - 1 - n : n; };
    if (threadIdx.x == 0) ring.init(4 * GROUPS);
    __syncthreads();  // nobody waits at a barrier that is not there

    Turn<STATE_PLACES> turn, last;
    if (group == GROUPS) {
        registers_decrease<24>();
        for (int n = 0; n < count && threadIdx.x % 128 == 0; ++n, turn.advance()) {
            auto& place = places[turn.place];
            Mbarrier* full = &ring.full[turn.place];
            ring.wait_empty(turn);
            mbarrier_arrive_expect(full, (Place::PANELS + GROUPS) * CHUNK * SPAN + sizeof(Weights));
            bulk_load(&place.weights, weights + chunk(n), sizeof(Weights), full);
#pragma unroll
            for (int p = 0; p < Place::PANELS; ++p)
                tensor_load(place.k[p], y, sequence.box(p * PANEL, chunk(n) * CHUNK).at, full);
#pragma unroll
            for (int p = 0; p < GROUPS; ++p)
                tensor_load(place.v[p], z, sequence.box(value + p * PANEL, chunk(n) * CHUNK).at, full);
        }
        return;
    }
    registers_increase<240>();
    RowState<T, KEY> state;
    state.begin(nullptr, 0, 0, 0);
    for (int n = 0; n < count;) {
        // The chunks of a stretch; who walks back begins with the last one, which may have fewer.
        for (int end = BACK ? chunks - chunk(n) / ANCHOR_CHUNKS * ANCHOR_CHUNKS : n + ANCHOR_CHUNKS; n < end; ++n) {
            auto& place = places[turn.place];
            ring.wait_full(turn);
            state.decay(place.weights);  // once the products of the chunk before are there
            if (n > 0) leave(ring, last);
            state.take(place.v[group], reinterpret_cast<const T*>(place.weights.write));
            state.add_keys(place);
            last = turn;
            turn.advance();
        }
        wgmma_wait<0>();
        int border = (BACK ? chunks - n : n) / ANCHOR_CHUNKS;
        long long at = 1ll * head * anchors + border - 1, row = value + group * PANEL;
        long long cell = (at * rows + row) * KEY;
        float sum = state.template save_rows<BACK>(states + cell, other + cell);
        if (!BACK) continue;
        sum = warp_reduce(sum, Add());
        at = (head * (anchors + 2ll) + border) * (rows / PANEL) + row / PANEL;
        if (threadIdx.x % 32 == 0) products[at * 4 + threadIdx.x / 32 % 4] = sum;
    }
}
