// Grids that begin before the one before them has ended. x has a number for each thread.
#include <cooperative_groups.h>

#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/grid_dependency.cuh"
#include "lab/ptx/order.cuh"

constexpr int THREADS = 64;

// Writes x, and lets the next grid begin before it does.
__global__ void produce(const int* from, int* x) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    lab::griddep_launch_dependents();
    x[i] = from[i] + 1;  // HERE produce
}

// The same, without a word to the next grid: its end is one.
__global__ void produce_silent(const int* from, int* x) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    x[i] = from[i] + 1;  // HERE produce_silent
}

// Writes x, then all blocks meet and only read it.
__global__ void produce_and_meet(const int* from, int* x, int* out) {
    int i = blockIdx.x * THREADS + threadIdx.x, n = gridDim.x * THREADS;
    x[i] = from[i] + 1;
    cooperative_groups::this_grid().sync();
    out[i] = x[n - 1 - i];
}

// Only reads x.
__global__ void watch(const int* x, int* seen) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    seen[i] = x[i];  // HERE watch
}

// What it needs of nobody comes first, then the wait.
__global__ void consume(const int* weights, const int* x, int* out) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    int weight = weights[i];
    lab::griddep_launch_dependents();
    lab::griddep_wait();
    out[i] = weight * x[i];
}

// The same, and the next grid begins behind the wait.
__global__ void consume_first(const int* weights, const int* x, int* out) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    int weight = weights[i];
    lab::griddep_wait();
    lab::griddep_launch_dependents();
    out[i] = weight * x[i];
}

// BUG: reads too early.
__global__ void read_early(const int* weights, const int* x, int* out) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    int value = x[i];  // HERE read_early
    lab::griddep_wait();
    out[i] = weights[i] * value;
}

// BUG, if anybody uses `out`: writes too early.
__global__ void write_early(const int* weights, int* out) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    out[i] = weights[i];  // HERE write_early
    lab::griddep_wait();
}

// BUG, if the grid before writes x or uses `out`; else there is nothing to wait for.
__global__ void never_wait(const int* x, int* out) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    out[i] = 2 * x[i];  // HERE never_wait
}

// One thread waits, the others meet it; without BARRIER they do not.
template <bool BARRIER> __global__ void one_waits(const int* x, int* out) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (threadIdx.x == 40) lab::griddep_wait();
    if (BARRIER) __syncthreads();
    out[i] = 2 * x[i];  // HERE one_waits<false>
}

// Each half of the word is another thread's, and who writes it reads both.
__global__ void produce_halves(short* x, int* out) {
    x[threadIdx.x] = short(threadIdx.x);
    __syncthreads();
    int i = threadIdx.x / 2 * 2;
    out[threadIdx.x] = x[i] + x[i + 1];
}

// Writes an odd half of each word, or an even one.
__global__ void halves_early(short* x, int odd) {
    if (threadIdx.x % 2 == odd) x[threadIdx.x] = 0;
    lab::griddep_wait();
}

// Everybody adds.
__global__ void count(int* counter, int waits) {
    if (waits) lab::griddep_wait();
    atomicAdd(counter, 1);
}

// By cp.async.
__global__ void copy_early(const int* x, int* out, int early) {
    __shared__ __align__(16) int tile[THREADS];
    if (!early) lab::griddep_wait();
    if (threadIdx.x % 4 == 0) lab::async_copy<16>(tile + threadIdx.x, x + threadIdx.x);  // HERE copy_early
    lab::async_commit();
    lab::griddep_wait();
    lab::async_wait<0>();
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}

// The block that comes first tells the other by a flag that it has waited; without WAITS it has not.
template <bool WAITS> __global__ void flagged(const int* x, int* out, int* flag) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (threadIdx.x == 0) {
        if (atomicAdd(flag + 1, 1) == 0) {
            if (WAITS) lab::griddep_wait();
            lab::store_release(flag, 1);
        } else {
            while (lab::load_acquire(flag) == 0) __nanosleep(20);
        }
    }
    __syncthreads();
    out[i] = 2 * x[i];  // HERE flagged<false>
}

// The even blocks let the next grid begin before they have waited, the odd ones behind.
__global__ void consume_by_turns(const int* weights, const int* x, int* out) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (blockIdx.x % 2 == 0) lab::griddep_launch_dependents();
    lab::griddep_wait();
    lab::griddep_launch_dependents();
    out[i] = weights[i] * x[i];
}
