// Row softmax: out_rc = exp(x_rc − m_r) / l_r,  m_r = max_c x_rc,  l_r = Σ_c exp(x_rc − m_r)
//
// Work split: a block a row; thread t takes columns t, t + THREADS, …  Without m_r the exponential
// would overflow f32 at x = 89.
//
// x, out: rows x columns, row-major.
#include "lab/reduce.cuh"
#include "row.cuh"

using namespace lab;

// ANCHOR: two_pass
// Statistics in two passes over the row: the maximum, then the sum.
template <class T, int THREADS>
__global__ void softmax(const T* __restrict__ x, T* __restrict__ out, int columns) {
    const T* row = x + blockIdx.x * 1ull * columns;
    T* out_row = out + blockIdx.x * 1ull * columns;

    float m = lowest<float>();
    for (int c = threadIdx.x; c < columns; c += THREADS) m = max(m, to_math(row[c]));
    m = block_reduce<THREADS>(m, Max{}, lowest<float>());

    float l = 0;
    for (int c = threadIdx.x; c < columns; c += THREADS) l += expf(to_math(row[c]) - m);
    l = block_reduce<THREADS>(l, Add{}, 0.0f);

    for (int c = threadIdx.x; c < columns; c += THREADS)
        out_row[c] = from_math<T>(expf(to_math(row[c]) - m) / l);
}
// ANCHOR_END: two_pass

// ANCHOR: merge
// A running maximum with the sum that belongs to it.
struct Running {
    float m, l;
};

// Two parts of a row into one: each sum was taken against its own maximum, so it is rescaled to
// the common one. Equal maxima need no rescaling, and must have none: a part without elements has
// m = −∞, l = 0, and exp(−∞ − (−∞)) would be NaN.
__device__ __forceinline__ Running merge(Running a, Running b) {
    if (a.m == b.m) return {a.m, a.l + b.l};
    float m = max(a.m, b.m);
    return {m, a.l * expf(a.m - m) + b.l * expf(b.m - m)};
}
// ANCHOR_END: merge

// Statistics in one pass (Milakov & Gimelshein 2018, arXiv 1805.02867): the row is read twice, not
// three times.
template <class T, int THREADS>
__global__ void softmax_online(const T* __restrict__ x, T* __restrict__ out, int columns) {
    const T* row = x + blockIdx.x * 1ull * columns;
    T* out_row = out + blockIdx.x * 1ull * columns;

    Running own = {lowest<float>(), 0};
    for (int c = threadIdx.x; c < columns; c += THREADS) own = merge(own, {to_math(row[c]), 1});

    for (int d = 16; d > 0; d /= 2)
        own = merge(own, {__shfl_xor_sync(0xffffffffu, own.m, d),
                          __shfl_xor_sync(0xffffffffu, own.l, d)});
    __shared__ Running partial[THREADS / 32];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = own;
    __syncthreads();  // the statistics of all warps are written
    Running all = partial[0];
    for (int w = 1; w < THREADS / 32; ++w) all = merge(all, partial[w]);

    for (int c = threadIdx.x; c < columns; c += THREADS)
        out_row[c] = from_math<T>(expf(to_math(row[c]) - all.m) / all.l);
}

// ANCHOR: registers
// The row in registers: it is read once, 16 bytes a thread at a time, and both passes look at the
// registers. The columns are bounded by what the block's registers hold. In f16 there are twice
// the elements for the bytes, and arithmetic is what bounds: the exponential is one instruction to
// the base 2, the division one multiplication by the reciprocal. The difference is taken before
// the scaling: it is exact where x is the maximum, however large.
template <class T, int THREADS, int PACKS, int N>
__global__ void __launch_bounds__(THREADS)
    softmax_registers(const T* __restrict__ x, T* __restrict__ out, int columns) {
    constexpr float LOG2_E = 1.44269504f;
    Row<T, THREADS, PACKS, N> row;
    row.load(x + blockIdx.x * 1ull * columns, columns, lowest<float>());

    float m = lowest<float>();
    row.for_each_cell(columns, [&](float& v) { m = max(m, v); });
    m = block_reduce<THREADS>(m, Max{}, lowest<float>());

    float l = 0;
    row.for_each_cell(columns, [&](float& v) {
        v = exp2f((v - m) * LOG2_E);
        l += v;
    });
    l = block_reduce<THREADS>(l, Add{}, 0.0f);

    float scale = 1.0f / l;
    row.for_each_cell(columns, [&](float& v) { v *= scale; });
    row.store(out + blockIdx.x * 1ull * columns, columns);
}
// ANCHOR_END: registers
