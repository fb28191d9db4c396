// What tensor_chunks.cu is made of: a warp's products.
//
// A warp has 16 positions, and half of the keys. Of a product a lane has rows own_row and 8 more.
#pragma once
#include "gathered.cuh"
#include "lab/reduce.cuh"

namespace lab {

// Before a head's first columns: its gates, and sums from 0 on.
template <class T, int KEY>
__device__ __forceinline__ void start_head(Gathered<T, KEY>& shared, float& inner, const float* g, const float* beta,
                                           int first, int end) {
    if (threadIdx.x < 32) scan_gates(shared.gamma, shared.decays, g, beta, first, end);
    int i = threadIdx.x % CHUNK, half = threadIdx.x / CHUNK;
    if (half < 2) shared.of_gate[half][i] = shared.of_beta[half][i] = 0;
    inner = 0;
}

// Adds sums of a lane's two rows, over all lanes that have a part of them, to those of the half's keys.
__device__ __forceinline__ void add_rows(float (&to)[2][CHUNK], float2 of) {
    Part own;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float sum = warp_reduce<4>(r == 0 ? of.x : of.y, Add());
        if (own.pair == 0) to[own.half][own.own_row + 8 * r] += sum;  // always by this lane
    }
}

// ANCHOR: pairs
// A warp's 16 rows of dS, or of Z in the other half of the warps, as a left operand. Adds dR·v to dbeta.
template <class T, int KEY>
__device__ __forceinline__ void make_pairs(unsigned (&pairs)[CHUNK / 16][4], Gathered<T, KEY>& shared, int columns,
                                           float scale) {
    Part own;
    int r = own.row;
    float sum[CHUNK / 2] = {}, of_beta[2] = {};
#pragma unroll 1
    for (int c = 0; c < columns; c += 16) {
        unsigned a[4], b[4];
        if (own.half == 0) {
            load_left(a, shared.heard.dh[c / PANEL], r, c % PANEL);
        } else {
            load_left_turned(a, shared.heard.rest[0], r, c);
            load_left(b, shared.v[c / PANEL], r, c % PANEL);
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                float2 of_rest = floats_of<T>(a[w]), v = floats_of<T>(b[w]);
                of_beta[w % 2] += of_rest.x * v.x + of_rest.y * v.y;
            }
        }
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16) {
            if (j > r) continue;
            load_right(b, shared.values[0], c, j);
            multiply_add_16<T>(sum + j / 2, a, b);
        }
    }
    add_rows(shared.of_beta, make_float2(of_beta[0], of_beta[1]));
    int later = own.half;  // of Z, pairs with oneself do not count
    float by = own.half == 0 ? scale : -1;
#pragma unroll
    for (int n = 0; n < CHUNK / 2; ++n) {
        int i = own.own_row + n / 2 % 2 * 8, j = n / 4 * 8 + own.pair + n % 2;
        sum[n] = j + later <= i ? by * sum[n] * decay(shared.gamma, i, j) : 0;
    }
    round_pairs<T>(pairs, sum);
}

// To where all warps read them.
template <class T, int KEY>
__device__ __forceinline__ void store_pairs(const unsigned (&pairs)[CHUNK / 16][4], Gathered<T, KEY>& shared) {
    Part own;
#pragma unroll
    for (int j = 0; j < CHUNK; j += 16)
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            int r = own.own_row + w % 2 * 8, c = j + w / 2 * 8 + own.pair;
            *reinterpret_cast<unsigned*>(cell(shared.pairs[own.half], r, c)) = pairs[j / 16][w];
        }
}
// ANCHOR_END: pairs

// ANCHOR: products
// x += dH Cᵀ and y += dR Cᵀ of a slice of C, whose first column of V is `from`. Past the last column all are zeros.
template <class T, int KEY, int CELLS>
__device__ __forceinline__ void add_reads(float (&x)[KEY / 4], float (&y)[KEY / 4], Gathered<T, KEY>& shared,
                                          T (&slice)[KEY / PANEL][CELLS], int from) {
    Part own;
#pragma unroll 1
    for (int k = 0; k < CELLS / PANEL; k += 16) {
        int c = from + k, r = own.row;
        unsigned a[4], of_rest[4], b[4];
        load_left(a, shared.heard.dh[c / PANEL], r, c % PANEL);
        load_left_turned(of_rest, shared.heard.rest[0], r, c);
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 16) {
            int column = own.half * (KEY / 2) + n;
            load_right(b, slice[column / PANEL], k, column % PANEL);
            multiply_add_16<T>(x + n / 2, a, b);
            multiply_add_16<T>(y + n / 2, of_rest, b);
        }
    }
}

// w += U dC⁺ᵀ, likewise.
template <class T, int KEY, int CELLS>
__device__ __forceinline__ void add_writes(float (&w)[KEY / 4], Gathered<T, KEY>& shared, T (&slice)[KEY / PANEL][CELLS],
                                           int from) {
    Part own;
#pragma unroll
    for (int k = 0; k < CELLS / PANEL; k += 16) {
        unsigned a[4], b[4];
        load_left_turned(a, shared.values[0], own.row, from + k);
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 16) {
            int column = own.half * (KEY / 2) + n;
            load_right(b, slice[column / PANEL], k, column % PANEL);
            multiply_add_16<T>(w + n / 2, a, b);
        }
    }
}

// x += dS K and y += Z K: of positions up to a row's own.
template <class T, int KEY>
__device__ __forceinline__ void add_earlier(float (&x)[KEY / 4], float (&y)[KEY / 4], Gathered<T, KEY>& shared) {
    Part own;
#pragma unroll 1
    for (int j = 0; j <= own.row; j += 16) {
        unsigned a[4], z[4], b[4];
        load_left(a, shared.pairs[0], own.row, j);
        load_left(z, shared.pairs[1], own.row, j);
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 16) {
            int column = own.half * (KEY / 2) + n;
            load_right(b, shared.k[column / PANEL], j, column % PANEL);
            multiply_add_16<T>(x + n / 2, a, b);
            multiply_add_16<T>(y + n / 2, z, b);
        }
    }
}

// w += dSᵀ Q + Gᵀ K: of later positions.
template <class T, int KEY>
__device__ __forceinline__ void add_later(float (&w)[KEY / 4], Gathered<T, KEY>& shared) {
    Part own;
#pragma unroll 1
    for (int i = own.row; i < CHUNK; i += 16) {
        unsigned a[4], z[4], b[4];
        load_left_turned(a, shared.pairs[0], own.row, i);
        load_left_turned(z, shared.pairs[1], own.row, i);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            float2 of = floats_of<T>(z[m]);
            float2 beta = *reinterpret_cast<const float2*>(shared.decays.beta + i + m / 2 * 8 + own.pair);
            z[m] = two_halves<T>(beta.x * of.x, beta.y * of.y);  // of G
        }
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 16) {
            int column = own.half * (KEY / 2) + n;
            load_right(b, shared.q[column / PANEL], i, column % PANEL);
            multiply_add_16<T>(w + n / 2, a, b);
        }
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 16) {
            int column = own.half * (KEY / 2) + n;
            load_right(b, shared.k[column / PANEL], i, column % PANEL);
            multiply_add_16<T>(w + n / 2, z, b);
        }
    }
}
// ANCHOR_END: products

// x times `by`, and a factor of each position.
template <int N> __device__ __forceinline__ void scale_rows(float (&x)[N], const float (&rows)[CHUNK], float by) {
    Part own;
    float factor[2] = {rows[own.own_row], rows[own.own_row + 8]};
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] = by * keep(factor[n / 2 % 2], x[n]);
}

// Of row·x, over a lane's own keys: the sums of its two rows, times `sign`.
template <class T, int PANELS, int N>
__device__ __forceinline__ float2 dots(const float (&x)[N], T (&panels)[PANELS][CHUNK * PANEL], float sign) {
    float sum[2] = {};
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        Part own;
        int column = own.half * 2 * N + n / 4 * 8 + own.pair, r = n / 2 % 2;
        unsigned word = *reinterpret_cast<const unsigned*>(cell(panels[column / PANEL], own.own_row + 8 * r, column % PANEL));
        float2 of = floats_of<T>(word);
        sum[r] += of.x * x[n] + of.y * x[n + 1];
    }
    return make_float2(sign * sum[0], sign * sum[1]);
}

// A chunk's rows of a gradient, which are a sum over `turns` turns; f32 until the last.
template <class T> struct Rows {
    T* to;
    float* sum;
    int columns, length, turns;

    template <int N> __device__ __forceinline__ void store(float (&x)[N], int turn) const {
#pragma unroll
        for (int n = 0; n < N; n += 8) {
            Part own;
            int column = own.half * 2 * N + 2 * n;
            if (column >= columns) continue;
            unsigned words[4];
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                int r = own.own_row + w % 2 * 8, c = column + w / 2 * 8 + own.pair;
                float2* kept = reinterpret_cast<float2*>(sum + r * columns + c);
                if (turn > 0 && r < length) x[n + 2 * w] += kept->x, x[n + 2 * w + 1] += kept->y;
                if (turn + 1 < turns && r < length) *kept = make_float2(x[n + 2 * w], x[n + 2 * w + 1]);
                words[w] = two_halves<T>(x[n + 2 * w], x[n + 2 * w + 1]);
            }
            if (turn + 1 == turns)
                store_words(to + own.row * columns + column, columns, words, length - own.row);
        }
    }
};

}  // namespace lab
