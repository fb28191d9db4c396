// What the versions by wgmma share: a tile of A and one of B, brought by TMA and multiplied where they lie; how a thread asks
// for all of a tile of C; and the sums' way out of the lanes that have them.
//
// Tiles are BK deep, a span of 128 bytes: lab/operand_tiles.cuh.
#pragma once
#include "lab/operand_tiles.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ring.cuh"
#include "tensor.cuh"

namespace lab {

// Of a block of three warpgroups, two of which multiply; together no more than the block was launched with.
constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;

// BM rows of A, which lies along k, and BN columns of B, which lies across it.
template <class T, int BM, int BN, int BK> struct Tiles : OperandTiles<T, ALONG_K, ACROSS_K, BM, BN, BK> {
    using OperandTiles<T, ALONG_K, ACROSS_K, BM, BN, BK>::OperandTiles;

    // As load(), with B for all BLOCKS blocks of a cluster, that have the same columns: this one, `rank`, asks for its
    // part of them, for all.
    template <int BLOCKS>
    __device__ __forceinline__ void load_for(const TensorMap& A, const TensorMap& B, int i, int j, int k, int g,
                                             int rank, Mbarrier* full) const {
        constexpr int PART = BN / BLOCKS;
        static_assert(PART % Tiles::PANEL == 0, "whole panels");
        this->expect(full);
        this->issue_load_of_a(A, i, k, full, g);
#pragma unroll
        for (int p = 0; p < PART; p += Tiles::PANEL)
            tensor_load_multicast(this->b + (rank * PART + p) * BK, B, {j + rank * PART + p, k, g}, full, (1 << BLOCKS) - 1);
    }
};

// Asks for the operands of a tile, of all steps of k, the last one first if it goes back. One thread.
template <class Tiles, int CELLS, class T, int PLACES>
__device__ __forceinline__ void ask(const TensorMap& A, const TensorMap& B, T* tiles, Ring<PLACES>& ring,
                                    Turn<PLACES>& turn, int i, int j, int g, int K, bool back = false) {
    int last = (K - 1) / Tiles::PANEL * Tiles::PANEL;
    for (int k = 0; k < K; k += Tiles::PANEL, turn.advance()) {
        ring.wait_empty(turn);
        Tiles(tiles + turn.place * CELLS).load(A, B, i, j, back ? last - k : k, &ring.full[turn.place], g);
    }
}

// The sums of a warpgroup to its 64 rows of C, from i on, and columns from j on.
template <class T, int BN>
__device__ __forceinline__ void store_sums(Matrix<T> c, const float (&sum)[BN / 2], int i, int j) {
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < BN / 8; n += 2) {
            float four[4];
            exchange(four, &sum[4 * n + 2 * half], &sum[4 * (n + 1) + 2 * half]);
            c.template store<true>(four, i + warp * 16 + half * 8 + lane / 4, j + (n + lane % 2) * 8 + lane % 4 / 2 * 4);
        }
}

}  // namespace lab
