// ldmatrix, sm_75: a warp's fragments of small matrices in shared memory, as mma.sync takes them
// (lab/ptx/mma.cuh). PTX ISA, "Warp-level matrix load instruction: ldmatrix".
#pragma once

namespace lab {

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

}  // namespace lab
