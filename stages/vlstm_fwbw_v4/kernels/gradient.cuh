// A walk that makes one gradient of one head, by the same roles as the forward pass (those that make pairs, that bring tiles and
// that hand on have files of their own):
//
//   out_t = Σ_τ (x_t·y_τ) 2^(row_t + column_τ) z_τ + β_t Stateᵀ x_t      State ← γ State + Σ_τ α_τ y_τ z_τᵀ
//
//          x   y   z    pairs      walks      state
//   dq     dh  v   k    τ <= t     forward    C, made once more
//   dk     v   dh  q    τ >= t     back       the gradient of C
//   dv     k   q   dh   τ >= t     back       the gradient of C
#pragma once
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "gradient_state.cuh"

namespace lab {

// What the roles have in common: chunks `from` to `to` of a sequence. `column` is the first of z and of what comes out.
template <class W, Gradient OF, bool THROUGH_N> struct GradientWalk {
    using T = typename W::T;
    static constexpr bool BACK = OF != Gradient::Q, DOTS = OF != Gradient::V;
    static constexpr bool HAS_RHO = DOTS && THROUGH_N;  // in its pairs, and a row more in its state
    GradientShared<W>& shared;
    Ring<W::PLACES>& places;
    Ring<2>& pairs;
    Ring<1> (&outs)[W::COLUMNS], (&others)[W::COLUMNS];
    Sequence sequence;
    int column, from, to, sharing = 1;  // so many heads of V have the same of Q and K

    __device__ __forceinline__ int count() const { return to - from; }
    __device__ __forceinline__ int chunk(int turn) const { return BACK ? to - 1 - turn : from + turn; }

    // One thread, before a barrier.
    __device__ __forceinline__ void init() const {
        places.init(4 * W::GROUPS + 4);
        pairs.init(4 * W::GROUPS);
        for (int n = 0; n < W::COLUMNS; ++n) outs[n].init(1, 4 * W::PARTS), others[n].init(4 * W::PARTS);
    }

    // ANCHOR: state
    // A warpgroup, one of those of panel group / PARTS. Calls pass(c) when the state is what it is before chunk c.
    template <class Pass>
    __device__ __forceinline__ void hold(GradientState<W>& state, int group, Pass pass) const {
        Turn<W::PLACES> turn;
        Turn<2> pair;
        Turn<1> out, other;
        int panel = group / W::PARTS;
        auto multiply_rows = [&] {
            if (!DOTS) return;
            others[panel].wait_full(other);
            state.multiply_rows(shared.other[panel]);
            // The rows are in registers. An arrival alone comes too early on an H200: ldmatrix waits while wgmma keeps
            // shared memory busy, and TMA's next box was there before it had read.
            __threadfence_block();
            leave(others[panel], other);
            other.advance();
        };
        auto send = [&](int n) {
            if constexpr (W::PARTS > 1) {
                state.finish_share(shared.room, n);
                multiply_rows();
            }
            outs[panel].wait_empty(out);
            state.template store_out<DOTS>(shared.out[panel], shared.dots[panel]);
            fence_proxy_async_shared();  // TMA reads what was written by plain stores
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(&outs[panel].full[0]);
            out.advance();
        };
        if constexpr (!is_f16<T>) state.weigh();
        state.round();
        for (int n = 0; n < count(); ++n, turn.advance(), pair.advance()) {
            auto& place = shared.places[turn.place];
            places.wait_full(turn);
            state.multiply_by_state(place);
            if (n > 0) send(n - 1);  // of the chunk before, while the product is made
            state.take(place.z[panel], reinterpret_cast<const T*>(place.weights.alpha));
            const float* powers = shared.powers_of(pair.place);
            if constexpr (is_f16<T>) pairs.wait_full(pair);  // the powers come with the pairs
            state.scale(place.weights, powers);
            if constexpr (HAS_RHO) state.template pass_normaliser<OF>(place.weights, powers);
            if constexpr (!is_f16<T>) pairs.wait_full(pair);
            state.add_chunk_pairs_to_out(shared.pairs[pair.place]);
            state.add_keys(place);
            state.finish_out(shared.room, n, powers);
            leave(pairs, pair);
            if constexpr (W::PARTS == 1) multiply_rows();
            state.round();
            leave(places, turn);
            pass(chunk(n));
        }
        if (count() > 0) send(count() - 1);
    }
    // ANCHOR_END: state

    // The same, where nothing but the state is wanted. Returns the product of all γ.
    __device__ __forceinline__ float gather(GradientState<W>& state, int group) const {
        Turn<W::PLACES> turn, last;
        float product = 1;
        for (int n = 0; n < count(); ++n, turn.advance()) {
            auto& place = shared.places[turn.place];
            places.wait_full(turn);
            // Once the products of the chunk before are there.
            if constexpr (is_f16<T>) state.decay(Gamma{place.weights.template carried<T>()});
            else state.decay(place.weights);
            if (n > 0) leave(places, last);
            product *= place.weights.template carried<T>();
            state.take(place.z[group / W::PARTS], reinterpret_cast<const T*>(place.weights.alpha));
            state.add_keys(place);
            last = turn;
        }
        wgmma_wait<0>();
        return product;
    }

    // A warpgroup that makes no pairs: y is q, and this what the chunks add to the gradient of n, a thread a key.
    __device__ __forceinline__ float gather_normaliser() const {
        Turn<W::PLACES> turn;
        int key = threadIdx.x % 128;
        float sum = 0;
        for (int n = 0; n < count(); ++n, turn.advance()) {
            auto& place = shared.places[turn.place];
            places.wait_full(turn);
            sum *= place.weights.template carried<T>();
            for (int t = 0; THROUGH_N && key < W::KEY && t < CHUNK; t += 2) {
                float2 alpha = floats_of<T>(place.weights.alpha[t / 2]);
                sum += alpha.x * place.weights.rho[t] * to_math(*cell(place.y[key / PANEL], t, key % PANEL));
                sum += alpha.y * place.weights.rho[t + 1] * to_math(*cell(place.y[key / PANEL], t + 1, key % PANEL));
            }
            leave(places, turn);
        }
        return sum;
    }

    // A warpgroup: pairs, rounded (gradient_pairs.cuh).
    __device__ __forceinline__ void make_pairs() const;
    __device__ __forceinline__ static void add_rho(float (&score)[32], const Weights& weights);
    __device__ __forceinline__ static bool counts(int row, int column) { return BACK ? column >= row : column <= row; }
    __device__ __forceinline__ static void weigh(const float (&score)[32], const float (&weight)[32], T* to);
    __device__ __forceinline__ static void weigh(float (&score)[32], const float (&weight)[32], T* to, float* powers);

    // Where the sequence's Q and K are.
    __device__ __forceinline__ Sequence keys() const {
        Sequence of_keys = sequence;
        of_keys.head /= sharing;
        return of_keys;
    }

    // What comes and what goes (gradient_tiles.cuh).
    template <bool WITH_X = true>
    __device__ __forceinline__ void bring(const TensorMap& x, const TensorMap& y, const TensorMap& z,
                                          const Weights* weights) const;
    __device__ __forceinline__ void bring_others(const TensorMap& other) const;
    __device__ __forceinline__ void hand_on(int panel, const TensorMap& to, float* dots) const;
};

}  // namespace lab
