// The product on the tensor cores: W from memory into fragments, the partial sums of warps, and their end.
//
//     yᵀ = W xᵀ:   A = 16 rows of W,  B = 8 rows of x,  C = 16 x 8 of yᵀ      (mma.sync m16n8k16, sums in f32)
//
// A sum over k may take its columns in any order, if A and B agree: lane (g, t) of a fragment holds four columns of rows g and
// g + 8, whichever these are. So it loads 16 contiguous bytes of each row, and these are its columns of as many products as they
// hold: 2 of halves, 4 of int8.
//
// Gated, rows g of a fragment are those of gate and rows g + 8 the same columns of up.
#pragma once
#include "few_rows.cuh"
#include "lab/halves.cuh"

namespace lab {

constexpr int WARPS = 8, THREADS = 32 * WARPS, HIGH = 16;  // rows of W of a tile

// Columns of y of a tile.
__device__ __forceinline__ int wide_of(int gated) { return gated ? HIGH / 2 : HIGH; }

// Two elements of a pack, from element 2 i on, as a fragment has them.
template <class T, class W> __device__ __forceinline__ unsigned two_of(const unsigned (&words)[4], int i) {
    if constexpr (!is_int8<W>) return words[i];
    else return two_bytes<T>(words[i / 2], i % 2);
}

// A lane's part of a step: two packs of each of its two rows.
struct Part {
    uint4 low[2], high[2];
};

// The two rows of W of a lane: those of block-wide tile `tile`. Rows past the end are the last one again; nobody stores their sums.
template <class W> struct Rows {
    static constexpr int E = OF_PACK<W>, STEP = 8 * E;  // columns of a step
    const W *low, *high;
    int K;

    __device__ __forceinline__ Rows(const W* weight, int tile, int N, int K, int gated, int g) : K(K) {
        int n = tile * wide_of(gated) + g, first = min(n, N - 1);
        low = weight + 1ll * first * K;
        high = weight + 1ll * (gated ? first + N : min(n + 8, N - 1)) * K;
    }

    __device__ __forceinline__ Part load(int step, int t) const {
        Part part;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            int k = step * STEP + p * 4 * E + t * E;
            bool inside = k < K;
            part.low[p] = inside ? load_once(low + k) : uint4{0, 0, 0, 0};
            part.high[p] = inside ? load_once(high + k) : uint4{0, 0, 0, 0};
        }
        return part;
    }
};

// Eight columns of a lane, from element q of its packs on: two products with each tile of x, of which x_of(n) are the same columns.
template <class T, class W, int TILES, class X>
__device__ __forceinline__ void multiply_eight(float (&c)[TILES][4], const unsigned (&low)[4], const unsigned (&high)[4], int q,
                                               X x_of) {
    unsigned a[2][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        a[j / 2][j % 2 * 2] = two_of<T, W>(low, q / 2 + j);
        a[j / 2][j % 2 * 2 + 1] = two_of<T, W>(high, q / 2 + j);
    }
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
        uint4 b = x_of(n);
        multiply_add<T>(c[n], a[0], b.x, b.y);
        multiply_add<T>(c[n], a[1], b.z, b.w);
    }
}

// c += W xᵀ over the columns of a step. `x` is row g of each tile of eight, from column 0 on.
template <class T, class W, int TILES>
__device__ __forceinline__ void multiply(float (&c)[TILES][4], const Part& part, const T* x, int R, int K, int step, int g, int t) {
    constexpr int E = OF_PACK<W>;
    [[maybe_unused]] constexpr int AT_ONCE = TILES > 4 ? 1 : 2;  // else the compiler asks for more of x than registers hold
#pragma unroll AT_ONCE
    for (int p = 0; p < 2; ++p) {
        int k = step * Rows<W>::STEP + p * 4 * E + t * E;
        uint4 l = p == 0 ? part.low[0] : part.low[1], h = p == 0 ? part.high[0] : part.high[1];
        unsigned low[4] = {l.x, l.y, l.z, l.w}, high[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
        for (int q = 0; q < E; q += 8) {
            multiply_eight<T, W>(c, low, high, q, [&](int n) {
                bool inside = n * 8 + g < R && k < K;
                return inside ? *reinterpret_cast<const uint4*>(x + 8ll * n * K + k + q) : uint4{0, 0, 0, 0};
            });
        }
    }
}

// The same of x in shared memory, whose rows are ROW elements apart and end with zeros: no lane asks where they end.
template <class T, class W, int TILES, int ROW>
__device__ __forceinline__ void multiply_shared(float (&c)[TILES][4], const Part& part, const T* x, int step, int g, int t) {
    constexpr int E = OF_PACK<W>;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
        const T* own = x + g * ROW + step * Rows<W>::STEP + p * 4 * E + t * E;
        unsigned low[4] = {part.low[p].x, part.low[p].y, part.low[p].z, part.low[p].w};
        unsigned high[4] = {part.high[p].x, part.high[p].y, part.high[p].z, part.high[p].w};
#pragma unroll
        for (int q = 0; q < E; q += 8) {
            multiply_eight<T, W>(c, low, high, q,
                                 [&](int n) { return *reinterpret_cast<const uint4*>(own + n * 8 * ROW + q); });
        }
    }
}

// Of each warp its sums over k.
template <int TILES> struct Sums {
    float of_warp[WARPS][TILES * 8][HIGH + 1];

    __device__ __forceinline__ void put(const float (&c)[TILES][4], int warp, int g, int t) {
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) of_warp[warp][n * 8 + 2 * t + i % 2][g + i / 2 * 8] = c[n][i];
    }
    // In the order of the warps.
    __device__ __forceinline__ float all(int r, int i) const {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += of_warp[w][r][i];
        return sum;
    }
};

// The columns of y that a tile has.
template <class W, class T, class S>
__device__ __forceinline__ void store_rows(const S& sums, int tile, const float* scale, const T* residual, T* y, int R,
                                           int N, int has_residual, int gated, int p1, int p2, int p3, int p4) {
    int wide = wide_of(gated);
    for (int e = threadIdx.x; e < R * wide; e += THREADS) {
        int r = e / wide, i = e % wide, n = tile * wide + i;
        if (n >= N) continue;
        float sum = sums.all(r, i) * scale_of<W>(scale, n);
        if (gated) sum *= quick_sigmoid(sum) * sums.all(r, i + 8) * scale_of<W>(scale, N + n);
        if (has_residual) sum += to_math(residual[1ll * r * N + n]);
        y[cell_of(r, n, R, N, p1, p2, p3, p4)] = from_math<T>(sum);
    }
}

// The same of columns that are a mixer's gates: heads of i from column p4 on, then those of f.
template <class W, class T, class S>
__device__ __forceinline__ void store_gates(const S& sums, int tile, const float* scale, const T* bias, float* gates, int R,
                                            int N, int heads, float cap, int p4) {
    for (int e = threadIdx.x; e < R * HIGH; e += THREADS) {
        int r = e / HIGH, i = e % HIGH, n = tile * HIGH + i, c = n - p4;
        if (c < 0 || c >= 2 * heads || n >= N) continue;
        float a = sums.all(r, i) * scale_of<W>(scale, n) + to_math(bias[c]);
        gates[(c / heads * R + r) * heads + c % heads] = cap * tanhf(a / cap);
    }
}

}  // namespace lab
