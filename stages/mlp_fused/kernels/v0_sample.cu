// A training step of one pair, token and target, in three kernels: forward with the loss, backward,
// update.
//
//   x = emb[token]    h = max(0, w1 x + b1)    z = w2 h + b2    loss = log Σ_v exp(z_v) − z_target
//   dz = softmax(z) − one-hot(target)    da = [h > 0] w2ᵀ dz    dx = w1ᵀ da
//   w2 −= lr dz hᵀ   b2 −= lr dz   w1 −= lr da xᵀ   b1 −= lr da   emb[token] −= lr dx
//
// Work split: forward and backward are one block each, for a softmax is of all logits. A warp has a row
// of weights and its lanes the columns, neighbours side by side; backward, where the sum goes down the
// columns, each warp adds up its rows and the warps' sums are added at the end. The update has a thread
// a parameter.
//
// emb: V x E, w1: H x E, w2: V x H, row-major. x, h, dz and da of the step lie in device memory between
// the kernels.
#include "lab/reduce.cuh"
#include "lab/scalar.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

constexpr int THREADS = 512, WARPS = THREADS / 32;

// w_row · x + b, by a warp.
template <class T>
__device__ __forceinline__ T row_of(const T* __restrict__ w, const T* __restrict__ b, const T* x,
                                    int row, int columns) {
    T sum = 0;
    for (int c = threadIdx.x % 32; c < columns; c += 32) sum += w[row * 1ll * columns + c] * x[c];
    return warp_reduce(sum, Add{}) + b[row];
}

// ANCHOR: forward
// One block. Shared memory: x, E numbers, then h, H of them. dz holds the logits first.
template <class T>
__global__ void __launch_bounds__(THREADS)
    forward(const int* __restrict__ tokens, const int* __restrict__ targets,
            const T* __restrict__ emb, const T* __restrict__ w1, const T* __restrict__ b1,
            const T* __restrict__ w2, const T* __restrict__ b2, T* __restrict__ x,
            T* __restrict__ h, T* dz, double* __restrict__ loss, int V, int E, int H) {
    DYNAMIC_SHARED(T, memory);
    T *xs = memory, *hs = memory + E;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, target = targets[0];
    for (int e = threadIdx.x; e < E; e += THREADS) x[e] = xs[e] = emb[tokens[0] * 1ll * E + e];
    __syncthreads();  // each unit takes all of x
    for (int j = warp; j < H; j += WARPS) {
        T a = row_of(w1, b1, xs, j, E);
        if (lane == 0) h[j] = hs[j] = a < 0 ? T(0) : a;
    }
    __syncthreads();  // each logit takes all of h
    for (int v = warp; v < V; v += WARPS) {
        T z = row_of(w2, b2, hs, v, H);
        if (lane == 0) dz[v] = z;
    }
    __syncthreads();  // the softmax is of all logits

    T z_target = dz[target], largest = dz[0], sum = 0;
    for (int v = threadIdx.x; v < V; v += THREADS) largest = max(largest, dz[v]);
    largest = block_reduce<THREADS>(largest, Max{}, largest);
    for (int v = threadIdx.x; v < V; v += THREADS) sum += exponential(dz[v] - largest);
    sum = block_reduce<THREADS>(sum, Add{}, T(0));
    for (int v = threadIdx.x; v < V; v += THREADS)
        dz[v] = exponential(dz[v] - largest) / sum - T(v == target);
    if (threadIdx.x == 0) loss[0] = double(logarithm(sum) + (largest - z_target));
}
// ANCHOR_END: forward

// ANCHOR: backward
// One block. Shared memory: da, H numbers, then the sums of each warp, WARPS times H.
template <class T>
__global__ void __launch_bounds__(THREADS)
    backward(const T* __restrict__ w1, const T* __restrict__ w2, const T* __restrict__ h,
             const T* __restrict__ dz, T* __restrict__ da, T* __restrict__ dx, int V, int E, int H) {
    DYNAMIC_SHARED(T, memory);
    T *das = memory, *sums = memory + H;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int j = lane; j < H; j += 32) {
        T sum = 0;
        for (int v = warp; v < V; v += WARPS) sum += dz[v] * w2[v * 1ll * H + j];
        sums[warp * H + j] = sum;
    }
    __syncthreads();  // the sums of all warps are there
    for (int j = threadIdx.x; j < H; j += THREADS) {
        T sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += sums[w * H + j];
        da[j] = das[j] = h[j] > 0 ? sum : T(0);
    }
    __syncthreads();  // each column of dx takes all of da
    for (int e = threadIdx.x; e < E; e += THREADS) {
        T sum = 0;
        for (int j = 0; j < H; ++j) sum += das[j] * w1[j * 1ll * E + e];
        dx[e] = sum;
    }
}
// ANCHOR_END: backward

// ANCHOR: update
// A grid of ceil((V (H + 1) + H (E + 1) + E) / 512) blocks. Reads x, not the row of emb that it came
// from: another thread may have moved that already.
template <class T>
__global__ void __launch_bounds__(THREADS)
    update(const int* __restrict__ tokens, const T* __restrict__ x, const T* __restrict__ h,
           const T* __restrict__ dz, const T* __restrict__ da, const T* __restrict__ dx, T* emb,
           T* w1, T* b1, T* w2, T* b2, T lr, int V, int E, int H) {
    long long n = blockIdx.x * 1ll * THREADS + threadIdx.x;
    long long of_w2 = V * 1ll * H, of_w1 = H * 1ll * E;
    if (n < of_w2) return void(w2[n] -= lr * dz[n / H] * h[n % H]);
    if ((n -= of_w2) < of_w1) return void(w1[n] -= lr * da[n / E] * x[n % E]);
    if ((n -= of_w1) < V) return void(b2[n] -= lr * dz[n]);
    if ((n -= V) < H) return void(b1[n] -= lr * da[n]);
    if ((n -= H) < E) emb[tokens[0] * 1ll * E + n] -= lr * dx[n];
}
// ANCHOR_END: update
