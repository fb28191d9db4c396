// Products of wgmma whose operands lie wherever random descriptors say, for the sums to be compared bit by
// bit: src/descriptors.rs.
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/wgmma.cuh"

using namespace lab;

// C [count, 64, N] = A B, of operands in `bytes` of shared memory, filled with `window`. Four words of
// `descriptors` a product: that of A, that of B, which begin as if the window did at 0. With REGISTERS A is
// not there but in `registers`, four words a thread and product.
template <class T, int N, int A_T, int B_T, int REGISTERS> __global__ void __launch_bounds__(128)
    described(const unsigned* window, int bytes, const unsigned* descriptors,
              const unsigned* registers, float* C, int count) {
    DYNAMIC_SHARED(unsigned, memory);
    for (int i = threadIdx.x; i < bytes / 4; i += 128) memory[i] = window[i];
    fence_proxy_async();
    __syncthreads();  // all of the window is written, and fenced
    unsigned long long first = descriptor<16>(memory, 0, 0);
    auto bits = [&](int i) { return (descriptors[i] | (unsigned long long)descriptors[i + 1] << 32) + first; };
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int n = 0; n < count; ++n) {
        float d[N / 2];
        unsigned a[4];
        for (int r = 0; r < 4; ++r) a[r] = registers[(n * 128 + threadIdx.x) * 4 + r];
        unsigned long long of_a = bits(4 * n), of_b = bits(4 * n + 2);
        for (int i = 0; i < N / 2; ++i) d[i] = n;
        wgmma_fence();
        if constexpr (REGISTERS) wgmma<T, N, B_T != 0>(d, a, of_b);
        else wgmma<T, N, A_T != 0, B_T != 0>(d, of_a, of_b);
        wgmma_commit();
        wgmma_wait<0>();
        for (int i = 0; i < N / 2; ++i) {
            int row = 16 * warp + g + i % 4 / 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
            C[(n * 64 + row) * N + column] = d[i];
        }
    }
}
