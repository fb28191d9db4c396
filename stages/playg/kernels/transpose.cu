// out_cr = x_rc
//
// Work split: a block a tile of 32 x 32 elements, 32 x 8 threads, each with four elements of a
// column of the tile.
//
// x: rows x columns; out: columns x rows; both row-major.
#include "lab/scalar.cuh"

using namespace lab;

constexpr int TILE = 32, STEP = 8;

// The load runs along a row of x, the store down a column of out: 32 sectors a warp, each for one
// element.
template <class T>
__global__ void transpose(const T* __restrict__ x, T* __restrict__ out, int rows, int columns) {
    int c = blockIdx.y * TILE + threadIdx.x;
    if (c >= columns) return;
    for (int j = threadIdx.y; j < TILE; j += STEP) {
        long long r = blockIdx.x * 1ll * TILE + j;
        if (r < rows) out[c * 1ll * rows + r] = x[r * columns + c];
    }
}

// ANCHOR: tiled
// Through a tile in shared memory, so that both the load and the store run along rows. The tile is
// written by rows and read by columns. Shared memory has 32 banks of 4 bytes: a row of 32 floats
// is all banks once, and a column of such rows one bank 32 times over. PAD elements more a row
// shift each row by a bank, and a column by then touches every bank once.
template <class T, int PAD>
__global__ void transpose_tiled(const T* __restrict__ x, T* __restrict__ out, int rows,
                                int columns) {
    __shared__ T tile[TILE][TILE + PAD];
    long long r0 = blockIdx.x * 1ll * TILE;
    int c0 = blockIdx.y * TILE;

    int c = c0 + threadIdx.x;
    for (int j = threadIdx.y; j < TILE; j += STEP)
        if (r0 + j < rows && c < columns) tile[j][threadIdx.x] = x[(r0 + j) * columns + c];
    __syncthreads();  // a warp's store reads what all warps have loaded

    long long r = r0 + threadIdx.x;
    for (int j = threadIdx.y; j < TILE; j += STEP)
        if (c0 + j < columns && r < rows) out[(c0 + j) * 1ll * rows + r] = tile[threadIdx.x][j];
}
// ANCHOR_END: tiled
