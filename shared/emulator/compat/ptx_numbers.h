// Arithmetic of PTX that CUDA C++ has no function of the same kind for: halves one by one or in pairs, bits, carries,
// numbers of 8 bits. Included by ptx.h.
#pragma once

namespace emu {
namespace ptx {
// ---- halves: computed in f32 and rounded once ---------------------------------------------------
struct F16 {
    static constexpr float SMALLEST = 0x1p-14f;  // of its normal numbers
    static __forceinline__ float widen(uint16_t bits) { return f16_to_f32(bits); }
    static __forceinline__ uint16_t narrow(float v) { return f32_to_f16(v); }
};
struct BF16 {
    static constexpr float SMALLEST = 0x1p-126f;
    static __forceinline__ float widen(uint16_t bits) { return bf16_to_f32(bits); }
    static __forceinline__ uint16_t narrow(float v) { return f32_to_bf16(v); }
};
// `.ftz`: a subnormal number is a zero of its sign, as operand and as result.
__forceinline__ float flushed(float v) { return ::fabsf(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; }
// Whether a result is subnormal is decided behind its rounding, as if there were smaller normal numbers: what is a number of
// so many bits just below the smallest normal one is flushed, although a subnormal grid would round it up to that.
__forceinline__ float flushed(float rounded, double exact) {
    return ::fabsf(float(exact * 0x1p64)) < 0x1p-62f ? std::copysign(0.0f, rounded) : rounded;
}
template <class H> struct Flushed {
    static __forceinline__ float flushed(float exact) {
        return ::fabsf(exact) < H::SMALLEST ? std::copysign(0.0f, exact) : exact;
    }
    static __forceinline__ float widen(uint16_t bits) { return flushed(H::widen(bits)); }
    // Scaled, as a normal number.
    static __forceinline__ uint16_t narrow(float exact) {
        bool is_small = ::fabsf(H::widen(H::narrow(exact * 0x1p12f))) < H::SMALLEST * 0x1p12f;
        return H::narrow(is_small ? std::copysign(0.0f, exact) : exact);
    }
};
// The nearest number that is not beyond `exact`: towards zero (0), down (-1), up (1).
template <class H> __forceinline__ uint16_t directed(float exact, int direction) {
    uint16_t near = H::narrow(exact);
    float got = H::widen(near);
    bool is_beyond = direction == 0 ? ::fabsf(got) > ::fabsf(exact) : direction < 0 ? got > exact : got < exact;
    if (!is_beyond) return near;
    bool is_negative = near & 0x8000, grows = direction != 0 && (direction < 0) == is_negative;
    if (!(near & 0x7fff)) return direction < 0 ? 0x8001 : 1;
    return uint16_t(grows ? near + 1 : near - 1);
}
// A number as f64, a whole one that has more bits than that rounded to odd: rounding on rounds only once.
template <class T> __forceinline__ double odd_f64(T v) {
    if constexpr (std::is_integral<T>::value && sizeof(T) == 8) {
        uint64_t all = v < 0 ? 0 - uint64_t(v) : uint64_t(v);
        if (all >> 53) all = (all & ~uint64_t(0x7ff)) | (all & 0x7ff ? 0x800 : 0);
        return v < 0 ? -double(all) : double(all);
    } else return double(v);
}
__forceinline__ uint16_t half_of(uint32_t both, int n) { return uint16_t(both >> (16 * n)); }
// `f` of one half (uint16_t), or of both (uint32_t).
template <class H, class F> __forceinline__ uint16_t halves(F f, uint16_t a) { return H::narrow(f(H::widen(a))); }
template <class H, class F> __forceinline__ uint16_t halves(F f, uint16_t a, uint16_t b) {
    return H::narrow(f(H::widen(a), H::widen(b)));
}
template <class H, class F> __forceinline__ uint16_t halves(F f, uint16_t a, uint16_t b, uint16_t c) {
    return H::narrow(f(H::widen(a), H::widen(b), H::widen(c)));
}
template <class H, class F, class... W> __forceinline__ uint32_t halves(F f, uint32_t a, W... rest) {
    uint32_t low = halves<H>(f, half_of(a, 0), half_of(rest, 0)...);
    return low | uint32_t(halves<H>(f, half_of(a, 1), half_of(rest, 1)...)) << 16;
}
struct Sum { __forceinline__ float operator()(float a, float b) const { return a + b; } };
struct Difference { __forceinline__ float operator()(float a, float b) const { return a - b; } };
struct Product { __forceinline__ float operator()(float a, float b) const { return a * b; } };
struct Negative { __forceinline__ float operator()(float a) const { return -a; } };
struct Magnitude { __forceinline__ float operator()(float a) const { return ::fabsf(a); } };
struct Fused {
    __forceinline__ float operator()(float a, float b, float c) const { return f64_to_f32_odd(fma_odd(a, b, c)); }
};
// min and max: of a number and a NaN the number; with `.NaN` the NaN.
template <class T> __forceinline__ T least(T a, T b) {
    if (a == b) return std::signbit(a) ? a : b;
    return a < b || b != b ? a : b;
}
template <class T> __forceinline__ T greatest(T a, T b) {
    if (a == b) return std::signbit(a) ? b : a;
    return a > b || b != b ? a : b;
}
template <class T> __forceinline__ T least_or_nan(T a, T b) { return a != a ? a : b != b ? b : least(a, b); }
template <class T> __forceinline__ T greatest_or_nan(T a, T b) { return a != a ? a : b != b ? b : greatest(a, b); }
struct Least { __forceinline__ float operator()(float a, float b) const { return least(a, b); } };
struct Greatest { __forceinline__ float operator()(float a, float b) const { return greatest(a, b); } };
struct LeastOrNan { __forceinline__ float operator()(float a, float b) const { return least_or_nan(a, b); } };
struct GreatestOrNan { __forceinline__ float operator()(float a, float b) const { return greatest_or_nan(a, b); } };
// div.approx: by a divisor that has no normal reciprocal it gives zero.
__forceinline__ float div_approx(float a, float b) {
    return ::fabsf(b) > 0x1p126f ? a * std::copysign(0.0f, b) : a / b;
}
// Approximations of f64 read the upper half of the number alone, and give no more.
__forceinline__ double upper_half(double v) {
    double half = from_bits<double>(to_bits(v) & 0xffffffff00000000ull);
    return ::fabs(half) < 0x1p-1022 ? std::copysign(0.0, half) : half;
}
struct PowerOfTwo { __forceinline__ float operator()(float a) const { return ::exp2f(a); } };
struct HyperbolicTangent { __forceinline__ float operator()(float a) const { return ::tanhf(a); } };
template <class T> __forceinline__ bool is_normal(T v) { return v == 0 || std::isnormal(v); }
template <class T> __forceinline__ T saturated(T v) { return v > T(0) ? v < T(1) ? v : T(1) : T(0); }
template <class T> __forceinline__ T rectified(T v) { return v > T(0) || v != v ? v : T(0); }
// cvt.rn.tf32: to nearest even.
__forceinline__ uint32_t tf32_even(uint32_t f32) {
    if ((f32 & 0x7fffffffu) > 0x7f800000u) return 0x7fffe000u;
    bool finite = (f32 & 0x7f800000u) != 0x7f800000u;
    return (finite ? f32 + 0xfffu + (f32 >> 13 & 1) : f32) & 0xffffe000u;
}
// An integer of one type as the nearest of another.
template <class To, class From> __forceinline__ To clamped(From v) {
    __int128 low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max(), all = v;
    return To(all < low ? low : all > high ? high : all);
}

// ---- 8 bits: exponent and mantissa of 4 and 3 bits (no infinity), or of 5 and 2 -------------------
template <int E, int M> __forceinline__ float from_fp8(uint8_t bits) {
    int exponent = bits >> M & ((1 << E) - 1), mantissa = bits & ((1 << M) - 1), bias = (1 << (E - 1)) - 1;
    bool is_last = exponent == (1 << E) - 1;
    float v;
    if (is_last && (E == 5 ? mantissa != 0 : mantissa == (1 << M) - 1)) v = bits_f32(0x7fffffffu);
    else if (is_last && E == 5) v = bits_f32(0x7f800000u);
    else if (exponent == 0) v = ldexpf(float(mantissa), 1 - bias - M);
    else v = ldexpf(float(mantissa | 1 << M), exponent - bias - M);
    return bits & 0x80 ? -v : v;
}
// To nearest even; what does not fit becomes the largest (`.satfinite`).
template <int E, int M> __forceinline__ uint8_t to_fp8(float v) {
    constexpr int bias = (1 << (E - 1)) - 1;
    constexpr uint8_t nan = 0x7f, largest = E == 5 ? 0x7b : 0x7e;
    uint8_t sign = std::signbit(v) ? 0x80 : 0;
    if (v != v) return nan;
    float all = ::fabsf(v);
    if (all >= from_fp8<E, M>(largest)) return sign | largest;
    int exponent = all > 0 ? std::max(ilogbf(all), 1 - bias) : 1 - bias;
    int steps = int(nearbyintf(ldexpf(all, M - exponent)));  // of 2^(exponent - M)
    if (steps >> (M + 1)) steps >>= 1, ++exponent;
    int bits = steps >> M ? (exponent + bias) << M | (steps & ((1 << M) - 1)) : steps;
    return uint8_t(sign | bits);
}
template <int E, int M> __forceinline__ uint16_t two_fp8(float high, float low) {
    return uint16_t(to_fp8<E, M>(low) | to_fp8<E, M>(high) << 8);
}
template <int E, int M> __forceinline__ uint32_t from_two_fp8(uint16_t both) {
    float low = from_fp8<E, M>(uint8_t(both)), high = from_fp8<E, M>(uint8_t(both >> 8));
    return f32_to_f16(low) | uint32_t(f32_to_f16(high)) << 16;
}

// ---- bits ---------------------------------------------------------------------------------------
// Places and lengths beyond 255 PTX leaves open: of 32 bits GPUs look at the lowest 8 of their bits, of 64 at all.
template <class T> __forceinline__ T bfe(T value, uint32_t from, uint32_t len) {
    constexpr uint32_t width = 8 * sizeof(T);
    if (width == 32) from &= 255, len &= 255;
    using U = typename std::make_unsigned<T>::type;
    uint64_t last = std::min<uint64_t>(uint64_t(from) + len - 1, width - 1);
    U sign = std::is_signed<T>::value && len ? U(value) >> last & 1 : 0;
    U bits = from < width && len ? U(value) >> from : 0;
    uint32_t there = from < width ? std::min(len, width - from) : 0;
    if (there >= width) return T(bits);
    U mask = (U(1) << there) - 1;
    return T((bits & mask) | (sign ? ~mask : 0));
}
template <class T> __forceinline__ T bfi(T inserted, T into, uint32_t at, uint32_t len) {
    constexpr uint32_t width = 8 * sizeof(T);
    if (width == 32) at &= 255, len &= 255;
    if (at >= width || !len) return into;
    T mask = len >= width ? T(~T(0)) : T((T(1) << len) - 1);
    return T((into & ~(mask << at)) | ((inserted & mask) << at));
}
template <class T> __forceinline__ uint32_t bfind(T value, bool as_shift) {
    using U = typename std::make_unsigned<T>::type;
    U bits = std::is_signed<T>::value && value < 0 ? U(~value) : U(value);
    for (int n = 8 * sizeof(T) - 1; n >= 0; --n)
        if (bits >> n & 1) return as_shift ? uint32_t(8 * sizeof(T) - 1 - n) : uint32_t(n);
    return 0xffffffffu;
}
template <class T> __forceinline__ T magnitude(T a) { return a < 0 ? sub(T(0), a) : a; }
template <class T> __forceinline__ T copysign_of(T sign, T value) { return std::copysign(value, sign); }
template <class T> __forceinline__ T rem(T a, T b) {
    if (b == 0) return T(~T(0));
    if (std::is_signed<T>::value && b == T(-1)) return T(0);
    return T(a % b);
}
template <class T> __forceinline__ T high(T a, T b) {
    using Wide = typename std::conditional<std::is_signed<T>::value, __int128, unsigned __int128>::type;
    return T(Wide(a) * Wide(b) >> (8 * sizeof(T)));
}
// Of 24 bits, the rest of which count for nothing.
__forceinline__ int32_t of_24(int32_t a) { return int32_t(uint32_t(a) << 8) >> 8; }
__forceinline__ uint32_t of_24(uint32_t a) { return a & 0xffffffu; }
// Sums and differences with a carry, which `carry` holds in between.
template <class T> __forceinline__ T add_carry(T a, T b, bool with, bool& carry, bool keeps) {
    using U = typename std::make_unsigned<T>::type;
    unsigned __int128 all = (unsigned __int128)(U(a)) + U(b) + (with && carry);
    if (keeps) carry = all >> (8 * sizeof(T)) & 1;
    return T(all);
}
template <class T> __forceinline__ T sub_borrow(T a, T b, bool with, bool& carry, bool keeps) {
    using U = typename std::make_unsigned<T>::type;
    unsigned __int128 all = (unsigned __int128)(U(a)) - U(b) - (with && carry);
    if (keeps) carry = all >> (8 * sizeof(T)) & 1;
    return T(all);
}
// Four products of bytes, with signs or without.
template <class A, class B> __forceinline__ uint32_t dp4a(uint32_t a, uint32_t b, uint32_t c) {
    for (int n = 0; n < 32; n += 8) c += uint32_t(int(A(a >> n)) * int(B(b >> n)));
    return c;
}

// ---- products of 8-bit matrices: two of halves, which hold these numbers --------------------------
template <class F> __forceinline__ uint32_t as_halves(F widen, uint32_t bytes, int pair) {
    float low = widen(uint8_t(bytes >> (16 * pair))), high = widen(uint8_t(bytes >> (16 * pair + 8)));
    return f32_to_f16(low) | uint32_t(f32_to_f16(high)) << 16;
}
// m16n8k32: along k any order will do that A and B share.
template <class FA, class FB>
__forceinline__ Parts<float, 4> multiplied_bytes(FA of_a, FB of_b, const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]) {
    float sums[4] = {c[0], c[1], c[2], c[3]};
    for (int half = 0; half < 2; ++half) {
        unsigned all[4] = {as_halves(of_a, a[2 * half], 0), as_halves(of_a, a[2 * half + 1], 0),
                           as_halves(of_a, a[2 * half], 1), as_halves(of_a, a[2 * half + 1], 1)};
        multiply_add<__half>(sums, all, as_halves(of_b, b[half], 0), as_halves(of_b, b[half], 1));
    }
    return {{sums[0], sums[1], sums[2], sums[3]}};
}
struct SignedByte { __forceinline__ float operator()(uint8_t v) const { return float(int8_t(v)); } };
struct UnsignedByte { __forceinline__ float operator()(uint8_t v) const { return float(v); } };
template <int E, int M> struct SmallFloat { __forceinline__ float operator()(uint8_t v) const { return from_fp8<E, M>(v); } };
// Whole numbers: a product's sum is exact in f32, and the rest is added as integers.
template <bool SATURATES = false, class FA, class FB>
__forceinline__ Parts<uint32_t, 4> multiplied_integers(FA of_a, FB of_b, const uint32_t (&a)[4], const uint32_t (&b)[2], const uint32_t (&c)[4]) {
    auto sums = multiplied_bytes(of_a, of_b, a, b, {0, 0, 0, 0});
    Parts<uint32_t, 4> all;
    for (int n = 0; n < 4; ++n) {
        int64_t sum = int64_t(int32_t(c[n])) + int32_t(sums.v[n]);
        all.v[n] = SATURATES ? uint32_t(clamped<int32_t>(sum)) : uint32_t(sum);
    }
    return all;
}
}  // namespace ptx
}  // namespace emu
