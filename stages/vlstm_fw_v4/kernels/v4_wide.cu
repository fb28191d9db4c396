// The vLSTM's forward pass with up to 256 keys. The equations are those of v1. With 256 keys 64 columns of a state take 128
// registers of each of 128 threads, and two such warpgroups leave 72 to a third: not enough to scan gates.
//
// Where a gradient through the normaliser will be asked for, slopes [head][S] are left, too. For a backward pass that makes all
// stretches at once (SAVES) so are the states that stretches begin with, as borders.cuh has them: C [head, stretch but the
// first, or, if a state is given, each].
//
// Work split: in a launch before, a block for each head scans its gates, a warp a chunk by turns, to a record for each chunk.
// Then a block walks a head, for 64 GROUPS columns of V. GROUPS warpgroups hold 64 columns of the state each, with all their keys;
// one more asks for tiles and records, and makes C̃ and n.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/borders.cuh"
#include "wide.cuh"

using namespace lab;

constexpr int GATE_WARPS = 8;

// records [head][chunk]
template <class T>
__global__ void __launch_bounds__(GATE_WARPS * 32)
    vlstm_fw_gates(const float* __restrict__ i_gate, const float* __restrict__ f_gate, float* __restrict__ m_out,
                   const float* __restrict__ m0, float* __restrict__ mN, GateRecord* __restrict__ records, bool given,
                   bool wanted, int S, int chunks, float log2_scale) {
    __shared__ Before before[GATE_WARPS];
    int head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    long long row = 1ll * head * S;
    records += 1ll * head * chunks;
    if (threadIdx.x == 0) before[0] = {given ? m_from(m0[head]) : LOWEST, 0};
    __syncthreads();  // the warp of the first chunk reads it
    GateScan<GATE_WARPS> scan(i_gate + row, f_gate + row, 0, S, S, warp, before);
    for (int first = warp * CHUNK; first < S; first += GATE_WARPS * CHUNK) {
        auto& to = records[first / CHUNK];
        Before behind = scan.template step<true>(to.gates, reinterpret_cast<T*>(to.alpha), log2_scale, m_out + row, true,
                                                 first, [] {});
        if (lane < 2) to.rest[lane] = 0;
        if (wanted && first + CHUNK >= S && lane == 0) mN[head] = m_of(behind.m);
    }
}

template <class T, int KEY, int GROUPS, bool SAVES>
constexpr int vlstm_fw_wide_shared = sizeof(WideShared<T, KEY, GROUPS>);

template <class T, int KEY, int GROUPS, bool SAVES>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    vlstm_fw_wide(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                  const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap h,
                  const GateRecord* __restrict__ records, float* __restrict__ n_out, const float* __restrict__ C0,
                  const float* __restrict__ n0, float* __restrict__ CN, float* __restrict__ nN,
                  float* __restrict__ slopes, bool given, bool wanted, bool through_n, int S, int chunks, int dhqk,
                  int dhhv, float eps, T* __restrict__ C, float* __restrict__ C_scales, int anchors) {
    DYNAMIC_TILES(unsigned char, memory);
    __shared__ Ring<2> places, pairs;
    int slices = (dhhv + GROUPS * PANEL - 1) / (GROUPS * PANEL), head = blockIdx.x / slices;
    int group = threadIdx.x / 128, value = blockIdx.x % slices * GROUPS * PANEL;
    long long cell = 1ll * head * dhqk;
    WideWalk<T, KEY, GROUPS> walk{*reinterpret_cast<WideShared<T, KEY, GROUPS>*>(memory), places, pairs,
                                  Sequence(head, S), value, records + 1ll * head * chunks};
    if (threadIdx.x == 0) walk.init();
    walk.clear();
    __syncthreads();  // nobody waits at a barrier that is not there, or multiplies by rows that are not zero yet

    if (group < GROUPS) {
        registers_increase<WideRegisters::STATE>();
        StoredState<T, KEY, WideState<T, KEY>> state;
        state.begin(given ? C0 + cell * dhhv : nullptr, value + group * PANEL, dhqk, dhhv);
        auto save = [&](int first) {
            if (!SAVES || first % STRETCH > 0 || (first == 0 && !given)) return;
            __shared__ float largest[GROUPS][4];
            long long slot = head * (anchors + given) + first / STRETCH - !given, panel = slot * slices * GROUPS + value / PANEL + group;
            float scale = is_f16<T> ? state.scale_in_memory(largest[group], 1 + group) : 1;
            state.store_rows(C + panel * PANEL * KEY, 1 / scale);
            if (is_f16<T> && threadIdx.x % 128 == 0) C_scales[panel] = scale;
        };
        walk.hold(state, h, group, save);
        if (wanted) state.end(CN + cell * dhhv, value + group * PANEL, dhqk, dhhv);
    } else {
        registers_decrease<WideRegisters::SCORES>();
        KeySum<T, KEY> sum;
        sum.begin(given ? n0 + cell : nullptr, dhqk);
        long long row = 1ll * head * S;
        walk.make_scores(sum, q, k, v, eps, n_out + row, through_n ? slopes + row : nullptr, value == 0);
        if (wanted && value == 0) sum.each([&](int key, float n) { if (key < dhqk) nN[cell + key] = n; });
    }
}
