// The vLSTM's forward pass in one walk over chunks of 64 positions, the state on the chip. Chunk by chunk, with the
// state (C [DHQK, DHHV], n [DHQK], M) of the chunks before:
//
//   C̃_ij = s (q_i·k_j) P_ij  j <= i        l_i = Σ_j C̃_ij + s β_i n·q_i       n_i = max(|l_i|, exp(-m_i))
//   h_i  = (Σ_j C̃_ij v_j + s β_i Cᵀ q_i) / (n_i + eps)
//   C ← γ C + Σ_j α_j k_j v_jᵀ             n ← γ n + Σ_j α_j k_j
//
// P, m, α, β and γ are of the gates alone (lab/vlstm/scan.cuh). Work split: a block walks a head, for 64 GROUPS columns of V. Its
// warpgroups, as lab/vlstm/roles.cuh has them: GROUPS of them hold 64 columns of the state each; one makes C̃ and n, which need
// nothing of C, and so runs ahead; the warps of the last one ask for tiles and scan the gates. Of packed sequences
// (lab/vlstm/sequence.cuh) a block walks one of a head: states [sequences][heads].
//
// These are the vLSTM's gates and its normaliser. The same walk with others, as lab/vlstm/policy.cuh has them, makes its relatives:
// without n and m it asks for nothing of them, and `sharing` heads of V may have one of Q and K. Who is not `weighed` has no i_gate.
// For a backward pass it leaves the weights of all `chunks` of a head, which nobody else has to make then.
// Where heads share Q and K, and have 64 columns of V, a block may walk two HEADS: scores are made once for both.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/roles.cuh"

using namespace lab;

template <class T, int KEY, int GROUPS, int PLACES, class GATES = Exponential, class NORMALIZER = MaxExp, int HEADS = 1>
constexpr int vlstm_fw_roles_shared = sizeof(typename Walk<T, KEY, GROUPS, PLACES, GATES, NORMALIZER, HEADS>::Shared);

template <class T, int KEY, int GROUPS, int PLACES, class GATES = Exponential, class NORMALIZER = MaxExp, int HEADS = 1>
__global__ void __launch_bounds__((GROUPS + 2) * 128, 1)
    vlstm_fw_roles(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                   const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap h,
                   const float* __restrict__ i_gate, const float* __restrict__ f_gate, float* __restrict__ m_out,
                   float* __restrict__ n_out, const float* __restrict__ C0, const float* __restrict__ n0,
                   const float* __restrict__ m0, float* __restrict__ CN, float* __restrict__ nN,
                   float* __restrict__ mN, unsigned* __restrict__ saved, float* __restrict__ saved_n,
                   float* __restrict__ slopes, const int* __restrict__ cu_seqlens, bool packed, bool given, bool wanted,
                   bool through_n, int anchors, int heads, int S, int dhqk, int dhhv, float log2_scale, float eps,
                   int sharing, bool weighed, Weights* __restrict__ forward, Weights* __restrict__ reverse, int chunks,
                   bool leaves) {
    DYNAMIC_TILES(unsigned char, memory);
    __shared__ Ring<PLACES> places;
    __shared__ Ring<2> pairs;
    __shared__ Before before[SCANNERS];
    constexpr int WIDTH = GROUPS / HEADS * PANEL;
    int slices = (dhhv + WIDTH - 1) / WIDTH;
    int group = threadIdx.x / 128, value = blockIdx.x % slices * WIDTH;
    Sequence sequence(blockIdx.x / slices * HEADS, S, packed ? cu_seqlens : nullptr, heads);
    long long row = sequence.row(), cell = 1ll * sequence.index * dhqk;
    int length = sequence.length;
    using Walk = lab::Walk<T, KEY, GROUPS, PLACES, GATES, NORMALIZER, HEADS>;
    Walk walk{*reinterpret_cast<typename Walk::Shared*>(memory), places, pairs, sequence, value, 0, length,
              GATES::STABILISED ? 1 : sharing};
    if (threadIdx.x == 0) {
        walk.init();
        before[0] = {given && GATES::STABILISED ? m_from(m0[sequence.index]) : LOWEST, 0};
    }
    walk.clear();
    __syncthreads();  // nobody waits at a barrier that is not there, or multiplies by rows that are not zero yet

    Anchors at_anchors(sequence, anchors, slices * GROUPS, saved, through_n ? saved_n : nullptr,
                       through_n ? slopes : nullptr);
    if (group < GROUPS) {
        registers_increase<Registers<KEY, GROUPS>::STATE>();
        State<T, KEY> state;
        int column = HEADS > 1 ? value : value + group * PANEL;
        if (HEADS > 1) cell += 1ll * group * dhqk;
        state.begin(given ? C0 + cell * dhhv : nullptr, column, dhqk, dhhv);
        walk.hold(state, h, group, at_anchors);
        if (wanted) state.end(CN + cell * dhhv, column, dhqk, dhhv);
    } else if (group == GROUPS) {
        registers_decrease<Registers<KEY, GROUPS>::SCORES>();
        typename Walk::Sum sum;
        sum.begin(given ? n0 + cell : nullptr, dhqk);
        walk.make_scores(sum, eps, n_out + row, value == 0, at_anchors);
        if (wanted && value == 0) sum.each([&](int key, float n) { if (key < dhqk) nN[cell + key] = n; });
    } else {
        registers_decrease<Registers<KEY, GROUPS>::SCAN>();
        const float* of_head = GATES::MAY_BE_ONE && !weighed ? nullptr : i_gate + row;
        typename Walk::Scan scan(of_head, f_gate + row, 0, length, length, threadIdx.x / 32 % 4, before);
        Before behind;
        if constexpr (HEADS > 1) {
            typename Walk::Scan second(of_head ? of_head + S : of_head, f_gate + row + S, 0, length, length,
                                       threadIdx.x / 32 % 4, before);
            behind = walk.template bring<true>(scan, q, k, v, log2_scale, m_out + row, value == 0, &second);
        } else {
            long long at = sequence.slot(CHUNK, chunks);
            BothWeights left;
            if (leaves && !GATES::STABILISED) left = {forward + at, reverse + at};
            behind = walk.template bring<true>(scan, q, k, v, log2_scale, m_out + row, value == 0, nullptr, left);
        }
        if (length == 0) behind = before[0];  // a sequence of nothing
        if (GATES::STABILISED && wanted && value == 0 && walk.brings_last() && threadIdx.x % 32 == 0) mN[sequence.index] = m_of(behind.m);
    }
}
