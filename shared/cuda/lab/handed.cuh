// Rows of weights, loaded by several neighbours at a time, which lanes then hand each other as fragments need them.
//
// A multiprocessor takes one line of memory after the other, as often as instructions ask for it and however little of it
// they want. So who loads a word for each lane waits for as many lines as who loads four.
//
// Lane g of a fragment is threadIdx.x % 32 / 4, lane t the rest of it (lab/ptx/mma.cuh). All lanes of a warp call these.
#pragma once
#include "lab/scalar.cuh"

namespace lab {

// Whether rows of H numbers each begin at multiples of BYTES.
template <int BYTES, class T> __device__ __forceinline__ bool lie_at_multiples(const T* rows, int H) {
    return H % (BYTES / int(sizeof(T))) == 0 && reinterpret_cast<size_t>(rows) % BYTES == 0;
}

// Eight halves, if they are there; else zeros.
template <class T> __device__ __forceinline__ uint4 eight_halves(const T* from, bool there) {
    return there ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}

// Of 32 halves of a row, of which the first `left` are there: four times two, those from 2 t, 8 + 2 t, 16 + 2 t and
// 24 + 2 t on.
template <class T> __device__ __forceinline__ uint4 twos_of_row(const T* row, int left) {
    int t = threadIdx.x % 4;
    uint4 own = eight_halves(row + t * 8, t * 8 < left);
    // Lane t has the words 4 t to 4 t + 3, and wants t, 4 + t, 8 + t and 12 + t: a square of words, mirrored.
    auto swap = [](bool upper, unsigned& low, unsigned& high, int lanes) {
        unsigned got = __shfl_xor_sync(0xffffffffu, upper ? low : high, lanes);
        if (upper) low = got;
        else high = got;
    };
    swap(t % 2, own.x, own.y, 1), swap(t % 2, own.z, own.w, 1);
    swap(t / 2, own.x, own.z, 2), swap(t / 2, own.y, own.w, 2);
    return own;
}

// Of 16 halves of a row, of which the first `left` are there: g and g + 8. PACKED: all rows begin at whole words.
template <bool PACKED, class T> __device__ __forceinline__ unsigned two_of_row(const T* row, int left) {
    int g = threadIdx.x % 32 / 4;
    if constexpr (!PACKED) {
        auto halves = reinterpret_cast<const unsigned short*>(row);
        auto half = [&](int i) { return i < left ? unsigned(halves[i]) : 0u; };
        return half(g) | half(g + 8) << 16;
    }
    // An even lane has its first and that of lane g + 1, which has the second of both.
    bool odd = g % 2;
    int at = odd ? g + 7 : g;
    unsigned own = at < left ? *reinterpret_cast<const unsigned*>(row + at) : 0u;
    unsigned others = __shfl_xor_sync(0xffffffffu, own, 4);
    return odd ? others >> 16 | (own & 0xffff0000u) : (own & 0xffffu) | others << 16;
}

// Two rows of 16 halves, `apart` from each other: of both g, and of both g + 8, the first row's in the lower part.
template <bool PACKED, class T> __device__ __forceinline__ uint2 twos_of_rows(const T* rows, long long apart, int left) {
    unsigned first = two_of_row<PACKED>(rows, left), second = two_of_row<PACKED>(rows + apart, left);
    return make_uint2((first & 0xffffu) | second << 16, first >> 16 | (second & 0xffff0000u));
}

}  // namespace lab
