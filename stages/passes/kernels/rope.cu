// Rotary positions (Su et al. 2021, arXiv 2104.09864), with halves rotated as in Llama: of a head's D columns c
// and c + D / 2 are a pair, at position s turned by s θ^(−2c / D), in place:
//
//     x_c           ← x_c cos − x_(c + D/2) sin
//     x_(c + D / 2) ← x_(c + D/2) cos + x_c sin          the gradient is turned back: sin changes its sign
//
// The cosines and sines are a table, made once in f64: an angle in f32 is wrong by 10⁻⁴ after some thousand
// positions.
//
// Work split: a thread N columns of the first half of a head, and those of the second half that belong to them.
//
// x: rows of [NH, D], `stride` apart; table: 2 x positions x D / 2, cosines first.
#include "turn.cuh"

using namespace lab;

// ANCHOR: rope
template <class T, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    rope(T* __restrict__ x, const float* __restrict__ table, int rows, int positions, int heads, int half,
         long long stride, bool is_back) {
    unsigned packs = half / N, thread = blockIdx.x * PASS_THREADS + threadIdx.x;
    int c = thread % packs * N, h = thread / packs % heads, r = thread / packs / heads;
    if (r >= rows) return;
    const float* angles = table + r % positions * 1ll * half + c;
    T* at = x + r * stride + h * 2 * half + c;
    float first[N], second[N];
    load_cells<N>(first, at);
    load_cells<N>(second, at + half);
    turn_pairs(first, second, angles, positions * 1ll * half, is_back);
    store_cells<N>(at, first);
    store_cells<N>(at + half, second);
}
// ANCHOR_END: rope
