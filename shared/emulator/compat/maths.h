// Mathematics of the device that neither the C library nor emulator.h has.
#pragma once
// These bring the overloads for float into the global namespace, where nvcc has them.
#include <math.h>
#include <stdlib.h>

#include "casts.h"

// ---- arithmetic with a rounding direction -------------------------------------------------------
#define EMU_DIRECTED(name, T, parameters, operands, expression)                                   \
    __forceinline__ T name##_rz parameters {                                                      \
        return emu::rounded(FE_TOWARDZERO, [] parameters -> T { return expression; }, operands);  \
    }                                                                                             \
    __forceinline__ T name##_rd parameters {                                                      \
        return emu::rounded(FE_DOWNWARD, [] parameters -> T { return expression; }, operands);    \
    }                                                                                             \
    __forceinline__ T name##_ru parameters {                                                      \
        return emu::rounded(FE_UPWARD, [] parameters -> T { return expression; }, operands);      \
    }
#define EMU_COMMA ,
#define EMU_DIRECTED_ALL(f, T, fma_name, fma_function)                                            \
    EMU_DIRECTED(__##f##add, T, (T x, T y), x EMU_COMMA y, x + y)                               \
    EMU_DIRECTED(__##f##sub, T, (T x, T y), x EMU_COMMA y, x - y)                               \
    EMU_DIRECTED(__##f##mul, T, (T x, T y), x EMU_COMMA y, x * y)                               \
    EMU_DIRECTED(__##f##div, T, (T x, T y), x EMU_COMMA y, x / y)                               \
    EMU_DIRECTED(__##f##rcp, T, (T x), x, T(1) / x)                                             \
    EMU_DIRECTED(__##f##sqrt, T, (T x), x, std::sqrt(x))                                        \
    EMU_DIRECTED(fma_name, T, (T x, T y, T z), x EMU_COMMA y EMU_COMMA z, fma_function(x, y, z))
EMU_DIRECTED_ALL(f, float, __fmaf, ::fmaf)
EMU_DIRECTED_ALL(d, double, __fma, ::fma)
#undef EMU_DIRECTED_ALL
#undef EMU_COMMA
#undef EMU_DIRECTED
__forceinline__ double __dadd_rn(double x, double y) { return x + y; }
__forceinline__ double __dsub_rn(double x, double y) { return x - y; }
__forceinline__ double __ddiv_rn(double x, double y) { return x / y; }
__forceinline__ double __drcp_rn(double x) { return 1.0 / x; }
__forceinline__ double __dsqrt_rn(double x) { return ::sqrt(x); }
__forceinline__ double __fma_rn(double x, double y, double z) { return ::fma(x, y, z); }
__forceinline__ float __fmaf_ieee_rn(float x, float y, float z) { return ::fmaf(x, y, z); }

// ---- fast functions: the exact ones, as in emulator.h -------------------------------------------
__forceinline__ float __tanf(float x) { return ::tanf(x); }
__forceinline__ float __tanhf(float x) { return ::tanhf(x); }
__forceinline__ void __sincosf(float x, float* sine, float* cosine) { ::sincosf(x, sine, cosine); }
__forceinline__ float fdividef(float x, float y) { return x / y; }
__forceinline__ double fdivide(double x, double y) { return x / y; }
__forceinline__ float saturate(float x) { return __saturatef(x); }
__forceinline__ int __isnan(double x) { return x != x; }
__forceinline__ int __isnanf(float x) { return x != x; }
__forceinline__ int __isinf(double x) { return __builtin_isinf(x); }
__forceinline__ int __isinff(float x) { return __builtin_isinf(x); }
__forceinline__ int __finitef(float x) { return __builtin_isfinite(x); }

// ---- functions that only CUDA has ---------------------------------------------------------------
namespace emu {
// π·x reduced first, so that multiples of a half come out exact.
__forceinline__ double sine_pi(double x) {
    if (!(::fabs(x) < __builtin_inf())) return __builtin_nan("");
    double r = ::fmod(x, 2.0);
    if (r == ::trunc(r)) return ::copysign(0.0, x);
    double a = ::fabs(r);
    double s = a > 1 ? -1 : 1;
    a = a > 1 ? a - 1 : a;
    a = a > 0.5 ? 1 - a : a;
    return ::copysign(1.0, r) * s * ::sin(M_PI * a);
}
__forceinline__ double cosine_pi(double x) {
    if (!(::fabs(x) < __builtin_inf())) return __builtin_nan("");
    double a = ::fabs(::fmod(x, 2.0));
    a = a > 1 ? 2 - a : a;
    if (a == 0.5) return 0;
    return a < 0.5 ? ::cos(M_PI * a) : -::cos(M_PI * (1 - a));
}
// exp(x²)·erfc(x). Where erfc is too small, by its continued fraction.
inline double scaled_erfc(double x) {
    if (x < 10) return ::exp(x * x) * ::erfc(x);
    double fraction = x;
    for (int n = 40; n > 0; --n) fraction = x + n * 0.5 / fraction;
    return 1 / (fraction * ::sqrt(M_PI));
}
// x with Φ(x) = p: a rational start, and four of Halley's steps.
inline double normal_quantile(double p) {
    if (!(p >= 0 && p <= 1)) return __builtin_nan("");
    if (p == 0 || p == 1) return p == 0 ? -__builtin_inf() : __builtin_inf();
    if (p == 0.5) return 0;
    double low = p < 0.5 ? p : 1 - p, t = ::sqrt(-2 * ::log(low));
    double x = -(t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                         (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))));
    for (int i = 0; i < 4; ++i) {
        double error = 0.5 * ::erfc(-x * M_SQRT1_2) - low;
        double step = error * ::sqrt(2 * M_PI) * ::exp(x * x / 2);
        x -= step / (1 + x * step / 2);
    }
    return p < 0.5 ? x : -x;
}
inline double inverse_erfc(double y) { return -normal_quantile(y / 2) * M_SQRT1_2; }
// 1 - erf loses what is near zero; there it is found by Newton's steps.
inline double inverse_erf(double y) {
    if (::fabs(y) > 0.5) return y > 0 ? inverse_erfc(1 - y) : -inverse_erfc(1 + y);
    if (y == 0) return y;
    double x = y * 0.886226925452758;
    for (int i = 0; i < 6; ++i) x -= (::erf(x) - y) * 0.886226925452758 * ::exp(x * x);
    return x;
}
}  // namespace emu

// For double, and rounded from it for float.
#define EMU_MATH1(name, expression)                                       \
    __forceinline__ double name(double x) { return expression; }          \
    __forceinline__ float name##f(float x) { return float(name(double(x))); }
EMU_MATH1(rcbrt, 1 / ::cbrt(x))
EMU_MATH1(erfcx, emu::scaled_erfc(x))
EMU_MATH1(erfinv, emu::inverse_erf(x))
EMU_MATH1(erfcinv, emu::inverse_erfc(x))
EMU_MATH1(normcdf, 0.5 * ::erfc(-x * M_SQRT1_2))
EMU_MATH1(normcdfinv, emu::normal_quantile(x))
EMU_MATH1(cyl_bessel_i0, std::cyl_bessel_i(0.0, ::fabs(x)))
EMU_MATH1(cyl_bessel_i1, ::copysign(std::cyl_bessel_i(1.0, ::fabs(x)), x))
// Newer C libraries have these, as C23 does.
#if !__GLIBC_PREREQ(2, 41)
EMU_MATH1(sinpi, emu::sine_pi(x))
EMU_MATH1(cospi, emu::cosine_pi(x))
#endif
#undef EMU_MATH1
__forceinline__ void sincospi(double x, double* sine, double* cosine) {
    *sine = emu::sine_pi(x), *cosine = emu::cosine_pi(x);
}
__forceinline__ void sincospif(float x, float* sine, float* cosine) {
    *sine = float(emu::sine_pi(x)), *cosine = float(emu::cosine_pi(x));
}
#define EMU_NORM(T, f)                                                                     \
    __forceinline__ T rhypot##f(T x, T y) { return T(1 / ::hypot(double(x), double(y))); }       \
    __forceinline__ T norm3d##f(T x, T y, T z) { return T(std::hypot(double(x), double(y), double(z))); } \
    __forceinline__ T rnorm3d##f(T x, T y, T z) { return T(1 / std::hypot(double(x), double(y), double(z))); } \
    __forceinline__ T norm4d##f(T x, T y, T z, T w) {                                            \
        return T(::hypot(std::hypot(double(x), double(y), double(z)), double(w)));               \
    }                                                                                            \
    __forceinline__ T rnorm4d##f(T x, T y, T z, T w) {                                           \
        return T(1 / ::hypot(std::hypot(double(x), double(y), double(z)), double(w)));           \
    }                                                                                            \
    __forceinline__ T norm##f(int n, const T* v) {                                               \
        double sum = 0;                                                                          \
        for (int i = 0; i < n; ++i) sum = ::hypot(sum, double(v[i]));                            \
        return T(sum);                                                                           \
    }                                                                                            \
    __forceinline__ T rnorm##f(int n, const T* v) { return T(1 / norm##f(n, v)); }
EMU_NORM(float, f)
EMU_NORM(double, )
#undef EMU_NORM

// ---- smaller and larger -------------------------------------------------------------------------
// Operands of two types, as CUDA overloads them: a signed one becomes unsigned.
#define EMU_MIXED(A, B, T)                                               \
    __forceinline__ T min(A a, B b) { return ::min((T)a, (T)b); }        \
    __forceinline__ T min(B a, A b) { return ::min((T)a, (T)b); }        \
    __forceinline__ T max(A a, B b) { return ::max((T)a, (T)b); }        \
    __forceinline__ T max(B a, A b) { return ::max((T)a, (T)b); }
EMU_MIXED(int, unsigned, unsigned)
EMU_MIXED(long, unsigned long, unsigned long)
EMU_MIXED(long long, unsigned long long, unsigned long long)
EMU_MIXED(float, double, double)
#undef EMU_MIXED
__forceinline__ unsigned umin(unsigned a, unsigned b) { return min(a, b); }
__forceinline__ unsigned umax(unsigned a, unsigned b) { return max(a, b); }
__forceinline__ long long llmin(long long a, long long b) { return min(a, b); }
__forceinline__ long long llmax(long long a, long long b) { return max(a, b); }
__forceinline__ unsigned long long ullmin(unsigned long long a, unsigned long long b) {
    return min(a, b);
}
__forceinline__ unsigned long long ullmax(unsigned long long a, unsigned long long b) {
    return max(a, b);
}
