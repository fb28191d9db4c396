// A step of the sLSTM a launch, a thread for each unit of each row.
//
//   a_t = wx_t + R h_{t−1} + b        gates in the order i, f, z, o; R of the unit's own head; then as in slstm.cuh
//
// and back through time, from dy_t and what comes from the step after:
//
//   dh_t = dy_t + Rᵀ da_{t+1}         at the last step dhn in place of the product
//
// Work split: a thread has unit j of head n of row b, all four gates of it, and its memory. What it needs of other threads
// is h_{t−1}, or da_{t+1}, of its head: the launch before has left that in y, or in dwx. Weights come from device memory,
// all of them at every step.
//
// wx, dwx: T x B x 4 x NH x DH; r: 4 x NH x DH x DH; b: 4 x NH x DH; y, dy: T x B x NH x DH; kept: T x B x KEPT x NH x DH;
// all others B x NH x DH. A grid of B NH DH / 128 blocks, rounded up.
#include "slstm.cuh"

using namespace lab;

constexpr int THREADS = 128;

// Unit `at` of all, which is unit `column` of its row and unit j of its head, whose first one is `head`.
struct Unit {
    long long at;
    int row, column, j, head;
    bool inside;

    __device__ __forceinline__ Unit(int B, int H, int DH) {
        at = blockIdx.x * 1ll * THREADS + threadIdx.x;
        row = at / H, column = at % H, j = column % DH, head = column - j, inside = at < B * 1ll * H;
    }
};

// The launch of step t; with `keep` it leaves what the way back needs. The memory goes from launch to launch in cn, nn and mn.
template <class T>
__global__ void __launch_bounds__(THREADS)
    slstm_cell(const T* __restrict__ wx, const T* __restrict__ r, const T* __restrict__ b, const T* __restrict__ h0,
               const float* __restrict__ c0, const float* __restrict__ n0, const float* __restrict__ m0, T* y,
               float* __restrict__ kept, float* __restrict__ first, T* __restrict__ hn, float* __restrict__ cn,
               float* __restrict__ nn, float* __restrict__ mn, int t, int count, int B, int NH, int DH,
               int keep) {
    int H = NH * DH;
    Unit unit(B, H, DH);
    if (!unit.inside) return;
    long long at = unit.at, step = t * 1ll * B * H, row = t * 1ll * B + unit.row;

    // ANCHOR: forward
    const T* h = (t == 0 ? h0 : y + step - B * 1ll * H) + unit.row * 1ll * H + unit.head;
    float a[GATES];
    for (int gate = 0; gate < GATES; ++gate) {
        const T* weights = r + (gate * 1ll * H + unit.column) * DH;
        float sum = 0;
        for (int k = 0; k < DH; ++k) sum += to_math(weights[k]) * to_math(h[k]);
        a[gate] = sum + to_math(wx[(row * GATES + gate) * H + unit.column]) + to_math(b[gate * H + unit.column]);
    }
    Memory memory = t == 0 ? Memory{c0[at], n0[at], m0[at]} : Memory{cn[at], nn[at], mn[at]};
    Saved of;
    float f_of_n = slstm_step(a, memory, of);
    T h_t = from_math<T>(of.o * of.u);
    // ANCHOR_END: forward

    y[step + at] = h_t;
    cn[at] = memory.c, nn[at] = memory.n, mn[at] = memory.m;
    if (keep) store_saved(kept + row * KEPT * H + unit.column, of, H);
    if (keep && t == 0) first[at] = f_of_n;
    if (t == count - 1) hn[at] = h_t;
}

// Σ da r of the gates of a head, for its unit j: what a step hands back to the h before it.
template <class T>
__device__ __forceinline__ float through_weights(const T* da, const T* __restrict__ r, Unit unit, int H, int DH) {
    float sum = 0;
    for (int gate = 0; gate < GATES; ++gate)
        for (int k = 0; k < DH; ++k) {
            long long from = gate * 1ll * H + unit.head + k;
            sum += to_math(da[from]) * to_math(r[from * DH + unit.j]);
        }
    return sum;
}

// The launch of step t, after those of all later ones. U and N go from launch to launch in dc0 and dn0, (1 − p) times what
// they are; the launch of step 0 leaves the gradients themselves.
template <class T>
__global__ void __launch_bounds__(THREADS)
    slstm_cell_back(const T* __restrict__ dy, const T* __restrict__ r, const float* __restrict__ c0,
                    const float* __restrict__ n0, const T* __restrict__ dhn, const float* __restrict__ dcn,
                    const float* __restrict__ dnn, const float* __restrict__ nn, const float* __restrict__ kept,
                    const float* __restrict__ first, T* dwx, float* __restrict__ dc0, float* __restrict__ dn0, int t,
                    int count, int B, int NH, int DH) {
    int H = NH * DH;
    Unit unit(B, H, DH);
    if (!unit.inside) return;
    long long at = unit.at, row = t * 1ll * B + unit.row;

    // ANCHOR: backward
    bool last = t == count - 1;
    float dh = to_math(dy[t * 1ll * B * H + at]);
    dh += last ? to_math(dhn[at]) : through_weights(dwx + (row + B) * GATES * H, r, unit, H, DH);
    float U = last ? dcn[at] * nn[at] : dc0[at], N = last ? dnn[at] * nn[at] : dn0[at];

    Saved of = load_saved(kept + row * KEPT * H + unit.column, H);
    float u_before = t == 0 ? Memory{c0[at], n0[at], 0}.mean()
                            : load_saved(kept + (row - B) * KEPT * H + unit.column, H).u;
    float da[GATES];
    slstm_step_back(da, of, u_before, dh, U, N);
    float keeps = t == 0 ? first[at] : 1 - of.p;
    // ANCHOR_END: backward
    dc0[at] = keeps * U, dn0[at] = keeps * N;
    for (int gate = 0; gate < GATES; ++gate) dwx[(row * GATES + gate) * H + unit.column] = from_math<T>(da[gate]);
}

// What the first step leaves for h0.
template <class T>
__global__ void __launch_bounds__(THREADS)
    slstm_cell_first(const T* __restrict__ r, const T* __restrict__ dwx, T* __restrict__ dh0, int B, int NH, int DH) {
    int H = NH * DH;
    Unit unit(B, H, DH);
    if (!unit.inside) return;
    const T* da = dwx + unit.row * 1ll * GATES * H;
    dh0[unit.at] = from_math<T>(through_weights(da, r, unit, H, DH));
}
