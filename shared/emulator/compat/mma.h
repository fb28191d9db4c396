// nvcuda::wmma, whose fragments of BF16 and TF32 not every GPU has.
#pragma once
#include <cuda_bf16.h>

#include "instructions.h"

namespace emu {
template <class T, class... A> __forceinline__ void multiply_add_on_arch(A&&... a) {
    if constexpr (std::is_same<T, __nv_bfloat16>::value) EMU_NEEDS_wmma_bf16 (void)0;
    if constexpr (std::is_same<T, float>::value) EMU_NEEDS_wmma_tf32 (void)0;
    multiply_add<T>(a...);
}
}  // namespace emu
#define multiply_add multiply_add_on_arch
#include "../include/mma.h"
#undef multiply_add
