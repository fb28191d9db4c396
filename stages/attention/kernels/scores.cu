// Softmax attention with its scores in memory, as the equations have it:
//
//   S_ij = scale q_i·k_j      lse_i = log Σ_j exp S_ij      P_ij = exp(S_ij - lse_i)      o_i = Σ_j P_ij v_j
//
// and backward, from do, with δ_i = do_i·o_i:
//
//   dS_ij = P_ij (do_i·v_j - δ_i)      dq_i = scale Σ_j dS_ij k_j      dk_j = scale Σ_i dS_ij q_i      dv_j = Σ_i P_ij do_i
//
// Pairs are those j <= i where it is causal, else all. What is no pair is neither written nor read.
//
// Work split: a thread has a pair, or an element of what is summed over pairs; of a row of pairs, a warp. So pairs take
// S² numbers a head, and each is read from memory as often as an element is summed with it.
//
// q, o, do, dq: heads x S x D; k, v, dk, dv: heads / group x S x D; lse, delta: heads x S; pairs, slopes: heads x S x S.
#include "lab/reduce.cuh"
#include "lab/scalar.cuh"

using namespace lab;

constexpr int SIDE = 16;  // of a block's square of threads

// A thread's place in a matrix of `rows` x `columns` a head; squares of a head one after the other.
struct Cell {
    int head, row, column;
    __device__ __forceinline__ Cell(int rows, int columns) {
        int across = (columns + SIDE - 1) / SIDE, squares = (rows + SIDE - 1) / SIDE * across;
        int square = blockIdx.x % squares;
        head = blockIdx.x / squares;
        row = square / across * SIDE + threadIdx.x / SIDE, column = square % across * SIDE + threadIdx.x % SIDE;
    }
};

template <class T> __device__ __forceinline__ float dot(const T* a, const T* b, int D) {
    float sum = 0;
    for (int c = 0; c < D; ++c) sum += to_math(a[c]) * to_math(b[c]);
    return sum;
}

// ANCHOR: scores
template <class T>
__global__ void __launch_bounds__(SIDE * SIDE)
    attention_scores(const T* __restrict__ q, const T* __restrict__ k, float* __restrict__ pairs, int group, int S, int D,
                     float scale, bool causal) {
    Cell at(S, S);
    if (at.row >= S || at.column >= S || (causal && at.column > at.row)) return;
    const T* row = q + (1ll * at.head * S + at.row) * D;
    const T* column = k + (1ll * (at.head / group) * S + at.column) * D;
    pairs[(1ll * at.head * S + at.row) * S + at.column] = scale * dot(row, column, D);
}

// A warp a row: the largest score, the sum of exponentials below it, and weights in place of the scores.
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    attention_softmax(float* __restrict__ pairs, float* __restrict__ lse, int S, long long rows, bool causal) {
    long long row = (1ll * blockIdx.x * THREADS + threadIdx.x) / 32;
    if (row >= rows) return;
    float* own = pairs + row * S;
    int count = causal ? static_cast<int>(row % S) + 1 : S, lane = threadIdx.x % 32;
    float most = lowest<float>(), sum = 0;
    for (int j = lane; j < count; j += 32) most = max(most, own[j]);
    most = warp_reduce(most, Max{});
    for (int j = lane; j < count; j += 32) sum += expf(own[j] - most);
    sum = warp_reduce(sum, Add{});
    for (int j = lane; j < count; j += 32) own[j] = expf(own[j] - most) / sum;
    if (lane == 0) lse[row] = most + logf(sum);
}
// ANCHOR_END: scores

// out_i = scale Σ_j pairs_ij x_j: o, and dq. x is of a head that `group` heads share.
template <class T>
__global__ void __launch_bounds__(SIDE * SIDE)
    attention_over_columns(const float* __restrict__ pairs, const T* __restrict__ x, T* __restrict__ out, int group, int S,
                           int D, float scale, bool causal) {
    Cell at(S, D);
    if (at.row >= S || at.column >= D) return;
    const float* own = pairs + (1ll * at.head * S + at.row) * S;
    const T* column = x + 1ll * (at.head / group) * S * D + at.column;
    int count = causal ? at.row + 1 : S;
    float sum = 0;
    for (int j = 0; j < count; ++j) sum += own[j] * to_math(column[1ll * j * D]);
    out[(1ll * at.head * S + at.row) * D + at.column] = from_math<T>(scale * sum);
}

// out_j = scale Σ_i pairs_ij x_i over all heads of a group: dv, and dk.
template <class T>
__global__ void __launch_bounds__(SIDE * SIDE)
    attention_over_rows(const float* __restrict__ pairs, const T* __restrict__ x, T* __restrict__ out, int group, int S,
                        int D, float scale, bool causal) {
    Cell at(S, D);
    if (at.row >= S || at.column >= D) return;
    float sum = 0;
    for (int head = at.head * group; head < (at.head + 1) * group; ++head) {
        const float* own = pairs + 1ll * head * S * S + at.row;
        const T* column = x + 1ll * head * S * D + at.column;
        for (int i = causal ? at.row : 0; i < S; ++i) sum += own[1ll * i * S] * to_math(column[1ll * i * D]);
    }
    out[(1ll * at.head * S + at.row) * D + at.column] = from_math<T>(scale * sum);
}

// ANCHOR: slopes
// δ_i, a warp a row.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS)
    attention_deltas(const T* __restrict__ o, const T* __restrict__ grad, float* __restrict__ delta, int D, long long rows) {
    long long row = (1ll * blockIdx.x * THREADS + threadIdx.x) / 32;
    if (row >= rows) return;
    float sum = 0;
    for (int c = threadIdx.x % 32; c < D; c += 32) sum += to_math(o[row * D + c]) * to_math(grad[row * D + c]);
    sum = warp_reduce(sum, Add{});
    if (threadIdx.x % 32 == 0) delta[row] = sum;
}

// slopes = dS.
template <class T>
__global__ void __launch_bounds__(SIDE * SIDE)
    attention_slopes(const T* __restrict__ grad, const T* __restrict__ v, const float* __restrict__ pairs,
                     const float* __restrict__ delta, float* __restrict__ slopes, int group, int S, int D, bool causal) {
    Cell at(S, S);
    if (at.row >= S || at.column >= S || (causal && at.column > at.row)) return;
    long long row = 1ll * at.head * S + at.row;
    float product = dot(grad + row * D, v + (1ll * (at.head / group) * S + at.column) * D, D);
    slopes[row * S + at.column] = pairs[row * S + at.column] * (product - delta[row]);
}
// ANCHOR_END: slopes
