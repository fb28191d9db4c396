// The walk of walk.cuh by warpgroups: each has 64 columns of V, and the state of these, transposed, as accumulators of wgmma.
//
//   R = diag(beta) (V - (K ⊙ read) C)      U = inverse R      H = s (Q ⊙ read) C + pairs U      C⁺ = exp(γ_L) C + (K ⊙ write)ᵀ U
//
// The sums of each product lie as the next one takes A from registers, once they are rounded. B is what lies in shared memory:
//
//   Cᵀ Kᵀ, Cᵀ Qᵀ, Rᵀ inverseᵀ, Uᵀ pairsᵀ      as it lies, [position][key] or [i][j]
//   (write U)ᵀ K                              transposed
#pragma once
#include "lab/gdn/walk_tiles.cuh"
#include "solver.cuh"

namespace lab {

template <class T, int KEY> class Walker {
    float state[KEY / 2];           // C[value][key]
    unsigned rounded[KEY / 16][4];  // the same, as the left operand of products
    unsigned h[CHUNK / 16][4];      // of the chunk before, rounded

    // to = Cᵀ rowsᵀ: a group.
    __device__ __forceinline__ void read(float (&to)[CHUNK / 2], const Panels<T, KEY, CHUNK>& rows) const {
#pragma unroll
        for (int c = 0; c < KEY; c += 16)
            wgmma<T, CHUNK>(to, rounded[c / 16], advance(k_major<SPAN>(rows.panel[c / PANEL], 8 * SPAN), c % PANEL * 2), c > 0);
        wgmma_commit();
    }
    // to += x weightsᵀ: a group.
    __device__ __forceinline__ static void weigh(float (&to)[CHUNK / 2], const unsigned (&x)[CHUNK / 16][4],
                                                 const Panels<T, PANEL, CHUNK>& weights, bool adds) {
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16)
            wgmma<T, CHUNK>(to, x[j / 16], advance(k_major<SPAN>(weights.panel[0], 8 * SPAN), j * 2), adds || j > 0);
        wgmma_commit();
    }

  public:
    // Of one chunk, [value][position]. Declared where a chunk begins: of wgmma that adds nothing the compiler does not know that what
    // was there is read no more, and would keep it.
    struct Sums {
        float read[CHUNK / 2], out[CHUNK / 2];
        unsigned left[CHUNK / 16][4], written[CHUNK / 16][4];
    };

    __device__ __forceinline__ void begin(const float* C0, int value, int dhqk, int dhhv) {
        load_state<KEY>(state, C0, value, dhqk, dhhv);
        round();
    }
    __device__ __forceinline__ void end(float* CN, int value, int dhqk, int dhhv) const {
        store_state<KEY>(state, CN, value, dhqk, dhhv);
    }
    __device__ __forceinline__ void round() {
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 2) rounded[n / 8][n / 2 % 4] = two_halves<T>(state[n], state[n + 1]);
    }

    // ANCHOR: read_both
    // Cᵀ Kᵀ and Cᵀ Qᵀ, on their way.
    __device__ __forceinline__ void read_keys(Sums& of, const Solved<T, KEY>& place) {
        wgmma_fence();
        read(of.read, place.k);
    }
    __device__ __forceinline__ void read_queries(Sums& of, const Solved<T, KEY>& place) {
        wgmma_fence();
        read(of.out, place.q);
    }
    // ANCHOR_END: read_both

    // ANCHOR: solve
    // What is left of the state, while these are made. Then R, and U, which is rounded, and times what is left of it behind the chunk.
    __device__ __forceinline__ void solve(Sums& of, const Solved<T, KEY>& place, const T* v, float scale) {
        int column = computed_here(threadIdx.x) / 32 % 4 * 16;
        const Decays& decays = place.decays;
        float kept = decays.read[CHUNK - 1];
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) state[n] *= kept;
        if (kept == 0) {
#pragma unroll
            for (int n = 0; n < KEY / 2; ++n) state[n] = 0;  // also of ∞
        }
        unsigned values[CHUNK / 16][4];
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16) load_left_turned(values[j / 16], v, column, j);
        wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16)
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                float2 x = floats_of<T>(values[j / 16][w]), beta = own_pair(decays.beta, j, w);
                float2 both = own_pair(place.gates.beta_read, j, w);
                int n = j / 2 + 2 * w;
                of.left[j / 16][w] =
                    two_halves<T>(beta.x * x.x - keep(both.x, of.read[n]), beta.y * x.y - keep(both.y, of.read[n + 1]));
            }
        wgmma_fence();
        weigh(of.read, of.left, place.inverse, false);
#pragma unroll
        for (int n = 0; n < CHUNK / 2; n += 2) {
            float2 read = own_pair(decays.read, n / 8 * 16, n / 2 % 4);
            of.out[n] = keep(scale * read.x, of.out[n]), of.out[n + 1] = keep(scale * read.y, of.out[n + 1]);
        }
        wgmma_wait<0>();
        round_pairs<T>(of.written, of.read);
#pragma unroll
        for (int n = 0; n < CHUNK / 2; n += 2) {
            float2 by = own_pair(decays.write, n / 8 * 16, n / 2 % 4);
            of.left[n / 8][n / 2 % 4] = two_halves<T>(by.x * of.read[n], by.y * of.read[n + 1]);
        }
    }
    // ANCHOR_END: solve

    // ANCHOR: update
    // The state first, for the next chunk waits for it; h is made while it is rounded.
    __device__ __forceinline__ void update(Sums& of, const Solved<T, KEY>& place) {
        wgmma_fence();
        multiply_values<T, KEY, CHUNK>(state, of.left, place.k, true);
        wgmma_commit();
        weigh(of.out, of.written, place.pairs, true);
        wgmma_wait<1>();
        round();
        wgmma_wait<0>();
        round_pairs<T>(h, of.out);
    }
    // ANCHOR_END: update

    // h to a panel, of which a warp has read its own columns alone.
    __device__ __forceinline__ void store(T* panel) const {
        int column = computed_here(threadIdx.x) / 32 % 4 * 16;
        __syncwarp();  // all lanes have read V
#pragma unroll
        for (int i = 0; i < CHUNK; i += 16)
            store_matrices_transposed(panel + i * PANEL + (offset_by_columns() ^ column), h[i / 16]);
    }
};

}  // namespace lab
