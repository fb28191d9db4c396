// The gates of the vLSTM: F_t = Σ_{τ <= t} logsigmoid(f_τ), and what is between two positions.
//
// F grows with the sequence, and F_i − F_j is wanted where it is small: in one float, F = −100000
// would have steps of 0.008, and the exponential of a difference errors of 1 %. So F is a pair of
// floats, x + y: 48 bits. The difference of two x is rounded once, relative to itself, and what
// each x has left out is in its y.
#pragma once

// log(1 / (1 + exp(−x))); nothing overflows.
__device__ __forceinline__ float log_sigmoid(float x) {
    return fminf(x, 0.0f) - log1pf(expf(-fabsf(x)));
}

// ANCHOR: pair
__device__ __forceinline__ float2 in_two_floats(double v) {
    float x = static_cast<float>(v);
    return make_float2(x, static_cast<float>(v - x));
}

// D_ij = F_i − F_j + i_j.
__device__ __forceinline__ float exponent(float2 F_i, float2 F_j, float i_j) {
    return (F_i.x - F_j.x) + (F_i.y - F_j.y) + i_j;
}
// ANCHOR_END: pair
