// One gradient of a chunk, by the product of the forward pass with its roles exchanged:
//
//   out_t = Σ_τ (x_t·y_τ) w_tτ z_τ + read_t Stateᵀ x_t
//
//          x   y   z    pairs      w_tτ            state, and what reads it
//   h      q   k   v    τ <= t     s D_tτ / N_t    C ahead of the chunk, s β_t / N_t    (outputs.cu of vlstm_fw_v3)
//   dq     dh  v   k    τ <= t     s D_tτ / N_t    Cᵀ ahead of it, s β_t / N_t
//   dk     v   dh  q    τ >= t     s D_τt / N_τ    dCᵀ behind it, α_t
//   dv     k   q   dh   τ >= t     s D_τt / N_τ    dC behind it, α_t
//
// Where n is not held constant, dq and dk have s r more in each score, and s β_t r_t n or α_t dn in each row.
//
// Work split: a block owns the L positions of a chunk, a warp 16 of them: their scores with all of the chunk's positions lie
// in its registers, and so do the weights, as the second product's operand. X stays in shared memory, 64 columns a panel; 64
// columns of y, then of the state and of z, go past it in two places, one on its way while the other is read. A warp leaves
// out tiles beyond the diagonal.
#pragma once
#include "lab/reduce.cuh"
#include "lab/vlstm/chunkwise.cuh"
#include "lab/vlstm/powers.cuh"
#include "row.cuh"

namespace lab {

enum class Gradient { Q, K, V };

constexpr int PANELS = 4;  // of X, for 256 columns

// What a block has in shared memory: X, two places, and of each position its exponent and what makes a gradient of its score.
template <class T, int L> struct ChunkTiles {
    T x[PANELS][L * WIDE], places[2][L * WIDE];
    float2 exponents[L];
    Row rows[L];
};

// A chunk of a head, as its block sees it. Which matrix is which, the table above says.
template <class T, int L, Gradient OF> struct ChunkGradient {
    static constexpr int THREADS = 2 * L;
    static constexpr bool BACK = OF != Gradient::Q, TRANSPOSED = OF != Gradient::V, DOTS = TRANSPOSED;
    ChunkTiles<T, L>& shared;
    Matrix<const T> X, Y, Z, State;
    int r0, panels, items;
    int n = 0;  // tiles that were handed out

    __device__ __forceinline__ ChunkGradient(ChunkTiles<T, L>& shared, Matrix<const T> X, Matrix<const T> Y,
                                             Matrix<const T> Z, Matrix<const T> State, int r0)
        : shared(shared), X(X), Y(Y), Z(Z), State(State), r0(r0), panels((X.columns + WIDE - 1) / WIDE),
          items(panels + (Z.columns + WIDE - 1) / WIDE * (panels + 1)) {}

    // ANCHOR: tiles
    // The tiles in their order: of y with those of X; then, for each 64 columns that come out, of the state and of z.
    __device__ __forceinline__ void fetch(int item) {
        T* to = shared.places[item % 2];
        int past = item - panels, z0 = past / (panels + 1) * WIDE, panel = past % (panels + 1);
        if (past < 0) {
            copy_tile<L, THREADS>(shared.x[item], X, r0, item * WIDE);
            copy_tile<L, THREADS>(to, Y, r0, item * WIDE);
        } else if (panel < panels) {
            copy_tile<WIDE, THREADS>(to, State, TRANSPOSED ? z0 : panel * WIDE, TRANSPOSED ? panel * WIDE : z0);
        } else {
            copy_tile<L, THREADS>(to, Z, r0, z0);
        }
        async_commit();
    }

    __device__ __forceinline__ T* next() {
        async_wait<0>();
        __syncthreads();  // the tile is there; the one before, whose place comes next, is read
        T* here = shared.places[n % 2];
        if (++n < items) fetch(n);
        return here;
    }
    // ANCHOR_END: tiles

    // Whether the 16 x 16 scores of a warp's rows and columns from 16 j on have pairs that count.
    __device__ __forceinline__ static bool counts(int j) {
        int warp = threadIdx.x / 32;
        return BACK ? j >= warp : j <= warp;
    }

    // ANCHOR: scores
    // x_t · y_τ of 16 rows and all columns that count.
    __device__ __forceinline__ void multiply_scores(float (&score)[L / 8][4]) {
        for (int p = 0; p < panels; ++p) {
            T* y_tile = next();
#pragma unroll 1  // unrolled, its addresses would take the last registers
            for (int k = 0; k < WIDE; k += 16) {
                if (p * WIDE + k >= X.columns) break;
                unsigned a[4];
                load_rows(a, shared.x[p], threadIdx.x / 32 * 16, k);
#pragma unroll
                for (int j = 0; j < L / 16; ++j) {
                    if (!counts(j)) continue;
                    unsigned b[4];
                    load_right_of_rows(b, y_tile, k, 16 * j);
                    multiply_add_16<T>(score[2 * j], score[2 * j + 1], a, b);
                }
            }
        }
    }

    // The row that looks back says what becomes of a pair's score: `own`, or that of the column.
    __device__ __forceinline__ float weigh(float score, int t, int column, float2 exponent, Row own) const {
        Row row = BACK ? shared.rows[column] : own;
        float gradient = score * row.inverse + (OF == Gradient::V ? 0 : row.r);
        float weight = power_of_two(sum_of(exponent, shared.exponents[column]));
        return (BACK ? column >= t : column <= t) ? weight * gradient : 0;  // not 0 · NaN
    }

    // The weights of the warp's rows, a lane's t and t + 8: as the tensor cores left the scores, so they take these.
    __device__ __forceinline__ void weigh_all(unsigned (&weights)[L / 16][4], const float (&score)[L / 8][4], int t,
                                              const float2 (&exponent)[2], const Row (&own)[2]) const {
#pragma unroll
        for (int j = 0; j < L / 4; ++j) {
            int r = j % 2, column = 8 * (j / 2) + threadIdx.x % 4 * 2;
            weights[j / 4][j % 4] = 0;
            if (!counts(j / 4)) continue;
            const float* two = &score[j / 2][2 * r];
            weights[j / 4][j % 4] = two_halves<T>(weigh(two[0], t + 8 * r, column, exponent[r], own[r]),
                                                  weigh(two[1], t + 8 * r, column + 1, exponent[r], own[r]));
        }
    }

    // The same of f16, each row times a power of two that halves hold it with: 1 / N and dh may be beyond them.
    __device__ __forceinline__ void weigh_all(unsigned (&weights)[L / 16][4], float (&score)[L / 8][4], int t,
                                              const float2 (&exponent)[2], const Row (&own)[2], float (&power)[2]) const {
        float largest[2] = {};
#pragma unroll
        for (int n = 0; n < L / 2; ++n) {
            if (!counts(n / 8)) continue;
            int r = n / 2 % 2;
            float& of = score[n / 4][n % 4];
            of = weigh(of, t + 8 * r, n / 4 * 8 + threadIdx.x % 4 * 2 + n % 2, exponent[r], own[r]);
            largest[r] = fmaxf(largest[r], fabsf(of));
        }
        for (int r = 0; r < 2; ++r) power[r] = power_for_f16(warp_reduce<4>(largest[r], Max()));
#pragma unroll
        for (int j = 0; j < L / 4; ++j) {
            const float* two = &score[j / 2][j % 2 * 2];
            weights[j / 4][j % 4] = counts(j / 4) ? two_halves<T>(two[0] * power[j % 2], two[1] * power[j % 2]) : 0;
        }
    }
    // ANCHOR_END: scores

    // ANCHOR: outputs
    // Stateᵀ x_t of 16 rows and 64 columns.
    __device__ __forceinline__ void add_state(float (&out)[WIDE / 8][4], int z0) {
        for (int p = 0; p < panels; ++p) {
            T* tile = next();
#pragma unroll 1  // unrolled, its addresses would take the last registers
            for (int k = 0; k < WIDE; k += 16) {
                if (p * WIDE + k >= X.columns) break;
                unsigned a[4], b[4];
                load_rows(a, shared.x[p], threadIdx.x / 32 * 16, k);
#pragma unroll
                for (int c = 0; c < WIDE; c += 16) {
                    if (z0 + c >= Z.columns) break;
                    if constexpr (TRANSPOSED) load_right_of_rows(b, tile, k, c);
                    else load_right(b, tile, k, c);
                    multiply_add_16<T>(out[c / 8], out[c / 8 + 1], a, b);
                }
            }
        }
    }

    // Σ_τ weight_tτ z_τ of 16 rows and 64 columns.
    __device__ __forceinline__ void add_chunk_pairs_to_out(float (&out)[WIDE / 8][4], const unsigned (&weights)[L / 16][4], int z0) {
        T* z_tile = next();
#pragma unroll
        for (int j = 0; j < L / 16; ++j) {
            if (!counts(j)) continue;
#pragma unroll
            for (int c = 0; c < WIDE; c += 16) {
                if (z0 + c >= Z.columns) break;
                unsigned b[4];
                load_right(b, z_tile, 16 * j, c);
                multiply_add_16<T>(out[c / 8], out[c / 8 + 1], weights[j], b);
            }
        }
    }
    // ANCHOR_END: outputs
};

// The dot of a lane's cells of row r of `out`, before they are rounded, with those of another matrix.
template <class T>
__device__ __forceinline__ float multiply_row(const float (&out)[WIDE / 8][4], int r, Matrix<const T> other, int row, int z0) {
    float dot = 0;
#pragma unroll
    for (int c = 0; c < WIDE / 8; ++c) {
        int column = z0 + 8 * c + threadIdx.x % 4 * 2;
        if (!other.inside(row, column)) break;
        float2 by = floats_of<T>(*reinterpret_cast<const unsigned*>(other.at(row, column)));
        dot += out[c][2 * r] * by.x + out[c][2 * r + 1] * by.y;
    }
    return dot;
}

// out of row r, times its `read`, and its `add` times what n or dn has of these columns.
__device__ __forceinline__ void scale_row(float (&out)[WIDE / 8][4], int r, float read, float add, const float* n, int z0,
                                          int columns) {
#pragma unroll
    for (int c = 0; c < WIDE / 8; ++c) {
        int column = z0 + 8 * c + threadIdx.x % 4 * 2;
        float2 of_n = make_float2(0, 0);
        if (n && column < columns) of_n = *reinterpret_cast<const float2*>(n + column);
        out[c][2 * r] = read * out[c][2 * r] + add * of_n.x;
        out[c][2 * r + 1] = read * out[c][2 * r + 1] + add * of_n.y;
    }
}

// ANCHOR: gradient
// All of it. `other` is what each row's dot is made with, q or k, and `dots` where it goes; n is n ahead of the chunk or dn
// behind it, or null where n is held constant. `positions` and `rows` begin with the chunk's, the back ones for a gradient
// that looks ahead.
template <Gradient OF, class T, int L>
__device__ __forceinline__ void make_gradient(ChunkGradient<T, L, OF> chunk, const Position* positions, const Row* rows,
                                              float room, const float* n, Matrix<T> Out, Matrix<const T> other,
                                              float* dots) {
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, r0 = chunk.r0;
    chunk.fetch(0);
    if (threadIdx.x < L) {
        chunk.shared.exponents[threadIdx.x] = positions[threadIdx.x].key;
        chunk.shared.rows[threadIdx.x] = rows[threadIdx.x];
    }
    float score[L / 8][4] = {}, read[2], add[2], dot[2] = {};
    chunk.multiply_scores(score);  // behind its barriers exponents and rows are there, too
    float2 exponent[2];
    Row own[2];
    int t = 16 * warp + g;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float reads = positions[t + 8 * r].beta;
        exponent[r] = positions[t + 8 * r].row, own[r] = chunk.shared.rows[t + 8 * r];
        read[r] = reads * (chunk.BACK ? 1 : own[r].inverse) / room;
        add[r] = reads * (chunk.BACK ? 1 : own[r].r);
    }
    unsigned weights[L / 16][4];
    float power[2], inverse[2];  // of f16: what a row of pairs is multiplied by, and so of out
    if constexpr (is_f16<T>) {
        chunk.weigh_all(weights, score, t, exponent, own, power);
        for (int r = 0; r < 2; ++r) read[r] *= power[r], add[r] *= power[r], inverse[r] = inverse_of_power(power[r]);
    } else {
        chunk.weigh_all(weights, score, t, exponent, own);
    }
    for (int z0 = 0; z0 < Out.columns; z0 += WIDE) {
        float out[WIDE / 8][4] = {};
        chunk.add_state(out, z0);
#pragma unroll
        for (int r = 0; r < 2; ++r) scale_row(out, r, read[r], add[r], n, z0, Out.columns);
        chunk.add_chunk_pairs_to_out(out, weights, z0);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int row = r0 + 16 * warp + 8 * r + g;
            if constexpr (is_f16<T>) scale_row(out, r, inverse[r], 0, nullptr, z0, Out.columns);
            if (chunk.DOTS) dot[r] += multiply_row(out, r, other, row, z0);
#pragma unroll
            for (int c = 0; c < WIDE; c += 16)
                store_row(Out, &out[c / 8][2 * r], &out[c / 8 + 1][2 * r], row, z0 + c);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        int row = r0 + 16 * warp + 8 * r + g;
        float all = warp_reduce<4>(dot[r], Add());
        if (chunk.DOTS && threadIdx.x % 4 == 0 && row < Out.rows) dots[row] = all;
    }
}
// ANCHOR_END: gradient

}  // namespace lab
