// As v1_packs.cu, with several blocks for a head where there are few.
//
// Work split: a block a slice of a head: LANES strips of each row, so 16 LANES bytes of it, and THREADS / LANES runs
// at a time. All rows of a column are in one block, so that h needs no other.
//
// Every block of a head needs all of n for l, and n is updated where it lies. So each reads n and takes a ticket;
// the one that finds all others gone by writes n' and m'. Each could: which block it is changes no bit.
//
// q, k: heads x dhqk; v, h: heads x dhhv; i_gate, f_gate, m: heads; C: heads x dhqk x dhhv; n: heads x dhqk;
// tickets: heads, zero before the first launch and after each.
//
// These are the vLSTM's gates and its normaliser. With others, as lab/vlstm/policy.cuh has them, the same kernel makes a step of its
// relatives: without n and m it asks for nothing of them and takes no ticket, and `sharing` heads may have one of q and k.
// Who is not `weighed` has no i_gate.
#include "keys.cuh"
#include "lab/ptx/grid_dependency.cuh"

using namespace lab;

template <class T, class State, int THREADS, int LANES, class GATES = Exponential, class NORMALIZER = MaxExp>
__global__ void __launch_bounds__(THREADS, 3)
    vlstm_step_slices(const T* q, const T* k, const T* v, const float* i_gate, const float* f_gate, State* C,
                      float* n, float* m, T* __restrict__ h, unsigned* tickets, int dhqk, int dhhv,
                      int slices, float scale, float eps, int sharing, bool weighed) {
    constexpr bool DIVIDES = NORMALIZER::DIVIDES;
    constexpr int N = Pack<State>::N, COLUMNS = LANES * N, ROWS = THREADS / LANES;
    // A group for a thread, or every ROWS-th run.
    constexpr bool GROUPED = ROWS == GROUPS;
    constexpr int STRIDE = GROUPED ? 1 : ROWS, PARTS = GROUPED ? GROUPS : RUNS;
    __shared__ Key key[MOST_KEYS];
    __shared__ float4 part[PARTS][COLUMNS / 4];
    __shared__ bool last;
    // Behind this a product may ask for its weights; the one before has made q, k, v and the gates.
    griddep_launch_dependents();
    griddep_wait();
    int thread = threadIdx.x;
    long long head = blockIdx.x / slices;
    int c0 = blockIdx.x % slices * COLUMNS, own = thread % LANES * N, c = c0 + own;
    long long of_keys = GATES::STABILISED ? head : static_cast<int>(head) / sharing;
    q += of_keys * dhqk, k += of_keys * dhqk, n += head * dhqk;
    v += head * dhhv, h += head * dhhv, C += head * dhqk * dhhv;

    // On its way while the gates and n are read.
    bool inside = c < dhhv;
    int y = thread / LANES, own_runs = runs_of_group(dhqk), first = GROUPED ? y * own_runs : y;
    int behind = dhqk / RUN - first, runs = GROUPED ? min(own_runs, behind) : (behind + ROWS - 1) / ROWS;
    Strip<State, STRIDE> strip(C + first * RUN * dhhv + c, inside ? runs : 0, dhhv);
    float values[N];
    load_values(values, v, c, inside);

    StepWeights<GATES> w(GATES::MAY_BE_ONE && !weighed ? nullptr : i_gate, f_gate, m, head);
    float l = read_keys<THREADS, NORMALIZER>(key, w, q, k, n, dhqk, scale);
    if (DIVIDES && thread == 0) last = last_to_come(tickets + head, slices);

    Sums<PARTS, COLUMNS, N> sums(part, y, own);
    strip.update(w, key + first * RUN, values, [&](const float (&of_run)[N]) { sums.end_run(of_run, STRIDE); });
    sums.end();
    __syncthreads();  // all sums are there, and `last`
    if (thread < COLUMNS && c0 + thread < dhhv)
        h[c0 + thread] = from_math<T>(normalised<NORMALIZER>(sums.total(thread, dhqk), l, w.m, eps));

    if (!DIVIDES || !last) return;
    if (GATES::STABILISED && thread == 0) m[head] = w.m;
    write_keys<THREADS>(n, w, key, dhqk);
}
