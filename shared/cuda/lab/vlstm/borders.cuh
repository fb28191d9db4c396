// States at borders between stretches, in device memory, for a backward pass that makes all stretches at once.
//
// Each is [columns of V, as many as blocks have][KEY], rounded. In f16, which holds nothing above 65504, each 64 columns of V are
// divided by a power of two, `scales` [state][64 columns].
#pragma once
#include "lab/vlstm/state.cuh"

namespace lab {

// The power of two below the largest element, which so becomes 1 to 2. It stays within 2^-40 and 2^40: then f32 holds the
// quotient of two of them.
__device__ __forceinline__ float scale_of(float largest) {
    float power = __int_as_float(__float_as_int(largest) & 0x7f800000);
    return fminf(fmaxf(power, 0x1p-40f), 0x1p40f);
}

// Words of four lanes that follow each other: the n-th lane gets the n-th word of each of them.
__device__ __forceinline__ void transpose_of_four(unsigned (&words)[4]) {
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
        bool upper = threadIdx.x & d;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n & d) continue;
            unsigned other = __shfl_xor_sync(0xffffffff, upper ? words[n] : words[n | d], d);
            words[n] = upper ? other : words[n], words[n | d] = upper ? words[n | d] : other;
        }
    }
}

// A State whose elements go to memory.
template <class T, int KEY, class Base> struct StoredState : Base {
    using Base::c, Base::key_of, Base::value_of, Base::warp, Base::lane;

    // What the warpgroup's state is divided by, in f16; `room` has four floats.
    __device__ __forceinline__ float scale_in_memory(float* room, int barrier) const {
        float largest = 0;
#pragma unroll
        for (int n = 0; n < KEY / 2; ++n) largest = fmaxf(largest, fabsf(c[n]));
        largest = warp_reduce(largest, Max());
        if (lane() == 0) room[warp()] = largest;
        named_barrier_sync(barrier, 128);  // the largest of all warps are written
        return scale_of(fmaxf(fmaxf(room[0], room[1]), fmaxf(room[2], room[3])));
    }

    // ANCHOR: store_rows
    // C, times `down` and rounded, to rows of KEY keys. Four lanes hold the keys of a row in turn, two at a time. They trade
    // words, so that each stores 16 bytes: of 4 a store would touch half a sector of each row.
    __device__ __forceinline__ void store_rows(T* to, float down) const {
#pragma unroll
        for (int n = 0; n < KEY / 2; n += 16)
#pragma unroll
            for (int r = 0; r < 4; r += 2) {
                unsigned words[4];
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    int at = n + 4 * w + r;
                    words[w] = is_f16<T> ? two_halves<T>(c[at] * down, c[at + 1] * down) : two_halves<T>(c[at], c[at + 1]);
                }
                transpose_of_four(words);
                auto* row = reinterpret_cast<uint4*>(to + value_of(r) * KEY + n * 2);
                row[lane() % 4] = make_uint4(words[0], words[1], words[2], words[3]);
            }
    }
    // ANCHOR_END: store_rows
};

}  // namespace lab
