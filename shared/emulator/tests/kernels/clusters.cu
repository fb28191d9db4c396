// Blocks of a cluster and their shared memory; tests/clusters.rs says what must come of each.
#include <cooperative_groups.h>

#include "lab/ptx/dynamic_shared.cuh"

enum Fault { NONE, NO_FIRST_SYNC, NO_SECOND_SYNC, NO_LAST_SYNC, ALL_TO_ONE, PAST_THE_END, NOT_SHARED };

// Each block hands `rounds` times what it has to the block after it: out[block] is what block
// `block` had in the beginning, moved on `rounds` places in its cluster.
template <int FAULT> __global__ void ring(float* in, float* out, int rounds) {
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    __shared__ float inbox[2][32];
    DYNAMIC_SHARED(float, seen);
    int rank = cluster.block_rank(), size = cluster.num_blocks(), t = threadIdx.x;
    inbox[0][t] = in[blockIdx.x * 32 + t];
    __syncthreads();
    if (FAULT != NO_FIRST_SYNC) cluster.sync();  // all blocks have begun
    int next = FAULT == ALL_TO_ONE ? 0 : (rank + 1) % size;
    for (int r = 0; r < rounds; ++r) {
        float* there = cluster.map_shared_rank(inbox[(r + 1) % 2], next);
        if (FAULT == NOT_SHARED) there = cluster.map_shared_rank(out, next);
        if (FAULT == PAST_THE_END) there = cluster.map_shared_rank(seen, next) + 1;
        there[t] = inbox[r % 2][t];
        if (FAULT != NO_SECOND_SYNC) cluster.sync();  // the round's values have come
    }
    seen[t] = inbox[rounds % 2][31 - t];
    if (FAULT == NO_LAST_SYNC && rank == 0) return;
    if (FAULT != NO_LAST_SYNC) cluster.sync();
    float* first = cluster.map_shared_rank(seen, 0);
    out[blockIdx.x * 32 + t] = inbox[rounds % 2][t] + 0 * first[t];
    if (FAULT != NO_LAST_SYNC) cluster.sync();  // nobody leaves while others read its memory
}

// Through global memory: a cluster's sync orders that as well, for its own blocks. With `across`, a
// block reads what another cluster wrote.
__global__ void through_global(float* values, float* out, int across) {
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    int rank = cluster.block_rank(), size = cluster.num_blocks();
    values[blockIdx.x * 32 + threadIdx.x] = blockIdx.x;
    cluster.sync();
    int from = blockIdx.x - rank + (rank + 1) % size;
    if (across) from = (blockIdx.x + size) % gridDim.x;
    out[blockIdx.x * 32 + threadIdx.x] = values[from * 32 + threadIdx.x];
}

// Block 0 exits at once; the others meet without it.
__global__ void some_exit(float* out) {
    if (blockIdx.x == 0) return;
    for (int r = 0; r < 3; ++r) cooperative_groups::this_cluster().sync();
    out[blockIdx.x] = 1;
}

// Each cluster waits for the one `distance` further on, where there is one, and hands on a number that is larger by 1.
__global__ void waits_for(int* flags, int* out, int distance) {
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    __shared__ int got;
    int rank = cluster.block_rank(), size = cluster.num_blocks();
    int own = blockIdx.x / size, other = own + distance;
    if (rank == 0 && threadIdx.x == 0) {
        got = 0;
        if (other >= 0 && other < int(gridDim.x) / size)
            while ((got = atomicAdd(&flags[other], 0)) == 0) {
            }
    }
    cluster.sync();
    int all = *cluster.map_shared_rank(&got, 0) + 1;
    cluster.sync();
    if (threadIdx.x == 0) out[blockIdx.x] = all;
    if (rank == size - 1 && threadIdx.x == 0) atomicExch(&flags[own], all);
}
