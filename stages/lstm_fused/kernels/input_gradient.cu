// The gradient by x, from da of all steps: dx = da W_ih, of one direction or the sum of both.
//
// A product over the gates, for each row of a step, of which there are T B. Work split: a block has a
// tile of results (tile_sums.cuh), or, where x has few columns, a warp has a result.
//
// da: T x B rows of 4H in the arithmetic's type, of an sLSTM in the type itself; zero where a row has no
// step. G: the rows of weight_ih, 4H; of the GRU 3H, those of its gates by x. Other tensors are as
// v0_cell.cu has them. C: the columns of x.
#include "lab/reduce.cuh"
#include "tile_sums.cuh"

using namespace lab;

constexpr int THREADS = SumTile::THREADS, TILE = SumTile::TILE, EACH = SumTile::EACH;

// A grid of T B / 32 x C / 32 blocks, rounded up.
template <class T, class Gates = math_t<T>>
__global__ void __launch_bounds__(THREADS)
    input_gradient(const Gates* __restrict__ da, const T* __restrict__ weight_ih,
                   const Gates* __restrict__ da_reverse,
                   const T* __restrict__ weight_ih_reverse, T* __restrict__ dx, int rows, int G,
                   int H, int C, int both) {
    using M = math_t<T>;
    int m0 = blockIdx.x * TILE, n = blockIdx.y * TILE + threadIdx.x % TILE;
    M sum[EACH] = {};
    for (int direction = 0; direction <= both; ++direction) {
        const Gates* of = direction == 0 ? da : da_reverse;
        const T* w = direction == 0 ? weight_ih : weight_ih_reverse;
        auto da_of = [&](int m, int k) {
            return m0 + m < rows && k < G ? to_math(of[(m0 + m) * 4ll * H + k]) : M(0);
        };
        auto weight = [&](int k, int) { return k < G && n < C ? to_math(w[k * 1ll * C + n]) : M(0); };
        SumTile::product<false, true>(sum, G, da_of, weight);
    }
    SumTile::store(sum, dx, m0, n, rows, C);
}

// Of a tile most columns would be none, and its block would go along all gates alone. Here the lanes share
// them, neighbours side by side. A grid of T B C / 8 blocks, rounded up.
template <class T, class Gates = math_t<T>>
__global__ void __launch_bounds__(THREADS)
    narrow_input_gradient(const Gates* __restrict__ da, const T* __restrict__ weight_ih,
                          const Gates* __restrict__ da_reverse,
                          const T* __restrict__ weight_ih_reverse, T* __restrict__ dx, int rows,
                          int G, int H, int C, int both) {
    using M = math_t<T>;
    long long result = blockIdx.x * (THREADS / 32ll) + threadIdx.x / 32, m = result / C;
    if (m >= rows) return;
    M sum = 0;
    for (int direction = 0; direction <= both; ++direction) {
        const Gates* of = (direction == 0 ? da : da_reverse) + m * 4 * H;
        const T* w = (direction == 0 ? weight_ih : weight_ih_reverse) + result % C;
        for (int k = threadIdx.x % 32; k < G; k += 32) sum += to_math(of[k]) * to_math(w[k * 1ll * C]);
    }
    sum = warp_reduce(sum, Add{});
    if (threadIdx.x % 32 == 0) dx[result] = from_math<T>(sum);
}
