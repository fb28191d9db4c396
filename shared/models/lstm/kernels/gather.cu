// The first launch of a training step: the windows of its batch, from the data that lie on the device.
//
//   x[t, b] = data[order[step B + b] + t]          t from 0 to T − 1
//
// order: first rows of all windows of the epoch, in the order in which they come. The last step may have
// fewer than B of them: the other rows have no steps, length 0. The step is counted on the device
// (lab/progress.cuh).
//
// Work split: a thread an element of x, T x B x C; one of the first B threads each length. A grid of
// ceil(max(T B C, B) / 256) blocks.
#include "lab/progress.cuh"
#include "lab/scalar.cuh"

using namespace lab;

constexpr int THREADS = 256;

// Where a window begins, or −1 of a row that has none.
struct Batch {
    const int* order;
    long long first;
    int windows;
    __device__ __forceinline__ int start(int row) const {
        return first + row < windows ? order[first + row] : -1;
    }
};

template <class T, class Value>
__device__ __forceinline__ void gather(const int* order, long long* counts, double* numbers,
                                       int* lengths, T* x, int windows, int steps, int B, int C,
                                       Value value) {
    long long n = blockIdx.x * 1ll * THREADS + threadIdx.x;
    Batch batch{order, counts[COUNTS + STEP] * B, windows};
    if (blockIdx.x == 0) Progress{counts, numbers}.begin(threadIdx.x);
    if (n < B) lengths[n] = batch.start(n) < 0 ? 0 : steps;
    if (n >= steps * 1ll * B * C) return;
    int c = n % C, row = n / C % B, t = n / C / B, start = batch.start(row);
    x[n] = from_math<T>(start < 0 ? math_t<T>(0) : value(start + t, c));
}

// values: rows of C.
template <class T>
__global__ void __launch_bounds__(THREADS)
    gather_series(const math_t<T>* __restrict__ values, const int* __restrict__ order,
                  long long* counts, double* numbers, int* __restrict__ lengths,
                  T* __restrict__ x, int windows, int steps, int B, int C) {
    gather(order, counts, numbers, lengths, x, windows, steps, B, C,
           [&](int row, int c) { return values[row * 1ll * C + c]; });
}

// tokens: one a row; x has a one in the token's column, of C, and else zeros.
template <class T>
__global__ void __launch_bounds__(THREADS)
    gather_text(const int* __restrict__ tokens, const int* __restrict__ order, long long* counts,
                double* numbers, int* __restrict__ lengths, T* __restrict__ x, int windows,
                int steps, int B, int C) {
    gather(order, counts, numbers, lengths, x, windows, steps, B, C,
           [&](int row, int c) { return math_t<T>(tokens[row] == c); });
}
