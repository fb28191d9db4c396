// What a warpgroup makes of a chunk's keys, queries and gates, as blocks.cu does, but beside the walk:
//
//   A = tril(diag(beta) (K Kᵀ ⊙ E), -1)      inverse = (I + A)⁻¹      pairs = s tril(Q Kᵀ ⊙ E)
//
// Products of positions are wgmma's: warp w has rows 16 w to 16 w + 15. E of a block of 16 x 16 below the diagonal is a factor of
// its row times one of its column, exp(γ_i - γ_e) exp(γ_e - γ_j) with e the block's last column: neither exponent is above 0.
//
// The inverse: warp c has the block on the diagonal, and then column c of blocks, transposed:
//
//   X_bcᵀ = (Σ_{c <= m < b} X_mcᵀ (-A_bm)ᵀ) X_bbᵀ
//
// So the sums of each product lie as the next one takes its left operand; of other warps a warp reads A and X_bb. Numbers of these
// products are sums of two bf16, of 16 bits: 1.4e-5 of the inverse is wrong where keys are alike, which is rounded to 8 or 11 bits.
#pragma once
#include "lab/gdn/panel_fragments.cuh"
#include "solver_room.cuh"

namespace lab {

// ANCHOR: kept
// E of a lane's eight elements on the diagonal, as a product's sums lie, and beta of its two rows: before the products are there.
struct Weights {
    float own[8], beta[2];
    int warp, lane;

    __device__ __forceinline__ Weights(const SolverRoom& room, const Decays& decays) {
        int thread = computed_here(threadIdx.x);
        warp = thread / 32 % 4, lane = thread % 32;
        int first = warp * SIDE, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int i = g + 8 * r;
            float2 of_row = room.gamma[first + i];
            beta[r] = decays.beta[first + i];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int j = 8 * half + 2 * t;
                float4 of = *reinterpret_cast<const float4*>(&room.gamma[first + j]);
                float x = difference(of_row, make_float2(of.x, of.y)), y = difference(of_row, make_float2(of.z, of.w));
                own[4 * half + 2 * r] = power_of_two(j <= i ? x : lowest<float>());
                own[4 * half + 2 * r + 1] = power_of_two(j < i ? y : lowest<float>());
            }
        }
    }

    // `each`(c, w, x, y) with E of the two neighbours that a lane has as word w of its warp's block c.
    template <class Each, class Done>
    __device__ __forceinline__ void each(const SolverRoom& room, Each each, Done done) const {
        int t = lane % 4, first = warp * SIDE + lane / 4;
#pragma unroll
        for (int c = 0; c < BLOCKS; ++c) {
            if (c < warp) {
                float row[2] = {room.row[c % (BLOCKS - 1)][first], room.row[c % (BLOCKS - 1)][first + 8]};
                float2 column[2];
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    column[half] = *reinterpret_cast<const float2*>(&room.column[c * SIDE + 8 * half + 2 * t]);
#pragma unroll
                for (int w = 0; w < 4; ++w) each(c, w, row[w % 2] * column[w / 2].x, row[w % 2] * column[w / 2].y);
            } else if (c == warp) {
#pragma unroll
                for (int w = 0; w < 4; ++w) each(c, w, own[2 * w], own[2 * w + 1]);
            } else {
                continue;
            }
            done(c);
        }
    }

    // A warp's rows of -A left of the diagonal, to blocks, and of A on it. Of A what is on the diagonal and above it is not read.
    __device__ __forceinline__ void store_a(SolverRoom& room, const float (&kk)[CHUNK / 2]) const {
        int place = spot(lane / 4, lane % 4 * 2);
        each(
            room,
            [&](int c, int w, float x, float y) {
                int n = 8 * c + 2 * w, to = (place ^ w / 2 * 4) + w % 2 * 4 * SIDE;
                float b = c < warp ? -beta[w % 2] : beta[w % 2], a = b * x * kk[n], next = b * y * kk[n + 1];
                if (c < warp) room.at(warp, c)[to] = split_pair(a, next);
                else reinterpret_cast<float2*>(room.at(warp, c))[to] = make_float2(a, next);
            },
            [](int) {});
    }

    // Its rows of the pairs. Not 0 · NaN, where K's row is a later one.
    template <class T>
    __device__ __forceinline__ void store_pairs(const SolverRoom& room, T* pairs, const float (&qk)[CHUNK / 2],
                                                float scale) const {
        unsigned words[4];
        each(
            room,
            [&](int c, int w, float x, float y) {
                int n = 8 * c + 2 * w;
                bool own = c == warp;
                words[w] = two_halves<T>(own && x == 0 ? 0 : scale * x * qk[n], own && y == 0 ? 0 : scale * y * qk[n + 1]);
            },
            [&](int c) {
                store_matrices(cell(pairs, warp * SIDE + lane % 16, c * SIDE + lane / 16 * 8), words);
            });
    }
};
// ANCHOR_END: kept

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
        if (thread % 32 < SIDE) cells[2 * spot(i, j & ~1) + j % 2] = column[i];
    __syncwarp();  // a lane reads what others have stored
    float2 two[4];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        int i = n / 4 * 8 + 2 * t + n % 2, of = g + n / 2 % 2 * 8;
        x[n / 4][n % 4] = cells[2 * spot(i, of & ~1) + of % 2];
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) two[w] = reinterpret_cast<const float2*>(block)[spot(g + w % 2 * 8, w / 2 * 8 + 2 * t)];
    __syncwarp();  // it is read: the split numbers take its place
#pragma unroll
    for (int w = 0; w < 4; ++w) block[spot(g + w % 2 * 8, w / 2 * 8 + 2 * t)] = split_pair(two[w].x, two[w].y);
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
    for (int down = 0; down < BLOCKS; ++down) {
        int i = (c + down) * SIDE + lane / 16 * 8 + lane % 8, j = c * SIDE + lane / 8 % 2 * 8;
        if (c + down < BLOCKS) store_matrices_transposed(cell(inverse, i, j), words[down]);
    }
}
// ANCHOR_END: columns

}  // namespace lab
