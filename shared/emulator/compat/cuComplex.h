// Complex numbers of CUDA's toolkit: a pair of numbers, and functions by name. For host code and kernels.
#pragma once
#include <cmath>

#include "cuda_runtime.h"

#define EMU_COMPLEX(Pair, Complex, T, f, make)                                                                            \
    typedef Pair Complex;                                                                                                 \
    __forceinline__ T cuCreal##f(Complex z) { return z.x; }                                                        \
    __forceinline__ T cuCimag##f(Complex z) { return z.y; }                                                        \
    __forceinline__ Complex make_##Complex(T real, T imaginary) { return make(real, imaginary); }                  \
    __forceinline__ Complex cuConj##f(Complex z) { return make(z.x, -z.y); }                                       \
    __forceinline__ Complex cuCadd##f(Complex a, Complex b) { return make(a.x + b.x, a.y + b.y); }                 \
    __forceinline__ Complex cuCsub##f(Complex a, Complex b) { return make(a.x - b.x, a.y - b.y); }                 \
    __forceinline__ Complex cuCmul##f(Complex a, Complex b) {                                                      \
        return make(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);                                                        \
    }                                                                                                                     \
    /* Both are made smaller first, so that no square of b is beyond the numbers that there are. */                       \
    __forceinline__ Complex cuCdiv##f(Complex a, Complex b) {                                                      \
        T scale = T(1) / (std::abs(b.x) + std::abs(b.y));                                                                 \
        T ax = a.x * scale, ay = a.y * scale, bx = b.x * scale, by = b.y * scale;                                         \
        T inverse = T(1) / (bx * bx + by * by);                                                                           \
        return make((ax * bx + ay * by) * inverse, (ay * bx - ax * by) * inverse);                                        \
    }                                                                                                                     \
    __forceinline__ T cuCabs##f(Complex z) { return std::hypot(z.x, z.y); }                                        \
    __forceinline__ Complex cuCfma##f(Complex a, Complex b, Complex c) {                                           \
        return make(a.x * b.x + c.x - a.y * b.y, a.x * b.y + c.y + a.y * b.x);                                            \
    }
EMU_COMPLEX(float2, cuFloatComplex, float, f, make_float2)
EMU_COMPLEX(double2, cuDoubleComplex, double, , make_double2)
#undef EMU_COMPLEX
typedef cuFloatComplex cuComplex;
__forceinline__ cuComplex make_cuComplex(float real, float imaginary) { return make_float2(real, imaginary); }
__forceinline__ cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex z) { return make_double2(z.x, z.y); }
__forceinline__ cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex z) { return make_float2(float(z.x), float(z.y)); }
