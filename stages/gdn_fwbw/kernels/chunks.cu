// What a chunk's own gradients are, of all chunks at once: with C the state before it, dC⁺ the gradient of the state C⁺ behind it,
// U of the forward pass and dR of the launch before,
//
//   dS = s tril(dH Uᵀ) ⊙ E                  Z = -tril(dR Uᵀ, -1) ⊙ E        G = diag(beta) Z
//   dq = dS K + s read ⊙ (dH Cᵀ)            read by k: dk_r = G K - beta read ⊙ (dR Cᵀ)
//                                           written by k: dk_w = dSᵀ Q + Gᵀ K + write ⊙ (U dC⁺ᵀ)
//   dk = dk_r + dk_w                        dbeta_i = dR_i·v_i + k_i·((Z K)_i - read_i C dR_i)
//   dg_t = ⟨C⁺, dC⁺⟩ + Σ_{τ >= t in the chunk} (q·dq + k·dk_r - k·dk_w)
//
// Work split: a block has a chunk of a head of q and k, and goes through the heads of v that share it, so that dq and dk are sums
// in one order. Pairs: a thread has 4 x 4, and 16 columns of V lie in shared memory at a time. Then 16 keys at a time, of which a
// thread has one, and four positions.
//
// q, k, dq, dk, dq_sum, dk_sum: heads / group x S x dhqk, v, dh, dR, saved_values (U): heads x S x dhhv, g, beta, dg, dbeta: heads x S, C:
// heads x (chunks + 1) x dhqk x dhhv, dC: heads x chunks x dhqk x dhhv; decays: heads x chunks. A grid of heads / group chunks
// blocks.
#include "lab/gdn/decays.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/reduce.cuh"

using namespace lab;

constexpr int THREADS = 256, SIDE = 16, OWN = CHUNK / SIDE, ROW = CHUNK + 1, TILE = SIDE + 1;

struct Shared {
    float dS[CHUNK * ROW], Z[CHUNK * ROW];
    float rows[4][CHUNK * TILE];   // tiles of CHUNK positions: which, each loop says
    float cells[2][SIDE * TILE];   // of C and dC⁺, a row for a key
    float x[CHUNK];
    float2 gamma[CHUNK];
    Decays decays;
};

template <class T> constexpr int gdn_fwbw_chunks_shared = sizeof(Shared);

// SIDE columns of `length` positions from c0 on; zeros past them and past the matrix.
template <class T>
__device__ __forceinline__ void load_rows(float* to, const T* from, int c0, int columns, int length) {
    for (int e = threadIdx.x; e < CHUNK * SIDE; e += THREADS) {
        int r = e / SIDE, c = e % SIDE;
        to[r * TILE + c] = r < length && c0 + c < columns ? to_math(from[1ll * r * columns + c0 + c]) : 0;
    }
}

// SIDE keys from r0 on of SIDE columns from c0 on.
__device__ __forceinline__ void load_cells(float* to, const float* from, int r0, int c0, int dhqk, int dhhv) {
    int r = threadIdx.x / SIDE, c = threadIdx.x % SIDE;
    to[r * TILE + c] = r0 + r < dhqk && c0 + c < dhhv ? from[1ll * (r0 + r) * dhhv + c0 + c] : 0;
}

// Of SIDE neighbours, which have the same positions.
__device__ __forceinline__ float over_keys(float x) { return warp_reduce<SIDE>(x, Add()); }

template <class T>
__global__ void __launch_bounds__(THREADS)
    gdn_fwbw_chunks(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ dh,
                    const float* __restrict__ g, const float* __restrict__ beta,
                    const float* __restrict__ saved_values,
                    const float* __restrict__ dR, const float* __restrict__ C, const float* __restrict__ dC,
                    float* dq_sum, float* dk_sum, T* __restrict__ dq, T* __restrict__ dk, float* __restrict__ dg,
                    float* __restrict__ dbeta, int chunks, int S, int dhqk, int dhhv, int group, bool given, float scale) {
    DYNAMIC_SHARED(unsigned char, memory);
    auto& shared = *reinterpret_cast<Shared*>(memory);
    int chunk = blockIdx.x % chunks, first = chunk * CHUNK, length = min(CHUNK, S - first);
    int ti = threadIdx.x / SIDE, tj = threadIdx.x % SIDE;
    long long of_keys = blockIdx.x / chunks, cells = 1ll * dhqk * dhhv, keys = (of_keys * S + first) * dhqk;
    q += keys, k += keys, dq += keys, dk += keys, dq_sum += keys, dk_sum += keys;

    for (int member = 0; member < group; ++member) {
        long long head = of_keys * group + member, values = (head * S + first) * dhhv;
        const float *state = C + (head * (chunks + 1) + chunk) * cells, *behind = dC + (head * chunks + chunk) * cells;
        if (threadIdx.x < 32) scan_gates(shared.gamma, shared.decays, g + head * S, beta + head * S, first, S);

        // ANCHOR: pairs
        float of_h[OWN][OWN] = {}, of_rest[OWN][OWN] = {}, of_v[OWN] = {};
        for (int c0 = 0; c0 < dhhv; c0 += SIDE) {
            load_rows(shared.rows[0], dh + values, c0, dhhv, length);
            load_rows(shared.rows[1], dR + values, c0, dhhv, length);
            load_rows(shared.rows[2], saved_values + values, c0, dhhv, length);
            load_rows(shared.rows[3], v + values, c0, dhhv, length);
            __syncthreads();  // a thread reads rows that others have stored; and γ
            for (int c = 0; c < SIDE; ++c)
#pragma unroll
                for (int m = 0; m < OWN; ++m)
#pragma unroll
                    for (int n = 0; n < OWN; ++n) {
                        float x = shared.rows[2][(tj + SIDE * n) * TILE + c];
                        of_h[m][n] += shared.rows[0][(ti + SIDE * m) * TILE + c] * x;
                        of_rest[m][n] += shared.rows[1][(ti + SIDE * m) * TILE + c] * x;
                    }
#pragma unroll
            for (int m = 0; m < OWN; ++m)
                of_v[m] += shared.rows[1][(ti + SIDE * m) * TILE + tj] * shared.rows[3][(ti + SIDE * m) * TILE + tj];
            __syncthreads();  // they are read: the next may be stored
        }
#pragma unroll
        for (int m = 0; m < OWN; ++m)
#pragma unroll
            for (int n = 0; n < OWN; ++n) {
                int i = ti + SIDE * m, j = tj + SIDE * n;
                float kept = j <= i ? decay(shared.gamma, i, j) : 0;
                shared.dS[i * ROW + j] = j <= i ? scale * of_h[m][n] * kept : 0;
                shared.Z[i * ROW + j] = j < i ? -of_rest[m][n] * kept : 0;
            }
        // ANCHOR_END: pairs

        // ANCHOR: keys
        float of_beta[OWN] = {}, x[OWN] = {};
        for (int r0 = 0; r0 < dhqk; r0 += SIDE) {
            float of_state[OWN] = {}, of_read[OWN] = {}, of_write[OWN] = {};
            for (int c0 = 0; c0 < dhhv; c0 += SIDE) {
                __syncthreads();  // dS and Z are there; what was in the tiles is read
                load_rows(shared.rows[0], dh + values, c0, dhhv, length);
                load_rows(shared.rows[1], dR + values, c0, dhhv, length);
                load_rows(shared.rows[2], saved_values + values, c0, dhhv, length);
                load_cells(shared.cells[0], state, r0, c0, dhqk, dhhv);
                load_cells(shared.cells[1], behind, r0, c0, dhqk, dhhv);
                __syncthreads();  // a thread reads tiles that others have stored
                for (int c = 0; c < SIDE; ++c) {
                    float of_c = shared.cells[0][tj * TILE + c], of_dc = shared.cells[1][tj * TILE + c];
#pragma unroll
                    for (int m = 0; m < OWN; ++m) {
                        int row = (ti + SIDE * m) * TILE + c;
                        of_state[m] += of_c * shared.rows[0][row];
                        of_read[m] += of_c * shared.rows[1][row];
                        of_write[m] += of_dc * shared.rows[2][row];
                    }
                }
            }
            __syncthreads();  // the tiles are read: Q and K take their place
            load_rows(shared.rows[0], q, r0, dhqk, length);
            load_rows(shared.rows[1], k, r0, dhqk, length);
            __syncthreads();  // a thread reads rows that others have stored
#pragma unroll
            for (int m = 0; m < OWN; ++m) {
                int i = ti + SIDE * m;
                float query = shared.rows[0][i * TILE + tj], key = shared.rows[1][i * TILE + tj];
                float own = shared.decays.beta[i], read = shared.decays.read[i];
                float by_q = scale * keep(read, of_state[m]), of_z = -keep(read, of_read[m]);
                float by_write = keep(shared.decays.write[i], of_write[m]);
                for (int j = 0; j <= i; ++j) {
                    by_q += shared.dS[i * ROW + j] * shared.rows[1][j * TILE + tj];
                    of_z += shared.Z[i * ROW + j] * shared.rows[1][j * TILE + tj];
                }
                for (int j = i; j < CHUNK; ++j) {  // of later positions
                    by_write += shared.dS[j * ROW + i] * shared.rows[0][j * TILE + tj];
                    by_write += shared.decays.beta[j] * shared.Z[j * ROW + i] * shared.rows[1][j * TILE + tj];
                }
                of_beta[m] += key * of_z;
                x[m] += query * by_q + key * (own * of_z - by_write);
                if (i >= length || r0 + tj >= dhqk) continue;
                long long at = 1ll * i * dhqk + r0 + tj;
                float all_q = by_q, all_k = own * of_z + by_write;
                if (member > 0) all_q += dq_sum[at], all_k += dk_sum[at];
                if (member + 1 < group) dq_sum[at] = all_q, dk_sum[at] = all_k;
                else dq[at] = from_math<T>(all_q), dk[at] = from_math<T>(all_k);
            }
        }
        // ANCHOR_END: keys

        // ANCHOR: gates
        float inner = 0;
        for (int e = threadIdx.x; e < cells; e += THREADS) inner += state[cells + e] * behind[e];
        inner = block_reduce<THREADS>(inner, Add(), 0.0f);
#pragma unroll
        for (int m = 0; m < OWN; ++m) {
            int i = ti + SIDE * m;
            float of_row = over_keys(of_beta[m] + of_v[m]), sum = over_keys(x[m]);
            if (tj == 0) shared.x[i] = sum;
            if (tj == 0 && i < length) dbeta[head * S + first + i] = of_row;
        }
        __syncthreads();  // a thread reads x of all later positions
        if (static_cast<int>(threadIdx.x) < length) {
            float sum = inner;
            for (int i = threadIdx.x; i < length; ++i) sum += shared.x[i];
            if (!given && first + threadIdx.x == 0) sum = 0;  // there was nothing to keep; what is left are roundings
            // Likewise where the gate keeps nothing.
            if (expf(g[head * S + first + threadIdx.x]) == 0) sum = 0;
            dg[head * S + first + threadIdx.x] = sum;
        }
        __syncthreads();  // the next head's are stored where these are read
        // ANCHOR_END: gates
    }
}
