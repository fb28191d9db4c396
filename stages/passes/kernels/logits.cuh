// A row of logits: the cap, sums of exponentials, and where its columns lie. The equations: cross_entropy.cu.
#pragma once
#include "lab/ptx/max_u16x2.cuh"
#include "lab/quick.cuh"
#include "strip.cuh"

namespace lab {

constexpr float LOG2E = 1.44269504f, LN2 = 0.693147181f, LOWEST = -3.40282347e38f;

// ANCHOR: cap
// z of logits, and exponentials of it. Where all of a pack are within the cap, tanh(y) / y is a polynomial in y², off by 6e-8 of
// itself: eight instructions, where a power and a reciprocal would keep the special function units busy for eight more. Up to half
// of the cap four terms do, six instructions.
template <class T, bool CAPPED> struct Cap {
    float cap, inverse, of_square, a[6], of_half[4];  // times log₂ e

    __device__ __forceinline__ explicit Cap(float cap)
        : cap(cap), inverse(1.0f / cap), of_square(inverse * inverse * (LN2 * LN2)) {
        constexpr float OF_Y[6] = {-0.33332987f, 0.13326409f, -0.053498694f, 0.020359733f, -0.006259316f, 0.0010582569f};
        constexpr float OF_HALF[4] = {-0.33333311f, 0.13330476f, -0.053387111f, 0.017988744f};
        float power = LOG2E;
#pragma unroll
        for (int k = 0; k < 6; ++k) {
            a[k] = OF_Y[k] * (power *= inverse * inverse);
            if (k < 4) of_half[k] = OF_HALF[k] * power;
        }
    }

    template <int N> __device__ __forceinline__ bool are_small(const float (&x)[N]) const {
        if constexpr (sizeof(T) == sizeof(float)) return false;
        float largest = fabsf(x[0]);
#pragma unroll
        for (int i = 1; i < N; ++i) largest = fmaxf(largest, fabsf(x[i]));
        return largest <= cap;
    }
    // (z log₂ e / x − log₂ e) / w, w being x².
    template <int TERMS> __device__ __forceinline__ static float series(const float (&a)[TERMS], float w) {
        float sum = a[TERMS - 1];
#pragma unroll
        for (int k = TERMS - 2; k >= 0; --k) sum = fmaf(sum, w, a[k]);
        return sum;
    }
    __device__ __forceinline__ float tangent(float x) const {
        float y = x * inverse;
        return cap * (sizeof(T) == sizeof(float) ? tanhf(y) : quick_tangent(y));
    }

    __device__ __forceinline__ float bound(float x) const {
        if constexpr (!CAPPED) return x;
        float cells[1] = {x}, w = x * x;
        return are_small(cells) ? x + x * w * LN2 * series(a, w) : tangent(x);
    }

    // The largest of halves as they lie in memory, twice in a word: without its sign a half is the larger, the larger its bits are,
    // and a NaN is larger than any bound.
    __device__ __forceinline__ static unsigned largest_of(const Raw<T>& raw) {
        unsigned words[4];
        memcpy(words, &raw.bytes, 16);
        unsigned largest = words[0] & 0x7fff7fff;
#pragma unroll
        for (int i = 1; i < 4; ++i) largest = larger_u16_pair(largest, words[i] & 0x7fff7fff);
        return largest;
    }
    __device__ __forceinline__ static bool are_within(unsigned largest, float bound) {
        unsigned bits = __float_as_uint(bound) >> 16;
        if constexpr (is_f16<T>) bits = __half_as_ushort(__float2half(bound));
        bits *= 0x10001;  // in both halves of a word
        return larger_u16_pair(largest, bits) == bits;
    }
    // e_i = exp(z_i) (1 − (z_i / cap)²) of a pack, and Σ exp z_i on top of `sum`: no exponent is beyond 40 log₂ e.
    template <int N> __device__ __forceinline__ void weigh(float (&e)[N], const Raw<T>& raw, float& sum) const {
        float x[N];
        cells_of(x, raw);
        unsigned largest = largest_of(raw);
        weigh(e, x, are_within(largest, 0.5f * cap), are_within(largest, cap), sum);
    }
    __device__ __forceinline__ void weigh(float (&e)[1], float x, float& sum) const {
        float cells[1] = {x};
        weigh(e, cells, false, are_small(cells), sum);
    }
    template <int N>
    __device__ __forceinline__ void weigh(float (&e)[N], const float (&x)[N], bool are_half, bool are_small,
                                          float& sum) const {
        float z[N];  // times log₂ e
        if (are_half) {
#pragma unroll
            for (int i = 0; i < N; ++i) z[i] = x[i] * fmaf(x[i] * x[i], series(of_half, x[i] * x[i]), LOG2E);
        } else if (are_small) {
#pragma unroll
            for (int i = 0; i < N; ++i) z[i] = x[i] * fmaf(x[i] * x[i], series(a, x[i] * x[i]), LOG2E);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) z[i] = fmaf(quick_sigmoid<2>(x[i] * inverse), 2.0f * LOG2E * cap, -LOG2E * cap);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float power = power_of_two(z[i]);
            sum += power;
            e[i] = power * fmaf(z[i] * -of_square, z[i], 1.0f);
        }
    }

    // f(i, exp(z_i − offset), (z_i / cap)²). With a cap both are small, and z log₂ e − offset log₂ e is one instruction; else the
    // difference comes first: it is exact where z is the maximum, however large.
    template <int N, class F>
    __device__ __forceinline__ void for_each_power(const float (&x)[N], float offset, F f) const {
        float by = offset * LOG2E;
        if constexpr (!CAPPED) {
#pragma unroll
            for (int i = 0; i < N; ++i) f(i, power_of_two((x[i] - offset) * LOG2E), 0.0f);
        } else if (are_small(x)) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                float w = x[i] * x[i], ratio = fmaf(w, series(a, w), LOG2E);
                f(i, power_of_two(fmaf(x[i], ratio, -by)), ratio * ratio * (w * of_square));
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                float z = tangent(x[i]), t = z * inverse;
                f(i, power_of_two(fmaf(z, LOG2E, -by)), t * t);
            }
        }
    }
};
// ANCHOR_END: cap

// Σ exp(z − offset) of what this thread has seen. Without a cap `offset` is the maximum so far. It begins at the
// lowest finite number: −∞, a mask, adds nothing then, where exp(−∞ − (−∞)) would be NaN.
template <class T, bool CAPPED> struct Powers {
    const Cap<T, CAPPED>& cap;
    float offset, sum = 0;
    __device__ __forceinline__ explicit Powers(const Cap<T, CAPPED>& cap) : cap(cap), offset(CAPPED ? cap.cap : LOWEST) {}

    template <int N> __device__ __forceinline__ void take(const float (&x)[N]) {
        if constexpr (!CAPPED) {
            float largest = offset;
#pragma unroll
            for (int i = 0; i < N; ++i) largest = fmaxf(largest, x[i]);
            if (largest != offset) sum *= power_of_two((offset - largest) * LOG2E), offset = largest;
        }
        cap.for_each_power(x, offset, [&](int, float power, float) { sum += power; });
    }

    // lse, in every thread.
    template <int THREADS> __device__ __forceinline__ float over_block() {
        if constexpr (!CAPPED) {
            float own = offset;
            offset = block_reduce<THREADS>(offset, Max{}, LOWEST);
            sum *= power_of_two((own - offset) * LOG2E);
        }
        return offset + logf(block_reduce<THREADS>(sum, Add{}, 0.0f));
    }
};

__device__ __forceinline__ bool is_counted(int target, int vocabulary) {
    return target >= 0 && target < vocabulary;
}

// What a row's gradient is made of: from logits of columns c, c + 1, … to the gradient of these.
template <class T, bool CAPPED> struct Gradient {
    const Cap<T, CAPPED>& cap;
    float lse, of_power, scale;
    int target;
    template <int N> __device__ __forceinline__ void replace(float (&x)[N], int c) const {
        float own[N];
        cap.for_each_power(x, lse, [&](int i, float power, float square) {
            own[i] = power * fmaf(-of_power, square, of_power);
        });
        if (unsigned(target - c) < N)
            cap.for_each_power(x, lse, [&](int i, float, float square) {
                if (c + i == target) own[i] -= scale * (1.0f - square);
            });
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = scale != 0 ? own[i] : 0.0f;  // ignored, whatever its logits are
    }
};

// Where a row's logits lie: whole packs, N columns each, then fewer than N single ones, and padding.
template <int THREADS, int N> struct Columns {
    int packs;
    __device__ __forceinline__ explicit Columns(int vocabulary) : packs(vocabulary / N) {}
    __device__ __forceinline__ static int pack(int p) { return p * THREADS + threadIdx.x; }
    __device__ __forceinline__ int single() const { return packs * N + threadIdx.x; }
    // The thread of a column.
    __device__ __forceinline__ int owner(int c) const { return (c < packs * N ? c / N : c - packs * N) % THREADS; }
};

}  // namespace lab
