// Tensor cores, a warp at a time: ldmatrix (sm_75) and mma.sync (sm_80) for halves and TF32.
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

// Elements of k that one multiply_add takes: 32 bytes of a row.
template <class T> constexpr int MMA_K = 32 / sizeof(T);

// Four 8 x 8 matrices of halves from shared memory. Lane l brings the address of row l % 8 of matrix
// l / 8, a multiple of 16; it gets two neighbours of each: row l / 4, columns 2 (l % 4) and the next.
// Rows of 4-byte elements are 8 x 4 matrices then, and a lane gets column l % 4.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
#ifdef LAB_EMULATOR
    emu::load_matrices(to, row, false);
#else
    unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared)
                 : "memory");
#endif
}

// The same, each matrix transposed: a lane gets rows 2 (l % 4) and the next of column l / 4. For
// halves only; an element is two bytes to it.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], const void* row) {
#ifdef LAB_EMULATOR
    emu::load_matrices(to, row, true);
#else
    unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared)
                 : "memory");
#endif
}

template <class T> constexpr bool is_f16 = false;
template <> constexpr bool is_f16<__half> = true;

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

// The bits of an f32 rounded to TF32: 8 of exponent as f32 has, 10 of mantissa as f16 has. The
// tensor cores ignore the 13 bits below; unrounded that would be a cut, twice the error and to one
// side.
__device__ __forceinline__ unsigned to_tf32(unsigned f32) {
#ifdef LAB_EMULATOR
    return emu::to_tf32(f32);
#else
    unsigned tf32;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(tf32) : "f"(__uint_as_float(f32)));
    return tf32;
#endif
}
