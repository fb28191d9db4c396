// cuBLAS, as far as programs mostly use it: products of matrices, on the host and without haste. Sums are in
// f64, rounded once. What is not here a program cannot call.
#pragma once
// By this, other headers ask whether it is there.
#define CUBLAS_API_H_
#include <cstdint>
#include <cmath>
#include <utility>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"
#include "library_types.h"

enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
    CUBLAS_STATUS_LICENSE_ERROR = 16
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 };
enum cublasFillMode_t { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1 };
enum cublasPointerMode_t { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 };
enum cublasMath_t {
    CUBLAS_DEFAULT_MATH = 0,
    CUBLAS_TENSOR_OP_MATH = 1,
    CUBLAS_PEDANTIC_MATH = 2,
    CUBLAS_TF32_TENSOR_OP_MATH = 3
};
enum cublasGemmAlgo_t {
    CUBLAS_GEMM_DEFAULT = -1,
    CUBLAS_GEMM_DFALT = -1,
    CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99,
    CUBLAS_GEMM_DFALT_TENSOR_OP = 99
};
enum cublasComputeType_t {
    CUBLAS_COMPUTE_16F = 64,
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_64F = 70,
    CUBLAS_COMPUTE_32F_FAST_16F = 74,
    CUBLAS_COMPUTE_32F_FAST_16BF = 75,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77
};
struct cublasContext {
    cublasPointerMode_t mode;
};
typedef cublasContext* cublasHandle_t;

inline cublasStatus_t cublasCreate(cublasHandle_t* to) {
    *to = new cublasContext{CUBLAS_POINTER_MODE_HOST};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
    handle->mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}
inline const char* cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "the operation completed" : "an error of cuBLAS";
}
inline const char* cublasGetStatusName(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_ERROR";
}

namespace emu {
// One number of a matrix that is stored column by column, of a type that is known at run time only.
inline double blas_load(const void* from, size_t at, cudaDataType_t type) {
    switch (type) {
        case CUDA_R_16F: return double(__half2float(((const __half*)from)[at]));
        case CUDA_R_16BF: return double(__bfloat162float(((const __nv_bfloat16*)from)[at]));
        case CUDA_R_32F: return ((const float*)from)[at];
        default: return ((const double*)from)[at];
    }
}
inline void blas_store(void* to, size_t at, double value, cudaDataType_t type) {
    switch (type) {
        case CUDA_R_16F: ((__half*)to)[at] = __float2half(float(value)); break;
        case CUDA_R_16BF: ((__nv_bfloat16*)to)[at] = __float2bfloat16(float(value)); break;
        case CUDA_R_32F: ((float*)to)[at] = float(value); break;
        default: ((double*)to)[at] = value;
    }
}
inline size_t blas_size(cudaDataType_t type) {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}
inline bool blas_knows(cudaDataType_t type) {
    return type == CUDA_R_16F || type == CUDA_R_16BF || type == CUDA_R_32F || type == CUDA_R_64F;
}
// C = alpha op(A) op(B) + beta C.
inline cublasStatus_t gemm(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, double alpha,
                           const void* a, cudaDataType_t at, int lda, const void* b,
                           cudaDataType_t bt, int ldb, double beta, void* c, cudaDataType_t ct, int ldc) {
    if (sticky_error != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!blas_knows(at) || !blas_knows(bt) || !blas_knows(ct)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m < 0 || n < 0 || k < 0 || ldc < m) return CUBLAS_STATUS_INVALID_VALUE;
    size_t size = blas_size(ct);
    std::vector<double> rows(size_t(m) * k), column(k);
    for (int i = 0; i < m; ++i)
        for (int p = 0; p < k; ++p)
            rows[size_t(i) * k + p] =
                blas_load(a, ta == CUBLAS_OP_N ? i + size_t(p) * lda : p + size_t(i) * lda, at);
    std::vector<char> out(size * m);
    for (int j = 0; j < n; ++j) {
        for (int p = 0; p < k; ++p)
            column[p] = blas_load(b, tb == CUBLAS_OP_N ? p + size_t(j) * ldb : j + size_t(p) * ldb, bt);
        char* place = (char*)c + size * ldc * j;
        for (int i = 0; i < m; ++i) {
            double sum = 0;
            for (int p = 0; p < k; ++p) sum += rows[size_t(i) * k + p] * column[p];
            double before = beta == 0 ? 0 : beta * blas_load(place, i, ct);
            blas_store(out.data(), i, alpha * sum + before, ct);
        }
        if (copy(place, out.data(), out.size(), cudaMemcpyHostToDevice) != cudaSuccess)
            return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    return CUBLAS_STATUS_SUCCESS;
}
}  // namespace emu

#define EMU_GEMM(letter, T, type)                                                                         \
    inline cublasStatus_t cublas##letter##gemm(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, \
                                               int m, int n, int k, const T* alpha, const T* a, int lda,  \
                                               const T* b, int ldb, const T* beta, T* c, int ldc) {       \
        return emu::gemm(ta, tb, m, n, k, double(*alpha), a, type, lda, b, type, ldb, double(*beta), c,   \
                         type, ldc);                                                                      \
    }                                                                                                     \
    inline cublasStatus_t cublas##letter##gemmStridedBatched(                                             \
        cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha,  \
        const T* a, int lda, long long sa, const T* b, int ldb, long long sb, const T* beta, T* c,        \
        int ldc, long long sc, int count) {                                                               \
        for (int i = 0; i < count; ++i) {                                                                 \
            cublasStatus_t status = emu::gemm(ta, tb, m, n, k, double(*alpha), a + i * sa, type, lda,     \
                                              b + i * sb, type, ldb, double(*beta), c + i * sc, type, ldc); \
            if (status != CUBLAS_STATUS_SUCCESS) return status;                                           \
        }                                                                                                 \
        return CUBLAS_STATUS_SUCCESS;                                                                     \
    }
EMU_GEMM(S, float, CUDA_R_32F)
EMU_GEMM(D, double, CUDA_R_64F)
#undef EMU_GEMM

template <class Compute>
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m,
                                          int n, int k, const void* alpha, const void* a,
                                          cudaDataType_t at, int lda, long long sa, const void* b,
                                          cudaDataType_t bt, int ldb, long long sb, const void* beta,
                                          void* c, cudaDataType_t ct, int ldc, long long sc, int count,
                                          Compute compute, cublasGemmAlgo_t) {
    auto factor = [&](const void* x) {
        return int(compute) == CUBLAS_COMPUTE_64F || int(compute) == CUDA_R_64F ? *(const double*)x
               : int(compute) == CUBLAS_COMPUTE_16F ? double(__half2float(*(const __half*)x))
                                                    : double(*(const float*)x);
    };
    for (int i = 0; i < count; ++i) {
        cublasStatus_t status = emu::gemm(
            ta, tb, m, n, k, factor(alpha), (const char*)a + i * sa * emu::blas_size(at), at, lda,
            (const char*)b + i * sb * emu::blas_size(bt), bt, ldb, factor(beta),
            (char*)c + i * sc * emu::blas_size(ct), ct, ldc);
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
}
template <class Compute>
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType_t at, int lda,
                            const void* b, cudaDataType_t bt, int ldb, const void* beta, void* c,
                            cudaDataType_t ct, int ldc, Compute compute, cublasGemmAlgo_t algorithm) {
    return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c,
                                      ct, ldc, 0, 1, compute, algorithm);
}

// ---- vectors, and what moves them ---------------------------------------------------------------
inline cublasStatus_t cublasSetMatrix(int rows, int columns, int size, const void* a, int lda, void* b,
                                      int ldb) {
    return cudaMemcpy2D(b, size_t(ldb) * size, a, size_t(lda) * size, size_t(rows) * size, columns,
                        cudaMemcpyHostToDevice) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_MAPPING_ERROR;
}
inline cublasStatus_t cublasGetMatrix(int rows, int columns, int size, const void* a, int lda, void* b,
                                      int ldb) {
    return cudaMemcpy2D(b, size_t(ldb) * size, a, size_t(lda) * size, size_t(rows) * size, columns,
                        cudaMemcpyDeviceToHost) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_MAPPING_ERROR;
}
// A vector with gaps is a row of a matrix.
inline cublasStatus_t cublasSetVector(int n, int size, const void* x, int incx, void* y, int incy) {
    return cublasSetMatrix(1, n, size, x, incx, y, incy);
}
inline cublasStatus_t cublasGetVector(int n, int size, const void* x, int incx, void* y, int incy) {
    return cublasGetMatrix(1, n, size, x, incx, y, incy);
}
namespace emu {
template <class T> cublasStatus_t blas_write(T* to, int step, const std::vector<T>& values) {
    return cublasSetVector(int(values.size()), sizeof(T), values.data(), 1, to, step);
}
// A number that goes to the host or to the device, as the handle says.
template <class T> cublasStatus_t blas_answer(cublasHandle_t handle, T* to, double value) {
    cudaMemcpyKind kind = handle->mode == CUBLAS_POINTER_MODE_HOST ? cudaMemcpyHostToHost
                                                                   : cudaMemcpyHostToDevice;
    T own = T(value);
    return copy(to, &own, sizeof own, kind) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                           : CUBLAS_STATUS_MAPPING_ERROR;
}
// P A = L U, in place.
template <class T> int getrf(int n, T* a, int lda, int* pivots) {
    int info = 0;
    for (int k = 0; k < n; ++k) {
        int best = k;
        auto at = [&](int i, int j) -> T& { return a[i + size_t(j) * lda]; };
        if (pivots)
            for (int i = k + 1; i < n; ++i)
                if (std::fabs(at(i, k)) > std::fabs(at(best, k))) best = i;
        if (pivots) pivots[k] = best + 1;
        for (int j = 0; best != k && j < n; ++j) std::swap(at(k, j), at(best, j));
        if (at(k, k) == 0) {
            info = info ? info : k + 1;
            continue;
        }
        for (int i = k + 1; i < n; ++i) {
            at(i, k) /= at(k, k);
            for (int j = k + 1; j < n; ++j) at(i, j) -= at(i, k) * at(k, j);
        }
    }
    return info;
}
}  // namespace emu
#define EMU_BLAS(letter, T, type)                                                                  \
    inline cublasStatus_t cublas##letter##gemv(cublasHandle_t, cublasOperation_t t, int m, int n,         \
                                               const T* alpha, const T* a, int lda, const T* x, int incx, \
                                               const T* beta, T* y, int incy) {                           \
        int rows = t == CUBLAS_OP_N ? m : n, columns = t == CUBLAS_OP_N ? n : m;                          \
        std::vector<T> out(rows);                                                                         \
        for (int i = 0; i < rows; ++i) {                                                                  \
            double sum = 0;                                                                               \
            for (int j = 0; j < columns; ++j)                                                             \
                sum += double(t == CUBLAS_OP_N ? a[i + size_t(j) * lda] : a[j + size_t(i) * lda]) *       \
                       x[ptrdiff_t(j) * incx];                                                            \
            double before = *beta == 0 ? 0 : double(*beta) * y[ptrdiff_t(i) * incy];                      \
            out[i] = T(*alpha * sum + before);                                                            \
        }                                                                                                 \
        return emu::blas_write(y, incy, out);                                                             \
    }                                                                                                     \
    inline cublasStatus_t cublas##letter##axpy(cublasHandle_t, int n, const T* alpha, const T* x,         \
                                               int incx, T* y, int incy) {                                \
        std::vector<T> out(n);                                                                            \
        for (int i = 0; i < n; ++i)                                                                       \
            out[i] = *alpha * x[ptrdiff_t(i) * incx] + y[ptrdiff_t(i) * incy];                            \
        return emu::blas_write(y, incy, out);                                                             \
    }                                                                                                     \
    inline cublasStatus_t cublas##letter##scal(cublasHandle_t, int n, const T* alpha, T* x, int incx) {   \
        std::vector<T> out(n);                                                                            \
        for (int i = 0; i < n; ++i) out[i] = *alpha * x[ptrdiff_t(i) * incx];                             \
        return emu::blas_write(x, incx, out);                                                             \
    }                                                                                                     \
    inline cublasStatus_t cublas##letter##copy(cublasHandle_t, int n, const T* x, int incx, T* y,         \
                                               int incy) {                                                \
        std::vector<T> out(n);                                                                            \
        for (int i = 0; i < n; ++i) out[i] = x[ptrdiff_t(i) * incx];                                      \
        return emu::blas_write(y, incy, out);                                                             \
    }                                                                                                     \
    inline cublasStatus_t cublas##letter##dot(cublasHandle_t handle, int n, const T* x, int incx,         \
                                              const T* y, int incy, T* to) {                              \
        double sum = 0;                                                                                   \
        for (int i = 0; i < n; ++i) sum += double(x[ptrdiff_t(i) * incx]) * y[ptrdiff_t(i) * incy];       \
        return emu::blas_answer(handle, to, sum);                                                         \
    }                                                                                                     \
    inline cublasStatus_t cublas##letter##nrm2(cublasHandle_t handle, int n, const T* x, int incx,        \
                                               T* to) {                                                   \
        double sum = 0;                                                                                   \
        for (int i = 0; i < n; ++i) sum += double(x[ptrdiff_t(i) * incx]) * x[ptrdiff_t(i) * incx];       \
        return emu::blas_answer(handle, to, std::sqrt(sum));                                              \
    }                                                                                                     \
    inline cublasStatus_t cublas##letter##gemmBatched(                                                    \
        cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha,  \
        const T* const a[], int lda, const T* const b[], int ldb, const T* beta, T* const c[], int ldc,   \
        int count) {                                                                                      \
        for (int i = 0; i < count; ++i) {                                                                 \
            cublasStatus_t status = emu::gemm(ta, tb, m, n, k, double(*alpha), a[i], type, lda, b[i],     \
                                              type, ldb, double(*beta), c[i], type, ldc);                 \
            if (status != CUBLAS_STATUS_SUCCESS) return status;                                           \
        }                                                                                                 \
        return CUBLAS_STATUS_SUCCESS;                                                                     \
    }                                                                                                     \
    inline cublasStatus_t cublas##letter##getrfBatched(cublasHandle_t, int n, T* const a[], int lda,      \
                                                       int* pivots, int* info, int count) {               \
        std::vector<int> own(n), infos(count);                                                            \
        for (int i = 0; i < count; ++i) {                                                                 \
            std::vector<T> all(a[i], a[i] + size_t(lda) * n);                                             \
            infos[i] = emu::getrf(n, all.data(), lda, pivots ? own.data() : nullptr);                     \
            emu::blas_write(a[i], 1, all);                                                                \
            if (pivots) emu::blas_write(pivots + size_t(i) * n, 1, own);                                  \
        }                                                                                                 \
        return emu::blas_write(info, 1, infos);                                                           \
    }
EMU_BLAS(S, float, CUDA_R_32F)
EMU_BLAS(D, double, CUDA_R_64F)
#undef EMU_BLAS
