// Compiled once into every program, never instrumented: its entry, the tables that a module has, and the
// calls of g++'s thread sanitizer that host code makes and kernels do not.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>
#include <typeinfo>

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "emulator_abi.h"
#include "runtime/allowed.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" void* __libc_malloc(size_t);
extern "C" void __libc_free(void*);

// Kernels are described where they are launched.
EXPORT const EmuExport emu_exports[1];
EXPORT const unsigned emu_export_count;
EXPORT const EmuGlobal emu_globals[1];
EXPORT const unsigned emu_global_count;
const EmuExport emu_exports[1] = {};
const unsigned emu_export_count = 0;
const EmuGlobal emu_globals[1] = {};
const unsigned emu_global_count = 0;

extern "C" int emu_in_kernel() { return emu::host->in_kernel(); }
extern "C" int emu_is_launch() { return !emu::host->in_kernel() || emu::host->is_nested(); }
// A copy: kernels read it too, and may read what is the program's.
static EmuHost own_table;
EXPORT void emu_bind_host(const EmuHost* table) {
    own_table = *table;
    emu::host = &own_table;
}

extern "C" void emu_allow_shared(const void* kernel, size_t bytes) { emu::allowed_shared()[kernel] = bytes; }

// Arguments as they are when a launch is captured, each where any type may lie. In no namespace of the program's.
namespace {
struct Captured {
    static constexpr size_t UNIT = 64;
    struct alignas(UNIT) Unit {
        char bytes[UNIT];
    };
    std::vector<Unit> units;
    std::vector<size_t> sizes;
    Captured(const EmuExport& kernel, void** arguments, const size_t* all) : sizes(all, all + kernel.parameter_count) {
        for (size_t n = 0; n < sizes.size(); ++n) {
            size_t at = units.size();
            units.resize(at + (sizes[n] + UNIT - 1) / UNIT);
            memcpy(units[at].bytes, arguments[n], sizes[n]);
        }
    }
    void launch(const EmuExport& kernel, const void* function) {
        std::vector<void*> arguments;
        size_t at = 0;
        for (size_t size : sizes) {
            arguments.push_back(units[at].bytes);
            at += (size + UNIT - 1) / UNIT;
        }
        arguments.push_back(nullptr);
        emu_launch_configured(&kernel, function, arguments.data(), sizes.data());
    }
};
}  // namespace
extern "C" void emu_launch_configured(const EmuExport* kernel, const void* function, void** arguments,
                                      const size_t* sizes) {
    using namespace emu;
    if (in_kernel()) {
        host->launch_later(kernel, arguments);
        return;
    }
    if (sticky_error != cudaSuccess) return;
    if (capturing) {
        dim3 grid(configured_grid[0], configured_grid[1], configured_grid[2]);
        dim3 block(configured_block[0], configured_block[1], configured_block[2]);
        size_t shared = configured_shared;
        int cooperative = configured_cooperative;
        unsigned cluster = configured_cluster;
        Captured captured(*kernel, arguments, sizes);
        capturing->push_back([=, kernel = *kernel]() mutable {
            configure(grid, block, shared, nullptr, cooperative, cluster);
            captured.launch(kernel, function);
        });
        return;
    }
    if (!is_allowed(function, configured_shared)) {
        host->refuse("a launch: expected at most 48 KiB of dynamic shared memory, or a call of cudaFuncSetAttribute that "
                     "asks for more");
        keep(cudaErrorInvalidValue);
        return;
    }
    bool overlaps = configured_overlap && !came_between && configured_stream == last_stream;
    came_between = false;
    last_stream = configured_stream;
    int code = host->launch(kernel, configured_grid, configured_block, configured_shared, configured_cooperative,
                            configured_cluster, overlaps, arguments);
    if (code == cudaErrorLaunchFailure) sticky_error = cudaErrorLaunchFailure;
    keep(code);
}

// C++ forbids to call main by its name. Every declaration of it has this symbol. Where one kernel alone is
// launched, what main needs is not asked for.
#ifdef EMU_ONE_KERNEL
static int (*const emu_main_of_program)(int, char**) = nullptr;
#else
extern "C" int emu_main_of_program(int, char**) __asm__("main") __attribute__((weak));
#endif
EXPORT int emu_has_main() { return emu_main_of_program != nullptr; }
template <class Run> static int run_program(Run run) {
    try {
        return run();
    } catch (const std::exception& e) {
        fflush(stdout);
        fprintf(stderr, "the program ended with an exception: %s\n", e.what());
    } catch (...) {
        fflush(stdout);
        fprintf(stderr, "the program ended with an exception\n");
    }
    return 1;
}
EXPORT int emu_run_main(int count, char** arguments) {
    return run_program([=] { return emu_main_of_program(count, arguments); });
}

// What the loader would have called: the program's static initialisers.
using Initialiser = void (*)(int, char**, char**);
static void end_of_quick_exit();
EXPORT int emu_initialise(const Initialiser* first, size_t count, int arguments_count, char** arguments) {
    at_quick_exit(end_of_quick_exit);  // the first that is asked for is the last that is called
    return run_program([=] {
        for (size_t n = 0; n < count; ++n) first[n](arguments_count, arguments, environ);
        return 0;
    });
}

// Ends of a program without a return from main: what was found is told all the same.
static int quick_status;
static void end_of_quick_exit() {
    if (emu::host) emu::host->end(quick_status);
}
extern "C" void emu_stop(const char*) __asm__("emu_trap");
extern "C" void emu_quick_exit(int status) __asm__("quick_exit");
extern "C" void emu_quick_exit(int status) {
    if (emu::host && emu::host->in_kernel()) return emu_stop("it calls quick_exit, a function of the host");
    quick_status = status;
    reinterpret_cast<void (*)(int)>(dlsym(RTLD_NEXT, "quick_exit"))(status);
}
static void exit_at_once(int status) {
    if (emu::host && emu::host->in_kernel()) return emu_stop("it calls _exit, a function of the host");
    syscall(SYS_exit_group, status);  // which tells it
}
extern "C" void emu_exit_at_once(int status) __asm__("_exit");
extern "C" void emu_exit_at_once(int status) { exit_at_once(status); }
extern "C" void emu_exit_at_once_of_c(int status) __asm__("_Exit");
extern "C" void emu_exit_at_once_of_c(int status) { exit_at_once(status); }
__asm__(".hidden _exit, _Exit, quick_exit, printf");

// What the compiler of CUDA refuses in a kernel, this one cannot see: a kernel that calls a function of the host stops. The
// calls of this object alone come here; a program's own function of such a name comes first. Without a frame of its own, so
// that the report names the kernel's line.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("optimize-sibling-calls")
#endif
#define HOST_ONLY(result, name, parameters, arguments) HOST_ONLY_AFTER((void)0, result, name, parameters, arguments)
// The same, and where the program calls it `first` is done.
#define HOST_ONLY_AFTER(first, result, name, parameters, arguments)                              \
    __asm__(".hidden " #name);                                                                   \
    extern "C" __attribute__((weak)) result emu_host_##name parameters __asm__(#name);           \
    extern "C" result emu_host_##name parameters {                                               \
        if (emu::host && emu::host->in_kernel())                                                 \
            return reinterpret_cast<result (*)(const char*)>(emu_stop)(                          \
                "it calls " #name ", a function of the host");                                   \
        first;                                                                                   \
        static result(*real) parameters;                                                         \
        if (!real) real = reinterpret_cast<result(*) parameters>(dlsym(RTLD_NEXT, #name));       \
        return real arguments;                                                                   \
    }
HOST_ONLY(void, exit, (int status), (status))
HOST_ONLY(void, abort, (), ())
HOST_ONLY(int, raise, (int signal), (signal))
HOST_ONLY(int, system, (const char* command), (command))
HOST_ONLY(void*, popen, (const char* command, const char* type), (command, type))
HOST_ONLY(int, fork, (), ())
HOST_ONLY(void, longjmp, (void* to, int value), (to, value))
HOST_ONLY(void, _longjmp, (void* to, int value), (to, value))
HOST_ONLY(void, siglongjmp, (void* to, int value), (to, value))
HOST_ONLY(void, __longjmp_chk, (void* to, int value), (to, value))
HOST_ONLY(void*, fopen, (const char* path, const char* mode), (path, mode))
HOST_ONLY(char*, getenv, (const char* name), (name))
HOST_ONLY(int, rand, (), ())
HOST_ONLY(void, srand, (unsigned seed), (seed))
HOST_ONLY(long, random, (), ())
HOST_ONLY(void, srandom, (unsigned seed), (seed))
HOST_ONLY(long, strtol, (const char* text, char** end, int base), (text, end, base))
HOST_ONLY(double, strtod, (const char* text, char** end), (text, end))
HOST_ONLY(int, setenv, (const char* name, const char* value, int over), (name, value, over))
HOST_ONLY(int, remove, (const char* path), (path))
HOST_ONLY(int, unlink, (const char* path), (path))
HOST_ONLY(int, rename, (const char* from, const char* to), (from, to))
HOST_ONLY(ssize_t, read, (int file, void* to, size_t bytes), (file, to, bytes))
HOST_ONLY(ssize_t, write, (int file, const void* from, size_t bytes), (file, from, bytes))
HOST_ONLY(int, close, (int file), (file))
HOST_ONLY(long, time, (long* to), (to))
HOST_ONLY(unsigned, alarm, (unsigned seconds), (seconds))
HOST_ONLY(int, nanosleep, (const void* time, void* left), (time, left))
HOST_ONLY(int, sched_yield, (), ())
HOST_ONLY(void, pthread_exit, (void* result), (result))
HOST_ONLY(unsigned, sleep, (unsigned seconds), (seconds))
HOST_ONLY(int, usleep, (unsigned microseconds), (microseconds))
HOST_ONLY(int, getpid, (), ())
HOST_ONLY(int, kill, (int process, int signal), (process, signal))
// Another program takes the place of this one, of which nothing is checked: where something was found, it does not come to it.
static void tell_replaced() {
    constexpr int REPLACED = 1 << 16;  // no status: as `end_at_once` of program.rs has it
    if (emu::host) emu::host->end(REPLACED);
}
#define REPLACES(name, parameters, arguments) HOST_ONLY_AFTER(tell_replaced(), int, name, parameters, arguments)
REPLACES(execv, (const char* path, char* const* arguments), (path, arguments))
REPLACES(execvp, (const char* path, char* const* arguments), (path, arguments))
REPLACES(execve, (const char* path, char* const* arguments, char* const* all), (path, arguments, all))
REPLACES(execvpe, (const char* path, char* const* arguments, char* const* all), (path, arguments, all))
REPLACES(fexecve, (int file, char* const* arguments, char* const* all), (file, arguments, all))
static void tell_exit(long number, long status) {
    if (number == SYS_exit_group && emu::host) emu::host->end(int(status));
}
HOST_ONLY_AFTER(tell_exit(number, a), long, syscall, (long number, long a, long b, long c, long d, long e, long f),
                (number, a, b, c, d, e, f))
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

// Those whose arguments are a list become those whose arguments are an array.
static char** listed(const char* first, va_list list, char*** all) {
    va_list again;
    va_copy(again, list);
    size_t count = 1;
    for (const char* word = first; word; word = va_arg(again, const char*)) ++count;
    va_end(again);
    char** words = static_cast<char**>(__libc_malloc(count * sizeof(char*)));
    if (!words) return nullptr;
    size_t n = 0;
    for (const char* word = first; word; word = va_arg(list, const char*)) words[n++] = const_cast<char*>(word);
    words[n] = nullptr;
    if (all) *all = va_arg(list, char**);
    return words;
}
#define LISTED(name, environment, call)                                                          \
    __asm__(".hidden " #name);                                                                   \
    extern "C" __attribute__((weak)) int emu_host_##name(const char*, const char*, ...) __asm__(#name); \
    extern "C" int emu_host_##name(const char* path, const char* first, ...) {                   \
        char** all = environ;                                                                    \
        va_list list;                                                                            \
        va_start(list, first);                                                                   \
        char** words = listed(first, list, environment);                                         \
        va_end(list);                                                                            \
        int result = words ? call : -1;                                                          \
        __libc_free(words);                                                                      \
        return result;                                                                           \
    }
LISTED(execl, nullptr, execve(path, words, all))
LISTED(execle, &all, execve(path, words, all))
LISTED(execlp, nullptr, execvpe(path, words, all))

// A kernel's text is made before the stream is locked: a thread that faults while it makes it, as by an address for %s that
// is none, does not come back to unlock it.
static int print_in_kernel(const char* format, va_list list) {
    for (const char* c = format; *c; ++c) {
        if (*c != '%') continue;
        c += 1 + strspn(c + 1, "-+ #0123456789.*hlLqjzt");
        if (*c == 'n') {
            emu::host->unsupported("%n in the printf of a kernel");
            return -1;
        }
        if (!*c) break;
    }
    char text[2048];
    va_list again;
    va_copy(again, list);
    int length = vsnprintf(text, sizeof text, format, again);
    va_end(again);
    if (length < int(sizeof text)) return length < 0 ? length : int(fwrite(text, 1, size_t(length), stdout));
    char* whole = static_cast<char*>(__libc_malloc(size_t(length) + 1));
    if (!whole) return -1;
    vsnprintf(whole, size_t(length) + 1, format, list);
    fwrite(whole, 1, size_t(length), stdout);
    __libc_free(whole);
    return length;
}
extern "C" int printf(const char* format, ...) {
    va_list list;
    va_start(list, format);
    int count = emu::host && emu::host->in_kernel() ? print_in_kernel(format, list) : vprintf(format, list);
    va_end(list);
    return count;
}

// Memory that a kernel asks for is the device's; it counts as written. Of this object alone: nobody else's calls come here. The C
// library's headers say that these are visible, so only the assembler can say otherwise.
__asm__(".hidden malloc, free, _Znwm, _Znam, _ZdlPv, _ZdaPv, _ZdlPvm, _ZdaPvm");
static bool is_in_kernel() { return emu::host && emu::host->in_kernel(); }
extern "C" void* malloc(size_t bytes) {
    return is_in_kernel() ? emu::host->allocate(bytes, EMU_MANAGED) : __libc_malloc(bytes);
}
extern "C" void free(void* address) {
    if (address && is_in_kernel())
        emu::host->release(address, EMU_MANAGED);
    else
        __libc_free(address);
}
void* operator new(size_t bytes) {
    if (void* address = malloc(bytes ? bytes : 1)) return address;
    throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* address) noexcept { free(address); }
void operator delete[](void* address) noexcept { free(address); }
void operator delete(void* address, size_t) noexcept { free(address); }
void operator delete[](void* address, size_t) noexcept { free(address); }

// The same name is the C library's on the host and a count of cycles in a kernel: one a nanosecond.
extern "C" clock_t clock() noexcept {
    timespec t;
    bool in_kernel = emu_in_kernel();
    clock_gettime(in_kernel ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    int64_t nanoseconds = t.tv_sec * 1000000000ll + t.tv_nsec;
    return in_kernel ? nanoseconds : nanoseconds / (1000000000 / CLOCKS_PER_SEC);
}

#ifdef EMU_DEBUG
EXPORT int emu_wanted_thread[3], emu_wanted_block[3];
int emu_wanted_thread[3], emu_wanted_block[3];
extern "C" int emu_is_wanted_thread() {
    for (int i = 0; i < 3; ++i) {
        if (int(emu_coordinate(EMU_THREAD_X + i)) != emu_wanted_thread[i]) return 0;
        if (int(emu_coordinate(EMU_BLOCK_X + i)) != emu_wanted_block[i]) return 0;
    }
    return 1;
}
extern "C" __attribute__((noinline)) void emu_debug_here() { __asm__ volatile(""); }
#endif

#ifdef EMU_CHECKED
extern "C" {
#define ATOMIC_OPERATION(bits, T, operation)                                      \
    T __tsan_atomic##bits##_fetch_##operation(volatile T* a, T v, int) {          \
        return __atomic_fetch_##operation(a, v, __ATOMIC_SEQ_CST);                \
    }
#define ATOMIC_OPERATIONS(bits, T)                                                 \
    ATOMIC_OPERATION(bits, T, add)                                                 \
    ATOMIC_OPERATION(bits, T, sub)                                                 \
    ATOMIC_OPERATION(bits, T, and)                                                 \
    ATOMIC_OPERATION(bits, T, or)                                                  \
    ATOMIC_OPERATION(bits, T, xor)                                                 \
    T __tsan_atomic##bits##_exchange(volatile T* a, T v, int) {                    \
        return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST);                        \
    }                                                                              \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile T* a, T* seen, T v, int, int) { \
        return __atomic_compare_exchange_n(a, seen, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }
ATOMIC_OPERATIONS(8, uint8_t)
ATOMIC_OPERATIONS(16, uint16_t)
ATOMIC_OPERATIONS(32, uint32_t)
ATOMIC_OPERATIONS(64, uint64_t)
uint8_t __tsan_atomic8_load(const volatile uint8_t* a, int) {
    return __atomic_load_n(a, __ATOMIC_SEQ_CST);
}
void __tsan_atomic8_store(volatile uint8_t* a, uint8_t v, int) {
    __atomic_store_n(a, v, __ATOMIC_SEQ_CST);
}
int __tsan_atomic8_compare_exchange_strong(volatile uint8_t* a, uint8_t* seen, uint8_t v, int, int) {
    return __atomic_compare_exchange_n(a, seen, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
}
#endif
