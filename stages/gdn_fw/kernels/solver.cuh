// What a warpgroup makes of a chunk's keys, queries and gates, as blocks.cu does, but beside the walk:
//
//   A = tril(diag(beta) (K Kᵀ ⊙ E), -1)      inverse = (I + A)⁻¹      pairs = s tril(Q Kᵀ ⊙ E)
//
// Products of positions are wgmma's: warp w has rows 16 w to 16 w + 15. E of a block of 16 x 16 below the diagonal is a factor of
// its row times one of its column, exp(γ_i - γ_e) exp(γ_e - γ_j) with e the block's last column: neither exponent is above 0.
//
// The inverse: warp c has the block on the diagonal, and then column c of blocks, transposed:
//
//   X_bcᵀ = -(Σ_{c <= m < b} X_mcᵀ A_bmᵀ) X_bbᵀ
//
// So the sums of each product lie as the next one takes its left operand, for that may count k as it likes: what mma.sync calls t and
// t + 4 are columns 2t and 2t + 1 here. Of other warps it reads A and X_bb.
#pragma once
#include "lab/gdn/decays.cuh"
#include "lab/gdn/panel_fragments.cuh"
#include "lab/vlstm/panels.cuh"
#include "split.cuh"

namespace lab {

constexpr int SIDE = 16, BLOCKS = CHUNK / SIDE;

// Rows of a chunk, in shared memory for all roles.
template <class T, int KEY> struct Solved {
    Panels<T, KEY, CHUNK> q, k;
    Panels<T, PANEL, CHUNK> inverse, pairs;
    Decays decays;
};

// Of one chunk that is being solved.
struct SolverRoom {
    float block[BLOCKS * (BLOCKS + 1) / 2][SIDE * SIDE];  // A at and below the diagonal, then X on it
    float2 gamma[CHUNK];
    float column[CHUNK];  // exp(γ_e - γ_j)

    __device__ __forceinline__ float* at(int row, int column) { return block[row * (row + 1) / 2 + column]; }
};

// An element of a block. Rows two apart lie eight banks apart: the lanes of a store, or of a load of a right operand, do not meet.
__device__ __forceinline__ int spot(int row, int column) { return row * SIDE + (column ^ (row & 2) * 4); }

// By one warp, of the chunk that begins at `first`.
__device__ __forceinline__ void scan_chunk(SolverRoom& room, Decays& decays, const float* g, const float* beta, int first,
                                           int S) {
    scan_gates(room.gamma, decays, g, beta, first, S);
    __syncwarp();  // a lane reads γ of another
    for (int j = threadIdx.x % 32; j < CHUNK; j += 32) room.column[j] = decay(room.gamma, j | (SIDE - 1), j);
}

// ANCHOR: kept
// E of a lane's two rows.
class Kept {
    float row[BLOCKS - 1][2], own[8];
    int warp, t;

  public:
    __device__ __forceinline__ explicit Kept(const SolverRoom& room)
        : warp(threadIdx.x / 32 % 4), t(threadIdx.x % 4) {
        int g = threadIdx.x % 32 / 4, first = warp * SIDE;
#pragma unroll
        for (int c = 0; c < BLOCKS - 1; ++c)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                row[c][r] = c < warp ? decay(room.gamma, first + g + 8 * r, c * SIDE + SIDE - 1) : 0;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            int i = g + n / 2 % 2 * 8, j = n / 4 * 8 + 2 * t + n % 2;
            own[n] = j <= i ? decay(room.gamma, first + i, first + j) : 0;
        }
    }
    // x ⊙ E, of a product's sums of block c, at or left of the diagonal. Not 0 · NaN, where K's row is a later one.
    __device__ __forceinline__ void weigh(float (&to)[8], const float* x, int c, const SolverRoom& room) const {
        if (c < warp) {
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
                float2 of = *reinterpret_cast<const float2*>(&room.column[c * SIDE + n / 4 * 8 + 2 * t]);
                float by = row[c % (BLOCKS - 1)][n / 2 % 2];
                to[n] = by * of.x * x[n], to[n + 1] = by * of.y * x[n + 1];
            }
        } else {
#pragma unroll
            for (int n = 0; n < 8; ++n) to[n] = own[n] == 0 ? 0 : own[n] * x[n];
        }
    }
};
// ANCHOR_END: kept

// A warp's rows of A, to blocks.
__device__ __forceinline__ void store_weights(SolverRoom& room, const float (&kk)[CHUNK / 2], const Kept& kept,
                                              const Decays& decays) {
    int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float beta[2] = {decays.beta[warp * SIDE + g], decays.beta[warp * SIDE + g + 8]};
#pragma unroll
    for (int c = 0; c < BLOCKS; ++c) {
        if (c > warp) continue;
        float a[8];
        kept.weigh(a, kk + 8 * c, c, room);
#pragma unroll
        for (int n = 0; n < 8; n += 2)
            *reinterpret_cast<float2*>(room.at(warp, c) + spot(g + n / 2 % 2 * 8, n / 4 * 8 + 2 * t)) =
                make_float2(beta[n / 2 % 2] * a[n], beta[n / 2 % 2] * a[n + 1]);
    }
}

// Its rows of the pairs.
template <class T>
__device__ __forceinline__ void store_pairs(T* pairs, const float (&qk)[CHUNK / 2], const Kept& kept,
                                            const SolverRoom& room, float scale) {
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < BLOCKS; ++c) {
        if (c > warp) continue;
        float p[8];
        unsigned words[4];
        kept.weigh(p, qk + 8 * c, c, room);
#pragma unroll
        for (int w = 0; w < 4; ++w) words[w] = two_halves<T>(scale * p[2 * w], scale * p[2 * w + 1]);
        store_matrices(cell(pairs, warp * SIDE + lane % 16, c * SIDE + lane / 16 * 8), words);
    }
}

// A warp's block on the diagonal, in place: lanes 0 to 15 have a column each, and the others the same again. Of A what is on the
// diagonal and above it is not read.
__device__ __forceinline__ void invert_in_place(float* block) {
    int j = threadIdx.x % SIDE;
    float column[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
        float sum = i == j;
        if (i % 2 == 0) __syncwarp();  // the assembler would load all of A ahead, to registers that are not there
#pragma unroll
        for (int m = 0; m < i; m += 4) {
            float4 a = *reinterpret_cast<const float4*>(block + spot(i, m));
            sum -= a.x * column[m];
            if (m + 1 < i) sum -= a.y * column[m + 1];
            if (m + 2 < i) sum -= a.z * column[m + 2];
            if (m + 3 < i) sum -= a.w * column[m + 3];
        }
        column[i] = sum;
    }
    __syncwarp();  // all lanes have read A: X takes its place
#pragma unroll
    for (int i = 0; i < SIDE; ++i)
        if (threadIdx.x % 32 < SIDE) block[spot(i, j)] = column[i];
    __syncwarp();  // a lane reads what others have stored
}

// ANCHOR: columns
// The sums of a product, 16 x 16, as the left operand of the next one.
struct LeftBlock {
    unsigned high[2][4], low[2][4];

    __device__ __forceinline__ LeftBlock() {}
    __device__ __forceinline__ explicit LeftBlock(const float (&x)[8]) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            Split of(x[n]);
            high[n / 4][n % 2 * 2 + n / 2 % 2] = of.high, low[n / 4][n % 2 * 2 + n / 2 % 2] = of.low;
        }
    }
    // sum += this, times `right` transposed. All but low times low.
    __device__ __forceinline__ void multiply_add_to(float (&sum)[8], const float* right) const {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        __syncwarp();  // as above
#pragma unroll
        for (int k = 0; k < 2; ++k)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                float2 two = *reinterpret_cast<const float2*>(right + spot(8 * n + g, 8 * k + 2 * t));
                Split first(two.x), second(two.y);
                auto& to = *reinterpret_cast<float(*)[4]>(sum + 4 * n);
                multiply_add<float>(to, low[k], first.high, second.high);
                multiply_add<float>(to, high[k], first.low, second.low);
                multiply_add<float>(to, high[k], first.high, second.high);
            }
    }
};

// A block of the inverse, which comes transposed, rounded to its place.
template <class T> __device__ __forceinline__ void store_inverse(T* inverse, const float (&x)[8], int b, int c) {
    int lane = threadIdx.x % 32;
    unsigned words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = two_halves<T>(x[2 * w], x[2 * w + 1]);
    store_matrices_transposed(cell(inverse, b * SIDE + lane / 16 * 8 + lane % 8, c * SIDE + lane / 8 % 2 * 8), words);
}

// A warp's column of blocks, from the diagonal downwards.
template <class T> __device__ __forceinline__ void solve_column(SolverRoom& room, T* inverse) {
    int c = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    LeftBlock made[BLOCKS - 1];
    float x[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) x[n] = room.at(c, c)[spot(n / 4 * 8 + 2 * t + n % 2, g + n / 2 % 2 * 8)];
    store_inverse(inverse, x, c, c);
#pragma unroll
    for (int down = 1; down < BLOCKS; ++down) {
        int b = c + down;
        if (b >= BLOCKS) break;
        made[down - 1] = LeftBlock(x);
        float sum[8] = {}, product[8] = {};
#pragma unroll
        for (int m = 0; m < down; ++m) made[m].multiply_add_to(sum, room.at(b, c + m));
        LeftBlock(sum).multiply_add_to(product, room.at(b, b));
#pragma unroll
        for (int n = 0; n < 8; ++n) x[n] = -product[n];
        store_inverse(inverse, x, b, c);
    }
}
// ANCHOR_END: columns

}  // namespace lab
