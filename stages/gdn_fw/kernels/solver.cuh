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
// products are f16, of 11 bits: 9e-4 of the inverse is wrong where keys are alike, which is rounded to 8 or 11 bits.
#pragma once
#include "chunk_gates.cuh"
#include "lab/gdn/panel_fragments.cuh"

namespace lab {

// Where an element of a block of 16 x 16 lies. Of halves rows four apart, of floats rows two apart, lie in other banks: the lanes of a
// store or of ldmatrix do not meet.
__device__ __forceinline__ int spot(int row, int column) { return row * SIDE + (column ^ (row & 4) * 2); }
__device__ __forceinline__ int spot_of_float(int row, int column) { return row * SIDE + (column ^ (row & 2) * 4); }

// Of one chunk that is being solved. Blocks above the diagonal are nobody's: so a block is as far from another as these are in numbers,
// which the compiler knows.
struct SolverRoom {
    alignas(16) __half block[BLOCKS * BLOCKS][SIDE * SIDE];  // -A below the diagonal, X on it
    alignas(16) float diagonal[BLOCKS][SIDE * SIDE];         // A

    __device__ __forceinline__ __half* at(int row, int column) { return block[row * BLOCKS + column]; }
};

// ANCHOR: weigh
// A warp's rows of -A left of the diagonal, to blocks, and of A on it. Of A what is on the diagonal and above it is not read.
__device__ __forceinline__ void store_a(SolverRoom& room, const Kept& kept, const Gates& gates, const float* beta,
                                        const float (&kk)[CHUNK / 2]) {
    int warp = kept.warp, g = kept.lane / 4, t = kept.lane % 4, i = warp * SIDE + g;
    float factor[2] = {-beta[i], -beta[i + 8]};
    auto to = [](int place, int w) { return (place ^ w / 2 * 8) + w % 2 * 8 * SIDE; };
#pragma unroll
    for (int c = 0; c < BLOCKS; ++c) {
        const float* x = kk + 8 * c;
        if (c < warp) {
            auto* block = room.at(warp, c);
            kept.below(gates, c, factor, [&](int w, float e, float next) {
                *reinterpret_cast<unsigned*>(block + to(spot(g, 2 * t), w)) = two_halves<__half>(e * x[2 * w], next * x[2 * w + 1]);
            });
        } else if (c == warp) {
            auto* block = room.diagonal[c];
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                float b = -factor[w % 2];
                *reinterpret_cast<float2*>(block + to(spot_of_float(g, 2 * t), w)) =
                    make_float2(b * kept.own[2 * w] * x[2 * w], b * kept.own[2 * w + 1] * x[2 * w + 1]);
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
// A warp's block on the diagonal: lanes 0 to 15 have a column each, and the others the same again.
__device__ __forceinline__ void invert(const float* a_of, __half* x_of) {
    int j = computed_here(threadIdx.x) % SIDE;
    float column[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; ++i) column[i] = i == j;
    // Four columns of A at a time, of all rows below: no row waits for the one before but in the first three.
#pragma unroll
    for (int m = 0; m < SIDE; m += 4)
#pragma unroll
        for (int i = m + 1; i < SIDE; ++i) {
            float4 a = *reinterpret_cast<const float4*>(a_of + spot_of_float(i, m));
            column[i] -= a.x * column[m];
            if (m + 1 < i) column[i] -= a.y * column[m + 1];
            if (m + 2 < i) column[i] -= a.z * column[m + 2];
            if (m + 3 < i) column[i] -= a.w * column[m + 3];
        }
    // The second half of a warp has the last rows to store.
    bool last = threadIdx.x % 32 >= SIDE;
    __half* to = x_of + (last ? SIDE / 2 * SIDE : 0);
#pragma unroll
    for (int i = 0; i < SIDE / 2; ++i) to[spot(i, j)] = from_math<__half>(last ? column[i + SIDE / 2] : column[i]);
}
// ANCHOR_END: invert

// ANCHOR: columns
// sum += left, 16 x 16, times `right` transposed: a row of which is `lane` elements behind it, as ldmatrix has it.
__device__ __forceinline__ void multiply_block(float (&sum)[2][4], const unsigned (&left)[4], const __half* right, int lane) {
    unsigned b[4];
    load_matrices(b, right + lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) multiply_add<__half>(sum[n], left, b[2 * n], b[2 * n + 1]);
}

// The sums of a product as the left operand of the next one.
__device__ __forceinline__ void take_left(unsigned (&left)[4], const float (&sum)[2][4]) {
#pragma unroll
    for (int w = 0; w < 4; ++w) left[w] = two_halves<__half>(sum[w / 2][w % 2 * 2], sum[w / 2][w % 2 * 2 + 1]);
}

// A warp's column of blocks of the inverse, rounded to its place, from the diagonal downwards, transposed. What is known is stored at
// the end: a store between two products would keep their loads apart.
template <class T> __device__ __forceinline__ void solve_column(SolverRoom& room, T* inverse) {
    int thread = computed_here(threadIdx.x), c = thread / 32 % 4, lane = thread % 32;
    int own = spot(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
    T* rows = inverse + c * SIDE * PANEL + (offset_by_columns() ^ c * SIDE);
    float sum[BLOCKS - 1][2][4] = {};
    unsigned words[BLOCKS][4], x[4];
    load_matrices_transposed(x, room.at(c, c) + own);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        float2 two = floats_of<__half>(x[w]);
        words[0][w] = two_halves<T>(two.x, two.y);
    }
#pragma unroll
    for (int down = 0; down < BLOCKS; ++down) {
        if (c + down >= BLOCKS) continue;
        if (down > 0) {
            float product[2][4] = {};
            take_left(x, sum[down - 1]);
            multiply_block(product, x, room.at(c + down, c + down), own);
            take_left(x, product);
#pragma unroll
            for (int w = 0; w < 4; ++w)
                words[down][w] = two_halves<T>(product[w / 2][w % 2 * 2], product[w / 2][w % 2 * 2 + 1]);
        }
        // All sums at once that the block takes part in: none waits for another.
#pragma unroll
        for (int later = down + 1; later < BLOCKS; ++later)
            if (c + later < BLOCKS) multiply_block(sum[later - 1], x, room.at(c + later, c + down), own);
    }
#pragma unroll
    for (int down = 0; down < BLOCKS; ++down)
        if (c + down < BLOCKS) store_matrices_transposed(rows + down * SIDE * PANEL, words[down]);
}
// ANCHOR_END: columns

}  // namespace lab
