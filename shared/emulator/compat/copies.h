// Asynchronous copies under their several names: each thread of a group sends its part on its way, as cp.async does, and
// whoever waits for it has it. Until then the checks know that it is under way.
#pragma once
#include "emulator.h"

namespace cuda {
// A size that comes with a promise: both addresses are multiples of N as well.
template <size_t N> struct aligned_size_t {
    size_t value;
    __forceinline__ explicit aligned_size_t(size_t n) : value(n) {}
    __forceinline__ operator size_t() const { return value; }
};
}  // namespace cuda

namespace emu {
// What the size promises of both addresses.
template <class Size> constexpr size_t promised_alignment = 1;
template <size_t N> constexpr size_t promised_alignment<cuda::aligned_size_t<N>> = N;
// What the type of the elements does.
template <class T>
constexpr size_t own_alignment = alignof(std::conditional_t<std::is_void<T>::value, char, T>);

#if defined(EMU_ARCH) && EMU_ARCH < 800
// There is no cp.async: CUDA's own headers copy now.
constexpr bool has_async_copy = false;
#else
constexpr bool has_async_copy = true;
#endif

// 4, 8 or 16 bytes at once: as many as the addresses allow, which must be multiples of ALIGNMENT, and of no more. What allows
// no four bytes is copied now, as GPUs do it.
template <size_t ALIGNMENT>
__forceinline__ void copy_async(size_t rank, size_t threads, void* to, const void* from, size_t bytes) {
    constexpr size_t NEEDED = ALIGNMENT < 16 ? ALIGNMENT : 16;
    auto* target = static_cast<char*>(to);
    auto* source = static_cast<const char*>(from);
    size_t together = uintptr_t(to) | uintptr_t(from) | bytes, unit = 16;
    while (unit > NEEDED && together % unit != 0) unit /= 2;
    if (has_async_copy && unit >= 4) {
        for (size_t i = rank * unit; i < bytes; i += threads * unit)
            emu_async_copy_aligned(target + i, source + i, uint32_t(unit), NEEDED);
    } else if constexpr (NEEDED >= 4) {
        for (size_t i = rank * NEEDED; i < bytes; i += threads * NEEDED)
            copy_words<NEEDED>(target + i, source + i);
    } else {
        for (size_t i = rank; i < bytes; i += threads) target[i] = source[i];
    }
}
// As cuda::memcpy_async has it: what the type promises, and what the size does.
template <class T, class Size>
__forceinline__ void memcpy_async(size_t rank, size_t threads, T* to, const T* from, Size size) {
    constexpr size_t own = own_alignment<T>, promised = promised_alignment<Size>;
    copy_async<(own > promised ? own : promised)>(rank, threads, to, from, size);
}
}  // namespace emu
