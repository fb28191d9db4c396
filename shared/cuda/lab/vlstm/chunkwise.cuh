// What the kernels of the chunkwise form on mma.sync share: what the gates come to, and tiles in shared memory.
//
// With b_i = Σ log sigmoid f from the chunk's first position to i, and M the largest exponent of
// all that came before the chunk, everything that depends on gates alone is
//
//   key_j  = i_j - b_j                row_i = -max(M, max_{j<=i} key_j) = b_i - m_i
//   P_ij   = exp(row_i + key_j)       β_i   = exp(row_i + M)
//   M⁺     = max(g + M, g + max_j key_j), g = b of the last position
//   α_j    = exp(g + key_j - M⁺)      γ     = exp(g + M - M⁺)
#pragma once
#include "lab/gates.cuh"
#include "lab/halves.cuh"
#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/ldmatrix.cuh"
#include "lab/swizzle.cuh"
#include "lab/tile.cuh"

namespace lab {

// A position: exponents of 2, in two floats, as query and as key; β and α.
struct Position {
    float2 row, key;
    float beta, alpha;
};

// What a chunk adds: g, the largest exponent at its end of its own positions, and Σ α were it the
// first.
struct Added {
    double sum, most, weight;
};

// What a chunk finds, and γ. States are stored as C exp(-M) with M as a float, which is `before`
// ahead of the chunk and `behind` it.
struct Chunk {
    double M;
    float before, behind, gamma;
    float room;  // C ahead of the chunk is stored times this power of two, for halves to hold it
};

// Tiles of halves are 64 columns wide: 128 bytes a row, as many as the banks have.
constexpr int WIDE = 64;
template <class T> using Tile = SwizzledTile<T, WIDE>;
template <class T> constexpr int CELLS = Tile<T>::CELLS;

// Rows and columns from r0 and c0 on, on their way to shared memory; zeros past the matrix.
template <int ROWS, int THREADS, class T>
__device__ __forceinline__ void copy_tile(T* to, Matrix<const T> from, int r0, int c0) {
#pragma unroll 2  // few addresses at a time: registers are short where this is called
    for (int e = threadIdx.x * CELLS<T>; e < ROWS * WIDE; e += THREADS * CELLS<T>) {
        int r = e / WIDE, c = e % WIDE;
        async_copy_or_zero<16>(to + Tile<T>::offset(r, c), from.at(r0 + r, c0 + c),
                               from.inside(r0 + r, c0 + c));
    }
}

// Where in a tile the lane's row and column (0 or 8) of the 16 x 16 from r and c on begin, both
// multiples of 16. Rows so far apart are swizzled alike; and a step of 16 columns moves a chunk by
// ^, as the swizzle does: one offset serves a lane for all of a tile.
template <class T> __device__ __forceinline__ int corner(int r, int c, int row, int column) {
    return r * WIDE + (Tile<T>::offset(row, column) ^ c);
}

// Fragments of mma.sync (lab/ptx/mma.cuh) from a tile. A: rows i to i + 15, columns k to k + 15.
template <class T>
__device__ __forceinline__ void load_rows(unsigned (&a)[4], const T* tile, int i, int k) {
    int lane = threadIdx.x % 32;
    load_matrices(a, tile + corner<T>(i, k, lane % 16, lane / 16 * 8));
}

// A of the transposed tile: its rows are columns i to i + 15, its columns rows k to k + 15.
template <class T>
__device__ __forceinline__ void load_columns(unsigned (&a)[4], const T* tile, int i, int k) {
    int lane = threadIdx.x % 32;
    load_matrices_transposed(
        a, tile + corner<T>(k, i, lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
}

// B: rows k to k + 15, columns j to j + 15, the first eight in b[0] and b[1].
template <class T>
__device__ __forceinline__ void load_right(unsigned (&b)[4], const T* tile, int k, int j) {
    int lane = threadIdx.x % 32;
    load_matrices_transposed(b, tile + corner<T>(k, j, lane % 16, lane / 16 * 8));
}

// B of the transposed tile: its columns are rows j to j + 15, its rows columns k to k + 15.
template <class T>
__device__ __forceinline__ void load_right_of_rows(unsigned (&b)[4], const T* tile, int k, int j) {
    int lane = threadIdx.x % 32;
    load_matrices(b, tile + corner<T>(j, k, lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
}

// c += A B for 16 columns.
template <class T>
__device__ __forceinline__ void multiply_add_16(float (&left)[4], float (&right)[4],
                                                const unsigned (&a)[4], const unsigned (&b)[4]) {
    multiply_add<T>(left, a, b[0], b[1]);
    multiply_add<T>(right, a, b[2], b[3]);
}

// Of two neighbouring tiles of eight columns four lanes have two elements each of a row. Lanes 2n
// and 2n + 1 exchange, so that each has four of one tile, and the four write a sector of 32 bytes
// at once.
template <class T>
__device__ __forceinline__ void store_row(Matrix<T> H, const float* left, const float* right,
                                          int row, int column) {
    int t = threadIdx.x % 4;
    bool odd = t % 2;
    unsigned in_left = two_halves<T>(left[0], left[1]);
    unsigned in_right = two_halves<T>(right[0], right[1]);
    unsigned got = __shfl_xor_sync(0xffffffffu, odd ? in_left : in_right, 1);
    if (!H.inside(row, column)) return;
    *reinterpret_cast<uint2*>(H.at(row, column + t % 2 * 8 + t / 2 * 4)) =
        make_uint2(odd ? got : in_left, odd ? in_right : got);
}

}  // namespace lab
