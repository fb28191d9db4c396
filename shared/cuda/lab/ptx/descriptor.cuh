// Matrix descriptors, sm_90a: where wgmma finds an operand in shared memory. PTX ISA, "Asynchronous
// Warpgroup Level Matrix Shared Memory Layout", "Matrix Descriptor Format".
//
// An operand is rows of A, or columns of B, by k. K-major: neighbours along k lie side by side, SPAN bytes
// of them; 8 rows follow each other, SPAN bytes apart; the next 8 rows lie `stride` bytes on. A step of 32
// bytes of k is 32 bytes further on. (Without a swizzle SPAN is 16, and `leading` is how far the next 16
// bytes of k lie.)
//
// Transposed (halves only): consecutive rows lie side by side, SPAN bytes of them; 8 steps of k
// follow each other, SPAN bytes apart; the next 8 steps lie `stride` bytes on, the next panel of SPAN
// bytes of rows `leading` bytes on. (Without a swizzle it is the other way round.)
//
// A swizzle mixes the number of a 16-byte chunk in its span with the number of the 128 bytes that it lies
// in, by address bits: chunk ^= address / 128 % (SPAN / 16). So tiles begin at multiples of 8 SPAN bytes,
// and whoever writes a tile by plain stores swizzles alike.
#pragma once
#include "lab/ptx/cluster.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// An address of this block's shared memory, as descriptors have it.
__device__ __forceinline__ unsigned shared_window_address(const void* shared) {
#ifdef LAB_EMULATOR
    return emu_shared_window(shared);
#else
    return shared_address(shared);
#endif
}

// Of an operand that begins at `tile`, with spans of SPAN bytes: 128, 64, 32, or 16 for no swizzle;
// `leading` and `stride` in bytes, multiples of 16. In a cluster the bits above 18 say which block.
template <int SPAN>
__device__ __forceinline__ unsigned long long descriptor(const void* tile, unsigned leading,
                                                         unsigned stride) {
    static_assert(SPAN == 128 || SPAN == 64 || SPAN == 32 || SPAN == 16, "bytes of a span");
    constexpr unsigned long long MODE = SPAN == 128 ? 1 : SPAN == 64 ? 2 : SPAN == 32 ? 3 : 0;
    unsigned long long start = (shared_window_address(tile) & 0x3FFFF) >> 4;
    return start | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 |
           MODE << 62;
}

// Of a swizzled operand, K-major: the next 8 rows `stride` bytes on.
template <int SPAN>
__device__ __forceinline__ unsigned long long k_major(const void* tile, unsigned stride) {
    static_assert(SPAN > 16, "with a swizzle `leading` is not looked at");
    return descriptor<SPAN>(tile, 16, stride);
}

// Of a swizzled one, transposed: the next panel of SPAN bytes of rows `panel` bytes on, the next 8 steps of k
// `stride` bytes.
template <int SPAN>
__device__ __forceinline__ unsigned long long mn_major(const void* tile, unsigned panel, unsigned stride) {
    static_assert(SPAN > 16, "without a swizzle the two are the other way round");
    return descriptor<SPAN>(tile, panel, stride);
}

// The descriptor `bytes` further on.
__device__ __forceinline__ unsigned long long advance(unsigned long long descriptor, unsigned bytes) {
    return descriptor + (bytes >> 4);
}

}  // namespace lab
#endif
