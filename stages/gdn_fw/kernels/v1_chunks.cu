// The gated delta rule in chunks of 64 positions: all that waits for the position before is made a chunk at a time.
//
//   U = inverse diag(beta) (V - (K ⊙ read) C)      H = s (Q ⊙ read) C + pairs U      C⁺ = exp(γ_L) C + (K ⊙ write)ᵀ U
//
// with `inverse` and `pairs` as the launch before has made them (substitute.cu). C is the state before the chunk.
//
// Work split: a block has COLUMNS columns of a head's V, H and C, and goes from chunk to chunk. A thread has a column, and every
// WARPS-th position or key. C lies in device memory between chunks: in one place, or, where a backward pass follows, which saves
// U too, in a place for each chunk and one for what is behind the last.
//
// q, k: heads / group x S x dhqk, v, h: heads x S x dhhv, C0, CN: heads x dhqk x dhhv, C: heads x (1 or chunks + 1) x
// dhqk x dhhv, saved_values: heads x S x dhhv; inverse, pairs: heads x chunks x CHUNK x
// CHUNK, decays: heads x chunks. A grid of heads slices blocks, slices = ceil(dhhv / COLUMNS).
#include "lab/gdn/decays.cuh"

using namespace lab;

constexpr int THREADS = 256, COLUMNS = 32, WARPS = THREADS / COLUMNS, OWN = CHUNK / WARPS;

// sum_i = Σ_{j <= i} weights_ij x_j of a thread's rows and column.
__device__ __forceinline__ void multiply_rows(float (&sum)[OWN], const float* weights, const float (*x)[COLUMNS], int warp,
                                              int column) {
#pragma unroll
    for (int n = 0; n < OWN; ++n) {
        int i = warp + WARPS * n;
        for (int j = 0; j <= i; ++j) sum[n] += weights[i * CHUNK + j] * x[j][column];
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    gdn_fw_chunks(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  const float* __restrict__ inverse, const float* __restrict__ pairs,
                  const Decays* __restrict__ decays, const float* __restrict__ C0, float* C,
                  float* __restrict__ CN, float* __restrict__ saved_values, T* __restrict__ h, int chunks, int S, int dhqk,
                  int dhhv, int group, int slices, bool given, bool wanted, bool saves, float scale) {
    __shared__ float rest[CHUNK][COLUMNS], written[CHUNK][COLUMNS];
    int column = threadIdx.x % COLUMNS, warp = threadIdx.x / COLUMNS;
    int c = blockIdx.x % slices * COLUMNS + column;
    long long head = blockIdx.x / slices, cells = 1ll * dhqk * dhhv, apart = saves ? cells : 0;
    bool inside = c < dhhv;
    q += head / group * S * dhqk, k += head / group * S * dhqk;
    v += head * S * dhhv, h += head * S * dhhv, saved_values += saves ? head * S * dhhv : 0;
    C += head * (chunks * apart + cells), C0 += given ? head * cells : 0, CN += wanted ? head * cells : 0;
    for (int r = warp; r < dhqk && inside; r += WARPS) C[r * dhhv + c] = given ? C0[r * dhhv + c] : 0;
    __syncthreads();  // a thread reads rows of C that others have stored

    // ANCHOR: walk
    for (int chunk = 0, first = 0; chunk < chunks; ++chunk, first += CHUNK, C += apart) {
        long long at = head * chunks + chunk;
        const Decays& decay = decays[at];
        int length = min(CHUNK, S - first);
        float of_k[OWN] = {}, out[OWN] = {}, own[OWN] = {};
        for (int r = 0; r < dhqk && inside; ++r) {
            float x = C[r * dhhv + c];
#pragma unroll
            for (int n = 0; n < OWN; ++n) {
                int i = warp + WARPS * n;
                if (i >= length) continue;
                of_k[n] += to_math(k[1ll * (first + i) * dhqk + r]) * x;
                out[n] += to_math(q[1ll * (first + i) * dhqk + r]) * x;
            }
        }
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            int i = warp + WARPS * n;
            float value = i < length && inside ? to_math(v[1ll * (first + i) * dhhv + c]) : 0;
            rest[i][column] = decay.beta[i] * (value - keep(decay.read[i], of_k[n]));
            out[n] = scale * keep(decay.read[i], out[n]);
        }
        __syncthreads();  // a thread reads all rows of what is left of V; all have read C
        multiply_rows(own, inverse + at * CHUNK * CHUNK, rest, warp, column);
#pragma unroll
        for (int n = 0; n < OWN; ++n) written[warp + WARPS * n][column] = own[n];
        __syncthreads();  // a thread reads all rows of U
        multiply_rows(out, pairs + at * CHUNK * CHUNK, written, warp, column);
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            int i = warp + WARPS * n;
            if (i >= length || !inside) continue;
            h[1ll * (first + i) * dhhv + c] = from_math<T>(out[n]);
            if (saves) saved_values[1ll * (first + i) * dhhv + c] = own[n];
        }
        for (int r = warp; r < dhqk && inside; r += WARPS) {
            float sum = keep(decay.read[CHUNK - 1], C[r * dhhv + c]);
            for (int j = 0; j < length; ++j)
                sum += to_math(k[1ll * (first + j) * dhqk + r]) * decay.write[j] * written[j][column];
            C[apart + r * dhhv + c] = sum;
        }
        __syncthreads();  // the next chunk's products read all rows of C, and store over what is read here
    }
    // ANCHOR_END: walk
    for (int r = warp; r < dhqk && inside && wanted; r += WARPS) CN[r * dhhv + c] = C[r * dhhv + c];
}
