// The gradient of C at every border between two stretches, of heads with up to 256 keys: a walk for the state alone.
//
//   dC ← γ dC + Σ_j (s β_j / N_j) q_j dh_jᵀ     from the last chunk back
//
// Work split: a block walks a head for 64 GROUPS columns of V. A warpgroup holds all keys of 64 of them, transposed, as
// accumulators. One more moves data: a thread asks for tiles, and a thread for each of the others takes its state to device
// memory. At a border the state is also multiplied with the C that the forward pass has left there.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/bulk.cuh"
#include "lab/ring.cuh"
#include "lab/vlstm/borders.cuh"
#include "lab/vlstm/roles.cuh"
#include "lab/vlstm/weights.cuh"

using namespace lab;

// What a chunk brings.
template <class T, int KEY, int GROUPS> struct alignas(1024) StatePlace {
    static constexpr int PANELS = KEY / PANEL, Y_ROWS = CHUNK;
    static constexpr int BYTES = (PANELS + GROUPS) * CHUNK * SPAN + sizeof(Weights);
    T y[PANELS][CHUNK * PANEL], z[GROUPS][CHUNK * PANEL];
    Weights weights;
};

// `rounded` has the states on their way to device memory, rows of keys; before that, those that they are multiplied by.
template <class T, int KEY, int GROUPS> struct StatesShared {
    static constexpr int PLACES = 3;
    StatePlace<T, KEY, GROUPS> places[PLACES];
    T rounded[GROUPS][KEY / PANEL][CHUNK * PANEL];
};
template <class T, int KEY, int GROUPS>
constexpr int vlstm_wide_states_shared = sizeof(StatesShared<T, KEY, GROUPS>);

template <class T, int KEY> struct RoundedState : StoredState<T, KEY, State<T, KEY>> {
    using Base = StoredState<T, KEY, State<T, KEY>>;
    using Base::c, Base::key_of, Base::value_of, Base::warp, Base::lane;

    // The state, times `unit`.
    __device__ __forceinline__ void multiply(float unit) {
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) c[n] *= unit;
    }

    // ANCHOR: wide_save
    // C, times `down` and rounded, in place of what the panels hold. If `multiplies`, the thread's share of the inner product
    // of the two.
    __device__ __forceinline__ float replace(T (&panels)[KEY / PANEL][CHUNK * PANEL], float down, bool multiplies) const {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 2) {
            int key = key_of(n);
            auto* at = reinterpret_cast<unsigned*>(cell(panels[n / 32], value_of(n), key % PANEL));
            if (multiplies) {
                float2 two = floats_of<T>(*at);
                sum += c[n] * two.x + c[n + 1] * two.y;
            }
            *at = is_f16<T> ? two_halves<T>(c[n] * down, c[n + 1] * down) : two_halves<T>(c[n], c[n + 1]);
        }
        return sum;
    }
    // ANCHOR_END: wide_save
};

// given: a state C0 goes in, given_last: the gradient of the last state, dCN; wanted: that of the first comes out. In memory
// (borders.cuh) are the states that stretches begin with, C [head, stretch but the first, or, if given, each], which the forward
// pass has left, and, from here, what they end with, dC [head, stretch but the last, or, if given_last, each]. products
// [head][border, those at both ends as well][64 columns of V][warp]: <C, dC>.
template <class T, int KEY, int GROUPS>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    vlstm_wide_states(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap dh,
                      const __grid_constant__ TensorMap C, const __grid_constant__ TensorMap dC,
                      const Weights* __restrict__ weights, const float* __restrict__ C_scales,
                      float* __restrict__ dC_scales, float* __restrict__ products, const float* __restrict__ C0,
                      const float* __restrict__ CN, const float* __restrict__ dCN, float* __restrict__ dC0, bool given, bool given_last, bool wanted, int chunks, int anchors, int S,
                      int dhqk, int dhhv) {
    DYNAMIC_TILES(unsigned char, memory);
    using Shared = StatesShared<T, KEY, GROUPS>;
    using Place = StatePlace<T, KEY, GROUPS>;
    auto& shared = *reinterpret_cast<Shared*>(memory);
    __shared__ Ring<Shared::PLACES> places;
    // Room for a state is there, with what it is multiplied by; a state is in it.
    __shared__ Mbarrier free[GROUPS], rounded[GROUPS];
    __shared__ float largest[GROUPS][4];
    int slices = (dhhv + GROUPS * PANEL - 1) / (GROUPS * PANEL), head = blockIdx.x / slices;
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    int value = blockIdx.x % slices * GROUPS * PANEL, panels = slices * GROUPS;
    Sequence sequence(head, S);
    weights += 1ll * head * chunks;
    // The borders whose states are stored, in the walk's order, the first perhaps before its first chunk. What is behind the
    // last one only dC0 needs.
    int stores = anchors + given_last, count = chunks - (given ? 0 : min(ANCHOR_CHUNKS, chunks));
    auto chunk = [&](int n) { return chunks - 1 - n; };
    auto border = [&](int n) { return stores - n; };
    // Where states are in memory, and C, of which there is none at the last border.
    auto slot = [&](int n) { return head * stores + border(n) - 1; };
    auto C_slot = [&](int n) { return head * (anchors + given) + border(n) - !given; };
    auto has_C = [&](int n) { return border(n) <= anchors; };
    if (threadIdx.x == 0) {
        for (int g = 0; g < GROUPS; ++g) mbarrier_init(&free[g], 1), mbarrier_init(&rounded[g], 4);
        places.init(4 * GROUPS);
    }
    __syncthreads();  // nobody waits at a barrier that is not there

    Turn<Shared::PLACES> turn;
    if (group == GROUPS) {
        registers_decrease<24>();
        if (lane > 0) return;
        // ANCHOR: wide_tiles
        for (int n = 0; n < count && warp == 0; ++n, turn.advance()) {
            auto& place = shared.places[turn.place];
            Mbarrier* full = &places.full[turn.place];
            places.wait_empty(turn);
            mbarrier_arrive_expect(full, Place::BYTES);
            bulk_load(&place.weights, weights + chunk(n), sizeof(Weights), full);
#pragma unroll
            for (int p = 0; p < Place::PANELS; ++p)
                tensor_load(place.y[p], q, sequence.box(p * PANEL, chunk(n) * CHUNK).at, full);
#pragma unroll
            for (int p = 0; p < GROUPS; ++p)
                tensor_load(place.z[p], dh, sequence.box(value + p * PANEL, chunk(n) * CHUNK).at, full);
        }
        int of = warp - 1, row = value + of * PANEL;
        if (of < 0 || of >= GROUPS) return;
        for (int n = 0; n < stores; ++n) {
            if (has_C(n)) {
                mbarrier_arrive_expect(&free[of], Place::PANELS * CHUNK * SPAN);
                for (int p = 0; p < Place::PANELS; ++p)
                    tensor_load(shared.rounded[of][p], C, {p * PANEL, row, C_slot(n)}, &free[of]);
            } else
                mbarrier_arrive(&free[of]);
            mbarrier_wait(&rounded[of], n % 2);
            for (int p = 0; p < Place::PANELS; ++p)
                tensor_store(dC, {p * PANEL, row, slot(n)}, shared.rounded[of][p]);
            bulk_commit();
            bulk_wait_read<0>();
        }
        return;
        // ANCHOR_END: wide_tiles
    }
    registers_increase<240>();
    RoundedState<T, KEY> state;
    long long cell = 1ll * head * dhqk * dhhv;
    int column = value + group * PANEL, panel = column / PANEL;
    state.begin(given_last ? dCN + cell : nullptr, column, dhqk, dhhv);
    auto store_product = [&](float sum, int border) {
        sum = warp_reduce(sum, Add());
        if (lane == 0) products[((head * (anchors + 2ll) + border) * panels + panel) * 4 + warp] = sum;
    };
    if (given_last) store_product(state.inner_product(CN + cell, column, dhqk, dhhv), anchors + 1);
    int n = 0;
    float unit = 1;  // of f16: what the state in registers is counted in (weights.cuh)
    for (int store = 0; store < stores + given; ++store) {
        // Up to the border; the last stretch, with which it begins, may have fewer chunks.
        int end = chunks - border(store) * ANCHOR_CHUNKS;
        for (; n < end; ++n) {
            auto& place = shared.places[turn.place];
            places.wait_full(turn);
            if constexpr (is_f16<T>) {
                unit = place.weights.unit;
                state.decay(Gamma{place.weights.template carried<T>()});
            } else {
                state.decay(place.weights);
            }
            state.take(place.z[group], reinterpret_cast<const T*>(place.weights.alpha));
            state.add_keys(place);
            wgmma_wait<0>();  // not once the next chunk is there: with C0 the assembler would make each wgmma wait for the last
            leave(places, turn);
            turn.advance();
        }
        if (store == stores) break;
        mbarrier_wait(&free[group], store % 2);
        float scale = is_f16<T> ? state.scale_in_memory(largest[group], 1 + group) : 1;
        float sum = state.replace(shared.rounded[group], 1 / scale, has_C(store));
        fence_proxy_async_shared();  // TMA reads what was written by plain stores
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&rounded[group]);
        if (is_f16<T> && threadIdx.x % 128 == 0) dC_scales[1ll * slot(store) * panels + panel] = scale * unit;
        if (!has_C(store)) continue;
        if (is_f16<T>) sum *= unit * C_scales[1ll * C_slot(store) * panels + panel];
        store_product(sum, border(store));
    }
    if (!given) return;
    if constexpr (is_f16<T>) state.multiply(unit);
    store_product(state.inner_product(C0 + cell, column, dhqk, dhhv), 0);
    if (wanted) state.end(dC0 + cell, column, dhqk, dhhv);
}
