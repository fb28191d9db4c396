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
template <class Size> constexpr size_t promised_alignment = 1;
template <size_t N> constexpr size_t promised_alignment<cuda::aligned_size_t<N>> = N;

// 4, 8 or 16 bytes at once: as many as is promised, or as the addresses allow. What allows none of these is copied now, as
// GPUs do it.
template <class Size>
__forceinline__ void copy_async(size_t rank, size_t threads, void* to, const void* from, Size size) {
    size_t bytes = size, together = uintptr_t(to) | uintptr_t(from) | bytes, unit = 16;
    if (promised_alignment<Size> < 4) {
        while (unit >= 4 && together % unit != 0) unit /= 2;
    } else if (promised_alignment<Size> < 16) {
        unit = promised_alignment<Size>;
    }
    auto* target = static_cast<char*>(to);
    auto* source = static_cast<const char*>(from);
    if (unit < 4) {
        for (size_t i = rank; i < bytes; i += threads) target[i] = source[i];
        return;
    }
    for (size_t i = rank * unit; i < bytes; i += threads * unit) {
#if defined(EMU_ARCH) && EMU_ARCH < 800
        // There is no cp.async: CUDA's own headers copy now.
        if (unit == 4) copy_words<4>(target + i, source + i);
        else if (unit == 8) copy_words<8>(target + i, source + i);
        else copy_words<16>(target + i, source + i);
#else
        emu_async_copy(target + i, source + i, uint32_t(unit));
#endif
    }
}
}  // namespace emu
