// Dropout: out_n = x_n / (1 − p), or 0 with probability p. Which elements are kept depends on the seed, the
// stream (a layer's own), the step of training and the element alone: the way back makes the same choice for dy,
// and nothing is kept.
//
// A choice is a word of lab/philox.cuh: four elements have a counter between them, under the seed as the key.
//
// Work split: a thread N elements, or four where they are no packs.
//
// x, out: n elements; step: one number.
#include "lab/philox.cuh"
#include "strip.cuh"

using namespace lab;

// threshold: p 2³²; factor: 1 / (1 − p).
template <class T, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    dropout(const T* __restrict__ x, T* __restrict__ out, const long long* __restrict__ step,
            unsigned long long seed, int stream, unsigned threshold, float factor, long long n) {
    constexpr int EACH = N > 1 ? N : WORDS;
    long long first = (blockIdx.x * 1ll * PASS_THREADS + threadIdx.x) * EACH;
    if (first >= n) return;
    unsigned long long high = (unsigned long long)stream << 48 | (unsigned long long)*step;
    float cells[EACH];
    if constexpr (N > 1) load_cells<N>(cells, x + first);
#pragma unroll
    for (int i = 0; i < EACH; i += WORDS) {
        Words words = philox((first + i) / WORDS, high, seed);
#pragma unroll
        for (int k = 0; k < WORDS; ++k) {
            if constexpr (N == 1) {
                if (first + k >= n) return;
                cells[k] = to_math(x[first + k]);
            }
            cells[i + k] = words.v[k] >= threshold ? cells[i + k] * factor : 0.0f;
            if constexpr (N == 1) out[first + k] = from_math<T>(cells[k]);
        }
    }
    if constexpr (N > 1) store_cells<N>(out + first, cells);
}
