// What host code is rewritten into: a launch is a configuration, and a call of the kernel, which asks who
// calls it and launches itself.
#pragma once
#include <functional>
#include <type_traits>
#include <vector>

#include "types.h"

// What the process that has loaded the program does for it.
struct EmuHost {
    int (*in_kernel)();
    void* (*allocate)(size_t bytes, int kind);
    int (*release)(void* address, int kind);
    int (*copy)(void* to, const void* from, size_t bytes, int kind);
    int (*fill)(void* to, int value, size_t bytes);
    int (*launch)(const EmuExport*, const unsigned* grid, const unsigned* block, size_t shared,
                  int cooperative, unsigned cluster, int overlaps, void** arguments);
    int (*type_of)(const void* address, size_t* bytes);
    int (*adopt)(void* address, size_t bytes);
    int (*disown)(const void* address);
    void (*unsupported)(const char* name);
    // Of kernels: what the next call of a kernel is launched with; whether there is such a call; the launch.
    void (*nest)(const unsigned* grid, const unsigned* block, size_t shared);
    int (*is_nested)();
    int (*launch_later)(const EmuExport*, void** arguments);
    // The program ends itself without a return; of a process that it has forked this returns.
    void (*end)(int status);
    // What a GPU refuses, too.
    void (*refuse)(const char* what);
};
// Of program.cpp, which is not instrumented: kernels ask it too.
extern "C" int emu_in_kernel();
extern "C" int emu_is_launch();
// The bytes of dynamic shared memory that a kernel may have from now on: cudaFuncSetAttribute.
extern "C" void emu_allow_shared(const void* kernel, size_t bytes);
// Launches a kernel with what was configured; its arguments are so many bytes each. Compiled once: each kernel of each program
// comes here.
extern "C" void emu_launch_configured(const EmuExport*, const void* kernel, void** arguments, const size_t* sizes);
enum EmuMemory { EMU_DEVICE, EMU_MANAGED, EMU_HOST };

// Of program.cpp, in a build for a debugger: whether this is the thread that it was asked for, and where the
// debugger stops.
#ifdef EMU_DEBUG
extern "C" int emu_is_wanted_thread();
extern "C" void emu_debug_here();
#define EMU_BEGIN_KERNEL (emu_is_wanted_thread() ? emu_debug_here() : (void)0)
#else
#define EMU_BEGIN_KERNEL (void)0
#endif

namespace emu {
// Not thread_local: what is, is shared memory to the emulator.
inline const EmuHost* host = nullptr;
inline cudaError_t last_error = cudaSuccess;
// A launch that failed leaves nothing that works.
inline cudaError_t sticky_error = cudaSuccess;
inline unsigned configured_grid[3], configured_block[3];
inline size_t configured_shared;
inline int configured_cooperative;
// Blocks of a cluster, along x; 0 for none.
inline unsigned configured_cluster;
// Whether the launch may begin before the one before it, in its stream, has ended; and whether anything came between that
// the stream, or the host, waits by.
inline bool configured_overlap, came_between = true;
inline cudaStream_t configured_stream, last_stream;

// Of a launch that no program makes: any size of dynamic shared memory is asked for.
inline bool any_shared = false;

// What is noted and not done, while a stream is captured.
inline std::vector<std::function<void()>>* capturing = nullptr;
template <class F> bool is_captured(F f) {
    if (capturing) capturing->push_back(f);
    return capturing != nullptr;
}

inline bool in_kernel() { return emu_in_kernel(); }
// What a kernel asks first: whether its caller launches it.
inline bool is_launch() { return emu_is_launch(); }
inline cudaError_t keep(int code) {
    if (code != cudaSuccess) last_error = cudaError_t(code);
    return cudaError_t(code);
}
// Ends the call where a launch has failed before. EMU_QUERY: of what comes between no two launches.
#define EMU_QUERY                                                  \
    if (::emu::sticky_error != cudaSuccess) return ::emu::sticky_error
#define EMU_API                                                    \
    ::emu::came_between = true;                                    \
    EMU_QUERY
inline bool configure(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr,
                      int cooperative = 0, unsigned cluster = 0, bool overlaps = false) {
    unsigned all[6] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
    if (in_kernel()) {
        host->nest(all, all + 3, shared);
        return true;
    }
    for (int i = 0; i < 3; ++i) configured_grid[i] = all[i], configured_block[i] = all[3 + i];
    configured_shared = shared;
    configured_cooperative = cooperative;
    configured_cluster = cluster;
    configured_stream = stream;
    configured_overlap = overlaps;
    return true;
}
// `__cluster_dims__` of a kernel: those of a launch that says nothing else.
inline void cluster_dims(unsigned x, unsigned y = 1, unsigned z = 1) {
    if (y != 1 || z != 1) host->unsupported("a cluster of blocks along y or z");
    if (!configured_cluster) configured_cluster = x;
}
template <class T> struct same { typedef T type; };
template <auto F> struct launcher;
template <class... A, void (*F)(A...)> struct launcher<F> {
    static void launch(const char* name, const char* names, typename same<A>::type... a) {
        void* arguments[] = {(void*)&a..., nullptr};
        static constexpr size_t sizes[] = {sizeof(std::remove_reference_t<A>)..., 0};
        EmuExport export_ = trampoline<F>::entry(name, names, 0, 0);
        emu_launch_configured(&export_, (const void*)F, arguments, sizes);
    }
};
template <auto F, class... A>
void launch_configured(const char* name, const char* names, A... a) {
    launcher<F>::launch(name, names, a...);
}
// `extern __shared__ T x[]` outside of any function.
template <class T> struct Dynamic {
    __forceinline__ operator T*() const { return (T*)emu_dynamic_shared(); }
    template <class I> __forceinline__ T& operator[](I i) const {
        return ((T*)emu_dynamic_shared())[i];
    }
};
[[noreturn]] inline void refuse_ptx(const char* text) {
    static char message[256];
    snprintf(message, sizeof message, "inline PTX, which is not run here: %.180s", text);
    emu_trap(message);
    __builtin_unreachable();
}
template <class... A> [[noreturn]] void inline_ptx(const char* text, A&&...) { refuse_ptx(text); }
}  // namespace emu
