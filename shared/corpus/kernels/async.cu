// Copies into shared memory that go on while the thread does (cp.async, sm_80): a thread's own are
// there after its wait, those of others after a barrier besides.
#include "lab/ptx/cp_async.cuh"

using namespace lab;

// Issued is not arrived.
__global__ void async_read_before_wait(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = 0.0f;
    async_copy<4>(&tile[t], &x[t]);  // BUG async_read_before_wait
    async_commit();
    out[t] = tile[t];  // BUG async_read_before_wait
    async_wait<0>();
}
// The thread waited for its own copies; it reads another's.
__global__ void async_wait_without_barrier(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = 0.0f;
    __syncthreads();
    async_copy<4>(&tile[t], &x[t]);  // BUG async_wait_without_barrier
    async_commit();
    async_wait<0>();
    out[t] = tile[63 - t];  // BUG async_wait_without_barrier
}
// Two groups, and a wait that lets one go on.
__global__ void async_wait_too_few(const float* x, float* out) {
    __align__(16) __shared__ float tile[2][64];
    int t = threadIdx.x;
    tile[0][t] = tile[1][t] = 0.0f;
    async_copy<4>(&tile[0][t], &x[t]);
    async_commit();
    async_copy<4>(&tile[1][t], &x[64 + t]);  // BUG async_wait_too_few
    async_commit();
    async_wait<1>();
    __syncthreads();
    out[t] = tile[0][63 - t] + tile[1][63 - t];  // BUG async_wait_too_few
    async_wait<0>();
}
// A copy that is in no group is waited for by nobody.
__global__ void async_never_committed(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = 0.0f;
    async_copy<4>(&tile[t], &x[t]);  // BUG async_never_committed
    async_wait<0>();
    out[t] = tile[t];  // BUG async_never_committed
    async_commit();
    async_wait<0>();
}
// The next copy goes where others may still be reading.
__global__ void async_refill_too_early(const float* x, float* out, int tiles) {
    __align__(16) __shared__ float tile[2][64];
    int t = threadIdx.x;
    float sum = 0.0f;
    async_copy<4>(&tile[0][t], &x[t]);
    async_commit();
    for (int k = 0; k < tiles; ++k) {
        int next = k + 1;
        if (next < tiles)
            async_copy<4>(&tile[next % 2][t], &x[64 * next + t]);  // BUG async_refill_too_early
        async_commit();
        async_wait<1>();
        __syncthreads();
        sum += tile[k % 2][63 - t];  // BUG async_refill_too_early
    }
    out[t] = sum;
}
// The source changes under the copy.
__global__ void async_source_overwritten(float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    async_copy<4>(&tile[t], &x[t]);  // BUG async_source_overwritten
    async_commit();
    x[t] = 0.0f;  // BUG async_source_overwritten
    async_wait<0>();
    out[t] = tile[t];
}
// A plain store and a copy to the same place: which comes last?
__global__ void async_target_overwritten(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    async_copy<4>(&tile[t], &x[t]);  // BUG async_target_overwritten
    async_commit();
    tile[t] = 1.0f;  // BUG async_target_overwritten
    async_wait<0>();
    out[t] = tile[t];
}
// The last 16 bytes are not all there.
__global__ void async_past_end(const float* x, float* out, int n) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    for (int k = 0; k < 4; ++k) tile[4 * t + k] = 0.0f;
    if (4 * t < n) async_copy<16>(&tile[4 * t], &x[4 * t]);  // BUG async_past_end
    async_commit();
    async_wait<0>();
    for (int i = 4 * t; i < 4 * t + 4 && i < n; ++i) out[i] = tile[i];
}
// 16 bytes from an address that is a multiple of 4.
__global__ void async_misaligned(const float* x, float* out, int offset) {
    __align__(16) __shared__ float tile[128];
    int t = threadIdx.x;
    async_copy<16>(&tile[4 * t], &x[4 * t + offset]);  // BUG async_misaligned
    async_commit();
    async_wait<0>();
    out[t] = tile[4 * t];
}

// Its own copies, waited for: no barrier.
__global__ void async_own_copy(const float* x, float* out) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x;
    async_copy<4>(&tile[t], &x[t]);
    async_commit();
    async_wait<0>();
    out[t] = tile[t];
}
// The copies of others: the wait of each, and a barrier.
__global__ void async_copies_of_others(const double* x, double* out) {
    __align__(16) __shared__ double tile[64];
    int t = threadIdx.x;
    async_copy<8>(&tile[t], &x[t]);
    async_commit();
    async_wait<0>();
    __syncthreads();
    out[t] = tile[63 - t];
}
// The older of two groups is there while the younger is under way.
__global__ void async_older_group(const float* x, float* out) {
    __align__(16) __shared__ float tile[2][64];
    int t = threadIdx.x;
    async_copy<4>(&tile[0][t], &x[t]);
    async_commit();
    async_copy<4>(&tile[1][t], &x[64 + t]);
    async_commit();
    async_wait<1>();
    float first = tile[0][t];
    async_wait<0>();
    out[t] = first - tile[1][t];
}
// Whole groups of 16 bytes by copies, the rest by stores.
__global__ void async_and_tail(const float* x, float* out, int n) {
    __align__(16) __shared__ float tile[64];
    int t = threadIdx.x, first = 4 * t;
    if (first + 4 <= n) {
        async_copy<16>(&tile[first], &x[first]);
    } else {
        for (int i = first; i < first + 4; ++i) tile[i] = i < n ? x[i] : 0.0f;
    }
    async_commit();
    async_wait<0>();
    __syncthreads();
    for (int i = t; i < n; i += blockDim.x) out[i] = tile[n - 1 - i];
}
// Two stages: the barrier that shows tile k is the one that frees the buffer of tile k + 1.
__global__ void async_two_stages(const float* x, float* out, int tiles) {
    __align__(16) __shared__ float tile[2][64];
    int t = threadIdx.x;
    float sum = 0.0f;
    async_copy<4>(&tile[0][t], &x[t]);
    async_commit();
    for (int k = 0; k < tiles; ++k) {
        async_wait<0>();
        __syncthreads();
        if (k + 1 < tiles) async_copy<4>(&tile[(k + 1) % 2][t], &x[64 * (k + 1) + t]);
        async_commit();
        sum += tile[k % 2][63 - t];
    }
    out[t] = sum;
}
// Three stages: one copy is under way while another is read. The last groups are empty.
__global__ void async_three_stages(const float* x, float* out, int tiles) {
    __align__(16) __shared__ float tile[3][64];
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < 2; ++k) {
        if (k < tiles) async_copy<4>(&tile[k][t], &x[64 * k + t]);
        async_commit();
    }
    for (int k = 0; k < tiles; ++k) {
        async_wait<1>();
        __syncthreads();
        if (k + 2 < tiles) async_copy<4>(&tile[(k + 2) % 3][t], &x[64 * (k + 2) + t]);
        async_commit();
        sum += tile[k % 3][63 - t];
    }
    out[t] = sum;
}
