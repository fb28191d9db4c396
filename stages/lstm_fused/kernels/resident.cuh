// Weights that stay with their threads from step to step: in registers, in shared memory, and what
// finds no place there in device memory.
//
// A thread has those of four sums over a part of their inputs, which all threads read from shared
// memory: an input that is fetched into a register serves four products. LANES neighbours have the parts of
// the same four sums, in turns of four inputs, so that they fetch 16 bytes each from one line.
#pragma once
#include "lab/pack.cuh"

namespace lab {

// Four neighbours, 16 bytes at a time.
template <class M> __device__ __forceinline__ void load_four(M (&to)[4], const M* from) {
    constexpr int N = Pack<M>::N;
#pragma unroll
    for (int i = 0; i < 4; i += N) {
        Pack<M> pack = load_pack(from + i);
#pragma unroll
        for (int p = 0; p < N; ++p) to[i + p] = pack.v[p];
    }
}

// Four neighbours, of which `left` are there; the others are zero. At once where they lie so.
template <class T>
__device__ __forceinline__ void load_at_most_four(math_t<T> (&to)[4], const T* from, int left) {
    struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Four {
        T v[4];
    };
    if (left >= 4 && reinterpret_cast<size_t>(from) % alignof(Four) == 0) {
        Four four = *reinterpret_cast<const Four*>(from);
#pragma unroll
        for (int e = 0; e < 4; ++e) to[e] = to_math(four.v[e]);
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) to[e] = e < left ? to_math(from[e]) : math_t<T>(0);
}

// Bytes for NUMBERS numbers, and for the weights that THREADS threads have in shared memory: of four sums and
// IN_SHARED inputs each.
template <class T, int THREADS, int IN_SHARED, int NUMBERS>
constexpr int BYTES_WITH_WEIGHTS = (NUMBERS + 4 * IN_SHARED * THREADS) * int(sizeof(math_t<T>));

// ANCHOR: weights
// The weights of a thread, of THREADS in its block: of four sums and DEPTH inputs each, of which
// `of(w, k)` gives inputs k to k + 3: w[n][e] for sum n and input k + e. Input k is number k % 4 of
// the thread's four of turn k / 4.
template <class M, int THREADS, int DEPTH, int KEPT, int IN_SHARED, class Of> struct Weights {
    static constexpr int RESIDENT = KEPT + IN_SHARED;
    static_assert(DEPTH % 4 == 0 && KEPT % 4 == 0 && IN_SHARED % 4 == 0, "inputs come in fours");
    static_assert(KEPT > 0 && RESIDENT <= DEPTH, "some in registers, and no more than there are");
    M kept[KEPT / 4][4][4];
    M* shared;  // 16 weights of a turn at THREADS apart: neighbouring threads read neighbours
    Of of;

    __device__ __forceinline__ Weights(M* memory, Of of) : shared(memory + threadIdx.x), of(of) {
#pragma unroll
        for (int k = 0; k < KEPT; k += 4) of(kept[k / 4], k);
        for (int k = 0; k < IN_SHARED; k += 4) {
            M w[4][4];
            of(w, KEPT + k);
#pragma unroll
            for (int i = 0; i < 16; ++i) shared[(4 * k + i) * THREADS] = w[i / 4][i % 4];
        }
    }

    // sum_rn = Σ_k w_nk v_rk: this thread's part, of each row. The rows of v lie STRIDE apart, and v
    // points to this thread's first four.
    template <int STRIDE, int LANES, int ROWS>
    __device__ __forceinline__ void sums(M (&sum)[ROWS][4], const M* v) const {
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int n = 0; n < 4; ++n) sum[r][n] = 0;
#pragma unroll
        for (int k = 0; k < KEPT; k += 4) add<STRIDE>(sum, kept[k / 4], v + k * LANES);
#pragma unroll 1
        for (int k = 0; k < IN_SHARED; k += 4) {
            M w[4][4];
#pragma unroll
            for (int i = 0; i < 16; ++i) w[i / 4][i % 4] = shared[(4 * k + i) * THREADS];
            add<STRIDE>(sum, w, v + (KEPT + k) * LANES);
        }
#pragma unroll 1
        for (int k = RESIDENT; k < DEPTH; k += 4) {
            M w[4][4];
            of(w, k);
            add<STRIDE>(sum, w, v + k * LANES);
        }
    }

    template <int STRIDE, int ROWS>
    __device__ __forceinline__ static void add(M (&sum)[ROWS][4], const M (&w)[4][4], const M* v) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            M v_k[4];
            load_four(v_k, v + r * STRIDE);
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int n = 0; n < 4; ++n) sum[r][n] += w[n][e] * v_k[e];
        }
    }
};

template <class M, int THREADS, int DEPTH, int KEPT, int IN_SHARED, class Of>
__device__ __forceinline__ Weights<M, THREADS, DEPTH, KEPT, IN_SHARED, Of> resident(M* memory, Of of) {
    return {memory, of};
}
// ANCHOR_END: weights

// ANCHOR: one_of_four
// The whole of a sum, of four that LANES neighbours have parts of: lane l gets that of number
// l / (LANES / 4). First each hands over what it will not need.
template <int LANES, class M> __device__ __forceinline__ M one_of_four(const M (&sum)[4]) {
    bool high = threadIdx.x & LANES / 2, odd = threadIdx.x & LANES / 4;
    M a = high ? sum[2] : sum[0], b = high ? sum[3] : sum[1];
    a += __shfl_xor_sync(0xffffffffu, high ? sum[0] : sum[2], LANES / 2);
    b += __shfl_xor_sync(0xffffffffu, high ? sum[1] : sum[3], LANES / 2);
    M own = odd ? b : a;
    own += __shfl_xor_sync(0xffffffffu, odd ? a : b, LANES / 4);
#pragma unroll
    for (int d = LANES / 8; d > 0; d /= 2) own += __shfl_xor_sync(0xffffffffu, own, d);
    return own;
}
// ANCHOR_END: one_of_four

// Of a gate's row of weight_hh: the four sums are the gates of a unit, the inputs units. `lane` of
// LANES has every LANES-th four.
template <class T, int LANES> struct ByGates {
    const T* of_unit;  // row j of the first gate
    int lane, H;       // H is 0 of a unit that is none

    __device__ __forceinline__ void operator()(math_t<T> (&w)[4][4], int k) const {
        int column = k * LANES + 4 * lane;
#pragma unroll
        for (int g = 0; g < 4; ++g)
            load_at_most_four(w[g], of_unit + g * 1ll * H * H + column, H - column);
    }
};

// Of weight_hh by columns: the four sums are units from `column` on, the inputs da of UNITS units from
// `first` on, gate by gate.
template <class T, int LANES, int UNITS> struct ByColumns {
    const T* weight_hh;
    int lane, H, column, first;

    __device__ __forceinline__ void operator()(math_t<T> (&w)[4][4], int k) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            int n = k * LANES + 4 * lane + e, unit = first + n % UNITS;
            long long row = n / UNITS * 1ll * H + unit;
            math_t<T> of_row[4];
            load_at_most_four(of_row, weight_hh + row * H + column, unit < H ? H - column : 0);
#pragma unroll
            for (int s = 0; s < 4; ++s) w[s][e] = of_row[s];
        }
    }
};

}  // namespace lab
