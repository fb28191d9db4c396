// The gradients by R and b, which need da of all steps, and no order of steps. Row ρ = t B + b of both operands:
//
//   dr_{g,n,j,k} = Σ_ρ da_{ρ,g,n,j} h_{ρ−B,n,k}        db_{g,n,j} = Σ_ρ da_{ρ,g,n,j}        h of rows −B … −1: h0
//
// Work split: a block has a tile of dr, TILE x TILE, of one gate and head, and goes along the whole sum: nobody adds to what
// another has written. A thread has two rows and two columns of it.
//
// dwx: T B x 4 x NH x DH; y: T B x NH x DH; h0: B x NH x DH; dr: 4 x NH x DH x DH; db: 4 x NH x DH. Of dr a grid of
// DH / TILE x DH / TILE x 4 NH blocks, of db 4 NH DH / LANES, rounded up.
#include "slstm.cuh"

using namespace lab;

constexpr int TILE = 32, HALF = TILE / 2, CHUNK = 32, LANES = 32, WARPS = 8;

template <class T>
__global__ void __launch_bounds__(HALF* HALF)
    r_gradient(const T* __restrict__ dwx, const T* __restrict__ y, const T* __restrict__ h0, T* __restrict__ dr,
               int rows, int B, int NH, int DH) {
    __shared__ float da[CHUNK][TILE], h[CHUNK][TILE];
    int H = NH * DH, k0 = blockIdx.x * TILE, j0 = blockIdx.y * TILE, gate_head = blockIdx.z, head = gate_head % NH * DH;
    int x = threadIdx.x % HALF, of_y = threadIdx.x / HALF;
    float sum[2][2] = {};
    for (int row0 = 0; row0 < rows; row0 += CHUNK) {
        for (int e = threadIdx.x; e < CHUNK * TILE; e += HALF * HALF) {
            int c = e % TILE, at = e / TILE;
            long long row = row0 + at, before = row - B;
            bool there = row < rows;
            da[at][c] = there && j0 + c < DH ? to_math(dwx[row * GATES * H + gate_head * 1ll * DH + j0 + c]) : 0.0f;
            const T* of_h = before < 0 ? h0 + row * H : y + before * H;
            h[at][c] = there && k0 + c < DH ? to_math(of_h[head + k0 + c]) : 0.0f;
        }
        __syncthreads();  // all threads read the whole chunk
        for (int at = 0; at < CHUNK; ++at)
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int k = 0; k < 2; ++k) sum[j][k] += da[at][of_y + j * HALF] * h[at][x + k * HALF];
        __syncthreads();  // the chunk is read: the next takes its place
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            int of_j = j0 + of_y + j * HALF, of_k = k0 + x + k * HALF;
            if (of_j < DH && of_k < DH) dr[(gate_head * 1ll * DH + of_j) * DH + of_k] = from_math<T>(sum[j][k]);
        }
}

// A lane has a column; each warp every WARPS-th row of it.
template <class T>
__global__ void __launch_bounds__(LANES* WARPS)
    b_gradient(const T* __restrict__ dwx, T* __restrict__ db, int rows, int NH, int DH) {
    __shared__ float parts[WARPS][LANES];
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, column = blockIdx.x * LANES + lane;
    long long columns = GATES * 1ll * NH * DH;
    float sum = 0;
    if (column < columns)
        for (int row = warp; row < rows; row += WARPS) sum += to_math(dwx[row * columns + column]);
    parts[warp][lane] = sum;
    __syncthreads();  // the first warp adds up what all have left
    if (warp > 0 || column >= columns) return;
    for (int of = 1; of < WARPS; ++of) sum += parts[of][lane];
    db[column] = from_math<T>(sum);
}
