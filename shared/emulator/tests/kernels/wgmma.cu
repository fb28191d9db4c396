// wgmma, right and wrong; tests/wgmma.rs says what must come of each.
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/wgmma.cuh"

using namespace lab;

enum Fault { NONE, NO_FENCE, NO_WAIT, NO_COMMIT, NO_PROXY_FENCE, REFILLED, NOT_ALL, OTHER_ORDER, EXIT };

// C [64, 8] = A B, A [64, 64], B [8, 64], both K-major with 128-byte spans, swizzled by hand.
template <int FAULT> __global__ void __launch_bounds__(128) product(const __half* A, const __half* B, float* C) {
    alignas(1024) __shared__ __half a[64 * 64], b[8 * 64];
    auto at = [](int row, int k) { return row * 64 + ((k / 8 ^ row % 8) * 8 + k % 8); };
    for (int i = threadIdx.x; i < 64 * 64; i += 128) a[at(i / 64, i % 64)] = A[i];
    for (int i = threadIdx.x; i < 8 * 64; i += 128) b[at(i / 64, i % 64)] = B[i];
    if (FAULT != NO_PROXY_FENCE) fence_proxy_async_shared();
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float d[4] = {};
    if (FAULT != NO_FENCE) wgmma_fence();
    if (FAULT != NOT_ALL || warp != 3) {
        for (int k = 0; k < 64; k += 16) {
            int from = FAULT == OTHER_ORDER && warp == 2 ? 48 - k : k;
            wgmma<__half, 8>(d, advance(descriptor<128>(a, 16, 1024), 2 * from),
                             advance(descriptor<128>(b, 16, 1024), 2 * from));
        }
        if (FAULT != NO_COMMIT) wgmma_commit();
        if (FAULT == REFILLED) b[at(t, lane)] = __half(0.0f);
        if (FAULT == EXIT) return;
        if (FAULT != NO_WAIT) wgmma_wait<0>();
    }
    for (int i = 0; i < 4; ++i) C[(16 * warp + g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
    if (FAULT == NO_WAIT) wgmma_wait<0>();
}
