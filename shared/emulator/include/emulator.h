// CUDA C++ as the host compiler sees it: qualifiers, built-in variables, barriers, warp
// collectives, atomics, vector types and device maths, on top of emulator_abi.h.
// Included before the kernel's source; the kernel itself is not changed.
#pragma once
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <type_traits>
#include <utility>

#include "emulator_abi.h"

#define LAB_EMULATOR 1

// ---- qualifiers -------------------------------------------------------------------------------
// Defined after the standard headers, which use some of these spellings as attribute names.
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __constant__ static
// One copy an OS thread, which a block never leaves. Used: the runtime writes it (poison), which
// the compiler cannot see; without it, what no kernel writes would be folded to zero.
#define __shared__ static thread_local __attribute__((used))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

// ---- vector types -----------------------------------------------------------------------------
struct uint3 { unsigned x, y, z; };
struct int3 { int x, y, z; };
struct float3 { float x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

namespace emu {
// Copies N bytes as one access, as the GPU's vector loads and stores do; a member-wise copy would
// be split into scalars before anything could count it.
template <size_t N> struct words;
template <> struct words<4> { typedef uint32_t __attribute__((may_alias)) type; };
template <> struct words<8> { typedef uint64_t __attribute__((may_alias)) type; };
template <> struct words<16> {
    typedef uint32_t __attribute__((vector_size(16), may_alias)) type;
};
template <size_t N> __forceinline__ void copy_words(void* to, const void* from) {
    *static_cast<typename words<N>::type*>(to) = *static_cast<const typename words<N>::type*>(from);
}
}  // namespace emu

#define EMU_VECTOR2(name, T)                                                                      \
    struct alignas(2 * sizeof(T)) name {                                                          \
        T x, y;                                                                                   \
        name() = default;                                                                         \
        constexpr name(T x, T y) : x(x), y(y) {}                                                  \
        __forceinline__ name(const name& o) { emu::copy_words<2 * sizeof(T)>(this, &o); }         \
        __forceinline__ name& operator=(const name& o) {                                          \
            emu::copy_words<2 * sizeof(T)>(this, &o);                                             \
            return *this;                                                                         \
        }                                                                                         \
    };                                                                                            \
    __forceinline__ name make_##name(T x, T y) { return name(x, y); }
#define EMU_VECTOR4(name, T)                                                                      \
    struct alignas(4 * sizeof(T)) name {                                                          \
        T x, y, z, w;                                                                             \
        name() = default;                                                                         \
        constexpr name(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}                            \
        __forceinline__ name(const name& o) { emu::copy_words<4 * sizeof(T)>(this, &o); }         \
        __forceinline__ name& operator=(const name& o) {                                          \
            emu::copy_words<4 * sizeof(T)>(this, &o);                                             \
            return *this;                                                                         \
        }                                                                                         \
    };                                                                                            \
    __forceinline__ name make_##name(T x, T y, T z, T w) { return name(x, y, z, w); }

EMU_VECTOR2(float2, float)
EMU_VECTOR2(double2, double)
EMU_VECTOR2(int2, int)
EMU_VECTOR2(uint2, unsigned)
EMU_VECTOR2(short2, short)
EMU_VECTOR2(ushort2, unsigned short)
EMU_VECTOR4(float4, float)
EMU_VECTOR4(int4, int)
EMU_VECTOR4(uint4, unsigned)
EMU_VECTOR4(short4, short)
EMU_VECTOR4(ushort4, unsigned short)
EMU_VECTOR4(uchar4, unsigned char)

// ---- built-in variables -----------------------------------------------------------------------
namespace emu {
__forceinline__ uint3 coordinate(int first) {
    return {emu_coordinate(first), emu_coordinate(first + 1), emu_coordinate(first + 2)};
}
}  // namespace emu
#define threadIdx (::emu::coordinate(EMU_THREAD_X))
#define blockIdx (::emu::coordinate(EMU_BLOCK_X))
#define blockDim (::emu::coordinate(EMU_BLOCK_DIM_X))
#define gridDim (::emu::coordinate(EMU_GRID_DIM_X))
#define warpSize 32

// ---- barriers, fences, votes, shuffles --------------------------------------------------------
__forceinline__ void __syncthreads() { emu_barrier(EMU_BARRIER_PLAIN, 0); }
__forceinline__ int __syncthreads_count(int p) { return emu_barrier(EMU_BARRIER_COUNT, p); }
__forceinline__ int __syncthreads_and(int p) { return emu_barrier(EMU_BARRIER_AND, p); }
__forceinline__ int __syncthreads_or(int p) { return emu_barrier(EMU_BARRIER_OR, p); }
__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) {
    emu_warp(EMU_WARP_SYNC, mask, 0, 0, 32);
}

__forceinline__ void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    emu_fence(EMU_SCOPE_DEVICE);
}
__forceinline__ void __threadfence_block() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    emu_fence(EMU_SCOPE_BLOCK);
}
__forceinline__ void __threadfence_system() { __threadfence(); }
__forceinline__ void __nanosleep(unsigned) { emu_yield_point(1); }

__forceinline__ int __all_sync(unsigned mask, int p) {
    return int(emu_warp(EMU_WARP_ALL, mask, p != 0, 0, 32));
}
__forceinline__ int __any_sync(unsigned mask, int p) {
    return int(emu_warp(EMU_WARP_ANY, mask, p != 0, 0, 32));
}
__forceinline__ unsigned __ballot_sync(unsigned mask, int p) {
    return unsigned(emu_warp(EMU_WARP_BALLOT, mask, p != 0, 0, 32));
}
__forceinline__ unsigned __activemask() { return emu_active_mask(); }

namespace emu {
template <class T> __forceinline__ uint64_t to_bits(T v) {
    static_assert(sizeof(T) <= 8, "a warp collective moves at most 8 bytes a lane");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &v, sizeof v);
    return bits;
}
template <class T> __forceinline__ T from_bits(uint64_t bits) {
    T v;
    __builtin_memcpy(&v, &bits, sizeof v);
    return v;
}
template <class T> __forceinline__ T shuffle(int op, unsigned mask, T v, unsigned lane, int width) {
    return from_bits<T>(emu_warp(op, mask, to_bits(v), lane, unsigned(width)));
}
}  // namespace emu

template <class T> __forceinline__ T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
    return emu::shuffle(EMU_WARP_SHUFFLE, mask, v, unsigned(lane), width);
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    return emu::shuffle(EMU_WARP_SHUFFLE_UP, mask, v, delta, width);
}
template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    return emu::shuffle(EMU_WARP_SHUFFLE_DOWN, mask, v, delta, width);
}
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32) {
    return emu::shuffle(EMU_WARP_SHUFFLE_XOR, mask, v, unsigned(lanes), width);
}
template <class T> __forceinline__ unsigned __match_any_sync(unsigned mask, T v) {
    return unsigned(emu_warp(EMU_WARP_MATCH_ANY, mask, emu::to_bits(v), 0, 32));
}
template <class T> __forceinline__ unsigned __match_all_sync(unsigned mask, T v, int* all) {
    unsigned lanes = unsigned(emu_warp(EMU_WARP_MATCH_ALL, mask, emu::to_bits(v), 0, 32));
    *all = lanes != 0;
    return lanes;
}

#define EMU_REDUCE(name, T, op)                                                                   \
    __forceinline__ T name(unsigned mask, T v) { return T(emu_warp(op, mask, unsigned(v), 0, 32)); }
EMU_REDUCE(__reduce_add_sync, unsigned, EMU_WARP_ADD)
EMU_REDUCE(__reduce_add_sync, int, EMU_WARP_ADD)
EMU_REDUCE(__reduce_min_sync, unsigned, EMU_WARP_MIN_UNSIGNED)
EMU_REDUCE(__reduce_min_sync, int, EMU_WARP_MIN_SIGNED)
EMU_REDUCE(__reduce_max_sync, unsigned, EMU_WARP_MAX_UNSIGNED)
EMU_REDUCE(__reduce_max_sync, int, EMU_WARP_MAX_SIGNED)
EMU_REDUCE(__reduce_and_sync, unsigned, EMU_WARP_AND)
EMU_REDUCE(__reduce_or_sync, unsigned, EMU_WARP_OR)
EMU_REDUCE(__reduce_xor_sync, unsigned, EMU_WARP_XOR)
#undef EMU_REDUCE

struct __half;
struct __nv_bfloat16;

// ---- small matrices of a warp: what lab/mma.cuh and <mma.h> are made of -------------------------
namespace emu {
// ldmatrix.x4: the row at `row` is this lane's to read. `shared`: a GPU reads it nowhere else.
__forceinline__ void load_matrices(unsigned (&to)[4], const void* row, bool transposed,
                                   bool shared = true) {
    typedef uint64_t Two __attribute__((vector_size(16), may_alias));
    Two own = *static_cast<const Two*>(row);
    int op = transposed ? EMU_WARP_LOAD_MATRICES_TRANSPOSED : EMU_WARP_LOAD_MATRICES;
    EmuWords got = emu_load_matrices(op, shared ? row : nullptr, own[0], own[1]);
    to[0] = unsigned(got.low), to[1] = unsigned(got.low >> 32);
    to[2] = unsigned(got.high), to[3] = unsigned(got.high >> 32);
}
template <class T> constexpr int mma_op();
template <> constexpr int mma_op<__half>() { return EMU_WARP_MMA_F16; }
template <> constexpr int mma_op<__nv_bfloat16>() { return EMU_WARP_MMA_BF16; }
template <> constexpr int mma_op<float>() { return EMU_WARP_MMA_TF32; }
__forceinline__ uint64_t two(unsigned low, unsigned high) { return low | uint64_t(high) << 32; }
// mma.sync.m16n8k16, of TF32 m16n8k8.
template <class T>
__forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    EmuFloats sum = emu_mma(mma_op<T>(), two(a[0], a[1]), two(a[2], a[3]), two(b0, b1), c[0], c[1],
                            c[2], c[3]);
    for (int i = 0; i < 4; ++i) c[i] = sum.v[i];
}
// cvt.rna.tf32: to nearest, ties away from zero. NaN and infinity stay what they are.
__forceinline__ unsigned to_tf32(unsigned f32) {
    bool finite = (f32 & 0x7f800000u) != 0x7f800000u;
    return (finite ? f32 + 0x1000u : f32) & 0xffffe000u;
}
}  // namespace emu

// ---- atomics ----------------------------------------------------------------------------------
// Real atomics of the host, since blocks run on several OS threads. Each is a yield point: a loop
// that spins on one lets the thread it waits for run. CUDA's are relaxed: they order nothing else.
namespace emu {
#ifdef __SANITIZE_THREAD__
#define EMU_LOOKED_AT(address, flags) emu_access(address, sizeof *(address), flags)
#else
#define EMU_LOOKED_AT(address, flags) ((void)0)
#endif
// MORE: what else it does, such as EMU_COMPARES.
template <unsigned MORE = 0, class T, class F> __forceinline__ T atomic_update(T* address, F next) {
    using Word = typename std::conditional<
        sizeof(T) == 8, uint64_t,
        typename std::conditional<sizeof(T) == 4, uint32_t, uint16_t>::type>::type;
    Word* word = reinterpret_cast<Word*>(address);
    EMU_LOOKED_AT(word, EMU_READS | EMU_WRITES | MORE);
    Word seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    for (;;) {
        T old;
        __builtin_memcpy(&old, &seen, sizeof old);
        T value = next(old);
        Word desired;
        __builtin_memcpy(&desired, &value, sizeof desired);
        if (__atomic_compare_exchange_n(word, &seen, desired, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {
            emu_yield_point(0);
            return old;
        }
    }
}
template <class T> __forceinline__ T load_acquire(const T* address) {
    EMU_LOOKED_AT(address, EMU_READS | EMU_ACQUIRES);
    T value;
    __atomic_load(address, &value, __ATOMIC_ACQUIRE);
    emu_yield_point(0);
    return value;
}
template <class T> __forceinline__ void store_release(T* address, T value) {
    EMU_LOOKED_AT(address, EMU_WRITES | EMU_RELEASES);
    __atomic_store(address, &value, __ATOMIC_RELEASE);
}
}  // namespace emu

template <class T> __forceinline__ T atomicAdd(T* a, std::common_type_t<T> v) {
    return emu::atomic_update(a, [v](T old) { return T(old + v); });
}
template <class T> __forceinline__ T atomicSub(T* a, std::common_type_t<T> v) {
    return emu::atomic_update(a, [v](T old) { return T(old - v); });
}
template <class T> __forceinline__ T atomicExch(T* a, std::common_type_t<T> v) {
    return emu::atomic_update(a, [v](T) { return v; });
}
template <class T> __forceinline__ T atomicMin(T* a, std::common_type_t<T> v) {
    return emu::atomic_update(a, [v](T old) { return v < old ? v : old; });
}
template <class T> __forceinline__ T atomicMax(T* a, std::common_type_t<T> v) {
    return emu::atomic_update(a, [v](T old) { return old < v ? v : old; });
}
template <class T> __forceinline__ T atomicAnd(T* a, std::common_type_t<T> v) {
    return emu::atomic_update(a, [v](T old) { return T(old & v); });
}
template <class T> __forceinline__ T atomicOr(T* a, std::common_type_t<T> v) {
    return emu::atomic_update(a, [v](T old) { return T(old | v); });
}
template <class T> __forceinline__ T atomicXor(T* a, std::common_type_t<T> v) {
    return emu::atomic_update(a, [v](T old) { return T(old ^ v); });
}
template <class T>
__forceinline__ T atomicCAS(T* a, std::common_type_t<T> compare, std::common_type_t<T> v) {
    return emu::atomic_update<EMU_COMPARES>(a, [=](T old) { return old == compare ? v : old; });
}
__forceinline__ unsigned atomicInc(unsigned* a, unsigned limit) {
    return emu::atomic_update(a, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}
__forceinline__ unsigned atomicDec(unsigned* a, unsigned limit) {
    return emu::atomic_update(
        a, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}

// ---- loads, clocks, traps ---------------------------------------------------------------------
template <class T> __forceinline__ T __ldg(const T* p) {
    EMU_LOOKED_AT(p, EMU_CONSTANT);
    return *p;
}
template <class T> __forceinline__ T __ldcg(const T* p) { return *p; }
template <class T> __forceinline__ T __ldcs(const T* p) { return *p; }
template <class T> __forceinline__ void __stcg(T* p, T v) { *p = v; }
template <class T> __forceinline__ void __stcs(T* p, T v) { *p = v; }
__forceinline__ long long clock64() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
__forceinline__ void __trap() { emu_trap("__trap()"); }

// ---- device maths -----------------------------------------------------------------------------
// The fast-maths intrinsics are the exact functions here: a GPU's are less exact, never more.
#define EMU_MATH1(name, expression) \
    __forceinline__ float name(float x) { return expression; }
EMU_MATH1(__expf, ::expf(x))
EMU_MATH1(__exp10f, ::powf(10.0f, x))
EMU_MATH1(__logf, ::logf(x))
EMU_MATH1(__log2f, ::log2f(x))
EMU_MATH1(__log10f, ::log10f(x))
EMU_MATH1(__sinf, ::sinf(x))
EMU_MATH1(__cosf, ::cosf(x))
EMU_MATH1(__frcp_rn, 1.0f / x)
EMU_MATH1(__fsqrt_rn, ::sqrtf(x))
EMU_MATH1(__frsqrt_rn, float(1.0 / ::sqrt(double(x))))
EMU_MATH1(__saturatef, !(x > 0.0f) ? 0.0f : x > 1.0f ? 1.0f : x)
EMU_MATH1(rsqrtf, 1.0f / ::sqrtf(x))
#undef EMU_MATH1
__forceinline__ double rsqrt(double x) { return 1.0 / ::sqrt(x); }
__forceinline__ float __powf(float x, float y) { return ::powf(x, y); }
__forceinline__ float __fdividef(float x, float y) { return x / y; }
__forceinline__ float __fdiv_rn(float x, float y) { return x / y; }
__forceinline__ float __fadd_rn(float x, float y) { return x + y; }
__forceinline__ float __fsub_rn(float x, float y) { return x - y; }
__forceinline__ float __fmul_rn(float x, float y) { return x * y; }
__forceinline__ double __dmul_rn(double x, double y) { return x * y; }
__forceinline__ float __fmaf_rn(float x, float y, float z) { return ::fmaf(x, y, z); }
__forceinline__ float __int_as_float(int x) { return emu::from_bits<float>(emu::to_bits(x)); }
__forceinline__ int __float_as_int(float x) { return emu::from_bits<int>(emu::to_bits(x)); }
__forceinline__ float __uint_as_float(unsigned x) {
    return emu::from_bits<float>(emu::to_bits(x));
}
__forceinline__ unsigned __float_as_uint(float x) {
    return emu::from_bits<unsigned>(emu::to_bits(x));
}
__forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__forceinline__ int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__forceinline__ int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
__forceinline__ int __ffs(int x) { return __builtin_ffs(x); }

#define EMU_MINMAX(T)                                                \
    __forceinline__ T min(T a, T b) { return b < a ? b : a; }        \
    __forceinline__ T max(T a, T b) { return a < b ? b : a; }
EMU_MINMAX(int)
EMU_MINMAX(unsigned)
EMU_MINMAX(long)
EMU_MINMAX(unsigned long)
EMU_MINMAX(long long)
EMU_MINMAX(unsigned long long)
#undef EMU_MINMAX
// As on the GPU, the float versions return the other operand where one is NaN.
__forceinline__ float min(float a, float b) { return ::fminf(a, b); }
__forceinline__ float max(float a, float b) { return ::fmaxf(a, b); }
__forceinline__ double min(double a, double b) { return ::fmin(a, b); }
__forceinline__ double max(double a, double b) { return ::fmax(a, b); }

// ---- exports: name → trampoline that unpacks void** by the function's own type -----------------
namespace emu {
template <class T> constexpr const char* scalar_name() {
    using U = std::remove_cv_t<T>;
    if (std::is_same<U, float>::value) return "f32";
    if (std::is_same<U, double>::value) return "f64";
    if (std::is_same<U, __half>::value) return "f16";
    if (std::is_same<U, __nv_bfloat16>::value) return "bf16";
    if (std::is_same<U, bool>::value) return "bool";
    if (std::is_integral<U>::value) {
        constexpr size_t n = [] {
            if constexpr (std::is_integral<U>::value) return sizeof(U);
            else return size_t(0);
        }();
        return std::is_signed<U>::value ? (n == 1 ? "i8" : n == 2 ? "i16" : n == 4 ? "i32" : "i64")
                                        : (n == 1 ? "u8" : n == 2 ? "u16" : n == 4 ? "u32" : "u64");
    }
    return nullptr;
}
struct Text { char c[64] = {}; };
// The name of a struct, without the namespaces that it stands in: what g++ says of T.
template <class T> constexpr Text struct_name() {
    Text t;
    const char* s = __PRETTY_FUNCTION__;
    while (*s && !(s[0] == 'T' && s[1] == ' ' && s[2] == '=')) ++s;
    int n = 0;
    for (s += *s ? 4 : 0; *s && *s != ']' && *s != ';' && n < 40; ++s) {
        if (s[0] == ':' && s[1] == ':') n = 0, ++s;
        else t.c[n++] = *s;
        if (*s == '<') break;
    }
    for (int i = n; i < 40; ++i) t.c[i] = 0;
    return t;
}
template <class T> constexpr Text type_name() {
    constexpr bool pointer = std::is_pointer<T>::value;
    using Pointee = std::remove_pointer_t<T>;
    using Own = std::remove_cv_t<std::conditional_t<pointer, Pointee, T>>;
    Text t;
    int n = 0;
    if (pointer && std::is_const<Pointee>::value)
        for (const char* s = "const "; *s; ++s) t.c[n++] = *s;
    Text own = struct_name<Own>();
    const char* name = scalar_name<Own>();
    for (const char* s = name ? name : own.c; *s; ++s) t.c[n++] = *s;
    if (pointer) t.c[n++] = '*';
    return t;
}
template <class T> constexpr uint32_t size_of() {
    if constexpr (std::is_void<T>::value || std::is_function<T>::value) return 1;
    else return sizeof(T);
}
// LAB_FIELDS (lab/fields.cuh) specialises it for a struct that the host fills in.
#define EMU_FIELDS 1
template <class T> struct fields {
    static constexpr const EmuField* table = nullptr;
    static constexpr uint32_t count = 0;
};
template <class T> struct field_type {
    static constexpr Text text = type_name<std::remove_all_extents_t<T>>();
};
template <class T> struct parameter {
    static constexpr bool pointer = std::is_pointer<T>::value;
    using Pointee = std::remove_pointer_t<T>;
    static constexpr Text text = type_name<T>();
    static constexpr EmuParameter entry() {
        return {text.c, sizeof(T), pointer ? size_of<Pointee>() : 0, fields<std::remove_cv_t<T>>::table,
                fields<std::remove_cv_t<T>>::count};
    }
};
// As many as there are commas, and one; none in an empty text.
constexpr size_t count_names(const char* names) {
    size_t n = *names != 0;
    for (; *names; ++names) n += *names == ',';
    return n;
}
// Not looked at by the checks: the arguments lie in the host's memory.
#define EMU_UNCHECKED __attribute__((no_sanitize("thread")))
template <auto F> struct trampoline;
template <class... A, void (*F)(A...)> struct trampoline<F> {
    template <size_t... I> EMU_UNCHECKED static void unpack(void** a, std::index_sequence<I...>) {
        F(*static_cast<std::remove_reference_t<A>*>(a[I])...);
    }
    EMU_UNCHECKED static void call(void** a) { unpack(a, std::index_sequence_for<A...>{}); }
    static constexpr size_t count = sizeof...(A);
    static constexpr EmuParameter parameters[] = {parameter<A>::entry()..., {}};
    static const void* function() { return (const void*)F; }
    static constexpr EmuExport entry(const char* name, const char* names, uint32_t threads,
                                     uint32_t shared) {
        return {name, names, &call, &function, parameters, uint32_t(count), threads, shared};
    }
    // Names that were read wrongly are an error here, not a launch with the wrong arguments.
    template <size_t NAMES> static constexpr bool named() {
        static_assert(NAMES == 0 || NAMES == count, "as many names as the kernel has parameters");
        return true;
    }
};
}  // namespace emu
// Comma-safe: the expression saxpy<float, 4> arrives as several macro arguments.
#define EMU_EXPORT(text, names, threads, shared, ...)                                              \
    (::emu::trampoline<&__VA_ARGS__>::named<::emu::count_names(names)>(),                          \
     ::emu::trampoline<&__VA_ARGS__>::entry(text, names, threads, shared))
