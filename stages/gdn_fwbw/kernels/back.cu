// The gated delta rule backward, from the last chunk to the first: the gradient of the state, and what each chunk hands to it.
// With dC⁺ the gradient of the state behind a chunk, and `inverse`, `pairs` (s in it) as the forward pass has them:
//
//   dU = pairsᵀ dH + write ⊙ (K dC⁺)      dR = inverseᵀ dU      dv = beta ⊙ dR
//   dC  = exp(γ_L) dC⁺ + s (Q ⊙ read)ᵀ dH - (K ⊙ beta read)ᵀ dR
//
// Columns of V do not meet. Work split: as v1_chunks.cu of gdn_fw: a block has COLUMNS columns of a head, a thread one of them and
// every WARPS-th position or key.
//
// q, k: heads / group x S x dhqk, dh, dv, dR: heads x S x dhhv, dCN, dC0: heads x dhqk x dhhv, dC: heads x chunks x dhqk x dhhv,
// behind each chunk; inverse, pairs: heads x chunks x CHUNK x CHUNK, decays: heads x chunks. A grid of heads slices blocks,
// slices = ceil(dhhv / COLUMNS).
#include "lab/gdn/decays.cuh"

using namespace lab;

constexpr int THREADS = 256, COLUMNS = 32, WARPS = THREADS / COLUMNS, OWN = CHUNK / WARPS;

// sum_j = Σ_{i >= j} weights_ij x_i of a thread's rows and column.
__device__ __forceinline__ void multiply_columns(float (&sum)[OWN], const float* weights, const float (*x)[COLUMNS], int warp,
                                                 int column) {
#pragma unroll
    for (int n = 0; n < OWN; ++n) {
        int j = warp + WARPS * n;
        for (int i = j; i < CHUNK; ++i) sum[n] += weights[i * CHUNK + j] * x[i][column];
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    gdn_fwbw_back(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ dh,
                  const float* __restrict__ inverse, const float* __restrict__ pairs,
                  const Decays* __restrict__ decays, const float* __restrict__ dCN, float* dC, float* __restrict__ dC0,
                  float* __restrict__ dR, T* __restrict__ dv, int chunks, int S, int dhqk, int dhhv, int group, int slices,
                  bool gradient_given, bool gradient_wanted, float scale) {
    __shared__ float of_h[CHUNK][COLUMNS], of_values[CHUNK][COLUMNS], of_rest[CHUNK][COLUMNS];
    int column = threadIdx.x % COLUMNS, warp = threadIdx.x / COLUMNS;
    int c = blockIdx.x % slices * COLUMNS + column;
    long long head = blockIdx.x / slices, cells = 1ll * dhqk * dhhv;
    bool inside = c < dhhv;
    q += head / group * S * dhqk, k += head / group * S * dhqk;
    dh += head * S * dhhv, dv += head * S * dhhv, dR += head * S * dhhv;
    dC += (head * chunks + chunks - 1) * cells;
    dCN += gradient_given ? head * cells : 0, dC0 += gradient_wanted ? head * cells : 0;
    for (int r = warp; r < dhqk && inside; r += WARPS) dC[r * dhhv + c] = gradient_given ? dCN[r * dhhv + c] : 0;
    __syncthreads();  // a thread reads rows of dC that others have stored

    // ANCHOR: back
    for (int chunk = chunks - 1; chunk >= 0; --chunk, dC -= cells) {
        long long at = head * chunks + chunk;
        const Decays& decay = decays[at];
        int first = chunk * CHUNK, length = min(CHUNK, S - first);
        float own[OWN] = {}, rest[OWN] = {};
        for (int r = 0; r < dhqk && inside; ++r) {
            float x = dC[r * dhhv + c];
#pragma unroll
            for (int n = 0; n < OWN; ++n) {
                int j = warp + WARPS * n;
                if (j < length) own[n] += to_math(k[1ll * (first + j) * dhqk + r]) * x;
            }
        }
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            int j = warp + WARPS * n;
            own[n] = keep(decay.write[j], own[n]);
            of_h[j][column] = j < length && inside ? to_math(dh[1ll * (first + j) * dhhv + c]) : 0;
        }
        __syncthreads();  // a thread reads all rows of dH
        multiply_columns(own, pairs + at * CHUNK * CHUNK, of_h, warp, column);
#pragma unroll
        for (int n = 0; n < OWN; ++n) of_values[warp + WARPS * n][column] = own[n];
        __syncthreads();  // and of dU
        multiply_columns(rest, inverse + at * CHUNK * CHUNK, of_values, warp, column);
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            int j = warp + WARPS * n;
            of_rest[j][column] = rest[n];
            if (j >= length || !inside) continue;
            dR[1ll * (first + j) * dhhv + c] = rest[n];
            dv[1ll * (first + j) * dhhv + c] = from_math<T>(decay.beta[j] * rest[n]);
        }
        __syncthreads();  // and of dR
        float* before = chunk > 0 ? dC - cells : gradient_wanted ? dC0 : nullptr;
        for (int r = warp; r < dhqk && inside && before; r += WARPS) {
            float sum = keep(decay.read[CHUNK - 1], dC[r * dhhv + c]);
            for (int i = 0; i < length; ++i) {
                float of_q = scale * of_h[i][column] * to_math(q[1ll * (first + i) * dhqk + r]);
                float of_k = decay.beta[i] * of_rest[i][column] * to_math(k[1ll * (first + i) * dhqk + r]);
                sum += keep(decay.read[i], of_q - of_k);
            }
            before[r * dhhv + c] = sum;
        }
        __syncthreads();  // the next chunk's products read all rows of dC, and store over what is read here
    }
    // ANCHOR_END: back
}
