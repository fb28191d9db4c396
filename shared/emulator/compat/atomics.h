// Atomics for a scope. Those of the system are the device's while no host takes part; those of a block are as strong
// here, and the checks know that they are for one block.
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
EMU_SCOPES(_system)
#undef EMU_SCOPES
#undef EMU_SCOPED

#define EMU_OF_BLOCK_ALONE(name, expression)                                                \
    template <class T> __forceinline__ T name##_block(T* a, std::common_type_t<T> v) {      \
        return emu::atomic_update<EMU_OF_BLOCK>(a, [v](T old) { return T(expression); });   \
    }
EMU_OF_BLOCK_ALONE(atomicAdd, old + v)
EMU_OF_BLOCK_ALONE(atomicSub, old - v)
EMU_OF_BLOCK_ALONE(atomicExch, ((void)old, v))
EMU_OF_BLOCK_ALONE(atomicMin, v < old ? v : old)
EMU_OF_BLOCK_ALONE(atomicMax, old < v ? v : old)
EMU_OF_BLOCK_ALONE(atomicAnd, old & v)
EMU_OF_BLOCK_ALONE(atomicOr, old | v)
EMU_OF_BLOCK_ALONE(atomicXor, old ^ v)
EMU_OF_BLOCK_ALONE(atomicInc, old >= v ? 0 : old + 1)
EMU_OF_BLOCK_ALONE(atomicDec, old == 0 || old > v ? v : old - 1)
#undef EMU_OF_BLOCK_ALONE
template <class T>
__forceinline__ T atomicCAS_block(T* a, std::common_type_t<T> compare, std::common_type_t<T> v) {
    return emu::atomic_update<EMU_COMPARES | EMU_OF_BLOCK>(
        a, [=](T old) { return old == compare ? v : old; });
}
