// What a warpgroup makes of a chunk's keys, queries and gates, as blocks.cu does, but beside the walk:
//
//   A = tril(diag(beta) (K Kᵀ ⊙ E), -1)      inverse = (I + A)⁻¹      pairs = s tril(Q Kᵀ ⊙ E)
//
// Products of positions are wgmma's: warp w has rows 16 w to 16 w + 15.
//
// The inverse: warp c has the block on the diagonal, and then column c of blocks, transposed:
//
//   X_bcᵀ = (Σ_{c <= m < b} X_mcᵀ (-A_bm)ᵀ) X_bbᵀ
//
// So the sums of each product lie as the next one takes its left operand; of other warps a warp reads A and X_bb. Numbers of these
// products are sums of two bf16, of 16 bits: 1.4e-5 of the inverse is wrong where keys are alike, which is rounded to 8 or 11 bits.
#pragma once
#include "chunk_gates.cuh"
#include "lab/gdn/panel_fragments.cuh"

namespace lab {

// Two neighbours in a row, each as a sum of two bf16.
__device__ __forceinline__ uint2 split_pair(float x, float y) {
    unsigned high = two_halves<__nv_bfloat16>(x, y);
    float2 of = floats_of<__nv_bfloat16>(high);
    return make_uint2(high, two_halves<__nv_bfloat16>(x - of.x, y - of.y));
}

// Blocks of 16 x 16, two neighbours a word pair: below the diagonal -A, split; on it A in f32 and then X, split.
using SplitBlock = uint2[SIDE * SIDE / 2];

// Where two neighbours are. Rows two apart lie eight banks apart: the lanes of a store, or of a load of a right operand, do not meet.
__device__ __forceinline__ int spot(int row, int column) { return (row * SIDE + (column ^ (row & 2) * 4)) / 2; }

// Of one chunk that is being solved. Those above the diagonal are nobody's: so a block is as far from another as these are in numbers,
// which the compiler knows.
struct SolverRoom {
    alignas(16) SplitBlock block[BLOCKS * BLOCKS];

    __device__ __forceinline__ SplitBlock& at(int row, int column) { return block[row * BLOCKS + column]; }
};

// ANCHOR: weigh
// A warp's rows of -A left of the diagonal, to blocks, and of A on it. Of A what is on the diagonal and above it is not read.
__device__ __forceinline__ void store_a(SolverRoom& room, const Kept& kept, const Gates& gates, const float* beta,
                                        const float (&kk)[CHUNK / 2]) {
    int warp = kept.warp, place = spot(kept.lane / 4, kept.lane % 4 * 2), i = warp * SIDE + kept.lane / 4;
    float factor[2] = {-beta[i], -beta[i + 8]};
    auto to = [&](int w) { return (place ^ w / 2 * 4) + w % 2 * 4 * SIDE; };
#pragma unroll
    for (int c = 0; c < BLOCKS; ++c) {
        const float* x = kk + 8 * c;
        if (c < warp) {
            auto& block = room.at(warp, c);
            kept.below(gates, c, factor, [&](int w, float e, float next) {
                block[to(w)] = split_pair(e * x[2 * w], next * x[2 * w + 1]);
            });
        } else if (c == warp) {
            auto* block = reinterpret_cast<float2*>(room.at(c, c));
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                float b = -factor[w % 2];
                block[to(w)] = make_float2(b * kept.own[2 * w] * x[2 * w], b * kept.own[2 * w + 1] * x[2 * w + 1]);
            }
        }
    }
}

// Its rows of the pairs. Not 0 · NaN on the diagonal, where K's row is a later one.
template <class T>
__device__ __forceinline__ void store_pairs(T* pairs, const Kept& kept, const Gates& gates, const float (&qk)[CHUNK / 2],
                                            float scale) {
    int warp = kept.warp;
    float factor[2] = {scale, scale};
    T* rows = pairs + warp * SIDE * PANEL;
#pragma unroll
    for (int c = 0; c < BLOCKS; ++c) {
        if (c > warp) break;
        const float* x = qk + 8 * c;
        unsigned words[4];
        if (c < warp)
            kept.below(gates, c, factor, [&](int w, float e, float next) {
                words[w] = two_halves<T>(e * x[2 * w], next * x[2 * w + 1]);
            });
        else
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                float e = kept.own[2 * w], next = kept.own[2 * w + 1];
                words[w] = two_halves<T>(keep(e, scale * x[2 * w]), keep(next, scale * x[2 * w + 1]));
            }
        store_matrices(rows + (offset_by_rows() ^ c * SIDE), words);
    }
}
// ANCHOR_END: weigh

// ANCHOR: invert
// A warp's block on the diagonal, in place: lanes 0 to 15 have a column each, and the others the same again. x is the
// lane's of Xᵀ, as a product's sums lie.
__device__ __forceinline__ void invert(SplitBlock& block, float (&x)[2][4]) {
    int thread = computed_here(threadIdx.x), j = thread % SIDE, g = thread % 32 / 4, t = thread % 4;
    float* cells = reinterpret_cast<float*>(block);
    float column[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; ++i) column[i] = i == j;
    // Four columns of A at a time, of all rows below: no row waits for the one before but in the first three.
#pragma unroll
    for (int m = 0; m < SIDE; m += 4)
#pragma unroll
        for (int i = m + 1; i < SIDE; ++i) {
            float4 a = *reinterpret_cast<const float4*>(cells + 2 * spot(i, m));
            column[i] -= a.x * column[m];
            if (m + 1 < i) column[i] -= a.y * column[m + 1];
            if (m + 2 < i) column[i] -= a.z * column[m + 2];
            if (m + 3 < i) column[i] -= a.w * column[m + 3];
        }
    __syncwarp();  // all lanes have read A: X takes its place
#pragma unroll
    for (int i = 0; i < SIDE; ++i)
        if (thread % 32 < SIDE) cells[i * SIDE + (j ^ (i & 2) * 4)] = column[i];
    __syncwarp();  // a lane reads what others have stored
    int at = 2 * t * SIDE + (g ^ (t & 1) * 8), own = spot(g, 2 * t);
#pragma unroll
    for (int n = 0; n < 8; ++n) x[n / 4][n % 4] = cells[(at ^ n / 2 % 2 * 8) + (n / 4 * 8 + n % 2) * SIDE];
    float2 two[4];
    auto to = [&](int w) { return (own ^ w / 2 * 4) + w % 2 * 4 * SIDE; };
#pragma unroll
    for (int w = 0; w < 4; ++w) two[w] = reinterpret_cast<const float2*>(block)[to(w)];
    __syncwarp();  // it is read: the split numbers take its place
#pragma unroll
    for (int w = 0; w < 4; ++w) block[to(w)] = split_pair(two[w].x, two[w].y);
}
// ANCHOR_END: invert

// ANCHOR: columns
// The sums of a product, 16 x 16, as the left operand of the next one.
struct LeftBlock {
    unsigned high[4], low[4];

    __device__ __forceinline__ explicit LeftBlock(const float (&x)[2][4]) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            uint2 two = split_pair(x[w / 2][w % 2 * 2], x[w / 2][w % 2 * 2 + 1]);
            high[w] = two.x, low[w] = two.y;
        }
    }
    // sum += this, times `right` transposed. All but low times low; in two sums, for one would be a chain of three products.
    // `lane` is spot() of its row and columns.
    __device__ __forceinline__ void multiply_add_to(float (&sum)[2][4], const SplitBlock& right, int lane) const {
        float rest[2][4] = {};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            uint2 first = right[lane + n * 4 * SIDE], second = right[(lane ^ 4) + n * 4 * SIDE];
            multiply_add<__nv_bfloat16>(sum[n], high, first.x, second.x);
            multiply_add<__nv_bfloat16>(rest[n], high, first.y, second.y);
            multiply_add<__nv_bfloat16>(rest[n], low, first.x, second.x);
        }
#pragma unroll
        for (int n = 0; n < 8; ++n) sum[n / 4][n % 4] += rest[n / 4][n % 4];
    }
};

// A warp's column of blocks of the inverse, rounded to its place, from the diagonal downwards, where it is x, transposed. What is
// known is stored at the end: a store between two products would keep their loads apart.
template <class T> __device__ __forceinline__ void solve_column(SolverRoom& room, T* inverse, float (&x)[2][4]) {
    int thread = computed_here(threadIdx.x), c = thread / 32 % 4, lane = thread % 32, own = spot(lane / 4, lane % 4 * 2);
    T* rows = inverse + c * SIDE * PANEL + (offset_by_columns() ^ c * SIDE);
    float sum[BLOCKS - 1][2][4] = {};
    unsigned words[BLOCKS][4];
#pragma unroll
    for (int down = 0; down < BLOCKS; ++down) {
        if (c + down >= BLOCKS) continue;
        if (down > 0) {
            float product[2][4] = {};
            LeftBlock(sum[down - 1]).multiply_add_to(product, room.at(c + down, c + down), own);
#pragma unroll
            for (int n = 0; n < 8; ++n) x[n / 4][n % 4] = product[n / 4][n % 4];
        }
        LeftBlock made(x);
        // All sums at once that the block takes part in: none waits for another.
#pragma unroll
        for (int later = down + 1; later < BLOCKS; ++later)
            if (c + later < BLOCKS) made.multiply_add_to(sum[later - 1], room.at(c + later, c + down), own);
#pragma unroll
        for (int w = 0; w < 4; ++w) words[down][w] = two_halves<T>(x[w / 2][w % 2 * 2], x[w / 2][w % 2 * 2 + 1]);
    }
#pragma unroll
    for (int down = 0; down < BLOCKS; ++down)
        if (c + down < BLOCKS) store_matrices_transposed(rows + down * SIDE * PANEL, words[down]);
}
// ANCHOR_END: columns

}  // namespace lab
