// What the blocks of a group hand each other through device memory, where they are more than a cluster holds: all are
// resident, and each has flags, the number of steps that it has given. Flags that the same blocks ask for lie in a line of
// memory of their own, and few blocks ask for it: the L2 cache answers those who ask for the same line one by one.
#pragma once
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/order.cuh"
#include "tensor_back.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

constexpr int FLAGS_OF_LINE = 32;

// Until the blocks whose COUNT flags lie there have given so many steps: for THREADS threads, whole warps, that meet at the
// barrier of this number. They see what those blocks had written before.
template <int COUNT, int THREADS>
__device__ __forceinline__ void wait_for_blocks(const unsigned* flags, unsigned steps, int thread, int barrier) {
    static_assert(COUNT <= 32, "a lane of one warp for each flag");
    if (thread < COUNT)
        while (load_acquire(flags + thread) < steps) {}
    named_barrier_sync(barrier, THREADS);
}

// This block has given so many steps, when all its threads have come: COUNT flags, STRIDE apart.
template <int COUNT, int STRIDE> __device__ __forceinline__ void tell_blocks(unsigned* flags, unsigned steps) {
    __syncthreads();
    if (threadIdx.x < COUNT) store_release(flags + threadIdx.x * STRIDE, steps);
}

// COUNT numbers from device memory into a box, by the same threads: then it is an operand of wgmma.
template <int COUNT, int THREADS, class T>
__device__ __forceinline__ void fetch_operand(T* box, const T* from, int thread, int barrier) {
    constexpr int OF_COPY = 16 / sizeof(T);
    static_assert(COUNT % OF_COPY == 0, "whole copies");
#pragma unroll
    for (int i = 0; i < COUNT; i += OF_COPY * THREADS) {
        int at = i + thread * OF_COPY;
        if (COUNT % (OF_COPY * THREADS) == 0 || at < COUNT) async_copy<16>(box + at, from + at);
    }
    async_commit(), async_wait<0>();
    fence_proxy_async_shared();  // wgmma reads what threads have copied
    named_barrier_sync(barrier, THREADS);
}

// The sums of a warpgroup for other threads of its block: the four gates of a unit side by side (gate_groups.cuh), the
// units of a row of the batch likewise, rows S::PITCH apart.
template <class S> __device__ __forceinline__ void store_gate_sums(float* to, const float (&sum)[S::CELLS][4]) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, u = threadIdx.x / 32 % 4 * 4 + g / 2;
    to += 2 * t * S::PITCH + GATES * u + g % 2 * 2;
#pragma unroll
    for (int n = 0; n < S::CELLS; ++n, to += 8 * S::PITCH) {
        *reinterpret_cast<float2*>(to) = make_float2(sum[n][0], sum[n][2]);
        *reinterpret_cast<float2*>(to + S::PITCH) = make_float2(sum[n][1], sum[n][3]);
    }
}
// The same of a tile of 64 units.
template <class S> __device__ __forceinline__ void store_unit_sums(float* to, const float (&sum)[S::COLUMNS / 2]) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    to += 2 * t * S::PITCH + threadIdx.x / 32 % 4 * 16 + g;
#pragma unroll
    for (int n = 0; n < S::COLUMNS / 2; n += 4, to += 8 * S::PITCH) {
        to[0] = sum[n], to[S::PITCH] = sum[n + 1];
        to[8] = sum[n + 2], to[S::PITCH + 8] = sum[n + 3];
    }
}

}  // namespace lab
#endif
