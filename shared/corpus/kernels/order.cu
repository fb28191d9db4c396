// Messages: data, then a flag that says the data is there. Without a release before the flag and an
// acquire behind it nothing orders the data, whatever the hardware did the last time it was asked.
#include "lab/ptx/order.cuh"

using namespace lab;

// ---- the last block adds up what all have left ------------------------------------------------

// A partial may come after the ticket that announces it.
__global__ void last_block_without_fence(const float* x, float* partial, unsigned* done, float* out) {
    partial[blockIdx.x] = 2.0f * x[blockIdx.x];  // BUG last_block_without_fence
    if (atomicAdd(done, 1u) != gridDim.x - 1) return;
    __threadfence();
    float sum = 0.0f;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b];  // BUG last_block_without_fence
    out[0] = sum;
}
// A fence for the threads of the own block; the reader is in another.
__global__ void last_block_narrow_fence(const float* x, float* partial, unsigned* done, float* out) {
    partial[blockIdx.x] = 2.0f * x[blockIdx.x];  // BUG last_block_narrow_fence
    __threadfence_block();
    if (atomicAdd(done, 1u) != gridDim.x - 1) return;
    __threadfence_block();
    float sum = 0.0f;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b];  // BUG last_block_narrow_fence
    out[0] = sum;
}
// A fence before the ticket, a fence behind it.
__global__ void last_block(const float* x, float* partial, unsigned* done, float* out) {
    partial[blockIdx.x] = 2.0f * x[blockIdx.x];
    __threadfence();
    if (atomicAdd(done, 1u) != gridDim.x - 1) return;
    __threadfence();
    float sum = 0.0f;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b];
    out[0] = sum;
}
// The fence of thread 0 covers what the others wrote only if a barrier comes before it.
__global__ void fence_of_one_thread(float* partial, unsigned* done, float* out) {
    __shared__ bool last;
    int t = threadIdx.x, n = blockDim.x * gridDim.x;
    partial[blockIdx.x * blockDim.x + t] = t;  // BUG fence_of_one_thread
    if (t == 0) {
        __threadfence();
        last = atomicAdd(done, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last) return;
    float sum = 0.0f;
    for (int i = t; i < n; i += blockDim.x) sum += partial[n - 1 - i];  // BUG fence_of_one_thread
    out[t] = sum;
}
// A barrier, the fence of one thread, its ticket, its fence, a barrier. The ticket wraps to zero.
__global__ void block_publishes(float* partial, unsigned* done, float* out) {
    __shared__ bool last;
    int t = threadIdx.x, n = blockDim.x * gridDim.x;
    partial[blockIdx.x * blockDim.x + t] = t;
    __syncthreads();
    if (t == 0) {
        __threadfence();
        last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last) return;
    float sum = 0.0f;
    for (int i = t; i < n; i += blockDim.x) sum += partial[n - 1 - i];
    out[t] = sum;
}

// ---- a flag: block 1 writes, block 0 waits; one thread each -----------------------------------

// The flag may be seen before the data.
__global__ void flag_without_release(int* data, int* flag, int* out) {
    if (blockIdx.x == 1) {
        data[0] = 42;  // BUG flag_without_release
        atomicExch(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) __nanosleep(20);
        __threadfence();
        out[0] = data[0];  // BUG flag_without_release
    }
}
// The data may be read before the flag.
__global__ void flag_without_acquire(int* data, volatile int* flag, int* out) {
    if (blockIdx.x == 1) {
        data[0] = 42;  // BUG flag_without_acquire
        __threadfence();
        *flag = 1;
    } else {
        while (*flag == 0) __nanosleep(20);
        out[0] = data[0];  // BUG flag_without_acquire
    }
}
// The fence is there, on the wrong side of the flag.
__global__ void fence_behind_flag(int* data, int* flag, int* out) {
    if (blockIdx.x == 1) {
        data[0] = 42;  // BUG fence_behind_flag
        atomicExch(flag, 1);
        __threadfence();
    } else {
        while (atomicAdd(flag, 0) == 0) __nanosleep(20);
        __threadfence();
        out[0] = data[0];  // BUG fence_behind_flag
    }
}
// The release comes before what it should release.
__global__ void flag_before_data(int* data, int* flag, int* out) {
    if (blockIdx.x == 1) {
        store_release(flag, 1);
        data[0] = 42;  // BUG flag_before_data
    } else {
        while (load_acquire(flag) == 0) __nanosleep(20);
        out[0] = data[0];  // BUG flag_before_data
    }
}
// The data is fetched ahead of the flag that guards it.
__global__ void data_fetched_ahead(int* data, int* flag, int* out) {
    if (blockIdx.x == 1) {
        data[0] = 42;  // BUG data_fetched_ahead
        store_release(flag, 1);
    } else {
        int early = data[0];  // BUG data_fetched_ahead
        while (load_acquire(flag) == 0) __nanosleep(20);
        out[0] = early;
    }
}
// A plain store releases nothing, and is itself in a race with those that wait for it.
__global__ void flag_plain_store(int* data, int* flag, int* out) {
    if (blockIdx.x == 1) {
        data[0] = 42;  // BUG flag_plain_store
        *flag = 1;  // BUG flag_plain_store
    } else {
        while (load_acquire(flag) == 0) __nanosleep(20);  // BUG flag_plain_store
        out[0] = data[0];  // BUG flag_plain_store
    }
}
// A plain load acquires nothing. (It asks once: a loop around it might never end.)
__global__ void flag_plain_load(int* data, int* flag, int* out) {
    if (blockIdx.x == 1) {
        data[0] = 42;  // BUG flag_plain_load
        store_release(flag, 1);  // BUG flag_plain_load
    } else {
        int ready = *flag;  // BUG flag_plain_load
        out[0] = ready ? data[0] : -1;  // BUG flag_plain_load
    }
}
// Atomics for the flag, fences for the order.
__global__ void flag_atomic(int* data, int* flag, int* out) {
    if (blockIdx.x == 1) {
        data[0] = 42;
        __threadfence();
        atomicExch(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) __nanosleep(20);
        __threadfence();
        out[0] = data[0];
    }
}
// A volatile flag is as good as an atomic one where there is one writer.
__global__ void flag_volatile(int* data, volatile int* flag, int* out) {
    if (blockIdx.x == 1) {
        data[0] = 42;
        __threadfence();
        *flag = 1;
    } else {
        while (*flag == 0) __nanosleep(20);
        __threadfence();
        out[0] = data[0];
    }
}
// The order is the flag's own.
__global__ void flag_acquire_release(int* data, int* flag, int* out) {
    if (blockIdx.x == 1) {
        data[0] = 42;
        store_release(flag, 1);
    } else {
        while (load_acquire(flag) == 0) __nanosleep(20);
        out[0] = data[0];
    }
}
// Through three hands: what a block acquired it passes on with its own release.
__global__ void flag_passed_on(int* data, int* flags, int* out) {
    unsigned next = blockIdx.x + 1;
    if (next < gridDim.x)
        while (load_acquire(&flags[next]) == 0) __nanosleep(20);
    else
        data[0] = 42;
    if (blockIdx.x == 0) out[0] = data[0];
    store_release(&flags[blockIdx.x], 1);
}
// A plain launch: a block waits only for one that has begun before it, as its ticket says.
__global__ void scan_by_tickets(unsigned* ticket, const int* x, int* sums, unsigned* ready) {
    unsigned mine = atomicAdd(ticket, 1u);
    int before = 0;
    if (mine > 0) {
        while (load_acquire(&ready[mine - 1]) == 0u) __nanosleep(20);
        before = sums[mine - 1];
    }
    sums[mine] = before + x[mine];
    store_release(&ready[mine], 1u);
}

// ---- a counter that all wait at ----------------------------------------------------------------

// The last to come makes zero of it: a block that has come itself knows that zero means all.
__global__ void counter_wraps(int* parts, unsigned* arrived, int* out) {
    parts[blockIdx.x] = blockIdx.x + 1;
    increment_release(arrived, gridDim.x - 1);
    while (load_acquire(arrived) != 0u) __nanosleep(20);
    int sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += parts[b];
    out[blockIdx.x] = sum;
}
// The increment releases what comes before it, and the part comes after.
__global__ void counter_before_data(int* parts, unsigned* arrived, int* out) {
    increment_release(arrived, gridDim.x - 1);
    parts[blockIdx.x] = blockIdx.x + 1;  // BUG counter_before_data
    while (load_acquire(arrived) != 0u) __nanosleep(20);
    int sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += parts[b];  // BUG counter_before_data
    out[blockIdx.x] = sum;
}
