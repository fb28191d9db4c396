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
#include "lab/gdn/decays.cuh"
#include "lab/gdn/panel_fragments.cuh"
#include "lab/vlstm/panels.cuh"

namespace lab {

constexpr int SIDE = 16, BLOCKS = CHUNK / SIDE;

// Rows of a chunk, in shared memory for all roles.
template <class T, int KEY> struct Solved {
    Panels<T, KEY, CHUNK> q, k;
    Panels<T, PANEL, CHUNK> inverse, pairs;
    Decays decays;
};

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

// Of one chunk that is being solved.
struct SolverRoom {
    alignas(16) SplitBlock block[BLOCKS * (BLOCKS + 1) / 2];
    float2 gamma[CHUNK];                  // γ log2(e)
    float row[BLOCKS - 1][CHUNK];         // exp(γ_i - γ_e) for blocks that end before i
    float column[CHUNK];                  // exp(γ_e - γ_j)

    __device__ __forceinline__ SplitBlock& at(int row, int column) { return block[row * (row + 1) / 2 + column]; }
    __device__ __forceinline__ float kept(int i, int j) const { return power_of_two(difference(gamma[i], gamma[j])); }
};

// ANCHOR: scan
// Gates of a chunk, of which a lane has two positions that follow each other. They are asked for a chunk ahead: device memory takes
// as long as all the rest of a chunk's inverse.
struct AskedGates {
    float g[2], beta[2];

    __device__ __forceinline__ void ask(const float* of_g, const float* of_beta, int first, int S) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            int t = first + threadIdx.x % 32 * 2 + n;
            g[n] = t < S ? of_g[t] : 0, beta[n] = t < S ? of_beta[t] : 0;
        }
    }
    // By one warp. As scan_gates(), with what a solver needs besides.
    __device__ __forceinline__ void scan(SolverRoom& room, Decays& decays) const {
        constexpr unsigned ALL = 0xffffffff;
        int lane = threadIdx.x % 32;
        double own[2], sum[2], end[BLOCKS];
#pragma unroll
        for (int n = 0; n < 2; ++n) own[n] = g[n] < SHUT ? SHUT : g[n];  // -∞, too: ∞ - ∞ would be NaN
        sum[1] = own[0] + own[1];
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {  // after step d: of 2 d lanes up to this one
            double before = __shfl_up_sync(ALL, sum[1], d);
            if (lane >= d) sum[1] += before;
        }
        double before = __shfl_up_sync(ALL, sum[1], 1);
        sum[0] = lane > 0 ? before + own[0] : own[0];
#pragma unroll
        for (int c = 0; c < BLOCKS; ++c) end[c] = __shfl_sync(ALL, sum[1], c * (SIDE / 2) + SIDE / 2 - 1);
        double own_end = __shfl_sync(ALL, sum[1], lane | (SIDE / 2 - 1));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            int i = 2 * lane + n;
            auto kept = [&](double of) { return power_of_two(fminf(static_cast<float>(of), 0) * LOG2E); };
            room.gamma[i] = in_twos(two_floats(sum[n]), 0);
            room.column[i] = kept(own_end - sum[n]);
#pragma unroll
            for (int c = 0; c < BLOCKS - 1; ++c) room.row[c][i] = kept(sum[n] - end[c]);
            decays.read[i] = expf(static_cast<float>(sum[n]));
            decays.write[i] = expf(static_cast<float>(end[BLOCKS - 1] - sum[n]));
            decays.beta[i] = beta[n];
        }
    }
};
// ANCHOR_END: scan

// ANCHOR: kept
// E of a lane's eight elements of a warp's block c, as a product's sums lie.
__device__ __forceinline__ void kept_of_block(float (&kept)[8], int c, const SolverRoom& room, int thread) {
    int warp = thread / 32 % 4, g = thread % 32 / 4, t = thread % 4;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        int i = g + n / 2 % 2 * 8, j = n / 4 * 8 + 2 * t;
        if (c < warp) {
            float row = room.row[c][warp * SIDE + i];
            float2 column = *reinterpret_cast<const float2*>(&room.column[c * SIDE + j]);
            kept[n] = row * column.x, kept[n + 1] = row * column.y;
        } else {
            float2 own = room.gamma[warp * SIDE + i];
            float4 of = *reinterpret_cast<const float4*>(&room.gamma[warp * SIDE + j]);
            kept[n] = j <= i ? power_of_two(difference(own, make_float2(of.x, of.y))) : 0;
            kept[n + 1] = j < i ? power_of_two(difference(own, make_float2(of.z, of.w))) : 0;
        }
    }
}

// A warp's rows of A, to blocks, and of the pairs. Of A what is on the diagonal and above it is not read.
template <class T>
__device__ __forceinline__ void weigh(SolverRoom& room, T* pairs, const float (&kk)[CHUNK / 2], const float (&qk)[CHUNK / 2],
                                      const Decays& decays, float scale) {
    int thread = computed_here(threadIdx.x), warp = thread / 32 % 4, lane = thread % 32, g = lane / 4, t = lane % 4;
    float beta[2] = {decays.beta[warp * SIDE + g], decays.beta[warp * SIDE + g + 8]};
    unsigned words[BLOCKS][4];
#pragma unroll
    for (int c = 0; c < BLOCKS; ++c) {
        if (c > warp) continue;
        auto& block = room.at(warp, c);
        float kept[8];
        kept_of_block(kept, c, room, thread);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            float x = kept[2 * w], y = kept[2 * w + 1], b = beta[w % 2];
            int n = 8 * c + 2 * w, to = spot(g + w % 2 * 8, w / 2 * 8 + 2 * t);
            // Not 0 · NaN, where K's row is a later one.
            float p = x == 0 ? 0 : scale * x * qk[n], p_next = y == 0 ? 0 : scale * y * qk[n + 1];
            words[c][w] = two_halves<T>(p, p_next);
            float a = b * x * kk[n], a_next = b * y * kk[n + 1];
            if (c < warp) block[to] = split_pair(-a, -a_next);
            else reinterpret_cast<float2*>(block)[to] = make_float2(a, a_next);
        }
    }
#pragma unroll
    for (int c = 0; c < BLOCKS; ++c)
        if (c <= warp) store_matrices(cell(pairs, warp * SIDE + lane % 16, c * SIDE + lane / 16 * 8), words[c]);
}
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
