// Rows of x, normed or not, as whole numbers of 16 bits in two planes of bytes: 256 high + low, in units of a row's largest number / 32512.
#pragma once
#include "normed_rows.cuh"

namespace lab {

// ANCHOR: units
constexpr float MOST_UNITS = 127.0f * 256;  // of a row's largest number: its upper byte is 127

// The larger one, or NaN where either is; fmaxf would drop it.
struct Larger {
    __device__ __forceinline__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

// The nearest whole number of one below 2²²: the last digits of 1.5 · 2²³ and it. No conversion, which has a sixteenth of the throughput.
__device__ __forceinline__ int nearest(float v) { return __float_as_int(v + 12582912.0f) - 0x4b400000; }

// N numbers, each by the inverse of the largest: their upper and their lower bytes, four a word.
template <int N>
__device__ __forceinline__ void split_units(unsigned (&high)[N / 4], unsigned (&low)[N / 4], const float (&v)[N], float inverse) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        int units = nearest(v[i] * inverse * MOST_UNITS), upper = (units + 128) >> 8;
        high[i / 4] = (i % 4 ? high[i / 4] : 0) | (upper & 0xff) << i % 4 * 8;
        low[i / 4] = (i % 4 ? low[i / 4] : 0) | (units & 0xff) << i % 4 * 8;
    }
}

// Eight of them to both planes.
template <class T>
__device__ __forceinline__ void store_units(signed char* high, signed char* low, const Pack<T>& v, float inverse) {
    static_assert(Pack<T>::N == 8, "two words of bytes a pack: of halves");
    unsigned of_high[2], of_low[2];
    split_units<8>(of_high, of_low, v.v, inverse);
    *reinterpret_cast<uint2*>(high) = {of_high[0], of_high[1]};
    *reinterpret_cast<uint2*>(low) = {of_low[0], of_low[1]};
}
// ANCHOR_END: units

// f(column, pack) of all packs of a row, LOADS of a thread under way.
template <int THREADS, int LOADS, class T, class F> __device__ __forceinline__ void for_each_pack(const T* row, int K, F f) {
    constexpr int STEP = THREADS * Pack<T>::N;
#pragma unroll 1
    for (int k = threadIdx.x * Pack<T>::N; k < K; k += LOADS * STEP) {
        Raw<T> raw[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i)
            if (k + i * STEP < K) raw[i] = load_raw(row + k + i * STEP);
#pragma unroll
        for (int i = 0; i < LOADS; ++i)
            if (k + i * STEP < K) f(k + i * STEP, in_math(raw[i]));
    }
}

// A warp. z = σ(o) ⊙ the layer norm of a head of x ⊙ w; the largest of this lane's numbers. z may be x. Gates are asked for at once
// where they are FAR.
template <bool FAR, class T>
__device__ __forceinline__ float norm_head(T* z, const T* x, const T* ogate, const T* weight, float eps, int D) {
    constexpr int E = Pack<T>::N, PACKS = 2;  // of a lane: heads have 512 columns at most
    int first = threadIdx.x % 32 * E;
    Raw<T> gate[PACKS];
    auto column = [&](int p) { return first + p * 32 * E; };
    auto load_gates = [&] {
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
            if (column(p) < D) gate[p] = load_raw(ogate + column(p));
    };
    if (FAR) load_gates();
    float mean = 0, squares = 0, largest = 0;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (column(p) >= D) break;
        Pack<T> v = load_pack(x + column(p));
#pragma unroll
        for (int i = 0; i < E; ++i) mean += v.v[i];
    }
    mean = warp_reduce(mean, Add{}) / D;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (column(p) >= D) break;
        Pack<T> v = load_pack(x + column(p));
#pragma unroll
        for (int i = 0; i < E; ++i) squares += (v.v[i] - mean) * (v.v[i] - mean);
    }
    float rstd = 1.0f / sqrtf(warp_reduce(squares, Add{}) / D + eps);
    if (!FAR) load_gates();
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (column(p) >= D) break;
        Pack<T> v = load_pack(x + column(p)), o = in_math(gate[p]), w = load_pack(weight + column(p));
#pragma unroll
        for (int i = 0; i < E; ++i) {
            v.v[i] = to_math(from_math<T>((v.v[i] - mean) * rstd * quick_sigmoid(o.v[i]) * w.v[i]));
            largest = Larger{}(largest, fabsf(v.v[i]));
        }
        store_pack(z + column(p), v);
    }
    return largest;
}

// The weight of a norm, to shared memory.
template <Norm NORM, int THREADS, class T> __device__ __forceinline__ void bring_weight(T* own_weight, const T* norm, int K) {
    if constexpr (NORM != NONE)
#pragma unroll 1
        for (int k = threadIdx.x * Pack<T>::N; k < K; k += THREADS * Pack<T>::N) copy_pack(own_weight + k, norm + k);
}

// ANCHOR: split_row
// A row to both planes; what a unit of it is. What a norm of rows divides by is a factor of the whole row: so it goes into the unit,
// and one reduction finds it and the largest number. `own_weight`: as bring_weight left it, by the same threads; `normed`: [K], of
// heads, which may be x. Both are shared memory. So may x and the gates be, where LOADS is 1: of a norm of rows and of none each
// thread reads its own packs of x. The barrier that others read planes behind is the caller's.
template <Norm NORM, int THREADS, int LOADS, class T>
__device__ __forceinline__ float split_row(signed char* high, signed char* low, float2 (&of_warp)[THREADS / 32], const T* own_weight,
                                           T* normed, const T* x, const T* ogate, float eps, int K, int D) {
    constexpr int E = Pack<T>::N, WARPS = THREADS / 32;
    int warp = threadIdx.x / 32;
    float squares = 0, largest = 0;
    auto weighted = [&](int k, Pack<T> v) {
        if constexpr (NORM == RMS) {  // this thread has copied the weight of its columns itself
            Pack<T> w = load_pack(own_weight + k);
#pragma unroll
            for (int i = 0; i < E; ++i) v.v[i] *= w.v[i];
        }
        return v;
    };
    const T* z = x;
    if constexpr (NORM == HEADS) {
        __syncthreads();  // the weight is there, and x and the gate where they were brought near
        for (int c = warp * D; c < K; c += WARPS * D)
            largest = Larger{}(largest, norm_head<(LOADS > 1)>(normed + c, x + c, ogate + c, own_weight + c, eps, D));
        z = normed;
    } else {
        for_each_pack<THREADS, LOADS>(z, K, [&](int k, const Pack<T>& v) {
            Pack<T> of = weighted(k, v);
#pragma unroll
            for (int i = 0; i < E; ++i) squares += v.v[i] * v.v[i], largest = Larger{}(largest, fabsf(of.v[i]));
        });
    }
    squares = warp_reduce(squares, Add{}), largest = warp_reduce(largest, Larger{});
    if (threadIdx.x % 32 == 0) of_warp[warp] = {squares, largest};
    __syncthreads();  // what all warps have found is there, and so are the heads
    float2 part = of_warp[threadIdx.x % WARPS];
    squares = warp_reduce<WARPS>(part.x, Add{}), largest = warp_reduce<WARPS>(part.y, Larger{});

    float inverse = largest > 0 ? 1.0f / largest : 0.0f;
    for_each_pack<THREADS, LOADS>(z, K, [&](int k, const Pack<T>& v) { store_units(high + k, low + k, weighted(k, v), inverse); });
    float rstd = NORM == RMS ? 1.0f / sqrtf(squares / K + eps) : 1.0f;
    return rstd * largest / MOST_UNITS;
}
// ANCHOR_END: split_row

}  // namespace lab
