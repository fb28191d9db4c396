// Races and their absence in global memory: within a block, between blocks, with and without
// atomics.
#include <cooperative_groups.h>

// ---- within a block ---------------------------------------------------------------------------

// The neighbour may have moved on already.
__global__ void shift_in_place(float* x, int n) {
    int t = threadIdx.x;
    if (t + 1 < n) x[t] = x[t + 1];  // BUG shift_in_place
}
// All have read, then all write.
__global__ void shift_by_registers(float* x, int n) {
    int t = threadIdx.x;
    float v = t + 1 < n ? x[t + 1] : 0.0f;
    __syncthreads();
    x[t] = v;
}
// A stencil of three points that overwrites its own input.
__global__ void stencil_in_place(double* x, int n) {
    int t = threadIdx.x;
    if (t == 0 || t + 1 >= n) return;
    double sum = x[t - 1] + x[t] + x[t + 1];  // BUG stencil_in_place
    x[t] = sum / 3.0;  // BUG stencil_in_place
}
// Each element is its thread's own.
__global__ void elementwise_in_place(double* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * x[i];
}
// Two values in one bin: one of them is lost.
__global__ void shared_histogram_plain(const int* x, int* out, int n) {
    __shared__ int bins[8];
    int t = threadIdx.x;
    if (t < 8) bins[t] = 0;
    __syncthreads();
    for (int i = t; i < n; i += blockDim.x) bins[x[i] % 8] += 1;  // BUG shared_histogram_plain
    __syncthreads();
    if (t < 8) out[t] = bins[t];
}
// Atomics in shared memory, then one for each block and bin in global memory.
__global__ void histogram_in_two_levels(const int* x, int* out, int n) {
    __shared__ int bins[8];
    int t = threadIdx.x;
    if (t < 8) bins[t] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&bins[x[i] % 8], 1);
    __syncthreads();
    if (t < 8) atomicAdd(&out[t], bins[t]);
}
// The counter is set while others add.
__global__ void reset_against_atomics(int* out) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;  // BUG reset_against_atomics
    atomicAdd(&count, 1);  // BUG reset_against_atomics
    __syncthreads();
    if (threadIdx.x == 0) out[0] = count;
}
// All write the same number: a race in letter, allowed in practice, and common.
__global__ void same_value(const int* x, int* out) {
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    if (x[threadIdx.x] > 10) found = 1;
    __syncthreads();
    out[threadIdx.x] = found;
}
// A bit each, by atomics: the place in the list is nobody else's.
__global__ void atomic_bits_and_places(unsigned* bits, int* places) {
    __shared__ int next;
    int t = threadIdx.x;
    if (t == 0) next = 0;
    __syncthreads();
    atomicOr(&bits[t / 32], 1u << t % 32);
    places[atomicAdd(&next, 1)] = 1;
}

// ---- between blocks ---------------------------------------------------------------------------

// Every block believes the output its own.
__global__ void blocks_write_same(int* out) {
    out[threadIdx.x] = blockIdx.x;  // BUG blocks_write_same
}
// Nothing says that the other block has written yet.
__global__ void reads_other_block(float* x, float* out) {
    int t = threadIdx.x;
    x[blockIdx.x * 32 + t] = t;  // BUG reads_other_block
    out[blockIdx.x * 32 + t] = x[(blockIdx.x + 1) % gridDim.x * 32 + t];  // BUG reads_other_block
}
// A barrier of one block orders nothing for another.
__global__ void block_barrier_for_grid(float* x, float* out) {
    if (threadIdx.x == 0) x[blockIdx.x] = blockIdx.x;  // BUG block_barrier_for_grid
    __syncthreads();
    if (threadIdx.x < gridDim.x)
        out[blockIdx.x * 32 + threadIdx.x] = x[threadIdx.x];  // BUG block_barrier_for_grid
}
// The grid's barrier does.
__global__ void grid_sync_between(float* x, float* out) {
    if (threadIdx.x == 0) x[blockIdx.x] = blockIdx.x;
    cooperative_groups::this_grid().sync();
    if (threadIdx.x < gridDim.x) out[blockIdx.x * gridDim.x + threadIdx.x] = x[threadIdx.x];
}
// Two buffers and one barrier of the grid a round.
__global__ void grid_sync_rounds(int* x, int* y, int rounds) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < rounds; ++k) {
        int* from = k % 2 ? y : x;
        int* to = k % 2 ? x : y;
        to[i] = from[(i + 1) % n] + 1;
        grid.sync();
    }
}
// One block's sum gets lost under another's.
__global__ void sum_without_atomic(const float* x, float* out) {
    if (threadIdx.x == 0) out[0] += x[blockIdx.x];  // BUG sum_without_atomic
}
// The numbers are small integers: exact in any order.
__global__ void sum_by_atomics(const float* x, float* out) {
    atomicAdd(out, x[blockIdx.x * blockDim.x + threadIdx.x]);
}
// Bins in global memory, without atomics.
__global__ void global_histogram_plain(const unsigned char* x, unsigned* bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) bins[x[i]] += 1;  // BUG global_histogram_plain
}
// A counter that others still count up is read as if it stood still.
__global__ void counter_read_plainly(int* counter, int* out) {
    atomicAdd(counter, 1);  // BUG counter_read_plainly
    if (threadIdx.x == 0) out[blockIdx.x] = *counter;  // BUG counter_read_plainly
}
// A store and an atomic of different blocks.
__global__ void store_against_atomic(int* counter) {
    if (blockIdx.x == 0)
        *counter = 0;  // BUG store_against_atomic
    else
        atomicAdd(counter, 1);  // BUG store_against_atomic
}
// Work is taken by number: whoever comes gets the next piece.
__global__ void tickets(int* next, const float* x, float* out, int n) {
    __shared__ int piece;
    for (;;) {
        if (threadIdx.x == 0) piece = atomicAdd(next, 1);
        __syncthreads();
        int mine = piece;
        __syncthreads();
        if (mine * 32 >= n) return;
        int i = mine * 32 + threadIdx.x;
        if (i < n) out[i] = x[i] + 1.0f;
    }
}
// The largest float, by compare and swap.
__global__ void float_max_by_cas(const float* x, unsigned* best) {
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    unsigned seen = atomicAdd(best, 0u);
    while (__uint_as_float(seen) < v) {
        unsigned before = atomicCAS(best, seen, __float_as_uint(v));
        if (before == seen) break;
        seen = before;
    }
}
// Smallest and largest, by atomics.
__global__ void integer_extremes(const int* x, int* least, int* most) {
    int v = x[blockIdx.x * blockDim.x + threadIdx.x];
    atomicMin(least, v);
    atomicMax(most, v);
}
