// Packs: 16 bytes of elements, moved by one instruction a thread.
//
// A warp that loads 16 bytes a lane asks for 512 contiguous bytes, 16 sectors, in one request: the
// widest there is. The address must be a multiple of 16 bytes.
#pragma once
#include "lab/scalar.cuh"

namespace lab {

template <class T> struct Pack {
    static constexpr int N = 16 / sizeof(T);
    math_t<T> v[N];
};

// The 16 bytes as they are, and what they come to.
template <class T> struct Raw {
    uint4 bytes;
};
template <class T> __device__ __forceinline__ Raw<T> load_raw(const T* from) {
    return {*reinterpret_cast<const uint4*>(from)};
}
template <class T> __device__ __forceinline__ Pack<T> in_math(const Raw<T>& raw) {
    T element[Pack<T>::N];
    memcpy(element, &raw.bytes, 16);
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < Pack<T>::N; ++i) pack.v[i] = to_math(element[i]);
    return pack;
}

template <class T> __device__ __forceinline__ Pack<T> load_pack(const T* from) {
    return in_math(load_raw(from));
}

template <class T> __device__ __forceinline__ void store_pack(T* to, const Pack<T>& pack) {
    T element[Pack<T>::N];
#pragma unroll
    for (int i = 0; i < Pack<T>::N; ++i) element[i] = from_math<T>(pack.v[i]);
    uint4 raw;
    memcpy(static_cast<void*>(&raw), element, 16);
    *reinterpret_cast<uint4*>(to) = raw;
}

}  // namespace lab
