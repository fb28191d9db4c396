// One small kernel for each thing the emulator offers; tests/features.rs holds the results. A GPU
// must give the same: shared/harness/src/agreement.rs.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// out[6 i ..] = threadIdx, blockIdx of the i-th thread of the grid
__global__ void coordinates(unsigned* out) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned* own = out + 6 * (block * blockDim.x * blockDim.y * blockDim.z + thread);
    own[0] = threadIdx.x, own[1] = threadIdx.y, own[2] = threadIdx.z;
    own[3] = blockIdx.x, own[4] = blockIdx.y, own[5] = blockIdx.z;
}

__global__ void block_votes(int* out) {
    int odd = threadIdx.x & 1;
    int count = __syncthreads_count(odd);
    int every = __syncthreads_and(threadIdx.x < 1000);
    int none = __syncthreads_or(threadIdx.x > 1000);
    int some = __syncthreads_or(threadIdx.x == 3);
    out[threadIdx.x] = count * 8 + every * 4 + none * 2 + some;
}

// Half of the threads leave before the barrier: it waits for the rest only.
__global__ void early_exit(int* out) {
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    if (threadIdx.x % 2) return;
    atomicAdd(&sum, 1);
    __syncthreads();
    out[threadIdx.x] = sum;
}

template <class T> __global__ void warp_sum(const T* x, T* out) {
    T v = x[threadIdx.x];
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    out[threadIdx.x] = v;
}

// Two halves of a warp go different ways and meet among themselves.
__global__ void divergent_halves(int* out) {
    unsigned lane = threadIdx.x;
    if (lane < 16) {
        out[lane] = __shfl_sync(0x0000ffffu, int(lane), 3);
    } else {
        unsigned ballot = __ballot_sync(0xffff0000u, lane % 2);
        out[lane] = __popc(ballot);
    }
}

__global__ void atomics(int* counter, float* sum, unsigned long long* big, int* largest) {
    atomicAdd(counter, 1);
    atomicAdd(sum, 0.5f);
    atomicAdd(big, 1ull << 33);
    atomicMax(largest, int(blockIdx.x * blockDim.x + threadIdx.x));
    while (atomicCAS(counter + 1, 0, 1) != 0) {
    }
    __threadfence();  // what the last holder wrote is seen, not what a cache still has
    volatile int* guarded = counter + 2;
    *guarded = *guarded + 1;
    __threadfence();  // and what is written here is seen before the lock is open
    atomicExch(counter + 1, 0);
}

__global__ void half_types(const float* x, __half* h, __nv_bfloat16* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) h[i] = __float2half(x[i]), b[i] = __float2bfloat16(x[i]);
}
__global__ void half_back(const __half* h, const __nv_bfloat16* b, float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = __half2float(h[i]), y[i] = __bfloat162float(b[i]);
}
template <class H> __global__ void half_arithmetic(const H* a, const H* b, H* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[4 * i] = a[i] + b[i], out[4 * i + 1] = a[i] * b[i], out[4 * i + 2] = a[i] / b[i];
    out[4 * i + 3] = __hfma(a[i], b[i], a[i]);
}

// `rounds` grid-wide syncs: each block adds up what all blocks wrote in the round before.
__global__ void grid_rounds(float* values, int rounds) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    for (int r = 0; r < rounds; ++r) {
        float sum = 0;
        for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x) sum += values[b];
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        __shared__ float partial[32];
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
        __syncthreads();
        grid.sync();  // everybody has read the old values
        if (threadIdx.x == 0) {
            float total = 0;
            for (unsigned w = 0; w < blockDim.x / 32; ++w) total += partial[w];
            values[blockIdx.x] = total / gridDim.x + 1;
        }
        grid.sync();  // everybody sees the new ones
    }
}

// A block waits for a flag that the next one raises.
__global__ void flag_chain(int* flags) {
    if (threadIdx.x == 0) {
        if (blockIdx.x + 1 < gridDim.x)
            while (atomicAdd(&flags[blockIdx.x + 1], 0) == 0) __nanosleep(100);
        __threadfence();
        atomicExch(&flags[blockIdx.x], 1);
    }
}

__global__ void tiles(int* out) {
    auto tile = cooperative_groups::tiled_partition<8>(cooperative_groups::this_thread_block());
    int v = tile.thread_rank();
    for (int d = 4; d; d /= 2) v += tile.shfl_down(v, d);
    out[threadIdx.x] = tile.shfl(v, 0) * 100 + int(tile.meta_group_rank());
}

__global__ void match_and_reduce(unsigned* out) {
    int lane = threadIdx.x, all;
    out[lane] = __match_any_sync(0xffffffffu, lane % 4);
    out[32 + lane] = __match_all_sync(0xffffffffu, 7, &all);
    out[64 + lane] = unsigned(all);
    out[96 + lane] = __reduce_add_sync(0xffffffffu, unsigned(lane));
    out[128 + lane] = unsigned(__reduce_min_sync(0xffffffffu, lane - 5));
    out[160 + lane] = __reduce_max_sync(0xffffffffu, unsigned(lane) - 5u);
    out[192 + lane] = __reduce_xor_sync(0xffffffffu, unsigned(lane));
    out[224 + lane] = __activemask();
    __syncwarp();  // a lane that has exited is no longer active
}

// Those who are in a branch together: the first of them adds for all. And a loop that lanes leave one by one.
__global__ void in_branches(unsigned* out, int* sums) {
    int lane = threadIdx.x % 32;
    if (lane % 3 == 1) {
        unsigned mask = __activemask();
        int leader = __ffs(mask) - 1, before = 0;
        if (lane == leader) before = atomicAdd(&sums[threadIdx.x / 32], __popc(mask));
        before = __shfl_sync(mask, before, leader);
        out[threadIdx.x] = mask + unsigned(before);
    } else {
        out[threadIdx.x] = ~__activemask();
    }
    for (int i = 0; i < lane; ++i)
        if (lane > 29) out[64 * (1 + i) + threadIdx.x] = __activemask();
}

// A volatile flag that is polled, a fence, then a plain read.
__global__ void polls(int* data, volatile int* flag, int* out) {
    if (blockIdx.x == 0) {
        data[threadIdx.x] = 7 + threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            *flag = 1;
        }
    } else {
        if (threadIdx.x == 0) {
            while (*flag == 0) {}
            __threadfence();
        }
        __syncthreads();
        out[threadIdx.x] = data[31 - threadIdx.x];
    }
}

__global__ void integer_atomics(int* i, unsigned* u, float* f) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicMin(&i[0], -t);
    atomicAnd(&i[1], ~(1 << (t % 31)));
    atomicOr(&i[2], 1 << (t % 31));
    atomicXor(&i[3], t);
    atomicSub(&i[4], 2);
    atomicInc(&u[0], 9u);
    atomicDec(&u[1], 9u);
    if (t == 3) f[0] = atomicExch(&f[1], 5.0f);
}

__global__ void vectors_and_maths(const float4* x, const float2* y, float4* out, float* maths) {
    float4 v = __ldg(&x[threadIdx.x]);
    v.w += y[threadIdx.x].y;
    out[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
    if (threadIdx.x == 0) {
        maths[0] = __expf(1.0f), maths[1] = __logf(2.0f), maths[2] = __frcp_rn(3.0f);
        maths[3] = rsqrtf(4.0f), maths[4] = __fdividef(1.0f, 8.0f), maths[5] = __saturatef(1.5f);
        maths[6] = __powf(2.0f, 3.0f), maths[7] = fminf(1.0f, __int_as_float(0x7fc00000));
        maths[8] = float(__popc(0xf0f0u)), maths[9] = float(__clz(1)), maths[10] = float(__ffs(8));
    }
}

__global__ void half_pairs(const __half2* x, __half2* out, __half* total) {
    __half2 v = __hfma2(x[threadIdx.x], x[threadIdx.x], __float2half2_rn(1.0f));
    out[threadIdx.x] = __hmul2_rn(v, v) - v;  // a plain product would be fused with the difference
    atomicAdd(total, __low2half(v));
}

__global__ void clock_and_printf(long long* out) {
    long long start = clock64();
    if (threadIdx.x == 0) printf("block %d says %s\n", int(blockIdx.x), "hello");
    out[threadIdx.x] = clock64() - start;
}
