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
// head's h has the same bits in every batch: of RUNS runs of neighbouring rows each is added up; eight neighbouring
// runs make a group; the groups make h. A thread has whole runs.
constexpr int RUNS = 64, GROUPS = 8;

__device__ __forceinline__ int rows_of_run(int dhqk) { return (dhqk + RUNS - 1) / RUNS; }
// ANCHOR_END: shares

// ANCHOR: strip
// Rows from first to last; AHEAD of them are on their way at any time, so that a thread need not wait for memory
// once for each.
template <class State, int AHEAD> struct Strip {
    static constexpr int N = Pack<State>::N;
    State* C;  // in row 0
    int first, last, dhhv;
    Raw<State> coming[AHEAD];

    __device__ __forceinline__ Strip(State* C, int first, int last, int dhhv)
        : C(C), first(first), last(last), dhhv(dhhv) {
#pragma unroll
        for (int p = 0; p < AHEAD; ++p) fetch(p, first + p);
    }
    __device__ __forceinline__ void fetch(int p, int r) {
        if (r < last) coming[p] = load_raw(C + r * dhhv);
    }

    // end_run(of_run) after every `run` rows and after the last, with Σ_r s q_r C'_rc of those rows.
    template <class EndRun>
    __device__ __forceinline__ void update(const Weights& w, const Key* key, const float (&v)[N], int run,
                                           EndRun end_run) {
        float of_run[N] = {};
        int left = run;
        for (int r0 = first; r0 < last; r0 += AHEAD) {
#pragma unroll
            for (int p = 0; p < AHEAD; ++p) {
                if (r0 + p >= last) break;
                Pack<State> cells = in_math(coming[p]);
                fetch(p, r0 + p + AHEAD);
                Key of_row = key[r0 + p];
#pragma unroll
                for (int e = 0; e < N; ++e) {
                    cells.v[e] = w.keep(cells.v[e]) + of_row.k * v[e];
                    of_run[e] += of_row.q * cells.v[e];
                }
                store_pack(C + (r0 + p) * dhhv, cells);
                if (--left == 0 || r0 + p + 1 == last) {
                    end_run(of_run);
                    left = run;
#pragma unroll
                    for (int e = 0; e < N; ++e) of_run[e] = 0;
                }
            }
        }
    }
};
// ANCHOR_END: strip

// The N values from column c on, zeros where there are none.
template <int N, class T>
__device__ __forceinline__ void load_values(float (&values)[N], const T* v, int c, bool inside) {
#pragma unroll
    for (int e = 0; e < N; ++e) values[e] = inside ? to_math(v[c + e]) : 0.0f;
}

// ANCHOR: sums
// The sums of runs on their way to h, of N columns from `own` of a block's COLUMNS. PARTS of them lie in shared memory: each
// run's, or, where a thread has all of a group, each group's.
template <int PARTS, int COLUMNS, int N> struct Sums {
    static_assert(PARTS == RUNS || PARTS == GROUPS, "a sum for each run, or for each group");
    float (*part)[COLUMNS];
    int at, own;  // this thread's first part, its first column
    float of_group[N] = {};

    __device__ __forceinline__ Sums(float (*part)[COLUMNS], int at, int own) : part(part), at(at), own(own) {}
    __device__ __forceinline__ void put(const float (&sum)[N]) {
#pragma unroll
        for (int e = 0; e < N; ++e) part[at][own + e] = sum[e];
        ++at;
    }
    __device__ __forceinline__ void end_run(const float (&of_run)[N]) {
        if constexpr (PARTS == RUNS) return put(of_run);
#pragma unroll
        for (int e = 0; e < N; ++e) of_group[e] += of_run[e];
    }
    __device__ __forceinline__ void end() {
        if constexpr (PARTS == GROUPS) put(of_group);
    }
    // Of a column, behind a barrier; `runs` have rows.
    __device__ __forceinline__ float total(int c, int runs) const {
        float all = 0;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            float sum = PARTS == GROUPS ? part[group][c] : 0.0f;
            if constexpr (PARTS == RUNS) {
#pragma unroll
                for (int i = group * (RUNS / GROUPS); i < (group + 1) * (RUNS / GROUPS); ++i)
                    if (i < runs) sum += part[i][c];
            }
            all += sum;
        }
        return all;
    }
};
// ANCHOR_END: sums

}  // namespace lab
