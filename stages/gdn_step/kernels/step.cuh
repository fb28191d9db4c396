// What the versions of a step share.
#pragma once
#include "lab/scalar.cuh"

namespace lab {

// What is left of a number of the state: nothing where nothing is kept, even of ∞.
__device__ __forceinline__ float keep(float kept, float x) { return kept == 0 ? 0.0f : kept * x; }

}  // namespace lab
