// What compiled kernels and the Rust runtime know of each other, expanded from contract.def.
// Kernels call the emu_* functions; glue.cpp adds the caller's address and forwards through the
// table that the runtime binds when it loads the object.
#pragma once
#include <cstddef>
#include <cstdint>

#define EMU_COORDINATE(name) EMU_##name,
enum EmuCoordinate : int {
#include "contract.def"
};
#define EMU_BARRIER(name, cuda_name) EMU_BARRIER_##name,
enum EmuBarrier : int {
#include "contract.def"
};
#define EMU_COLLECTIVE(name, cuda_name, operand) EMU_WARP_##name,
enum EmuWarp : int {
#include "contract.def"
};
#define EMU_VALUE(type, name, value) constexpr type EMU_##name = value;
#include "contract.def"

// What a lane brings to EMU_WARP_LOAD_MATRICES, and what it gets.
struct EmuRow {
    const void* shared;  // where the row was read, if that must be shared memory; null if not
    uint64_t row[2];     // 16 bytes
    uint64_t to[2];      // 4 bytes of each matrix
};

// What a lane brings to EMU_WARP_MMA_*; c is added to.
struct EmuShare {
    uint64_t a[2], b;
    float c[4];
};

// Returned in registers: in memory, each access would be looked at by the checks.
struct EmuWords { uint64_t low, high; };
struct EmuFloats { float v[4]; };

#define EMU_CONST __attribute__((const))
#define EMU_NORETURN __attribute__((noreturn))
// (a, b) and () with the caller's address at the end.
#define EMU_WITH_PC(...) (__VA_ARGS__ __VA_OPT__(,) const void* pc)

extern "C" {

struct EmuRuntime {
#define EMU_HOOK(attributes, result, name, parameters, arguments) \
    attributes result (*name) EMU_WITH_PC parameters;
#define EMU_PROBE(name, parameters) void (*name) EMU_WITH_PC parameters;
#include "contract.def"
};

// Of a struct that host and kernel share (LAB_FIELDS names them).
struct EmuField {
    const char* name;
    const char* type;  // of an array, that of its elements
    uint32_t offset, size;
};

struct EmuParameter {
    const char* type;  // "f32", "const f16*", …; a struct's own name
    uint32_t size;
    uint32_t pointee_size;   // 0 where it is no pointer
    const EmuField* fields;  // of a struct by value; null where they are not named
    uint32_t field_count;
};

struct EmuExport {
    const char* name;  // the C++ expression that names the instantiation: saxpy<float>
    const char* parameter_names;  // with commas between; empty where they were not found
    void (*call)(void** arguments);
    const void* (*function)();  // where the kernel's own code begins
    const EmuParameter* parameters;
    uint32_t parameter_count;
    uint32_t threads;         // of a block, as its launch bounds say; 0 where it has none
    uint32_t dynamic_shared;  // bytes, as NAME_shared says
};

// A __device__ or __constant__ variable that the host may set.
struct EmuGlobal {
    const char* name;
    void* address;
    uint64_t size;
};

#define EMU_HOOK(attributes, result, name, parameters, arguments) \
    attributes result emu_##name parameters;
#include "contract.def"

// What takes more than forwarding: glue.cpp has it.
EmuWords emu_load_matrices(int op, const void* shared, uint64_t low, uint64_t high);
EmuFloats emu_mma(int op, uint64_t a0, uint64_t a2, uint64_t b, float c0, float c1, float c2,
                  float c3);
void emu_access(const void* address, size_t bytes, unsigned flags);
}
