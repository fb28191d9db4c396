// out_rc = x_rc, a matrix through a two-dimensional grid
//
// Three mappings of the same blocks onto the matrix. A warp is 32 threads of consecutive
// threadIdx.x, and what its lanes ask for in one instruction is fetched in sectors of 32 bytes.
//
// x, out: rows x columns, row-major.
#include "lab/pack.cuh"

using namespace lab;

// ANCHOR: swapped
// threadIdx.x runs down the rows: lanes are a whole row apart, so each touches a sector of its
// own and uses one element of it. 32 sectors for 32 floats.
template <class T>
__global__ void copy_swapped(const T* __restrict__ x, T* __restrict__ out, int rows, int columns) {
    long long r = blockIdx.x * 1ll * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    for (int c = blockIdx.y * blockDim.y + threadIdx.y; c < columns; c += gridDim.y * blockDim.y)
        out[r * columns + c] = x[r * columns + c];
}
// ANCHOR_END: swapped

// ANCHOR: rows
// threadIdx.x runs along the columns: lanes are neighbours, 4 sectors for 32 floats, all used.
template <class T>
__global__ void copy(const T* __restrict__ x, T* __restrict__ out, int rows, int columns) {
    long long r = blockIdx.x * 1ll * blockDim.y + threadIdx.y;
    if (r >= rows) return;
    for (int c = blockIdx.y * blockDim.x + threadIdx.x; c < columns; c += gridDim.y * blockDim.x)
        out[r * columns + c] = x[r * columns + c];
}
// ANCHOR_END: rows

// The same, 16 bytes a lane: four times the bytes on their way for each thread. Columns must be a
// multiple of the pack; what is not goes through `copy`.
template <class T>
__global__ void copy_packs(const T* __restrict__ x, T* __restrict__ out, int rows, int columns) {
    constexpr int N = 16 / sizeof(T);
    const uint4* from = reinterpret_cast<const uint4*>(x);
    uint4* to = reinterpret_cast<uint4*>(out);
    long long r = blockIdx.x * 1ll * blockDim.y + threadIdx.y;
    int packs = columns / N;
    if (r >= rows) return;
    for (int p = blockIdx.y * blockDim.x + threadIdx.x; p < packs; p += gridDim.y * blockDim.x)
        to[r * packs + p] = from[r * packs + p];
}
