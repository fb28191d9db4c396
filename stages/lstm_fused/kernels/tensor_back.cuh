// A cell's step back as the kernels on tensor cores take it: most of it before the gradient by h has come.
#pragma once
#include "lab/halves.cuh"
#include "lab/quick.cuh"
#include "lstm.cuh"

namespace lab {

// What a cell's step back takes from all but dh and dc: da_o = dh o, dc += dh c, da_i = dc i, da_f = dc f, da_g = dc g, and
// dc keeps `keeps` of it.
struct Factors {
    float i, f, g, o, c, keeps;

    // From the gates i, f, g, o, and c_t and c_{t-1}; da become T's.
    template <class T> __device__ __forceinline__ void take(float4 y, float c_t, float c_before) {
        float u = tangent_for<T>(c_t);
        i = y.z * y.x * (1 - y.x), f = c_before * y.y * (1 - y.y);
        g = y.x * (1 - y.z * y.z), o = u * y.w * (1 - y.w);
        c = y.w * (1 - u * u), keeps = y.y;
    }
    // The four da, from dh and dc; and dc of the step before.
    __device__ __forceinline__ float4 step(float dh, float& dc) const {
        dc += dh * c;
        float4 da = make_float4(dc * i, dc * f, dc * g, dh * o);
        dc *= keeps;
        return da;
    }
};

// What the forward pass has left of a cell's step, and dy. To be fetched a step before it is needed: what is converted has
// to have come, and so dy is left as it is.
template <class T> struct KeptCell {
    float4 gates;
    float c, c_before;
    T dy;
};

// Whether step t is the first or the last that a row of so many steps goes through.
struct Ends {
    bool first, last;

    __device__ __forceinline__ Ends(int t, int length, bool reverse)
        : first(t == (reverse ? length - 1 : 0)), last(t == (reverse ? 0 : length - 1)) {}
};

// The da of a cell in T, as the products read them.
template <class T> __device__ __forceinline__ uint2 four_halves_of(float4 of) {
    return make_uint2(two_halves<T>(of.x, of.y), two_halves<T>(of.z, of.w));
}
template <class T> __device__ __forceinline__ float4 four_floats(uint2 of) {
    float2 low = floats_of<T>(of.x), high = floats_of<T>(of.y);
    return make_float4(low.x, low.y, high.x, high.y);
}
__device__ __forceinline__ void add(float4& sum, float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

}  // namespace lab
