// Flags between blocks: a release store after the data, an acquire load before it.
//
// What a thread wrote, or knows to be written, before its release is seen by whoever acquires the
// value. For a whole block: a barrier, then one thread's release; one thread's acquire, then a
// barrier. PTX ISA, "Memory Consistency Model".
#pragma once

namespace lab {

template <class T> __device__ __forceinline__ T load_acquire(const T* address) {
    static_assert(sizeof(T) == 4, "flags are words of 4 bytes");
#ifdef LAB_EMULATOR
    return emu::load_acquire(address);
#else
    unsigned word;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    return *reinterpret_cast<T*>(&word);
#endif
}

template <class T> __device__ __forceinline__ void store_release(T* address, T value) {
    static_assert(sizeof(T) == 4, "flags are words of 4 bytes");
#ifdef LAB_EMULATOR
    emu::store_release(address, value);
#else
    unsigned word = *reinterpret_cast<unsigned*>(&value);
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
#endif
}

// Adds 1, and makes 0 of `last`. The fence before it goes on through the additions of others: whoever acquires a later
// value sees what all of them had written.
__device__ __forceinline__ void increment_release(unsigned* counter, unsigned last) {
#ifdef LAB_EMULATOR
    __threadfence();
    atomicInc(counter, last);
#else
    asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(last) : "memory");
#endif
}

}  // namespace lab
