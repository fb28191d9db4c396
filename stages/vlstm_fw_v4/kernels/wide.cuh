// Who does what in a walk with up to 256 keys: two warpgroups hold all keys of 64 columns of V each, and one does all else.
#pragma once
#include "lab/ptx/bulk.cuh"
#include "lab/vlstm/roles.cuh"
#include "wide_state.cuh"

namespace lab {

// Registers of a thread: those of three warpgroups together are 504 at most.
struct WideRegisters {
    static constexpr int STATE = 216, SCORES = 72;
};

// What the gates say of a chunk, in device memory: two rows of α, as they lie in a place, and the rest.
struct alignas(16) GateRecord {
    unsigned alpha[PANEL];
    Gates gates;
    float rest[2];  // zeros: bulk copies are of 16 bytes
    static constexpr int ALPHA = 2 * SPAN, GATES = sizeof(Gates) + sizeof rest;  // bytes
};

// The weights that weights_of() makes, but two at a time where they are used: for all 32 there are no registers.
class WeightsNow {
    const Gates& gates;
    float2 of_row[2];

  public:
    __device__ __forceinline__ explicit WeightsNow(const Gates& gates) : gates(gates) {
        int own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        of_row[0] = gates.row[own], of_row[1] = gates.row[own + 8];
    }
    // Of elements `at` and `at` + 1 of a product.
    __device__ __forceinline__ float2 operator()(int at) const {
        float4 e = *reinterpret_cast<const float4*>(&gates.column[at / 4 * 8 + threadIdx.x % 4 * 2]);
        float2 row = of_row[at / 2 % 2];
        return make_float2(power_of_two(sum_of(row, make_float2(e.x, e.y))),
                           power_of_two(sum_of(row, make_float2(e.z, e.w))));
    }
};

// All of a block's shared memory.
template <class T, int KEY, int GROUPS> struct WideShared {
    Place<T, KEY, GROUPS> places[2];
    T pairs[2][CHUNK * PANEL], out[GROUPS][CHUNK * PANEL];
    float inverse[2][CHUNK];  // 1 / (n_i + eps)
};

// GROUPS times 64 columns of V from `value` on. `records` are those of the sequence.
template <class T, int KEY, int GROUPS> struct WideWalk {
    static constexpr int THREADS = (GROUPS + 1) * 128, BARRIER = 1 + GROUPS;
    WideShared<T, KEY, GROUPS>& shared;
    Ring<2>&places, &pairs;
    Sequence sequence;
    int value;
    const GateRecord* records;

    // One thread, before a barrier.
    __device__ __forceinline__ void init() const {
        places.init(4 * GROUPS + 4);
        pairs.init(4 * GROUPS);
    }

    // All THREADS, before the same barrier.
    __device__ __forceinline__ void clear() const {
        for (auto& place : shared.places) place.template clear<THREADS>();
        fence_proxy_async_shared();
    }

    // ANCHOR: wide_hold
    // A warpgroup: h of 64 columns of V, and their state. save(first): of what it is before the chunk that begins there.
    template <class State, class Save>
    __device__ __forceinline__ void hold(State& state, const TensorMap& h, int group, Save save) const {
        Turn<2> turn, pair;
        state.weigh();
        state.round();
        for (int first = 0; first < sequence.length; first += CHUNK, turn.advance(), pair.advance()) {
            auto& place = shared.places[turn.place];
            save(first);
            places.wait_full(turn);
            state.multiply_by_state(place);
            state.scale(place.gates);
            state.take(place.z[group]);
            pairs.wait_full(pair);
            state.add_chunk_pairs_to_out(shared.pairs[pair.place]);
            state.weigh_values(place.alpha);
            state.add_keys(place);
            // h leaves while the product is made.
            state.divide(shared.inverse[pair.place]);
            leave(pairs, pair);
            state.store(shared.out[group], h, sequence.box(value + group * PANEL, first), group);
            state.round();
            leave(places, turn);
        }
        if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // TMA has read the panel before the block ends
    }
    // ANCHOR_END: wide_hold

    // Asks for all of a chunk, once its place is empty; one thread.
    __device__ __forceinline__ void load(const TensorMap& q, const TensorMap& k, const TensorMap& v, int first,
                                         Turn<2> turn) const {
        auto& place = shared.places[turn.place];
        auto* full = &places.full[turn.place];
        places.wait_empty(turn);
        place.load(q, k, v, sequence, first, value, full, GateRecord::ALPHA + GateRecord::GATES);
        bulk_load(place.alpha, records[first / CHUNK].alpha, GateRecord::ALPHA, full);
        bulk_load(&place.gates, &records[first / CHUNK].gates, GateRecord::GATES, full);
    }

    // The warpgroup that is about to make scores, or has made them.
    __device__ __forceinline__ void meet() const {
        fence_proxy_async_shared();  // wgmma reads n and C̃, which were written by plain stores
        named_barrier_sync(BARRIER, 128);  // all warps have written and fenced them, and 1 / (n + eps)
    }

    // Before the first chunk: the first two of them on their way, and n there.
    __device__ __forceinline__ void begin(KeySum<T, KEY>& sum, const TensorMap& q, const TensorMap& k,
                                          const TensorMap& v) const {
        Turn<2> turn;
        for (int first = 0; first < min(2 * CHUNK, sequence.length); first += CHUNK, turn.advance())
            if (threadIdx.x % 128 == 0) load(q, k, v, first, turn);
        __syncwarp();
        sum.weigh(shared.inverse[0], BARRIER);
        sum.publish(shared.places[0]);
        meet();
    }

    // A warpgroup: brings the chunks, and makes C̃ and n.
    __device__ __forceinline__ void make_scores(KeySum<T, KEY>& sum, const TensorMap& q, const TensorMap& k,
                                                const TensorMap& v, float eps, float* n_out, float* slopes,
                                                bool stores) const {
        Turn<2> turn, next, pair;
        begin(sum, q, k, v);
        next.advance();
        for (int first = 0; first < sequence.length; first += CHUNK, pair.advance()) {
            auto& place = shared.places[turn.place];
            float score[36], l[2];
            places.wait_full(turn);
            wgmma_fence();
            multiply_scores<T, KEY>(score, place);
            wgmma_commit();
            // The next chunk has room once the state has the one before.
            if (threadIdx.x % 128 == 0 && first > 0 && first + CHUNK < sequence.length)
                load(q, k, v, first + CHUNK, next);
            __syncwarp();
            pairs.wait_empty(pair);
            wgmma_wait<0>();
            weigh_by(l, score, WeightsNow(place.gates), place.gates, sum.up(), shared.pairs[pair.place]);
            if (stores && slopes) store_slopes(l, place.gates, slopes, first, sequence.length);
            normalise(l, place.gates, shared.inverse[pair.place], eps);
            meet();
            if (threadIdx.x % 128 == 0) mbarrier_arrive(&pairs.full[pair.place]);
            // The state waits for no more than that.
            wgmma_fence();
            sum.multiply(place);
            wgmma_commit();
            if (stores) store_normaliser(l, n_out, first, sequence.length);
            wgmma_wait<0>();
            sum.add(place.gates);
            leave(places, turn);
            turn = next;
            next.advance();
            sum.publish(shared.places[turn.place]);
            meet();
        }
    }
};

}  // namespace lab
