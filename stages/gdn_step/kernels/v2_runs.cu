// As v1_once.cu, but nothing that is read waits for anything else that is read, and a thread has more rows of fewer threads.
//
// Work split: a block has a slice of a head's columns, LANES threads beside each other in a row, 16 bytes each, and each of them a
// run of RUN neighbouring rows: their keys and queries are a load or two. The lanes of a warp that have the same columns share out
// what they add up: each gives half of its sums away for the other half of its neighbour's. What is kept of C is multiplied into
// the sums, not into what is summed.
//
// q, k: heads / group x dhqk; v, h: heads x dhhv; g, beta: heads; C: heads x dhqk x dhhv. A grid of heads slices blocks, slices =
// ceil(dhhv / columns of a slice).
#include "lab/pack.cuh"
#include "step.cuh"

using namespace lab;

constexpr int RUN = 8;

// Neighbouring elements, by as few loads or stores as there may be.
template <class T, int COUNT> struct alignas(COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16) Few {
    T v[COUNT];
};
template <int COUNT, class T> __device__ __forceinline__ Few<T, COUNT> load_few(const T* from) {
    return *reinterpret_cast<const Few<T, COUNT>*>(from);
}

// As in_math, but by whole registers: a compiler that sees halves keeps each in a register of its own.
template <class State> __device__ __forceinline__ Pack<State> numbers(const Raw<State>& raw) {
    if constexpr (!is_bf16<State>) return in_math(raw);
    const unsigned words[4] = {raw.bytes.x, raw.bytes.y, raw.bytes.z, raw.bytes.w};
    Pack<State> pack;
#pragma unroll
    for (int i = 0; i < Pack<State>::N; ++i)
        pack.v[i] = __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    return pack;
}

// ANCHOR: share
// Of the first LEFT sums of a warp's lanes that are D apart each lane gets half, and of those that are 2 D apart half of that: the
// first ones of `sum`. Where they begin.
template <int D, int LEFT, int COUNT> __device__ __forceinline__ int share_sums(float (&sum)[COUNT]) {
    if constexpr (D == 32) return 0;
    else {
        constexpr int HALF = LEFT / 2;
        bool upper = threadIdx.x & D;
#pragma unroll
        for (int e = 0; e < HALF; ++e) {
            float given = upper ? sum[e] : sum[HALF + e], own = upper ? sum[HALF + e] : sum[e];
            sum[e] = own + __shfl_xor_sync(0xffffffffu, given, D);
        }
        return (upper ? HALF : 0) + share_sums<2 * D, HALF>(sum);
    }
}
// ANCHOR_END: share

// KEYS: the most that there may be. How many blocks fit: with 80 registers a thread, with 96 where 16 bytes are eight columns.
template <class T, class State, int KEYS, int LANES>
__global__ void __launch_bounds__(KEYS / RUN * LANES, 65536 / (sizeof(State) > 2 ? 80 : 96) / (KEYS / RUN * LANES))
    gdn_step_runs(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  const float* __restrict__ g, const float* __restrict__ beta, State* C, T* __restrict__ h, int dhqk,
                  int dhhv, int group, int slices, float scale) {
    constexpr int N = Pack<State>::N, COLUMNS = LANES * N, WARPS = KEYS / RUN * LANES / 32, HELD = 2 * N * LANES / 32;
    __shared__ __align__(16) float sums[WARPS][2][COLUMNS];
    __shared__ float k_q[WARPS];
    int lane = threadIdx.x % LANES, r0 = threadIdx.x / LANES * RUN, warp = threadIdx.x / 32;
    unsigned head = blockIdx.x / static_cast<unsigned>(slices), of_keys = head / static_cast<unsigned>(group);
    int c = static_cast<int>(blockIdx.x - head * slices) * COLUMNS + lane * N;
    long long own_keys = static_cast<long long>(of_keys) * dhqk + r0, own_values = static_cast<long long>(head) * dhhv + c;
    q += own_keys, k += own_keys, v += own_values, h += own_values;
    C += (static_cast<long long>(head) * dhqk + r0) * dhhv + c;
    bool has_column = c < dhhv, inside = has_column && r0 < dhqk;

    // ANCHOR: read
    // All that is asked for, before any of it is needed.
    float kept = g[head], replaced = beta[head], sum[2 * N] = {}, product = 0;
    Few<T, N> value = {};
    Few<T, RUN> key = {}, query = {};
    Raw<State> raw[RUN] = {};
    if (has_column) value = load_few<N>(v);
    if (inside) {
        key = load_few<RUN>(k), query = load_few<RUN>(q);
#pragma unroll
        for (int n = 0; n < RUN; ++n) raw[n] = load_raw(C + n * dhhv);
    }
    kept = expf(kept);
    if (kept == 0) {  // of ∞, too
#pragma unroll
        for (int n = 0; n < RUN; ++n) raw[n] = {};
    }
#pragma unroll
    for (int n = 0; n < RUN; ++n) {
        Pack<State> state = numbers(raw[n]);
        float of_k = to_math(key.v[n]), of_q = to_math(query.v[n]);
        product = fmaf(of_k, of_q, product);
#pragma unroll
        for (int e = 0; e < N; ++e) {
            sum[e] = fmaf(of_k, state.v[e], sum[e]);
            sum[N + e] = fmaf(of_q, state.v[e], sum[N + e]);
        }
    }
    // ANCHOR_END: read
    int first = share_sums<LANES, 2 * N>(sum);
#pragma unroll
    for (int d = LANES; d < 32; d *= 2) product += __shfl_xor_sync(0xffffffffu, product, d);
    constexpr int AT_ONCE = HELD < 4 ? HELD : 4;
#pragma unroll
    for (int e = 0; e < HELD; e += AT_ONCE) {
        Few<float, AT_ONCE> part;
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) part.v[j] = sum[e + j];
        int at = first + e;
        *reinterpret_cast<Few<float, AT_ONCE>*>(&sums[warp][at / N][lane * N + at % N]) = part;
    }
    if (threadIdx.x % 32 == 0) k_q[warp] = product;
    __syncthreads();  // the sums of all warps are there
    if (!has_column) return;
    // ANCHOR: write
    auto total = [&](int which, float (&all)[N]) {
#pragma unroll
        for (int e = 0; e < N; ++e) all[e] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
#pragma unroll
            for (int e = 0; e < N; e += 4) {
                Pack<float> part = load_pack(&sums[w][which][lane * N + e]);
#pragma unroll
                for (int j = 0; j < 4; ++j) all[e + j] += part.v[j];
            }
    };
    float written[N];
    total(0, written);
#pragma unroll
    for (int e = 0; e < N; ++e) written[e] = replaced * (to_math(value.v[e]) - kept * written[e]);
    if (inside) {
#pragma unroll
        for (int n = 0; n < RUN; ++n) {
            Pack<State> state = numbers(raw[n]);
            float of_k = to_math(key.v[n]);
#pragma unroll
            for (int e = 0; e < N; ++e) state.v[e] = fmaf(kept, state.v[e], of_k * written[e]);
            store_pack(C + n * dhhv, state);
        }
    }
    if (r0 > 0) return;
    float out[N], all = 0;
    total(1, out);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) all += k_q[w];
    Few<T, N> row;
#pragma unroll
    for (int e = 0; e < N; ++e) row.v[e] = from_math<T>(scale * fmaf(all, written[e], kept * out[e]));
    *reinterpret_cast<Few<T, N>*>(h) = row;
    // ANCHOR_END: write
}
