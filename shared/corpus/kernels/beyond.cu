// What compute-sanitizer's tools do not look at: integers in registers, and the cache that no write need reach.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// ---- integers without a value -------------------------------------------------------------------

// A count that starts with whatever the register held.
__global__ void local_count(const int* x, int* out, int n) {
    int count;  // BUG local_count
    for (int i = 0; i < n; ++i) count += x[i] > 3;
    out[threadIdx.x] = count;  // BUG local_count
}
// The same from zero.
__global__ void local_count_set(const int* x, int* out, int n) {
    int count = 0;
    for (int i = 0; i < n; ++i) count += x[i] > 3;
    out[threadIdx.x] = count;
}
// A sum of 64 bits, of which each thread forgets the start.
__global__ void local_long_sum(const int* x, long long* out, int n) {
    long long sum;  // BUG local_long_sum
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    out[threadIdx.x] = sum;  // BUG local_long_sum
}
// Sums of two kinds of which one is forgotten, in shared memory before they are added.
__global__ void local_difference(const int* x, int* out, int n) {
    __shared__ int sums[32];
    unsigned sum;  // BUG local_difference
    for (int i = 0; i < n; ++i) sum -= x[i];
    sums[threadIdx.x] = sum;  // BUG local_difference
    __syncthreads();
    out[threadIdx.x] = sums[31 - threadIdx.x] + sums[threadIdx.x];
}
// The first is the best so far: compilers think that `best` may get no value.
__global__ void first_is_best(const int* x, int* out, int n) {
    int best;
    for (int i = 0; i < n; ++i)
        if (i == 0 || x[i] > best) best = x[i];
    out[threadIdx.x] = best;
}
// Numbers that are near what the emulator fills local variables with, among others.
__global__ void large_numbers(int* out) {
    out[threadIdx.x] = threadIdx.x % 2 ? 2147417854 + int(threadIdx.x) : int(threadIdx.x);
}

// ---- sums without a value, in 16 bits ------------------------------------------------------------

// A sum of floats without a start becomes a bf16.
__global__ void local_sum_to_bf16(const float* x, __nv_bfloat16* out, int n) {
    float sum;  // BUG local_sum_to_bf16
    for (int i = 0; i < n; ++i) sum += x[i];
    out[threadIdx.x] = __float2bfloat16(sum);  // BUG local_sum_to_bf16
}
// The same, an f16.
__global__ void local_sum_to_f16(const float* x, __half* out, int n) {
    float sum;  // BUG local_sum_to_f16
    for (int i = 0; i < n; ++i) sum += x[i];
    out[threadIdx.x] = __float2half(sum);  // BUG local_sum_to_f16
}
// A sum in f16.
__global__ void local_half_sum(const __half* x, __half* out, int n) {
    __half sum;  // BUG local_half_sum
    for (int i = 0; i < n; ++i) sum = __hadd(sum, x[i]);
    out[threadIdx.x] = sum;  // BUG local_half_sum
}
// Pairs of sums.
__global__ void local_sums_to_halves(const float* x, __half2* out, int n) {
    float low, high;  // BUG local_sums_to_halves
    for (int i = 0; i < n; ++i) {
        low += x[i];
        high += 2 * x[i];
    }
    out[threadIdx.x] = __floats2half2_rn(low, high);  // BUG local_sums_to_halves
}
// From zero; and what has no value as a number is no variable without one.
__global__ void local_half_sum_set(const __half* x, __half* out, int n) {
    __half sum = __float2half(0.0f);
    for (int i = 0; i < n; ++i) sum = __hadd(sum, x[i]);
    float none = (threadIdx.x % 2) * __int_as_float(0x7f800000);
    out[threadIdx.x] = threadIdx.x < 30 ? sum : __float2half(none);
}

// ---- the read-only cache ------------------------------------------------------------------------

// What the launch itself has written, by way of a cache that need not know of it.
__global__ void ldg_of_written(int* x, int* out) {
    x[threadIdx.x] = threadIdx.x;  // BUG ldg_of_written
    __syncthreads();
    out[threadIdx.x] = __ldg(&x[63 - threadIdx.x]);  // BUG ldg_of_written
}
// By a plain read.
__global__ void read_of_written(int* x, int* out) {
    x[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = x[63 - threadIdx.x];
}
// Blocks that wait for each other do not mend it.
__global__ void ldg_in_turns(float4* x, int turns) {
    int t = threadIdx.x;
    for (int turn = 0; turn < turns; ++turn) {
        float4 v = __ldg(&x[31 - t]);  // BUG ldg_in_turns
        __syncthreads();
        x[t] = make_float4(v.x + 1, v.y, v.z, v.w);  // BUG ldg_in_turns
        __syncthreads();
    }
}
// Each element is read before it is written, and never again.
__global__ void ldg_in_place(int* x) {
    x[threadIdx.x] = __ldg(&x[threadIdx.x]) + 1;  // FORMAL ldg_in_place
}
// Half of the memory is read alone, the other half written.
__global__ void ldg_of_other_half(int* x) {
    x[64 + threadIdx.x] = __ldg(&x[threadIdx.x]);
    if (threadIdx.x == 0) x[64] = __ldg(&x[1]) + __ldg(&x[2]);
}
