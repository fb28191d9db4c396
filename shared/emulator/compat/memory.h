// Loads and stores with a cache's name, clocks, hints, and where an address lies.
#pragma once
#include "vectors.h"

// Caches change no result.
#define EMU_LOAD(name) \
    template <class T> __forceinline__ T name(const T* p) { return *p; }
EMU_LOAD(__ldca)
EMU_LOAD(__ldlu)
#undef EMU_LOAD
// Fetched anew each time.
template <class T> __forceinline__ T __ldcv(const T* p) {
    if constexpr (std::is_arithmetic<T>::value) return *static_cast<const volatile T*>(p);
    else return *p;
}
template <class T> __forceinline__ void __stwb(T* p, std::common_type_t<T> v) { *p = v; }
template <class T> __forceinline__ void __stwt(T* p, std::common_type_t<T> v) { *p = v; }

// A template, since programs define a function of this name.
template <class = void> __forceinline__ unsigned long long __globaltimer() { return (unsigned long long)clock64(); }
__forceinline__ void __brkpt() { emu_trap("__brkpt()"); }
__forceinline__ void __prof_trigger(int) {}
#ifndef __clang__
#define __builtin_assume(condition) ((void)0)
#endif
#ifndef __assume
#define __assume(condition) ((void)0)
#endif

// A number that shared memory's addresses have in PTX.
__forceinline__ size_t __cvta_generic_to_shared(const void* p) { return emu_shared_number(p); }
