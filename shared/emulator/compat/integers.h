// Intrinsics of integers and bits.
#pragma once
#include "../include/emulator.h"

__forceinline__ unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
__forceinline__ unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}
__forceinline__ int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
__forceinline__ int __ffsll(long long x) { return __builtin_ffsll(x); }
// Place of the n-th set bit from `base` on, upwards or, where n is negative, downwards.
__forceinline__ unsigned __fns(unsigned mask, unsigned base, int n) {
    int step = n < 0 ? -1 : 1, left = n < 0 ? -n : n;
    for (int at = int(base); at >= 0 && at < 32; at += step) {
        bool set = mask >> at & 1;
        if (n == 0) return set ? unsigned(at) : ~0u;
        if (set && --left == 0) return unsigned(at);
    }
    return ~0u;
}
// Of each selector's nibble the low three bits choose a byte; the fourth spreads its sign.
__forceinline__ unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t bytes = x | uint64_t(y) << 32;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned choice = selector >> 4 * i & 15;
        unsigned byte = unsigned(bytes >> 8 * (choice & 7)) & 0xff;
        if (choice & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}

__forceinline__ int __mul24(int x, int y) {
    return int(unsigned(int(unsigned(x) << 8) >> 8) * unsigned(int(unsigned(y) << 8) >> 8));
}
__forceinline__ unsigned __umul24(unsigned x, unsigned y) {
    return (x & 0xffffffu) * (y & 0xffffffu);
}
__forceinline__ int __mulhi(int x, int y) { return int((long long)x * y >> 32); }
__forceinline__ unsigned __umulhi(unsigned x, unsigned y) {
    return unsigned((unsigned long long)x * y >> 32);
}
__forceinline__ long long __mul64hi(long long x, long long y) {
    return (long long)((__int128)x * y >> 64);
}
__forceinline__ unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
__forceinline__ unsigned __sad(int x, int y, unsigned z) {
    return z + (x < y ? unsigned(y) - unsigned(x) : unsigned(x) - unsigned(y));
}
__forceinline__ unsigned __usad(unsigned x, unsigned y, unsigned z) {
    return z + (x < y ? y - x : x - y);
}
__forceinline__ int __hadd(int x, int y) { return int(((long long)x + y) >> 1); }
__forceinline__ int __rhadd(int x, int y) { return int(((long long)x + y + 1) >> 1); }
__forceinline__ unsigned __uhadd(unsigned x, unsigned y) {
    return unsigned(((unsigned long long)x + y) >> 1);
}
__forceinline__ unsigned __urhadd(unsigned x, unsigned y) {
    return unsigned(((unsigned long long)x + y + 1) >> 1);
}

__forceinline__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return unsigned((low | uint64_t(high) << 32) << (shift & 31) >> 32);
}
__forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((low | uint64_t(high) << 32) >> (shift & 31));
}
__forceinline__ unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
__forceinline__ unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}

// Products of four bytes, or of two shorts with the low or the high bytes of a word, added to c.
__forceinline__ int __dp4a(int a, int b, int c) {
    unsigned sum = unsigned(c);
    for (int i = 0; i < 32; i += 8)
        sum += unsigned(int(int8_t(unsigned(a) >> i)) * int(int8_t(unsigned(b) >> i)));
    return int(sum);
}
__forceinline__ unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 0xff) * (b >> i & 0xff);
    return c;
}
namespace emu {
__forceinline__ int dp2a(int a, int b, int c, int from) {
    unsigned sum = unsigned(c);
    for (int i = 0; i < 2; ++i)
        sum += unsigned(int(int16_t(unsigned(a) >> 16 * i)) *
                        int(int8_t(unsigned(b) >> (from + 8 * i))));
    return int(sum);
}
__forceinline__ unsigned dp2a(unsigned a, unsigned b, unsigned c, int from) {
    for (int i = 0; i < 2; ++i) c += (a >> 16 * i & 0xffff) * (b >> (from + 8 * i) & 0xff);
    return c;
}
}  // namespace emu
__forceinline__ int __dp2a_lo(int a, int b, int c) { return emu::dp2a(a, b, c, 0); }
__forceinline__ int __dp2a_hi(int a, int b, int c) { return emu::dp2a(a, b, c, 16); }
__forceinline__ unsigned __dp2a_lo(unsigned a, unsigned b, unsigned c) {
    return emu::dp2a(a, b, c, 0);
}
__forceinline__ unsigned __dp2a_hi(unsigned a, unsigned b, unsigned c) {
    return emu::dp2a(a, b, c, 16);
}
