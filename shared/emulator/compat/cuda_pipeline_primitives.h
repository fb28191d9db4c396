// The pipeline of one thread as functions of C.
#pragma once
#include "copies.h"

// One cp.async: both addresses are multiples of `bytes`. The last `zeros` of them are not read.
__forceinline__ void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
    if (bytes != 4 && bytes != 8 && bytes != 16) emu_trap("__pipeline_memcpy_async: expected 4, 8 or 16 bytes");
    if (zeros > bytes) emu_trap("__pipeline_memcpy_async: expected no more zeros than bytes");
    auto* target = static_cast<char*>(to);
    auto* source = static_cast<const char*>(from);
    if (emu::has_async_copy) {
        emu_async_copy_aligned(to, from, uint32_t(bytes - zeros), uint32_t(bytes));
    } else if (zeros > 0) {
        for (size_t i = 0; i < bytes - zeros; ++i) target[i] = source[i];
    } else {
        if (bytes == 4) emu::copy_words<4>(to, from);
        else if (bytes == 8) emu::copy_words<8>(to, from);
        else emu::copy_words<16>(to, from);
    }
    for (size_t i = bytes - zeros; i < bytes; ++i) target[i] = 0;
}
__forceinline__ void __pipeline_commit() { emu_async_commit(); }
__forceinline__ void __pipeline_wait_prior(unsigned prior) { emu_async_wait(prior); }
