// What GPUs do as it is meant, though nothing promises it, and its neighbours, which they may not.
#include <mma.h>

#include "lab/ptx/cp_async.cuh"

using namespace lab;

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

// ---- messages by volatile accesses alone --------------------------------------------------------

// Block 1 writes data, then a flag; block 0 may see the flag first. Its own fence does not mend that.
__global__ void volatile_message(volatile int* data, volatile int* flag, int* out) {
    if (blockIdx.x == 1) {
        data[0] = 42;  // BUG volatile_message
        *flag = 1;
    } else {
        while (*flag == 0) __nanosleep(20);
        __threadfence();
        out[0] = data[0];  // BUG volatile_message
    }
}
// With a fence on either side.
__global__ void volatile_message_fenced(volatile int* data, volatile int* flag, int* out) {
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
// All of block 1 write, and a barrier lets its first thread announce it: to its own block alone.
__global__ void volatile_message_of_block(volatile int* data, volatile int* flag, int* out) {
    int t = threadIdx.x;
    if (blockIdx.x == 1) {
        data[t] = t;  // BUG volatile_message_of_block
        __syncthreads();
        __threadfence_block();
        if (t == 0) *flag = 1;
    } else {
        if (t == 0) while (*flag == 0) __nanosleep(20);
        __syncthreads();
        out[t] = data[63 - t];  // BUG volatile_message_of_block
    }
}
// With fences of the threads that hand it on.
__global__ void volatile_message_of_block_fenced(volatile int* data, volatile int* flag, int* out) {
    int t = threadIdx.x;
    if (blockIdx.x == 1) {
        data[t] = t;
        __syncthreads();
        if (t == 0) __threadfence(), *flag = 1;
    } else {
        if (t == 0) {
            while (*flag == 0) __nanosleep(20);
            __threadfence();
        }
        __syncthreads();
        out[t] = data[63 - t];
    }
}
// A plain launch: a block waits for the one before it, which may well be over.
__global__ void volatile_scan(unsigned* ticket, const int* x, volatile int* sums, volatile unsigned* ready) {
    unsigned mine = atomicAdd(ticket, 1u);
    int before = 0;
    if (mine > 0) {
        while (ready[mine - 1] == 0) {}
        before = sums[mine - 1];  // BUG volatile_scan
    }
    sums[mine] = before + x[mine];  // BUG volatile_scan
    ready[mine] = 1;
}
// With fences.
__global__ void volatile_scan_fenced(unsigned* ticket, const int* x, volatile int* sums, volatile unsigned* ready) {
    unsigned mine = atomicAdd(ticket, 1u);
    int before = 0;
    if (mine > 0) {
        while (ready[mine - 1] == 0) {}
        __threadfence();
        before = sums[mine - 1];
    }
    sums[mine] = before + x[mine];
    __threadfence();
    ready[mine] = 1;
}
// Two words that are their own flags: the one that is written first is awaited last, but it is awaited.
__global__ void volatile_flags(unsigned* ticket, const int* x, volatile int* sums, volatile int* blocks) {
    unsigned mine = atomicAdd(ticket, 1u);
    int before = 0, count = 0;
    if (mine > 0) {
        while ((before = sums[mine - 1]) == 0) {}
        while ((count = blocks[mine - 1]) == 0) {}
    }
    blocks[mine] = count + 1;
    sums[mine] = before + x[mine];
}
// The last block adds up, as CUDA's programming guide has it: the fence is the writers'.
__global__ void volatile_last_block(const int* x, volatile int* partial, unsigned* done, int* out) {
    partial[blockIdx.x] = 2 * x[blockIdx.x];
    __threadfence();
    if (atomicInc(done, gridDim.x - 1) != gridDim.x - 1) return;
    int sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b];
    out[0] = sum;
}
// From warp to warp, in shared memory.
__global__ void volatile_message_between_warps(int* out) {
    __shared__ volatile int data, ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 32) {
        data = 42;  // FORMAL volatile_message_between_warps
        ready = 1;
    } else if (threadIdx.x == 0) {
        while (ready == 0) __nanosleep(20);
        out[0] = data;  // FORMAL volatile_message_between_warps
    }
}
// With fences for the block.
__global__ void volatile_message_between_warps_fenced(int* out) {
    __shared__ volatile int data, ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 32) {
        data = 42;
        __threadfence_block();
        ready = 1;
    } else if (threadIdx.x == 0) {
        while (ready == 0) __nanosleep(20);
        __threadfence_block();
        out[0] = data;
    }
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

// ---- a flag that is set back ---------------------------------------------------------------------

// Who has seen the flag sets it back plainly: the PTX memory model orders the atomic before the read that sees it, and that
// before all that its thread does later.
__global__ void flag_taken_back(int* flag, int* data, int* out) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t;
        __syncthreads();
        if (t == 0) {
            __threadfence();
            atomicAdd(flag, 1);
        }
    } else {
        if (t == 0) {
            while (atomicAdd(flag, 0) == 0) {}
            __threadfence();
            *flag = 0;
        }
        __syncthreads();
        out[t] = data[31 - t];
    }
}
// It has seen another flag, which is set before this one is.
__global__ void flag_taken_back_unseen(int* flag, int* ready, int* data, int* out) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        data[t] = t;
        __syncthreads();
        if (t == 0) {
            __threadfence();
            atomicAdd(ready, 1);
            atomicAdd(flag, 1);  // BUG flag_taken_back_unseen
        }
    } else {
        if (t == 0) {
            while (atomicAdd(ready, 0) == 0) {}
            __threadfence();
            *flag = 0;  // BUG flag_taken_back_unseen
        }
        __syncthreads();
        out[t] = data[31 - t];
    }
}

// ---- blocks that wait for blocks -----------------------------------------------------------------

__device__ void publish_number(int* flags, int* numbers) {
    numbers[blockIdx.x] = 10 + blockIdx.x;
    __threadfence();
    atomicExch(&flags[blockIdx.x], 1);
}
__device__ void take_number(const int* numbers, int* out) {
    __threadfence();
    out[blockIdx.x] = numbers[1 - blockIdx.x];
}
// Each of two blocks waits for the other. A GPU that has room runs both; nothing promises that it has.
__global__ void blocks_swap(volatile int* flags, int* numbers, int* out) {
    publish_number(const_cast<int*>(flags), numbers);
    while (flags[1 - blockIdx.x] == 0) {}  // FORMAL blocks_swap
    take_number(numbers, out);
}
// A cooperative launch does.
__global__ void blocks_swap_together(volatile int* flags, int* numbers, int* out) {
    publish_number(const_cast<int*>(flags), numbers);
    while (flags[1 - blockIdx.x] == 0) {}
    take_number(numbers, out);
}
// One of them forgets its flag.
__global__ void blocks_swap_in_vain(volatile int* flags, int* numbers, int* out) {
    if (blockIdx.x == 0) publish_number(const_cast<int*>(flags), numbers);
    while (flags[1 - blockIdx.x] == 0) {}  // BUG blocks_swap_in_vain
    take_number(numbers, out);
}
// Splits of a sum add in their order, behind a lock for each tile: in every second tile the first block is the last in line.
__global__ void splits_in_turns(volatile int* turns, float* tiles) {
    int tile = blockIdx.x / 4, turn = tile % 2 ? blockIdx.x % 4 : 3 - blockIdx.x % 4;
    if (threadIdx.x == 0) {
        while (turns[tile] != turn) __nanosleep(20);  // FORMAL splits_in_turns
        __threadfence();
    }
    __syncthreads();
    float before = turn == 0 ? 1.0f : tiles[32 * tile + threadIdx.x];
    tiles[32 * tile + threadIdx.x] = 2 * before + turn;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(const_cast<int*>(&turns[tile]), turn + 1);
    }
}

// ---- alignment ----------------------------------------------------------------------------------

// A 16 × 16 tile through two arrays, from the 17th column on.
__device__ __forceinline__ void tile_twice(const __half* x, __half* out, __half (*first)[144],
                                           __half (*second)[144]) {
    namespace wmma = nvcuda::wmma;
    for (int i = threadIdx.x; i < 256; i += 32) first[i / 16][16 + i % 16] = x[i];
    __syncwarp();
    wmma::fragment<wmma::accumulator, 16, 16, 16, __half> tile;
    wmma::load_matrix_sync(tile, &first[0][16], 144, wmma::mem_row_major);
    wmma::store_matrix_sync(&second[0][16], tile, 144, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32) out[i] = second[i / 16][16 + i % 16];
}
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
// Four floats are copied at once into an array that is declared for one.
__global__ void copied_by_luck(const float* x, float* out) {
    __shared__ float row[128];
    int t = threadIdx.x;
    if (t < 32) async_copy<16>(&row[4 * t], &x[4 * t]);  // FORMAL copied_by_luck
    async_commit();
    async_wait<0>();
    __syncthreads();
    out[t] = row[127 - t];
}
// A float further on. (Behind an int of its own the array would not do: where ptxas sees the copy, it aligns the array.)
__global__ void copied_misaligned(const float* x, float* out) {
    __shared__ __align__(16) float row[132];
    int t = threadIdx.x;
    if (t < 32) async_copy<16>(&row[4 * t + 1], &x[4 * t]);  // BUG copied_misaligned
    async_commit();
    async_wait<0>();
    __syncthreads();
    out[t] = row[128 - t];
}
// Declared for it.
__global__ void copied_as_declared(const float* x, float* out) {
    __shared__ int last;
    __shared__ __align__(16) float row[128];
    int t = threadIdx.x;
    if (t == 0) last = 127;
    if (t < 32) async_copy<16>(&row[4 * t], &x[4 * t]);
    async_commit();
    async_wait<0>();
    __syncthreads();
    out[t] = row[last - t];
}
// A tile of wmma in the second array, which ptxas lets begin at a multiple of 32 bytes: where the first one ends.
__global__ void tile_aligned_by_luck(const __half* x, __half* out) {
    __shared__ __half first[16][144];
    __shared__ __half second[16][144];
    tile_twice(x, out, first, second);  // FORMAL tile_aligned_by_luck
}
// Behind eight halves more it does not.
__global__ void tile_misaligned(const __half* x, __half* out) {
    __shared__ __half before[8];
    __shared__ __half first[16][144];
    __shared__ __half second[16][144];
    if (threadIdx.x < 8) before[threadIdx.x] = x[threadIdx.x];
    tile_twice(x, out, first, second);  // BUG tile_misaligned
    if (before[threadIdx.x % 8] != before[threadIdx.x % 8]) out[0] = before[0];
}
// Declared for it.
__global__ void tile_aligned_as_declared(const __half* x, __half* out) {
    __shared__ __half before[8];
    __shared__ __align__(32) __half first[16][144];
    __shared__ __align__(32) __half second[16][144];
    if (threadIdx.x < 8) before[threadIdx.x] = x[threadIdx.x];
    tile_twice(x, out, first, second);
    if (before[threadIdx.x % 8] != before[threadIdx.x % 8]) out[0] = before[0];
}
