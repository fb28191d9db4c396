// Dropout of what one layer hands to the next: an element is zero with probability p, and else
// multiplied by 1 / (1 − p). Which elements depends on the seed, the step of training, the layer and
// the element alone (lab/philox.cuh): the way back has the same ones, and nothing is kept.
//
// Work split: a thread an element. A grid of ceil(N / 256) blocks.
#include "lab/philox.cuh"
#include "lab/progress.cuh"
#include "lab/scalar.cuh"

using namespace lab;

constexpr int THREADS = 256;

// threshold: p 2³². factor: 1 / (1 − p).
template <class T>
__global__ void __launch_bounds__(THREADS)
    dropout(const T* __restrict__ from, T* __restrict__ to, const long long* __restrict__ counts,
            unsigned long long seed, unsigned threshold, math_t<T> factor, int layer,
            long long N) {
    long long n = blockIdx.x * 1ll * THREADS + threadIdx.x;
    if (n >= N) return;
    unsigned long long at = (unsigned long long)layer << 48 | (unsigned long long)counts[TAKEN];
    bool kept = philox(n, at, seed).v[0] >= threshold;
    to[n] = from_math<T>(kept ? to_math(from[n]) * factor : math_t<T>(0));
}
