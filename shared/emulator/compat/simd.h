// Arithmetic on the two shorts (__v…2) or four bytes (__v…4) of a word.
#pragma once
#include "../include/emulator.h"

namespace emu {
// The results of F on each part of type T, put together again.
template <class T, class F> __forceinline__ unsigned parts(unsigned a, unsigned b, F f) {
    using Bits = std::make_unsigned_t<T>;
    unsigned result = 0;
    for (unsigned at = 0; at < 32; at += 8 * sizeof(T))
        result |= unsigned(Bits(f(int(T(a >> at)), int(T(b >> at))))) << at;
    return result;
}
template <class T> __forceinline__ int limited(int v) {
    constexpr int low = std::is_signed<T>::value ? -(1 << (8 * sizeof(T) - 1)) : 0;
    constexpr int high = low + (1 << 8 * sizeof(T)) - 1;
    return v < low ? low : v > high ? high : v;
}
}  // namespace emu

#define EMU_PARTS(name, T, expression)                                            \
    __forceinline__ unsigned name(unsigned a, unsigned b) {                       \
        return emu::parts<T>(a, b, [](int x, int y) -> int { return expression; }); \
    }
#define EMU_BOTH(name, end, S, U, expression) \
    EMU_PARTS(name##s##end, S, expression)    \
    EMU_PARTS(name##u##end, U, expression)
#define EMU_COMPARISON(name, end, S, U, comparison)                   \
    EMU_BOTH(__vcmp##name, end, S, U, x comparison y ? -1 : 0)        \
    EMU_BOTH(__vset##name, end, S, U, x comparison y ? 1 : 0)
#define EMU_SIMD(end, S, U)                                                       \
    EMU_PARTS(__vadd##end, U, x + y)                                              \
    EMU_PARTS(__vsub##end, U, x - y)                                              \
    EMU_PARTS(__vaddss##end, S, emu::limited<S>(x + y))                           \
    EMU_PARTS(__vaddus##end, U, emu::limited<U>(x + y))                           \
    EMU_PARTS(__vsubss##end, S, emu::limited<S>(x - y))                           \
    EMU_PARTS(__vsubus##end, U, emu::limited<U>(x - y))                           \
    EMU_BOTH(__vmax, end, S, U, x < y ? y : x)                                    \
    EMU_BOTH(__vmin, end, S, U, y < x ? y : x)                                    \
    EMU_BOTH(__vabsdiff, end, S, U, x < y ? y - x : x - y)                        \
    EMU_PARTS(__vhaddu##end, U, (x + y) >> 1)                                     \
    EMU_PARTS(__vavgu##end, U, (x + y + 1) >> 1)                                  \
    /* Rounds away from zero. */                                                  \
    EMU_PARTS(__vavgs##end, S, (x + y + (x + y >= 0)) >> 1)                       \
    EMU_PARTS(__vcmpeq##end, U, x == y ? -1 : 0)                                  \
    EMU_PARTS(__vcmpne##end, U, x != y ? -1 : 0)                                  \
    EMU_PARTS(__vseteq##end, U, x == y)                                           \
    EMU_PARTS(__vsetne##end, U, x != y)                                           \
    EMU_COMPARISON(ge, end, S, U, >=)                                             \
    EMU_COMPARISON(gt, end, S, U, >)                                              \
    EMU_COMPARISON(le, end, S, U, <=)                                             \
    EMU_COMPARISON(lt, end, S, U, <)                                              \
    __forceinline__ unsigned __vneg##end(unsigned a) { return __vsub##end(0, a); } \
    __forceinline__ unsigned __vnegss##end(unsigned a) { return __vsubss##end(0, a); } \
    __forceinline__ unsigned __vabs##end(unsigned a) {                            \
        return emu::parts<S>(a, 0, [](int x, int) { return x < 0 ? -x : x; });    \
    }                                                                             \
    __forceinline__ unsigned __vabsss##end(unsigned a) {                          \
        return emu::parts<S>(a, 0, [](int x, int) { return emu::limited<S>(x < 0 ? -x : x); }); \
    }                                                                             \
    __forceinline__ unsigned __vsads##end(unsigned a, unsigned b) {               \
        unsigned sum = 0;                                                         \
        emu::parts<S>(a, b, [&](int x, int y) { return sum += unsigned(x < y ? y - x : x - y); }); \
        return sum;                                                               \
    }                                                                             \
    __forceinline__ unsigned __vsadu##end(unsigned a, unsigned b) {               \
        unsigned sum = 0;                                                         \
        emu::parts<U>(a, b, [&](int x, int y) { return sum += unsigned(x < y ? y - x : x - y); }); \
        return sum;                                                               \
    }
EMU_SIMD(2, int16_t, uint16_t)
EMU_SIMD(4, int8_t, uint8_t)
#undef EMU_SIMD
#undef EMU_COMPARISON
#undef EMU_BOTH
#undef EMU_PARTS
