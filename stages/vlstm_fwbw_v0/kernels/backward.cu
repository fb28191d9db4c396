// The backward pass of the vLSTM: a kernel that owns tiles of Q, and one that owns tiles of K and V.
// With N_i = n_i + eps, P_ij = exp(D_ij − m_i), s = 1 / √DHQK, and j <= i throughout
//
//   dC̃_ij = (dh_i · v_j) / N_i + r_i         r_i = −side_i (dh_i · h_i) / N_i, or 0: n held constant
//   dq_i = Σ_j s dC̃_ij P_ij k_j              dv_j = Σ_i s (q_i · k_j) P_ij / N_i dh_i
//                                            dk_j = Σ_i s dC̃_ij P_ij q_i       di_j = k_j · dk_j
//
// di_j = Σ_i dC̃_ij s (q_i · k_j) P_ij, and that is k_j · dk_j: no sum of its own. Along rows it is
// q_i · dq_i, and the gradient of F_t is the difference of the two (forget.cu). Both dots are taken
// from the sums in f32, before dq and dk are rounded.
//
// Each gradient is two products with weights between them, like h. D and m are computed as the
// forward pass does, so that no exponent is positive.
//
// Work split: a block owns TQ rows, from q0, of one head, and writes dq, r and q · dq of them; V and K
// come past it up to its own rows. In the second kernel it owns TKV rows, from kv0, and writes dv,
// dk, di of them; Q and dh come past it from its own rows on, twice: once for dv, once for dk. Nobody
// adds to what another has written. Blocks of a head come longest first.
//
// Q, K, dq, dk: heads x S x dhqk, V, h, dh, dv: heads x S x dhhv, the rest: heads x S. A grid of heads
// tiles blocks, tiles = ceil(S / TQ) or ceil(S / TKV).
#include "lab/gates.cuh"
#include "lab/reduce.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/weighted.cuh"

using namespace lab;

constexpr int TI = InRows::WI, TJ = InRows::WJ;  // rows and columns of threads

// What position i of the forward pass left behind, and what position j brings.
struct Query {
    float2 F;
    float m, N, r;
};
struct Key {
    float2 F;
    float i;
};

// All of them of one head. Past the end it is the last that is read; `pair` leaves it out.
struct Gates {
    const float2* F;
    const float *i, *m, *n, *r;
    int S;
    float eps;

    __device__ __forceinline__ Query query(int row) const {
        row = min(row, S - 1);
        return {F[row], m[row], n[row] + eps, r[row]};
    }
    __device__ __forceinline__ Key key(int j) const {
        j = min(j, S - 1);
        return {F[j], i[j]};
    }
    // Nothing comes from a later position, and nothing goes to one past the end.
    __device__ __forceinline__ bool pair(int i, int j) const { return j <= i && i < S; }
};

// ANCHOR: weights
// P_ij
__device__ __forceinline__ float decayed(const Query& q, const Key& k) {
    return expf(difference(q.F, k.F) + k.i - q.m);
}
// dC̃_ij P_ij, from dh_i · v_j
__device__ __forceinline__ float of_score(float dh_v, const Query& q, const Key& k) {
    return (dh_v / q.N + q.r) * decayed(q, k);
}
// C̃_ij / N_i, from q_i · k_j
__device__ __forceinline__ float of_value(float q_k, const Query& q, const Key& k) {
    return q_k * decayed(q, k) / q.N;
}
// ANCHOR_END: weights

template <class, int TQ, int TKV, int DH>
constexpr int vlstm_backward_q_shared = TILES_BYTES<TQ, TKV, DH>;

// r is not __restrict__: a thread reads what another one writes, and of a pointer that promises there is no other the compiler
// reads ahead of the barrier between the two.
template <class T, int TQ, int TKV, int DH>
__global__ void __launch_bounds__(InRows::THREADS)
    vlstm_backward_q(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                     const T* __restrict__ h, const T* __restrict__ dh, const float* __restrict__ i,
                     const float2* __restrict__ F, const float* __restrict__ m,
                     const float* __restrict__ n, const float* __restrict__ side,
                     T* __restrict__ dq, float* r, float* __restrict__ q_dq, int tiles, int S, int dhqk,
                     int dhhv, float scale, float eps, int exact) {
    constexpr int RI = TQ / TI, RJ = TKV / TJ, RC = DH / TJ;
    DYNAMIC_SHARED(float, memory);
    WeightedTiles<TQ, TKV, DH> shared(memory);
    long long head = blockIdx.x / tiles, at = head * S;
    int q0 = (tiles - 1 - blockIdx.x % tiles) * TQ, ti = threadIdx.x / TJ, tj = threadIdx.x % TJ;
    Matrix<const T> Q{q + at * dhqk, S, dhqk}, K{k + at * dhqk, S, dhqk}, V{v + at * dhhv, S, dhhv};
    Matrix<const T> H{h + at * dhhv, S, dhhv}, dH{dh + at * dhhv, S, dhhv};
    Matrix<T> dQ{dq + at * dhqk, S, dhqk};
    Gates gates{F + at, i + at, m + at, n + at, r + at, S, eps};

    float sum[RI][RC] = {};
#pragma unroll
    for (int a = 0; a < RI; ++a) {  // r of each row
        // ANCHOR: through_n
        int row = q0 + ti + a * TI;
        float along = 0, way = exact && row < S ? side[at + row] : 0;
        for (int c = tj; c < dhhv; c += TJ) along += dH.cell(row, c) * H.cell(row, c);
        along = warp_reduce<TJ>(along, Add{});
        if (tj == 0 && row < S) r[at + row] = way != 0 ? -way * along / (n[at + row] + eps) : 0;
        // ANCHOR_END: through_n
    }
    load_tile<TQ, DH, 16 / sizeof(T)>(shared.own, dH, q0);
    // The barriers before the first use of r order it behind its writer.
    weighted_products(sum, shared, V, K, 0, q0 + 1, [&](float (&dh_v)[RI][RJ], int kv0) {
        Key key[RJ];
#pragma unroll
        for (int b = 0; b < RJ; ++b) key[b] = gates.key(kv0 + tj + b * TJ);
#pragma unroll
        for (int a = 0; a < RI; ++a) {
            int row = q0 + ti + a * TI;
            Query query = gates.query(row);
#pragma unroll
            for (int b = 0; b < RJ; ++b)
                dh_v[a][b] = gates.pair(row, kv0 + tj + b * TJ)
                                 ? scale * of_score(dh_v[a][b], query, key[b])
                                 : 0;
        }
    });
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        int row = q0 + ti + a * TI;
        float dot = dot_of_row(sum[a], Q, row);
        if (tj == 0 && row < S) q_dq[at + row] = dot;
#pragma unroll
        for (int c = 0; c < RC; c += 4) dQ.template store<true>(&sum[a][c], row, 4 * tj + c * TJ);
    }
}

template <class, int TQ, int TKV, int DH>
constexpr int vlstm_backward_kv_shared = TILES_BYTES<TKV, TQ, DH>;

template <class T, int TQ, int TKV, int DH>
__global__ void __launch_bounds__(InRows::THREADS)
    vlstm_backward_kv(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                      const T* __restrict__ dh, const float* __restrict__ i,
                      const float2* __restrict__ F, const float* __restrict__ m,
                      const float* __restrict__ n, const float* __restrict__ r, T* __restrict__ dk,
                      T* __restrict__ dv, float* __restrict__ di, int tiles, int S, int dhqk,
                      int dhhv, float scale, float eps) {
    constexpr int RI = TKV / TI, RJ = TQ / TJ, RC = DH / TJ, PACK = 16 / sizeof(T);
    DYNAMIC_SHARED(float, memory);
    WeightedTiles<TKV, TQ, DH> shared(memory);
    long long head = blockIdx.x / tiles, at = head * S;
    int kv0 = blockIdx.x % tiles * TKV, ti = threadIdx.x / TJ, tj = threadIdx.x % TJ;
    Matrix<const T> Q{q + at * dhqk, S, dhqk}, K{k + at * dhqk, S, dhqk};
    Matrix<const T> V{v + at * dhhv, S, dhhv}, dH{dh + at * dhhv, S, dhhv};
    Matrix<T> dK{dk + at * dhqk, S, dhqk}, dV{dv + at * dhhv, S, dhhv};
    Gates gates{F + at, i + at, m + at, n + at, r + at, S, eps};
    Key key[RI];
#pragma unroll
    for (int a = 0; a < RI; ++a) key[a] = gates.key(kv0 + ti + a * TI);

    // ANCHOR: values
    float dv_j[RI][RC] = {};
    load_tile<TKV, DH, PACK>(shared.own, K, kv0);
    weighted_products(dv_j, shared, Q, dH, kv0, S, [&](float (&k_q)[RI][RJ], int q0) {
#pragma unroll
        for (int b = 0; b < RJ; ++b) {
            int row = q0 + tj + b * TJ;
            Query query = gates.query(row);
#pragma unroll
            for (int a = 0; a < RI; ++a)
                k_q[a][b] = gates.pair(row, kv0 + ti + a * TI)
                                ? scale * of_value(k_q[a][b], query, key[a])
                                : 0;
        }
    });
#pragma unroll
    for (int a = 0; a < RI; ++a)
#pragma unroll
        for (int c = 0; c < RC; c += 4)
            dV.template store<true>(&dv_j[a][c], kv0 + ti + a * TI, 4 * tj + c * TJ);
    // ANCHOR_END: values

    // ANCHOR: keys
    float dk_j[RI][RC] = {};
    load_tile<TKV, DH, PACK>(shared.own, V, kv0);
    weighted_products(dk_j, shared, dH, Q, kv0, S, [&](float (&v_dh)[RI][RJ], int q0) {
#pragma unroll
        for (int b = 0; b < RJ; ++b) {
            int row = q0 + tj + b * TJ;
            Query query = gates.query(row);
#pragma unroll
            for (int a = 0; a < RI; ++a)
                v_dh[a][b] = gates.pair(row, kv0 + ti + a * TI)
                                 ? scale * of_score(v_dh[a][b], query, key[a])
                                 : 0;
        }
    });
    // ANCHOR_END: keys
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        int row = kv0 + ti + a * TI;
        float dot = dot_of_row(dk_j[a], K, row);
        if (tj == 0 && row < S) di[at + row] = dot;
#pragma unroll
        for (int c = 0; c < RC; c += 4) dK.template store<true>(&dk_j[a][c], row, 4 * tj + c * TJ);
    }
}
