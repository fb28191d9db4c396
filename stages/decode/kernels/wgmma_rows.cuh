// What v8_wgmma is made of: a step of both operands in shared memory, its products, and the sums of a tile.
#pragma once
#include <cooperative_groups.h>

#include "few_rows.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/ptx/wgmma.cuh"
#include "lab/ring.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

template <int GROUPS> constexpr int MULTIPLIERS = 128 * GROUPS;  // threads that multiply
constexpr int SPAN = 128;                                        // bytes of a row of a box, and of its swizzle

// Where a block stands in its cluster: `beside` tiles side by side, whose blocks have the same columns of x, and parts of k. Blocks
// of one part lie one behind the other.
struct Stand {
    cooperative_groups::cluster_group cluster;
    int beside, parts, part, own, tile;

    __device__ __forceinline__ explicit Stand(int beside) : cluster(cooperative_groups::this_cluster()), beside(beside) {
        int blocks = cluster.num_blocks(), rank = cluster.block_rank();
        parts = blocks / beside, part = rank / beside, own = rank % beside, tile = blockIdx.x / blocks * beside + own;
    }
    // The blocks that have the same columns of x, a bit each.
    __device__ __forceinline__ unsigned short neighbours() const { return ((1 << beside) - 1) << part * beside; }
    // The block that has another part of this tile.
    __device__ __forceinline__ int rank_of(int other) const { return other * beside + own; }
    __device__ __forceinline__ void sync() const {
        if (beside * parts == 1) __syncthreads();
        else cluster.sync();
    }
};

// ANCHOR: bytes
// A step of both operands, at `place`: rows of W of a tile, 128 bytes of each, and behind them boxes of 64 columns of x.
template <class T, class W, int ROWS, int GROUPS> struct Step {
    static constexpr int M = 64 * GROUPS, DEEP = SPAN / sizeof(W), BOXES = sizeof(T) / sizeof(W);
    static constexpr int OF_WEIGHTS = M * SPAN, OF_BOX = ROWS * SPAN, BYTES = OF_WEIGHTS + BOXES * OF_BOX;
    unsigned char* place;

    // One thread, which all wait for: one copy for all rows of the tile. W is [2, N, K] where it is gated, and a box has rows of both; else [1, N, K].
    __device__ __forceinline__ void ask_weights(const TensorMap& weight, int tile, int k, int gated, Mbarrier* full) const {
        mbarrier_arrive_expect(full, BYTES);  // x is to come, too
        tensor_load(place, weight, {k, tile * (gated ? M / 2 : M), 0}, full);
    }
    // x: box b from `columns` and `planes` further on. Of several planes one copy brings all. Blocks side by side share
    // it: each asks for its rows of the boxes, for all of them.
    __device__ __forceinline__ void ask_x(const TensorMap& x, int k, const Stand& stand, Mbarrier* full, int columns = DEEP / BOXES,
                                          int planes = 0) const {
        unsigned char* boxes = place + OF_WEIGHTS;
        if (stand.beside == 1 && planes) {
            tensor_load(boxes, x, {k, 0, 0}, full);
        } else if (stand.beside == 1) {
#pragma unroll
            for (int b = 0; b < BOXES; ++b) tensor_load(boxes + b * OF_BOX, x, {k + b * columns, 0, 0}, full);
        } else {
            int first = BOXES * ROWS / stand.beside * stand.own, b = first / ROWS;
            tensor_load_multicast(boxes + first * SPAN, x, {k + b * columns, first % ROWS, b * planes}, full, stand.neighbours());
        }
    }

    // sum = or += the products of this warpgroup's rows of W: of halves one group of wgmma, which goes on.
    __device__ __forceinline__ void multiply(float (&sum)[ROWS / 2], bool adds) const {
        const unsigned char* rows = place + threadIdx.x / 128 * 64 * SPAN;
        if constexpr (is_int8<W>) {
            int g = threadIdx.x % 32 / 4, row = threadIdx.x % 128 / 32 * 16 + g;
            const unsigned char* own = rows + row * SPAN + threadIdx.x % 4 * 2;
            constexpr int LOT = ROWS > 64 ? 1 : 2;  // fragments of a row at a time: the next ones are made while products read these
            unsigned fragments[2][LOT][4];
#pragma unroll
            for (int k = 0; k < DEEP; k += 16 * LOT) {
                auto& a = fragments[k / (16 * LOT) % 2];
#pragma unroll
                for (int j = 0; j < LOT; ++j) load_fragment(a[j], own + ((k + j * 16) ^ g * 16));
                wgmma_fence();
#pragma unroll
                for (int j = 0; j < LOT; ++j) wgmma<T, ROWS>(sum, a[j], of_x(k + j * 16), adds || k + j > 0);
                wgmma_commit();
                if (k > 0) wgmma_wait<1>();  // the fragments that are made next are free
            }
            wgmma_wait<0>();
        } else {
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEEP; k += 16)
                wgmma<T, ROWS>(sum, advance(k_major<SPAN>(rows, 8 * SPAN), k * sizeof(W)), of_x(k), adds || k > 0);
            wgmma_commit();
        }
    }

  private:
    // Sixteen columns of x, from column k of the step on.
    __device__ __forceinline__ unsigned long long of_x(int k) const {
        constexpr int OF_ONE = SPAN / sizeof(T);
        return advance(k_major<SPAN>(place + OF_WEIGHTS + k / OF_ONE * OF_BOX, 8 * SPAN), k % OF_ONE * sizeof(T));
    }
    // Sixteen columns of rows g and g + 8 of int8: of each of two lots of eight this lane's two.
    __device__ __forceinline__ static void load_fragment(unsigned (&a)[4], const unsigned char* own) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            a[i] = two_bytes<T>(*reinterpret_cast<const unsigned short*>(own + i % 2 * 8 * SPAN + i / 2 * 8), 0);
    }
};

// What sums are multiplied with: the scale of each row of W of a tile, where W is of int8, and of each row of x, where it has one. They are
// far away, so they come to shared memory while the products are made.
template <class W, int ROWS, int GROUPS> struct Factors {
    static constexpr int M = 64 * GROUPS;
    float of_weight[is_int8<W> ? M : 1], of_x[is_int8<W> ? ROWS : 1];

    // All threads that multiply; the scales of weights are nobody's result.
    __device__ __forceinline__ void bring(const float* scale, int tile, int N, int gated) {
        if constexpr (is_int8<W>) {
            int i = threadIdx.x;
            if (i < ROWS) of_x[i] = 1.0f;
            if (i >= M) return;
            int n = gated ? tile * (M / 2) + i % (M / 2) : tile * M + i;
            of_weight[i] = n < N ? scale[gated && i >= M / 2 ? N + n : n] : 0.0f;
        }
    }
    __device__ __forceinline__ float at(int r, int i) const {
        if constexpr (is_int8<W>) return of_x[r] * of_weight[i];
        else return 1.0f;
    }
};

// Four neighbours, or as many of them as there are: by one load where they lie well.
template <class T> __device__ __forceinline__ void load_four(float (&v)[4], const T* from, int there) {
    T four[4] = {};
    if (there >= 4 && reinterpret_cast<size_t>(from) % 8 == 0) {
        uint2 raw = *reinterpret_cast<const uint2*>(from);
        memcpy(static_cast<void*>(four), &raw, 8);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (i < there) four[i] = from[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = to_math(four[i]);
}

// The sums of a tile, those of each block of the cluster in its own shared memory: of each row of x its M rows of W. Rows are 4 banks
// apart, so that the lanes of a fragment store to all banks.
template <int ROWS, int GROUPS> struct TileSums {
    static constexpr int M = 64 * GROUPS, ROW = M + 4, BYTES = ROWS * ROW * 4;
    float* x;
    const Stand& stand;

    __device__ __forceinline__ void store(const float (&sum)[ROWS / 2]) const {
        int first = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, r = threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < ROWS / 2; ++i) x[(i / 4 * 8 + r + i % 2) * ROW + first + i % 4 / 2 * 8] = sum[i];
    }

    // Of row r of x: four neighbouring rows of W, those of all blocks added up, in their order.
    __device__ __forceinline__ float4 all(int r, int i) const {
        if (stand.parts == 1) return *reinterpret_cast<const float4*>(x + r * ROW + i);
        float4 sum = {};
#pragma unroll 4
        for (int other = 0; other < stand.parts; ++other) {
            float4 part = *reinterpret_cast<const float4*>(stand.cluster.map_shared_rank(x, stand.rank_of(other)) + r * ROW + i);
            sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
        return sum;
    }

    // Four neighbouring cells of y, row r, columns n to n + 3, which are i to i + 3 of the tile.
    template <class W, class T>
    __device__ __forceinline__ void cells(float (&cell)[4], const Factors<W, ROWS, GROUPS>& factors, const T* residual, int gated, int r, int i,
                                          int n, int N) const {
        // What comes from far is asked for before the sums of other blocks.
        float add[4] = {};
        if (residual) load_four(add, residual + 1ll * r * N + n, N - n);
        float4 first = all(r, i), second = gated ? all(r, i + M / 2) : float4{};
        float up[4] = {second.x, second.y, second.z, second.w};
        cell[0] = first.x, cell[1] = first.y, cell[2] = first.z, cell[3] = first.w;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            cell[c] *= factors.at(r, i + c);
            if (gated) cell[c] *= quick_sigmoid(cell[c]) * up[c] * factors.at(r, i + M / 2 + c);
            cell[c] += add[c];
        }
    }

    // This block's share of the tile's cells of y, four neighbours a thread.
    template <class W, class T>
    __device__ __forceinline__ void end(const Columns<T>& to, const Factors<W, ROWS, GROUPS>& factors, const T* residual, int gated) const {
        constexpr int THREADS = MULTIPLIERS<GROUPS>;
        int wide = gated ? M / 2 : M;
#pragma unroll 2
        for (int e = stand.part * THREADS + threadIdx.x; e < to.R * wide / 4; e += stand.parts * THREADS) {
            int r = gated ? e / (M / 8) : e / (M / 4), i = (gated ? e % (M / 8) : e % (M / 4)) * 4, n = stand.tile * wide + i;
            if (n >= to.N) continue;
            float cell[4];
            cells(cell, factors, residual, gated, r, i, n, to.N);
            to.store_four(r, n, cell);
        }
    }
};

}  // namespace lab
#endif
