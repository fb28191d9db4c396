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

}  // namespace lab
