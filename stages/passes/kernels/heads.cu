// A copy between layouts of heads: [B, S, NH, D] within wider rows, and [B, NH, S, D].
//
//     to[b, s, h, c] = from[b, s, h, c]        each by strides of its own
//
// Work split: a thread N columns of a head, in the order of [B, S, NH, D]. A head's D elements lie together on
// both sides: nothing has to be transposed through shared memory.
#include "strip.cuh"

using namespace lab;

template <class T, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    move_heads(const T* __restrict__ from, T* __restrict__ to, int rows, int positions, int heads, int width,
               long long from_batch, long long from_position, long long from_head, long long to_batch,
               long long to_position, long long to_head) {
    unsigned packs = width / N, thread = blockIdx.x * PASS_THREADS + threadIdx.x;
    int c = thread % packs * N, h = thread / packs % heads, r = thread / packs / heads;
    if (r >= rows) return;
    long long b = r / positions, s = r % positions;
    float cells[N];
    load_cells<N>(cells, from + b * from_batch + s * from_position + h * from_head + c);
    store_cells<N>(to + b * to_batch + s * to_position + h * to_head + c, cells);
}
