// h and n of each chunk, all chunks at once, from its own positions and the state ahead of it:
//
//   C̃_ij = s (q_i · k_j) P_ij   j <= i        l_i = Σ_j C̃_ij + s β_i n · q_i
//   n_i   = max(|l_i|, exp(-m_i))             h_i = (Σ_j C̃_ij v_j + s β_i Cᵀ q_i) / (n_i + eps)
//
// m is known from the gates, so that D is known before the scores and no row is ever rescaled. l is
// known before C̃ is multiplied by V: so C̃ / (n + eps) is what is rounded to T, once, and no sum
// is divided.
//
// Work split: a block owns the L positions of a chunk of one head, a warp 16 of them: their scores
// with all of the chunk's positions lie in its registers, and so do the weights, as the second
// product's operand. Q stays in shared memory, 64 columns a panel; 64 columns of k, then of C and
// of v, go past it in two places, one on its way while the other is read. A warp leaves out tiles
// above the diagonal.
//
// q, k: heads x S x dhqk, v, h: heads x S x dhhv, m, n: heads x S, C: heads x chunks x dhqk x dhhv,
// n_state: heads x chunks x dhqk. A grid of heads chunks blocks.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/reduce.cuh"
#include "lab/vlstm/chunkwise.cuh"

using namespace lab;

// Q in PANELS panels of 64 columns, two places, and the chunk's exponents as keys.
template <class T, int L, int PANELS>
constexpr int chunk_outputs_shared = (PANELS + 2) * L * WIDE * sizeof(T) + L * sizeof(float2);

// A chunk of a head, as the block sees it.
template <class T, int L> struct Block {
    static constexpr int THREADS = 2 * L;
    Matrix<const T> Q, K, V, C;
    int r0, panels, items;
    T *q_tile, *places;
    int n = 0;  // tiles that were handed out

    // ANCHOR: tiles
    // The tiles in their order: of k with those of Q; then, for each 64 columns of h, of C and of
    // v.
    __device__ __forceinline__ void fetch(int item) {
        T* to = places + item % 2 * L * WIDE;
        int past = item - panels, v0 = past / (panels + 1) * WIDE, panel = past % (panels + 1);
        if (past < 0) {
            copy_tile<L, THREADS>(q_tile + item * L * WIDE, Q, r0, item * WIDE);
            copy_tile<L, THREADS>(to, K, r0, item * WIDE);
        } else if (panel < panels) {
            copy_tile<WIDE, THREADS>(to, C, panel * WIDE, v0);
        } else {
            copy_tile<L, THREADS>(to, V, r0, v0);
        }
        async_commit();
    }

    __device__ __forceinline__ T* next() {
        async_wait<0>();
        __syncthreads();  // the tile is there; the one before, whose place comes next, is read
        T* here = places + n % 2 * L * WIDE;
        if (++n < items) fetch(n);
        return here;
    }
    // ANCHOR_END: tiles
};

// ANCHOR: scores
// q_i · k_j of 16 rows and all keys up to the diagonal; along[r] gets a lane's part of n · q of its
// rows.
template <class T, int L>
__device__ __forceinline__ void scores_of(float (&score)[L / 8][4], float (&along)[2],
                                          Block<T, L>& block, const float* n_state) {
    int warp = threadIdx.x / 32, t = threadIdx.x % 4;
    for (int p = 0; p < block.panels; ++p) {
        T* k_tile = block.next();
#pragma unroll
        for (int k = 0; k < WIDE; k += 16) {
            int column = p * WIDE + k;
            if (column >= block.Q.columns) break;
            unsigned a[4];
            load_rows(a, block.q_tile + p * L * WIDE, 16 * warp, k);
#pragma unroll
            for (int e = 0; e < 4; ++e) {  // a[e]: rows e % 2, two columns of eight
                T q[2];
                memcpy(q, &a[e], sizeof q);
                float2 n = *reinterpret_cast<const float2*>(n_state + column + e / 2 * 8 + 2 * t);
                along[e % 2] += to_math(q[0]) * n.x + to_math(q[1]) * n.y;
            }
#pragma unroll
            for (int j = 0; j < L / 16; ++j) {
                if (j > warp) continue;
                unsigned b[4];
                load_right_of_rows(b, k_tile, k, 16 * j);
                multiply_add_16<T>(score[2 * j], score[2 * j + 1], a, b);
            }
        }
    }
}
// ANCHOR_END: scores

// ANCHOR: weights
// max(|l|, exp(-m)), and NaN of a NaN, which fmaxf would drop.
__device__ __forceinline__ float normaliser(float l, float m) {
    float floor = expf(-m);
    return fabsf(l) < floor ? floor : fabsf(l);
}

// C̃ of a lane's cells of row i, in place of the scores; a lane's part of their sum comes back.
template <int L>
__device__ __forceinline__ float weigh(float (&score)[L / 8][4], int r, int i, float scale,
                                       float2 row, const float2* keys) {
    int warp = threadIdx.x / 32, t = threadIdx.x % 4;
    float l = 0;
#pragma unroll
    for (int j = 0; j < L / 8; ++j) {
        if (j / 2 > warp) continue;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            int key = 8 * j + 2 * t + e;
            float& cell = score[j][2 * r + e];
            cell = key > i ? 0 : power_of_two(sum_of(row, keys[key])) * (scale * cell);
            l += cell;
        }
    }
    return l;
}
// ANCHOR_END: weights

// ANCHOR: outputs
// Cᵀ q_i of 16 rows and 64 columns of C.
template <class T, int L>
__device__ __forceinline__ void add_state(float (&out)[WIDE / 8][4], Block<T, L>& block, int v0) {
    for (int p = 0; p < block.panels; ++p) {
        T* c_tile = block.next();
#pragma unroll
        for (int k = 0; k < WIDE; k += 16) {
            if (p * WIDE + k >= block.Q.columns) break;
            unsigned a[4], b[4];
            load_rows(a, block.q_tile + p * L * WIDE, 16 * (threadIdx.x / 32), k);
#pragma unroll
            for (int c = 0; c < WIDE / 16; ++c) {
                if (v0 + 16 * c >= block.V.columns) break;
                load_right(b, c_tile, k, 16 * c);
                multiply_add_16<T>(out[2 * c], out[2 * c + 1], a, b);
            }
        }
    }
}

// Σ_j weight_ij v_j of 16 rows and 64 columns of v.
template <class T, int L>
__device__ __forceinline__ void add_own(float (&out)[WIDE / 8][4],
                                        const unsigned (&weights)[L / 16][4], Block<T, L>& block,
                                        int v0) {
    int warp = threadIdx.x / 32;
    T* v_tile = block.next();
#pragma unroll
    for (int j = 0; j < L / 16; ++j) {
        if (j > warp) continue;
#pragma unroll
        for (int c = 0; c < WIDE / 16; ++c) {
            if (v0 + 16 * c >= block.V.columns) break;
            unsigned b[4];
            load_right(b, v_tile, 16 * j, 16 * c);
            multiply_add_16<T>(out[2 * c], out[2 * c + 1], weights[j], b);
        }
    }
}
// ANCHOR_END: outputs

// As many blocks on a multiprocessor as its registers allow, or, of wide heads, its shared memory.
template <class T, int L, int PANELS>
__global__ void __launch_bounds__(2 * L, (PANELS > 4 ? 128 : 256) / L)
    chunk_outputs(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  const T* __restrict__ C, const float* __restrict__ n_state,
                  const Position* __restrict__ positions, const Chunk* __restrict__ chunk,
                  const float* __restrict__ m, T* __restrict__ h, float* __restrict__ n_out,
                  int chunks, int S, int dhqk, int dhhv, float scale, float eps) {
    static_assert(chunk_outputs_shared<T, L, PANELS> <= 99 * 1024,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower L");
    DYNAMIC_SHARED(T, memory);
    auto keys = reinterpret_cast<float2*>(memory + (PANELS + 2) * L * WIDE);
    long long at = blockIdx.x, head = at / chunks;
    int r0 = at % chunks * L, panels = (dhqk + WIDE - 1) / WIDE;
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Block<T, L> block{{q + head * S * dhqk, S, dhqk}, {k + head * S * dhqk, S, dhqk},
                      {v + head * S * dhhv, S, dhhv}, {C + at * dhqk * dhhv, dhqk, dhhv},
                      r0, panels, panels + (dhhv + WIDE - 1) / WIDE * (panels + 1),
                      memory, memory + PANELS * L * WIDE};
    Matrix<T> H{h + head * S * dhhv, S, dhhv};
    block.fetch(0);
    if (threadIdx.x < L) keys[threadIdx.x] = positions[at * L + threadIdx.x].key;

    float score[L / 8][4] = {}, along[2] = {}, of_state[2];
    scores_of(score, along, block, n_state + at * dhqk);
    // ANCHOR: rows
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        int i = 16 * warp + 8 * r + g;
        Position own = positions[at * L + i];
        float m_i = r0 + i < S ? m[head * S + r0 + i] : 0;
        float l = weigh<L>(score, r, i, scale, own.row, keys) + scale * own.beta * along[r];
        float n = normaliser(warp_reduce<4>(l, Add()), m_i);
        if (t == 0 && r0 + i < S) n_out[head * S + r0 + i] = n;
        float inverse = 1 / (n + eps);
        of_state[r] = scale * own.beta * inverse / chunk[at].room;
#pragma unroll
        for (int j = 0; j < L / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) score[j][2 * r + e] *= inverse;
    }
    // ANCHOR_END: rows
    unsigned weights[L / 16][4];  // C̃ / (n + eps): as the tensor cores left it, so they take it
#pragma unroll
    for (int j = 0; j < L / 4; ++j)
        weights[j / 4][j % 4] = two_halves<T>(score[j / 2][j % 2 * 2], score[j / 2][j % 2 * 2 + 1]);
    // ANCHOR: columns
    for (int v0 = 0; v0 < dhhv; v0 += WIDE) {
        float out[WIDE / 8][4] = {};
        add_state(out, block, v0);
#pragma unroll
        for (int c = 0; c < WIDE / 8; ++c)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[c][e] *= of_state[e / 2];
        add_own<T, L>(out, weights, block, v0);
#pragma unroll
        for (int c = 0; c < WIDE / 16; ++c)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                store_row(H, &out[2 * c][2 * r], &out[2 * c + 1][2 * r],
                          r0 + 16 * warp + 8 * r + g, v0 + 16 * c);
    }
    // ANCHOR_END: columns
}
