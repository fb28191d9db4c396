// Of each position what the backward pass needs beside what the gates have said:
//
//   N_i = n_i + eps     r_i = 0, n held constant; or -[|l_i| > exp(-m_i)] sign(l_i) (dh_i · h_i) / N_i
//
// and all that a walk back needs in the struct of a walk forward, with the roles exchanged. The state takes α_j k_j v_jᵀ and
// is read with s β_i / N_i; its gradient takes s β_i / N_i q_i dh_iᵀ and is read with α_j.
//
// The forward pass has left |l|, not its sign. It is found again without any scores: l_i = q_i · ν_i, with ν as n, but behind
// each position,
//
//   ν_i = 2^(row_i - row_(i-1)) ν_(i-1) + 2^(row_i + key_i) k_i      ν of the first position begins with β n
//
// Work split: a block owns a chunk of a head. For the signs a warp has 64 columns and goes along the positions; for
// dh · h each has every fourth position.
//
// rows, back: heads x chunks x L, taken: heads x chunks x TAKEN, the rest as in lab/vlstm/chunkwise.cuh. A grid of heads chunks
// blocks.
#include "lab/reduce.cuh"
#include "lab/vlstm/chunkwise.cuh"
#include "lab/vlstm/powers.cuh"
#include "row.cuh"

using namespace lab;

constexpr int WARPS = 4, THREADS = 32 * WARPS;

// Two neighbouring columns of row r, 0 past the end.
template <class T> __device__ __forceinline__ float2 two_of(Matrix<const T> from, int r, int c) {
    if (!from.inside(r, c)) return make_float2(0, 0);
    return floats_of<T>(*reinterpret_cast<const unsigned*>(from.at(r, c)));
}

// ANCHOR: signs
// A warp's share of q_i · ν_i, for all positions i of a chunk.
template <int L, class T>
__device__ __forceinline__ void find_signs(float* share, Matrix<const T> Q, Matrix<const T> K, const Position* positions,
                                           const float* n_state, int r0) {
    int lane = threadIdx.x % 32, column = threadIdx.x / 32 * WIDE + 2 * lane;
    float2 sum = make_float2(0, 0), before = sum;
    if (column < Q.columns) sum = *reinterpret_cast<const float2*>(n_state + column);
#pragma unroll 4
    for (int i = 0; i < L; ++i) {
        Position own = positions[i];
        // Never above 1; before the first position that counts there is nothing to keep.
        float kept = i == 0 ? own.beta : power_of_two(fminf(sum_of(own.row, negative(before)), 0));
        float gets = power_of_two(sum_of(own.row, own.key));
        float2 q = two_of(Q, r0 + i, column), k = two_of(K, r0 + i, column);
        sum = make_float2(kept * sum.x + gets * k.x, kept * sum.y + gets * k.y);
        float dot = warp_reduce(q.x * sum.x + q.y * sum.y, Add());
        if (lane == 0) share[i] = dot;
        before = own.row;
    }
}
// ANCHOR_END: signs

// dh_i · h_i of a warp's positions.
template <int L, class T>
__device__ __forceinline__ void multiply_rows(float* along, Matrix<const T> H, Matrix<const T> dH, int r0) {
    int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < L; i += WARPS) {
        float dot = 0;
        for (int c = 2 * lane; c < H.columns; c += WIDE) {
            float2 a = two_of(H, r0 + i, c), b = two_of(dH, r0 + i, c);
            dot += a.x * b.x + a.y * b.y;
        }
        dot = warp_reduce(dot, Add());
        if (lane == 0) along[i] = dot;
    }
}

// Σ_i s β_i r_i q_i of a thread's two columns: what the chunk adds to the gradient of n.
template <int L, class T>
__device__ __forceinline__ void add_rows(float* dn_part, Matrix<const T> Q, const float* by, int r0) {
    int column = threadIdx.x / 32 * WIDE + 2 * (threadIdx.x % 32);
    float2 sum = make_float2(0, 0);
#pragma unroll 4
    for (int i = 0; i < L; ++i) {
        float2 q = two_of(Q, r0 + i, column);
        sum.x += by[i] * q.x, sum.y += by[i] * q.y;
    }
    if (column < Q.columns) *reinterpret_cast<float2*>(dn_part + column) = sum;
}

// The largest |q| times the largest |dh| of a warp's positions.
template <int L, class T>
__device__ __forceinline__ void find_largest(float* most, Matrix<const T> Q, Matrix<const T> dH, int r0) {
    int lane = threadIdx.x % 32;
    auto largest = [&](Matrix<const T> of, int row) {
        float all = 0;
        for (int c = 2 * lane; c < of.columns; c += WIDE) {
            float2 two = two_of(of, row, c);
            all = fmaxf(all, fmaxf(fabsf(two.x), fabsf(two.y)));
        }
        return warp_reduce(all, Max());
    };
    for (int i = threadIdx.x / 32; i < L; i += WARPS) {
        float all = largest(Q, r0 + i) * largest(dH, r0 + i);
        if (lane == 0) most[i] = all;
    }
}

// ANCHOR: rows
template <class T, int L>
__global__ void __launch_bounds__(THREADS)
    chunk_rows(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ h, const T* __restrict__ dh,
               const Position* __restrict__ positions, const float* __restrict__ n_state, const float* __restrict__ m,
               const float* __restrict__ normaliser, Row* __restrict__ rows, Position* __restrict__ back,
               float* __restrict__ taken, float* __restrict__ dn_part, int chunks, int S, int dhqk, int dhhv, float scale,
               float eps, bool exact) {
    static_assert(L <= THREADS, "a thread has one position: raise WARPS");
    __shared__ float share[WARPS][L], along[L], by[L], most[L];
    long long at = blockIdx.x, head = at / chunks;
    int r0 = at % chunks * L, i = threadIdx.x, t = r0 + i;
    float U = 1;
    Matrix<const T> Q{q + head * S * dhqk, S, dhqk};
    if (exact) {
        find_signs<L, T>(share[threadIdx.x / 32], Q, {k + head * S * dhqk, S, dhqk}, positions + at * L,
                      n_state + at * dhqk, r0);
        multiply_rows<L, T>(along, {h + head * S * dhhv, S, dhhv}, {dh + head * S * dhhv, S, dhhv}, r0);
        __syncthreads();  // a thread reads what all warps have made of its position
    }
    if constexpr (is_f16<T>) {
        find_largest<L, T>(most, Q, {dh + head * S * dhhv, S, dhhv}, r0);
        float own = i < L && t < S ? positions[at * L + i].beta * (scale / (normaliser[head * S + t] + eps)) : 0;
        U = unit_of(block_reduce<THREADS>(own, Max(), 0.0f));  // and its barriers: `most` is there
    }
    float gives = 0;
    if (i < L) {
        Position own = positions[at * L + i];
        Row row{0, 0};
        if (t < S) {
            float n = normaliser[head * S + t];
            row.inverse = scale / (n + eps);
            // Where exp(-m) is the larger, nothing depends on l: the dot may be infinite then, and is not asked for.
            if (exact && n > expf(-m[head * S + t])) {
                float l = (share[0][i] + share[1][i]) + (share[2][i] + share[3][i]);
                row.r = -copysignf(row.inverse, l) * along[i];
            }
        }
        gives = own.beta * row.inverse;
        rows[at * L + i] = row;
        back[at * L + i] = {own.key, own.row, own.alpha, is_f16<T> ? U * gives : gives};
        by[i] = own.beta * row.r;
        if constexpr (is_f16<T>) gives *= most[i];
    }
    gives = block_reduce<THREADS>(gives, Add(), 0.0f);  // and its barriers: `by` is there
    if (threadIdx.x == 0) taken[at * TAKEN<T>] = gives;
    if (is_f16<T> && threadIdx.x == 0) taken[at * TAKEN<T> + 1] = 1 / U;
    if (exact) add_rows<L>(dn_part + at * dhqk, Q, by, r0);
}
// ANCHOR_END: rows
