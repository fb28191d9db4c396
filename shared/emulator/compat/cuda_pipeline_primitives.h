// The pipeline of one thread as functions of C.
#pragma once
#include "copies.h"

__forceinline__ void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
    // The last `zeros` bytes are not read.
    emu::copy_async(0, 1, to, from, bytes - zeros);
    for (size_t i = bytes - zeros; i < bytes; ++i) static_cast<char*>(to)[i] = 0;
}
__forceinline__ void __pipeline_commit() { emu_async_commit(); }
__forceinline__ void __pipeline_wait_prior(unsigned prior) { emu_async_wait(prior); }
