// Atomics for a scope. All are the device's here, which is more than a block's and what the system's
// are while no host takes part.
#pragma once
#include "../include/emulator.h"

#define EMU_SCOPED(name, scope)                                                             \
    template <class T> __forceinline__ T name##scope(T* a, std::common_type_t<T> v) {       \
        return name(a, v);                                                                  \
    }
#define EMU_SCOPES(scope)                                                                   \
    EMU_SCOPED(atomicAdd, scope)                                                            \
    EMU_SCOPED(atomicSub, scope)                                                            \
    EMU_SCOPED(atomicExch, scope)                                                           \
    EMU_SCOPED(atomicMin, scope)                                                            \
    EMU_SCOPED(atomicMax, scope)                                                            \
    EMU_SCOPED(atomicAnd, scope)                                                            \
    EMU_SCOPED(atomicOr, scope)                                                             \
    EMU_SCOPED(atomicXor, scope)                                                            \
    EMU_SCOPED(atomicInc, scope)                                                            \
    EMU_SCOPED(atomicDec, scope)                                                            \
    template <class T>                                                                      \
    __forceinline__ T atomicCAS##scope(T* a, std::common_type_t<T> compare,                 \
                                       std::common_type_t<T> v) {                           \
        return atomicCAS(a, compare, v);                                                    \
    }
EMU_SCOPES(_block)
EMU_SCOPES(_system)
#undef EMU_SCOPES
#undef EMU_SCOPED
