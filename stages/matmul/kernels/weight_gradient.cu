// The gradient of a linear layer's weights by wgmma and TMA, in f32: what a long sum over rows wants, of few tiles.
//
//   C_ij = Σ_r dy_ri x_rj      or C_ij += the same
//
// dy [rows, M] and x [rows, N], row-major: both operands lie across the sum.
//
// Work split: each tile of C, 128 x 256, is cut into `parts` by rows, alike to a step; the units of a part come one behind the
// other, so that blocks which run together read the same rows. A block a multiprocessor goes from unit to unit: one thread
// asks for tiles, two warpgroups multiply 64 rows of C each. Their sums go to memory as wgmma leaves them, 32 bytes of a row
// from four lanes, without a way through shared memory, where a tile of f32 would take the place of half the ring. The sums of
// part p are matrix p of `C`, [parts, M, N]; a second launch adds them up. Where they are `wanted`, what makes C leaves sums of its
// squares as well: of each warp's part of a tile, or of what a warp adds up. The norm of all gradients is made of them.
#include "lab/product.cuh"
#include "lab/reduce.cuh"
#include "lab/tile.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int weight_gradient_shared = PLACES * OperandTiles<T, ACROSS_K, ACROSS_K, BM, BN, BK>::BYTES;

constexpr int ASK_REGISTERS = 40, MULTIPLY_REGISTERS = 232;

// ANCHOR: keep
// A lane's sums, of rows i and i + 8 and of two neighbours of each eight columns from j on, to C or added to it. A span at a
// time: its loads first, for none may pass a store before it. What comes back is the sum of C's squares, where it is wanted.
template <int SUMS>
__device__ __forceinline__ double keep(Matrix<float> c, const float (&sum)[SUMS], int i, int j, bool adds, bool wanted) {
    constexpr int SPAN = 32;
    double squares = 0;
#pragma unroll
    for (int first = 0; first < SUMS; first += SPAN) {
        float2 two[SPAN / 2];
#pragma unroll
        for (int n = 0; n < SPAN; n += 2) {
            int row = i + n / 2 % 2 * 8, column = j + (first + n) / 4 * 8;
            bool inside = row < c.rows && column < c.columns;
            float2 before = inside && adds ? *reinterpret_cast<const float2*>(c.at(row, column)) : make_float2(0, 0);
            two[n / 2] = make_float2(before.x + sum[first + n], before.y + sum[first + n + 1]);
        }
#pragma unroll
        for (int n = 0; n < SPAN; n += 2) {
            int row = i + n / 2 % 2 * 8, column = j + (first + n) / 4 * 8;
            if (row < c.rows && column < c.columns) *reinterpret_cast<float2*>(c.at(row, column)) = two[n / 2];
        }
        if (!wanted) continue;
#pragma unroll
        for (int n = 0; n < SPAN; n += 2) {
            int row = i + n / 2 % 2 * 8, column = j + (first + n) / 4 * 8;
            float2 own = two[n / 2];
            if (row < c.rows && column < c.columns) squares += double(own.x) * own.x + double(own.y) * own.y;
        }
    }
    return squares;
}
// ANCHOR_END: keep

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(PRODUCT_THREADS<BM>, 1)
    weight_gradient(const __grid_constant__ TensorMap dy, const __grid_constant__ TensorMap x, float* C, double* squares,
                    int parts, int M, int N, int rows, int accumulates, int wanted) {
    using Tiles = OperandTiles<T, ACROSS_K, ACROSS_K, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    TileOrder<HIGH> order{(M + BM - 1) / BM, (N + BN - 1) / BN};
    int all = order.down * order.across * parts, steps = (rows + BK - 1) / BK;
    auto begin = [&](int part) { return int(1ll * steps * part / parts); };
    Pipeline<Tiles, T, BN, PLACES> pipeline{tiles, ring};
    if (threadIdx.x >= BM * 2) {
        registers_decrease<ASK_REGISTERS>();
        if (threadIdx.x > BM * 2) return;
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            auto [i, j, part] = order.at(n);
            for (int s = begin(part); s < begin(part + 1); ++s, pipeline.turn.advance()) {
                ring.wait_empty(pipeline.turn);
                pipeline.at(pipeline.turn).load(dy, x, i * BM, j * BN, s * BK, &ring.full[pipeline.turn.place]);
            }
        }
    } else {
        registers_increase<MULTIPLY_REGISTERS>();
        float sum[BN / 2];
        int row = threadIdx.x / 128 * 64, lane = threadIdx.x % 32, own = row + threadIdx.x % 128 / 32 * 16 + lane / 4;
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            auto [i, j, part] = order.at(n);
            pipeline.multiply(sum, row, begin(part + 1) - begin(part));
            double square = keep(Matrix<float>{C + part * 1ll * M * N, M, N}, sum, i * BM + own, j * BN + lane % 4 * 2,
                                 accumulates, wanted);
            if (!wanted) continue;
            square = warp_reduce(square, Add{});
            if (lane == 0) squares[n * (BM / 16) + threadIdx.x / 32] = square;
        }
    }
}

// C = Σ_p parts_p, or C += the same, in the order of the parts. Work split: a thread four neighbours of all parts.
constexpr int SUM_THREADS = 256, FOUR = 4;

__global__ void __launch_bounds__(SUM_THREADS)
    sum_parts(const float* __restrict__ sums, float* __restrict__ C, double* __restrict__ squares, int parts,
              long long elements, int accumulates, int wanted) {
    long long c = (blockIdx.x * 1ll * SUM_THREADS + threadIdx.x) * FOUR;
    bool inside = c < elements;
    if (!inside && !wanted) return;
    Pack<float> sum = inside ? load_pack(sums + c) : Pack<float>{};
    for (int p = accumulates ? 0 : 1; p < parts && inside; ++p) {
        Pack<float> more = load_pack(p == 0 ? C + c : sums + p * elements + c);
#pragma unroll
        for (int i = 0; i < FOUR; ++i) sum.v[i] += more.v[i];
    }
    if (inside) store_pack(C + c, sum);
    if (!wanted) return;
    double square = 0;
#pragma unroll
    for (int i = 0; i < FOUR; ++i) square += double(sum.v[i]) * sum.v[i];
    square = warp_reduce(square, Add{});
    if (threadIdx.x % 32 == 0 && inside) squares[c / (32 * FOUR)] = square;
}
