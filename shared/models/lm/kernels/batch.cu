// What a training step of a language model does beside the model: its windows of tokens, and its loss kept for the host.
//
//   inputs[b, s]  = tokens[order[step G + first + b] + s]    s from 0 to S − 1
//   targets[b, s] = wanted[order[step G + first + b] + s]    −1 in rows without a window
//   losses[step]  = loss
//
// wanted: of each token its target, mostly the next token: it is `tokens` from the second on then.
// order: first tokens of all windows of an epoch, in the order in which they come. A step has G of them, of which this device has
// the B from `first` on; the last step may have fewer: the other rows have token 0, and no target. The step is that which comes, in lab/progress.cuh NEXT: the optimizer's first
// launch makes NOW of it.
//
// Work split: a thread a token, or an element of a state.
#include "lab/pack.cuh"
#include "lab/progress.cuh"

using namespace lab;

constexpr int THREADS = 256;

__global__ void __launch_bounds__(THREADS)
    gather_tokens(const int* __restrict__ tokens, const int* __restrict__ wanted, const int* __restrict__ order, const long long* __restrict__ counts,
                  int* __restrict__ inputs, int* __restrict__ targets, int windows, int S, int B, int first, int G) {
    long long n = blockIdx.x * 1ll * THREADS + threadIdx.x;
    if (n >= S * 1ll * B) return;
    long long window = counts[COUNTS + STEP] * G + first + n / S;
    bool there = window < windows;
    long long from = there ? order[window] + n % S : 0;
    inputs[n] = there ? tokens[from] : 0;
    targets[n] = there ? wanted[from] : -1;
}

// Before the first step of an epoch, streams have read nothing: each element of a state is `value` then.
template <class T>
__global__ void __launch_bounds__(THREADS)
    begin_streams(const long long* __restrict__ counts, T* __restrict__ state, long long elements, float value) {
    long long n = blockIdx.x * 1ll * THREADS + threadIdx.x;
    if (n < elements && counts[COUNTS + STEP] == 0) state[n] = from_math<T>(value);
}

// By one thread.
__global__ void record_loss(const double* __restrict__ loss, const long long* __restrict__ counts,
                            double* __restrict__ losses) {
    losses[counts[COUNTS + STEP]] = *loss;
}
