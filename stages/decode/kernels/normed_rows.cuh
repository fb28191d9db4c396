// x in shared memory, normed on the way: what each block does once, while its first weights come.
//
//     z = x;  or of RMS  z_rk = x_rk w_k / √(Σ_k x_rk² / K + ε);  or of HEADS  z = σ(o) ⊙ layer norm of each head of x ⊙ w
#pragma once
#include "few_rows.cuh"
#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/grid_dependency.cuh"

namespace lab {

// What is done to x on the way.
enum Norm { NONE, RMS, HEADS };

template <class T> __device__ __forceinline__ void copy_pack(T* to, const T* from) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
}

// z = x, each thread the same columns of all rows; the sum of the squares of a thread's numbers of row r goes to squares[r].
template <int ROWS, int THREADS, class T>
__device__ __forceinline__ void copy_rows(T* z, const T* x, float (&squares)[ROWS], int K) {
    constexpr int E = Pack<T>::N;
#pragma unroll 1
    for (int k = threadIdx.x * E; k < K; k += THREADS * E)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            Raw<T> raw = load_raw(x + 1ll * r * K + k);
            *reinterpret_cast<uint4*>(z + r * K + k) = raw.bytes;
            Pack<T> v = in_math(raw);
#pragma unroll
            for (int i = 0; i < E; ++i) squares[r] += v.v[i] * v.v[i];
        }
}

// z = the norm of each row of z; each thread has the columns of copy_rows.
template <int ROWS, int THREADS, class T>
__device__ __forceinline__ void norm_rows(T* z, const T* weight, float (&squares)[ROWS], float eps, int K) {
    constexpr int E = Pack<T>::N, WARPS = THREADS / 32;
    __shared__ float of_warp[ROWS][WARPS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        squares[r] = warp_reduce(squares[r], Add{});
        if (threadIdx.x % 32 == 0) of_warp[r][threadIdx.x / 32] = squares[r];
    }
    __syncthreads();  // the squares of all warps are there
    float rstd[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int w = 0; w < WARPS; ++w) rstd[r] += of_warp[r][w];
        rstd[r] = 1.0f / sqrtf(rstd[r] / K + eps);
    }
#pragma unroll 1
    for (int k = threadIdx.x * E; k < K; k += THREADS * E) {
        Pack<T> w = load_pack(weight + k);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            Pack<T> v = load_pack(z + r * K + k);
#pragma unroll
            for (int i = 0; i < E; ++i) v.v[i] *= rstd[r] * w.v[i];
            store_pack(z + r * K + k, v);
        }
    }
}

// z = σ(o) ⊙ the layer norm of each head of z ⊙ w. A warp has a head of a row at a time, a lane at most two packs of it.
template <int ROWS, int THREADS, class T>
__device__ __forceinline__ void norm_heads(T* z, const T* ogate, const T* weight, float eps, int K, int D) {
    constexpr int E = Pack<T>::N;
    int lane = threadIdx.x % 32, heads = K / D;
#pragma unroll 1
    for (int n = threadIdx.x / 32; n < ROWS * heads; n += THREADS / 32) {
        int first = n % heads * D, at = n / heads * K + first;
        float mean = 0, squares = 0;
#pragma unroll 1
        for (int k = lane * E; k < D; k += 32 * E) {
            Pack<T> v = load_pack(z + at + k);
#pragma unroll
            for (int i = 0; i < E; ++i) mean += v.v[i];
        }
        mean = warp_reduce(mean, Add{}) / D;
#pragma unroll 1
        for (int k = lane * E; k < D; k += 32 * E) {
            Pack<T> v = load_pack(z + at + k);
#pragma unroll
            for (int i = 0; i < E; ++i) squares += (v.v[i] - mean) * (v.v[i] - mean);
        }
        float rstd = 1.0f / sqrtf(warp_reduce(squares, Add{}) / D + eps);
#pragma unroll 1
        for (int k = lane * E; k < D; k += 32 * E) {
            Pack<T> v = load_pack(z + at + k), o = load_pack(ogate + at + k), w = load_pack(weight + first + k);
#pragma unroll
            for (int i = 0; i < E; ++i) v.v[i] = (v.v[i] - mean) * rstd * quick_sigmoid(o.v[i]) * w.v[i];
            store_pack(z + at + k, v);
        }
    }
}

// Elements of shared memory that a norm has behind z: its weight, and behind that the heads' gate.
template <Norm NORM, int ROWS> __device__ __forceinline__ int of_norm(int K) {
    return NORM == NONE ? 0 : NORM == RMS ? K : K + ROWS * K;
}

// z, once the launch before has ended. The norm's weight is nobody's result: it comes to `own_weight` before that end. Both are shared
// memory. The barrier that others read z behind is the caller's.
template <Norm NORM, int ROWS, int THREADS, class T>
__device__ __forceinline__ void bring_rows(T* z, T* own_weight, const T* x, const T* norm, const T* ogate, float eps, int K, int D) {
    constexpr int E = Pack<T>::N;
    if constexpr (NORM != NONE) {
#pragma unroll 1
        for (int k = threadIdx.x * E; k < K; k += THREADS * E) async_copy<16>(own_weight + k, norm + k);
        async_commit();
    }
    griddep_wait();
    T* own_gate = own_weight + K;
    float squares[ROWS] = {};
    if constexpr (NORM == HEADS) {
#pragma unroll 1
        for (int k = threadIdx.x * E; k < ROWS * K; k += THREADS * E) {
            Raw<T> gate = load_raw(ogate + k), own = load_raw(x + k);  // both are under way at once
            *reinterpret_cast<uint4*>(own_gate + k) = gate.bytes;
            *reinterpret_cast<uint4*>(z + k) = own.bytes;
        }
    } else {
        copy_rows<ROWS, THREADS>(z, x, squares, K);
    }
    if constexpr (NORM != NONE) async_wait<0>();  // its own columns of the weight are there
    if constexpr (NORM == RMS) norm_rows<ROWS, THREADS>(z, own_weight, squares, eps, K);
    if constexpr (NORM == HEADS) {
        __syncthreads();  // the weight, the gate and x are there
        norm_heads<ROWS, THREADS>(z, own_gate, own_weight, eps, K, D);
    }
}

}  // namespace lab
