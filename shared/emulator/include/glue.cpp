// Compiled once into every kernel object, never instrumented. See emulator_abi.h.
#include "emulator_abi.h"

// Kernels are compiled without tail calls, so that callers stay on the stack. Here they matter: a
// coroutine that comes back finds the processor's return predictor filled by others, so each
// level to return through costs a misprediction.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("optimize-sibling-calls")
#endif

static const EmuRuntime* runtime;

#define CALLER __builtin_return_address(0)
#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
uint32_t emu_coordinate(int which) { return runtime->coordinate(which); }
void* emu_dynamic_shared() { return runtime->dynamic_shared(); }
uint32_t emu_dynamic_shared_bytes() { return runtime->dynamic_shared_bytes(); }
int32_t emu_barrier(int kind, int32_t predicate) {
    return runtime->barrier(kind, predicate, CALLER);
}
uint64_t emu_warp(int op, uint32_t mask, uint64_t value, uint32_t argument, uint32_t width) {
    return runtime->warp(op, mask, value, argument, width, CALLER);
}
uint32_t emu_active_mask() { return runtime->active_mask(); }
void emu_grid_sync() { runtime->grid_sync(CALLER); }
void emu_yield_point(int sleeping) { runtime->yield_point(sleeping, CALLER); }
void emu_trap(const char* message) {
    runtime->trap(message, CALLER);
    __builtin_unreachable();
}
}

EXPORT void emu_bind(const EmuRuntime* table) { runtime = table; }

// `__shared__` variables are thread_local; touching one of them makes the C library allocate this
// OS thread's copy, whose extent the runtime then reads off the program headers.
static thread_local char shared_anchor;
EXPORT void* emu_touch_shared() { return &shared_anchor; }
