// What goes on while its thread does, and the barriers at which it counts; tests/asynchronous.rs says what
// must come of each.
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/st_async.cuh"

using namespace lab;

enum Fault { NONE, NO_WAIT, WRONG_PARITY, TOO_FEW_BYTES, TOO_MANY_BYTES, NO_ARRIVAL, NO_FENCE, READ_ALONE, SHARED_FENCE };

// out = 2 x, tile by tile: thread 0 asks for the tiles, two ahead; all wait for each and give it back.
template <int FAULT> __global__ void doubled(const float* x, float* out, int tiles) {
    constexpr int STAGES = 2, N = 64;
    alignas(16) __shared__ float tile[STAGES][N];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    int t = threadIdx.x;
    if (t == 0) {
        for (int s = 0; s < STAGES; ++s) mbarrier_init(&full[s], 1), mbarrier_init(&empty[s], N);
        mbarrier_fence_init();
    }
    __syncthreads();  // the barriers are initialised
    unsigned bytes = sizeof tile[0];
    if (FAULT == TOO_FEW_BYTES) bytes -= 64;
    if (FAULT == TOO_MANY_BYTES) bytes += 16;
    auto ask = [&](int k) {
        int s = k % STAGES;
        mbarrier_wait(&empty[s], k / STAGES % 2 ^ 1);
        mbarrier_arrive_expect(&full[s], bytes);
        bulk_load(tile[s], x + k * N, sizeof tile[s] - 64, &full[s]);
        bulk_load(tile[s] + 48, x + k * N + 48, 64, &full[s]);
    };
    if (t == 0)
        for (int k = 0; k < STAGES && k < tiles; ++k) ask(k);
    for (int k = 0; k < tiles; ++k) {
        int s = k % STAGES;
        unsigned parity = k / STAGES % 2 ^ (FAULT == WRONG_PARITY);
        if (FAULT != NO_WAIT) mbarrier_wait(&full[s], parity);
        out[k * N + t] = 2 * tile[s][N - 1 - t];
        if (FAULT != NO_ARRIVAL || t != 5) mbarrier_arrive(&empty[s]);
        if (t == 0 && k + STAGES < tiles) ask(k + STAGES);
    }
}

// out = 2 x, a tile a block, which may still be on its way while the blocks of a cluster meet.
template <int FAULT> __global__ void met(const float* x, float* out) {
    alignas(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x, first = blockIdx.x * 64;
    if (t == 0) {
        mbarrier_init(&full, 1);
        mbarrier_fence_init();
        mbarrier_arrive_expect(&full, sizeof tile);
        bulk_load(tile, x + first, sizeof tile, &full);
    }
    cooperative_groups::this_cluster().sync();  // the barrier is initialised
    out[first + t] = 0;
    if (FAULT == NO_WAIT) return;
    mbarrier_wait(&full, 0);
    out[first + t] = 2 * tile[t];
}

enum Exchange { RIGHT, BLOCK_SCOPE, ONE_BOX };

// Each block sends its number to all of its cluster, `rounds` times; out is the sum of the last round.
template <int FAULT> __global__ void all_to_all(float* out, int rounds) {
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    __shared__ float box[2][16];
    __shared__ Mbarrier full[2];
    int rank = cluster.block_rank(), size = cluster.num_blocks(), t = threadIdx.x;
    if (t == 0) {
        for (int b = 0; b < 2; ++b) mbarrier_init(&full[b], 1);
        mbarrier_fence_init();
        for (int b = 0; b < 2; ++b) mbarrier_arrive_expect(&full[b], 4 * size);
    }
    cluster.sync();  // all blocks have begun
    float sum = 0;
    for (int r = 0; r < rounds; ++r) {
        int b = FAULT == ONE_BOX ? 0 : r % 2, n = FAULT == ONE_BOX ? r : r / 2;
        if (t < size)
            store_async(address_in_block(&box[b][rank], t), float(rank + r), address_in_block(&full[b], t));
        if (FAULT == BLOCK_SCOPE) mbarrier_wait(&full[b], n % 2);
        else mbarrier_wait_cluster(&full[b], n % 2);
        if (t == 0) mbarrier_arrive_expect(&full[b], 4 * size);
        sum = 0;
        for (int i = 0; i < size; ++i) sum += box[b][i];
        __syncwarp();  // all lanes have read the box before any sends what lets others write it
    }
    out[blockIdx.x * 32 + t] = sum;
    cluster.sync();  // nobody leaves while others send to it
}

enum Answer { ANSWERED, UNASKED, ONE_MORE };

// The others of a cluster arrive at block 0's barrier. It waits for that, though not for what they did before, and leaves.
template <int FAULT> __global__ void answered(float* out) {
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    __shared__ Mbarrier here;
    int rank = cluster.block_rank(), t = threadIdx.x;
    if (t == 0) {
        mbarrier_init(&here, cluster.num_blocks() - 1);
        mbarrier_fence_init();
    }
    cluster.sync();  // all blocks have begun
    out[blockIdx.x * 32 + t] = 1;
    if (rank > 0 && t == 0)
        for (int n = 0; n < (FAULT == ONE_MORE && rank == 1 ? 2 : 1); ++n) mbarrier_arrive_cluster(address_in_block(&here, 0));
    if (rank == 0 && t == 0 && FAULT != UNASKED) mbarrier_wait(&here, 0);
}

// Adds 1 to all of x by way of shared memory and bulk copies in both directions.
// Plain stores to device memory, brought back by bulk copies.
template <int FAULT> __global__ void stored_then_loaded(float* x, int tiles) {
    constexpr int N = 64;
    alignas(16) __shared__ float tile[N];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    if (t == 0) mbarrier_init(&full, 1), mbarrier_fence_init();
    for (int k = 0; k < tiles; ++k) {
        x[k * N + t] = k * N + t;
        FAULT == SHARED_FENCE ? fence_proxy_async_shared() : fence_proxy_async();
        __syncthreads();  // all have stored their part of what thread 0 copies, and read the tile before it
        if (t == 0) {
            mbarrier_arrive_expect(&full, sizeof tile);
            bulk_load(tile, x + k * N, sizeof tile, &full);
        }
        mbarrier_wait(&full, k % 2);
        x[k * N + t] = tile[N - 1 - t] + t + t + 2 - N;
    }
}

template <int FAULT> __global__ void through_bulk(float* x, int tiles) {
    constexpr int N = 64;
    alignas(16) __shared__ float tile[N];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    if (t == 0) mbarrier_init(&full, 1), mbarrier_fence_init();
    __syncthreads();
    for (int k = 0; k < tiles; ++k) {
        if (t == 0) {
            mbarrier_arrive_expect(&full, sizeof tile);
            bulk_load(tile, x + k * N, sizeof tile, &full);
        }
        mbarrier_wait(&full, k % 2);
        tile[t] += 1;
        if (FAULT != NO_FENCE) fence_proxy_async_shared();
        __syncthreads();  // all have written their part of what thread 0 copies
        if (t == 0) {
            bulk_store(x + k * N, tile, sizeof tile);
            bulk_commit();
            if (FAULT != NO_WAIT) bulk_wait_read<0>();
        }
        __syncthreads();  // the tile may be filled again
    }
    // A grid has not ended before its stores have: it is enough that they have read.
    if (FAULT != NO_WAIT && FAULT != READ_ALONE && t == 0) bulk_wait<0>();
}
