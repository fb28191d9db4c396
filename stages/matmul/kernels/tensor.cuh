// What the versions on the tensor cores do: chunks of 16 bytes into shared memory, elements from there
// to their lanes (v7_mma alone), and sums out of the lanes that have them.
#pragma once
#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/cvt.cuh"
#include "lab/ptx/ldmatrix.cuh"
#include "lab/ptx/mma.cuh"
#include "lab/swizzle.cuh"
#include "lab/tile.cuh"

namespace lab {

// A chunk of 16 bytes into shared memory: of a row that is inside or not, with so many cells left in
// it. What is outside is zero.
template <int PACK, class T>
__device__ __forceinline__ void copy_chunk(T* to, const T* from, bool inside, int left) {
    if constexpr (PACK != 1) {
        async_copy_or_zero<16>(to, from, inside && left > 0);
    } else {
#pragma unroll
        for (int i = 0; i < 16 / int(sizeof(T)); ++i)
            to[i] = inside && i < left ? from[i] : T(0.0f);
    }
}

// Of two neighbouring tiles a lane has two sums each. Lanes 2n and 2n+1 exchange, so that the first
// has four neighbours of the left tile, the other of the right one: to be written in one access.
__device__ __forceinline__ void exchange(float (&four)[4], const float* left, const float* right) {
    bool odd = threadIdx.x % 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float got = __shfl_xor_sync(0xffffffffu, odd ? left[i] : right[i], 1);
        four[i] = odd ? got : left[i];
        four[2 + i] = odd ? right[i] : got;
    }
}

// A lane's share of 16 rows of A, from row i on, and 32 bytes of each from k on.
template <class Tile, class T>
__device__ __forceinline__ void load_a(unsigned (&to)[4], const T* tile, int i, int k) {
    int lane = threadIdx.x % 32;
    load_matrices(to, tile + Tile::offset(i + lane % 16, k + lane / 16 * Tile::CELLS));
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int r = 0; r < 4; ++r) to[r] = to_tf32(to[r]);
    }
}

// Of 16 columns of B, from column j on, and MMA_K rows from k on: to[0] and to[1] of the first eight
// columns, the others of the second.
template <class Tile, class T>
__device__ __forceinline__ void load_b(unsigned (&to)[4], T* tile, int k, int j) {
    int lane = threadIdx.x % 32;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const T* own = Tile{tile}.at(k + lane % 4 + r % 2 * 4, j + r / 2 * 8 + lane / 4);
            to[r] = to_tf32(__float_as_uint(*own));
        }
    } else {
        load_matrices_transposed(to, tile + Tile::offset(k + lane % 16, j + lane / 16 * Tile::CELLS));
    }
}

}  // namespace lab
