// What the versions of f32 as TF32 share: tiles of A, and of B that is turned on its way to wgmma, and the sums' way out.
//
// An operand that wgmma finds in shared memory has its k side by side, if it is of 32 bits: the rows of A have, those of
// B have not. So A is wgmma's second operand, and Bᵀ the first, which it takes from registers: each warp fetches its 16
// columns of B from where TMA has left them, and rounds them on the way.
#pragma once
#include "lab/ptx/cvt.cuh"
#include "lab/ring.cuh"
#include "warpgroup.cuh"

namespace lab {

// BM rows of A and BN columns of B, in panels of 32 columns. Both swizzled in spans of 128 bytes.
template <class T, int BM, int BN, int BK> struct TurnedTiles {
    static constexpr int SPAN = 128, PANEL = SPAN / sizeof(T), STEP = 32 / sizeof(T);
    static constexpr int CELLS = (BM + BN) * BK, BYTES = CELLS * sizeof(T);
    static_assert(BK * sizeof(T) == SPAN && BM % 8 == 0 && BN % 64 == 0, "whole spans, 64 columns a warpgroup");
    T *a, *b;

    __device__ __forceinline__ explicit TurnedTiles(T* tiles) : a(tiles), b(tiles + BM * BK) {}

    // Asks for the tiles of rows i and columns j, from k on, of matrix g; one thread.
    __device__ __forceinline__ void load(const TensorMap& A, const TensorMap& B, int i, int j, int k, int g,
                                         Mbarrier* full) const {
        mbarrier_arrive_expect(full, BYTES);
        tensor_load(a, A, {k, i, g}, full);
#pragma unroll
        for (int p = 0; p < BN; p += PANEL) tensor_load(b + p * BK, B, {j + p, k, g}, full);
    }

    // The first of the four chunks of 4 columns that a warp has of its panel, the second beside it, the others 4 on.
    __device__ __forceinline__ static int chunk() { return threadIdx.x / 32 % 2 * 2; }
    // That panel's first column.
    __device__ __forceinline__ static int panel() { return threadIdx.x / 64 * PANEL; }

    // ANCHOR: turn
    // A lane's share of Bᵀ, from k on. The 8 columns that a warp fetches at once, by 4 of k, are those of two chunks 4 apart:
    // they lie in 32 banks.
    __device__ __forceinline__ void turn(unsigned (&share)[4], int k) const {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            int row = k + t + r / 2 * 4, column = ((chunk() + r % 2 + g / 4 * 4) ^ row % 8) * 4 + g % 4;
            share[r] = to_tf32(__float_as_uint(b[panel() * BK + row * PANEL + column]));
        }
    }
    // ANCHOR_END: turn

    // sum = or += the product of this warpgroup's 64 columns of B, which come to `columns`, and all rows of A.
    __device__ __forceinline__ void multiply(float (&sum)[BM / 2], unsigned (&columns)[BK / STEP][4], bool adds) const {
#pragma unroll
        for (int s = 0; s < BK / STEP; ++s) turn(columns[s], s * STEP);
        auto rows = k_major<SPAN>(a, 8 * SPAN);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < BK / STEP; ++s)
            wgmma<T, BM>(sum, columns[s], advance(rows, s * 32), adds || s > 0);
        wgmma_commit();
    }
};

// A consumer's way through the ring. Fragments of B are fetched while wgmma still reads those of the step before: there are
// two sets, and steps come in pairs, so that the compiler knows which is which.
template <class Tiles, class T, int PLACES> struct TurnedConsumer {
    T* tiles;
    Ring<PLACES>& ring;
    Turn<PLACES> turn, last;

    template <int SUMS, int STEPS>
    __device__ __forceinline__ void step(float (&sum)[SUMS], unsigned (&columns)[STEPS][4], bool adds) {
        ring.wait_full(turn);
        Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum, columns, adds);
        wgmma_wait<1>();
        if (adds) leave();
        last = turn;
        turn.advance();
    }

    // Each warp for itself: one thread knows that wgmma is complete, but not that others have fetched.
    __device__ __forceinline__ void leave() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) ring.leave(last);
    }
};

// Lanes 16 apart have columns 16 apart: they exchange, so that 8 lanes have 8 neighbours, and store a sector.
template <int BM>
__device__ __forceinline__ void store_turned(Matrix<float> c, const float (&sum)[BM / 2], int i, int j) {
    int g = threadIdx.x % 32 / 4;
    bool high = g / 4;
#pragma unroll
    for (int n = 0; n < BM / 2; n += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float own = high ? sum[n + 2 + e] : sum[n + e];
            float got = __shfl_xor_sync(0xffffffffu, high ? sum[n + e] : sum[n + 2 + e], 16);
            int row = i + n * 2 + threadIdx.x % 4 * 2 + e;
            float left = high ? got : own, right = high ? own : got;
            c.template store<false, 1>(&left, row, j + g);
            c.template store<false, 1>(&right, row, j + 16 + g);
        }
}

}  // namespace lab
