// Kernels that are wrong; tests/faults.rs looks for the line marked HERE in each report.
#include <cooperative_groups.h>

// ANCHOR: half_exits
// Right, in CUDA too: lanes that have exited are not waited for.
__global__ void half_exits(int*) {
    if (threadIdx.x < 16) __syncwarp();
}
// ANCHOR_END: half_exits
// ANCHOR: half_waits
__global__ void half_waits(int* x) {
    if (threadIdx.x < 16) x[0] = __shfl_sync(0xffffffffu, 1, 0);  // HERE half_waits
    __syncthreads();
}
// ANCHOR_END: half_waits
__global__ void mixed(int* out) {
    if (threadIdx.x % 2)
        __syncthreads();
    else
        out[0] = __syncthreads_count(1);  // HERE mixed
}
__global__ void spins_on_atomic(int* flag) {
    while (atomicAdd(flag, 0) == 0) {  // HERE spins_on_atomic
    }
}
__global__ void spins_in_registers(int* flag) {
    volatile int* f = flag;
    while (*f == 0) {  // HERE spins_in_registers
    }
}
__global__ void bad_address(int* x) {
    x[threadIdx.x - (1ll << 40)] = 1;  // HERE bad_address
}
__global__ void divides(int* x) {
    x[1] = 7 / x[0];  // HERE divides
}
__global__ void divides_the_least(int* x) {
    x[1] = (-2147483647 - 1) / (x[0] - 1);  // HERE divides_the_least
}
__attribute__((noinline)) int deep(volatile int* x, int n) {
    volatile int frame[256];
    frame[n % 256] = n;
    return n == 0 ? x[0] : deep(x, n - 1) + frame[n % 256];
}
__global__ void overflows(int* x) { x[1] = deep(x, 1000000); }
__global__ void lone_grid_sync(int*) {
    cooperative_groups::this_grid().sync();  // HERE lone_grid_sync
}
__global__ void leaves_the_grid(int*) {
    if (blockIdx.x == 1) return;
    cooperative_groups::this_grid().sync();  // HERE leaves_the_grid
}
__global__ void not_in_mask(int* x) {
    x[threadIdx.x] = __shfl_sync(0x1u, 1, 0);  // HERE not_in_mask
}
__global__ void traps(int* x) {
    if (x[0] == 0) __trap();  // HERE traps
}

// Right, but slow: every thread computes for a while, and nobody waits for anybody.
__global__ void works_long(int* x) {
    unsigned state = threadIdx.x + 1;
    for (int i = 0; i < 20000000; ++i) state = state * 1664525u + 1013904223u;
    x[threadIdx.x] = int(state);
}

// Each warp leaves its sum, all add those up; then once more. Without the barrier between the two,
// a quick warp writes its second sum while others still read the first.
template <bool GUARDED> __global__ void sums_twice(int* out) {
    __shared__ int partial[8];
    for (int round = 1; round <= 2; ++round) {
        int v = round;
        for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
        __syncthreads();
        int total = 0;
        for (int w = 0; w < 8; ++w) total += __shfl_sync(0xffffffffu, partial[w], 0);
        out[(round - 1) * 256 + threadIdx.x] = total;
        if (GUARDED) __syncthreads();  // nobody reads the first sums any more
    }
}
