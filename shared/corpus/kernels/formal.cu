// What GPUs do as it is meant, though nothing promises it, and its neighbours, which they may not.

// ---- lanes of a warp that are thought to run in step ------------------------------------------

// A warp adds up its words with no __syncwarp() between, as code for GPUs before Volta does.
__global__ void warp_synchronous(const int* x, int* sum) {
    __shared__ int words[64];
    volatile int* word = words;
    int t = threadIdx.x;
    word[t] = x[t], word[t + 32] = x[t + 32];
    __syncwarp();
    for (int half = 32; half > 0; half /= 2) {
        word[t] = word[t] + word[t + half];  // FORMAL warp_synchronous
    }
    if (t == 0) *sum = word[0];
}
// The same with the barrier that GPUs since Volta ask for.
__global__ void warp_with_barriers(const int* x, int* sum) {
    __shared__ int words[64];
    volatile int* word = words;
    int t = threadIdx.x;
    word[t] = x[t], word[t + 32] = x[t + 32];
    for (int half = 32; half > 0; half /= 2) {
        __syncwarp();
        int other = word[t + half];
        __syncwarp();
        word[t] = word[t] + other;
    }
    if (t == 0) *sum = word[0];
}

// Two halves of a block add each other's words, with no barrier between the reads and the writes.
__global__ void halves_without_barrier(const int* x, int* out) {
    __shared__ int words[128];
    volatile int* word = words;
    int t = threadIdx.x;
    word[t] = x[t];
    __syncthreads();
    word[t] = word[t] + word[(t + 64) % 128];  // BUG halves_without_barrier
    __syncthreads();
    out[t] = word[t];
}
// A sum that is volatile is not atomic.
__global__ void volatile_sum(volatile int* sum) {
    *sum = *sum + 1;  // BUG volatile_sum
}
// A warp waits for another by a volatile word, before the barrier that both come to.
__global__ void volatile_word_awaited(int* out) {
    __shared__ volatile int ready;
    if (threadIdx.x == 32) ready = 0;
    __syncthreads();
    if (threadIdx.x == 0) while (ready == 0) __nanosleep(20);
    if (threadIdx.x == 32) ready = 5;
    __syncthreads();
    out[threadIdx.x] = ready;
}

// ---- what is read before a compare-and-swap -----------------------------------------------------

// An atomic product: the first read is plain, and atomicCAS tests what it has read.
__global__ void product_by_cas(int* product) {
    int old = *product, seen;  // FORMAL product_by_cas
    do {
        seen = old;
        old = atomicCAS(product, seen, 2 * seen);  // FORMAL product_by_cas
    } while (old != seen);
}
// What was read plainly decides, and nobody tests it again: there may be more than `limit`.
__global__ void limit_by_plain_read(int* count, int limit) {
    if (*count < limit) atomicAdd(count, 1);  // BUG limit_by_plain_read
}

// ---- a counter that is set back -----------------------------------------------------------------

// The last block makes the counter ready for the next launch, by a plain store.
__global__ void counter_set_back(unsigned* count, unsigned* launches) {
    unsigned ticket = atomicAdd(count, 1u);  // FORMAL counter_set_back
    if (ticket == gridDim.x - 1) {
        *count = 0;  // FORMAL counter_set_back
        *launches += 1;
    }
}
// The first block does, while others still count.
__global__ void counter_set_back_early(unsigned* count, unsigned* launches) {
    unsigned ticket = atomicAdd(count, 1u);  // BUG counter_set_back_early
    if (ticket == 0) {
        *count = 0;  // BUG counter_set_back_early
        *launches += 1;
    }
}

// ---- alignment ----------------------------------------------------------------------------------

// Floats that are read four at once: they begin where the kernel's shared memory does.
__global__ void aligned_by_luck(const float* x, float* out) {
    __shared__ float row[128];
    row[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 32) {
        float4 four = *reinterpret_cast<float4*>(&row[4 * threadIdx.x]);  // FORMAL aligned_by_luck
        out[threadIdx.x] = four.x + four.y + four.z + four.w;
    }
}
// Declared for it.
__global__ void aligned_as_declared(const float* x, float* out) {
    __shared__ __align__(16) float row[128];
    row[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 32) {
        float4 four = *reinterpret_cast<float4*>(&row[4 * threadIdx.x]);
        out[threadIdx.x] = four.x + four.y + four.z + four.w;
    }
}
