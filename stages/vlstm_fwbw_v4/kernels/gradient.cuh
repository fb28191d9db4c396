// A walk that makes one gradient of one head, by the same roles as the forward pass:
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
#include "lab/vlstm/powers.cuh"
#include "lab/vlstm/roles.cuh"
#include "normaliser.cuh"

namespace lab {

enum class Gradient { Q, K, V };

// Warpgroups: PARTS of them share the columns of x and y, KEY each; each PARTS have 64 columns of z, a panel of COLUMNS.
template <class Type, int KEYS, int SHARES, int PANELS_OUT, int CHUNKS> struct Shape {
    using T = Type;
    static constexpr int KEY = KEYS, PARTS = SHARES, COLUMNS = PANELS_OUT, PLACES = CHUNKS;
    static constexpr int GROUPS = PARTS * COLUMNS, THREADS = (GROUPS + 2) * 128, WIDTH = COLUMNS * PANEL;
    // Registers of a thread: those of all warpgroups together are 512 at most.
    static constexpr int STATE = 184, SCORES = 104, SCAN = 40;
};

// What one turn of the loop takes.
template <class W> struct alignas(1024) GradientPlace {
    using T = typename W::T;
    static constexpr int PANELS = W::PARTS * W::KEY / PANEL, Y_ROWS = CHUNK;
    T x[PANELS][CHUNK * PANEL], y[PANELS][CHUNK * PANEL], z[W::COLUMNS][CHUNK * PANEL];
    Weights weights;
};

// What the rows of two chunks' pairs of f16 are multiplied by, so that halves hold them. Others need no such thing.
template <class T> struct Powers {};
template <> struct Powers<__half> { float powers[2][CHUNK]; };

template <class W> struct GradientTiles {
    using T = typename W::T;
    GradientPlace<W> places[W::PLACES];
    T pairs[2][CHUNK * PANEL];
    T out[W::COLUMNS][CHUNK * PANEL];    // rounded
    T other[W::COLUMNS][CHUNK * PANEL];  // what its rows are multiplied by, those of q or k
    float dots[W::COLUMNS][4][CHUNK];    // with that, of 16 columns each
    float4 room[State<T, W::KEY, W::PARTS>::ROOM];  // for what parts send each other
};

template <class W> struct GradientShared : GradientTiles<W>, Powers<typename W::T> {
    // Of the pairs at a place; nobody reads them where there are none.
    __device__ __forceinline__ const float* powers_of(int place) const {
        if constexpr (is_f16<typename W::T>) return this->powers[place];
        else return nullptr;
    }
};

// What an operand of f16 is multiplied by once it has been read, of rows lane / 4 and 8 more. Others need no such thing.
template <class T> struct Ups {};
template <> struct Ups<__half> { float up[2]; };

// The state of one warpgroup, and what it makes of it.
template <class W> class GradientState : public State<typename W::T, W::KEY, W::PARTS>, public Ups<typename W::T> {
    using T = typename W::T;
    using Base = State<T, W::KEY, W::PARTS>;
    using Base::c, Base::out, Base::both, Base::h, Base::rounded, Base::weighted, Base::part_;
    using Base::warp, Base::lane, Base::SHARE, Base::made;
    float dot[2];  // of two positions

    // Sums over the lanes that differ in their bits 2 to 4: of each step a lane keeps half of the positions, while it has more.
    template <int LANES, int EIGHTS> __device__ __forceinline__ void reduce_scatter_into_dot(float (&all)[EIGHTS][2]) {
        constexpr bool HALVES = EIGHTS > 1;
        bool upper = HALVES && threadIdx.x % 32 / LANES % 2 > 0;
        float kept[HALVES ? EIGHTS / 2 : 1][2];
#pragma unroll
        for (int n = 0; n < (HALVES ? EIGHTS / 2 : 1); ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float low = all[n][e], high = all[HALVES ? n + EIGHTS / 2 : n][e];
                kept[n][e] = (upper ? high : low) + __shfl_xor_sync(0xffffffff, upper ? low : high, LANES);
            }
        if constexpr (LANES > 4) reduce_scatter_into_dot<LANES / 2>(kept);
        else dot[0] = kept[0][0], dot[1] = kept[0][1];
    }
    // The first of the two positions that are left.
    __device__ __forceinline__ int position() const {
        int eight = W::PARTS > 1 ? part_ * 4 + lane() / 8 : lane() / 16 * 4 + lane() / 8 % 2 * 2 + lane() / 4 % 2;
        return eight * 8 + lane() % 4 * 2;
    }

  public:
    using Base::Base;
    NormaliserState n;

    // Of the parts that share out one adds to it.
    __device__ __forceinline__ bool is_first_part() const { return W::PARTS == 1 || part_ == 0; }

    // ANCHOR: f16
    // The state as an operand. Of f16 each row is divided by a power of two that its largest element says: Σ α, by which
    // Base divides, says nothing of z, and dh may be as large as its loss has been scaled.
    __device__ __forceinline__ void round() {
        if constexpr (is_f16<T>) {
            wgmma_wait<0>();
            float largest[2] = {}, down[2];
#pragma unroll
            for (int n = 0; n < W::KEY / 2; ++n) largest[n / 2 % 2] = fmaxf(largest[n / 2 % 2], fabsf(c[n]));
            for (int half = 0; half < 2; ++half) {
                down[half] = power_for_f16(warp_reduce<4>(largest[half], Max()));
                this->up[half] = inverse_of_power(down[half]);
            }
#pragma unroll
            for (int n = 0; n < W::KEY / 2; n += 2)
                rounded[n / 8][n / 2 % 4] = two_halves<T>(c[n] * down[n / 2 % 2], c[n + 1] * down[n / 2 % 2]);
        } else {
            Base::round();
        }
    }

    // C ← γ C, and, once it is there, out_i ← β_i out_i. Of f16 out is multiplied by `powers` as well, as pairs are.
    __device__ __forceinline__ void scale(const Weights& weights, const float* powers) {
        if constexpr (is_f16<T>) {
            float gamma = weights.template carried<T>(), by[2] = {this->up[0] * weights.behind, this->up[1] * weights.behind};
#pragma unroll
            for (int n = 0; n < W::KEY / 2; ++n) c[n] *= gamma;
            wgmma_wait<0>();
#pragma unroll
            for (int n = 0; n < CHUNK / 8; ++n) {
                int at = n * 8 + lane() % 4 * 2;
                float2 beta = *reinterpret_cast<const float2*>(&weights.beta[at]);
                float2 power = *reinterpret_cast<const float2*>(&powers[at]);
                beta.x *= power.x, beta.y *= power.y;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    out[4 * n + 2 * half] *= beta.x * by[half];
                    out[4 * n + 2 * half + 1] *= beta.y * by[half];
                }
            }
        } else {
            Base::scale(weights);
        }
    }

    // Of f16: the state as it is in memory, of one that is counted in `unit`.
    __device__ __forceinline__ void multiply(float unit) {
#pragma unroll
        for (int n = 0; n < W::KEY / 2; ++n) c[n] *= unit;
    }

    // Of f16: out without the powers.
    __device__ __forceinline__ void divide(const float* powers) {
#pragma unroll
        for (int n = 0; n < SHARE / 8; ++n) {
            int at = (W::PARTS > 1 ? part_ * SHARE : 0) + n * 8 + lane() % 4 * 2;
            float by[2] = {inverse_of_power(powers[at]), inverse_of_power(powers[at + 1])};
#pragma unroll
            for (int e = 0; e < 4; ++e) (W::PARTS > 1 ? both : out)[4 * n + e] *= by[e % 2];
        }
    }
    // ANCHOR_END: f16

    // What the normaliser adds to out, once C has been read, and the chunk to n, once z has been taken.
    template <Gradient OF> __device__ __forceinline__ void pass_normaliser(const Weights& weights, const float* powers) {
        if (is_first_part()) n.template read<T, OF == Gradient::Q>(out, weights, powers);
        n.template add<T, OF == Gradient::K>(weighted, weights, [this](int j) { return this->block(j) * 16; });
    }

    // out, rounded, once it is there.
    __device__ __forceinline__ void round_out(float4* room, int turn, const float* powers) {
        wgmma_wait<1>();
        if constexpr (W::PARTS > 1) this->exchange(room, turn);
        if constexpr (is_f16<T>) divide(powers);
#pragma unroll
        for (int n = 0; n < SHARE / 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                h[n / 2][n % 2 * 2 + half] = two_halves<T>(made()[4 * n + 2 * half], made()[4 * n + 2 * half + 1]);
    }

    // Its dots with the rows of a panel: before it is rounded, for what is made of them takes them from each other.
    __device__ __forceinline__ void multiply_rows(const T* other) {
        float all[SHARE / 8][2] = {};
#pragma unroll
        for (int j = 0; j < SHARE / 16; ++j) {
            unsigned by[4];
            load_columns(by, other, (W::PARTS > 1 ? part_ * SHARE : 0) + j * 16, warp() * 16);
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                int n = 2 * j + w / 2, at = 4 * n + w % 2 * 2;
                float2 two = floats_of<T>(by[w]);
                all[n][0] += made()[at] * two.x, all[n][1] += made()[at + 1] * two.y;
            }
        }
        reduce_scatter_into_dot<16>(all);
    }

    // To a panel, and the dots to those of the warp.
    template <bool DOTS> __device__ __forceinline__ void store_out(T* panel, float (*dots)[CHUNK]) const {
        this->store_share(panel);
        if (DOTS && (W::PARTS == 1 || lane() / 4 % 2 == 0))
            *reinterpret_cast<float2*>(&dots[warp()][position()]) = make_float2(dot[0], dot[1]);
    }
};

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
        auto send = [&] {
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
            if (n > 0) send();  // of the chunk before, while the product is made
            state.take(place.z[panel], reinterpret_cast<const T*>(place.weights.alpha));
            const float* powers = shared.powers_of(pair.place);
            if constexpr (is_f16<T>) pairs.wait_full(pair);  // the powers come with the pairs
            state.scale(place.weights, powers);
            if constexpr (HAS_RHO) state.template pass_normaliser<OF>(place.weights, powers);
            if constexpr (!is_f16<T>) pairs.wait_full(pair);
            state.add_chunk_pairs_to_out(shared.pairs[pair.place]);
            state.add_keys(place);
            state.round_out(shared.room, n, powers);
            leave(pairs, pair);
            if (DOTS) {
                others[panel].wait_full(other);
                state.multiply_rows(shared.other[panel]);
                // The rows are in registers. An arrival alone comes too early on an H200: ldmatrix waits while wgmma keeps
                // shared memory busy, and TMA's next box was there before it had read.
                __threadfence_block();
                leave(others[panel], other);
                other.advance();
            }
            state.round();
            leave(places, turn);
            pass(chunk(n));
        }
        if (count() > 0) send();
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

    // ANCHOR: pairs
    // A warpgroup: (x_t·y_τ) 2^(row_t + column_τ), rounded.
    __device__ __forceinline__ void make_pairs() const {
        Turn<W::PLACES> turn;
        Turn<2> pair;
        for (int n = 0; n < count(); ++n, turn.advance(), pair.advance()) {
            auto& place = shared.places[turn.place];
            float score[32], weight[32];
            places.wait_full(turn);
            wgmma_fence();
            multiply_scores<T, W::PARTS * W::KEY>(score, place);
            wgmma_commit();
            weights_of(weight, place.weights);  // while the product is made
            pairs.wait_empty(pair);
            wgmma_wait<0>();
            if constexpr (HAS_RHO) add_rho(score, place.weights);
            if constexpr (is_f16<T>) weigh(score, weight, shared.pairs[pair.place], shared.powers[pair.place]);
            else weigh(score, weight, shared.pairs[pair.place]);
            fence_proxy_async_shared();   // wgmma reads what was written by plain stores
            named_barrier_sync(2, 128);  // all warps have written and fenced theirs
            if (threadIdx.x % 128 == 0) mbarrier_arrive(&pairs.full[pair.place]);
            leave(places, turn);
        }
    }

    // x'_t y'_τ
    __device__ __forceinline__ static void add_rho(float (&score)[32], const Weights& weights) {
        int own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int at = 0; at < 32; ++at) {
            int row = own + at / 2 % 2 * 8, column = at / 4 * 8 + threadIdx.x % 4 * 2 + at % 2;
            score[at] += weights.rho[OF == Gradient::Q ? row : column];
        }
    }

    __device__ __forceinline__ static bool counts(int row, int column) { return BACK ? column >= row : column <= row; }

    __device__ __forceinline__ static void weigh(const float (&score)[32], const float (&weight)[32], T* to) {
        int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, own = warp * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16) {
            unsigned words[4];
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                int row = own + w % 2 * 8, column = j + w / 2 * 8 + lane % 4 * 2, at = (j + w / 2 * 8) / 2 + w % 2 * 2;
                // Not 0 · NaN, of a pair that does not count.
                words[w] = two_halves<T>(counts(row, column) ? score[at] * weight[at] : 0,
                                         counts(row, column + 1) ? score[at + 1] * weight[at + 1] : 0);
            }
            store_matrices(cell(to, warp * 16 + lane % 16, j + lane / 16 * 8), words);
        }
    }

    // The same of f16, each row times a power of two, which goes to `powers`: 1 / N and dh may be beyond what halves hold.
    __device__ __forceinline__ static void weigh(float (&score)[32], const float (&weight)[32], T* to, float* powers) {
        int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, own = warp * 16 + lane / 4;
        float power[2], largest[2] = {};
#pragma unroll
        for (int at = 0; at < 32; ++at) {
            int row = own + at / 2 % 2 * 8, column = at / 4 * 8 + lane % 4 * 2 + at % 2;
            // Not 0 · NaN, of a pair that does not count.
            score[at] = counts(row, column) ? score[at] * weight[at] : 0;
            largest[at / 2 % 2] = fmaxf(largest[at / 2 % 2], fabsf(score[at]));
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            power[r] = power_for_f16(warp_reduce<4>(largest[r], Max()));
            if (lane % 4 == 0) powers[own + 8 * r] = power[r];
        }
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16) {
            unsigned words[4];
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                int at = j / 2 + 2 * w;
                words[w] = two_halves<T>(score[at] * power[w % 2], score[at + 1] * power[w % 2]);
            }
            store_matrices(cell(to, warp * 16 + lane % 16, j + lane / 16 * 8), words);
        }
    }
    // ANCHOR_END: pairs

    // Where the sequence's Q and K are.
    __device__ __forceinline__ Sequence keys() const {
        Sequence of_keys = sequence;
        of_keys.head /= sharing;
        return of_keys;
    }

    // One thread: tiles, and the sequence's weights, by TMA. Who only adds to the state needs no x.
    template <bool WITH_X = true>
    __device__ __forceinline__ void bring(const TensorMap& x, const TensorMap& y, const TensorMap& z,
                                          const Weights* weights) const {
        using Place = GradientPlace<W>;
        Turn<W::PLACES> turn;
        Sequence of_keys = keys(), of_xy = OF == Gradient::V ? of_keys : sequence, of_z = OF == Gradient::V ? sequence : of_keys;
        for (int n = 0; n < count(); ++n, turn.advance()) {
            auto& place = shared.places[turn.place];
            Mbarrier* full = &places.full[turn.place];
            int first = chunk(n) * CHUNK;
            places.wait_empty(turn);
            mbarrier_arrive_expect(
                full, ((WITH_X + 1) * Place::PANELS + W::COLUMNS) * CHUNK * SPAN + sizeof(Weights));
            bulk_load(&place.weights, weights + chunk(n), sizeof(Weights), full);
#pragma unroll
            for (int p = 0; p < Place::PANELS; ++p) {
                if (WITH_X) tensor_load(place.x[p], x, of_xy.box(p * PANEL, first).at, full);
                tensor_load(place.y[p], y, of_xy.box(p * PANEL, first).at, full);
            }
#pragma unroll
            for (int p = 0; p < W::COLUMNS; ++p) tensor_load(place.z[p], z, of_z.box(column + p * PANEL, first).at, full);
        }
    }

    // One thread: what dots are made with.
    __device__ __forceinline__ void bring_others(const TensorMap& other) const {
        Turn<1> turn;
        for (int n = 0; n < count(); ++n, turn.advance())
            for (int p = 0; p < W::COLUMNS; ++p) {
                others[p].wait_empty(turn);
                mbarrier_arrive_expect(&others[p].full[0], CHUNK * SPAN);
                tensor_load(shared.other[p], other, keys().box(column + p * PANEL, chunk(n) * CHUNK).at, &others[p].full[0]);
            }
    }

    // A warp: a panel of what has been made to device memory, and its dots to those of the sequence.
    __device__ __forceinline__ void hand_on(int panel, const TensorMap& to, float* dots) const {
        int lane = threadIdx.x % 32;
        Turn<1> turn;
        for (int n = 0; n < count(); ++n, turn.advance()) {
            int first = chunk(n) * CHUNK;
            outs[panel].wait_full(turn);
            if (lane == 0) {
                tensor_store(to, sequence.box(column + panel * PANEL, first).at, shared.out[panel]);
                bulk_commit();
            }
            for (int row = lane; DOTS && row < min(CHUNK, sequence.length - first); row += 32) {
                auto& all = shared.dots[panel];
                dots[first + row] = (all[0][row] + all[1][row]) + (all[2][row] + all[3][row]);
            }
            if (lane == 0) bulk_wait_read<0>();
            leave(outs[panel], turn);
        }
    }
};

}  // namespace lab
