// Barriers in shared memory that count arrivals, and bytes that come (mbarrier, sm_90): between the
// warps of a block, and between the blocks of a cluster, which store into each other's shared memory.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/order.cuh"
#include "lab/ptx/st_async.cuh"

using namespace lab;

// Barriers of so many arrivals. The block knows of them; its cluster does after a barrier of its own.
__device__ void make_barriers(Mbarrier* bars, int count, unsigned arrivals) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < count; ++i) mbarrier_init(&bars[i], arrivals);
        mbarrier_fence_init();
    }
    __syncthreads();
}

__device__ int block_of_cluster() { return cooperative_groups::this_cluster().block_rank(); }

__device__ void meet_cluster() { cooperative_groups::this_cluster().sync(); }

// ---- within a block: the first warp produces, the second consumes --------------------------------

// The producers arrive; the consumers do not look.
__global__ void mbarrier_read_without_wait(int* out) {
    __shared__ Mbarrier full;
    __shared__ int box[32];
    int t = threadIdx.x;
    if (t < 32) box[t] = -1;
    make_barriers(&full, 1, 32);
    if (t < 32) {
        box[t] = t;  // BUG mbarrier_read_without_wait
        mbarrier_arrive(&full);
    } else {
        out[t - 32] = box[63 - t];  // BUG mbarrier_read_without_wait
    }
}
// What is written behind the arrival is not handed over.
__global__ void mbarrier_arrives_before_write(int* out) {
    __shared__ Mbarrier full;
    __shared__ int box[32];
    int t = threadIdx.x;
    if (t < 32) box[t] = -1;
    make_barriers(&full, 1, 32);
    if (t < 32) {
        mbarrier_arrive(&full);  // BUG mbarrier_arrives_before_write
        box[t] = t;  // BUG mbarrier_arrives_before_write
    } else {
        mbarrier_wait(&full, 0);
        out[t - 32] = box[63 - t];  // BUG mbarrier_arrives_before_write
    }
}
// One lane arrives for its warp, but has not waited for it.
__global__ void mbarrier_lane_arrives_alone(int* out) {
    __shared__ Mbarrier full;
    __shared__ int box[32];
    int t = threadIdx.x;
    if (t < 32) box[t] = -1;
    make_barriers(&full, 1, 1);
    if (t < 32) {
        box[t] = t;  // BUG mbarrier_lane_arrives_alone
        if (t == 0) mbarrier_arrive(&full);  // BUG mbarrier_lane_arrives_alone
    } else {
        mbarrier_wait(&full, 0);
        out[t - 32] = box[63 - t];  // BUG mbarrier_lane_arrives_alone
    }
}
// Two boxes, each with its barrier; the wait is for the first one's both times.
__global__ void mbarrier_wait_other_stage(int* out) {
    __shared__ Mbarrier full[2];
    __shared__ int box[2][32];
    int t = threadIdx.x;
    box[t / 32][t % 32] = -1;
    make_barriers(full, 2, 32);
    for (int k = 0; k < 2; ++k) {
        if (t < 32) {
            box[k][t] = t + k;  // BUG mbarrier_wait_other_stage
            mbarrier_arrive(&full[k]);
        } else {
            mbarrier_wait(&full[0], 0);  // BUG mbarrier_wait_other_stage
            out[32 * k + t - 32] = box[k][63 - t];  // BUG mbarrier_wait_other_stage
        }
    }
}
// Two numbers go through one box; nobody says that the first has been read.
__global__ void mbarrier_refill_too_early(int* out) {
    __shared__ Mbarrier full[2];
    __shared__ int box[32];
    int t = threadIdx.x;
    make_barriers(full, 2, 32);
    for (int k = 0; k < 2; ++k) {
        if (t < 32) {
            box[t] = t + k;  // BUG mbarrier_refill_too_early
            mbarrier_arrive(&full[k]);
        } else {
            mbarrier_wait(&full[k], 0);
            out[32 * k + t - 32] = box[63 - t];  // BUG mbarrier_refill_too_early
        }
    }
}
// Three warps arrive, but two arrivals complete the phase.
__global__ void mbarrier_count_too_small(int* out) {
    __shared__ Mbarrier full;
    __shared__ int box[96];
    int t = threadIdx.x;
    if (t < 96) box[t] = -1;
    if (t == 0) mbarrier_init(&full, 2);  // BUG mbarrier_count_too_small
    __syncthreads();
    if (t < 96) {
        box[t] = t;  // BUG mbarrier_count_too_small
        __syncwarp();
        if (t % 32 == 0) mbarrier_arrive(&full);  // BUG mbarrier_count_too_small
    } else {
        mbarrier_wait(&full, 0);  // BUG mbarrier_count_too_small
        out[t - 96] = box[t - 96] + box[t - 64] + box[t - 32];  // BUG mbarrier_count_too_small
    }
}
// One warp arrives, where two would have to.
__global__ void mbarrier_count_too_large(int* out) {
    __shared__ Mbarrier full;
    __shared__ int box[32];
    int t = threadIdx.x;
    if (t == 0) mbarrier_init(&full, 64);  // BUG mbarrier_count_too_large
    __syncthreads();
    if (t < 32) {
        box[t] = t;
        mbarrier_arrive(&full);  // BUG mbarrier_count_too_large
    } else {
        mbarrier_wait(&full, 0);  // BUG mbarrier_count_too_large
        out[t - 32] = box[63 - t];
    }
}
// All meet in the first phase; who comes last waits for the second, to which nobody comes.
__global__ void mbarrier_wrong_parity(int* out) {
    __shared__ Mbarrier met;
    make_barriers(&met, 1, 64);
    mbarrier_arrive(&met);
    mbarrier_wait(&met, 1);  // BUG mbarrier_wrong_parity
    out[threadIdx.x] = threadIdx.x;
}
// In the second round, too, all wait for parity 0: who comes last waits for the third.
__global__ void mbarrier_parity_not_flipped(int* out) {
    __shared__ Mbarrier met;
    make_barriers(&met, 1, 64);
    for (int k = 0; k < 2; ++k) {
        mbarrier_arrive(&met);
        mbarrier_wait(&met, 0);  // BUG mbarrier_parity_not_flipped
    }
    out[threadIdx.x] = threadIdx.x;
}
// Shared memory that nobody has made a barrier.
__global__ void mbarrier_never_initialised(int* out) {
    __shared__ Mbarrier met;
    mbarrier_arrive(&met);  // BUG mbarrier_never_initialised
    mbarrier_wait(&met, 0);  // BUG mbarrier_never_initialised
    out[threadIdx.x] = threadIdx.x;
}
// It was one; it is none any more.
__global__ void mbarrier_used_after_invalidate(int* out) {
    __shared__ Mbarrier met;
    make_barriers(&met, 1, 64);
    mbarrier_arrive(&met);
    mbarrier_wait(&met, 0);
    __syncthreads();
    if (threadIdx.x == 0) mbarrier_invalidate(&met);  // BUG mbarrier_used_after_invalidate
    __syncthreads();
    mbarrier_arrive(&met);  // BUG mbarrier_used_after_invalidate
    mbarrier_wait(&met, 1);  // BUG mbarrier_used_after_invalidate
    out[threadIdx.x] = threadIdx.x;
}
// It still is one: it must be invalidated first.
__global__ void mbarrier_init_twice(int* out) {
    __shared__ Mbarrier met;
    make_barriers(&met, 1, 64);
    mbarrier_arrive(&met);
    mbarrier_wait(&met, 0);
    __syncthreads();
    if (threadIdx.x == 0) mbarrier_init(&met, 64);  // BUG mbarrier_init_twice
    __syncthreads();
    mbarrier_arrive(&met);
    mbarrier_wait(&met, 0);
    out[threadIdx.x] = threadIdx.x;
}
// The flag says that it was initialised, and orders nothing.
__global__ void mbarrier_init_unseen(int* out) {
    __shared__ Mbarrier met;
    __shared__ volatile int ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_init(&met, 1);  // BUG mbarrier_init_unseen
        ready = 1;
        mbarrier_wait(&met, 0);
        out[0] = 1;
    } else if (threadIdx.x == 32) {
        while (ready == 0) __nanosleep(20);
        mbarrier_arrive(&met);  // BUG mbarrier_init_unseen
    }
}
// What its 8 bytes hold is the hardware's business.
__global__ void mbarrier_plain_load(int* out) {
    __shared__ Mbarrier met;
    make_barriers(&met, 1, 64);
    mbarrier_arrive(&met);
    mbarrier_wait(&met, 0);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = met.state != 0;  // BUG mbarrier_plain_load
}
// Zeros invalidate no barrier.
__global__ void mbarrier_plain_store(int* out) {
    __shared__ Mbarrier met;
    make_barriers(&met, 1, 64);
    mbarrier_arrive(&met);
    mbarrier_wait(&met, 0);
    __syncthreads();
    if (threadIdx.x == 0) met.state = 0;  // BUG mbarrier_plain_store
    out[threadIdx.x] = threadIdx.x;
}

// All producers write and arrive, all consumers wait and read.
__global__ void mbarrier_handover(int* out) {
    __shared__ Mbarrier full;
    __shared__ int box[32];
    int t = threadIdx.x;
    make_barriers(&full, 1, 32);
    if (t < 32) {
        box[t] = t;
        mbarrier_arrive(&full);
    } else {
        mbarrier_wait(&full, 0);
        out[t - 32] = box[63 - t];
    }
}
// One lane arrives for its warp, which it has met.
__global__ void mbarrier_lane_arrives_for_warp(int* out) {
    __shared__ Mbarrier full;
    __shared__ int box[32];
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t < 32) {
        box[t] = t;
        __syncwarp();
        if (t == 0) mbarrier_arrive(&full);
    } else {
        while (!mbarrier_try_wait(&full, 0)) __nanosleep(20);
        out[t - 32] = box[63 - t];
    }
}
// A barrier of the block, with two buffers: the parity flips each round.
__global__ void mbarrier_for_syncthreads(int* out, int rounds) {
    __shared__ Mbarrier met;
    __shared__ int x[2][64];
    int t = threadIdx.x, v = t;
    make_barriers(&met, 1, 64);
    for (int k = 0; k < rounds; ++k) {
        x[k % 2][t] = v;
        mbarrier_arrive(&met);
        mbarrier_wait(&met, k % 2);
        v = x[k % 2][(t + 1) % 64] + 1;
    }
    out[t] = v;
}
// Two warps hand each other one box, by a barrier each way.
__global__ void mbarrier_ping_pong(int* out, int rounds) {
    __shared__ Mbarrier bars[2];
    __shared__ int box[32];
    int t = threadIdx.x, lane = t % 32, v = t;
    make_barriers(bars, 2, 32);
    for (int k = 0; k < rounds; ++k) {
        if (t < 32) {
            box[t] = v;
            mbarrier_arrive(&bars[0]);
            mbarrier_wait(&bars[1], k % 2);
            v = box[t];
        } else {
            mbarrier_wait(&bars[0], k % 2);
            v = box[31 - lane] + 1;
            __syncwarp();
            box[lane] = v;
            mbarrier_arrive(&bars[1]);
        }
    }
    if (t < 32) out[t] = v;
}
// A thread may arrive as often as it likes, if the count says so.
__global__ void mbarrier_several_arrivals(int* out) {
    __shared__ Mbarrier full;
    __shared__ int box[128];
    int t = threadIdx.x;
    make_barriers(&full, 1, 128);
    if (t < 32) {
        for (int k = 0; k < 4; ++k) {
            box[32 * k + t] = 32 * k + t;
            mbarrier_arrive(&full);
        }
    } else {
        mbarrier_wait(&full, 0);
        int sum = 0;
        for (int k = 0; k < 4; ++k) sum += box[32 * k + 63 - t];
        out[t - 32] = sum;
    }
}
// A ring of two boxes. The producers' first waits are for the phase before the first, and return at once.
__global__ void mbarrier_ring(int* out, int rounds) {
    __shared__ Mbarrier full[2], empty[2];
    __shared__ int box[2][32];
    int t = threadIdx.x, sum = 0;
    make_barriers(full, 2, 32);
    make_barriers(empty, 2, 32);
    for (int k = 0; k < rounds; ++k) {
        int stage = k % 2, parity = k / 2 % 2;
        if (t < 32) {
            mbarrier_wait(&empty[stage], parity ^ 1);
            box[stage][t] = 32 * k + t;
            mbarrier_arrive(&full[stage]);
        } else {
            mbarrier_wait(&full[stage], parity);
            sum += box[stage][63 - t];
            mbarrier_arrive(&empty[stage]);
        }
    }
    if (t >= 32) out[t - 32] = sum;
}
// A barrier at the start of dynamic shared memory, its box behind it.
__global__ void mbarrier_in_dynamic_shared(int* out) {
    DYNAMIC_SHARED(Mbarrier, full);
    int* box = reinterpret_cast<int*>(full + 1);
    int t = threadIdx.x;
    make_barriers(full, 1, 32);
    if (t < 32) {
        box[t] = t;
        mbarrier_arrive(full);
    } else {
        mbarrier_wait(full, 0);
        out[t - 32] = box[63 - t];
    }
}
// Once invalidated, the 8 bytes hold numbers, and then another barrier.
__global__ void mbarrier_memory_reused(int* out) {
    DYNAMIC_SHARED(Mbarrier, met);
    int* numbers = reinterpret_cast<int*>(met);
    int t = threadIdx.x;
    make_barriers(met, 1, 64);
    mbarrier_arrive(met);
    mbarrier_wait(met, 0);
    __syncthreads();
    if (t == 0) mbarrier_invalidate(met);
    __syncthreads();
    if (t < 2) numbers[t] = t + 1;
    __syncthreads();
    int sum = numbers[0] + numbers[1];
    __syncthreads();
    make_barriers(met, 1, 64);
    mbarrier_arrive(met);
    mbarrier_wait(met, 0);
    out[t] = sum;
}

// ---- between the blocks of a cluster --------------------------------------------------------------

// The peer may not know yet that the barrier was initialised: the flag orders that as little as the
// barrier of the cluster, which came before.
__global__ void mbarrier_init_unfenced_for_peer(unsigned* flag, int* out) {
    __shared__ Mbarrier met;
    meet_cluster();
    if (threadIdx.x != 0) return;
    if (block_of_cluster() == 0) {
        mbarrier_init(&met, 1);  // BUG mbarrier_init_unfenced_for_peer
        *static_cast<volatile unsigned*>(flag) = 1;
        mbarrier_wait_cluster(&met, 0);
        out[0] = 1;
    } else {
        while (load_acquire(flag) == 0) {}
        mbarrier_arrive_cluster(address_in_block(&met, 0));  // BUG mbarrier_init_unfenced_for_peer
    }
}
// Nobody has said that the peer has begun.
__global__ void mbarrier_peer_not_begun(float* out) {
    __shared__ Mbarrier full;
    __shared__ float box[32];
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    make_barriers(&full, 1, 1);
    if (t == 0) mbarrier_arrive_expect(&full, sizeof(box));
    ClusterAddress to = address_in_block(&box[t], peer), there = address_in_block(&full, peer);
    store_async(to, float(32 * rank + t), there);  // BUG mbarrier_peer_not_begun
    mbarrier_wait_cluster(&full, 0);
    out[32 * rank + t] = box[31 - t];
    meet_cluster();
}
// Block 0 waits for nobody, and may be gone.
__global__ void mbarrier_arrival_at_exited(int* out) {
    __shared__ Mbarrier met;
    int t = threadIdx.x, rank = block_of_cluster();
    make_barriers(&met, 1, 32);
    meet_cluster();
    if (rank == 1) mbarrier_arrive_cluster(address_in_block(&met, 0));  // BUG mbarrier_arrival_at_exited
    out[32 * rank + t] = t;
}
// The receiver leaves before what it expects has come.
__global__ void mbarrier_store_to_exited(float* out) {
    __shared__ Mbarrier full;
    __shared__ float box[32];
    int t = threadIdx.x, rank = block_of_cluster();
    make_barriers(&full, 1, 1);
    if (t == 0) mbarrier_arrive_expect(&full, sizeof(box));
    meet_cluster();
    ClusterAddress to = address_in_block(&box[t], 0), there = address_in_block(&full, 0);
    if (rank == 1) store_async(to, float(t), there);  // BUG mbarrier_store_to_exited
    out[32 * rank + t] = t;
}
// The wait acquires from the own block; another one has stored.
__global__ void mbarrier_sent_but_waited_in_block(float* out) {
    __shared__ Mbarrier full;
    __shared__ float box[32];
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    box[t] = -1.0f;
    make_barriers(&full, 1, 1);
    if (t == 0) mbarrier_arrive_expect(&full, sizeof(box));
    meet_cluster();
    ClusterAddress to = address_in_block(&box[t], peer), there = address_in_block(&full, peer);
    store_async(to, float(32 * rank + t), there);  // BUG mbarrier_sent_but_waited_in_block
    mbarrier_wait(&full, 0);  // BUG mbarrier_sent_but_waited_in_block
    out[32 * rank + t] = box[31 - t];  // BUG mbarrier_sent_but_waited_in_block
}
// The same with a plain store, and an arrival that does release to the cluster.
__global__ void mbarrier_arrival_waited_in_block(int* out) {
    __shared__ Mbarrier full;
    __shared__ int box[32];
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    box[t] = -1;
    make_barriers(&full, 1, 32);
    meet_cluster();
    int* there = cooperative_groups::this_cluster().map_shared_rank(box, peer);
    there[t] = 32 * rank + t;  // BUG mbarrier_arrival_waited_in_block
    mbarrier_arrive_cluster(address_in_block(&full, peer));
    mbarrier_wait(&full, 0);  // BUG mbarrier_arrival_waited_in_block
    out[32 * rank + t] = box[31 - t];  // BUG mbarrier_arrival_waited_in_block
}
// The second number may come before the first has been read.
__global__ void mbarrier_box_sent_again(float* out) {
    __shared__ Mbarrier full[2];
    __shared__ float box[32];
    int t = threadIdx.x;
    make_barriers(full, 2, 1);
    if (t < 2) mbarrier_arrive_expect(&full[t], sizeof(box));
    meet_cluster();
    for (int k = 0; k < 2; ++k) {
        if (block_of_cluster() == 1) {
            ClusterAddress to = address_in_block(&box[t], 0), there = address_in_block(&full[k], 0);
            store_async(to, float(32 * k + t), there);  // BUG mbarrier_box_sent_again
        } else {
            mbarrier_wait_cluster(&full[k], 0);
            out[32 * k + t] = box[31 - t];  // BUG mbarrier_box_sent_again
        }
    }
}
// Each box gets two numbers a thread; the phase is complete when half of them have come.
__global__ void mbarrier_expect_too_small(float* out) {
    __shared__ Mbarrier full;
    __shared__ float box[64];
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    box[t] = box[32 + t] = -1.0f;
    make_barriers(&full, 1, 1);
    if (t == 0) mbarrier_arrive_expect(&full, 128);  // BUG mbarrier_expect_too_small
    meet_cluster();
    for (int i = t; i < 64; i += 32) {
        ClusterAddress to = address_in_block(&box[i], peer), there = address_in_block(&full, peer);
        store_async(to, float(i), there);  // BUG mbarrier_expect_too_small
    }
    mbarrier_wait_cluster(&full, 0);  // BUG mbarrier_expect_too_small
    out[32 * rank + t] = box[31 - t] + box[63 - t];  // BUG mbarrier_expect_too_small
    if (t == 0) mbarrier_arrive_expect(&full, 128);
    mbarrier_wait_cluster(&full, 1);
}
// 128 bytes come; twice as many are expected.
__global__ void mbarrier_expect_too_large(float* out) {
    __shared__ Mbarrier full;
    __shared__ float box[32];
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    make_barriers(&full, 1, 1);
    if (t == 0) mbarrier_arrive_expect(&full, 256);  // BUG mbarrier_expect_too_large
    meet_cluster();
    ClusterAddress to = address_in_block(&box[t], peer), there = address_in_block(&full, peer);
    store_async(to, float(32 * rank + t), there);  // BUG mbarrier_expect_too_large
    mbarrier_wait_cluster(&full, 0);  // BUG mbarrier_expect_too_large
    out[32 * rank + t] = box[31 - t];
}

// Each block sends its number to all, itself too. A box is written again when all have sent from the
// other one, which they did after they had read it.
__global__ void mbarrier_exchange(float* out, int steps) {
    __shared__ Mbarrier full[2];
    __shared__ float box[2][4];
    int t = threadIdx.x, rank = block_of_cluster();
    float v = rank + 1;
    make_barriers(full, 2, 1);
    if (t < 2) mbarrier_arrive_expect(&full[t], sizeof(box[0]));
    meet_cluster();
    for (int k = 0; k < steps; ++k) {
        int b = k % 2;
        if (t < 4) store_async(address_in_block(&box[b][rank], t), v, address_in_block(&full[b], t));
        mbarrier_wait_cluster(&full[b], k / 2 % 2);
        if (t == 0) mbarrier_arrive_expect(&full[b], sizeof(box[0]));
        v = box[b][0] + box[b][1] + box[b][2] + box[b][3];
        __syncwarp();
    }
    if (t == 0) out[blockIdx.x] = v;
}
// All blocks store into the first, and arrive there; they may leave, it waits.
__global__ void mbarrier_gather(int* out) {
    __shared__ Mbarrier full;
    __shared__ int box[128];
    int t = threadIdx.x, rank = block_of_cluster();
    make_barriers(&full, 1, 128);
    meet_cluster();
    int* there = cooperative_groups::this_cluster().map_shared_rank(box, 0);
    there[32 * rank + t] = 32 * rank + t;
    mbarrier_arrive_cluster(address_in_block(&full, 0));
    if (rank != 0) return;
    mbarrier_wait_cluster(&full, 0);
    for (int i = t; i < 128; i += 32) out[i] = box[127 - i];
}
// Two threads say what is to come, a half each.
__global__ void mbarrier_expect_in_parts(float* out) {
    __shared__ Mbarrier full;
    __shared__ float box[64];
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    make_barriers(&full, 1, 2);
    meet_cluster();
    if (t < 2) mbarrier_arrive_expect(&full, 128);
    for (int i = t; i < 64; i += 32)
        store_async(address_in_block(&box[i], peer), float(i + rank), address_in_block(&full, peer));
    mbarrier_wait_cluster(&full, 0);
    out[32 * rank + t] = box[31 - t] + box[63 - t];
}
// A box and an answer: the next number goes out when the peer has read the one before.
__global__ void mbarrier_answered(float* out, int rounds) {
    __shared__ Mbarrier full, heard;
    __shared__ float box[32];
    int t = threadIdx.x, rank = block_of_cluster(), peer = rank ^ 1;
    float v = 32 * rank + t;
    make_barriers(&full, 1, 1);
    make_barriers(&heard, 1, 32);
    if (t == 0) mbarrier_arrive_expect(&full, sizeof(box));
    meet_cluster();
    for (int k = 0; k < rounds; ++k) {
        store_async(address_in_block(&box[t], peer), v, address_in_block(&full, peer));
        mbarrier_wait_cluster(&full, k % 2);
        if (t == 0) mbarrier_arrive_expect(&full, sizeof(box));
        v = box[31 - t] + 1;
        mbarrier_arrive_cluster(address_in_block(&heard, peer));
        mbarrier_wait_cluster(&heard, k % 2);
    }
    out[32 * rank + t] = v;
}
