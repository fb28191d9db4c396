// The backward pass of the vLSTM: a kernel that owns tiles of Q, and one that owns tiles of K and V.
// With N_i = n_i + eps, P_ij = exp(D_ij − m_i), s = 1 / √DHQK, and j <= i throughout
//
//   dC̃_ij = (dh_i · v_j) / N_i + r_i         r_i = −side_i (dh_i · h_i) / N_i, or 0: n held constant
//   dq_i = s Σ_j dC̃_ij P_ij k_j              dv_j = s Σ_i (q_i · k_j) P_ij / N_i dh_i
//                                            dk_j = s Σ_i dC̃_ij P_ij q_i       di_j = k_j · dk_j
//
// Work split: a block owns TQ rows, from q0, of one head, and writes dq, q · dq and the Query of each;
// tiles of TKV rows of V and K come past it up to its last row. In the second kernel it owns TKV
// rows, from kv0, and writes dv, dk, di of them; tiles of TQ rows of Q and dh come past it from its
// first row on, twice: once for dv, once for dk. The next tile is always on its way. TQ and TKV are
// free of each other. Nobody adds to what another has written.
//
// What a pair needs of its row is made once for each row: of P, both halves of the exponent of 2; of
// dC, 1 / N_i and r_i. s is a factor of every gradient: it is multiplied in at the end.
//
// Q, K, dq, dk: heads x S x dhqk, V, h, dh, dv: heads x S x dhhv, the rest: heads x S. A grid of heads
// tiles blocks, tiles = ceil(S / TQ) or ceil(S / TKV), those of a head longest first.
#include "lab/gates.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "steps.cuh"

using namespace lab;

// ANCHOR: rows
// What a pair needs of position i.
struct __align__(16) Query {
    float2 e;  // (F_i − m_i) log2(e)
    float inv; // 1 / N_i
    float r;
};

// P_ij: 0 for a pair that does not count. The exponent is chosen, not the power: a choice between a
// power and 0 becomes a branch for every pair.
__device__ __forceinline__ float decayed(const Query& q, float2 e_j, bool counts) {
    return power_of_two(counts ? sum_of(q.e, e_j) : lowest<float>());
}
// dC̃_ij P_ij, from dh_i · v_j
__device__ __forceinline__ float of_score(float dh_v, const Query& q, float2 e_j, bool counts) {
    float dC = counts ? dh_v * q.inv + q.r : 0;  // not 0 · NaN
    return dC * decayed(q, e_j, counts);
}
// C̃_ij / (s N_i), from q_i · k_j
__device__ __forceinline__ float of_value(float q_k, const Query& q, float2 e_j, bool counts) {
    float C = counts ? q_k * q.inv : 0;
    return C * decayed(q, e_j, counts);
}
// ANCHOR_END: rows

// F_j and i_j of the rows that a thread meets in a tile, past the end those of the last.
template <int RJ> struct Keys {
    float2 F[RJ];
    float i[RJ];
};
template <int RJ> struct Queries {
    Query row[RJ];
};

template <int RI, int RC>
__device__ __forceinline__ void times(float (&sum)[RI][RC], float scale) {
#pragma unroll
    for (int a = 0; a < RI; ++a)
#pragma unroll
        for (int c = 0; c < RC; ++c) sum[a][c] *= scale;
}

template <class, int TQ, int TKV, int DH, int CX, int WI, int WJ, int, class L = Twins<WI, WJ>>
constexpr int vlstm_backward_q_shared = Tiles<TQ, TKV, DH, CX, L>::BYTES;

template <class T, int TQ, int TKV, int DH, int CX, int WI, int WJ, int BLOCKS,
          class L = Twins<WI, WJ>>
__global__ void __launch_bounds__(WI* WJ, BLOCKS)
    vlstm_backward_q(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                     const T* __restrict__ h, const T* __restrict__ dh, const float* __restrict__ i,
                     const float2* __restrict__ F, const float* __restrict__ m,
                     const float* __restrict__ n, const float* __restrict__ side,
                     T* __restrict__ dq, Query* __restrict__ queries, float* __restrict__ q_dq,
                     int tiles, int S, int dhqk, int dhhv, float scale, float eps, int exact) {
    constexpr int RI = TQ / WI, RJ = TKV / WJ, RC = DH / WJ;
    DYNAMIC_SHARED(float, memory);
    Tiles<TQ, TKV, DH, CX, L> shared(memory);
    long long head = blockIdx.x / tiles, at = head * S;
    int q0 = (tiles - 1 - blockIdx.x % tiles) * TQ, ti = L::ti(), tj = L::tj();
    Matrix<const T> Q{q + at * dhqk, S, dhqk}, K{k + at * dhqk, S, dhqk}, V{v + at * dhhv, S, dhhv};
    Matrix<const T> H{h + at * dhhv, S, dhhv}, dH{dh + at * dhhv, S, dhhv};
    Matrix<T> dQ{dq + at * dhqk, S, dhqk};
    F += at, i += at;

    float sum[RI][RC] = {};
    Query query[RI];
    // ANCHOR: through_n
    float dh_h[RI] = {};
    for (int c = tj; c < dhhv; c += WJ)
#pragma unroll
        for (int a = 0; a < RI; ++a) {
            int row = q0 + ti + a * WI;
            dh_h[a] += dH.cell(row, c) * H.cell(row, c);
        }
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        int row = q0 + ti + a * WI, inside = min(row, S - 1);
        float along = L::over_row(dh_h[a], Add{});
        float inv = 1 / (n[at + inside] + eps), way = exact ? side[at + inside] : 0;
        query[a] = {in_twos(F[inside], -m[at + inside]), inv, way != 0 ? -way * along * inv : 0};
        if (tj == 0 && row < S) queries[at + row] = query[a];
    }
    // ANCHOR_END: through_n
    auto meet = [&](int kv0) {
        Keys<RJ> keys;
#pragma unroll
        for (int b = 0; b < RJ; ++b) {
            int j = min(kv0 + tj + b * WJ, S - 1);
            keys.F[b] = F[j], keys.i[b] = i[j];
        }
        return keys;
    };
    products<L>(
        sum, shared, dH, q0, V, K, 0, min(q0 + TQ, S), meet,
        [&](float (&dh_v)[RI][RJ], const Keys<RJ>& keys, int kv0) {
#pragma unroll
            for (int b = 0; b < RJ; ++b) {
                float2 e_j = in_twos(negative(keys.F[b]), keys.i[b]);
#pragma unroll
                for (int a = 0; a < RI; ++a)
                    dh_v[a][b] = of_score(dh_v[a][b], query[a], e_j,
                                          kv0 + tj + b * WJ <= q0 + ti + a * WI);
            }
        });
    times(sum, scale);
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        int row = q0 + ti + a * WI;
        float dot = dot_of_row<L>(sum[a], Q, row);
        if (tj == 0 && row < S) q_dq[at + row] = dot;
#pragma unroll
        for (int c = 0; c < RC; c += 4) dQ.template store<true>(&sum[a][c], row, 4 * tj + c * WJ);
    }
}

template <class, int TKV, int TQ, int DH, int CX, int WI, int WJ, int, class L = Twins<WI, WJ>>
constexpr int vlstm_backward_kv_shared = Tiles<TKV, TQ, DH, CX, L>::BYTES;

template <class T, int TKV, int TQ, int DH, int CX, int WI, int WJ, int BLOCKS,
          class L = Twins<WI, WJ>>
__global__ void __launch_bounds__(WI* WJ, BLOCKS)
    vlstm_backward_kv(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                      const T* __restrict__ dh, const float* __restrict__ i,
                      const float2* __restrict__ F, const Query* __restrict__ queries,
                      T* __restrict__ dk, T* __restrict__ dv, float* __restrict__ di, int tiles,
                      int S, int dhqk, int dhhv, float scale) {
    constexpr int RI = TKV / WI, RJ = TQ / WJ, RC = DH / WJ;
    DYNAMIC_SHARED(float, memory);
    Tiles<TKV, TQ, DH, CX, L> shared(memory);
    long long head = blockIdx.x / tiles, at = head * S;
    int kv0 = blockIdx.x % tiles * TKV, ti = L::ti(), tj = L::tj();
    Matrix<const T> Q{q + at * dhqk, S, dhqk}, K{k + at * dhqk, S, dhqk};
    Matrix<const T> V{v + at * dhhv, S, dhhv}, dH{dh + at * dhhv, S, dhhv};
    Matrix<T> dK{dk + at * dhqk, S, dhqk}, dV{dv + at * dhhv, S, dhhv};
    float2 e_j[RI];
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        long long j = at + min(kv0 + ti + a * WI, S - 1);
        e_j[a] = in_twos(negative(F[j]), i[j]);
    }
    auto meet = [&](int q0) {
        Queries<RJ> met;
#pragma unroll
        for (int b = 0; b < RJ; ++b) met.row[b] = queries[at + min(q0 + tj + b * WJ, S - 1)];
        return met;
    };
    // Nothing comes from a later position, and nothing goes to one past the end.
    auto counts = [&](int i, int j) { return j <= i && i < S; };

    // ANCHOR: values
    float dv_j[RI][RC] = {};
    products<L>(dv_j, shared, K, kv0, Q, dH, kv0, S, meet,
                 [&](float (&k_q)[RI][RJ], const Queries<RJ>& met, int q0) {
#pragma unroll
                     for (int b = 0; b < RJ; ++b)
#pragma unroll
                         for (int a = 0; a < RI; ++a)
                             k_q[a][b] =
                                 of_value(k_q[a][b], met.row[b], e_j[a],
                                          counts(q0 + tj + b * WJ, kv0 + ti + a * WI));
                 });
    times(dv_j, scale);
#pragma unroll
    for (int a = 0; a < RI; ++a)
#pragma unroll
        for (int c = 0; c < RC; c += 4)
            dV.template store<true>(&dv_j[a][c], kv0 + ti + a * WI, 4 * tj + c * WJ);
    // ANCHOR_END: values

    // ANCHOR: keys
    float dk_j[RI][RC] = {};
    products<L>(dk_j, shared, V, kv0, dH, Q, kv0, S, meet,
                 [&](float (&v_dh)[RI][RJ], const Queries<RJ>& met, int q0) {
#pragma unroll
                     for (int b = 0; b < RJ; ++b)
#pragma unroll
                         for (int a = 0; a < RI; ++a)
                             v_dh[a][b] =
                                 of_score(v_dh[a][b], met.row[b], e_j[a],
                                          counts(q0 + tj + b * WJ, kv0 + ti + a * WI));
                 });
    times(dk_j, scale);
    // ANCHOR_END: keys
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        int row = kv0 + ti + a * WI;
        float dot = dot_of_row<L>(dk_j[a], K, row);
        if (tj == 0 && row < S) di[at + row] = dot;
#pragma unroll
        for (int c = 0; c < RC; c += 4) dK.template store<true>(&dk_j[a][c], row, 4 * tj + c * WJ);
    }
}
