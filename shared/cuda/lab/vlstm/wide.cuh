// A walk with up to 256 keys. Two warpgroups hold 64 columns of the state each, all its keys, which takes 128 registers of
// a thread; one more does all else, with the 72 that are left to it. So the gates are a launch before (GateScan to device memory).
#pragma once
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "lab/vlstm/scan.cuh"
#include "lab/vlstm/state.cuh"

namespace lab {

// As State, but that a piece of the keys at a time is rounded, to one of two sets of registers, while wgmma reads the
// other, and that α v takes the place of v: nothing else would leave room for the accumulators.
template <class T, int KEY> class WideState : public State<T, KEY> {
    using Base = State<T, KEY>;
    using Base::c, Base::out, Base::h, Base::mass, Base::v, Base::warp, Base::lane, Base::BLOCKS;
    static constexpr int PIECE = 32, PIECES = KEY / PIECE, HALF = KEY / 2;
    unsigned some[2][PIECE / 16][4];

    __device__ __forceinline__ void round_piece(int piece) {
        float down[2] = {mass[0].down(), mass[1].down()};
#pragma unroll
        for (int k = 0; k < PIECE / 16; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                int at = piece * (PIECE / 2) + 8 * k + 2 * w;
                some[piece % 2][k][w] = two_halves<T>(c[at] * down[w % 2], c[at + 1] * down[w % 2]);
            }
    }

    // A group of wgmma.
    template <class Place> __device__ __forceinline__ void read_piece(const Place& place, int piece) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < PIECE; k += 16) {
            int key = piece * PIECE + k;
            wgmma<T, CHUNK>(out, some[piece % 2][k / 16],
                            advance(k_major<SPAN>(place.q[key / PANEL], 8 * SPAN), key % PANEL * 2), key > 0);
        }
        wgmma_commit();
    }

  public:
    // The first two pieces, once nothing is on its way.
    __device__ __forceinline__ void round() {
        wgmma_wait<0>();
        round_piece(0);
        round_piece(1);
    }

    // ANCHOR: wide_read
    // out_i = Cᵀ q_i, as the state is before the chunk: groups of wgmma.
    template <class Place> __device__ __forceinline__ void read(const Place& place) {
        read_piece(place, 0);
        read_piece(place, 1);
#pragma unroll
        for (int piece = 2; piece < PIECES; ++piece) {
            wgmma_wait<1>();  // nobody reads the registers any more that are written now
            round_piece(piece);
            read_piece(place, piece);
        }
    }
    // ANCHOR_END: wide_read

    // v.
    __device__ __forceinline__ void take(const T* values) {
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j) load_columns(v[j], values, j * 16, warp() * 16);
    }

    // α v, once the product with v is there.
    __device__ __forceinline__ void weigh_values(const T* write) {
        unsigned alpha[BLOCKS][2];
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
            for (int half = 0; half < 2; ++half)
                alpha[j][half] = *reinterpret_cast<const unsigned*>(write + j * 16 + half * 8 + lane() % 4 * 2);
        wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
            for (int w = 0; w < 4; ++w) v[j][w] = multiply_halves<T>(v[j][w], alpha[j][w / 2]);
    }

    // C += Σ_j α_j v_j k_jᵀ, half of the keys by each wgmma: one of all would take more registers than a thread has at the launch.
    template <class Place> __device__ __forceinline__ void add_keys(const Place& place) {
        constexpr unsigned ROWS = Place::K_ROWS * SPAN;
        wgmma_fence();
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < BLOCKS; ++j)
                wgmma<T, HALF, true>(reinterpret_cast<float(&)[HALF / 2]>(c[half * (HALF / 2)]), v[j],
                                     advance(mn_major<SPAN>(place.k[half * (HALF / PANEL)], ROWS, 8 * SPAN), j * 16 * SPAN));
        wgmma_commit();
    }

    // h_i = out_i / (n_i + eps), rounded.
    __device__ __forceinline__ void divide(const float* inverse) {
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n) {
            float2 by = *reinterpret_cast<const float2*>(&inverse[n * 8 + lane() % 4 * 2]);
            for (int half = 0; half < 2; ++half)
                h[n / 2][n % 2 * 2 + half] = two_halves<T>(out[4 * n + 2 * half] * by.x, out[4 * n + 2 * half + 1] * by.y);
        }
    }
};

// What the gates say of a chunk, in device memory: two rows of α, of two bytes each, as they lie in a place, and the rest.
struct alignas(16) GateRecord {
    unsigned write[PANEL];
    Gates gates;
    static constexpr int WRITE = 2 * SPAN, GATES = (sizeof(Gates) + 15) / 16 * 16;  // bytes
};

template <class T, int KEY, int GROUPS> struct WideShared {
    static constexpr int PLACES = 2;
    Place<T, KEY, GROUPS> places[PLACES];
    T pairs[2][CHUNK * PANEL], out[GROUPS][CHUNK * PANEL];
    float inverse[2][CHUNK];
};

template <class T, int KEY, int GROUPS> struct WideWalk {
    static constexpr int PLACES = 2;
    WideShared<T, KEY, GROUPS>& shared;
    Ring<PLACES>& chunks;
    Ring<2>& weights;
    Sequence sequence;
    int value;

    // One thread, before a barrier.
    __device__ __forceinline__ void init() const {
        chunks.init(4 * GROUPS + 4, 1);
        weights.init(4 * GROUPS);
    }

    template <int SIZE> __device__ __forceinline__ static void leave(Ring<SIZE>& ring, Turn<SIZE> turn) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) ring.leave(turn);
    }

    // A warpgroup: h of 64 columns of V, and their state.
    __device__ __forceinline__ void hold(WideState<T, KEY>& state, const TensorMap& h, int group) const {
        Turn<PLACES> turn;
        Turn<2> pair;
        state.weigh();
        state.round();
        for (int first = 0; first < sequence.length; first += CHUNK, turn.advance(), pair.advance()) {
            auto& place = shared.places[turn.place];
            chunks.wait_full(turn);
            state.read(place);
            state.scale(place.gates);
            state.take(place.v[group]);
            weights.wait_full(pair);
            state.add_pairs(shared.pairs[pair.place]);
            state.weigh_values(place.write);
            state.add_keys(place);
            // h leaves while the product is made.
            state.divide(shared.inverse[pair.place]);
            leave(weights, pair);
            state.store(shared.out[group], h, sequence.box(value + group * PANEL, first), group);
            state.round();
            leave(chunks, turn);
        }
        if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // TMA has read the panel before the block ends
    }

    // One thread: asks for all of a chunk.
    __device__ __forceinline__ void load(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                         const GateRecord* records, int first, Turn<PLACES> turn) const {
        auto& place = shared.places[turn.place];
        auto* full = &chunks.full[turn.place];
        constexpr int BYTES = GateRecord::WRITE + GateRecord::GATES;
        chunks.wait_empty(turn);
        mbarrier_arrive_expect(full, BYTES + (2 * Place<T, KEY, GROUPS>::PANELS + GROUPS) * CHUNK * SPAN);
        place.load_tiles(q, k, v, sequence, first, value, full);
        bulk_load(place.write, records[first / CHUNK].write, GateRecord::WRITE, full);
        bulk_load(&place.gates, &records[first / CHUNK].gates, GateRecord::GATES, full);
    }

    // A warpgroup: brings the chunks, makes C̃ and n.
    __device__ __forceinline__ void make_scores(KeySum<T, KEY>& sum, const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                                const GateRecord* records, float eps, float* n_out, bool stores) const {
        constexpr int BARRIER = 1 + GROUPS;
        bool brings = threadIdx.x % 128 == 0;
        Turn<PLACES> turn, next;
        Turn<2> pair;
        auto meet = [&] {
            fence_proxy_async_shared();  // wgmma reads n and C̃, which were written by plain stores
            named_barrier_sync(BARRIER, 128);  // all warps have written and fenced them, and 1 / (n + eps)
        };
        if (brings) {
            load(q, k, v, records, 0, next);
            next.advance();
            if (CHUNK < sequence.length) load(q, k, v, records, CHUNK, next);
        }
        sum.weigh(shared.inverse[0], BARRIER);
        sum.publish(shared.places[0]);
        meet();
        next = Turn<PLACES>();
        next.advance();
        for (int first = 0; first < sequence.length; first += CHUNK, pair.advance()) {
            auto& place = shared.places[turn.place];
            float score[36], l[2];
            chunks.wait_full(turn);
            wgmma_fence();
            multiply_scores<T, KEY>(score, place);
            wgmma_commit();
            // The next place is free once the chunk before has been added to the state.
            if (brings && first > 0 && first + CHUNK < sequence.length) load(q, k, v, records, first + CHUNK, next);
            __syncwarp();
            weights.wait_empty(pair);
            wgmma_wait<0>();
            weigh_now(l, score, place.gates, sum.up(), shared.pairs[pair.place]);
            normalise(l, place.gates, shared.inverse[pair.place], eps);
            meet();
            if (threadIdx.x % 128 == 0) mbarrier_arrive(&weights.full[pair.place]);
            wgmma_fence();
            sum.multiply(place);
            wgmma_commit();
            if (stores) store_normaliser(l, n_out, first, sequence.length);
            wgmma_wait<0>();
            sum.add(place.gates);
            leave(chunks, turn);
            turn = next;
            next.advance();
            sum.publish(shared.places[turn.place]);
            meet();
        }
    }
};

}  // namespace lab
