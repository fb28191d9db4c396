// What each chunk adds to the state, all chunks at once:
//
//   C_part = Σ_j α_j k_j v_jᵀ      n_part = Σ_j α_j k_j      over the chunk's positions j
//
// C on the tensor cores, from α k rounded to T; n in f32, from α k before it is rounded, for a row
// of h is divided by n · q.
//
// Work split: a block owns 64 rows of C (columns of k) and 128 columns (of v) of one chunk of one
// head, its eight warps 32 x 32 each. All of the chunk's L rows of k and v lie in shared memory at
// once: k by way of registers, where α comes to it, v by cp.async meanwhile. Each product reads k
// transposed.
//
// k: heads x S x dhqk, v: heads x S x dhhv, C_part: heads x chunks x dhqk x dhhv, n_part: heads x
// chunks x dhqk. A grid of heads chunks tiles blocks; tiles = ceil(dhqk / 64) ceil(dhhv / 128).
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/chunkwise.cuh"

using namespace lab;

constexpr int THREADS = 256, KEYS = WIDE, VALUES = 2 * WIDE;

// Tiles of k and v, and a sum of k's columns for each warp.
template <class T, int L>
constexpr int chunk_parts_shared = 3 * L * WIDE * sizeof(T) + THREADS / 32 * KEYS * sizeof(float);

// ANCHOR: keys
// α k of 64 columns to shared memory; over[warp] gets the sums of its warp's rows.
template <int L, class T>
__device__ __forceinline__ void load_keys(T* tile, float (*over)[KEYS], Matrix<const T> K,
                                          const Position* positions, int r0, int k0) {
    constexpr int CHUNKS = WIDE / CELLS<T>;  // of 16 bytes, in a row
    int column = threadIdx.x % CHUNKS * CELLS<T>;
    float sum[CELLS<T>] = {};
    for (int r = threadIdx.x / CHUNKS; r < L; r += THREADS / CHUNKS) {
        Pack<T> pack;
        K.template load<CELLS<T>>(pack.v, r0 + r, k0 + column);
        float alpha = positions[r].alpha;
#pragma unroll
        for (int e = 0; e < CELLS<T>; ++e) {
            pack.v[e] *= alpha;
            sum[e] += pack.v[e];
        }
        store_pack(tile + Tile<T>::offset(r, column), pack);
    }
#pragma unroll
    for (int e = 0; e < CELLS<T>; ++e) {
        for (int d = CHUNKS; d < 32; d *= 2) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], d);
        if (threadIdx.x % 32 < CHUNKS) over[threadIdx.x / 32][column + e] = sum[e];
    }
}
// ANCHOR_END: keys

template <class T, int L>
__global__ void __launch_bounds__(THREADS)
    chunk_parts(const T* __restrict__ k, const T* __restrict__ v,
                const Position* __restrict__ positions, float* __restrict__ C_part,
                float* __restrict__ n_part, int chunks, int S, int dhqk, int dhhv) {
    static_assert(chunk_parts_shared<T, L> <= 99 * 1024,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower L");
    DYNAMIC_SHARED(T, k_tile);
    T* v_tiles = k_tile + L * WIDE;
    auto over = reinterpret_cast<float(*)[KEYS]>(v_tiles + 2 * L * WIDE);
    int across = (dhhv + VALUES - 1) / VALUES, tiles = (dhqk + KEYS - 1) / KEYS * across;
    long long at = blockIdx.x / tiles, head = at / chunks;
    int r0 = at % chunks * L, tile = blockIdx.x % tiles;
    int k0 = tile / across * KEYS, v0 = tile % across * VALUES;
    Matrix<const T> K{k + head * S * dhqk, S, dhqk}, V{v + head * S * dhhv, S, dhhv};
    Matrix<float> C{C_part + at * dhqk * dhhv, dhqk, dhhv};

    for (int half = 0; half < 2; ++half)
        copy_tile<L, THREADS>(v_tiles + half * L * WIDE, V, r0, v0 + half * WIDE);
    async_commit();
    load_keys<L>(k_tile, over, K, positions + at * L, r0, k0);
    async_wait<0>();
    __syncthreads();  // a thread reads α k, v and sums that others have stored
    if (v0 == 0 && threadIdx.x < KEYS && k0 + static_cast<int>(threadIdx.x) < dhqk) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < THREADS / 32; ++warp) sum += over[warp][threadIdx.x];
        n_part[at * dhqk + k0 + threadIdx.x] = sum;
    }
    // ANCHOR: products
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int wk = warp / 4 * 32, wv = warp % 4 * 32;
    if (k0 + wk >= dhqk || v0 + wv >= dhhv) return;
    const T* v_tile = v_tiles + wv / WIDE * L * WIDE;
    float sum[2][4][4] = {};
    for (int j = 0; j < L && r0 + j < S; j += 16) {
        unsigned a[2][4], b[2][4];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            load_columns(a[n], k_tile, wk + 16 * n, j);
            load_right(b[n], v_tile, j, wv % WIDE + 16 * n);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int n = 0; n < 2; ++n)
                multiply_add_16<T>(sum[i][2 * n], sum[i][2 * n + 1], a[i], b[n]);
    }
    // ANCHOR_END: products
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int n = 0; n < 4; ++n)
            C.template store<true, 2>(&sum[i / 2][n][i % 2 * 2], k0 + wk + 8 * i + g,
                                      v0 + wv + 8 * n + 2 * t);
}
