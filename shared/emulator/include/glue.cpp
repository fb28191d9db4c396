// Compiled once into every kernel object, never instrumented. See emulator_abi.h.
#include <cstring>

#include "emulator_abi.h"

// Kernels are compiled without tail calls, so that callers stay on the stack. Here they matter: a
// coroutine that comes back finds the processor's return predictor filled by others, so each
// level to return through costs a misprediction.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("optimize-sibling-calls")
#endif

// Before the runtime is bound, constructors of a program's own variables run: nobody looks at them.
static uint64_t nothing() { return 0; }
static const EmuRuntime unbound = {
#define EMU_HOOK(attributes, result, name, parameters, arguments) \
    reinterpret_cast<decltype(EmuRuntime::name)>(nothing),
#define EMU_PROBE(name, parameters) reinterpret_cast<decltype(EmuRuntime::name)>(nothing),
#include "contract.def"
};
static const EmuRuntime* runtime = &unbound;

#define CALLER __builtin_return_address(0)
#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
#define EMU_WITH_CALLER(...) (__VA_ARGS__ __VA_OPT__(,) CALLER)
#define EMU_HOOK(attributes, result, name, parameters, arguments) \
    result emu_##name parameters { return runtime->name EMU_WITH_CALLER arguments; }
#include "contract.def"

EmuWords emu_load_matrices(int op, const void* shared, uint64_t low, uint64_t high) {
    EmuRow own = {shared, {low, high}, {}};
    runtime->warp(op, ~0u, uint64_t(&own), 0, 32, CALLER);
    return {own.to[0], own.to[1]};
}
EmuFloats emu_mma(int op, uint64_t a0, uint64_t a2, uint64_t b, float c0, float c1, float c2,
                  float c3) {
    EmuShare own = {{a0, a2}, b, {c0, c1, c2, c3}};
    runtime->warp(op, ~0u, uint64_t(&own), 0, 32, CALLER);
    return {{own.c[0], own.c[1], own.c[2], own.c[3]}};
}

// ---- what a kernel compiled for the checks calls -------------------------------------------------
// g++ instruments for its thread sanitizer, whose runtime is not linked: these stand in for it.
#ifdef EMU_CHECKED

void emu_access(const void* address, size_t bytes, unsigned flags) {
    runtime->access(address, bytes, flags, CALLER);
}

#define HOOKS(n)                                                                                  \
    void __tsan_read##n(void* a) { runtime->read(a, n, CALLER); }                                 \
    void __tsan_write##n(void* a) { runtime->write(a, n, CALLER); }                               \
    void __tsan_unaligned_read##n(void* a) { runtime->read(a, n | EMU_LOOSE, CALLER); }           \
    void __tsan_unaligned_write##n(void* a) { runtime->write(a, n | EMU_LOOSE, CALLER); }         \
    void __tsan_volatile_read##n(void* a) {                                                       \
        runtime->access(a, n, EMU_READS | EMU_POLLS | EMU_VOLATILE, CALLER);                      \
    }                                                                                             \
    /* What lab-kernel-build makes of one that a loop waits by. */                                \
    void emu_awaited_read##n(void* a) {                                                           \
        runtime->access(a, n, EMU_READS | EMU_POLLS | EMU_VOLATILE | EMU_AWAITS, CALLER);         \
    }                                                                                             \
    void __tsan_volatile_write##n(void* a) {                                                      \
        runtime->access(a, n, EMU_WRITES | EMU_VOLATILE, CALLER);                                 \
    }                                                                                             \
    void __tsan_unaligned_volatile_read##n(void* a) {                                             \
        runtime->access(a, n, EMU_READS | EMU_POLLS | EMU_VOLATILE, CALLER);                      \
    }                                                                                             \
    void __tsan_unaligned_volatile_write##n(void* a) {                                            \
        runtime->access(a, n, EMU_WRITES | EMU_VOLATILE, CALLER);                                 \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* a, size_t n) { runtime->read(a, n | EMU_LOOSE, CALLER); }
void __tsan_write_range(void* a, size_t n) { runtime->write(a, n | EMU_LOOSE, CALLER); }
void __tsan_vptr_read(void** a) { runtime->read(a, 8, CALLER); }
void __tsan_vptr_update(void** a, void*) { runtime->write(a, 8, CALLER); }
void __tsan_init() {}

// Arrays whose size the compiler knows, in registers or wherever. Both as g++ lays them out.
struct BoundsType {
    uint16_t kind, info;
    char name[1];
};
struct Bounds {
    const char* file;
    uint32_t line, column;
    const BoundsType *array, *index;
};
void __ubsan_handle_out_of_bounds(const Bounds* at, uintptr_t index) {
    runtime->bounds(at->array->name, int64_t(index), CALLER);
}
// Programs are compiled with the checks of alignment as well: `p->x` of a float2 reads four bytes, but
// the compiler of a GPU may read all eight. And with those of objects, which ask for no alignment: the size of a local
// variable is known where its address was taken.
struct Mismatch {
    const char* file;
    uint32_t line, column;
    const BoundsType* type;
    unsigned char log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1(const Mismatch* at, uintptr_t address) {
    const void* used = reinterpret_cast<const void*>(address);
    size_t alignment = size_t(1) << at->log_alignment;
    if (address % alignment)
        runtime->alignment(used, alignment, CALLER);
    else
        runtime->beyond_local(used, at->type->name, CALLER);
}

// The shim announces each atomic by emu_access; what g++ made of its body is only to be done.
#define ATOMICS(bits, T)                                                                          \
    T __tsan_atomic##bits##_load(const volatile T* a, int) {                                      \
        return __atomic_load_n(a, __ATOMIC_SEQ_CST);                                              \
    }                                                                                             \
    void __tsan_atomic##bits##_store(volatile T* a, T v, int) {                                   \
        __atomic_store_n(a, v, __ATOMIC_SEQ_CST);                                                 \
    }                                                                                             \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T* a, T* seen, T v, int, int) {    \
        return __atomic_compare_exchange_n(a, seen, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// These have no hook of their own; lab-kernel-build makes a kernel's calls come here.
void* emu_memcpy(void* to, const void* from, size_t n) {
    runtime->read(from, n | EMU_LOOSE, CALLER);
    runtime->write(to, n | EMU_LOOSE, CALLER);
    return memcpy(to, from, n);
}
void* emu_memmove(void* to, const void* from, size_t n) {
    runtime->read(from, n | EMU_LOOSE, CALLER);
    runtime->write(to, n | EMU_LOOSE, CALLER);
    return memmove(to, from, n);
}
void* emu_memset(void* to, int value, size_t n) {
    // A large local variable without a value, on the stack above this call: see prepare_for_checks of lab-kernel-build.
    if (value == 0xFE && n % 4 == 0 && uintptr_t(to) - uintptr_t(__builtin_frame_address(0)) < (1 << 20)) {
        for (size_t i = 0; i < n / 4; ++i) static_cast<uint32_t*>(to)[i] = 0x7FFEFEFE;
        return to;
    }
    runtime->write(to, n | EMU_LOOSE, CALLER);
    return memset(to, value, n);
}
#endif
}

EXPORT void emu_bind(const EmuRuntime* table) { runtime = table; }

// What the runtime compares before it binds: see `Contract` in src/module.rs.
constexpr char CONTRACT[] =
#define EMU_HOOK(attributes, result, name, parameters, arguments) \
    "HOOK " #attributes " " #result " " #name " " #parameters "\n"
#define EMU_PROBE(name, parameters) "PROBE " #name " " #parameters "\n"
#define EMU_COORDINATE(name) "COORDINATE " #name "\n"
#define EMU_BARRIER(name, cuda_name) "BARRIER " #name "\n"
#define EMU_COLLECTIVE(name, cuda_name, operand) "COLLECTIVE " #name " " #operand "\n"
#define EMU_VALUE(type, name, value) "VALUE " #type " " #name " " #value "\n"
#include "contract.def"
    ;
constexpr uint64_t fnv1a(const char* text) {
    uint64_t hash = 0xcbf29ce484222325;
    for (; *text; ++text) hash = (hash ^ uint8_t(*text)) * 0x100000001b3;
    return hash;
}
extern "C" {
__attribute__((visibility("default"))) extern const uint64_t emu_contract[7];
const uint64_t emu_contract[7] = {fnv1a(CONTRACT),  sizeof(EmuRuntime),   sizeof(EmuRow),
                                  sizeof(EmuShare), sizeof(EmuParameter), sizeof(EmuExport),
                                  sizeof(EmuGlobal)};
}

// `__shared__` variables are thread_local; touching one of them makes the C library allocate this
// OS thread's copy, whose extent the runtime then reads off the program headers.
static thread_local char shared_anchor;
EXPORT void* emu_touch_shared() { return &shared_anchor; }
#ifdef EMU_CHECKED
extern "C" {
__attribute__((visibility("default"))) extern const char emu_checked;
const char emu_checked = 1;
}
#endif
