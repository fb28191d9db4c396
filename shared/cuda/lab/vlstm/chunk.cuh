// What a block has in shared memory of a chunk of 64 positions, and what threads do with it.
//
// Panels are 64 columns wide, 128 bytes, swizzled as TMA writes them and wgmma reads them. A panel of K has
// 72 rows: row 64 and row 65 are n before the chunk as two numbers of T, whose sum it is to 16 bits and more, and the
// others 0. So one product makes the scores and q·n.
#pragma once
#include "lab/gates.cuh"
#include "lab/halves.cuh"
#include "lab/ptx/compute_here.cuh"
#include "lab/ptx/ldmatrix.cuh"
#include "lab/ptx/mma.cuh"
#include "lab/ptx/stmatrix.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/ptx/wgmma.cuh"
#include "lab/vlstm/sequence.cuh"

namespace lab {

constexpr int CHUNK = 64, PANEL = 64, SPAN = 128, N_ROWS = 8;
constexpr int ANCHOR_CHUNKS = STRETCH / CHUNK;

// What the gates say of a chunk's positions.
struct Gates {
    float2 row[CHUNK], column[CHUNK];  // s P_ij = 2^(row_i + column_j), each the sum of two floats
    float beta[CHUNK], floor[CHUNK];   // s β_i, exp(-m_i)
    float gamma, alpha_sum;            // γ, and Σ_j α_j, which only f16 asks for
};

// How much a state may have gathered, as Σ α: γ and α bring it on as they bring the state. Divided by that, as a power
// of two, a state is a mean, which f16 holds where it would not hold the sum. T of wider range need no such thing.
template <class T> class Mass {
    float mass_;

    // The smallest power of two above mass_, at least 2.
    __device__ __forceinline__ float power() const {
        return 2 * __int_as_float(__float_as_int(fmaxf(mass_, 1)) & 0x7f800000);
    }

  public:
    // Of a state whose largest element is this.
    __device__ __forceinline__ explicit Mass(float largest = 0) : mass_(largest) {}
    template <class Gates> __device__ __forceinline__ void add(const Gates& gates) { mass_ = gates.gamma * mass_ + gates.alpha_sum; }
    // What to multiply the state by, and what comes of it.
    __device__ __forceinline__ float down() const { return is_f16<T> ? 1 / power() : 1; }
    __device__ __forceinline__ float up() const { return is_f16<T> ? power() : 1; }
};

// What one turn of the loop takes of x, y and z: a walk reads the state by x, and adds y zᵀ to it. These are Q, K and V
// here; in the walks for gradients (vlstm_fwbw_v4) dh and others. GROUPS panels of z, one for each warpgroup that holds a
// part of the state: of one head, or each of a head of its own, where HEADS of them share Q and K.
template <class T, int KEY, int GROUPS, int HEADS = 1> struct alignas(1024) Place {
    static constexpr int PANELS = KEY / PANEL, Y_ROWS = CHUNK + N_ROWS, N_CELLS = N_ROWS * PANEL;
    T x[PANELS][CHUNK * PANEL];
    T y[PANELS][Y_ROWS * PANEL];
    T z[GROUPS][CHUNK * PANEL];
    T alpha[8 * PANEL];  // α_j: row 0 what T holds of it, row 1 what that leaves out, the others 0
    Gates gates;

    // ANCHOR: load
    // Asks for the chunk from position `first` on, and the values from column `value` on; one thread. Who only adds to
    // the state needs no Q. `more` bytes come by other copies. So many heads as `sharing` says have the same Q and K.
    template <bool WITH_Q = true>
    __device__ __forceinline__ void load(const TensorMap& Q, const TensorMap& K, const TensorMap& V,
                                         const Sequence& sequence, int first, int value, Mbarrier* full,
                                         unsigned more = 0, int sharing = 1) {
        Sequence of_keys = sequence;
        of_keys.head /= sharing;
        mbarrier_arrive_expect(full, ((WITH_Q + 1) * PANELS + GROUPS) * CHUNK * SPAN + more);
#pragma unroll
        for (int p = 0; p < PANELS; ++p) {
            if (WITH_Q) tensor_load(x[p], Q, of_keys.box(p * PANEL, first).at, full);
            tensor_load(y[p], K, of_keys.box(p * PANEL, first).at, full);
        }
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            Sequence own = sequence;
            if (HEADS > 1) own.head += g;
            tensor_load(z[g], V, own.box(HEADS > 1 ? value : value + g * PANEL, first).at, full);
        }
    }
    // ANCHOR_END: load

    // Zeros in the rows behind n and α, which nobody writes later; all THREADS of the block, then a fence and a barrier.
    template <int THREADS> __device__ __forceinline__ void clear() {
        for (int at = threadIdx.x; at < PANELS * N_CELLS; at += THREADS)
            y[at / N_CELLS][CHUNK * PANEL + at % N_CELLS] = from_math<T>(0);
        for (int at = threadIdx.x; at < 8 * PANEL; at += THREADS) alpha[at] = from_math<T>(0);
    }
};

// Of two heads that share Q and K, with what the second one's gates say.
template <class T, int KEY> struct PlaceOfTwo : Place<T, KEY, 2, 2> {
    // Said here: NVRTC begins a derived struct in the padding of its base, 8 bytes past a multiple of 16.
    alignas(16) T more_alpha[PANEL * 2];
    alignas(16) Gates more_gates;
};
template <class T, int KEY, int GROUPS, int HEADS> struct PlaceOf { using type = Place<T, KEY, GROUPS>; };
template <class T, int KEY> struct PlaceOf<T, KEY, 2, 2> { using type = PlaceOfTwo<T, KEY>; };

// An element of a panel.
template <class T> __device__ __forceinline__ T* cell(T* panel, int row, int column) {
    return panel + row * PANEL + (column / 8 ^ row % 8) * 8 + column % 8;
}

// 16 columns of a panel, from `column` on, by 16 rows, from `row` on, as the rows and the k of an A operand. One warp.
template <class T>
__device__ __forceinline__ void load_columns(unsigned (&to)[4], const T* panel, int row, int column) {
    int lane = threadIdx.x % 32;
    load_matrices_transposed(to, cell(panel, row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
}

// ANCHOR: scores
// score = X [Y; n]ᵀ, of KEY columns of both: 64 rows, and as many columns as Y's panels have rows; without n 64.
template <class T, int KEY, int SIZE, class Place>
__device__ __forceinline__ void multiply_scores(float (&score)[SIZE], const Place& place) {
    static_assert(2 * SIZE == Place::Y_ROWS || 2 * SIZE == CHUNK, "a score for each of 64 rows and each of Y's");
#pragma unroll
    for (int k = 0; k < KEY; k += 16)
        wgmma<T, 2 * SIZE>(score, advance(k_major<SPAN>(place.x[k / PANEL], 8 * SPAN), k % PANEL * 2),
                                advance(k_major<SPAN>(place.y[k / PANEL], 8 * SPAN), k % PANEL * 2), k > 0);
}
// ANCHOR_END: scores

// ANCHOR: weights
// s P_ij of rows lane / 4 and 8 more, at the columns that the lane has of a product.
template <class Gates> __device__ __forceinline__ void weights_of(float (&weight)[32], const Gates& gates) {
    int own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    float2 of_row[2] = {gates.row[own], gates.row[own + 8]};
#pragma unroll
    for (int n = 0; n < CHUNK / 8; ++n) {
        int column = n * 8 + threadIdx.x % 4 * 2;
        float4 e = *reinterpret_cast<const float4*>(&gates.column[column]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            weight[4 * n + 2 * r] = power_of_two(sum_of(of_row[r], make_float2(e.x, e.y)));
            weight[4 * n + 2 * r + 1] = power_of_two(sum_of(of_row[r], make_float2(e.z, e.w)));
        }
    }
    compute_here(weight);
}

// C̃_ij = s (q_i·k_j) P_ij, rounded, to `pairs`, a panel; l_i = Σ_j C̃_ij + s β_i n·q_i of the same rows, where the
// product has n divided by `up`. weight(at) is of elements `at` and `at` + 1 of the product. Without n there is no l.
template <class T, int SIZE, class Weight>
__device__ __forceinline__ void weigh_by(float (&l)[2], const float (&score)[SIZE], const Weight& weight,
                                         const Gates& gates, float up, T* pairs) {
    constexpr bool WITH_N = 2 * SIZE > CHUNK;
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, own = warp * 16 + lane / 4;
#pragma unroll
    for (int r = 0; WITH_N && r < 2; ++r) l[r] = gates.beta[own + 8 * r] * up * (score[32 + 2 * r] + score[33 + 2 * r]);
#pragma unroll
    for (int j = 0; j < CHUNK; j += 16) {
        unsigned words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            int r = w % 2, row = own + 8 * r, column = j + w / 2 * 8 + lane % 4 * 2, at = (j + w / 2 * 8) / 2 + 2 * r;
            float2 by = weight(at);
            // Not 0 · NaN, where K's row is a later one.
            float x = column <= row ? score[at] * by.x : 0, y = column < row ? score[at + 1] * by.y : 0;
            if (WITH_N) l[r] += x + y;
            words[w] = two_halves<T>(x, y);
        }
        store_matrices(cell(pairs, warp * 16 + lane % 16, j + lane / 16 * 8), words);
    }
#pragma unroll
    for (int r = 0; WITH_N && r < 2; ++r)
        for (int d = 1; d < 4; d *= 2) l[r] += __shfl_xor_sync(0xffffffff, l[r], d);
}

// The same by weights that are there.
template <class T, int SIZE>
__device__ __forceinline__ void weigh(float (&l)[2], const float (&score)[SIZE], const float (&weight)[32],
                                      const Gates& gates, float up, T* pairs) {
    weigh_by(l, score, [&](int at) { return make_float2(weight[at], weight[at + 1]); }, gates, up, pairs);
}
// ANCHOR_END: weights

// From l_i to n_i = max(|l_i|, exp(-m_i)), and 1 / (n_i + eps) to `inverse`.
__device__ __forceinline__ void normalise(float (&l)[2], const Gates& gates, float* inverse, float eps) {
    int own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float floor = gates.floor[own + 8 * r];
        l[r] = fabsf(l[r]) <= floor ? floor : fabsf(l[r]);  // NaN stays
        if (threadIdx.x % 4 == 0) inverse[own + 8 * r] = __fdividef(1, l[r] + eps);
    }
}

// n_i of the chunk that begins at `first` to a sequence's n.
__device__ __forceinline__ void store_normaliser(const float (&n)[2], float* to, int first, int S) {
    int own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r)
        if (threadIdx.x % 4 == 0 && first + own + 8 * r < S) to[first + own + 8 * r] = n[r];
}

// dn_i / dl_i of the same rows, from l_i: ±1 where n_i is |l_i|, 0 where it is exp(-m_i).
__device__ __forceinline__ void store_slopes(const float (&l)[2], const Gates& gates, float* to, int first, int S) {
    int own = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r)
        if (threadIdx.x % 4 == 0 && first + own + 8 * r < S)
            to[first + own + 8 * r] = fabsf(l[r]) <= gates.floor[own + 8 * r] ? 0 : copysignf(1, l[r]);
}

}  // namespace lab
