// The forward pass, as vlstm_fw_v4:v1_roles, which also leaves the state at anchors, as its accumulators lie: before
// each chunk whose number is a multiple of ANCHOR_CHUNKS, but for the first.
//
// Work split: a block walks a head, for 64 GROUPS columns of V (lab/vlstm/roles.cuh).
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/roles.cuh"
#include "weights.cuh"

using namespace lab;

template <class T, int KEY, int GROUPS, int PLACES>
constexpr int vlstm_forward_anchored_shared = sizeof(Shared<T, KEY, GROUPS, PLACES>);

// saved [head][anchor][64 columns of V], each State::SAVED words.
template <class T, int KEY, int GROUPS, int PLACES>
__global__ void __launch_bounds__((GROUPS + 2) * 128, 1)
    vlstm_forward_anchored(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                           const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap h,
                           const float* __restrict__ i, const float* __restrict__ f, float* __restrict__ m,
                           float* __restrict__ n, unsigned* __restrict__ saved, int S, int dhhv, int anchors,
                           float log2_scale, float eps) {
    DYNAMIC_TILES(unsigned char, memory);
    __shared__ Ring<PLACES> chunks;
    __shared__ Ring<2> weights;
    __shared__ Before before[SCANNERS];
    int slices = (dhhv + GROUPS * PANEL - 1) / (GROUPS * PANEL), head = blockIdx.x / slices;
    int group = threadIdx.x / 128, value = blockIdx.x % slices * GROUPS * PANEL;
    long long row = 1ll * head * S;
    Walk<T, KEY, GROUPS, PLACES> walk{
        *reinterpret_cast<Shared<T, KEY, GROUPS, PLACES>*>(memory), chunks, weights, head, value, 0, S, S};
    if (threadIdx.x == 0) {
        walk.init();
        before[0] = {LOWEST, 0};
    }
    walk.template clear<(GROUPS + 2) * 128>();
    __syncthreads();  // nobody waits at a barrier that is not there, or multiplies by rows that are not zero yet

    if (group < GROUPS) {
        registers_increase<Registers<KEY, GROUPS>::STATE>();
        State<T, KEY> state;
        state.begin(nullptr, 0, 0, 0);
        walk.hold(state, h, group, [&](int first) {
            long long anchor = 1ll * head * anchors + first / STRETCH - 1;
            if (first % STRETCH == 0)
                state.save(saved + (anchor * slices * GROUPS + value / PANEL + group) * State<T, KEY>::SAVED);
        });
    } else if (group == GROUPS) {
        registers_decrease<Registers<KEY, GROUPS>::SCORES>();
        KeySum<T, KEY> sum;
        sum.begin(nullptr, 0);
        walk.make_scores(sum, eps, n + row, value == 0);
    } else {
        registers_decrease<Registers<KEY, GROUPS>::SCAN>();
        GateScan<SCANNERS> scan(i + row, f + row, 0, S, S, threadIdx.x / 32 % 4, before);
        walk.template bring<true>(scan, q, k, v, log2_scale, m + row, value == 0);
    }
}
