// The contract between compiled kernels and the Rust runtime (src/hooks.rs mirrors it).
// Kernels call the emu_* functions; glue.cpp adds the caller's address and forwards through the
// table that the runtime binds when it loads the object.
#pragma once
#include <cstddef>
#include <cstdint>

enum EmuCoordinate : int {
    EMU_THREAD_X, EMU_THREAD_Y, EMU_THREAD_Z,
    EMU_BLOCK_X, EMU_BLOCK_Y, EMU_BLOCK_Z,
    EMU_BLOCK_DIM_X, EMU_BLOCK_DIM_Y, EMU_BLOCK_DIM_Z,
    EMU_GRID_DIM_X, EMU_GRID_DIM_Y, EMU_GRID_DIM_Z,
    EMU_CLUSTER_RANK, EMU_CLUSTER_SIZE,
};

// How a block barrier combines the predicates of its threads.
enum EmuBarrier : int { EMU_BARRIER_PLAIN, EMU_BARRIER_COUNT, EMU_BARRIER_AND, EMU_BARRIER_OR };

// Collectives of the lanes named in a mask.
enum EmuWarp : int {
    EMU_WARP_SYNC,
    EMU_WARP_SHUFFLE, EMU_WARP_SHUFFLE_UP, EMU_WARP_SHUFFLE_DOWN, EMU_WARP_SHUFFLE_XOR,
    EMU_WARP_ALL, EMU_WARP_ANY, EMU_WARP_BALLOT,
    EMU_WARP_MATCH_ANY, EMU_WARP_MATCH_ALL,
    EMU_WARP_ADD, EMU_WARP_MIN_UNSIGNED, EMU_WARP_MAX_UNSIGNED,
    EMU_WARP_MIN_SIGNED, EMU_WARP_MAX_SIGNED,
    EMU_WARP_AND, EMU_WARP_OR, EMU_WARP_XOR,
    // Of all 32 lanes, on small matrices. Their value is the address of what the lane brings.
    EMU_WARP_LOAD_MATRICES, EMU_WARP_LOAD_MATRICES_TRANSPOSED,
    EMU_WARP_MMA_F16, EMU_WARP_MMA_BF16, EMU_WARP_MMA_TF32,
};

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

// How far a fence reaches.
enum EmuScope : int { EMU_SCOPE_BLOCK, EMU_SCOPE_DEVICE };

// What a strong access does: atomics, volatile accesses, loads and stores with an order.
enum EmuAccess : unsigned {
    EMU_READS = 1, EMU_WRITES = 2, EMU_ACQUIRES = 4, EMU_RELEASES = 8,
    EMU_POLLS = 16,  // it may be what a loop waits with: others get their turn
};

// Added to the size of an access that no single instruction makes, so that it need not be aligned.
constexpr size_t EMU_LOOSE = size_t(1) << 40;

extern "C" {

struct EmuRuntime {
    uint32_t (*coordinate)(int which);
    int32_t (*barrier)(int kind, int32_t predicate, const void* pc);
    uint64_t (*warp)(int op, uint32_t mask, uint64_t value, uint32_t argument, uint32_t width,
                     const void* pc);
    uint32_t (*active_mask)();
    void (*grid_sync)(const void* pc);
    void (*cluster_sync)(const void* pc);
    void* (*map_shared)(const void* own, uint32_t rank, const void* pc);
    void (*yield_point)(int sleeping, const void* pc);
    void* (*dynamic_shared)();
    uint32_t (*dynamic_shared_bytes)();
    void (*trap)(const char* message, const void* pc);
    void (*misaligned)(const char* what, uint32_t bytes, const void* pc);
    void (*fence)(int scope, const void* pc);
    void (*async_copy)(void* to, const void* from, uint32_t bytes, const void* pc);
    void (*async_commit)();
    void (*async_wait)(uint32_t pending);
    // Called before each access, by kernels that are compiled for the checks.
    void (*read)(const void* address, size_t bytes, const void* pc);
    void (*write)(const void* address, size_t bytes, const void* pc);
    void (*access)(const void* address, size_t bytes, unsigned flags, const void* pc);
    // An index that its array, of this type, does not have.
    void (*bounds)(const char* type, int64_t index, const void* pc);
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
};

// A __device__ or __constant__ variable that the host may set.
struct EmuGlobal {
    const char* name;
    void* address;
    uint64_t size;
};

// Const: a coroutine's coordinates never change, so the compiler may hoist and merge the calls.
__attribute__((const)) uint32_t emu_coordinate(int which);
__attribute__((const)) void* emu_dynamic_shared();
__attribute__((const)) uint32_t emu_dynamic_shared_bytes();
int32_t emu_barrier(int kind, int32_t predicate);
uint64_t emu_warp(int op, uint32_t mask, uint64_t value, uint32_t argument, uint32_t width);
EmuWords emu_load_matrices(int op, const void* shared, uint64_t low, uint64_t high);
EmuFloats emu_mma(int op, uint64_t a0, uint64_t a2, uint64_t b, float c0, float c1, float c2,
                  float c3);
uint32_t emu_active_mask();
void emu_grid_sync();
void emu_cluster_sync();
// The same place in the shared memory of block `rank` of the cluster.
void* emu_map_shared(const void* own, uint32_t rank);
void emu_yield_point(int sleeping);
void emu_fence(int scope);
void emu_async_copy(void* to, const void* from, uint32_t bytes);
void emu_async_commit();
void emu_async_wait(uint32_t pending);
void emu_access(const void* address, size_t bytes, unsigned flags);
[[noreturn]] void emu_trap(const char* message);
[[noreturn]] void emu_misaligned(const char* what, uint32_t bytes);
}
