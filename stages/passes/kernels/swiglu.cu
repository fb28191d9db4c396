// SwiGLU (lab/swiglu.cuh), of a product that has made gate and up at once:
//
//     u_c = silu(a_c) b_c            a_c = gate_up_c,   b_c = gate_up_(W + c)
//
// Work split: a thread N columns of a row, 16 bytes of each tensor where N > 1.
//
// gate_up, dgate_up: rows x 2 W; u, du: rows x W.
#include "lab/swiglu.cuh"
#include "strip.cuh"

using namespace lab;

// The row and the first column of this thread's share; a row has `width` columns. The host sees to it that 32
// bits count all threads: a division of 64 bits takes some hundred instructions.
template <int N> struct Share {
    long long row;
    int column;
    __device__ __forceinline__ explicit Share(unsigned width) {
        unsigned thread = blockIdx.x * PASS_THREADS + threadIdx.x;
        row = thread / (width / N), column = thread % (width / N) * N;
    }
};

// ANCHOR: forward
template <class T, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    swiglu(const T* __restrict__ gate_up, T* __restrict__ u, long long rows, int width) {
    Share<N> at(width);
    if (at.row >= rows) return;
    const T* from = gate_up + at.row * 2 * width + at.column;
    float a[N], b[N];
    load_cells<N>(a, from);
    load_cells<N>(b, from + width);
#pragma unroll
    for (int i = 0; i < N; ++i) b[i] = lab::swiglu(a[i], b[i]);
    store_cells<N>(u + at.row * width + at.column, b);
}
// ANCHOR_END: forward

// ANCHOR: backward
// `u` is written again where it was not kept.
template <class T, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    swiglu_back(const T* __restrict__ gate_up, const T* __restrict__ du, T* __restrict__ dgate_up,
                T* __restrict__ u, long long rows, int width, bool recomputes) {
    Share<N> at(width);
    if (at.row >= rows) return;
    long long gate = at.row * 2 * width + at.column, cell = at.row * width + at.column;
    float a[N], b[N], d[N];
    load_cells<N>(a, gate_up + gate);
    load_cells<N>(b, gate_up + gate + width);
    load_cells<N>(d, du + cell);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        auto [of_gate, of_up, again] = swiglu_gradients(a[i], b[i], d[i]);
        a[i] = of_gate, d[i] = of_up, b[i] = again;
    }
    store_cells<N>(dgate_up + gate, a);
    store_cells<N>(dgate_up + gate + width, d);
    if (recomputes) store_cells<N>(u + cell, b);
}
// ANCHOR_END: backward
