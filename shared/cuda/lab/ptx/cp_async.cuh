// Copies from device memory into shared memory that go on while the thread does: cp.async, sm_80.
//
// A thread issues copies, closes them into a group, and waits for its groups in the order in which
// it closed them. Its own copies are there after its wait; those of others after a barrier besides.
// PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy".
#pragma once

namespace lab {

// BYTES at `from`, in device memory, to `to`, in shared memory; both multiples of BYTES.
template <int BYTES> __device__ __forceinline__ void async_copy(void* to, const void* from) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
#ifdef LAB_EMULATOR
    emu_async_copy(to, from, BYTES);
#else
    unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (BYTES == 16) {  // past the L1 cache, which keeps nothing that is used once
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(BYTES)
                     : "memory");
    }
#endif
}

// As async_copy, but zeros where `inside` is false; `from` is then not looked at.
template <int BYTES>
__device__ __forceinline__ void async_copy_or_zero(void* to, const void* from, bool inside) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
#ifdef LAB_EMULATOR
    if (inside)
        emu_async_copy(to, from, BYTES);
    else if constexpr (BYTES == 16)
        *static_cast<uint4*>(to) = uint4(0, 0, 0, 0);
    else if constexpr (BYTES == 8)
        *static_cast<uint2*>(to) = uint2(0, 0);
    else
        *static_cast<unsigned*>(to) = 0;
#else
    unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
    int bytes = inside ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from),
                     "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(from),
                     "n"(BYTES), "r"(bytes)
                     : "memory");
    }
#endif
}

// Closes a group: the copies issued since the last one.
__device__ __forceinline__ void async_commit() {
#ifdef LAB_EMULATOR
    emu_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until at most the PENDING latest of this thread's groups are under way.
template <int PENDING> __device__ __forceinline__ void async_wait() {
#ifdef LAB_EMULATOR
    emu_async_wait(PENDING);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

}  // namespace lab
