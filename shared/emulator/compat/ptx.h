// What PTX is rewritten into (shared/ptx): values in registers, which have bits and no type, and what an
// instruction takes more for than one call.
#pragma once
#include <initializer_list>

#include "../include/emulator_half.h"
#include "casts.h"
#include "integers.h"
#include "memory.h"
#include "warp.h"

namespace emu {
namespace ptx {
// ---- registers ----------------------------------------------------------------------------------
// A register as a T: the same bits; a constant of another size is that number.
template <class T, class F> __forceinline__ T as(const F& from) {
    using Plain = typename std::decay<const F>::type;
    if constexpr (std::is_array<F>::value) return T(reinterpret_cast<uintptr_t>(&from[0]));
    else if constexpr (std::is_same<T, bool>::value) return bool(from);
    else if constexpr (std::is_pointer<Plain>::value || std::is_null_pointer<Plain>::value) return T(uintptr_t(from));
    else if constexpr (std::is_enum<Plain>::value) return T(from);
    else if constexpr (sizeof(F) == sizeof(T)) {
        T to;
        __builtin_memcpy(&to, &from, sizeof to);
        return to;
    } else return T(from);
}
template <class T, class F> __forceinline__ void put(T& to, F value) {
    if constexpr (sizeof(T) == sizeof(F) && !std::is_same<T, bool>::value) __builtin_memcpy(&to, &value, sizeof to);
    else if constexpr (std::is_pointer<T>::value) to = T(uintptr_t(value));
    else to = T(value);
}
// What a text makes of a register of two or four parts, the lowest first.
template <class T, class P> __forceinline__ T joined(std::initializer_list<P> parts) {
    uint64_t all = 0;
    int n = 0;
    for (P part : parts) all |= uint64_t(part) << (8 * sizeof(P) * n++);
    return as<T>(typename std::conditional<sizeof(T) == 8, uint64_t, uint32_t>::type(all));
}
template <class P, class T> __forceinline__ P part(T from, int n) { return P(to_bits(from) >> (8 * sizeof(P) * n)); }

// ---- addresses ----------------------------------------------------------------------------------
// Numbers of shared memory: those of this block as __cvta_generic_to_shared() gives them; of another block of the cluster
// (mapa), its rank stands above them.
constexpr int OF_RANK = 24;
__forceinline__ char* shared(uint64_t address) {
    uint32_t number = uint32_t(address), rank = number >> OF_RANK;
    void* own = emu_in_window(number & ((1u << OF_RANK) - 1));
    return static_cast<char*>(rank ? emu_map_shared(own, rank - 1) : own);
}
__forceinline__ char* anywhere(uint64_t address) { return reinterpret_cast<char*>(address); }
// What mapa gives of a block that the cluster does not have. That, and a null pointer, which a compiler may convert for a branch that
// does not use it, are a number that is nowhere.
constexpr uint64_t NOWHERE = uint64_t(0x7F) << 56;
__forceinline__ uint32_t window(uint64_t address) {
    if (address == 0 || (address & NOWHERE) == NOWHERE) return (1u << OF_RANK) - 1;
    return emu_shared_number(anywhere(address));
}
__forceinline__ uint32_t window_of(uint64_t own, uint32_t rank) {
    return (uint32_t(own) & ((1u << OF_RANK) - 1)) | (rank + 1) << OF_RANK;
}
// mapa: an address alone, which a compiler may ask for ahead of the branch that needs it. Of a block that the cluster does not
// have it is nowhere.
__forceinline__ uint64_t mapped(uint64_t own, uint32_t rank) {
    if (rank >= emu_coordinate(EMU_CLUSTER_SIZE)) return NOWHERE | own;
    return uint64_t(emu_map_shared(anywhere(own), rank));
}

// What an arrival gives: the parity of the phase, as the emulator keeps it in the barrier's lowest bit, which cannot end before this
// thread has come.
__forceinline__ uint64_t phase(const void* barrier) {
    return __atomic_load_n(static_cast<const uint64_t*>(barrier), __ATOMIC_RELAXED) & 1;
}

// ---- loads and stores: one access, of all parts -------------------------------------------------
template <class T, int N> struct Parts { T v[N]; };
template <class T, int N> struct Wide { typedef T type __attribute__((vector_size(N * sizeof(T)), may_alias)); };
template <class T> struct Wide<T, 1> { typedef T type __attribute__((may_alias)); };
template <class T, int N, bool CONSTANT> __forceinline__ Parts<T, N> load(const char* place) {
    using All = typename Wide<T, N>::type;
    const All* from = reinterpret_cast<const All*>(place);
    if constexpr (CONSTANT) EMU_LOOKED_AT(from, EMU_CONSTANT | EMU_WRITES);  // a compiler's choice
    All all = *from;
    Parts<T, N> parts;
    __builtin_memcpy(&parts, &all, sizeof parts);
    return parts;
}
template <class T, int N> __forceinline__ void store(char* place, const T (&parts)[N]) {
    using All = typename Wide<T, N>::type;
    All all;
    __builtin_memcpy(&all, parts, sizeof all);
    *reinterpret_cast<All*>(place) = all;
}
template <class T> __forceinline__ T load_relaxed(const T* address) {
    EMU_LOOKED_AT(address, EMU_READS);
    T value;
    __atomic_load(address, &value, __ATOMIC_RELAXED);
    emu_yield_point(0);
    return value;
}
template <class T> __forceinline__ void store_relaxed(T* address, T value) {
    EMU_LOOKED_AT(address, EMU_WRITES);
    __atomic_store(address, &value, __ATOMIC_RELAXED);
}
// cp.async: `bytes` of the source, and zeros behind them, which are there at once.
template <bool PAST_L1> __forceinline__ void copy(char* to, const char* from, uint32_t bytes, uint32_t of_source) {
    if (PAST_L1 && bytes != 16) emu_trap("cp.async.cg: expected 16 bytes");
    if (bytes != 4 && bytes != 8 && bytes != 16) emu_trap("cp.async: expected 4, 8 or 16 bytes");
    if (of_source > bytes) emu_trap("cp.async: expected no more bytes of the source than are copied");
    if (of_source == bytes) {
        emu_async_copy(to, from, bytes);
        return;
    }
    if (uintptr_t(to) % bytes) emu_misaligned("cp.async's destination", bytes);
    if (of_source) emu_async_copy_aligned(to, from, of_source, 1);
    for (uint32_t n = of_source; n < bytes; ++n) to[n] = 0;
}

// ---- numbers ------------------------------------------------------------------------------------
// Whole numbers wrap around, also those with a sign. Divided by zero, all bits are set: PTX leaves it open.
template <class T> struct Wraps {
    using type = typename std::conditional<(sizeof(T) > 4), uint64_t, uint32_t>::type;
};
template <> struct Wraps<float> { using type = float; };
template <> struct Wraps<double> { using type = double; };
template <class T> __forceinline__ T add(T a, T b) { return T(typename Wraps<T>::type(a) + typename Wraps<T>::type(b)); }
template <class T> __forceinline__ T sub(T a, T b) { return T(typename Wraps<T>::type(a) - typename Wraps<T>::type(b)); }
template <class T> __forceinline__ T mul(T a, T b) { return T(typename Wraps<T>::type(a) * typename Wraps<T>::type(b)); }
template <class T> __forceinline__ T div(T a, T b) {
    if constexpr (std::is_integral<T>::value) {
        if (b == 0) return T(~T(0));
        if (std::is_signed<T>::value && b == T(-1)) return sub(T(0), a);
    }
    return a / b;
}
__forceinline__ uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (int n = 0; n < 8; ++n)
        if (table >> n & 1) result |= (n & 4 ? a : ~a) & (n & 2 ? b : ~b) & (n & 1 ? c : ~c);
    return result;
}
// Bytes of both, as four digits say; with 8 added, the byte's sign eight times. __byte_perm has no signs.
__forceinline__ uint32_t prmt(uint32_t low, uint32_t high, uint32_t digits) {
    uint64_t both = low | uint64_t(high) << 32;
    uint32_t result = 0;
    for (int n = 0; n < 4; ++n) {
        uint32_t digit = digits >> (4 * n) & 15, byte = uint32_t(both >> (8 * (digit & 7))) & 255;
        if (digit & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * n);
    }
    return result;
}
// By its width or more: nothing is left, or the sign.
template <class T> __forceinline__ T shl(T a, uint32_t by) { return by < 8 * sizeof(T) ? T(a << by) : T(0); }
template <class T> __forceinline__ T shr(T a, uint32_t by) {
    return by < 8 * sizeof(T) ? T(a >> by) : T(std::is_signed<T>::value && a < 0 ? -1 : 0);
}
__forceinline__ uint16_t f16(float v) { return f32_to_f16(v); }
__forceinline__ uint16_t bf16(float v) { return f32_to_bf16(v); }
__forceinline__ float from_f16(uint16_t bits) { return f16_to_f32(bits); }
__forceinline__ float from_bf16(uint16_t bits) { return bf16_to_f32(bits); }
__forceinline__ uint32_t two_f16x2(float high, float low) { return f16(low) | uint32_t(f16(high)) << 16; }
__forceinline__ uint32_t two_bf16x2(float high, float low) { return bf16(low) | uint32_t(bf16(high)) << 16; }
// Differences of four bytes, without their signs, added to c.
__forceinline__ uint32_t vabsdiff4(uint32_t a, uint32_t b, uint32_t c) {
    for (int shift = 0; shift < 32; shift += 8) {
        int x = int(a >> shift & 255), y = int(b >> shift & 255);
        c += uint32_t(x < y ? y - x : x - y);
    }
    return c;
}

// ---- threads ------------------------------------------------------------------------------------
__forceinline__ unsigned rank_in_block() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
__forceinline__ unsigned threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }
__forceinline__ unsigned laneid() { return rank_in_block() % 32; }
__forceinline__ unsigned warpid() { return rank_in_block() / 32; }
__forceinline__ unsigned nwarpid() { return 64; }
constexpr unsigned MULTIPROCESSORS = 108;
__forceinline__ unsigned nsmid() { return MULTIPROCESSORS; }
__forceinline__ unsigned smid() {
    return (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) % MULTIPROCESSORS;
}
// Lanes of a part of the warp, as the clamp of a shuffle says.
__forceinline__ int width(uint32_t clamp, bool up) {
    if ((clamp & 31) != (up ? 0 : 31)) emu_trap("shfl.sync: expected a clamp of 0 for up and of 31 otherwise");
    return 32 - int(clamp >> 8 & 31);
}
// Whether a shuffle ('u'p, 'd'own, 'b'fly, 'i'dx) reads from a lane of its part of the warp.
__forceinline__ bool is_lane(char way, uint32_t by, uint32_t clamp) {
    uint32_t part = clamp >> 8 & 31, first = laneid() & part, last = first | (clamp & 31 & ~part);
    uint32_t lane = laneid(), from = way == 'd' ? lane + (by & 31) : way == 'b' ? lane ^ (by & 31) : first | (by & 31 & ~part);
    if (way == 'u') return int(lane) - int(by & 31) >= int(last);
    return from <= last;
}
__forceinline__ unsigned lanemask_eq() { return 1u << laneid(); }
__forceinline__ unsigned lanemask_lt() { return lanemask_eq() - 1; }
__forceinline__ unsigned lanemask_le() { return lanemask_lt() | lanemask_eq(); }
__forceinline__ unsigned lanemask_gt() { return ~lanemask_le(); }
__forceinline__ unsigned lanemask_ge() { return ~lanemask_lt(); }
// Barrier 0 of all threads is that of __syncthreads().
__forceinline__ void barrier(uint32_t number, uint32_t threads) {
    if (number == 0 && threads == threads_of_block()) emu_barrier(EMU_BARRIER_PLAIN, 0);
    else emu_named_barrier(number, threads, false);
}
__forceinline__ void barrier(uint32_t number) { barrier(number, threads_of_block()); }

// ---- matrices -----------------------------------------------------------------------------------
// Lane l brings the address of row l % 8 of matrix l / 8; of fewer than four, the other lanes' mean nothing.
template <int N> __forceinline__ Parts<uint32_t, N> matrices(uint32_t row, bool transposed) {
    if constexpr (N < 4) row = __shfl_sync(0xffffffffu, row, int(laneid() % (8 * N)));
    unsigned all[4];
    load_matrices(all, shared(row), transposed);
    Parts<uint32_t, N> parts;
    for (int n = 0; n < N; ++n) parts.v[n] = all[n];
    return parts;
}
template <int N, bool TRANSPOSED> __forceinline__ void store_matrices(uint32_t row, const uint32_t (&from)[N]) {
    int lane = int(laneid()), r = lane % 8;
    uint32_t words[4] = {};
    for (int m = 0; m < N; ++m)
        for (int c = 0; c < 4; ++c) {
            uint32_t word;
            if (TRANSPOSED) {
                uint32_t left = __shfl_sync(0xffffffffu, from[m], 8 * c + r / 2);
                uint32_t right = __shfl_sync(0xffffffffu, from[m], 8 * c + 4 + r / 2);
                word = (left >> r % 2 * 16 & 0xffffu) | right >> r % 2 * 16 << 16;
            } else {
                word = __shfl_sync(0xffffffffu, from[m], 4 * r + c);
            }
            if (lane / 8 == m) words[c] = word;
        }
    if (lane < 8 * N) store<uint32_t, 4>(shared(row), words);
}
// mma.sync; half the depth is the whole one with zeros behind it.
template <class T, int A, int B>
__forceinline__ Parts<float, 4> multiplied(const uint32_t (&a)[A], const uint32_t (&b)[B], const float (&c)[4]) {
    static_assert(A == 2 * B && (B == 1 || B == 2), "m16n8k16, or half of its k");
    float sums[4] = {c[0], c[1], c[2], c[3]};
    unsigned all[4] = {a[0], a[1], B == 2 ? a[A - 2] : 0, B == 2 ? a[A - 1] : 0};
    multiply_add<T>(sums, all, b[0], B == 2 ? b[B - 1] : 0);
    return {{sums[0], sums[1], sums[2], sums[3]}};
}
// Sums in halves: rounded once behind all products.
template <class T, int A, int B>
__forceinline__ Parts<uint32_t, 2> multiplied_halves(const uint32_t (&a)[A], const uint32_t (&b)[B], const uint32_t (&c)[2]) {
    float wide[4];
    for (int n = 0; n < 4; ++n) wide[n] = from_f16(uint16_t(c[n / 2] >> (16 * (n % 2))));
    auto sums = multiplied<T>(a, b, wide);
    return {{two_f16x2(sums.v[1], sums.v[0]), two_f16x2(sums.v[3], sums.v[2])}};
}
// A warpgroup's sums, which the hardware adds to while the thread goes on, and A, which it reads.
template <class T> T* side_by_side(std::initializer_list<T*> all) {
    for (size_t n = 1; n < all.size(); ++n)
        if (all.begin()[n] != all.begin()[0] + n)
            emu_trap("wgmma: expected its registers side by side, in one array, as the emulator keeps them");
    return *all.begin();
}
// T is that of a variable of the text: a reference to one of the program's own, or to what is gone behind the text.
template <class T> const uint32_t* register_of(const typename std::remove_reference<T>::type& own) {
    static_assert(sizeof own == 4, "a register of A has 4 bytes");
    if (!std::is_lvalue_reference<T>::value) emu_trap("wgmma: expected variables for A, which is read later, got a value");
    return reinterpret_cast<const uint32_t*>(&own);
}
__forceinline__ void signs(int a, int b) {
    if (a != 1 || b != 1) emu_trap("wgmma: expected scales 1 of A and B, others are not run here");
}
}  // namespace ptx
}  // namespace emu

#include "ptx_module.h"
#include "ptx_tiles.h"
#include "ptx_numbers.h"
