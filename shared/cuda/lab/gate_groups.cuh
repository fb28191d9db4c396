// Recurrent weights as wgmma takes them (lab/ptx/wgmma.cuh), which stay with their warpgroup from step to step: in
// registers, and the rest in shared memory.
//
// A warpgroup has the four gates of 16 units, 64 rows, in the order of lab/fragments.cuh: lane g of a warp has rows g and
// g + 8, of unit g / 2, which are its gates i and f where g is even, else g and o. So two neighbours, g and g ^ 1, have all
// four gates of a unit, of the same two rows of the batch; each takes one of these.
#pragma once
#include "lab/halves.cuh"
#include "lab/ptx/wgmma.cuh"
#include "lab/slices.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// How a cluster of BLOCKS shares the products of ROWS rows with the weights of HT units: a warpgroup has 16 of a block's
// UNITS. Of the STEPS of the sum KEPT are in registers.
template <int HT, int BLOCKS, int ROWS, int KEPT> struct GroupShares {
    static constexpr int UNITS = HT / BLOCKS, GROUPS = UNITS / 16, THREADS = 128 * GROUPS, STEPS = HT / 16;
    static constexpr int IN_REGISTERS = KEPT, IN_SHARED = STEPS - KEPT;
    static constexpr int COLUMNS = (ROWS + 7) / 8 * 8, CELLS = COLUMNS / 8;
    static constexpr int BOX = HT * ROWS, SLICE = UNITS * ROWS;
    // An operand has whole eights of rows. Of the last 8 units of a box those that are not there lie behind it.
    static constexpr int GAP = 8 * (COLUMNS - ROWS);
    static constexpr int OPERAND = 64 * 16 * 2 / 16;  // of 64 rows and a step of the sum, in packs of 16 bytes
    // Threads write a slice before the barrier behind which they know what the words of its step have told: of the step
    // before they know, and so it is a third one.
    static constexpr int SLICES = 3;
    static constexpr int BYTES = 16 * IN_SHARED * GROUPS * OPERAND + 2 * (2 * (BOX + GAP) + SLICES * SLICE) +
                                 sizeof(Arrived<BLOCKS>);
    static_assert(UNITS % 16 == 0 && UNITS * BLOCKS == HT, "whole warpgroups: change HT or BLOCKS");
    static_assert(KEPT > 0 && KEPT <= STEPS, "no more in registers than there are");

    static __device__ constexpr int shared_before(int k) { return k * IN_SHARED / STEPS; }
    static __device__ constexpr bool in_shared(int k) { return shared_before(k + 1) > shared_before(k); }
};

// The cells of a thread: one unit, of CELLS rows.
template <class S, int ROWS> struct GroupCells {
    int u, first, first_unit, first_row, B, H;

    __device__ __forceinline__ GroupCells(int first_unit, int first_row, int B, int H)
        : first_unit(first_unit), first_row(first_row), B(B), H(H) {
        int lane = threadIdx.x % 32, g = lane / 4;
        u = threadIdx.x / 32 * 4 + g / 2, first = lane % 4 * 2 + g % 2;
    }
    __device__ __forceinline__ int unit() const { return first_unit + u; }
    __device__ __forceinline__ int row(int n) const { return first_row + first + 8 * n; }
    // Of the block; of the problem, too.
    __device__ __forceinline__ bool is(int n) const { return 8 * n + 8 <= ROWS || first + 8 * n < ROWS; }
    __device__ __forceinline__ bool there(int n) const { return is(n) && row(n) < B && unit() < H; }
    // In one step of y without gaps; in a slice of h.
    __device__ __forceinline__ int in_step(int n) const { return row(n) * H + unit(); }
    __device__ __forceinline__ int in_slice(int n) const { return (u / 8 * ROWS + first + 8 * n) * 8 + u % 8; }
};

// Two neighbours of a row, of which `left` are there; the others are zero.
template <bool PACKED, class T> __device__ __forceinline__ unsigned two_of_row(const T* from, int left) {
    if constexpr (PACKED) return left > 0 ? *reinterpret_cast<const unsigned*>(from) : 0u;
    else return two_halves<T>(left > 0 ? to_math(from[0]) : 0.0f, left > 1 ? to_math(from[1]) : 0.0f);
}

// A descriptor, which is the same in all lanes, as one that the compiler knows to be: it advances by one instruction of the
// warp then, and not by a few of each lane.
__device__ __forceinline__ unsigned long long of_warp(unsigned long long descriptor) {
    unsigned low = __shfl_sync(0xffffffffu, unsigned(descriptor), 0);
    return descriptor >> 32 << 32 | low;
}

// What a thread of its warpgroup has, of the weights from first_unit on.
template <class T, class S> struct GateGroups {
    unsigned kept[S::IN_REGISTERS][4];
    const uint4* shared;  // the warpgroup's operands: of a step, for each 8 of the sum 64 rows of 16 bytes

    // weights: [4H, H], a gate after the other.
    __device__ __forceinline__ GateGroups(uint4* memory, const T* weights, int first_unit, int H) {
        uint4* own = memory + threadIdx.x / 128 * S::IN_SHARED * S::OPERAND;
        shared = own;
        // Asked once, and not at each load: those that follow a branch wait for each other.
        if (H % 2 == 0 && reinterpret_cast<size_t>(weights) % 4 == 0) fill<true>(own, weights, first_unit, H);
        else fill<false>(own, weights, first_unit, H);
    }

    template <bool PACKED>
    __device__ __forceinline__ void fill(uint4* own, const T* weights, int first_unit, int H) {
        int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4;
        int j = first_unit + threadIdx.x / 32 * 4 + g / 2;
        const T* gate = weights + (g % 2 * 2 * 1ll * H + j) * H;
#pragma unroll
        for (int k = 0; k < S::STEPS; ++k) {
            unsigned four[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int column = k * 16 + e / 2 * 8 + 2 * t;
                four[e] = two_of_row<PACKED>(gate + e % 2 * 1ll * H * H + column, j < H ? H - column : 0);
            }
            int before = S::shared_before(k);
            if (S::in_shared(k)) {
                auto to = reinterpret_cast<unsigned*>(own + before * S::OPERAND);
#pragma unroll
                for (int e = 0; e < 4; ++e) to[(e / 2 * 64 + warp * 16 + e % 2 * 8 + g) * 4 + t] = four[e];
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) kept[k - before][e] = four[e];
            }
        }
    }

    // sum = the products with the rows of a box: [HT / 8][ROWS][8].
    __device__ __forceinline__ void multiply(float (&sum)[S::CELLS][4], const T* box) {
        constexpr int ROWS = S::BOX / (16 * S::STEPS);
        float(&flat)[S::COLUMNS / 2] = reinterpret_cast<float(&)[S::COLUMNS / 2]>(sum);
        auto h = of_warp(descriptor<16>(box, ROWS * 16, 128)), w = of_warp(descriptor<16>(shared, 64 * 16, 128));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < S::STEPS; ++k) {
            auto columns = advance(h, k * 2 * ROWS * 16);
            int before = S::shared_before(k);
            if (S::in_shared(k)) wgmma<T, S::COLUMNS>(flat, advance(w, before * S::OPERAND * 16), columns, k > 0);
            else wgmma<T, S::COLUMNS>(flat, kept[k - before], columns, k > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
    }

    // The sums of a cell's gates: of rows 2 t and 2 t + 1 an even lane takes the first, and gives away the second.
    __device__ __forceinline__ float4 gates(const float (&sum)[4]) const {
        bool odd = threadIdx.x / 4 % 2;
        float first = __shfl_xor_sync(0xffffffffu, odd ? sum[0] : sum[1], 4);
        float second = __shfl_xor_sync(0xffffffffu, odd ? sum[2] : sum[3], 4);
        return odd ? make_float4(first, second, sum[1], sum[3]) : make_float4(sum[0], sum[2], first, second);
    }
};

}  // namespace lab
#endif
