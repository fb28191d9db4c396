// The state of a head, transposed, in the accumulators of warpgroups: each has 64 columns of V by KEY keys.
#pragma once
#include "lab/ptx/named_barrier.cuh"
#include "lab/reduce.cuh"
#include "lab/vlstm/chunk.cuh"

namespace lab {

// Of one warpgroup. As A operand, by rows of 16 keys, accumulators are where wgmma wants them, once they are rounded.
// PARTS warpgroups may share 64 columns: each has KEY keys, and of out what these bring, and its share of the pairs.
template <class T, int KEY, int PARTS = 1> class State {
  public:
    static constexpr int SHARE = CHUNK / PARTS;  // of the positions of out, those that a part hands on

  protected:
    static constexpr int BLOCKS = CHUNK / 16;  // of positions
    int part_;
    float c[KEY / 2];     // C[value][key]
    float out[CHUNK / 2];  // [value][position]
    Mass<T> mass[2];       // of rows lane / 4 and 8 more
    unsigned rounded[KEY / 16][4], z[CHUNK / 16][4], weighted[CHUNK / 16][4], h[SHARE / 16][4];
    float both[PARTS > 1 ? SHARE / 2 : 1];  // out of both parts
    __device__ __forceinline__ const float* made() const { return PARTS > 1 ? both : out; }

    __device__ __forceinline__ static int warp() { return threadIdx.x / 32 % 4; }
    __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }

    // `c[n]` is C of these.
    __device__ __forceinline__ static int value_of(int n) { return warp() * 16 + lane() / 4 + n / 2 % 2 * 8; }
    __device__ __forceinline__ int key_of(int n) const {
        return (PARTS > 1 ? part_ * KEY : 0) + n / 4 * 8 + lane() % 4 * 2 + n % 2;
    }
    // The first panel of its keys, and the positions that it takes as its j-th sixteen: its share of the pairs first.
    __device__ __forceinline__ int panel() const { return PARTS > 1 ? part_ * (KEY / PANEL) : 0; }
    __device__ __forceinline__ int block(int j) const {
        return PARTS > 1 ? (j + part_ * (BLOCKS / PARTS)) % BLOCKS : j;
    }

  public:
    __device__ __forceinline__ explicit State(int part = 0) : part_(part) {}

    // 0, or C0 [dhqk][dhhv] from column `value` on; or [dhhv][dhqk].
    template <bool TRANSPOSED = false>
    __device__ __forceinline__ void begin(const float* C0, int value, int dhqk, int dhhv) {
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) {
            int key = key_of(n), column = value + value_of(n);
            long long at = TRANSPOSED ? 1ll * column * dhqk + key : 1ll * key * dhhv + column;
            c[n] = C0 && key < dhqk && column < dhhv ? C0[at] : 0;
        }
    }

    __device__ __forceinline__ void end(float* CN, int value, int dhqk, int dhhv) const {
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) {
            int key = key_of(n), column = value + value_of(n);
            if (key < dhqk && column < dhhv) CN[1ll * key * dhhv + column] = c[n];
        }
    }

    // What one walk adds to the state, as its accumulators lie: KEY / 2 of each of 128 threads.
    static constexpr int PART = KEY * PANEL;
    __device__ __forceinline__ void store_part(float* part) const {
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) part[n * 128 + threadIdx.x % 128] = c[n];
    }

    // C as its accumulators lie, SAVED words of 128 threads: two in a word in bf16, and floats where T is f16, which
    // would hold neither a sum of as many positions nor as many digits.
    static constexpr int SAVED = (is_f16<T> ? KEY / 2 : KEY / 4) * 128;
    __device__ __forceinline__ void save(unsigned* to) const {
        to += threadIdx.x % 128;
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 2)
            if constexpr (is_f16<T>) to[n * 128] = __float_as_uint(c[n]), to[(n + 1) * 128] = __float_as_uint(c[n + 1]);
            else to[n / 2 * 128] = two_halves<T>(c[n], c[n + 1]);
    }

    // The thread's share of the inner product of C and what another has saved.
    __device__ __forceinline__ float inner_product(const unsigned* saved) const {
        float sum = 0;
        saved += threadIdx.x % 128;
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 2) {
            float2 two;
            if constexpr (is_f16<T>) two = {__uint_as_float(saved[n * 128]), __uint_as_float(saved[(n + 1) * 128])};
            else two = floats_of<T>(saved[n / 2 * 128]);
            sum += c[n] * two.x + c[n + 1] * two.y;
        }
        return sum;
    }

    // The same of C and another [dhqk][dhhv].
    __device__ __forceinline__ float inner_product(const float* other, int value, int dhqk, int dhhv) const {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) {
            int key = key_of(n), column = value + value_of(n);
            if (key < dhqk && column < dhhv) sum += c[n] * other[1ll * key * dhhv + column];
        }
        return sum;
    }

    // Another state, transposed: its values are this one's keys, its keys from `key` on this one's values. Where the
    // accumulator n lies among those that it has left: begins(key) words on and as many as follows, of `size` a panel.
    __device__ __forceinline__ int begins(int key, int size) const {
        key += warp() * 16 + lane() / 4;
        return (PARTS > 1 ? part_ * (KEY / PANEL) : 0) * size + key / 8 * 512 + key % 2 * 128 + lane() % 4 * 8 + key % 8 / 2;
    }
    __device__ __forceinline__ static constexpr int follows(int n, int size) {
        return n / 32 * size + n / 2 % 2 * 512 + n / 4 % 2 * 256 + n / 8 % 4 * 32 + n % 2 * 4;
    }
    // C ← gamma C + part, of such a one, whose panels have `size` floats.
    template <int SIZE> __device__ __forceinline__ void join_transposed(const float* part, float gamma, int key) {
        part += begins(key, SIZE);
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) c[n] = gamma * c[n] + part[follows(n, SIZE)];
    }
    // C is what such a one has saved, in panels of SIZE words.
    template <int SIZE> __device__ __forceinline__ void begin_transposed(const unsigned* saved, int key) {
        if constexpr (is_f16<T>) {
            saved += begins(key, SIZE);
#pragma unroll
            for (int n = 0; n < KEY / 2; ++n) c[n] = __uint_as_float(saved[follows(n, SIZE)]);
        } else {
            // Two words have become one: of a pair of keys.
            int at = begins(key, 2 * SIZE), odd = at / 128 % 2;
            saved += at / 256 * 128 + at % 128;
#pragma unroll
            for (int n = 0; n < KEY / 2; ++n) {
                float2 two = floats_of<T>(saved[follows(n, 2 * SIZE) / 256 * 128 + follows(n, 2 * SIZE) % 128]);
                c[n] = odd ? two.y : two.x;
            }
        }
    }

    // C ← gamma C + alpha part
    __device__ __forceinline__ void join(const float* part, float gamma, float alpha) {
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) c[n] = gamma * c[n] + alpha * part[n * 128 + threadIdx.x % 128];
    }

    // Of what the state has, before its first chunk.
    __device__ __forceinline__ void weigh() {
        float largest[2] = {};
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) largest[n / 2 % 2] = fmaxf(largest[n / 2 % 2], fabsf(c[n]));
        for (int half = 0; half < 2; ++half) mass[half] = Mass<T>(warp_reduce<4>(largest[half], Max()));
    }

    // The state as an operand, once nothing is on its way.
    __device__ __forceinline__ void round() {
        wgmma_wait<0>();
        float down[2] = {mass[0].down(), mass[1].down()};
#pragma unroll
        for (int k = 0; k < KEY / 16; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w)
                rounded[k][w] =
                    two_halves<T>(c[8 * k + 2 * w] * down[w % 2], c[8 * k + 2 * w + 1] * down[w % 2]);
    }

    // ANCHOR: read
    // out_i = Cᵀ x_i, as the state is before the chunk: a group of wgmma.
    template <class Place> __device__ __forceinline__ void multiply_by_state(const Place& place) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEY; k += 16)
            wgmma<T, CHUNK>(out, rounded[k / 16], advance(k_major<SPAN>(place.x[panel() + k / PANEL], 8 * SPAN), k % PANEL * 2), k > 0);
        wgmma_commit();
    }

    // C ← γ C, and, once it is there, out_i ← s β_i out_i.
    template <class Gates> __device__ __forceinline__ void scale(const Gates& gates) {
        float gamma = gates.gamma;
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) c[n] *= gamma;
        float up[2] = {mass[0].up(), mass[1].up()};
        for (int half = 0; half < 2; ++half) mass[half].add(gates);
        wgmma_wait<0>();
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n) {
            float2 beta = *reinterpret_cast<const float2*>(&gates.beta[n * 8 + lane() % 4 * 2]);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                out[4 * n + 2 * half] *= beta.x * up[half], out[4 * n + 2 * half + 1] *= beta.y * up[half];
        }
    }

    // C ← γ C alone, once it is there.
    template <class Gates> __device__ __forceinline__ void decay(const Gates& gates) {
        float gamma = gates.gamma;
        wgmma_wait<0>();
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) c[n] *= gamma;
    }
    // ANCHOR_END: read

    // z, and α z.
    __device__ __forceinline__ void take(const T* values, const T* alpha) {
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j) {
            load_columns(z[j], values, block(j) * 16, warp() * 16);
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                int at = block(j) * 16 + w / 2 * 8 + lane() % 4 * 2;
                weighted[j][w] = multiply_halves<T>(z[j][w], *reinterpret_cast<const unsigned*>(alpha + at));
            }
        }
    }

    // ANCHOR: update
    // out_i += Σ_j pair_ij z_j, of pairs as C̃: a group of wgmma.
    __device__ __forceinline__ void add_chunk_pairs_to_out(const T* pairs) {
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < BLOCKS / PARTS; ++j)
            wgmma<T, CHUNK>(out, z[j], advance(k_major<SPAN>(pairs, 8 * SPAN), block(j) * 32));
        wgmma_commit();
    }

    // C += Σ_j α_j z_j y_jᵀ: another.
    template <class Place> __device__ __forceinline__ void add_keys(const Place& place) {
        constexpr unsigned ROWS = Place::Y_ROWS * SPAN;
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
            wgmma<T, KEY, true>(c, weighted[j],
                                advance(mn_major<SPAN>(place.y[panel()], ROWS, 8 * SPAN), block(j) * 16 * SPAN));
        wgmma_commit();
    }
    // ANCHOR_END: update

    // ANCHOR: store
    // h_i = out_i / (n_i + eps), rounded, once it is there; or out_i itself.
    template <bool DIVIDES = true>
    __device__ __forceinline__ void divide(const float* inverse) {
        static_assert(PARTS == 1, "parts have to give each other their shares first");
        wgmma_wait<1>();
#pragma unroll
        for (int n = 0; n < SHARE / 8; ++n) {
            float2 by = {1, 1};
            if constexpr (DIVIDES) by = *reinterpret_cast<const float2*>(&inverse[n * 8 + lane() % 4 * 2]);
            h[n / 2][n % 2 * 2] = two_halves<T>(out[4 * n] * by.x, out[4 * n + 1] * by.y);
            h[n / 2][n % 2 * 2 + 1] = two_halves<T>(out[4 * n + 2] * by.x, out[4 * n + 3] * by.y);
        }
    }

    // The share of h to a panel.
    __device__ __forceinline__ void store_share(T* panel) const {
#pragma unroll
        for (int i = 0; i < SHARE; i += 16) {
            int row = (PARTS > 1 ? part_ * SHARE : 0) + i + lane() / 16 * 8 + lane() % 8;
            store_matrices_transposed(cell(panel, row, warp() * 16 + lane() / 8 % 2 * 8), h[i / 16]);
        }
    }

    // h by `panel` and TMA, once it has read what the panel held. The parts of `column` have a barrier for themselves.
    __device__ __forceinline__ void store(T* panel, const TensorMap& H, const Box& box, int column) const {
        bulk_wait_read<0>();
        named_barrier_sync(1 + column, PARTS * 128);  // nobody overwrites the panel before TMA has read it
        store_share(panel);
        fence_proxy_async_shared();  // TMA reads what was written by plain stores
        named_barrier_sync(1 + column, PARTS * 128);  // all of the panel is written
        if (threadIdx.x % (PARTS * 128) == 0) {
            tensor_store(H, box.at, panel);
            bulk_commit();
        }
    }
    // The same by one of two panels in turn, for which one barrier is enough.
    __device__ __forceinline__ void store_in_turn(T* panel, const TensorMap& H, const Box& box, int column) const {
        static_assert(PARTS == 1, "parts share a panel: wait for all of them");
        store_share(panel);
        fence_proxy_async_shared();  // TMA reads what was written by plain stores
        if (threadIdx.x % 128 == 0) bulk_wait_read<0>();
        // All of the panel is written; and TMA has read the other one, which is written next.
        named_barrier_sync(1 + column, 128);
        if (threadIdx.x % 128 == 0) {
            tensor_store(H, box.at, panel);
            bulk_commit();
        }
    }
    // ANCHOR_END: store

};

}  // namespace lab
