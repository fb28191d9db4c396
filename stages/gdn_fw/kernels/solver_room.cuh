// What a solver of chunks (solver.cuh) has in shared memory, and the gates that it scans.
#pragma once
#include "lab/gdn/decays.cuh"
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
    float row[BLOCKS - 1][CHUNK];         // exp(γ_i - γ_e) for blocks that end before i, else 1
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

}  // namespace lab
