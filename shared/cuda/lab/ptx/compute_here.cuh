// Where registers are computed. PTX has no word for it: an empty text that takes them keeps the compiler from moving what is
// before it.
#pragma once

namespace lab {

// These values are computed here: the compiler would put that off until they are used, behind a wait.
template <int N> __device__ __forceinline__ void compute_here(float (&values)[N]) {
#ifndef LAB_EMULATOR
#pragma unroll
    for (int n = 0; n < N; ++n) asm volatile("" : "+f"(values[n]));
#endif
}

// An integer that the compiler takes for a new one: what follows from it is computed behind this place, where otherwise addresses would
// be computed before a loop and take registers in all of it.
__device__ __forceinline__ int computed_here(int x) {
#ifndef LAB_EMULATOR
    asm volatile("" : "+r"(x));
#endif
    return x;
}

}  // namespace lab
