// The vLSTM's forward pass in one walk over chunks of 64 positions, the state on the chip. Chunk by chunk, with the
// state (C [DHQK, DHHV], n [DHQK], M) of the chunks before:
//
//   C̃_ij = s (q_i·k_j) P_ij  j <= i        l_i = Σ_j C̃_ij + s β_i n·q_i       n_i = max(|l_i|, exp(-m_i))
//   h_i  = (Σ_j C̃_ij v_j + s β_i Cᵀ q_i) / (n_i + eps)
//   C ← γ C + Σ_j α_j k_j v_jᵀ             n ← γ n + Σ_j α_j k_j
//
// P, m, α, β and γ are of the gates alone (lab/vlstm/scan.cuh). Work split: a block walks a head, for 64 GROUPS columns of V, in
// steps: a warp asks for the chunk's tiles and scans its gates; a warpgroup makes C̃ and n; GROUPS warpgroups, that
// hold 64 columns of the state each, make h and the next state. One works, the others wait.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/roles.cuh"

using namespace lab;

template <class T, int KEY, int GROUPS>
constexpr int vlstm_fw_steps_shared = sizeof(Shared<T, KEY, GROUPS, 1>);

template <class T, int KEY, int GROUPS>
__global__ void __launch_bounds__((GROUPS + 2) * 128, 1)
    vlstm_fw_steps(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                   const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap h,
                   const float* __restrict__ i_gate, const float* __restrict__ f_gate, float* __restrict__ m_out,
                   float* __restrict__ n_out, const float* __restrict__ C0, const float* __restrict__ n0,
                   const float* __restrict__ m0, float* __restrict__ CN, float* __restrict__ nN,
                   float* __restrict__ mN, bool given, bool wanted, int S, int dhqk, int dhhv, float log2_scale,
                   float eps) {
    constexpr int THREADS = (GROUPS + 2) * 128, ALL = 15;
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<Shared<T, KEY, GROUPS, 1>*>(memory);
    auto& place = shared.places[0];
    __shared__ Mbarrier full;
    __shared__ Before before[1];
    int slices = (dhhv + GROUPS * PANEL - 1) / (GROUPS * PANEL), head = blockIdx.x / slices;
    int group = threadIdx.x / 128, first_value = blockIdx.x % slices * GROUPS * PANEL;
    int value = first_value + group * PANEL;
    Sequence sequence(head, S);
    long long row = 1ll * head * S, cell = 1ll * head * dhqk;
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        mbarrier_fence_init();
        before[0] = {given ? m_from(m0[head]) : LOWEST, 0};
    }
    place.template clear<THREADS>();
    fence_proxy_async_shared();
    __syncthreads();  // nobody waits at a barrier that is not there, or multiplies by rows that are not zero yet
    // Behind each step of a chunk all meet. The roles keep their registers, and so each has a loop of its own.
    auto meet = [] { named_barrier_sync(ALL, THREADS); };
    auto tiles = [&](int first) { mbarrier_wait(&full, first / CHUNK % 2); };

    if (group < GROUPS) {
        registers_increase<Registers<KEY, GROUPS>::STATE>();
        State<T, KEY> state;
        state.begin(given ? C0 + cell * dhhv : nullptr, value, dhqk, dhhv);
        state.weigh();
        state.round();
        for (int first = 0; first < S; first += CHUNK) {
            meet();  // the gates are there
            tiles(first);
            meet();  // C̃ is there
            state.multiply_by_state(place);
            state.take(place.z[group], place.alpha);
            state.scale(place.gates);
            state.add_chunk_pairs_to_out(shared.pairs[0]);
            state.add_keys(place);
            state.divide(shared.inverse[0]);
            state.round();
            state.store(shared.out[0][group], h, sequence.box(value, first), group);
            meet();  // the place is free
        }
        if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // TMA has read the panel before the block ends
        if (wanted) state.end(CN + cell * dhhv, value, dhqk, dhhv);
    } else if (group == GROUPS) {
        registers_decrease<Registers<KEY, GROUPS>::SCORES>();
        KeySum<T, KEY> sum;
        sum.begin(given ? n0 + cell : nullptr, dhqk);
        sum.weigh(shared.inverse[0], 1 + group);
        for (int first = 0; first < S; first += CHUNK) {
            float score[36], weight[32], l[2];
            sum.publish(place);
            fence_proxy_async_shared();  // wgmma reads n
            meet();
            tiles(first);
            wgmma_fence();
            multiply_scores<T, KEY>(score, place);
            sum.multiply(place);
            wgmma_commit();
            wgmma_wait<0>();
            weights_of(weight, place.gates);
            weigh(l, score, weight, place.gates, sum.up(), shared.pairs[0]);
            normalise(l, place.gates, shared.inverse[0], eps);
            if (first_value == 0) store_normaliser(l, n_out + row, first, S);
            sum.add(place.gates);
            fence_proxy_async_shared();  // wgmma reads C̃
            meet();
            meet();
        }
        if (wanted && first_value == 0)
            sum.each([&](int key, float n) { if (key < dhqk) nN[cell + key] = n; });
    } else {
        registers_decrease<Registers<KEY, GROUPS>::SCAN>();
        bool scans = threadIdx.x / 32 % 4 == 0;
        GateScan<1> scan(i_gate + row, f_gate + row, 0, S, S, 0, before);
        for (int first = 0; first < S; first += CHUNK) {
            if (scans) {
                if (threadIdx.x % 32 == 0) place.load(q, k, v, sequence, first, first_value, &full);
                __syncwarp();
                Before behind = scan.template step<true>(place.gates, place.alpha, log2_scale, m_out + row,
                                                         first_value == 0, first, [] {});
                __syncwarp();  // all lanes have read the one before
                if (threadIdx.x % 32 == 0) before[0] = behind;
                fence_proxy_async_shared();  // wgmma reads α
            }
            meet();
            meet();
            meet();
        }
        if (wanted && first_value == 0 && scans && threadIdx.x % 32 == 0) mN[head] = m_of(before[0].m);
    }
}
