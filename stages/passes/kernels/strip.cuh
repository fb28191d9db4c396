// A row in the registers of LANES neighbouring threads of a block of 256: it crosses device memory once.
//
// Lane l holds PACKS packs of N elements; its pack p starts at column (p LANES + l) N. With N = Pack<T>::N a
// pack is one access of 16 bytes: rows must start at multiples of 16 bytes. With N = 1 any width goes.
#pragma once
#include "lab/halves.cuh"
#include "lab/pack.cuh"
#include "lab/reduce.cuh"

namespace lab {

constexpr int PASS_THREADS = 256;

// A pack that waits in registers, as numbers.
template <int N, class T> __device__ __forceinline__ void cells_of(float (&cells)[N], const Raw<T>& raw) {
    if constexpr (is_bf16<T>) {  // one instruction each; a conversion of the upper half is two
        unsigned words[4];
        memcpy(words, &raw.bytes, 16);
#pragma unroll
        for (int i = 0; i < N; ++i) cells[i] = __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000 : words[i / 2] << 16);
    } else if constexpr (N > 1) {
        Pack<T> pack = in_math(raw);
#pragma unroll
        for (int i = 0; i < N; ++i) cells[i] = pack.v[i];
    }
}

// N elements as they are computed with, from and to memory.
template <int N, class T> __device__ __forceinline__ void load_cells(float (&cells)[N], const T* from) {
    static_assert(N == 1 || N == Pack<T>::N, "N is 1, or as many elements as 16 bytes hold");
    if constexpr (N == 1) {
        cells[0] = to_math(*from);
    } else {
        cells_of(cells, load_raw(from));
    }
}
// A pack's 16 bytes, and where they go.
template <class T, int N> __device__ __forceinline__ uint4 pack_of(const float (&cells)[N]) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (sizeof(T) == sizeof(float)) words[i] = __float_as_uint(cells[i]);
        else words[i] = two_halves<T>(cells[2 * i], cells[2 * i + 1]);  // rounded by one instruction
    }
    uint4 pack;
    memcpy(static_cast<void*>(&pack), words, 16);
    return pack;
}
template <class T> __device__ __forceinline__ void store_pack_of(T* to, uint4 pack) {
    __stcg(reinterpret_cast<uint4*>(to), pack);  // of an assignment the compiler may make four stores
}
template <int N, class T> __device__ __forceinline__ void store_cells(T* to, const float (&cells)[N]) {
    if constexpr (N == 1) *to = from_math<T>(cells[0]);
    else store_pack_of(to, pack_of<T>(cells));
}

// The sum over LANES neighbouring lanes, in each of them.
template <int LANES> __device__ __forceinline__ float sum_of_lanes(float v) {
    if constexpr (LANES <= 32) return warp_reduce<LANES>(v, Add{});
    else return block_reduce<LANES>(v, Add{}, 0.0f);
}

template <class T, int LANES, int PACKS, int N> struct Strip {
    static_assert(LANES <= 32 || LANES == PASS_THREADS, "a row is a part of a warp's, a warp's, or the block's");
    static_assert(PACKS * N <= 32, "a row's share must fit a thread's registers: raise LANES");
    static constexpr int ROWS = PASS_THREADS / LANES;  // of a block, at a time
    float v[PACKS][N];

    // This thread's row among those of its block.
    __device__ __forceinline__ static int row() { return threadIdx.x / LANES; }
    __device__ __forceinline__ static int column(int p) { return (p * LANES + threadIdx.x % LANES) * N; }

    // Zeros past the end. `width` is 0 where the lanes have no row.
    __device__ __forceinline__ void load(const T* row, int width) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
#pragma unroll
            for (int i = 0; i < N; ++i) v[p][i] = 0;
            if (column(p) < width) load_cells<N>(v[p], row + column(p));
        }
    }
    __device__ __forceinline__ void store(T* row, int width) const {
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
            if (column(p) < width) store_cells<N>(row + column(p), v[p]);
    }

    // f(p, i) for each cell of the packs inside the row; a pack is inside as a whole.
    template <class F> __device__ __forceinline__ static void for_each_cell(int width, F f) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (column(p) >= width) continue;
#pragma unroll
            for (int i = 0; i < N; ++i) f(p, i);
        }
    }
};

// A row that is asked for before it is needed: its packs wait as they are, in half of the registers.
template <class T, int LANES, int PACKS, int N> struct Coming {
    using Row = Strip<T, LANES, PACKS, N>;
    const T* row;
    int width;
    Raw<T> raw[PACKS];

    __device__ __forceinline__ Coming(const T* row, int width) : row(row), width(width) {
        if constexpr (N > 1) {
#pragma unroll
            for (int p = 0; p < PACKS; ++p)
                raw[p] = Row::column(p) < width ? load_raw(row + Row::column(p)) : Raw<T>{};
        }
    }
    __device__ __forceinline__ Row arrived() const {
        Row cells;
        if constexpr (N == 1) {
            cells.load(row, width);
        } else {
#pragma unroll
            for (int p = 0; p < PACKS; ++p) cells_of(cells.v[p], raw[p]);
        }
        return cells;
    }
};

// ANCHOR: block_sums
// to_c = Σ own_c over the block's rows, always in the same order: lanes of a warp by shuffles, then warp by
// warp. A column's place in shared memory is such that the lanes of a warp touch 32 banks.
template <int LANES, int PACKS, int N>
__device__ __forceinline__ void store_block_sums(float (&own)[PACKS][N], float* to, int width) {
    constexpr int CELLS = PACKS * N, WARPS = PASS_THREADS / 32;
    int lane = threadIdx.x % LANES, warp = threadIdx.x / 32;
    if constexpr (LANES >= PASS_THREADS) {
#pragma unroll
        for (int k = 0; k < CELLS; ++k) {
            int c = (k / N * LANES + lane) * N + k % N;
            if (c < width) to[c] = own[k / N][k % N];
        }
    } else {
        __shared__ float sums[WARPS][CELLS * LANES];
#pragma unroll
        for (int k = 0; k < CELLS; ++k) {
            float sum = own[k / N][k % N];
            for (int d = LANES; d < 32; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
            if (threadIdx.x % 32 < LANES) sums[warp][k * LANES + lane] = sum;
        }
        __syncthreads();  // each column's sums of all warps are added up by one thread
        for (int n = threadIdx.x; n < CELLS * LANES; n += PASS_THREADS) {
            int k = n / LANES, c = (k / N * LANES + n % LANES) * N + k % N;
            float sum = sums[0][n];
#pragma unroll
            for (int w = 1; w < WARPS; ++w) sum += sums[w][n];
            if (c < width) to[c] = sum;
        }
    }
}
// ANCHOR_END: block_sums

}  // namespace lab
