// Between the forward pass and the gradients, what pairs need of their row: its part of the exponent of
//
//   w_ij = s exp(F_i - F_j + i_j - m_i) / N_i = 2^(exponent_i + column_j)      exponent_i = row_i - log2(N_i)
//
// With FACTORS, of 64 rows i that begin with b also what weights of positions j before b are made from without a power for
// each pair. R never falls, so that the second factor is at most 1, and the first at most 1 / N_i:
//
//   w_ij = 2^(exponent_i - row_b) 2^(row_b + column_j)        row_b = log2(s) - R_b log2(e)
//
// and behind the gradients, G's sums over a row, of which each block that owned positions has left its share, and df.
//
// Work split: a thread has a position; of df, a block has a head.
#include "gradients.cuh"

using namespace lab;

// row, exponent: heads x length; n: heads x S, factors: heads x length / 64. Rows past the end have weights of 0. `all` is
// heads x length.
template <int THREADS, bool FACTORS>
__global__ void __launch_bounds__(THREADS)
    vlstm_rows(const float2* __restrict__ row, const float* __restrict__ n, float2* __restrict__ exponent,
               Factors* __restrict__ row_factors, int length, int S, long long all, float eps) {
    long long at = 1ll * blockIdx.x * THREADS + threadIdx.x;
    if (at >= all) return;
    long long head = at / length;
    int i = at % length;
    float2 own = row[at];
    double inverse = i < S ? -log2(static_cast<double>(n[head * S + i]) + eps) : lowest<float>();
    double sum = static_cast<double>(own.x) + own.y + inverse;
    exponent[at] = two_floats(sum);
    if constexpr (FACTORS) {
        float2 first = row[at / PANEL * PANEL];
        Factors& factors = row_factors[at / PANEL];
        factors.of[at % PANEL] = power_of_two(static_cast<float>(sum - first.x - first.y));
        if (at % PANEL == 0) factors.anchor = make_float4(first.x, first.y, 0, 0);
    }
}

// ANCHOR: sums
// shares: heads x tiles x length, of tiles of L positions that a block has owned, those up to the row's. sums: heads x S.
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    vlstm_row_sums(const float* __restrict__ shares, float* __restrict__ sums, int tiles, int L, int length, int S,
                   long long positions) {
    long long at = 1ll * blockIdx.x * THREADS + threadIdx.x;
    if (at >= positions) return;
    long long head = at / S;
    int i = at % S;
    double sum = 0;
    for (int tile = 0; tile <= i / L; ++tile) sum += shares[(head * tiles + tile) * length + i];
    sums[at] = static_cast<float>(sum);
}
// ANCHOR_END: sums

// ANCHOR: forget
// df_t = sigmoid(-f_t) Σ_{τ >= t} (sums_τ - di_τ): what is left of large numbers, in f64. A block has a head, and goes along
// it from its end, a position a thread; the first thread has the last one. All of them add up to 0: the first forget gate
// has nothing to forget.
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    vlstm_forget_sums(const float* __restrict__ f, const float* __restrict__ sums, const float* __restrict__ di,
                      float* __restrict__ df, int S) {
    __shared__ double of_warp[THREADS / 32];
    long long head = 1ll * blockIdx.x * S;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double later = 0;
    for (int end = S; end > 0; end -= THREADS) {
        int t = end - 1 - static_cast<int>(threadIdx.x);
        double own = t >= 0 ? static_cast<double>(sums[head + t]) - di[head + t] : 0;
        for (int d = 1; d < 32; d *= 2) {  // after step d: of 2 d lanes up to this one
            double before = __shfl_up_sync(0xffffffff, own, d);
            if (lane >= d) own += before;
        }
        if (lane == 31) of_warp[warp] = own;
        __syncthreads();  // the sums of all warps are there
        double before = later;
#pragma unroll
        for (int w = 0; w < THREADS / 32; ++w) {
            if (w == warp) before = later;
            later += of_warp[w];
        }
        __syncthreads();  // they are read: the next ones may be written
        if (t >= 0) df[head + t] = t == 0 ? 0 : gradient_of_kept(f[head + t], static_cast<float>(before + own));
    }
}
// ANCHOR_END: forget
