// Dynamic shared memory, whose size the launch decides: DYNAMIC_SHARED(float, tile) declares a
// `float* tile` at its start. A macro, for `extern __shared__` alone cannot be redirected to the
// emulator's buffer; on the GPU it is the only form there is. DYNAMIC_TILES begins at a multiple of 1024
// bytes, as tiles that are swizzled do.
#pragma once

#ifdef LAB_EMULATOR
#define DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(emu_dynamic_shared())
#define DYNAMIC_TILES(T, name) DYNAMIC_SHARED(T, name)
#else
#define DYNAMIC_SHARED(T, name)                                      \
    extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    T* name = reinterpret_cast<T*>(dynamic_shared)
#define DYNAMIC_TILES(T, name)                                       \
    extern __shared__ __align__(1024) unsigned char dynamic_tiles[]; \
    T* name = reinterpret_cast<T*>(dynamic_tiles)
#endif
