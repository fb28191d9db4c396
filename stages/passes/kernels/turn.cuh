// A pair of columns of a head, turned by the angle of its position.
#pragma once
#include "strip.cuh"

namespace lab {

// N floats of the table.
template <int N> __device__ __forceinline__ void load_floats(float (&to)[N], const float* from) {
    constexpr int EACH = N > 1 ? 4 : 1;
#pragma unroll
    for (int i = 0; i < N; i += EACH) {
        float cells[EACH];
        load_cells(cells, from + i);
#pragma unroll
        for (int k = 0; k < EACH; ++k) to[i + k] = cells[k];
    }
}

// N pairs (first, second), by angles whose cosines begin at `cosines` and whose sines lie `sines` floats behind them.
template <int N>
__device__ __forceinline__ void turn_pairs(float (&first)[N], float (&second)[N], const float* cosines,
                                           long long sines, bool is_back) {
    float cosine[N], sine[N];
    load_floats(cosine, cosines);
    load_floats(sine, cosines + sines);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        float s = is_back ? -sine[i] : sine[i], x_c = first[i];
        first[i] = x_c * cosine[i] - second[i] * s;
        second[i] = second[i] * cosine[i] + x_c * s;
    }
}

}  // namespace lab
