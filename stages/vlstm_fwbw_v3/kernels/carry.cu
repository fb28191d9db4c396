// What chunks add to the gradient of the state, and the walk back along them, in one launch: dC stays in registers.
//
//   dC ← γ dC + Σ_t w_t q_t dh_tᵀ, w_t = s β_t / N_t      dn ← γ dn + dn_part      G = <C, dC> + n · dn
//
// As walk.cu has it, dC behind each chunk is stored as T, times `room`, and a warp's share of G goes to `products`.
//
// Work split: a block owns 64 rows of dC (columns of q) and 128 columns (of dh) of a head, its eight warps 32 x 32 each, and goes
// along the chunks from the last to the first. Its tiles have two places: those of the next chunk are on their way while one is
// multiplied, dh by cp.async, q in registers, where w comes to it. A block with the first columns has 64 of dn besides.
//
// q: heads x S x dhqk, dh: heads x S x dhhv, back: heads x chunks x L, the rest as in walk.cu, warps: 8 for each block of a
// head. A grid of heads ceil(dhqk / 64) ceil(dhhv / 128) blocks.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/reduce.cuh"
#include "lab/vlstm/chunkwise.cuh"
#include "lab/vlstm/powers.cuh"
#include "row.cuh"

using namespace lab;

constexpr int THREADS = 256, KEYS = WIDE, VALUES = 2 * WIDE;

// The tiles of a chunk.
template <class T, int L> struct Place {
    T q[L * WIDE], dh[2][L * WIDE];
};
template <class T, int L> constexpr int carry_gradients_shared = 2 * sizeof(Place<T, L>);

// ANCHOR: fetch
// w q of 64 columns, on its way by registers: a thread has PACKS rows of 16 bytes.
template <class T, int L> struct Rows {
    static constexpr int A_ROW = WIDE / CELLS<T>, PACKS = L * A_ROW / THREADS;
    Raw<T> raw[PACKS];
    float by[PACKS];

    __device__ __forceinline__ static int row(int n) { return (n * THREADS + threadIdx.x) / A_ROW; }
    __device__ __forceinline__ static int column() { return threadIdx.x % A_ROW * CELLS<T>; }

    __device__ __forceinline__ void fetch(Matrix<const T> Q, const Position* back, int r0, int k0) {
#pragma unroll
        for (int n = 0; n < PACKS; ++n) {
            bool inside = Q.inside(r0 + row(n), k0 + column());
            raw[n] = inside ? load_raw(Q.at(r0 + row(n), k0 + column())) : Raw<T>{};
            by[n] = back[row(n)].alpha;
        }
    }
    __device__ __forceinline__ void land(T* tile) const {
#pragma unroll
        for (int n = 0; n < PACKS; ++n) {
            Pack<T> pack = in_math(raw[n]);
#pragma unroll
            for (int e = 0; e < CELLS<T>; ++e) pack.v[e] *= by[n];
            store_pack(tile + Tile<T>::offset(row(n), column()), pack);
        }
    }
};
// ANCHOR_END: fetch

// A warp's 32 x 32 of dC, as mma.sync leaves them.
template <class T> struct Gradient {
    float sum[2][4][4] = {};
    int k0, v0;  // the first row and column

    // Rounded, times `down`.
    __device__ __forceinline__ void store(Matrix<T> to, float down) const {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int n = 0; n < 4; n += 2) {
                const float *left = &sum[i / 2][n][i % 2 * 2], *right = &sum[i / 2][n + 1][i % 2 * 2];
                float a[2] = {down * left[0], down * left[1]}, b[2] = {down * right[0], down * right[1]};
                store_row(to, a, b, k0 + 8 * i + threadIdx.x % 32 / 4, v0 + 8 * n);
            }
    }

    // A lane's share of <C, dC>.
    __device__ __forceinline__ float multiply(Matrix<const T> C) const {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                int row = k0 + 8 * i + threadIdx.x % 32 / 4, column = v0 + 8 * n + threadIdx.x % 4 * 2;
                if (!C.inside(row, column)) continue;
                float2 c = floats_of<T>(*reinterpret_cast<const unsigned*>(C.at(row, column)));
                dot += sum[i / 2][n][i % 2 * 2] * c.x + sum[i / 2][n][i % 2 * 2 + 1] * c.y;
            }
        return dot;
    }

    // γ dC and what a chunk of so many positions adds.
    template <int L> __device__ __forceinline__ void add(const Place<T, L>& place, float gamma, int positions) {
#pragma unroll
        for (int i = 0; i < 32; ++i) sum[i / 16][i / 4 % 4][i % 4] *= gamma;
        for (int j = 0; j < positions; j += 16) {
            unsigned a[2][4], b[2][4];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                load_columns(a[n], place.q, k0 % KEYS + 16 * n, j);
                load_right(b[n], place.dh[v0 % VALUES / WIDE], j, v0 % WIDE + 16 * n);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int n = 0; n < 2; ++n) multiply_add_16<T>(sum[i][2 * n], sum[i][2 * n + 1], a[i], b[n]);
        }
    }
};

template <class T, int L>
__global__ void __launch_bounds__(THREADS, 2)
    carry_gradients(const T* __restrict__ q, const T* __restrict__ dh, const Position* __restrict__ back,
                    const float* __restrict__ dn_part, const T* __restrict__ C, const float* __restrict__ n_state,
                    const Chunk* __restrict__ chunk, const float* __restrict__ taken, T* __restrict__ dC,
                    float* __restrict__ dn, float* __restrict__ room, float* __restrict__ products, int chunks, int S,
                    int dhqk, int dhhv, int warps, bool exact) {
    DYNAMIC_SHARED(unsigned char, memory);
    auto places = reinterpret_cast<Place<T, L>*>(memory);
    int across = (dhhv + VALUES - 1) / VALUES, tiles = (dhqk + KEYS - 1) / KEYS * across, tile = blockIdx.x % tiles;
    long long head = blockIdx.x / tiles, cells = dhqk * dhhv;
    int warp = threadIdx.x / 32, k0 = tile / across * KEYS, v0 = tile % across * VALUES, key = k0 + threadIdx.x;
    Matrix<const T> Q{q + head * S * dhqk, S, dhqk}, dH{dh + head * S * dhhv, S, dhhv};
    back += head * chunks * L, chunk += head * chunks, taken += head * chunks * TAKEN<T>, room += head * chunks;
    Rows<T, L> rows;
    Gradient<T> own{{}, k0 + warp / 4 * 32, v0 + warp % 4 * 32};
    float of_n = 0, mass = 0;  // dn of a key; what bounds dC, as in walk.cu
    float unit = 1;            // of f16: what dC in registers is counted in, that of the chunk before
    bool has_n = exact && v0 == 0 && threadIdx.x < KEYS && key < dhqk;
    auto fetch = [&](int c) {
        for (int half = 0; half < 2; ++half)
            copy_tile<L, THREADS>(places[c % 2].dh[half], dH, c * L, v0 + half * WIDE);
        async_commit();
        rows.fetch(Q, back + c * 1ll * L, c * L, k0);
    };

    fetch(chunks - 1);
    // ANCHOR: carry
    for (int c = chunks - 1; c >= 0; --c) {
        Place<T, L>& place = places[c % 2];
        long long at = head * chunks + c, n_at = at * dhqk + key;
        rows.land(place.q);
        async_wait<0>();
        __syncthreads();  // the tiles are there; those of the chunk behind, whose place comes next, are read
        if (c > 0) fetch(c - 1);
        float power = __int_as_float(__float_as_int(mass) & 0x7f800000), down = power > 1 ? 1 / power : 1;
        if constexpr (is_f16<T>) down = power_for_f16(mass);
        own.store({dC + at * cells, dhqk, dhhv}, is_f16<T> ? down * unit : down);
        if (has_n) dn[n_at] = of_n;
        if (tile == 0 && threadIdx.x == 0) room[c] = down;
        float gamma = chunk[c].gamma;
        float before = unit;
        if constexpr (is_f16<T>) unit = taken[c * TAKEN<T> + 1];
        own.add(place, is_f16<T> ? gamma * before / unit : gamma, min(L, S - c * L));
        mass = gamma * mass + taken[c * TAKEN<T>];
        float dot = own.multiply({C + at * cells, dhqk, dhhv}) / chunk[c].room;
        if constexpr (is_f16<T>) dot *= unit;
        if (has_n) of_n = gamma * of_n + dn_part[n_at], dot += of_n * n_state[n_at];
        dot = warp_reduce(dot, Add());
        if (threadIdx.x % 32 == 0) products[at * warps + tile * (THREADS / 32) + warp] = dot;
    }
    // ANCHOR_END: carry
}
