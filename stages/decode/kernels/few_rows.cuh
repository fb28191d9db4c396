// What the products of few rows share: elements of 16 bytes, and the place and the last steps of a cell of y.
//
//     y_rn = s_n Σ_k W_nk x_rk + residual_rn        s_n: the scale of an output channel, where W is of int8
#pragma once
#include "lab/halves.cuh"
#include "lab/pack.cuh"
#include "lab/ptx/load_once.cuh"
#include "lab/ptx/prmt.cuh"
#include "lab/quick.cuh"
#include "lab/reduce.cuh"

namespace lab {

template <class W> constexpr bool is_int8 = sizeof(W) == 1;
// Elements of 16 bytes of a row of W.
template <class W> constexpr int OF_PACK = 16 / sizeof(W);

// ANCHOR: signed_byte
// Byte i of a word as a signed number. 2²³ + u is a float whose last digits are u: no conversion, which has a sixteenth of
// the throughput of an addition.
__device__ __forceinline__ float signed_byte(unsigned word, int i) {
    unsigned u = (word ^ 0x80808080u) >> (8 * i) & 0xffu;
    return __uint_as_float(0x4b000000u | u) - 8388736.0f;  // 2²³ + 128
}
// ANCHOR_END: signed_byte

// ANCHOR: two_bytes
// Bytes 2 i and 2 i + 1 of a word as two halves, exactly. Of f16 a byte u, its sign bit turned, becomes the last digits of 1024. A bf16 has
// a digit too few for that: there the seven lower bits m are digits of 128, and the sign bit makes another 128 a 256. 128 + m - 256 is
// what a byte with sign stands for.
template <class T> __device__ __forceinline__ unsigned two_bytes(unsigned word, int i) {
    unsigned selector = i == 0 ? 0x4140 : 0x4342;  // a byte of the word, one of the constant, twice
    if constexpr (is_f16<T>) {
        return subtract_halves<T>(permute_bytes(word ^ 0x80808080u, 0x64646464u, selector), 0x64806480u);
    } else {
        unsigned both = permute_bytes(word, 0x43434343u, selector);
        return subtract_halves<T>(both & 0xff7fff7fu, both & 0xff80ff80u);
    }
}
// ANCHOR_END: two_bytes

// 16 bytes of W as floats.
template <class W> __device__ __forceinline__ void widen(float (&v)[OF_PACK<W>], const uint4& raw) {
    if constexpr (is_int8<W>) {
        unsigned word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 16; ++i) v[i] = signed_byte(word[i / 4], i % 4);
    } else {
        Pack<W> pack = in_math(Raw<W>{raw});
#pragma unroll
        for (int i = 0; i < OF_PACK<W>; ++i) v[i] = pack.v[i];
    }
}

// N elements of x as floats, from 16-byte loads.
template <int N, class T> __device__ __forceinline__ void load_x(float (&v)[N], const T* from) {
#pragma unroll
    for (int p = 0; p < N / Pack<T>::N; ++p) {
        Pack<T> pack = load_pack(from + p * Pack<T>::N);
#pragma unroll
        for (int i = 0; i < Pack<T>::N; ++i) v[p * Pack<T>::N + i] = pack.v[i];
    }
}

// Where y has row r, column n. It has up to five parts of columns, each a matrix of R rows by itself: they begin at columns
// 0, p1, p2, p3 and p4, and parts that are not there begin at N.
__device__ __forceinline__ long long cell_of(int r, int n, int R, int N, int p1, int p2, int p3, int p4) {
    int begin = 0, end = p1;
    if (n >= p1) begin = p1, end = p2;
    if (n >= p2) begin = p2, end = p3;
    if (n >= p3) begin = p3, end = p4;
    if (n >= p4) begin = p4, end = N;
    return 1ll * R * begin + 1ll * r * (end - begin) + n - begin;
}

// The scale of channel n: 1 where W is no int8.
template <class W> __device__ __forceinline__ float scale_of(const float* scale, int n) {
    if constexpr (is_int8<W>) return scale[n];
    else return 1.0f;
}

// Where the columns of y go: those of its parts to their places, and those from p4 on, where they are a mixer's gates, to these: heads of i,
// then those of f.
template <class T> struct Columns {
    T* y;
    float* gates;
    const T* bias;
    int R, N, heads;
    float cap;
    int p1, p2, p3, p4;

    // Row r, column n.
    __device__ __forceinline__ void store(int r, int n, float sum) const {
        int gate = n - p4;
        if (!heads || gate < 0) {
            y[cell(r, n)] = from_math<T>(sum);
        } else if (gate < 2 * heads) {
            float a = sum + to_math(bias[gate]);
            gates[(gate / heads * R + r) * heads + gate % heads] = cap * tanhf(a / cap);
        }
    }
    // Four columns from n on, of halves: by one store where they lie side by side.
    __device__ __forceinline__ void store_four(int r, int n, const float (&sum)[4]) const {
        if (n + 3 < in_y()) {
            T* place = y + cell(r, n);
            if (y + cell(r, n + 3) == place + 3 && reinterpret_cast<size_t>(place) % 8 == 0) {
                *reinterpret_cast<uint2*>(place) = {two_halves<T>(sum[0], sum[1]), two_halves<T>(sum[2], sum[3])};
                return;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (n + i < N) store(r, n + i, sum[i]);
    }

  private:
    __device__ __forceinline__ int in_y() const { return heads ? p4 : N; }
    __device__ __forceinline__ long long cell(int r, int n) const { return cell_of(r, n, R, in_y(), p1, p2, p3, p4); }
};

}  // namespace lab
