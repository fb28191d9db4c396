// Who does what in a walk: three roles, that meet at the places of two rings.
#pragma once
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "lab/vlstm/scan.cuh"
#include "lab/vlstm/state.cuh"

namespace lab {

// Warps that ask for tiles and scan the gates, a chunk each in turn.
constexpr int SCANNERS = 4;

// Registers of a thread: those of all warpgroups together are 512 at most.
template <int KEY, int GROUPS> struct Registers {
    static constexpr bool FEW = GROUPS == 2 && KEY > 64;  // the state of 128 keys leaves few to others
    static constexpr int STATE = GROUPS == 2 && KEY == 64 ? 160 : 176;
    static constexpr int SCORES = FEW ? 104 : 112, SCAN = FEW ? 56 : 80;
};

// All of a block's shared memory: places for chunks, two for C̃ and what goes with it, and h on its way, by OUTS panels in turn.
template <class T, int KEY, int GROUPS, int PLACES, int OUTS = 1, int HEADS = 1> struct Shared {
    typename PlaceOf<T, KEY, GROUPS, HEADS>::type places[PLACES];
    T pairs[2 * HEADS][CHUNK * PANEL], out[OUTS][GROUPS][CHUNK * PANEL];
    float inverse[2][CHUNK];  // 1 / (n_i + eps)
};

// What is saved of a sequence for a backward pass: states [head][anchor][64 columns of V], `count` anchors a head; 0 where
// nobody wants them. The first is STRETCH behind the sequence's beginning. Where the gradient goes through the normaliser also
// its state, n [head][anchor][KEY], and its slopes [head][S]: else null.
struct Anchors {
    unsigned* saved;
    float *n, *slopes;
    int count, panels;
    long long before;  // anchors of other heads and sequences

    __device__ __forceinline__ Anchors(const Sequence& sequence, int count, int panels, unsigned* saved, float* n,
                                       float* slopes)
        : saved(saved), n(n), slopes(slopes ? slopes + sequence.row() : nullptr), count(count), panels(panels),
          before(sequence.first_anchor(count)) {}

    __device__ __forceinline__ bool has(int first) const { return count > 0 && first > 0 && first % STRETCH == 0; }
    __device__ __forceinline__ long long index(int first) const { return before + first / STRETCH - 1; }
    __device__ __forceinline__ unsigned* at(int first, int panel, int words) const {
        return saved + (index(first) * panels + panel) * words;
    }
};

// One lane for its warp, which has done with a place.
template <int PLACES> __device__ __forceinline__ void leave(Ring<PLACES>& ring, Turn<PLACES> turn) {
    __syncwarp();  // all lanes have read
    if (threadIdx.x % 32 == 0) ring.leave(turn);
}

// Positions `from` to `to` of a sequence, and 64 GROUPS columns of V from `value` on. GATES and NORMALIZER as
// lab/vlstm/policy.cuh has them. So many heads of V as `sharing` says read the same of Q and K.
// Two HEADS that follow each other may be walked at once, a warpgroup for the 64 columns of each: scores are made once for both.
template <class T, int KEY, int GROUPS, int PLACES, class GATES = Exponential, class NORMALIZER = MaxExp, int HEADS = 1>
struct Walk {
    static_assert(HEADS == 1 || (HEADS == GROUPS && !NORMALIZER::DIVIDES), "a warpgroup for each head, and n of one alone");
    using State = lab::State<T, KEY>;
    using Sum = KeySum<T, KEY, NORMALIZER>;
    using Scan = GateScan<SCANNERS, GATES, NORMALIZER>;
    static constexpr int THREADS = (GROUPS + 2) * 128, OUTS = NORMALIZER::DIVIDES || HEADS > 1 ? 1 : 2;
    using Shared = lab::Shared<T, KEY, GROUPS, PLACES, OUTS, HEADS>;
    Shared& shared;
    Ring<PLACES>& places;
    Ring<2>& pairs;
    Sequence sequence;
    int value, from, to, sharing = 1;

    // What is of one of the heads.
    template <class Place> __device__ __forceinline__ static const Gates& gates_of(const Place& place, int head) {
        if constexpr (HEADS > 1) return head > 0 ? place.more_gates : place.gates;
        else return place.gates;
    }
    template <class Place> __device__ __forceinline__ static const T* alpha_of(const Place& place, int head) {
        if constexpr (HEADS > 1) return head > 0 ? place.more_alpha : place.alpha;
        else return place.alpha;
    }

    // One thread, before a barrier.
    __device__ __forceinline__ void init() const {
        places.init(4 * GROUPS + 4, 2);
        pairs.init(4 * GROUPS);
    }

    // All THREADS, before the same barrier.
    __device__ __forceinline__ void clear() const {
        for (int n = 0; n < PLACES; ++n) shared.places[n].template clear<THREADS>();
        fence_proxy_async_shared();
    }

    // ANCHOR: state
    // A warpgroup: h of 64 columns of V, and their state; what it is at anchors, too.
    __device__ __forceinline__ void hold(State& state, const TensorMap& h, int group, Anchors anchors) const {
        Turn<PLACES> turn;
        Turn<2> pair;
        int head = HEADS > 1 ? group : 0, column = HEADS > 1 ? value : value + group * PANEL;
        Sequence own = sequence;
        own.head += head;
        auto store = [&](int first) {
            Box box = own.box(column, first);
            if constexpr (OUTS > 1) state.store_in_turn(shared.out[first / CHUNK % 2][group], h, box, group);
            else state.store(shared.out[0][group], h, box, group);
        };
        state.weigh();
        state.round();
        for (int first = from; first < to; first += CHUNK, turn.advance(), pair.advance()) {
            auto& place = shared.places[turn.place];
            if (HEADS == 1 && anchors.has(first)) state.save(anchors.at(first, value / PANEL + group, state.SAVED));
            places.wait_full(turn);
            state.multiply_by_state(place);
            // h of the chunk before leaves while the product is made.
            if (first > from) store(first - CHUNK);
            state.take(place.z[group], alpha_of(place, head));
            state.scale(gates_of(place, head));
            pairs.wait_full(pair);
            state.add_chunk_pairs_to_out(shared.pairs[pair.place * HEADS + head]);
            state.add_keys(place);
            state.template divide<NORMALIZER::DIVIDES>(shared.inverse[pair.place]);
            leave(pairs, pair);
            state.round();
            leave(places, turn);
        }
        if (from < to) store((to - 1) / CHUNK * CHUNK);
        if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // TMA has read the panel before the block ends
    }
    // ANCHOR_END: state

    // ANCHOR: scores
    // A warpgroup: C̃ and n.
    __device__ __forceinline__ void make_scores(Sum& sum, float eps, float* n_out, bool stores, Anchors anchors) const {
        constexpr bool DIVIDES = NORMALIZER::DIVIDES;
        Turn<PLACES> turn;
        Turn<2> pair;
        auto publish = [&] {
            sum.publish(shared.places[turn.place]);
            fence_proxy_async_shared();  // wgmma reads n and C̃, which were written by plain stores
            named_barrier_sync(1 + GROUPS, 128);  // all warps have written and fenced them, and 1 / (n + eps)
        };
        sum.weigh(shared.inverse[0], 1 + GROUPS);
        publish();
        for (int first = from; first < to; first += CHUNK, pair.advance()) {
            auto& place = shared.places[turn.place];
            float score[DIVIDES ? 36 : 32], weight[32], l[2];
            if (DIVIDES && stores && anchors.n && anchors.has(first))
                sum.each([&](int key, float n) { anchors.n[anchors.index(first) * KEY + key] = n; });
            places.wait_full(turn);
            wgmma_fence();
            multiply_scores<T, KEY>(score, place);
            sum.multiply(place);
            wgmma_commit();
            weights_of(weight, place.gates);  // while the products are made
            pairs.wait_empty(pair);
            wgmma_wait<0>();
            weigh(l, score, weight, place.gates, sum.up(), shared.pairs[pair.place * HEADS]);
            for (int head = 1; head < HEADS; ++head) {
                weights_of(weight, gates_of(place, head));
                weigh(l, score, weight, gates_of(place, head), sum.up(), shared.pairs[pair.place * HEADS + head]);
            }
            if (DIVIDES && stores && anchors.slopes) store_slopes(l, place.gates, anchors.slopes, first, sequence.length);
            if constexpr (DIVIDES) normalise(l, place.gates, shared.inverse[pair.place], eps);
            sum.add(place.gates);
            auto own = turn;
            turn.advance();
            if (DIVIDES) places.wait_empty(turn);
            publish();
            if (threadIdx.x % 128 == 0) mbarrier_arrive(&pairs.full[pair.place]);
            if (DIVIDES && stores) store_normaliser(l, n_out, first, sequence.length);
            leave(places, own);
        }
    }
    // ANCHOR_END: scores

    // ANCHOR: bring
    // SCANNERS warps: tiles by TMA, and the gates. Returns what is behind the last chunk, to the warp that had it.
    template <bool ALL>
    __device__ __forceinline__ Before bring(Scan& scan, const TensorMap& q, const TensorMap& k,
                                            const TensorMap& v, float log2_scale, float* m_out, bool stores,
                                            Scan* second = nullptr, BothWeights left = {}) const {
        int warp = threadIdx.x / 32 % 4;
        Turn<PLACES> turn;
        Before behind = {};
        for (int n = 0; n < warp; ++n) turn.advance();
        for (int first = from + warp * CHUNK; first < to; first += SCANNERS * CHUNK) {
            auto& place = shared.places[turn.place];
            // A parity tells a phase from the next, not from the one behind that: places are claimed in order.
            auto claim = [&] {
                places.wait_empty(turn);
                if (threadIdx.x % 32 == 0)
                    place.template load<ALL>(q, k, v, sequence, first, value, &places.full[turn.place], 0, sharing);
                __syncwarp();  // no lane's gates are stored before its place is claimed
            };
            behind = scan.template step<ALL>(place.gates, place.alpha, log2_scale, m_out, stores, first, claim, left);
            if constexpr (HEADS > 1)
                second->template step<ALL, false>(place.more_gates, place.more_alpha, log2_scale, m_out, stores, first, [] {});
            fence_proxy_async_shared();  // wgmma reads α
            __syncwarp();                // all lanes have stored and fenced
            if (threadIdx.x % 32 == 0) mbarrier_arrive(&places.full[turn.place]);
            for (int n = 0; n < SCANNERS; ++n) turn.advance();
        }
        return behind;
    }
    // ANCHOR_END: bring

    // The first two roles, where nothing but the state is wanted.
    __device__ __forceinline__ void gather(State& state, int group) const {
        Turn<PLACES> turn, last;
        for (int first = from; first < to; first += CHUNK, turn.advance()) {
            auto& place = shared.places[turn.place];
            places.wait_full(turn);
            state.decay(place.gates);  // once the products of the chunk before are there
            if (first > from) leave(places, last);
            state.take(place.z[group], place.alpha);
            state.add_keys(place);
            last = turn;
        }
        wgmma_wait<0>();
    }
    __device__ __forceinline__ void gather(Sum& sum) const {
        Turn<PLACES> turn;
        for (int first = from; first < to; first += CHUNK, turn.advance()) {
            auto& place = shared.places[turn.place];
            places.wait_full(turn);
            wgmma_fence();
            sum.multiply(place);
            wgmma_commit();
            wgmma_wait<0>();
            sum.add(place.gates);
            leave(places, turn);
        }
    }

    // Whether this warp has the last chunk.
    __device__ __forceinline__ bool brings_last() const {
        int warp = threadIdx.x / 32 % 4;
        return (to - from - 1) / CHUNK % SCANNERS == warp;
    }
};

}  // namespace lab
