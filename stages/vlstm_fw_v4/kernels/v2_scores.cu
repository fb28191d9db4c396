// The vLSTM's forward pass in one walk over chunks of 64 positions, the state on the chip. Chunk by chunk, with the
// state (C [DHQK, DHHV], n [DHQK], M) of the chunks before:
//
//   C̃_ij = s (q_i·k_j) D_ij  j <= i        l_i = Σ_j C̃_ij + s β_i n·q_i       n_i = max(|l_i|, exp(-m_i))
//   h_i  = (Σ_j C̃_ij v_j + s β_i Cᵀ q_i) / (n_i + eps)
//   C ← γ C + Σ_j α_j k_j v_jᵀ             n ← γ n + Σ_j α_j k_j
//
// D, m, α, β and γ are of the gates alone (scan.cuh). Work split: a block walks a head, for 64 GROUPS columns of V. Its
// warpgroups: GROUPS of them hold 64 columns of the state each (state.cuh); one makes C̃ and n, which need nothing of
// C, and so runs ahead; those of
// the last one ask for tiles and scan the gates, a chunk each in turn.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "scan.cuh"
#include "state.cuh"

using namespace lab;

// Registers of a thread: those of all warpgroups together are 512 at most.
template <int GROUPS> struct Registers {
    static constexpr int STATE = 176, SCORES = GROUPS == 1 ? 120 : 104, HELPERS = GROUPS == 1 ? 80 : 56;
};

template <class T, int KEY, int GROUPS, int PLACES> struct Shared {
    Place<T, KEY, GROUPS> places[PLACES];
    T pairs[2][CHUNK * PANEL], out[GROUPS][CHUNK * PANEL];
    float inverse[2][CHUNK];  // 1 / (n_i + eps)
};

template <class T, int KEY, int GROUPS, int PLACES>
constexpr int vlstm_fw_scores_shared = sizeof(Shared<T, KEY, GROUPS, PLACES>);

// One lane for its warp, which has done with a place.
template <int PLACES> __device__ __forceinline__ void leave(Ring<PLACES>& ring, Turn<PLACES> turn) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring.leave(turn);
}

template <class T, int KEY, int GROUPS, int PLACES>
__global__ void __launch_bounds__((GROUPS + 2) * 128, 1)
    vlstm_fw_scores(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap h,
                    const float* __restrict__ i_gate, const float* __restrict__ f_gate, float* __restrict__ m_out,
                    float* __restrict__ n_out, int S, int slices, float log2_scale, float eps) {
    constexpr int THREADS = (GROUPS + 2) * 128, HELPERS = 4;
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<Shared<T, KEY, GROUPS, PLACES>*>(memory);
    __shared__ Ring<PLACES> chunks;
    __shared__ Ring<2> weights;
    __shared__ double m[HELPERS];
    if (threadIdx.x == 0) {
        chunks.init(4 * GROUPS + 4, 2);
        weights.init(4 * GROUPS);
        m[0] = lowest<float>();
    }
    for (int n = 0; n < PLACES; ++n) shared.places[n].template clear<THREADS>();
    fence_proxy_async_shared();
    __syncthreads();  // nobody waits at a barrier that is not there, or multiplies by rows that are not zero yet

    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, slice = blockIdx.x % slices;
    int head = blockIdx.x / slices, value = (slice * GROUPS + group) * PANEL;
    long long first_of_head = 1ll * head * S;
    Turn<PLACES> turn;
    Turn<2> pair;
    if (group < GROUPS) {
        registers_increase<Registers<GROUPS>::STATE>();
        State<T, KEY> state;
        state.begin(nullptr, value, 0, 0);
        for (int first = 0; first < S; first += CHUNK, turn.advance(), pair.advance()) {
            auto& place = shared.places[turn.place];
            chunks.wait_full(turn);
            state.read(place);
            // h of the chunk before leaves while the product is made.
            if (first > 0) state.store(shared.out[group], h, value, first - CHUNK, head, group);
            state.take(place.v[group], place.write);
            state.scale(place.gates);
            weights.wait_full(pair);
            state.add(shared.pairs[pair.place], place);
            state.divide(shared.inverse[pair.place]);
            leave(weights, pair);
            state.round();
            leave(chunks, turn);
        }
        state.store(shared.out[group], h, value, (S - 1) / CHUNK * CHUNK, head, group);
        if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // the panel is the block's
    } else if (group == GROUPS) {
        registers_decrease<Registers<GROUPS>::SCORES>();
        KeySum<T, KEY> sum;
        sum.begin(nullptr, 0);
        sum.publish(shared.places[0]);
        fence_proxy_async_shared();
        named_barrier_sync(1 + group, 128);
        for (int first = 0; first < S; first += CHUNK, pair.advance()) {
            auto& place = shared.places[turn.place];
            float score[36], weight[32], l[2];
            chunks.wait_full(turn);
            wgmma_fence();
            multiply_scores(score, place);
            sum.multiply(place);
            wgmma_commit();
            weights_of(weight, place.gates);  // while the products are made
            weights.wait_empty(pair);
            wgmma_wait<0>();
            weigh(l, score, weight, place.gates, shared.pairs[pair.place]);
            normalise(l, place.gates, shared.inverse[pair.place], eps);
            sum.add(place.gates.kept);
            auto own = turn;
            turn.advance();
            chunks.wait_empty(turn);
            sum.publish(shared.places[turn.place]);
            fence_proxy_async_shared();  // wgmma reads C̃ and n
            named_barrier_sync(1 + group, 128);  // both of all warps
            if (threadIdx.x % 128 == 0) mbarrier_arrive(&weights.full[pair.place]);
            if (slice == 0) store_normaliser(l, n_out + first_of_head, first, S);
            leave(chunks, own);
        }
    } else {
        registers_decrease<Registers<GROUPS>::HELPERS>();
        GateScan<HELPERS> scan(i_gate + first_of_head, f_gate + first_of_head, S, warp, m);
        for (int n = 0; n < warp; ++n) turn.advance();
        for (int first = warp * CHUNK; first < S; first += HELPERS * CHUNK) {
            auto& place = shared.places[turn.place];
            // A parity tells a phase from the next, not from the one behind that: places are claimed in order.
            auto claim = [&] {
                chunks.wait_empty(turn);
                if (threadIdx.x % 32 == 0)
                    place.load(q, k, v, first / CHUNK, head, slice * GROUPS * PANEL, &chunks.full[turn.place]);
                __syncwarp();
            };
            scan.step(place.gates, place.write, log2_scale, m_out + first_of_head, slice == 0, first, claim);
            fence_proxy_async_shared();  // wgmma reads α
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(&chunks.full[turn.place]);
            for (int n = 0; n < HELPERS; ++n) turn.advance();
        }
    }
}
