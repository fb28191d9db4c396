// What is read from the network: a linear layer on its last step, or on every step, and the loss.
//
//   z_r = W y_r + b                                  [O], r a row of a step
//   MSE:            l_r = Σ_o (z_ro − target_ro)²      loss = Σ_r l_r / (R O)
//                   dz = 2 (z − target) / (R O)
//   cross-entropy:  l_r = −log softmax(z_r)[target]    loss = Σ_r l_r / R
//                   dz = (softmax(z) − one-hot) / R
//   dy_r = Wᵀ dz_r
//
// R: rows that have a window, times the steps that are read. dz is multiplied by the loss scale. The sums
// over rows, of the gradients by W and b and of the losses, are made where all such sums are, in
// stages/lstm_fused/kernels/parameter_gradient.cu.
//
// Work split: a block a row. A warp has an output, and its lanes parts of the sum.
//
// y, dy: T x B rows of K. Those from step `from` on are read. z, dz: a row of O each of them. The target
// of a row at step t is what stands in the data at start + t + 1: a number of the first O of its C, or a
// token.
#include "lab/progress.cuh"
#include "lab/reduce.cuh"
#include "lab/scalar.cuh"

using namespace lab;

// z_o of a row, by a warp.
template <class T>
__device__ __forceinline__ math_t<T> output(const T* __restrict__ weight,
                                            const T* __restrict__ bias, const T* y, int o, int K) {
    math_t<T> b = to_math(bias[o]), sum = 0;
    for (int k = threadIdx.x % 32; k < K; k += 32)
        sum += to_math(weight[o * 1ll * K + k]) * to_math(y[k]);
    return b + warp_reduce(sum, Add{});
}

// dz and the loss of a row: the threads of a block share the outputs. `each` is scale / R.
template <int THREADS, class M>
__device__ __forceinline__ double squared_error(const M* z, M* dz, const M* target, int O, M each) {
    M sum = 0;
    for (int o = threadIdx.x; o < O; o += THREADS) {
        M apart = z[o] - target[o];
        sum += apart * apart;
        dz[o] = 2 * apart * (each / O);
    }
    return double(block_reduce<THREADS>(sum, Add{}, M(0))) / O;
}
template <int THREADS, class M>
__device__ __forceinline__ double cross_entropy(const M* z, M* dz, int target, int O, M each) {
    M largest = z[0], sum = 0;
    for (int o = threadIdx.x; o < O; o += THREADS) largest = max(largest, z[o]);
    largest = block_reduce<THREADS>(largest, Max{}, largest);
    for (int o = threadIdx.x; o < O; o += THREADS) sum += exponential(z[o] - largest);
    sum = block_reduce<THREADS>(sum, Add{}, M(0));
    for (int o = threadIdx.x; o < O; o += THREADS)
        dz[o] = (exponential(z[o] - largest) / sum - M(o == target)) * each;
    return double(logarithm(sum) + (largest - z[target]));  // neither is rounded to the other's size
}

// TEXT: `data` are tokens, and the loss is the cross-entropy; else numbers, and the mean squared error.
// row_losses: one a row, already divided by R. A grid of (T − from) B blocks. Without `back` z and the
// losses only.
template <class T, class Data, bool TEXT, int THREADS>
__global__ void __launch_bounds__(THREADS)
    head_loss(const T* __restrict__ y, const T* __restrict__ weight, const T* __restrict__ bias,
              const Data* __restrict__ data, const int* __restrict__ order,
              const long long* __restrict__ counts, const double* __restrict__ numbers,
              math_t<T>* z, math_t<T>* dz, T* __restrict__ dy, double* __restrict__ row_losses,
              int windows, int steps, int from, int B, int C, int O, int K, int back) {
    using M = math_t<T>;
    int r = blockIdx.x, t = from + r / B, row = r % B;
    long long first = counts[STEP] * B, at = from * 1ll * B + r;
    int live = windows - first < B ? int(windows - first) : B;
    y += at * K, dy += at * K, z += r * 1ll * O, dz += r * 1ll * O;
    if (row >= live) {
        for (int o = threadIdx.x; o < O; o += THREADS) z[o] = 0, dz[o] = 0;
        // Cells without lengths go on in these rows, but nothing comes back from them. Without `back` there are none.
        for (int k = threadIdx.x; k < K; k += THREADS) dy[k] = from_math<T>(M(0));
        if (threadIdx.x == 0) row_losses[r] = 0;
        return;
    }
    for (int o = threadIdx.x / 32; o < O; o += THREADS / 32) {
        math_t<T> z_o = output(weight, bias, y, o, K);
        if (threadIdx.x % 32 == 0) z[o] = z_o;
    }
    __syncthreads();  // the loss of a row is of all its z
    double rows = live * double(steps - from), loss;
    M each = M(numbers[SCALE] / rows);
    long long target = order[first + row] + t + 1ll;
    if constexpr (TEXT) loss = cross_entropy<THREADS>(z, dz, data[target], O, each);
    else loss = squared_error<THREADS>(z, dz, data + target * C, O, each);
    if (threadIdx.x == 0) row_losses[r] = loss / rows;
    if (!back) return;
    __syncthreads();  // dy takes all dz of the row
    for (int k = threadIdx.x; k < K; k += THREADS) {
        M sum = 0;
        for (int o = 0; o < O; ++o) sum += to_math(weight[o * 1ll * K + k]) * dz[o];
        dy[k] = from_math<T>(sum);
    }
}
