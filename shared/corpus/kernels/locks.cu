// Barriers, locks and boxes made by hand: the fences around them are what makes them more than a place
// to wait at.

// ---- a barrier of the grid, made by hand ------------------------------------------------------

template <bool FENCED> __device__ void grid_barrier(unsigned* arrived, unsigned goal) {
    __syncthreads();
    if (threadIdx.x == 0) {
        if (FENCED) __threadfence();
        atomicAdd(arrived, 1u);
        while (atomicAdd(arrived, 0u) < goal) __nanosleep(20);
        if (FENCED) __threadfence();
    }
    __syncthreads();
}
// All blocks meet, but nothing says that they see what the others wrote.
__global__ void grid_barrier_unfenced(int* x, unsigned* arrived, int* out) {
    int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = i;  // BUG grid_barrier_unfenced
    grid_barrier<false>(arrived, gridDim.x);
    out[i] = x[n - 1 - i];  // BUG grid_barrier_unfenced
}
// With the fences, twice in a row.
__global__ void grid_barrier_fenced(int* x, unsigned* arrived, int* out) {
    int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = i;
    grid_barrier<true>(arrived, gridDim.x);
    out[i] = x[n - 1 - i];
    grid_barrier<true>(arrived, 2 * gridDim.x);
    x[i] = out[n - 1 - i];
}

// ---- a lock; one thread a block ---------------------------------------------------------------

// The lock may be open before the new count is seen.
__global__ void lock_without_release(int* lock, int* count) {
    while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);
    __threadfence();
    *count += 1;  // BUG lock_without_release
    atomicExch(lock, 0);
}
// The old count may be one from before the lock was taken.
__global__ void lock_without_acquire(int* lock, int* count) {
    while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);
    *count += 1;  // BUG lock_without_acquire
    __threadfence();
    atomicExch(lock, 0);
}
// Opened by a plain store, against the atomics of those that try.
__global__ void lock_plain_unlock(int* lock, int* count) {
    while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);  // BUG lock_plain_unlock
    __threadfence();
    *count += 1;  // BUG lock_plain_unlock
    __threadfence();
    *lock = 0;  // BUG lock_plain_unlock
}
// A fence behind the taking, a fence before the giving back.
__global__ void lock_with_fences(int* lock, int* count) {
    while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);
    __threadfence();
    *count += 1;
    __threadfence();
    atomicExch(lock, 0);
}

// ---- two warps of a block ---------------------------------------------------------------------

// A volatile flag alone orders nothing, within a block either.
__global__ void shared_flag_without_fence(int* out, int value) {
    __shared__ int data;
    __shared__ volatile int ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        data = value;  // BUG shared_flag_without_fence
        ready = 1;
    } else if (threadIdx.x == 32) {
        while (ready == 0) __nanosleep(20);
        out[0] = data;  // BUG shared_flag_without_fence
    }
}
// A producer and a consumer, with a box for one number and a flag each way.
__global__ void producer_and_consumer(int* out, int rounds) {
    __shared__ int box;
    __shared__ volatile int full;
    if (threadIdx.x == 0) full = 0;
    __syncthreads();
    for (int k = 0; k < rounds; ++k) {
        if (threadIdx.x == 0) {
            while (full != 0) __nanosleep(20);
            __threadfence_block();
            box = k * k;
            __threadfence_block();
            full = 1;
        } else if (threadIdx.x == 32) {
            while (full == 0) __nanosleep(20);
            __threadfence_block();
            out[k] = box;
            __threadfence_block();
            full = 0;
        }
    }
}
