// A gradient of 128 positions and 256 columns, from the state at one end of their stretch and the positions in it:
//
//   out_t = read_t Stateᵀ x_t + Σ_τ (x_t·y_τ) 2^(row_t + column_τ) z_τ
//
// over the positions τ <= t of the stretch, or, back, τ >= t.
//
// x, y, z and State are those of gradient.cuh; weights are those of a stretch. THROUGH_N: with what normaliser.cuh adds of n.
#pragma once
#include "lab/ptx/bulk.cuh"
#include "lab/ring.cuh"
#include "lab/vlstm/powers.cuh"
#include "lab/vlstm/roles.cuh"
#include "lab/vlstm/weights.cuh"

namespace lab {

// Columns that come out, in halves; positions; and panels that come at once: 64 rows by half of the columns, or as many rows by 64.
constexpr int WIDE = 256, HALF = WIDE / 2, WIDE_ROWS = 2 * CHUNK, UNIT = HALF / PANEL;

// The block's shared memory. x has up to 512 columns; of 256 it has the places behind OUT. Each warpgroup's 64 rows of x are
// panels of their own. Its rows of out go to the first OUT of them in the end. Units come in pairs: a tile's weights have a
// place for two.
template <class Type> struct alignas(1024) WideTiles {
    using T = Type;
    static constexpr int OUT = WIDE / PANEL, X_PLACES = 2 * OUT, PLACES = 6;
    T x[X_PLACES][2][CHUNK * PANEL];
    T units[PLACES][UNIT][CHUNK * PANEL];
    float2 column[PLACES / 2][CHUNK];  // weights of a tile, which come with its z
};

// All but the ring take part once in each work. A warpgroup has read the places of x that out does not go to (read); of the
// work before, TMA has read out (sent).
template <int PLACES, int X_PLACES> struct WideBarriers {
    Ring<PLACES> units;
    Mbarrier x[X_PLACES][2], read[2], sent[2];

    // One thread, before a barrier.
    __device__ __forceinline__ void init() {
        for (int g = 0; g < 2; ++g) {
            mbarrier_init(&read[g], 4), mbarrier_init(&sent[g], 1);
            for (auto& place : x) mbarrier_init(&place[g], 1);
        }
        units.init(4 * 2);
    }
};

// A stretch of `tiles` chunks that begins at chunk `begin`. The block has the rows of its chunks 2 half and 2 half + 1, and the
// columns of out from `column` on. BY_KEYS: x has the keys of the state, not its values. parity: of the works that the block
// has made before, of which there is none if it is_first.
template <class T, int DX, bool BACK, bool BY_KEYS, bool THROUGH_N> struct WideGradient {
    using Tiles = WideTiles<T>;
    static constexpr int PANELS = DX / PANEL, PLACES = Tiles::PLACES, SPLITS = DX / HALF, OUT = Tiles::OUT;
    static constexpr bool DOTS = !BY_KEYS, WITH_N = THROUGH_N && !BY_KEYS;
    using Barriers = WideBarriers<PLACES, Tiles::X_PLACES>;
    Tiles& shared;
    Barriers& barriers;
    Sequence sequence;
    int begin, tiles, half, column;
    bool has_state;
    const float *scales, *n;  // of the state, if it is of f16, for each panel of values; and n, or its gradient
    int panels, keys;         // those that there are
    unsigned parity;
    bool is_first;

    // The tiles that some row of the block meets, from the n-th on those that the other warpgroup's rows meet alone.
    __device__ __forceinline__ int count() const { return BACK ? tiles - 2 * half : min(2 * half + 2, tiles); }
    __device__ __forceinline__ int count(int group) const {
        int own = 2 * half + group;
        return own >= tiles ? 0 : BACK ? tiles - own : own + 1;
    }
    __device__ __forceinline__ int tile(int n) const { return BACK ? tiles - 1 - n : n; }
    __device__ __forceinline__ int position(int tile) const { return (begin + tile) * CHUNK; }
    // Where a panel of x is: first those that come while out of the work before is in its places.
    __device__ __forceinline__ static constexpr int place(int panel) { return (panel + OUT) % Tiles::X_PLACES; }

    // Asks for a unit, once its place is empty: load(panel, its number, barrier). `more` bytes come by another copy.
    template <class Load>
    __device__ __forceinline__ void bring_unit(Turn<PLACES>& turn, Load load, int more = 0) const {
        Mbarrier* full = &barriers.units.full[turn.place];
        barriers.units.wait_empty(turn);
        mbarrier_arrive_expect(full, UNIT * CHUNK * SPAN + more);
#pragma unroll
        for (int p = 0; p < UNIT; ++p) load(shared.units[turn.place][p], p, full);
    }

    // ANCHOR: wide_bring
    // One thread: the state, panel by panel; then y and z of each tile; then what dots are made with.
    __device__ __forceinline__ void bring_units(const TensorMap& y, const TensorMap& z, const TensorMap& other,
                                                const TensorMap& states, int state, const Weights* weights,
                                                Turn<PLACES>& turn) const {
        auto columns = [&](const TensorMap& from, int column, int tile, int more = 0) {
            auto load = [&](T* to, int p, Mbarrier* full) {
                tensor_load(to, from, sequence.box(column + p * PANEL, position(tile)).at, full);
            };
            bring_unit(turn, load, more);
        };
        for (int p = 0; p < PANELS && has_state; ++p)
            for (int h = 0; h < 2; ++h, turn.advance())
                bring_unit(turn, [&](T* to, int n, Mbarrier* full) {
                    int part = (h * UNIT + n) * PANEL, key = BY_KEYS ? p * PANEL : part;
                    tensor_load(to, states, {key, BY_KEYS ? column + part : p * PANEL, state}, full);
                });
        for (int n = 0; n < count(); ++n) {
            for (int c = 0; c < SPLITS; ++c, turn.advance()) columns(y, c * HALF, tile(n));
            constexpr int BYTES = CHUNK * sizeof(float2);
            columns(z, column, tile(n), BYTES);
            bulk_load(column_of(turn), weights[begin + tile(n)].column, BYTES, &barriers.units.full[turn.place]);
            turn.advance();
            columns(z, column + HALF, tile(n));
            turn.advance();
        }
        for (int n = 0; n < 2 * dots(); ++n, turn.advance())
            columns(other, column + n % 2 * HALF, 2 * half + of_dots(n / 2));
    }
    __device__ __forceinline__ float2* column_of(Turn<PLACES> turn) const { return shared.column[turn.place / 2]; }
    // Pairs of units for dots: of each warpgroup's rows one, where there are any; first that of the one whose rows meet fewer tiles.
    __device__ __forceinline__ int dots() const { return DOTS ? min(2, tiles - 2 * half) : 0; }
    __device__ __forceinline__ int of_dots(int n) const { return BACK ? dots() - 1 - n : n; }

    // One thread: a warpgroup's rows of x. Those of the first OUT panels come while it still makes out of the work before.
    __device__ __forceinline__ void bring_rows(const TensorMap& x, int group) const {
        mbarrier_wait(&barriers.read[group], parity ^ 1);
        for (int p = 0; p < Tiles::X_PLACES; ++p) {
            Mbarrier* full = &barriers.x[place(p)][group];
            if (p == OUT) mbarrier_wait(&barriers.sent[group], parity ^ 1);
            if (p < PANELS) {
                mbarrier_arrive_expect(full, CHUNK * SPAN);
                tensor_load(shared.x[place(p)][group], x, sequence.box(p * PANEL, position(2 * half + group)).at, full);
            } else
                mbarrier_arrive(full);  // nothing comes, but out may go there
        }
    }
    // ANCHOR_END: wide_bring

    // ANCHOR: wide_state
    // out = β Stateᵀ x, of a warpgroup's rows. Of f16 it is counted, panel by panel of values, in the panel's scale.
    __device__ __forceinline__ void read_state(float (&out)[2][HALF / 2], int group, const Weights& own,
                                               Turn<PLACES>& turn) const {
        constexpr bool BY_PANEL = is_f16<T> && !BY_KEYS;
        int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        float by[2] = {own.beta[row], own.beta[row + 8]};  // on their way while the products are made
        Turn<PLACES> last;
        for (int p = 0; p < PANELS; ++p) {
            mbarrier_wait(&barriers.x[place(p)][group], parity);
            auto a = k_major<SPAN>(shared.x[place(p)][group], 8 * SPAN);
            if (BY_PANEL && has_state && p > 0) {
                wgmma_wait<0>();
                multiply(out, [by = scale(p - 1) / scale(p)](int, int) { return by; });
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (!has_state) break;
                barriers.units.wait_full(turn);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < PANEL; k += 16)
                    wgmma<T, HALF, false, !BY_KEYS>(out[h], advance(a, k * 2), b_of<!BY_KEYS>(turn, k));
                wgmma_commit();
                wgmma_wait<1>();
                if (p + h > 0) leave(barriers.units, last);
                last = turn;
                turn.advance();
            }
            // Whoever asked TMA to send out of the work before tells that it has read it.
            if (p == 0 && threadIdx.x % 128 == 0) {
                bulk_wait_read<0>();
                if (!is_first) mbarrier_arrive(&barriers.sent[group]);
            }
        }
        wgmma_wait<0>();
        if (!has_state) return;
        leave(barriers.units, last);
        if (BY_PANEL) by[0] *= scale(PANELS - 1), by[1] *= scale(PANELS - 1);
        multiply(out, [&](int h, int n) {
            return by[n / 2 % 2] * (is_f16<T> && BY_KEYS ? scale((column + h * HALF) / PANEL + n / 32) : 1);
        });
        if constexpr (WITH_N) add_normaliser(out, own, row);
    }

    // Behind the last panel the state is 0.
    __device__ __forceinline__ float scale(int panel) const { return scales[min(panel, panels - 1)]; }

    // out *= by(half, n)
    template <class By> __device__ __forceinline__ static void multiply(float (&out)[2][HALF / 2], By by) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int n = 0; n < HALF / 2; ++n) out[h][n] *= by(h, n);
    }

    // out += β x' n
    __device__ __forceinline__ void add_normaliser(float (&out)[2][HALF / 2], const Weights& own, int row) const {
        float by[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) by[r] = own.beta[row + 8 * r] * (BACK ? 1 : own.rho[row + 8 * r]);
#pragma unroll
        for (int c = 0; c < WIDE; c += 8) {
            int key = c + threadIdx.x % 4 * 2;
            if (key >= keys) continue;
            float* of = &out[c / HALF][c % HALF / 2];
#pragma unroll
            for (int e = 0; e < 4; ++e) of[e] += by[e / 2] * n[key + e % 2];
        }
    }
    // ANCHOR_END: wide_state

    // A unit as B, from step k of the sum on: its rows are steps, or columns.
    template <bool ROWS_ARE_STEPS>
    __device__ __forceinline__ unsigned long long b_of(Turn<PLACES> turn, int k) const {
        const T* unit = shared.units[turn.place][0];
        if (ROWS_ARE_STEPS) return advance(mn_major<SPAN>(unit, CHUNK * SPAN, 8 * SPAN), k * SPAN);
        return advance(k_major<SPAN>(unit, 8 * SPAN), k * 2);
    }

    // ANCHOR: wide_pairs
    // out += (x·y) 2^(row + column) z, of the tiles that the warpgroup's rows meet.
    __device__ __forceinline__ void add_chunk_pairs_to_out(float (&out)[2][HALF / 2], int group, const Weights& own,
                                                           const float2 (&row)[2], const Weights* weights,
                                                           Turn<PLACES>& turn) const {
        float largest[2] = {};  // of f16: of the pairs of the thread's rows so far
        auto have_read = [&] { if (threadIdx.x % 32 == 0) mbarrier_arrive(&barriers.read[group]); };
        if (count(group) == 0) have_read();
        for (int n = 0; n < count(group); ++n) {
            float score[32];
            unsigned pairs[CHUNK / 16][4];
            Turn<PLACES> last;
#pragma unroll
            for (int split = 0; split < SPLITS; ++split) {
                barriers.units.wait_full(turn);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < HALF; k += 16) {
                    auto a = k_major<SPAN>(shared.x[place(split * UNIT + k / PANEL)][group], 8 * SPAN);
                    auto b = k_major<SPAN>(shared.units[turn.place][k / PANEL], 8 * SPAN);
                    wgmma<T, CHUNK>(score, advance(a, k % PANEL * 2), advance(b, k % PANEL * 2), split + k > 0);
                }
                wgmma_commit();
                if (split > 0) {
                    wgmma_wait<1>();
                    leave(barriers.units, last);
                }
                last = turn;
                turn.advance();
            }
            wgmma_wait<0>();
            leave(barriers.units, last);
            if (n + 1 == count(group)) have_read();
            if constexpr (WITH_N) add_rho(score, own, weights[begin + tile(n)]);
            barriers.units.wait_full(turn);  // the tile's weights come with z's first half
            if constexpr (is_f16<T>) weigh(pairs, out, largest, score, row, turn, tile(n), 2 * half + group);
            else weigh(pairs, score, row, turn, tile(n), 2 * half + group);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (h > 0) barriers.units.wait_full(turn);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < CHUNK; k += 16) wgmma<T, HALF, true>(out[h], pairs[k / 16], b_of<true>(turn, k));
                wgmma_commit();
                if (h > 0) {
                    wgmma_wait<1>();
                    leave(barriers.units, last);
                }
                last = turn;
                turn.advance();
            }
            wgmma_wait<0>();
            leave(barriers.units, last);
        }
        if constexpr (is_f16<T>) {
            float by[2] = {inverse_of_power(power_for_f16(largest[0])), inverse_of_power(power_for_f16(largest[1]))};
            multiply(out, [&](int, int n) { return by[n / 2 % 2]; });
        }
        for (int n = (SPLITS + 2) * count(group); n < (SPLITS + 2) * count(); ++n, turn.advance()) {
            barriers.units.wait_full(turn);  // a place is left once each time that it is full
            leave(barriers.units, turn);
        }
    }

    // score += ρ, of its row, or, back, of its column.
    __device__ __forceinline__ void add_rho(float (&score)[32], const Weights& own, const Weights& of_tile) const {
        int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int n = 0; n < 32; ++n)
            score[n] += BACK ? of_tile.rho[n / 4 * 8 + threadIdx.x % 4 * 2 + n % 2] : own.rho[row + n / 2 % 2 * 8];
    }

    // Pairs as an operand.
    __device__ __forceinline__ void weigh(unsigned (&pairs)[CHUNK / 16][4], const float (&score)[32],
                                          const float2 (&of_row)[2], Turn<PLACES> turn, int tile, int own_tile) const {
        int own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        auto counts = [&](int row, int column) { return tile != own_tile || (BACK ? column >= row : column <= row); };
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n) {
            int at = n * 8 + threadIdx.x % 4 * 2;
            float4 e = *reinterpret_cast<const float4*>(&column_of(turn)[at]);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float low = score[4 * n + 2 * r] * power_of_two(sum_of(of_row[r], make_float2(e.x, e.y)));
                float high = score[4 * n + 2 * r + 1] * power_of_two(sum_of(of_row[r], make_float2(e.z, e.w)));
                // Not 0 · NaN, of a pair that does not count.
                pairs[n / 2][n % 2 * 2 + r] = two_halves<T>(counts(own + 8 * r, at) ? low : 0,
                                                            counts(own + 8 * r, at + 1) ? high : 0);
            }
        }
    }

    // The same of f16, and of out: each row times a power of two, that of its largest pair so far.
    __device__ __forceinline__ void weigh(unsigned (&pairs)[CHUNK / 16][4], float (&out)[2][HALF / 2], float (&largest)[2],
                                          float (&score)[32], const float2 (&of_row)[2], Turn<PLACES> turn, int tile,
                                          int own_tile) const {
        int own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        auto counts = [&](int row, int column) { return tile != own_tile || (BACK ? column >= row : column <= row); };
        float before[2] = {power_for_f16(largest[0]), power_for_f16(largest[1])}, power[2], by[2];
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n) {
            int at = n * 8 + threadIdx.x % 4 * 2;
            float4 e = *reinterpret_cast<const float4*>(&column_of(turn)[at]);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float *low = &score[4 * n + 2 * r], *high = low + 1;
                *low *= power_of_two(sum_of(of_row[r], make_float2(e.x, e.y)));
                *high *= power_of_two(sum_of(of_row[r], make_float2(e.z, e.w)));
                // Not 0 · NaN, of a pair that does not count.
                if (!counts(own + 8 * r, at)) *low = 0;
                if (!counts(own + 8 * r, at + 1)) *high = 0;
                largest[r] = fmaxf(largest[r], fmaxf(fabsf(*low), fabsf(*high)));
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            largest[r] = warp_reduce<4>(largest[r], Max());
            power[r] = power_for_f16(largest[r]), by[r] = power[r] * inverse_of_power(before[r]);
        }
        if (__any_sync(0xffffffff, by[0] != 1 || by[1] != 1)) multiply(out, [&](int, int n) { return by[n / 2 % 2]; });
#pragma unroll
        for (int n = 0; n < CHUNK / 4; ++n)
            pairs[n / 4][n % 4] = two_halves<T>(score[2 * n] * power[n % 2], score[2 * n + 1] * power[n % 2]);
    }
    // ANCHOR_END: wide_pairs

    // What dots are made with comes for each warpgroup; both leave it, once it is used. out·other of the warpgroup's rows,
    // before it is rounded, to dots[position].
    __device__ __forceinline__ void make_dots(const float (&out)[2][HALF / 2], int group, float* to,
                                              Turn<PLACES>& turn) const {
        for (int n = 0; n < dots(); ++n) {
            float sum[2] = {};
#pragma unroll
            for (int h = 0; h < 2; ++h, turn.advance()) {
                barriers.units.wait_full(turn);
                if (of_dots(n) == group) multiply_rows(sum, out[h], turn.place);
                __threadfence_block();  // what was read is here before the place is left
                leave(barriers.units, turn);
            }
            if (of_dots(n) == group) store_dots(sum, group, to);
        }
    }
    __device__ __forceinline__ void multiply_rows(float (&sum)[2], const float (&out)[HALF / 2], int place) const {
        int own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int n = 0; n < HALF / 8; ++n) {
                const T* at = cell(shared.units[place][n / 8], own + 8 * r, n % 8 * 8 + threadIdx.x % 4 * 2);
                float2 two = floats_of<T>(*reinterpret_cast<const unsigned*>(at));
                sum[r] += out[4 * n + 2 * r] * two.x + out[4 * n + 2 * r + 1] * two.y;
            }
    }
    __device__ __forceinline__ void store_dots(float (&sum)[2], int group, float* dots) const {
        int first = position(2 * half + group) + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
            if (threadIdx.x % 4 == 0 && first + 8 * r < sequence.length) dots[first + 8 * r] = sum[r];
        }
    }

    // out, rounded, by places of x: what x had there is read, or, of fewer columns, TMA has read the work before.
    __device__ __forceinline__ void store(const float (&out)[2][HALF / 2], int group, const TensorMap& to) const {
        int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        for (int p = 0; p < OUT; ++p) mbarrier_wait(&barriers.x[p][group], parity);
#pragma unroll
        for (int c = 0; c < WIDE; c += 16) {
            const float* of = &out[c / HALF][c % HALF / 2];
            unsigned words[4];
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                int at = w / 2 * 4 + w % 2 * 2;
                words[w] = two_halves<T>(of[at], of[at + 1]);
            }
            store_matrices(cell(shared.x[c / PANEL][group], warp * 16 + lane % 16, c % PANEL + lane / 16 * 8), words);
        }
        fence_proxy_async_shared();          // TMA reads what was written by plain stores
        named_barrier_sync(1 + group, 128);  // all of the warpgroup's rows are written
        if (threadIdx.x % 128 > 0) return;
        for (int p = 0; p < OUT; ++p)
            tensor_store(to, sequence.box(column + p * PANEL, position(2 * half + group)).at, shared.x[p][group]);
        bulk_commit();
    }
};

}  // namespace lab
