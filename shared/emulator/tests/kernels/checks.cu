// Kernels for the checks' own tests; tests/checks.rs looks for the lines marked HERE. The corpus in
// shared/corpus has many more.
#include "lab/ptx/cp_async.cuh"

using namespace lab;

// Each block reverses its part of x, and forgets the barrier.
__global__ void forgetful(float* x, int n) {
    __shared__ float part[8][8];
    int t = threadIdx.x;
    part[t / 8][t % 8] = x[t];  // HERE forgetful
    x[t] = part[(n - 1 - t) / 8][(n - 1 - t) % 8];  // HERE forgetful
}
// Each thread reads what another writes: of one half of each block, that is a neighbour in its warp.
__global__ void distances(float* x, float* out, int distance) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = i + 1;  // HERE distances
    out[i] = x[i ^ (threadIdx.x < 32 ? 1 : distance)];  // HERE distances
}
// Right: the same with it.
__global__ void careful(float* x, int n) {
    __shared__ float part[8][8];
    int t = threadIdx.x;
    part[t / 8][t % 8] = x[t];
    __syncthreads();  // part is whole
    x[t] = part[(n - 1 - t) / 8][(n - 1 - t) % 8];
}
// One element too far.
__global__ void reads_at(const float* x, float* out, int i) {
    out[0] = x[i];  // HERE reads_at
}
// By the library's functions, which no compiler instruments.
__global__ void copies(const float* x, float* out, int bytes) {
    memcpy(out, x, bytes);  // HERE copies
}
// The value of a variable that never got one.
__global__ void sums(const float* x, float* out, int n) {
    float sum;  // HERE sums
    for (int i = 0; i < n; ++i) sum += x[i];
    out[threadIdx.x] = sum;
}
// An array in registers, and an index that it does not have.
__global__ void past_locals(const float* x, float* out, int n) {
    float part[4] = {0, 0, 0, 0};
    for (int i = 0; i <= n; ++i) part[i] += x[i];  // HERE past_locals
    out[0] = part[n / 2];
}
// A copy that is used before it is waited for, at its own risk.
__global__ void impatient(const float* x, float* out) {
    __shared__ float tile[32];
    tile[threadIdx.x] = -1;
    async_copy<4>(&tile[threadIdx.x], &x[threadIdx.x]);  // HERE impatient
    async_commit();
    out[threadIdx.x] = tile[threadIdx.x];  // HERE impatient
    async_wait<0>();
}
// Many places that race: a report that floods nobody.
template <int N> __device__ void race_at(int* x) {
    x[N] = threadIdx.x + N;
    if constexpr (N > 0) race_at<N - 1>(x);
}
__global__ void many(int* x) { race_at<40>(x); }

// Two barriers of one block at different places, whatever the order: reported, not fatal.
__global__ void apart(int* out) {
    if (threadIdx.x < 32)
        __syncthreads();  // HERE apart
    else
        __syncthreads();  // HERE apart
    out[threadIdx.x] = 1;
}
// One line reads what a neighbour in the warp has written, and what another warp has.
__global__ void near_and_far(float* out) {
    __shared__ float near[64], far[64];
    int t = threadIdx.x;
    near[t] = far[t] = t;
    out[t] = near[t ^ 1] + far[t ^ 32];
}
