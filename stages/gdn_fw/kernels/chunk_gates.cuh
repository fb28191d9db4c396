// A chunk's place in shared memory, and what its gates come to.
//
// E_ij = exp(γ_i - γ_j) of a block of 16 x 16 below the diagonal is a factor of its row times one of its column,
// exp(γ_i - γ_e) exp(γ_e - γ_j) with e the block's last column: neither exponent is above 0.
#pragma once
#include "lab/gdn/decays.cuh"
#include "lab/vlstm/panels.cuh"

namespace lab {

constexpr int SIDE = 16, BLOCKS = CHUNK / SIDE;

// What E is made from.
struct Gates {
    float2 gamma[CHUNK];           // γ log2(e)
    float row[BLOCKS - 1][CHUNK];  // exp(γ_i - γ_e) for blocks that end before i
    float column[CHUNK];           // exp(γ_e - γ_j)
    float beta_read[CHUNK];        // beta_i exp(γ_i)
};

// Of a chunk, for all roles.
template <class T, int KEY> struct Solved {
    Panels<T, KEY, CHUNK> q, k;
    Panels<T, PANEL, CHUNK> inverse, pairs;
    Decays decays;
    Gates gates;
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
    __device__ __forceinline__ void scan(Gates& gates, Decays& decays) const {
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
            gates.gamma[i] = in_twos(two_floats(sum[n]), 0);
            gates.column[i] = kept(own_end - sum[n]);
#pragma unroll
            for (int c = 0; c < BLOCKS - 1; ++c) gates.row[c][i] = kept(sum[n] - end[c]);
            decays.read[i] = expf(static_cast<float>(sum[n]));
            decays.write[i] = expf(static_cast<float>(end[BLOCKS - 1] - sum[n]));
            decays.beta[i] = beta[n];
            gates.beta_read[i] = beta[n] * decays.read[i];
        }
    }
};
// ANCHOR_END: scan

// ANCHOR: kept
// E as the sums of a product of positions lie, of which a warp has 16 rows.
struct Kept {
    float own[8];  // on the diagonal
    int warp, lane;

    __device__ __forceinline__ explicit Kept(const Gates& gates) {
        int thread = computed_here(threadIdx.x);
        warp = thread / 32 % 4, lane = thread % 32;
        int first = warp * SIDE, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            int i = g + n / 2 % 2 * 8, j = n / 4 * 8 + 2 * t;
            float2 of_row = gates.gamma[first + i];
            float4 of = *reinterpret_cast<const float4*>(&gates.gamma[first + j]);
            float x = difference(of_row, make_float2(of.x, of.y)), y = difference(of_row, make_float2(of.z, of.w));
            own[n] = power_of_two(j <= i ? x : lowest<float>());
            own[n + 1] = power_of_two(j < i ? y : lowest<float>());
        }
    }

    // `each`(w, x, y) with E, times a factor of the row, of the two neighbours that a lane has as word w of its warp's block c,
    // which is below the diagonal.
    template <class Each>
    __device__ __forceinline__ void below(const Gates& gates, int c, const float (&factor)[2], Each each) const {
        int i = warp * SIDE + lane / 4, j = c * SIDE + lane % 4 * 2;
        float row[2] = {factor[0] * gates.row[c][i], factor[1] * gates.row[c][i + 8]};
#pragma unroll
        for (int w = 0; w < 4; w += 2) {
            float2 column = *reinterpret_cast<const float2*>(&gates.column[j + 4 * w]);
            each(w, row[0] * column.x, row[0] * column.y);
            each(w + 1, row[1] * column.x, row[1] * column.y);
        }
    }
};
// ANCHOR_END: kept

}  // namespace lab
