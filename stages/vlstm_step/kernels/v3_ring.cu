// As v2_slices.cu with slices of 32 lanes, but the rows come into shared memory and go from there by bulk copies
// (TMA): what is under way takes no registers, and a thread that waits holds up no load.
//
// Work split: a block a slice of a head, a warp a group of its runs. Each warp has a ring of PLACES places, each with
// room for a run, and goes round alone: waits for a run, updates it where it lies, sends it back, and asks for the next
// one into the place from which the run before has been read.
//
// q, k: heads x dhqk; v, h: heads x dhhv; i_gate, f_gate, m: heads; C: heads x dhqk x dhhv; n: heads x dhqk;
// tickets: heads, zero before the first launch and after each.
#include "keys.cuh"
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

using Place = uint4[RUN][32];  // a run: 16 bytes of a row for each lane

#ifdef LAB_CLUSTERS
// ANCHOR: ring
template <class State, int PLACES> struct WarpRing {
    static constexpr int N = Pack<State>::N;
    Place* place;    // shared memory, PLACES of them
    Mbarrier* full;  // likewise
    State* C;        // the slice's part of this warp's first row
    int runs, dhhv, bytes;  // bytes of the slice's part of a row
    int lane = threadIdx.x % 32;

    __device__ __forceinline__ void begin() {
        if (lane == 0) {
            for (int p = 0; p < PLACES; ++p) mbarrier_init(full + p, 1);
            mbarrier_fence_init();
        }
        for (int i = 0; i < PLACES; ++i) ask(i);
    }
    // For run i, into its place; a lane for each row.
    __device__ __forceinline__ void ask(int i) {
        if (i >= runs) return;
        int p = i % PLACES;
        if (lane == 0) mbarrier_arrive_expect(full + p, RUN * bytes);
        __syncwarp();  // the barrier is there, and the bytes are expected before they come
        if (lane < RUN) bulk_load(place[p][lane], row(i), bytes, full + p);
    }
    // This lane's row of run i.
    __device__ __forceinline__ State* row(int i) const { return C + (i * RUN + lane) * dhhv; }

    template <class Weights, class EndRun>
    __device__ __forceinline__ void update(const Weights& w, const Key* key, const float (&v)[N], EndRun end_run) {
        for (int i = 0; i < runs; ++i, key += RUN) {
            int here = i % PLACES;
            mbarrier_wait(full + here, i / PLACES % 2);
            float of_run[N] = {};
            if (lane * 16 < bytes) {
#pragma unroll
                for (int r = 0; r < RUN; ++r) {
                    State* cell = reinterpret_cast<State*>(&place[here][r][lane]);
                    Pack<State> cells = load_pack(cell);
#pragma unroll
                    for (int e = 0; e < N; ++e) {
                        cells.v[e] = fmaf(key[r].k, v[e], w.keep(cells.v[e]));
                        of_run[e] = fmaf(key[r].q, cells.v[e], of_run[e]);
                    }
                    store_pack(cell, cells);
                }
            }
            fence_proxy_async_shared();  // the copy reads what was written by plain stores
            __syncwarp();                // all lanes have written
            if (lane < RUN) {
                bulk_store(row(i), place[here][lane], bytes);
                bulk_commit();
                bulk_wait_read<1>();  // the run before has been read: this lane's row of its place is free
            }
            if (i > 0) ask(i - 1 + PLACES);
            end_run(of_run);
        }
        bulk_wait<0>();  // the block's shared memory is read until then
    }
};
// ANCHOR_END: ring
#endif

template <class T, class State, int THREADS, int PLACES>
constexpr int vlstm_step_ring_shared = THREADS / 32 * PLACES * sizeof(Place);

template <class T, class State, int THREADS, int PLACES>
__global__ void __launch_bounds__(THREADS, 2)
    vlstm_step_ring(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                    const float* __restrict__ i_gate, const float* __restrict__ f_gate, State* C,
                    float* n, float* m, T* __restrict__ h, unsigned* tickets, int dhqk, int dhhv,
                    int slices, float scale, float eps) {
#ifdef LAB_CLUSTERS
    constexpr int N = Pack<State>::N, COLUMNS = 32 * N;
    static_assert(THREADS == 32 * GROUPS, "a warp for each group of runs");
    DYNAMIC_SHARED(Place, places);
    __shared__ Mbarrier full[GROUPS][PLACES];
    __shared__ Key key[MOST_KEYS];
    __shared__ float4 part[GROUPS][COLUMNS / 4];
    __shared__ bool last;
    int thread = threadIdx.x, warp = thread / 32, own = thread % 32 * N;
    long long head = blockIdx.x / slices;
    int c0 = blockIdx.x % slices * COLUMNS;
    q += head * dhqk, k += head * dhqk, n += head * dhqk;
    v += head * dhhv, h += head * dhhv, C += head * dhqk * dhhv;

    int own_runs = runs_of_group(dhqk), first = warp * own_runs, runs = min(own_runs, dhqk / RUN - first);
    int bytes = min(COLUMNS, dhhv - c0) * static_cast<int>(sizeof(State));
    WarpRing<State, PLACES> ring{places + warp * PLACES, full[warp], C + first * RUN * dhhv + c0, runs, dhhv, bytes};
    ring.begin();
    float values[N];
    load_values(values, v, c0 + own, c0 + own < dhhv);

    StepWeights w(i_gate, f_gate, m, head);
    float l = read_keys<THREADS>(key, w, q, k, n, dhqk, scale);
    if (thread == 0) last = last_to_come(tickets + head, slices);

    Sums<GROUPS, COLUMNS, N> sums(part, warp, own);
    ring.update(w, key + first * RUN, values, [&](const float (&of_run)[N]) { sums.end_run(of_run, 1); });
    sums.end();
    __syncthreads();  // all sums are there, and `last`
    if (thread < COLUMNS && c0 + thread < dhhv)
        h[c0 + thread] = from_math<T>(normalised(sums.total(thread, dhqk), l, w.m, eps));

    if (!last) return;
    if (thread == 0) m[head] = w.m;
    write_keys<THREADS>(n, w, key, dhqk);
#endif
}
