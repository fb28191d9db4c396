// mma.sync, sm_80: the tensor cores, a warp at a time, for halves and TF32.
//
// One instruction of a warp multiplies a 16 x K tile by a K x 8 tile and adds to 16 x 8 in f32;
// K is 16 halves or 8 TF32, 32 bytes of a row either way. All 32 lanes take part, and each holds a
// share, of 4-byte registers. With g = lane / 4 and t = lane % 4 a lane holds
//
//   A  a0  row g     k 2t, 2t+1        B  b0  k 2t, 2t+1      column g     C  c0 c1  row g
//      a1  row g+8   k 2t, 2t+1           b1  k 2t+8, 2t+9    column g        c2 c3  row g+8
//      a2  row g     k 2t+8, 2t+9                                             columns 2t, 2t+1
//      a3  row g+8   k 2t+8, 2t+9
//
// of halves. TF32 is one element a register: k is t where it says 2t, 2t+1, and t+4 where it says
// 2t+8, 2t+9. PTX ISA, "Matrix Fragments for mma.m16n8k16 / .m16n8k8".
#pragma once
#include "lab/scalar.cuh"

namespace lab {

// Elements of k that one multiply_add takes: 32 bytes of a row.
template <class T> constexpr int MMA_K = 32 / sizeof(T);

// c += A B, of T's: __half, __nv_bfloat16, or float, whose registers hold what to_tf32 gives.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
#ifdef LAB_EMULATOR
    emu::multiply_add<T>(c, a, b0, b1);
#else
#define LAB_MMA(types)                                                              \
    asm("mma.sync.aligned." types " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
        "{%0, %1, %2, %3};"                                                         \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                            \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (sizeof(T) == 4)
        LAB_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
    else if constexpr (is_f16<T>)
        LAB_MMA("m16n8k16.row.col.f32.f16.f16.f32");
    else
        LAB_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
#undef LAB_MMA
#endif
}

}  // namespace lab
