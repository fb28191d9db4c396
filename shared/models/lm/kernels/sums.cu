// Gradients, rounded for their sum over several devices: half of the bytes.
//
//   rounded_n = x_n, to the nearest bf16
//
// Work split: a thread N elements.
//
// x, rounded: n elements.
#include "lab/halves.cuh"
#include "lab/pack.cuh"

using namespace lab;

constexpr int THREADS = 256;

template <int N>
__global__ void __launch_bounds__(THREADS)
    round_gradients(const float* __restrict__ x, __nv_bfloat16* __restrict__ rounded, long long n) {
    static_assert(N == 1 || N == 8, "N is 1, or as many halves as 16 bytes hold");
    long long first = (blockIdx.x * 1ll * THREADS + threadIdx.x) * N;
    if (first >= n) return;
    if constexpr (N == 1) {
        rounded[first] = from_math<__nv_bfloat16>(x[first]);
    } else {
        Pack<float> low = load_pack(x + first), high = load_pack(x + first + 4);
        auto two = [](const Pack<float>& of, int i) { return two_halves<__nv_bfloat16>(of.v[i], of.v[i + 1]); };
        *reinterpret_cast<uint4*>(rounded + first) = {two(low, 0), two(low, 2), two(high, 0), two(high, 2)};
    }
}
