// Conversions between numbers, with the direction in which they round.
#pragma once
#include <cfenv>

#include "../include/emulator.h"

namespace emu {
// Hides a value from the compiler, which knows nothing of rounding modes and would compute too
// early or too late.
template <class T> __forceinline__ T hidden(T v) {
    asm volatile("" : "+g"(v)::"memory");
    return v;
}
// What `compute` makes of its operands while results are rounded as `mode` says: exact, for it is
// the processor that rounds.
template <class F, class... A> __forceinline__ auto rounded(int mode, F compute, A... operands) {
    std::fesetround(mode);
    auto result = hidden(compute(hidden(operands)...));
    std::fesetround(FE_TONEAREST);
    return result;
}
// As cvt of PTX: what does not fit becomes the nearest that does. NaN becomes zero, or 0x80…0 where
// either side has 64 bits.
template <class To, class From> __forceinline__ To to_integer(From whole) {
    constexpr bool wide = sizeof(To) == 8 || sizeof(From) == 8;
    constexpr From limit = From(1ull << (8 * sizeof(To) - 1)) * (std::is_signed<To>::value ? 1 : 2);
    constexpr To top = To(1ull << (8 * sizeof(To) - 1));
    if (whole != whole) return wide ? top : To(0);
    if (whole >= limit) return std::is_signed<To>::value ? To(~top) : To(~To(0));
    if (std::is_signed<To>::value ? whole < -limit : whole < 0) {
        return std::is_signed<To>::value ? top : To(0);
    }
    return To(whole);
}
}  // namespace emu

#define EMU_TO_INTEGER(from, From, to, To)                                                         \
    __forceinline__ To __##from##2##to##_rn(From x) { return emu::to_integer<To>(std::rint(x)); }  \
    __forceinline__ To __##from##2##to##_rz(From x) { return emu::to_integer<To>(std::trunc(x)); } \
    __forceinline__ To __##from##2##to##_rd(From x) { return emu::to_integer<To>(std::floor(x)); } \
    __forceinline__ To __##from##2##to##_ru(From x) { return emu::to_integer<To>(std::ceil(x)); }
#define EMU_TO_INTEGERS(from, From)                        \
    EMU_TO_INTEGER(from, From, int, int)                   \
    EMU_TO_INTEGER(from, From, uint, unsigned)             \
    EMU_TO_INTEGER(from, From, ll, long long)              \
    EMU_TO_INTEGER(from, From, ull, unsigned long long)
EMU_TO_INTEGERS(float, float)
EMU_TO_INTEGERS(double, double)
#undef EMU_TO_INTEGERS
#undef EMU_TO_INTEGER

#define EMU_ROUNDED_AS(name, mode, From, To)                                           \
    __forceinline__ To name(From x) {                                                  \
        return emu::rounded(mode, [](From v) { return To(v); }, x);                    \
    }
#define EMU_ROUNDED(name, From, To)                         \
    __forceinline__ To name##_rn(From x) { return To(x); }  \
    EMU_ROUNDED_AS(name##_rz, FE_TOWARDZERO, From, To)      \
    EMU_ROUNDED_AS(name##_rd, FE_DOWNWARD, From, To)        \
    EMU_ROUNDED_AS(name##_ru, FE_UPWARD, From, To)
EMU_ROUNDED(__int2float, int, float)
EMU_ROUNDED(__uint2float, unsigned, float)
EMU_ROUNDED(__ll2float, long long, float)
EMU_ROUNDED(__ull2float, unsigned long long, float)
EMU_ROUNDED(__ll2double, long long, double)
EMU_ROUNDED(__ull2double, unsigned long long, double)
EMU_ROUNDED(__double2float, double, float)
#undef EMU_ROUNDED
#undef EMU_ROUNDED_AS
__forceinline__ double __int2double_rn(int x) { return x; }
__forceinline__ double __uint2double_rn(unsigned x) { return x; }

__forceinline__ long long __double_as_longlong(double x) {
    return emu::from_bits<long long>(emu::to_bits(x));
}
__forceinline__ double __longlong_as_double(long long x) {
    return emu::from_bits<double>(emu::to_bits(x));
}
__forceinline__ double __hiloint2double(int high, int low) {
    return emu::from_bits<double>(uint64_t(unsigned(high)) << 32 | unsigned(low));
}
__forceinline__ int __double2hiint(double x) { return int(emu::to_bits(x) >> 32); }
__forceinline__ int __double2loint(double x) { return int(emu::to_bits(x)); }
