// Copies of whole stretches of memory that one thread asks for (cp.async.bulk, sm_90): loads that count
// at an mbarrier, stores in groups, and from block to block of a cluster. The copies are made in the
// async proxy: they see plain stores only behind a proxy fence.
#include "lab/ptx/bulk.cuh"

using namespace lab;

constexpr unsigned BYTES = 64 * sizeof(float);  // of a tile

// Barriers of so many arrivals. The block and copies know of them; the block's cluster does after a
// barrier of its own.
__device__ void make_barriers(Mbarrier* bars, int count, unsigned arrivals) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < count; ++i) mbarrier_init(&bars[i], arrivals);
        mbarrier_fence_init();
    }
    __syncthreads();
}

// Zeros, over which copies may come.
__device__ void clear(float* shared, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) shared[i] = 0.0f;
    fence_proxy_async();
    __syncthreads();
}

__device__ int block_of_cluster() { return cooperative_groups::this_cluster().block_rank(); }

__device__ void meet_cluster() { cooperative_groups::this_cluster().sync(); }

// ---- loads ----------------------------------------------------------------------------------------

// Asked for is not arrived.
__global__ void bulk_read_without_wait(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    clear(tile, 64);
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        bulk_load(tile, x, BYTES, &full);  // BUG bulk_read_without_wait
    }
    out[t] = tile[63 - t];  // BUG bulk_read_without_wait
    mbarrier_wait(&full, 0);
}
// The wait is for the other tile's barrier.
__global__ void bulk_wait_other_stage(const float* x, float* out) {
    __align__(16) __shared__ float tile[2][64];
    __shared__ Mbarrier full[2];
    int t = threadIdx.x;
    clear(tile[0], 128);
    make_barriers(full, 2, 1);
    if (t == 0) {
        for (int k = 0; k < 2; ++k) {
            mbarrier_arrive_expect(&full[k], BYTES);
            bulk_load(tile[k], &x[64 * k], BYTES, &full[k]);  // BUG bulk_wait_other_stage
        }
    }
    mbarrier_wait(&full[0], 0);  // BUG bulk_wait_other_stage
    out[t] = tile[1][63 - t];  // BUG bulk_wait_other_stage
    mbarrier_wait(&full[1], 0);
}
// The phase before the first is complete from the start: nobody waits for the copy.
__global__ void bulk_wrong_parity(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    clear(tile, 64);
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        bulk_load(tile, x, BYTES, &full);  // BUG bulk_wrong_parity
    }
    mbarrier_wait(&full, 1);  // BUG bulk_wrong_parity
    out[t] = tile[63 - t];  // BUG bulk_wrong_parity
    mbarrier_wait(&full, 0);
}
// For the second tile, all wait for the phase of the first.
__global__ void bulk_parity_not_flipped(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    float sum = 0.0f;
    make_barriers(&full, 1, 1);
    for (int k = 0; k < 2; ++k) {
        if (t == 0) {
            mbarrier_arrive_expect(&full, BYTES);
            bulk_load(tile, &x[64 * k], BYTES, &full);  // BUG bulk_parity_not_flipped
        }
        mbarrier_wait(&full, 0);  // BUG bulk_parity_not_flipped
        sum += tile[63 - t];  // BUG bulk_parity_not_flipped
        __syncthreads();
    }
    out[t] = sum;
    mbarrier_wait(&full, 1);
}
// Two copies come; the phase is complete when one of them has.
__global__ void bulk_expect_too_small(const float* x, float* out) {
    __align__(16) __shared__ float tile[2][64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    clear(tile[0], 128);
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);  // BUG bulk_expect_too_small
        bulk_load(tile[0], x, BYTES, &full);  // BUG bulk_expect_too_small
        bulk_load(tile[1], &x[64], BYTES, &full);  // BUG bulk_expect_too_small
    }
    mbarrier_wait(&full, 0);  // BUG bulk_expect_too_small
    out[t] = tile[0][63 - t] + tile[1][63 - t];  // BUG bulk_expect_too_small
    if (t == 0) mbarrier_arrive_expect(&full, BYTES);
    mbarrier_wait(&full, 1);
}
// One copy comes; two are expected.
__global__ void bulk_expect_too_large(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, 2 * BYTES);  // BUG bulk_expect_too_large
        bulk_load(tile, x, BYTES, &full);  // BUG bulk_expect_too_large
    }
    mbarrier_wait(&full, 0);  // BUG bulk_expect_too_large
    out[t] = tile[63 - t];
}
// To expect bytes is to arrive: this thread arrives twice, before the bytes have completed the phase.
__global__ void bulk_arrives_too_often(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);  // BUG bulk_arrives_too_often
        mbarrier_arrive(&full);  // BUG bulk_arrives_too_often
        bulk_load(tile, x, BYTES, &full);
    }
    mbarrier_wait(&full, 0);  // BUG bulk_arrives_too_often
    out[t] = tile[63 - t];
}
// The second tile goes where others may still read the first.
__global__ void bulk_refill_too_early(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full[2];
    int t = threadIdx.x;
    float sum = 0.0f;
    make_barriers(full, 2, 1);
    for (int k = 0; k < 2; ++k) {
        if (t == 0) {
            mbarrier_arrive_expect(&full[k], BYTES);
            bulk_load(tile, &x[64 * k], BYTES, &full[k]);  // BUG bulk_refill_too_early
        }
        mbarrier_wait(&full[k], 0);
        sum += tile[63 - t];  // BUG bulk_refill_too_early
    }
    out[t] = sum;
}
// The tile is given back before it is read.
__global__ void bulk_empty_before_read(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full[2], empty;
    int t = threadIdx.x;
    float sum = 0.0f;
    make_barriers(full, 2, 1);
    make_barriers(&empty, 1, 64);
    for (int k = 0; k < 2; ++k) {
        if (t == 0) {
            mbarrier_wait(&empty, k ^ 1);
            mbarrier_arrive_expect(&full[k], BYTES);
            bulk_load(tile, &x[64 * k], BYTES, &full[k]);  // BUG bulk_empty_before_read
        }
        mbarrier_wait(&full[k], 0);
        mbarrier_arrive(&empty);  // BUG bulk_empty_before_read
        sum += tile[63 - t];  // BUG bulk_empty_before_read
    }
    out[t] = sum;
}
// Which comes last, the zeros or the copy? A barrier orders plain accesses.
__global__ void bulk_load_over_stores(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    tile[t] = 0.0f;  // BUG bulk_load_over_stores
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        bulk_load(tile, x, BYTES, &full);  // BUG bulk_load_over_stores
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];  // BUG bulk_load_over_stores
}
// Numbers in device memory that the kernel has written itself are not seen without a fence either.
__global__ void bulk_load_of_stores(float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    x[t] = t;  // BUG bulk_load_of_stores
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        bulk_load(tile, x, BYTES, &full);  // BUG bulk_load_of_stores
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];
}
// 16 bytes at a time, from an address that is a multiple of 4.
__global__ void bulk_misaligned(const float* x, float* out, int offset) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        bulk_load(tile, x + offset, BYTES, &full);  // BUG bulk_misaligned
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];
}
// The size is a multiple of 4, not of 16.
__global__ void bulk_odd_size(const float* x, float* out, int n) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, n * sizeof(float));
        bulk_load(tile, x, n * sizeof(float), &full);  // BUG bulk_odd_size
    }
    mbarrier_wait(&full, 0);
    if (t < n) out[t] = tile[t];
}
// A whole tile, of which the last part is not there.
__global__ void bulk_load_past_end(const float* x, float* out, int n) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        bulk_load(tile, x, BYTES, &full);  // BUG bulk_load_past_end
    }
    mbarrier_wait(&full, 0);
    if (t < n) out[t] = tile[t];
}

// One tile, one copy, one wait.
__global__ void bulk_one_load(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        bulk_load(tile, x, BYTES, &full);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];
}
// Two threads ask for a half each, and say so.
__global__ void bulk_expect_in_parts(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 2);
    if (t % 32 == 0) {
        mbarrier_arrive_expect(&full, BYTES / 2);
        bulk_load(&tile[t], &x[t], BYTES / 2, &full);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];
}
// Two stages. The thread that asks for tile k + 1 also reads tile k, like all others.
__global__ void bulk_two_stages(const float* x, float* out, int tiles) {
    __align__(16) __shared__ float tile[2][64];
    __shared__ Mbarrier full[2], empty[2];
    int t = threadIdx.x;
    float sum = 0.0f;
    make_barriers(full, 2, 1);
    make_barriers(empty, 2, 64);
    for (int k = -1; k < tiles; ++k) {
        int next = k + 1;
        if (t == 0 && next < tiles) {
            mbarrier_wait(&empty[next % 2], next / 2 % 2 ^ 1);
            mbarrier_arrive_expect(&full[next % 2], BYTES);
            bulk_load(tile[next % 2], &x[64 * next], BYTES, &full[next % 2]);
        }
        if (k < 0) continue;
        mbarrier_wait(&full[k % 2], k / 2 % 2);
        sum += tile[k % 2][63 - t];
        mbarrier_arrive(&empty[k % 2]);
    }
    out[t] = sum;
}
// A warp that asks for tiles, two that read them, three stages: one lane a warp gives a tile back.
__global__ void bulk_producer_warp(const float* x, float* out, int tiles) {
    __align__(16) __shared__ float tile[3][64];
    __shared__ Mbarrier full[3], empty[3];
    int t = threadIdx.x;
    float sum = 0.0f;
    make_barriers(full, 3, 1);
    make_barriers(empty, 3, 2);
    if (t == 64) {
        for (int k = 0; k < tiles; ++k) {
            mbarrier_wait(&empty[k % 3], k / 3 % 2 ^ 1);
            mbarrier_arrive_expect(&full[k % 3], BYTES);
            bulk_load(tile[k % 3], &x[64 * k], BYTES, &full[k % 3]);
        }
    } else if (t < 64) {
        for (int k = 0; k < tiles; ++k) {
            mbarrier_wait(&full[k % 3], k / 3 % 2);
            sum += tile[k % 3][63 - t];
            __syncwarp();
            if (t % 32 == 0) mbarrier_arrive(&empty[k % 3]);
        }
        out[t] = sum;
    }
}
// The zeros are fenced: the copy comes after them.
__global__ void bulk_load_over_fenced_stores(const float* x, float* out) {
    __align__(16) __shared__ float tile[128];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    clear(tile, 128);
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        bulk_load(tile, x, BYTES, &full);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[t] + tile[64 + t];
}

// ---- stores ---------------------------------------------------------------------------------------

// A barrier orders plain accesses; the copy is none.
__global__ void bulk_store_unfenced(float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;  // BUG bulk_store_unfenced
    __syncthreads();
    if (t == 0) {
        bulk_store(out, tile, BYTES);  // BUG bulk_store_unfenced
        bulk_commit();
        bulk_wait<0>();
    }
}
// One thread fences before it knows of what the others have stored.
__global__ void bulk_fence_before_barrier(float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;  // BUG bulk_fence_before_barrier
    if (t == 0) fence_proxy_async();  // BUG bulk_fence_before_barrier
    __syncthreads();
    if (t == 0) {
        bulk_store(out, tile, BYTES);  // BUG bulk_fence_before_barrier
        bulk_commit();
        bulk_wait<0>();
    }
}
// The tile changes under the copy.
__global__ void bulk_source_overwritten(float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(out, tile, BYTES);  // BUG bulk_source_overwritten
        bulk_commit();
    }
    tile[t] = 0.0f;  // BUG bulk_source_overwritten
    if (t == 0) bulk_wait<0>();
}
// The groups are those of thread 0; another thread has none to wait for.
__global__ void bulk_wait_by_another(float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(out, tile, BYTES);  // BUG bulk_wait_by_another
        bulk_commit();
    }
    if (t == 32) bulk_wait_read<0>();  // BUG bulk_wait_by_another
    __syncthreads();
    tile[t] = 0.0f;  // BUG bulk_wait_by_another
    if (t == 0) bulk_wait<0>();
}
// A copy that is in no group is waited for by nobody.
__global__ void bulk_never_committed(float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(out, tile, BYTES);  // BUG bulk_never_committed
        bulk_wait_read<0>();  // BUG bulk_never_committed
    }
    __syncthreads();
    tile[t] = 0.0f;  // BUG bulk_never_committed
    if (t == 0) {
        bulk_commit();
        bulk_wait<0>();
    }
}
// Two groups, and a wait that lets one go on.
__global__ void bulk_wait_too_few(float* out) {
    __align__(16) __shared__ float tile[2][64];
    int t = threadIdx.x;
    tile[0][t] = tile[1][t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(out, tile[0], BYTES);
        bulk_commit();
        bulk_store(out + 64, tile[1], BYTES);  // BUG bulk_wait_too_few
        bulk_commit();
        bulk_wait_read<1>();  // BUG bulk_wait_too_few
    }
    __syncthreads();
    tile[1][t] = 0.0f;  // BUG bulk_wait_too_few
    if (t == 0) bulk_wait<0>();
}
// What was copied has been read, but not yet written.
__global__ void bulk_read_back_too_early(float* y, float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(y, tile, BYTES);  // BUG bulk_read_back_too_early
        bulk_commit();
        bulk_wait_read<0>();  // BUG bulk_read_back_too_early
        out[0] = y[63];  // BUG bulk_read_back_too_early
        bulk_wait<0>();
    }
}
// One thread has waited; the others read.
__global__ void bulk_read_back_without_barrier(float* y, float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(y, tile, BYTES);  // BUG bulk_read_back_without_barrier
        bulk_commit();
        bulk_wait<0>();  // BUG bulk_read_back_without_barrier
    }
    out[t] = y[63 - t];  // BUG bulk_read_back_without_barrier
}
// The block and its shared memory go while they are copied.
__global__ void bulk_exit_without_wait(float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(out, tile, BYTES);  // BUG bulk_exit_without_wait
        bulk_commit();  // BUG bulk_exit_without_wait
    }
}
// A whole tile, for which there is not room enough.
__global__ void bulk_store_past_end(float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(out, tile, BYTES);  // BUG bulk_store_past_end
        bulk_commit();
        bulk_wait<0>();
    }
}

// Each thread fences what it has stored, before the barrier.
__global__ void bulk_store_fenced_by_writers(float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[63 - t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(out, tile, BYTES);
        bulk_commit();
        bulk_wait<0>();
    }
}
// One thread fences for all, behind the barrier: it knows by then what they have stored.
__global__ void bulk_store_fenced_by_issuer(float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[63 - t] = t;
    __syncthreads();
    if (t == 0) {
        fence_proxy_async();
        bulk_store(out, tile, BYTES);
        bulk_commit();
        bulk_wait<0>();
    }
}
// Once it has been read, the tile may be written again, though the copy may still be under way.
__global__ void bulk_source_read(float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    for (int k = 0; k < 2; ++k) {
        tile[t] = 64 * k + t;
        fence_proxy_async();
        __syncthreads();
        if (t == 0) {
            bulk_store(out + 64 * k, tile, BYTES);
            bulk_commit();
            bulk_wait_read<0>();
        }
        __syncthreads();
    }
    if (t == 0) bulk_wait<0>();
}
// Two tiles, two groups under way: before a tile is written again, the older group has read it.
__global__ void bulk_several_groups(float* out, int tiles) {
    __align__(16) __shared__ float tile[2][64];
    int t = threadIdx.x;
    for (int k = 0; k < tiles; ++k) {
        if (t == 0) bulk_wait_read<1>();
        __syncthreads();
        tile[k % 2][t] = 64 * k + t;
        fence_proxy_async();
        __syncthreads();
        if (t == 0) {
            bulk_store(out + 64 * k, tile[k % 2], BYTES);
            bulk_commit();
        }
    }
    if (t == 0) bulk_wait<0>();
}
// All read what one thread has copied and waited for.
__global__ void bulk_read_back(float* y, float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(y, tile, BYTES);
        bulk_commit();
        bulk_wait<0>();
    }
    __syncthreads();
    out[t] = y[63 - t];
}
// In by one copy, doubled in place, out by another.
__global__ void bulk_in_and_out(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        bulk_load(tile, x, BYTES, &full);
    }
    mbarrier_wait(&full, 0);
    tile[t] *= 2.0f;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        bulk_store(out, tile, BYTES);
        bulk_commit();
        bulk_wait<0>();
    }
}

// ---- from block to block of a cluster -------------------------------------------------------------

// The copy to the peer does not see plain stores either.
__global__ void bulk_send_unfenced(float* out) {
    __align__(16) __shared__ float tile[64];
    __align__(16) __shared__ float box[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    tile[t] = 64 * rank + t;  // BUG bulk_send_unfenced
    make_barriers(&full, 1, 1);
    if (t == 0) mbarrier_arrive_expect(&full, BYTES);
    meet_cluster();
    ClusterAddress to = address_in_block(box, peer), there = address_in_block(&full, peer);
    if (t == 0) bulk_send(to, tile, BYTES, there);  // BUG bulk_send_unfenced
    mbarrier_wait_cluster(&full, 0);
    out[64 * rank + t] = box[63 - t];
    meet_cluster();
}
// The tile changes under the copy: that it has been read, only the receiver could say.
__global__ void bulk_send_source_overwritten(float* out) {
    __align__(16) __shared__ float tile[64];
    __align__(16) __shared__ float box[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    tile[t] = 64 * rank + t;
    fence_proxy_async();
    make_barriers(&full, 1, 1);
    if (t == 0) mbarrier_arrive_expect(&full, BYTES);
    meet_cluster();
    ClusterAddress to = address_in_block(box, peer), there = address_in_block(&full, peer);
    if (t == 0) bulk_send(to, tile, BYTES, there);  // BUG bulk_send_source_overwritten
    tile[t] = 0.0f;  // BUG bulk_send_source_overwritten
    mbarrier_wait_cluster(&full, 0);
    out[64 * rank + t] = box[63 - t];
    meet_cluster();
}
// The second tile goes into a box of which nobody has said that it has been read.
__global__ void bulk_box_sent_again(float* out) {
    __align__(16) __shared__ float tile[2][64];
    __align__(16) __shared__ float box[64];
    __shared__ Mbarrier full[2];
    int t = threadIdx.x;
    for (int k = 0; k < 2; ++k) tile[k][t] = 64 * k + t;
    fence_proxy_async();
    make_barriers(full, 2, 1);
    if (t < 2) mbarrier_arrive_expect(&full[t], BYTES);
    meet_cluster();
    for (int k = 0; k < 2; ++k) {
        ClusterAddress to = address_in_block(box, 0), there = address_in_block(&full[k], 0);
        if (block_of_cluster() == 1) {
            if (t == 0) bulk_send(to, tile[k], BYTES, there);  // BUG bulk_box_sent_again
        } else {
            mbarrier_wait_cluster(&full[k], 0);
            out[64 * k + t] = box[63 - t];  // BUG bulk_box_sent_again
        }
    }
    meet_cluster();
}
// A copy brings itself; it does not release what its thread has done before.
__global__ void bulk_send_releases_nothing(float* out) {
    __align__(16) __shared__ float tile[64];
    __align__(16) __shared__ float box[64];
    __shared__ float factor;
    __shared__ Mbarrier full;
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    if (t == 0) factor = 1.0f;
    tile[t] = 64 * rank + t;
    fence_proxy_async();
    make_barriers(&full, 1, 1);
    if (t == 0) mbarrier_arrive_expect(&full, BYTES);
    meet_cluster();
    ClusterAddress to = address_in_block(box, peer), there = address_in_block(&full, peer);
    float* factor_there = cooperative_groups::this_cluster().map_shared_rank(&factor, peer);
    if (t == 0) {
        *factor_there = 2.0f;  // BUG bulk_send_releases_nothing
        bulk_send(to, tile, BYTES, there);  // BUG bulk_send_releases_nothing
    }
    mbarrier_wait_cluster(&full, 0);  // BUG bulk_send_releases_nothing
    out[64 * rank + t] = factor * box[63 - t];  // BUG bulk_send_releases_nothing
    meet_cluster();
}

// Both send a tile, and leave together.
__global__ void bulk_swap(float* out) {
    __align__(16) __shared__ float tile[64];
    __align__(16) __shared__ float box[64];
    __shared__ Mbarrier full;
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    tile[t] = 64 * rank + t;
    fence_proxy_async();
    make_barriers(&full, 1, 1);
    if (t == 0) mbarrier_arrive_expect(&full, BYTES);
    meet_cluster();
    ClusterAddress to = address_in_block(box, peer), there = address_in_block(&full, peer);
    if (t == 0) bulk_send(to, tile, BYTES, there);
    mbarrier_wait_cluster(&full, 0);
    out[64 * rank + t] = box[63 - t];
    meet_cluster();
}
// A ring: each block sends its tile to the next one, which answers once it has read it. By then the tile
// has been read, too, and may be written again; after the last answer the block may leave.
__global__ void bulk_ring(float* out, int rounds) {
    __align__(16) __shared__ float tile[64];
    __align__(16) __shared__ float box[64];
    __shared__ Mbarrier full, heard;
    int t = threadIdx.x, rank = block_of_cluster();
    int blocks = cooperative_groups::this_cluster().num_blocks();
    int next = (rank + 1) % blocks, before = (rank + blocks - 1) % blocks;
    make_barriers(&full, 1, 1);
    make_barriers(&heard, 1, 64);
    if (t == 0) mbarrier_arrive_expect(&full, BYTES);
    meet_cluster();
    float v = 64 * rank + t;
    for (int k = 0; k < rounds; ++k) {
        tile[t] = v;
        fence_proxy_async();
        __syncthreads();
        ClusterAddress to = address_in_block(box, next), there = address_in_block(&full, next);
        if (t == 0) bulk_send(to, tile, BYTES, there);
        mbarrier_wait_cluster(&full, k % 2);
        if (t == 0) mbarrier_arrive_expect(&full, BYTES);
        v = box[63 - t] + 1.0f;
        mbarrier_arrive_cluster(address_in_block(&heard, before));
        mbarrier_wait_cluster(&heard, k % 2);
    }
    out[64 * rank + t] = v;
}
