// Barriers and warp collectives that some thread never reaches or reaches elsewhere, and some that
// only look like it.
#include <cooperative_groups.h>

#define ALL_LANES 0xffffffffu

// ---- barriers of a block ----------------------------------------------------------------------

// Odd and even threads wait at different places.
__global__ void barriers_apart(int* out, int value) {
    __shared__ int odd, even;
    int t = threadIdx.x;
    if (t % 2) {
        if (t == 1) odd = value;
        __syncthreads();  // BUG barriers_apart
        out[t] = even;
    } else {
        if (t == 0) even = 2 * value;
        __syncthreads();  // BUG barriers_apart
        out[t] = odd + 10;
    }
}
// The same by warps: PTX's barrier counts whole warps, wherever each has come to it; CUDA's guide wants one branch for all.
__global__ void barriers_apart_by_warps(int* out, int value) {
    __shared__ int first, second;
    int t = threadIdx.x;
    if (t < 32) {
        if (t == 0) first = value;
        __syncthreads();  // FORMAL barriers_apart_by_warps
        out[t] = second;
    } else {
        if (t == 32) second = 2 * value;
        __syncthreads();  // FORMAL barriers_apart_by_warps
        out[t] = first + 10;
    }
}
// A plain barrier meets one that counts.
__global__ void mixed_barriers(int* out) {
    if (threadIdx.x < 32) {
        __syncthreads();  // BUG mixed_barriers
        out[threadIdx.x] = 0;
    } else {
        out[threadIdx.x] = __syncthreads_count(1);  // BUG mixed_barriers
    }
}
// Half of the threads go round once more and wait for those that are behind the loop.
__global__ void uneven_loop(int* out) {
    __shared__ int x[64];
    int t = threadIdx.x;
    x[t] = 0;
    for (int k = 0; k < 1 + t % 2; ++k) {
        x[t] += 1;
        __syncthreads();  // BUG uneven_loop
    }
    x[t] += 10;
    __syncthreads();  // BUG uneven_loop
    out[t] = x[63 - t];
}
// One warp waits at the barrier for the other, which waits for what comes behind the barrier.
__global__ void spins_behind_barrier(int* out) {
    __shared__ volatile int ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        __syncthreads();  // BUG spins_behind_barrier
        ready = 1;
    } else {
        while (ready == 0) __nanosleep(20);  // BUG spins_behind_barrier
        __syncthreads();
    }
    out[threadIdx.x] = ready;
}
// A barrier waits for no thread that has ended.
__global__ void early_exit(int* out, int n) {
    __shared__ int x[64];
    int t = threadIdx.x;
    if (t >= n) return;
    x[t] = t;
    __syncthreads();
    out[t] = x[n - 1 - t];
}
// Every thread of the block takes the same branch, and goes round as often.
__global__ void uniform_branch(int* out) {
    __shared__ int x[64];
    int t = threadIdx.x;
    x[t] = t;
    if (blockIdx.x % 2) __syncthreads();
    for (unsigned k = 0; k <= blockIdx.x; ++k) {
        __syncthreads();
        int next = x[(t + 1) % 64];
        __syncthreads();
        x[t] = next;
    }
    out[64 * blockIdx.x + t] = x[t];
}
// The barrier's own vote makes the decision to go on the same for all.
__global__ void voted_loop(const int* rounds, int* out) {
    int t = threadIdx.x, done = 0;
    while (__syncthreads_or(done < rounds[t])) done += 1;
    int low = __syncthreads_and(done < 100), long_ones = __syncthreads_count(rounds[t] > 2);
    out[t] = 100 * done + 10 * low + long_ones;
}

// ---- warps ------------------------------------------------------------------------------------

// A lane calls with a mask that does not name it.
__global__ void not_in_mask(int* out) {
    out[threadIdx.x] = __shfl_sync(0x0000ffffu, int(threadIdx.x), 0);  // BUG not_in_mask
}
// The same for a vote: the last lane is left out and votes all the same.
__global__ void votes_uninvited(unsigned* out) {
    out[threadIdx.x] = __ballot_sync(0x7fffffffu, threadIdx.x % 2);  // BUG votes_uninvited
}
// The mask names lanes that went past to the barrier.
__global__ void shuffle_under_guard(const int* x, int* out, int n) {
    int t = threadIdx.x, v = 0;
    if (t < n) v = x[t] + __shfl_down_sync(ALL_LANES, x[t], 1);  // BUG shuffle_under_guard
    __syncthreads();  // BUG shuffle_under_guard
    out[t] = v;
}
// All lanes shuffle; what the guard decides is what they put in.
__global__ void shuffle_outside_guard(const int* x, int* out, int n) {
    int t = threadIdx.x, v = t < n ? x[t] : 0;
    v += __shfl_down_sync(ALL_LANES, v, 1);
    __syncthreads();
    out[t] = t < n ? v : -1;
}
// The lane read from has no part in the shuffle.
__global__ void source_outside_mask(int* out, int source) {
    int t = threadIdx.x, v = -1;
    if (t < 16) v = __shfl_sync(0x0000ffffu, t, source);  // BUG source_outside_mask
    out[t] = v;
}
// The lane read from has ended.
__global__ void source_has_exited(int* out, int source) {
    int t = threadIdx.x;
    if (t >= 16) return;
    out[t] = __shfl_sync(ALL_LANES, t, source);  // BUG source_has_exited
}
// The halves of a warp meet in the same call with different masks.
__global__ void masks_disagree(int* out) {
    __shared__ int x[32];
    int t = threadIdx.x;
    x[t] = t;
    __syncwarp(t < 16 ? 0x0000ffffu : ALL_LANES);  // BUG masks_disagree
    out[t] = x[t ^ 1];
}
// Even lanes shuffle, odd lanes vote; each waits for all 32.
__global__ void collectives_apart(unsigned* out) {
    int t = threadIdx.x;
    if (t % 2)
        out[t] = __ballot_sync(ALL_LANES, t > 7);  // BUG collectives_apart
    else
        out[t] = __shfl_xor_sync(ALL_LANES, t, 2);  // BUG collectives_apart
}
// Half of a warp waits for the whole warp, the other half for the block.
__global__ void warp_and_block_barrier(int* out) {
    int t = threadIdx.x;
    if (t < 16) __syncwarp();  // BUG warp_and_block_barrier
    __syncthreads();  // BUG warp_and_block_barrier
    out[t] = t;
}
// Each half shuffles with a mask of its own lanes.
__global__ void halves_with_masks(int* out) {
    int t = threadIdx.x;
    if (t < 16) {
        out[t] = __shfl_xor_sync(0x0000ffffu, t, 1);
    } else {
        out[t] = __popc(__ballot_sync(0xffff0000u, t % 4 == 0));
    }
}
// Lanes drop out of the loop; the mask is that of those that stay.
__global__ void lanes_drop_out(const int* rounds, int* out) {
    int t = threadIdx.x, left = rounds[t], sum = 0;
    unsigned mask = __ballot_sync(ALL_LANES, left > 0);
    while (left > 0) {
        sum += __popc(mask);
        left -= 1;
        mask = __ballot_sync(mask, left > 0);
    }
    out[t] = sum;
}
// A warp's barrier waits for no lane that has ended.
__global__ void half_of_warp_exits(int* out) {
    __shared__ int x[16];
    int t = threadIdx.x;
    if (t >= 16) return;
    x[t] = t;
    __syncwarp();
    out[t] = x[15 - t];
}
// Each lane meets those that hold the same key; the first of them counts.
__global__ void same_keys_meet(const int* key, int* count) {
    int t = threadIdx.x;
    unsigned peers = __match_any_sync(ALL_LANES, key[t]);
    if (t == __ffs(int(peers)) - 1) count[key[t]] = __popc(peers);
}
// A sum by shuffles: nothing in shared memory.
__global__ void sum_by_shuffles(const float* x, float* out) {
    float v = x[threadIdx.x];
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(ALL_LANES, v, d);
    out[threadIdx.x] = v;
}
// Tiles of eight lanes go different ways, each with its own barrier.
__global__ void tiles_apart(int* out) {
    __shared__ int x[64];
    auto tile = cooperative_groups::tiled_partition<8>(cooperative_groups::this_thread_block());
    int t = threadIdx.x, rank = tile.thread_rank(), first = t - rank;
    x[t] = t;
    if (tile.meta_group_rank() % 2) {
        tile.sync();
        out[t] = x[first + 7 - rank];
    } else {
        out[t] = tile.shfl_down(t, 1);
    }
}

// ---- the grid ---------------------------------------------------------------------------------

// A barrier of the grid in a launch that does not promise that all blocks run at once.
__global__ void lone_grid_sync(int* out) {
    cooperative_groups::this_grid().sync();  // BUG lone_grid_sync
    out[blockIdx.x] = 1;
}
// One block leaves; a grid's barrier, unlike a block's, waits for it.
__global__ void block_leaves_grid(int* out) {
    if (blockIdx.x == 1) return;
    cooperative_groups::this_grid().sync();  // BUG block_leaves_grid
    out[blockIdx.x] = 1;
}
// One block goes round once more than the others.
__global__ void uneven_grid_loop(int* out) {
    for (int k = 0; k < (blockIdx.x == 0 ? 2 : 1); ++k)
        cooperative_groups::this_grid().sync();  // BUG uneven_grid_loop
    out[blockIdx.x] = 1;
}
