// Of the chunkwise form all that depends on gates alone, before any product: for each position its
// two exponents, β, α and m, for each chunk γ. Equations and names: lab/vlstm/chunkwise.cuh.
//
//   m_i = b_i + max(M, max_{j<=i} key_j)      M⁺ = max(g + M, g + max_j key_j)
//
// Work split: a block owns a head. Its warps take the head's chunks in turns, twice: first for what
// a chunk adds, then, when the first warp has gone along all chunks for their M, for the positions.
// A lane has every 32nd position. The sums are made again the second time, for they cost less than
// to be kept.
//
// All sums and maxima are in f64, and handed on as two floats where two of them may nearly cancel.
// A state's own scale is M as a float: what is handed over says exactly what it is a multiple of.
//
// i, f, m: heads x S; positions: heads x chunks x L; chunk: heads x chunks. A grid of as many
// blocks as heads.
#include "lab/reduce.cuh"
#include "lab/vlstm/chunkwise.cuh"

using namespace lab;

constexpr int THREADS = 512, WARPS = THREADS / 32;
constexpr double LOG2E_F64 = 1.4426950408889634;

// exp(x - largest). Of nothing but -∞, the largest of which is -∞ as well, there is 0.
__device__ __forceinline__ float weigh(double x, double largest) {
    return largest == lowest<float>() ? 0.0f : expf(static_cast<float>(x - largest));
}

// The keys of a lane's positions, and the sum of all of the chunk's gates.
template <int L>
__device__ __forceinline__ double load_keys(double (&sum)[L / 32], double (&key)[L / 32],
                                            const float* i, const float* f, int r0, int S) {
    double all = sum_gates<L>(sum, f, r0, S);
#pragma unroll
    for (int n = 0; n < L / 32; ++n) {
        int t = r0 + 32 * n + threadIdx.x % 32;
        key[n] = t < S ? i[t] - sum[n] : lowest<float>();
    }
    return all;
}

// ANCHOR: add
// What a chunk adds to a state. One warp.
template <int L>
__device__ __forceinline__ void write_added(Added& added, const float* i, const float* f, int r0,
                                            int S) {
    double sum[L / 32], key[L / 32], most = lowest<float>();
    double all = load_keys<L>(sum, key, i, f, r0, S);
#pragma unroll
    for (int n = 0; n < L / 32; ++n) most = fmax(most, key[n]);
    most = warp_reduce(most, Max());
    float weight = 0;
#pragma unroll
    for (int n = 0; n < L / 32; ++n) weight += weigh(key[n], most);
    weight = warp_reduce(weight, Add());
    if (threadIdx.x % 32 == 0) added = {all, all + most, weight};
}
// ANCHOR_END: add

// ANCHOR: walk
// M ahead of each chunk, γ, and the room that C needs, from M and the largest of C ahead of the
// first. M behind the last comes back. One warp, 32 chunks at a time: lane n loads the n-th and
// keeps what becomes of it, while all lanes take the same steps.
__device__ __forceinline__ double walk_gates(Chunk* chunk, const Added* added, int chunks, double M,
                                             float largest) {
    constexpr unsigned ALL = 0xffffffff;
    int lane = threadIdx.x % 32;
    for (int c = lane; c - lane < chunks; c += 32) {
        Added mine{0, lowest<float>(), 0};  // past the last: nothing forgets, nothing adds
        if (c < chunks) mine = added[c];
        Chunk own;
        for (int n = 0; n < 32; ++n) {
            double g = __shfl_sync(ALL, mine.sum, n), most = __shfl_sync(ALL, mine.most, n);
            float weight = static_cast<float>(__shfl_sync(ALL, mine.weight, n));
            double next = fmax(g + M, most);
            float before = static_cast<float>(M), behind = static_cast<float>(next);
            float gamma = weigh(g + before, behind);
            // The power of two at or below `largest`: its exponent alone.
            float power = __int_as_float(__float_as_int(largest) & 0x7f800000);
            if (lane == n) own = {M, before, behind, gamma, power > 1 ? 1 / power : 1};
            largest = gamma * largest + weight * weigh(most, behind);
            M = next;
        }
        if (c < chunks) chunk[c] = own;
    }
    return M;
}
// ANCHOR_END: walk

// ANCHOR: positions
// The positions of a chunk, and m. One warp.
template <int L>
__device__ __forceinline__ void write_positions(Position* positions, float* m, const Chunk& chunk,
                                                const float* i, const float* f, int r0, int S) {
    double sum[L / 32], key[L / 32], most = chunk.M;  // the largest of all before a lane's position
    double all = load_keys<L>(sum, key, i, f, r0, S);
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < L / 32; ++n) {
        double so_far = key[n];
        for (int d = 1; d < 32; d *= 2) {  // after step d: of 2 d lanes up to this one
            double before = __shfl_up_sync(0xffffffffu, so_far, d);
            if (lane >= d) so_far = fmax(so_far, before);
        }
        so_far = fmax(so_far, most);
        most = __shfl_sync(0xffffffffu, so_far, 31);
        bool nothing = so_far == lowest<float>();  // nothing counts yet: all weights are 0 as it is
        Position own;
        own.row = two_floats(nothing ? 0 : -so_far * LOG2E_F64);
        own.key = two_floats(key[n] * LOG2E_F64);
        own.beta = weigh(chunk.before, so_far);
        own.alpha = weigh(all + key[n], chunk.behind);
        int row = 32 * n + lane;
        positions[row] = own;
        if (r0 + row < S) m[r0 + row] = static_cast<float>(sum[n] + so_far);
    }
}
// ANCHOR_END: positions

template <int L>
__global__ void __launch_bounds__(THREADS, 2)
    chunk_gates(const float* __restrict__ i_gate, const float* __restrict__ f_gate,
                const float* __restrict__ C0, const float* __restrict__ m0, Position* positions,
                Added* added, Chunk* chunk, float* __restrict__ m, float* __restrict__ mN,
                int chunks, int S, int cells, bool given, bool wanted) {
    long long head = blockIdx.x;
    const float *i = i_gate + head * S, *f = f_gate + head * S;
    Added* adds = added + head * chunks;
    Chunk* own = chunk + head * chunks;
    Position* of_head = positions + head * chunks * L;
    int warp = threadIdx.x / 32;
    float largest = 0;
    if (given)
        for (int e = threadIdx.x; e < cells; e += THREADS)
            largest = fmaxf(largest, fabsf(C0[head * cells + e]));
    largest = block_reduce<THREADS>(largest, Max(), 0.0f);
    for (int c = warp; c < chunks; c += WARPS) write_added<L>(adds[c], i, f, c * L, S);
    __syncthreads();  // the first warp reads what others have written of their chunks
    if (warp == 0) {
        double M = walk_gates(own, adds, chunks, given ? m0[head] : lowest<float>(), largest);
        if (wanted && threadIdx.x == 0) mN[head] = static_cast<float>(M);
    }
    __syncthreads();  // a warp reads the M of its chunks, which the first has written
    for (int c = warp; c < chunks; c += WARPS)
        write_positions<L>(of_head + c * 1ll * L, m + head * S, own[c], i, f, c * L, S);
}
