// Recurrent weights as wgmma takes them (lab/ptx/wgmma.cuh), which stay with their warpgroup from step to step: in
// registers, and the rest in shared memory.
//
// On the way forward a warpgroup has the four gates of 16 units, 64 rows, in the order of lab/fragments.cuh: lane g of a
// warp has rows g and g + 8, of unit g / 2, which are its gates i and f where g is even, else g and o. So two neighbours, g
// and g ^ 1, have all four gates of a unit, of the same two rows of the batch; each takes one of these.
#pragma once
#include "lab/halves.cuh"
#include "lab/handed.cuh"
#include "lab/ptx/wgmma.cuh"
#include "lab/slices.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// What a warpgroup has of the weights: so many fragments of 64 rows and 16 of the sum, KEPT of them in registers. A product
// is a sum over STEPS of them, with ROWS rows of the batch.
template <int FRAGMENTS_, int STEPS_, int ROWS_, int KEPT> struct GroupShare {
    static constexpr int FRAGMENTS = FRAGMENTS_, STEPS = STEPS_, ROWS = ROWS_;
    static constexpr int IN_REGISTERS = KEPT, IN_SHARED = FRAGMENTS - KEPT;
    // wgmma reads COLUMNS rows, also where there are only ROWS. What it reads behind a piece that comes by itself is a gap.
    static constexpr int COLUMNS = (ROWS + 7) / 8 * 8, GAP = 8 * (COLUMNS - ROWS);
    static constexpr int OPERAND = 64 * 16 * 2 / 16;  // a fragment in shared memory, in packs of 16 bytes
    static_assert(KEPT > 0 && KEPT <= FRAGMENTS, "no more in registers than there are");

    static __device__ constexpr int shared_before(int f) { return f * IN_SHARED / FRAGMENTS; }
    static __device__ constexpr bool in_shared(int f) { return shared_before(f + 1) > shared_before(f); }
};

// A descriptor, which is the same in all lanes, as one that the compiler knows to be: it advances by one instruction of the
// warp then, and not by a few of each lane.
__device__ __forceinline__ unsigned long long of_warp(unsigned long long descriptor) {
    unsigned low = __shfl_sync(0xffffffffu, unsigned(descriptor), 0);
    return descriptor >> 32 << 32 | low;
}

// What a thread of its warpgroup has.
template <class T, class S> struct GroupFragments {
    unsigned kept[S::IN_REGISTERS][4];
    uint4* shared;  // the warpgroup's operands: of each, for each 8 of the sum 64 rows of 16 bytes

    __device__ __forceinline__ explicit GroupFragments(uint4* memory)
        : shared(memory + threadIdx.x / 128 * S::IN_SHARED * S::OPERAND) {}

    // load(f): this lane's registers of fragment f, as mma.sync has A (lab/ptx/mma.cuh).
    template <class Load> __device__ __forceinline__ void fill(Load load) {
#pragma unroll
        for (int f = 0; f < S::FRAGMENTS; ++f) put(f, load(f));
    }
    __device__ __forceinline__ void put(int f, uint4 of) {
        int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4, before = S::shared_before(f);
        unsigned four[4] = {of.x, of.y, of.z, of.w};
        if (S::in_shared(f)) {
            auto to = reinterpret_cast<unsigned*>(shared + before * S::OPERAND);
#pragma unroll
            for (int e = 0; e < 4; ++e) to[(e / 2 * 64 + warp * 16 + e % 2 * 8 + g) * 4 + t] = four[e];
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) kept[f - before][e] = four[e];
        }
    }
    // Fragment f is of the transpose of the gates' weights, [4H, H]: place(f) says which 16 units, and which of the sum, four
    // gates of four units side by side. Of the sum a lane has two gates of a unit, and of that two further.
    template <class Place> __device__ __forceinline__ void fill_by_gates(const T* weights, int H, Place place) {
        if (lie_at_multiples<4>(weights, H)) fill([&](int f) { return units_by_gates<true>(weights, H, place(f)); });
        else fill([&](int f) { return units_by_gates<false>(weights, H, place(f)); });
    }
    template <bool PACKED> static __device__ __forceinline__ uint4 units_by_gates(const T* weights, int H, int2 place) {
        int t = threadIdx.x % 4;
        auto two = [&](int of_sum) {
            const T* row = weights + (t % 2 * 2 * 1ll * H + of_sum) * H + place.x;
            return twos_of_rows<PACKED>(row, H * 1ll * H, of_sum < H ? H - place.x : 0);
        };
        uint2 low = two(place.y + t / 2), high = two(place.y + 2 + t / 2);
        return make_uint4(low.x, low.y, high.x, high.y);
    }

    // sum = the product of the fragments from `first` on with what is in `box`, [2 STEPS][ROWS][8]: under way until
    // wgmma_wait(). The box fills in PIECES, a GAP behind each, and each a group of its own: wait(n) waits for the n-th.
    template <int PIECES, class Wait>
    __device__ __forceinline__ void multiply(float (&sum)[S::COLUMNS / 2], int first, const T* box, Wait wait) const {
        static_assert(S::STEPS % PIECES == 0, "whole steps for each piece");
        auto b = of_warp(descriptor<16>(box, S::ROWS * 16, 128)), w = of_warp(descriptor<16>(shared, 64 * 16, 128));
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            constexpr int OF_PIECE = S::STEPS / PIECES;
            wait(piece);
            wgmma_fence();
#pragma unroll
            for (int k = piece * OF_PIECE; k < (piece + 1) * OF_PIECE; ++k) {
                auto columns = advance(b, k * 2 * S::ROWS * 16 + piece * S::GAP * int(sizeof(T)));
                int f = first + k, before = S::shared_before(f);
                if (S::in_shared(f)) wgmma<T, S::COLUMNS>(sum, advance(w, before * S::OPERAND * 16), columns, k > 0);
                else wgmma<T, S::COLUMNS>(sum, kept[f - before], columns, k > 0);
            }
            wgmma_commit();
        }
    }
    // The box is full.
    __device__ __forceinline__ void multiply(float (&sum)[S::COLUMNS / 2], int first, const T* box) const {
        multiply<1>(sum, first, box, [](int) {});
    }
};

// How a cluster of BLOCKS shares the products of ROWS rows with the weights of HT units: a warpgroup has 16 of a block's
// UNITS. Of the steps of the sum KEPT are in registers.
template <int HT, int BLOCKS, int ROWS, int KEPT> struct GroupShares : GroupShare<HT / 16, HT / 16, ROWS, KEPT> {
    static constexpr int UNITS = HT / BLOCKS, GROUPS = UNITS / 16, THREADS = 128 * GROUPS;
    static constexpr int CELLS = GroupShares::COLUMNS / 8, SLICE = UNITS * ROWS;
    // A box comes in parts, [HT / PARTS / 8][ROWS][8] each, and a gap behind it.
    static constexpr int PARTS = Arrived<BLOCKS>::PARTS, PART = HT / PARTS * ROWS, BOX = PARTS * (PART + GroupShares::GAP);
    static constexpr int BYTES = 16 * GroupShares::IN_SHARED * GROUPS * GroupShares::OPERAND +
                                 2 * 2 * (BOX + SLICE) + sizeof(Arrived<BLOCKS>);
    static_assert(UNITS % 16 == 0 && UNITS * BLOCKS == HT, "whole warpgroups: change HT or BLOCKS");
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
    // Whether the n-th row is one of the block's; whether the problem has it, and the unit, too.
    __device__ __forceinline__ bool is(int n) const { return 8 * n + 8 <= ROWS || first + 8 * n < ROWS; }
    __device__ __forceinline__ bool there(int n) const { return is(n) && row(n) < B && unit() < H; }
    // In one step of y without gaps; in a slice of h.
    __device__ __forceinline__ int in_step(int n) const { return row(n) * H + unit(); }
    __device__ __forceinline__ int in_slice(int n) const { return (u / 8 * ROWS + first + 8 * n) * 8 + u % 8; }
};

// Two neighbours of a row, of which `left` are there; the others are zero.
template <class T> __device__ __forceinline__ unsigned two_neighbours(const T* from, int left) {
    return two_halves<T>(left > 0 ? to_math(from[0]) : 0.0f, left > 1 ? to_math(from[1]) : 0.0f);
}

// A warpgroup's gates: 16 units each, of the block's units from first_unit on; the sum is over h from first_of_sum on.
template <class T, class S> struct GateGroups : GroupFragments<T, S> {
    // weights: [4H, H], a gate after the other.
    __device__ __forceinline__ GateGroups(uint4* memory, const T* weights, int first_unit, int H, int first_of_sum = 0)
        : GroupFragments<T, S>(memory) {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, j = first_unit + threadIdx.x / 32 * 4 + g / 2;
        const T* row = weights + (g % 2 * 2 * 1ll * H + j) * H + first_of_sum;
        long long apart = H * 1ll * H;
        auto left = [&](int k) { return j < H ? H - first_of_sum - 16 * k : 0; };
        // Asked once, and not at each load: those that follow a branch wait for each other.
        if (lie_at_multiples<16>(weights, H)) {
#pragma unroll
            for (int k = 0; k < S::FRAGMENTS; k += 2) {
                uint4 first = twos_of_row(row + 16 * k, left(k)), second = twos_of_row(row + apart + 16 * k, left(k));
                this->put(k, make_uint4(first.x, second.x, first.y, second.y));
                if (k + 1 < S::FRAGMENTS) this->put(k + 1, make_uint4(first.z, second.z, first.w, second.w));
            }
        } else {
            this->fill([&](int k) {
                auto two = [&](int e) {
                    int at = k * 16 + e / 2 * 8 + 2 * t;
                    return two_neighbours(row + e % 2 * apart + at, j < H ? H - first_of_sum - at : 0);
                };
                return make_uint4(two(0), two(1), two(2), two(3));
            });
        }
    }

    // sum = the products with the rows of a box, which fills in PIECES, as above.
    template <int PIECES, class Wait>
    __device__ __forceinline__ void multiply(float (&sum)[S::CELLS][4], const T* box, Wait wait) const {
        auto& of_columns = reinterpret_cast<float(&)[S::COLUMNS / 2]>(sum);
        GroupFragments<T, S>::template multiply<PIECES>(of_columns, 0, box, wait);
        wgmma_wait<0>();
    }
    // The box is full.
    __device__ __forceinline__ void multiply(float (&sum)[S::CELLS][4], const T* box) const {
        multiply<1>(sum, box, [](int) {});
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
