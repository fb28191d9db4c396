// Warp functions of before Volta, which name no lanes: those that are there together take part.
#pragma once
#include "../include/emulator.h"

#include "instructions.h"

template <class T> __forceinline__ T __shfl(T v, int lane, int width = 32) {
    return __shfl_sync(__activemask(), v, lane, width);
}
template <class T> __forceinline__ T __shfl_up(T v, unsigned delta, int width = 32) {
    return __shfl_up_sync(__activemask(), v, delta, width);
}
template <class T> __forceinline__ T __shfl_down(T v, unsigned delta, int width = 32) {
    return __shfl_down_sync(__activemask(), v, delta, width);
}
template <class T> __forceinline__ T __shfl_xor(T v, int lanes, int width = 32) {
    return __shfl_xor_sync(__activemask(), v, lanes, width);
}
__forceinline__ int __any(int p) { return __any_sync(__activemask(), p); }
__forceinline__ int __all(int p) { return __all_sync(__activemask(), p); }
__forceinline__ unsigned __ballot(int p) { return __ballot_sync(__activemask(), p); }

// A program's own functions of these names, for GPUs that lack them, stand beside these.
#define EMU_REDUCE(name)                                                       \
    template <class T> __forceinline__ auto emu_##name(unsigned mask, T v) {   \
        return EMU_NEEDS_redux_sync name(mask, v);                             \
    }
EMU_REDUCE(__reduce_add_sync)
EMU_REDUCE(__reduce_min_sync)
EMU_REDUCE(__reduce_max_sync)
EMU_REDUCE(__reduce_and_sync)
EMU_REDUCE(__reduce_or_sync)
EMU_REDUCE(__reduce_xor_sync)
#undef EMU_REDUCE
#define __reduce_add_sync emu___reduce_add_sync
#define __reduce_min_sync emu___reduce_min_sync
#define __reduce_max_sync emu___reduce_max_sync
#define __reduce_and_sync emu___reduce_and_sync
#define __reduce_or_sync emu___reduce_or_sync
#define __reduce_xor_sync emu___reduce_xor_sync
