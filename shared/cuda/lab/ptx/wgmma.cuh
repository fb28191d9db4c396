// wgmma.mma_async, sm_90a: the tensor cores, four warps at a time, on operands in shared memory, while the
// threads go on. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//
// One instruction of a warpgroup (128 threads, from a multiple of 128 on) multiplies 64 x K by K x N and
// adds to 64 x N in f32; K is 32 bytes. Warp w has rows 16 w to 16 w + 15. With g = lane / 4, t = lane % 4 a
// lane holds of each 8 columns j
//
//   d[4 j]      row g      columns 8 j + 2 t       A in registers: as mma.sync takes it (lab/ptx/mma.cuh)
//   d[4 j + 1]  row g      columns 8 j + 2 t + 1
//   d[4 j + 2], d[4 j + 3] the same of row g + 8
//
// All 128 threads come to each call. Before the first, and after each use of the registers by the thread
// itself, wgmma_fence(). Operands that threads have written by plain stores: fence_proxy_async_shared(), then
// a barrier, before. Until wgmma_wait() nobody touches accumulators or A's registers, or writes the
// operands. What the compiler moves across a fence or a wait, the assembler mends and says so: `lab compile`
// fails on it.
#pragma once
#include "lab/ptx/descriptor.cuh"
#include "lab/ptx/mma.cuh"

#ifdef LAB_CLUSTERS
#ifndef LAB_EMULATOR
#include "lab/ptx/wgmma_shapes.cuh"
#endif

namespace lab {

#ifdef LAB_EMULATOR
namespace wgmma_of {
template <class T>
constexpr unsigned type = sizeof(T) == 4 ? EMU_WGMMA_TF32 : is_f16<T> ? EMU_WGMMA_F16 : EMU_WGMMA_BF16;
}
#endif

// d = A B, or d += A B if `adds`, of T's: __half, __nv_bfloat16, or float, of which TF32 is taken. A and B by
// descriptors. A_TRANSPOSED: consecutive rows of A (m) lie side by side; B_TRANSPOSED: consecutive columns of B (n).
template <class T, int N, bool A_TRANSPOSED = false, bool B_TRANSPOSED = false>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], unsigned long long a, unsigned long long b,
                                      bool adds = true) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256, "8 to 256 columns, a multiple of 8");
    static_assert(sizeof(T) == 2 || !(A_TRANSPOSED || B_TRANSPOSED), "only halves are transposed");
#ifdef LAB_EMULATOR
    constexpr unsigned FLAGS = (A_TRANSPOSED ? EMU_WGMMA_A_TRANSPOSED : 0) |
                               (B_TRANSPOSED ? EMU_WGMMA_B_TRANSPOSED : 0);
    emu_wgmma(d, a, b, nullptr, N | wgmma_of::type<T>, FLAGS | (adds ? EMU_WGMMA_ADDS : 0));
#else
    WgmmaShape<N>::template run<T, A_TRANSPOSED, B_TRANSPOSED>(d, a, b, adds);
#endif
}

// The same with A in registers.
template <class T, int N, bool B_TRANSPOSED = false>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const unsigned (&a)[4], unsigned long long b,
                                      bool adds = true) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256, "8 to 256 columns, a multiple of 8");
    static_assert(sizeof(T) == 2 || !B_TRANSPOSED, "only halves are transposed");
#ifdef LAB_EMULATOR
    constexpr unsigned FLAGS = B_TRANSPOSED ? EMU_WGMMA_B_TRANSPOSED : 0;
    emu_wgmma(d, 0, b, a, N | wgmma_of::type<T>, FLAGS | (adds ? EMU_WGMMA_ADDS : 0));
#else
    WgmmaShape<N>::template run<T, B_TRANSPOSED>(d, a, b, adds);
#endif
}

// d = A B, or d += A B if `adds`, of bytes with sign: sums are whole numbers, exact, and K is 32 bytes of each row. Both by descriptors.
template <int N>
__device__ __forceinline__ void wgmma_bytes(int (&d)[N / 2], unsigned long long a, unsigned long long b, bool adds = true) {
    static_assert(N == 16 || N == 32 || N == 64 || N == 128 || N == 256, "an instruction of wgmma_shapes.cuh");
#ifdef LAB_EMULATOR
    emu_wgmma(reinterpret_cast<float*>(d), a, b, nullptr, N | EMU_WGMMA_S8, adds ? EMU_WGMMA_ADDS : 0);
#else
    WgmmaOfBytes<N>::run(d, a, b, adds);
#endif
}

// What the thread has done with its registers comes before the next wgmma.
__device__ __forceinline__ void wgmma_fence() {
#ifdef LAB_EMULATOR
    emu_wgmma_fence();
#else
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Closes a group: those issued since the last one.
__device__ __forceinline__ void wgmma_commit() {
#ifdef LAB_EMULATOR
    emu_wgmma_commit();
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Until at most the PENDING latest groups are under way.
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
#ifdef LAB_EMULATOR
    emu_wgmma_wait(PENDING);
#else
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}

}  // namespace lab
#endif
