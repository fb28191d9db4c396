// All that gates alone decide, before any product. With F_t = Σ_{τ <= t} log sigmoid(f_τ), x_j = i_j - F_j and R_i the
// largest x_j up to i,
//
//   m_i = max_{j <= i} (F_i - F_j + i_j) = F_i + R_i
//   s P_ij = s exp(F_i - F_j + i_j - m_i) = 2^(row_i + column_j)      row_i = log2(s) - R_i log2(e)
//                                                                     column_j = x_j log2(e)
//
// The two parts of an exponent are large and nearly cancel, so each goes out as two floats; sums are in f64.
//
// With FACTORS, also what weights of later tiles are made from without a power for each (factors.cuh).
//
// Work split: a block owns a head and goes along it, a position a thread. Past the end weights are 0.
//
// i, f, m: heads x S; row, column: heads x length, where length is S rounded up to whole tiles; factors: heads x
// length / 64. A grid of heads blocks.
#include "pairs.cuh"

using namespace lab;

constexpr int THREADS = 512, WARPS = THREADS / 32;
constexpr double LOG2E_F64 = 1.4426950408889634;

// The largest of nothing. Were it -∞, x - R of gates that are all shut would be NaN.
constexpr double LOWEST = -1e30f;

struct Sum {
    __device__ __forceinline__ double operator()(double a, double b) const { return a + b; }
};
struct Larger {  // the second, if one is NaN
    __device__ __forceinline__ double operator()(double a, double b) const { return a > b ? a : b; }
};

// ANCHOR: scan
// `own` with all before it: those of the block's threads up to this one, and `carry`, to which the whole block's are
// added. `of_warp` is room for one a warp, and nobody else's until the next barrier but one.
template <class Op>
__device__ __forceinline__ double scan(double own, double& carry, double (&of_warp)[WARPS], Op op) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = 1; d < 32; d *= 2) {  // after step d: of 2 d lanes up to this one
        double before = __shfl_up_sync(0xffffffff, own, d);
        if (lane >= d) own = op(before, own);
    }
    if (lane == 31) of_warp[warp] = own;
    __syncthreads();  // a thread reads what the last lanes of all warps have written
    double before = carry;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        if (w == warp) before = carry;
        carry = op(carry, of_warp[w]);
    }
    return op(before, own);
}
// ANCHOR_END: scan

template <bool FACTORS>
__global__ void __launch_bounds__(THREADS)
    vlstm_fw_gates(const float* __restrict__ i_gate, const float* __restrict__ f_gate, float* __restrict__ m,
                   float2* __restrict__ row, float2* __restrict__ column, Factors* __restrict__ factors, int* taken,
                   int S, int length, float log2_scale) {
    __shared__ double sums[WARPS], maxima[WARPS], ends[THREADS / PANEL];
    const float *i = i_gate + 1ll * blockIdx.x * S, *f = f_gate + 1ll * blockIdx.x * S;
    long long at = 1ll * blockIdx.x * length;
    double all = 0, largest = LOWEST;
    if (blockIdx.x == 0 && threadIdx.x == 0) *taken = 0;  // for blocks of the next launch that take parts in turn
    // ANCHOR: gates
    for (int t = threadIdx.x; t - static_cast<int>(threadIdx.x) < length; t += THREADS) {
        double F = scan(t < S ? log_kept(f[t]) : 0, all, sums, Sum());
        double x = t < S ? i[t] - F : lowest<float>();
        double R = scan(x, largest, maxima, Larger());
        if (t < length) {
            row[at + t] = two_floats(log2_scale - R * LOG2E_F64);
            column[at + t] = two_floats(x * LOG2E_F64);
        }
        if (t < S) m[1ll * blockIdx.x * S + t] = R <= LOWEST / 2 ? lowest<float>() : static_cast<float>(F + R);
        if constexpr (FACTORS) {
            if (t % PANEL == PANEL - 1) ends[threadIdx.x / PANEL] = R;
            __syncthreads();  // a thread reads what the last of its 64 has written
            double end = ends[threadIdx.x / PANEL] * LOG2E_F64;
            Factors& own = factors[(at + t) / PANEL];
            if (t >= length) continue;
            own.of[t % PANEL] = power_of_two(static_cast<float>(x * LOG2E_F64 - end));
            float2 anchor = two_floats(end);
            if (t % PANEL == 0) own.anchor = make_float4(anchor.x, anchor.y, 0, 0);
        }
    }
    // ANCHOR_END: gates
}
