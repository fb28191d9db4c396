// Warp functions of before Volta, which name no lanes: those that are there together take part.
#pragma once
#include "../include/emulator.h"

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
