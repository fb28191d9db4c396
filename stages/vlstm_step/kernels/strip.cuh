// A strip of C: as many neighbouring columns as 16 bytes hold, of some of the rows. What a thread has of the
// state.
#pragma once
#include "lab/pack.cuh"
#include "lab/reduce.cuh"
#include "step.cuh"

namespace lab {

constexpr int MOST_KEYS = 512;  // dhqk at most

// What a row of C needs of its key.
struct Key {
    float q, k;  // s q_r, written k_r
};

// ANCHOR: shares
// How the rows of C are shared out. The sum over them goes in one order, however many threads share it, so that a
// head's h has the same bits in every batch: RUN neighbouring rows are a run, neighbouring runs a group, and the
// groups make h. A thread has whole runs.
constexpr int RUN = 8, RUNS = MOST_KEYS / RUN, GROUPS = 8;

__device__ __forceinline__ int runs_of_group(int dhqk) { return (dhqk / RUN + GROUPS - 1) / GROUPS; }
// ANCHOR_END: shares

// ANCHOR: strip
// Some runs, STRIDE of them apart. All rows of a run are asked for at once, and those of the next as the registers of this
// one become free: a thread need not wait for memory once for each row.
template <class State, int STRIDE> struct Strip {
    static constexpr int N = Pack<State>::N, STEP = STRIDE * RUN;
    State* at;
    int runs, dhhv;
    Raw<State> coming[RUN];

    // `at` is its first element; no runs are a strip of nothing.
    __device__ __forceinline__ Strip(State* at, int runs, int dhhv) : at(at), runs(runs), dhhv(dhhv) {
        if (runs <= 0) return;
#pragma unroll
        for (int p = 0; p < RUN; ++p) coming[p] = load_raw(at + p * dhhv);
    }

    // `key` of the first row; end_run(of_run) behind each run, with its Σ_r s q_r C'_rc.
    template <class Weights, class EndRun>
    __device__ __forceinline__ void update(const Weights& w, const Key* key, const float (&v)[N], EndRun end_run) {
        for (; runs > 0; --runs, at += STEP * dhhv, key += STEP) {
            float of_run[N] = {};
#pragma unroll
            for (int p = 0; p < RUN; ++p) {
                Pack<State> cells = in_math(coming[p]);
                if (runs > 1) coming[p] = load_raw(at + (p + STEP) * dhhv);
#pragma unroll
                for (int e = 0; e < N; ++e) {
                    cells.v[e] = fmaf(key[p].k, v[e], w.keep(cells.v[e]));
                    of_run[e] = fmaf(key[p].q, cells.v[e], of_run[e]);
                }
                store_pack(at + p * dhhv, cells);
            }
            end_run(of_run);
        }
    }
};
// ANCHOR_END: strip

// The N values from column c on, zeros where there are none: in one load where T is as wide as the state.
template <int N, class T>
__device__ __forceinline__ void load_values(float (&values)[N], const T* v, int c, bool inside) {
    if constexpr (Pack<T>::N == N) {
        Pack<T> pack = inside ? load_pack(v + c) : Pack<T>{};
#pragma unroll
        for (int e = 0; e < N; ++e) values[e] = pack.v[e];
    } else {
#pragma unroll
        for (int e = 0; e < N; ++e) values[e] = inside ? to_math(v[c + e]) : 0.0f;
    }
}

// ANCHOR: sums
// The sums of runs on their way to h, of N columns from `own` on of a block's COLUMNS. In shared memory lie PARTS of them: each
// run's, or, where a thread has all of a group, each group's.
template <int PARTS, int COLUMNS, int N> struct Sums {
    static_assert(PARTS == RUNS || PARTS == GROUPS, "a sum for each run, or for each group");
    using Row = float4[COLUMNS / 4];
    Row* part;
    int at, own;  // this thread's next part, its first column
    float of_group[N] = {};

    __device__ __forceinline__ Sums(Row* part, int at, int own) : part(part), at(at), own(own) {}
    __device__ __forceinline__ void put(const float (&sum)[N]) {
#pragma unroll
        for (int e = 0; e < N; e += 4) part[at][(own + e) / 4] = {sum[e], sum[e + 1], sum[e + 2], sum[e + 3]};
    }
    // Its next run is `stride` further on.
    __device__ __forceinline__ void end_run(const float (&of_run)[N], int stride) {
        if constexpr (PARTS == RUNS) {
            put(of_run);
            at += stride;
        } else {
#pragma unroll
            for (int e = 0; e < N; ++e) of_group[e] += of_run[e];
        }
    }
    __device__ __forceinline__ void end() {
        if constexpr (PARTS == GROUPS) put(of_group);
    }
    // Of a column, behind a barrier.
    __device__ __forceinline__ float total(int c, int dhqk) const {
        auto cell = [&](int i) { return reinterpret_cast<const float*>(part[i])[c]; };
        int in_group = runs_of_group(dhqk);
        float all = 0;
        for (int group = 0; group < GROUPS; ++group) {
            float sum = PARTS == GROUPS ? cell(group) : 0.0f;
            if constexpr (PARTS == RUNS) {
                int first = group * in_group;
                for (int i = first; i < min(first + in_group, dhqk / RUN); ++i) sum += cell(i);
            }
            all += sum;
        }
        return all;
    }
};
// ANCHOR_END: sums

}  // namespace lab
