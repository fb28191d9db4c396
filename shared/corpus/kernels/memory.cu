// Accesses outside of what is there, and accesses that stay just inside.
//
// A planted bug is marked on its own line; the kernels without a mark are right.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ int global_index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// ---- global memory ----------------------------------------------------------------------------

// The last thread's right neighbour is past the end.
__global__ void read_past_end(const float* x, float* out, int n) {
    int i = global_index();
    if (i < n) out[i] = x[i + 1] - x[i];  // BUG read_past_end
}
// The guard is that of the last index read, not of the last one written.
__global__ void neighbour_guarded(const float* x, float* out, int n) {
    int i = global_index();
    if (i < n) out[i] = i + 1 < n ? x[i + 1] - x[i] : 0.0f;
}
// The guard lets one index too many through.
__global__ void guard_off_by_one(float* out, int n) {
    int i = global_index();
    if (i <= n) out[i] = 1.0f;  // BUG guard_off_by_one
}
// `<=`, but up to the last index.
__global__ void guard_of_last(float* out, int last) {
    int i = global_index();
    if (i <= last) out[i] = 1.0f;
}
// The grid is a multiple of the block, the length is not.
__global__ void missing_guard(const __half* x, __half* out) {
    int i = global_index();
    out[i] = __hneg(x[i]);  // BUG missing_guard
}
// Ragged and guarded.
template <class T> __global__ void guarded_copy(const T* x, T* out, int n) {
    int i = global_index();
    if (i < n) out[i] = x[i];
}
// Far from any buffer of the launch.
__global__ void far_beyond(int* out, long long far) {
    out[threadIdx.x + far] = 1;  // BUG far_beyond
}
// The first element has no left neighbour.
__global__ void before_start(const double* x, double* out, int n) {
    int i = global_index();
    if (i < n) out[i] = x[i] - x[i - 1];  // BUG before_start
}
// An unsigned zero minus one is four thousand million.
__global__ void unsigned_wrap(const float* x, float* out, unsigned n) {
    unsigned i = global_index();
    if (i < n) out[i] = x[i - 1u];  // BUG unsigned_wrap
}
// Negative indices, but off the end.
__global__ void backwards_from_end(const double* x, double* out, int n) {
    const double* end = x + n;
    int i = global_index();
    if (i < n) out[i] = end[-1 - i];
}
// The length came in bytes and is used for elements.
__global__ void bytes_as_elements(int* x, int bytes) {
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) x[i] = 0;  // BUG bytes_as_elements
}
// Any number of threads covers any length.
__global__ void grid_stride(const float* x, float* out, int n) {
    for (int i = global_index(); i < n; i += gridDim.x * blockDim.x) out[i] = 2.0f * x[i];
}
// Columns are guarded, rows are not.
__global__ void rows_unguarded(unsigned char* out, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c < columns) out[r * columns + c] = 1;  // BUG rows_unguarded
}
// Both are guarded.
__global__ void rows_guarded(unsigned char* out, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < columns) out[r * columns + c] = 10 * r + c;
}
// The matrix is dense, the pitch is that of a padded one.
__global__ void wrong_pitch(const __nv_bfloat16* x, float* out, int rows, int columns, int pitch) {
    int c = threadIdx.x;
    if (c >= columns) return;
    for (int r = 0; r < rows; ++r)
        out[r * columns + c] = __bfloat162float(x[r * pitch + c]);  // BUG wrong_pitch
}
// An index list is believed as it comes; one entry is -1.
__global__ void gather_unchecked(const float* x, const int* index, float* out) {
    out[threadIdx.x] = x[index[threadIdx.x]];  // BUG gather_unchecked
}
// Entries that are no index are skipped.
__global__ void gather_checked(const float* x, const int* index, float* out, int n) {
    int i = index[threadIdx.x];
    out[threadIdx.x] = i >= 0 && i < n ? x[i] : -1.0f;
}
// A value equal to the number of bins has no bin.
__global__ void atomic_past_end(const int* x, int* bins) {
    atomicAdd(&bins[x[threadIdx.x]], 1);  // BUG atomic_past_end
}
// A pointer that the host never set.
__global__ void null_pointer(long long address, float* out) {
    const float* x = reinterpret_cast<const float*>(address);
    out[threadIdx.x] = x[threadIdx.x];  // BUG null_pointer
}
// A pointer that may be null, asked before use.
__global__ void optional_pointer(long long address, float* out) {
    const float* bias = reinterpret_cast<const float*>(address);
    out[threadIdx.x] = bias ? bias[threadIdx.x] : 7.0f;
}

// ---- vectors ----------------------------------------------------------------------------------

// The last group of four is not whole.
__global__ void vector_read_over_end(const float4* x, float* out, int n) {
    int i = global_index();
    if (4 * i >= n) return;
    float4 v = x[i];  // BUG vector_read_over_end
    out[i] = v.x + v.y + v.z + v.w;
}
// The same where it is written.
__global__ void vector_write_over_end(int4* out, int n) {
    int i = global_index();
    if (4 * i < n) out[i] = make_int4(1, 2, 3, 4);  // BUG vector_write_over_end
}
// Whole groups as vectors, the rest one by one.
__global__ void vectors_and_tail(const float* x, float* out, int n) {
    int i = global_index(), whole = n / 4;
    if (i < whole) {
        reinterpret_cast<float4*>(out)[i] = reinterpret_cast<const float4*>(x)[i];
    } else if (i < whole + n % 4) {
        out[3 * whole + i] = x[3 * whole + i];
    }
}
// A float4 that does not start at a multiple of 16 bytes.
__global__ void misaligned_float4(const float* x, float* out, int offset) {
    float4 v = *reinterpret_cast<const float4*>(x + offset);  // BUG misaligned_float4
    out[threadIdx.x] = v.x + v.y + v.z + v.w;
}
// A store of two that does not start at a multiple of 8 bytes.
__global__ void misaligned_float2(float* out, int offset) {
    reinterpret_cast<float2*>(out + offset)[threadIdx.x] = make_float2(1, 2);  // BUG misaligned_float2
}
// A start that is not aligned: scalars up to the first vector.
__global__ void misaligned_start(const float* x, float* out, int offset, int n) {
    int head = (4 - offset % 4) % 4, t = threadIdx.x;
    if (t < head) out[offset + t] = x[offset + t];
    int first = offset + head + 4 * t;
    if (first + 4 <= n) {
        *reinterpret_cast<float4*>(out + first) = *reinterpret_cast<const float4*>(x + first);
    } else {
        for (int i = first; i < n; ++i) out[i] = x[i];
    }
}
