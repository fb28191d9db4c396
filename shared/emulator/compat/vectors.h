// The built-in vector types that emulator.h lacks, with CUDA's alignment, and their make_ functions.
#pragma once
#include "../include/emulator.h"

namespace emu {
template <> struct words<1> { typedef uint8_t __attribute__((may_alias)) type; };
template <> struct words<2> { typedef uint16_t __attribute__((may_alias)) type; };
// A GPU moves at most 16 bytes at once.
template <> __forceinline__ void copy_words<32>(void* to, const void* from) {
    copy_words<16>(to, from);
    copy_words<16>(static_cast<char*>(to) + 16, static_cast<const char*>(from) + 16);
}
}  // namespace emu

EMU_VECTOR2(char2, signed char)
EMU_VECTOR2(uchar2, unsigned char)
EMU_VECTOR2(long2, long)
EMU_VECTOR2(ulong2, unsigned long)
EMU_VECTOR2(longlong2, long long)
EMU_VECTOR2(ulonglong2, unsigned long long)
EMU_VECTOR4(char4, signed char)

// Of 32 bytes, aligned to 16.
#define EMU_VECTOR32(name, T)                                                                     \
    struct alignas(16) name {                                                                     \
        T x, y, z, w;                                                                             \
        name() = default;                                                                         \
        constexpr name(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}                            \
        __forceinline__ name(const name& o) { emu::copy_words<32>(this, &o); }                    \
        __forceinline__ name& operator=(const name& o) {                                          \
            emu::copy_words<32>(this, &o);                                                        \
            return *this;                                                                         \
        }                                                                                         \
    };                                                                                            \
    __forceinline__ name make_##name(T x, T y, T z, T w) { return name(x, y, z, w); }
EMU_VECTOR32(long4, long)
EMU_VECTOR32(ulong4, unsigned long)
EMU_VECTOR32(longlong4, long long)
EMU_VECTOR32(ulonglong4, unsigned long long)
EMU_VECTOR32(double4, double)
#undef EMU_VECTOR32

// One element is moved as itself, and three are moved one by one.
#define EMU_VECTOR1(name, T)                \
    struct name { T x; };                   \
    __forceinline__ name make_##name(T x) { return {x}; }
#define EMU_VECTOR3(name, T)                \
    struct name { T x, y, z; };             \
    __forceinline__ name make_##name(T x, T y, T z) { return {x, y, z}; }
#define EMU_VECTOR13(name, T) EMU_VECTOR1(name##1, T) EMU_VECTOR3(name##3, T)
EMU_VECTOR13(char, signed char)
EMU_VECTOR13(uchar, unsigned char)
EMU_VECTOR13(short, short)
EMU_VECTOR13(ushort, unsigned short)
EMU_VECTOR13(long, long)
EMU_VECTOR13(ulong, unsigned long)
EMU_VECTOR13(longlong, long long)
EMU_VECTOR13(ulonglong, unsigned long long)
EMU_VECTOR13(double, double)
EMU_VECTOR1(int1, int)
EMU_VECTOR1(uint1, unsigned)
EMU_VECTOR1(float1, float)
#undef EMU_VECTOR13
#undef EMU_VECTOR3
#undef EMU_VECTOR1
__forceinline__ int3 make_int3(int x, int y, int z) { return {x, y, z}; }
__forceinline__ uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
__forceinline__ float3 make_float3(float x, float y, float z) { return {x, y, z}; }
