// A pair of columns of a head, turned by the angle of its position.
#pragma once
#include "strip.cuh"

namespace lab {

// N pairs (first, second), by angles whose cosines begin at `cosines` and whose sines lie `sines` floats behind them: 16 bytes
// of each at a time.
template <int N>
__device__ __forceinline__ void turn_pairs(float (&first)[N], float (&second)[N], const float* cosines,
                                           long long sines, bool is_back) {
    constexpr int EACH = N > 1 ? 4 : 1;
#pragma unroll
    for (int i = 0; i < N; i += EACH) {
        float cosine[EACH], sine[EACH];
        load_cells(cosine, cosines + i);
        load_cells(sine, cosines + sines + i);
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            float s = is_back ? -sine[k] : sine[k], x_c = first[i + k];
            first[i + k] = x_c * cosine[k] - second[i + k] * s;
            second[i + k] = second[i + k] * cosine[k] + x_c * s;
        }
    }
}

}  // namespace lab
