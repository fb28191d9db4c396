// Recurrent weights as fragments of mma.sync (lab/ptx/mma.cuh), which stay with their warp from step to step: in
// registers, and the rest in shared memory.
//
// A tile of 16 rows of weights is the four gates of four units: lane g has rows g and g + 8, of unit g / 2, which are its
// gates i and f where g is even, else g and o. So two neighbours, g and g ^ 1, have all four gates of a unit.
// Along the sum a fragment has 16 units. mma.sync takes them in any order, if A and B agree: lane t has units 4 t to
// 4 t + 3, which lie side by side in memory, of both.
#pragma once
#include "lab/halves.cuh"
#include "lab/handed.cuh"
#include "lab/slices.cuh"

namespace lab {

// The fragments of a warp: TILES tiles of weights and STEPS of the sum, KEPT of them in registers; products with COLUMNS
// times 8 columns.
template <int TILES_, int STEPS_, int COLUMNS_, int KEPT> struct WarpShare {
    static constexpr int WARPS = 8, THREADS = 32 * WARPS, TILES = TILES_, STEPS = STEPS_, COLUMNS = COLUMNS_;
    static constexpr int FRAGMENTS = TILES * STEPS, IN_REGISTERS = KEPT, IN_SHARED = FRAGMENTS - KEPT;
    static_assert(KEPT > 0 && KEPT <= FRAGMENTS, "no more in registers than there are");

    // Those in shared memory lie evenly among the others: loads hide behind products. How many there are before
    // fragment f, and whether it is one.
    static __device__ constexpr int shared_before(int f) { return f * IN_SHARED / FRAGMENTS; }
    static __device__ constexpr bool in_shared(int f) { return shared_before(f + 1) > shared_before(f); }
};

// How a cluster of BLOCKS shares the products of ROWS rows with the weights of HT units: of a block's UNITS, a warp has a
// fourth, and of the sum half.
template <int HT, int BLOCKS, int ROWS, int KEPT>
struct Shares : WarpShare<HT / BLOCKS / 16, HT / 32, (ROWS + 7) / 8, KEPT> {
    static constexpr int HALVES = 2, FOURTHS = Shares::WARPS / HALVES;
    static constexpr int UNITS = HT / BLOCKS, BOX = HT * ROWS, SLICE = UNITS * ROWS, CELLS = UNITS * ROWS;
    static constexpr int SUM_ROW = UNITS + 1;  // odd: the rows of a warp's sums begin in different banks
    static constexpr int SUMS = ROWS * SUM_ROW;
    // Boxes and slices of h, sums of both halves, fragments; barriers and words of lab/slices.cuh, lengths of rows.
    static constexpr int BYTES = 2 * 2 * (BOX + SLICE) + 16 * (HALVES * SUMS + Shares::IN_SHARED * Shares::THREADS) +
                                 sizeof(Arrived<BLOCKS>) + 4 * ROWS;
    static_assert(UNITS % 16 == 0 && UNITS * BLOCKS == HT, "whole tiles for each fourth: change HT or BLOCKS");
    static_assert(HT % 32 == 0, "whole tiles for each half of the sum");
};

// A thread's n-th cell, of those that a block of S has of ROWS rows: unit u of row r of the block; and that of the layer.
template <class S, int ROWS> struct CellOf {
    static constexpr int COUNT = (S::CELLS + S::THREADS - 1) / S::THREADS;
    int u, r, j, row, in_step;  // in_step: in one step of y without gaps
    bool is, there;             // of the block; of the problem, too

    __device__ __forceinline__ CellOf(int n, int first_unit, int first_row, int B, int H) {
        int i = threadIdx.x + n * S::THREADS;
        u = i % S::UNITS, r = i / S::UNITS, j = first_unit + u, row = first_row + r;
        in_step = row * H + j, is = r < ROWS, there = is && row < B && j < H;
    }
};

// Four neighbours of a row, of which `left` are there; the others are zero. PACKED: all are, or none, and at once.
template <bool PACKED, class T> __device__ __forceinline__ uint2 four_halves(const T* from, int left) {
    if constexpr (PACKED) {
        return left > 0 ? *reinterpret_cast<const uint2*>(from) : make_uint2(0, 0);
    } else {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = e < left ? to_math(from[e]) : 0.0f;
        return make_uint2(two_halves<T>(v[0], v[1]), two_halves<T>(v[2], v[3]));
    }
}

// ANCHOR: fragments
// Of a warp: of TILES tiles of weights and STEPS of the sum.
template <class T, class S> struct Fragments {
    unsigned kept[S::IN_REGISTERS][4];
    uint4* shared;  // this lane's; those of a warp lie side by side

    __device__ __forceinline__ explicit Fragments(uint4* memory)
        : shared(memory + threadIdx.x / 32 * S::IN_SHARED * 32 + threadIdx.x % 32) {}

    // load(m, k): what this lane has of tile m and step k.
    template <class Load> __device__ __forceinline__ void fill(Load load) {
#pragma unroll
        for (int f = 0; f < S::FRAGMENTS; ++f) {
            uint4 of = load(f % S::TILES, f / S::TILES);
            if (S::in_shared(f)) {
                shared[S::shared_before(f) * 32] = of;
            } else {
                unsigned(&a)[4] = kept[f - S::shared_before(f)];
                a[0] = of.x, a[1] = of.y, a[2] = of.z, a[3] = of.w;
            }
        }
    }

    // sum = the products with h: ROWS rows of 16 units side by side, for one step of the sum after the other. h comes in
    // PIECES: wait(n) waits for the n-th.
    template <int ROWS, int PIECES, class Wait>
    __device__ __forceinline__ void multiply(float (&sum)[S::TILES][S::COLUMNS][4], const T* h, Wait wait) const {
        static_assert(S::STEPS % PIECES == 0, "whole steps for each piece");
        int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const T* own = h + 4 * t;
#pragma unroll
        for (int m = 0; m < S::TILES; ++m)
#pragma unroll
            for (int n = 0; n < S::COLUMNS; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[m][n][e] = 0;
#pragma unroll
        for (int k = 0; k < S::STEPS; ++k) {
            if (k % (S::STEPS / PIECES) == 0) wait(k / (S::STEPS / PIECES));
            uint2 b[S::COLUMNS];
#pragma unroll
            for (int n = 0; n < S::COLUMNS; ++n) {
                int left = ROWS - 8 * n, row = left < 8 ? g % left : g;  // of a row that is none, any numbers do
                b[n] = *reinterpret_cast<const uint2*>(own + row * 16 + (k * ROWS + 8 * n) * 16);
            }
#pragma unroll
            for (int m = 0; m < S::TILES; ++m) {
                int f = k * S::TILES + m;
                unsigned a[4];
                of(f, a);
#pragma unroll
                for (int n = 0; n < S::COLUMNS; ++n) multiply_add<T>(sum[m][n], a, b[n].x, b[n].y);
            }
        }
    }

    // All of h is there.
    template <int ROWS>
    __device__ __forceinline__ void multiply(float (&sum)[S::TILES][S::COLUMNS][4], const T* h) const {
        multiply<ROWS, 1>(sum, h, [](int) {});
    }

    __device__ __forceinline__ void of(int f, unsigned (&a)[4]) const {
        if (S::in_shared(f)) {
            uint4 four = shared[S::shared_before(f) * 32];
            a[0] = four.x, a[1] = four.y, a[2] = four.z, a[3] = four.w;
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) a[e] = kept[f - S::shared_before(f)][e];
        }
    }
};
// ANCHOR_END: fragments

// A lane's part of a tile of the weights by which h goes into four gates: units from `unit` on, and of the sum those from
// k0 on. A gate has H rows of H columns, `apart` from the next gate's. PACKED: four columns are 8 bytes at once.
template <bool PACKED, class T>
__device__ __forceinline__ uint4 gates_by_units(const T* weights, int unit, int k0, int H, long long apart) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, j = unit + g / 2, k = k0 + 4 * t;
    const T* row = weights + g % 2 * 2 * apart + j * 1ll * H + k;
    int left = j < H ? H - k : 0;
    uint2 low = four_halves<PACKED>(row, left), high = four_halves<PACKED>(row + apart, left);
    return make_uint4(low.x, high.x, low.y, high.y);
}

// These weights of a warp: tile m has the units from unit + 4 m on, step k those from k0 + 16 k on.
template <class T, class S> struct GateFragments : Fragments<T, S> {
    __device__ __forceinline__ GateFragments(uint4* memory, const T* weights, int unit, int k0, int H, long long apart)
        : Fragments<T, S>(memory) {
        // Asked once, and not at each load: those that follow a branch wait for each other.
        if (H % 4 == 0 && reinterpret_cast<size_t>(weights) % 8 == 0)
            this->fill([&](int m, int k) { return gates_by_units<true>(weights, unit + 4 * m, k0 + 16 * k, H, apart); });
        else
            this->fill([&](int m, int k) { return gates_by_units<false>(weights, unit + 4 * m, k0 + 16 * k, H, apart); });
    }
};

// The same of their transpose, a fragment: 16 units from `unit` on; of the sum the gates of the four units from k0 on, lane t
// those of unit t. PACKED: rows lie at multiples of 4 bytes.
template <bool PACKED, class T>
__device__ __forceinline__ uint4 units_by_gates(const T* weights, int unit, int k0, int H, long long apart) {
    int k = k0 + threadIdx.x % 4, left = k < H ? H - unit : 0;
    const T* row = weights + k * 1ll * H + unit;
    uint2 of_i_f = twos_of_rows<PACKED>(row, apart, left), of_g_o = twos_of_rows<PACKED>(row + 2 * apart, apart, left);
    return make_uint4(of_i_f.x, of_i_f.y, of_g_o.x, of_g_o.y);
}

// Fills fragments with these: place(m, k) says which units and which of the sum, as first and second.
template <class F, class T, class Place>
__device__ __forceinline__ void fill_by_gates(F& fragments, const T* weights, int H, long long apart, Place place) {
    if (lie_at_multiples<4>(weights, H))
        fragments.fill([&](int m, int k) { return units_by_gates<true>(weights, place(m, k).x, place(m, k).y, H, apart); });
    else
        fragments.fill([&](int m, int k) { return units_by_gates<false>(weights, place(m, k).x, place(m, k).y, H, apart); });
}

// ANCHOR: leave
// Hands the sums over to whoever adds up. Lane (g, t) has, of a tile, two gates of rows 2 t and 2 t + 1, and its neighbour
// the other two: each gives away one row.
template <class S, int ROWS> struct Leave {
    bool odd;
    int row;     // of eight
    float4* own;  // where this lane's unit of the first tile is, in that row

    // The sums of this warp's units begin at `to`.
    __device__ __forceinline__ explicit Leave(float4* to) {
        int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        odd = g % 2, row = 2 * t + odd, own = to + row * S::SUM_ROW + g / 2;
    }
    __device__ __forceinline__ void operator()(const float (&sum)[S::TILES][S::COLUMNS][4]) const {
#pragma unroll
        for (int m = 0; m < S::TILES; ++m)
#pragma unroll
            for (int n = 0; n < S::COLUMNS; ++n) {
                const float(&of)[4] = sum[m][n];
                float first = __shfl_xor_sync(0xffffffffu, odd ? of[0] : of[1], 4);
                float second = __shfl_xor_sync(0xffffffffu, odd ? of[2] : of[3], 4);
                if (8 * n + 8 <= ROWS || 8 * n + row < ROWS)
                    own[8 * n * S::SUM_ROW + 4 * m] = odd ? make_float4(first, second, of[1], of[3])
                                                          : make_float4(of[0], of[2], first, second);
            }
    }
};
// ANCHOR_END: leave

// A tile of a part of dh: 16 units side by side, of ROWS rows. A lane has units g and g + 8 of rows 2 t and 2 t + 1.
template <class S, int ROWS>
__device__ __forceinline__ void store_part(float* to, const float (&sum)[S::COLUMNS][4]) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < S::COLUMNS; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            int row = 8 * n + 2 * t + e % 2;
            if (8 * n + 8 <= ROWS || row < ROWS) to[row * S::PITCH + g + e / 2 * 8] = sum[n][e];
        }
}

}  // namespace lab
