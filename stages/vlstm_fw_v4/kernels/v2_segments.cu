// The vLSTM's forward pass by segments of a sequence, where there are fewer heads than multiprocessors. As v1, but that
// several blocks share a head, each with a segment of its chunks. In a launch before, each segment but the last is
// walked for the state alone, from nothing: C_p, n_p and m_p are what it adds, and F_p = Σ log sigmoid(f). A block's
// walk then begins with the state that it joins from those of the segments before:
//
//   M⁺ = max(M + F_p, m_p)    C⁺ = exp(M + F_p - M⁺) C + exp(m_p - M⁺) C_p    n⁺ = exp(M + F_p - M⁺) n + exp(m_p - M⁺) n_p
//
// Work split of both: as v1's, with a segment for each head and slice. C_part [head][segment][64 columns of V], n_part and behind [head][segment],
// of all segments but the last.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/roles.cuh"

using namespace lab;

template <class T, int KEY, int GROUPS, int PLACES>
constexpr int vlstm_fw_segments_shared = sizeof(Shared<T, KEY, GROUPS, PLACES>);
template <class T, int KEY, int GROUPS, int PLACES>
constexpr int vlstm_fw_parts_shared = sizeof(Shared<T, KEY, GROUPS, PLACES>);

// Which segment of which head a block has, and which columns of V.
template <int GROUPS> struct Segment {
    int slices, head, index, value, from, to;

    __device__ __forceinline__ Segment(int S, int dhhv, int segments, int chunks_each) {
        slices = (dhhv + GROUPS * PANEL - 1) / (GROUPS * PANEL);
        value = blockIdx.x % slices * GROUPS * PANEL;
        index = blockIdx.x / slices % segments, head = blockIdx.x / slices / segments;
        from = index * chunks_each * CHUNK, to = min(S, from + chunks_each * CHUNK);
    }
};

template <class T, int KEY, int GROUPS, int PLACES>
__global__ void __launch_bounds__((GROUPS + 2) * 128, 1)
    vlstm_fw_parts(const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                   const float* __restrict__ i_gate, const float* __restrict__ f_gate, float* __restrict__ C_part,
                   float* __restrict__ n_part, Before* __restrict__ behind, int S, int dhhv, int segments,
                   int chunks_each) {
    DYNAMIC_TILES(unsigned char, memory);
    __shared__ Ring<PLACES> places;
    __shared__ Ring<2> pairs;
    __shared__ Before before[SCANNERS];
    Segment<GROUPS> own(S, dhhv, segments - 1, chunks_each);
    int group = threadIdx.x / 128, part = own.head * (segments - 1) + own.index;
    long long row = 1ll * own.head * S;
    Walk<T, KEY, GROUPS, PLACES> walk{*reinterpret_cast<Shared<T, KEY, GROUPS, PLACES>*>(memory),
                                      places, pairs, Sequence(own.head, S), own.value, own.from, own.to};
    if (threadIdx.x == 0) {
        walk.init();
        before[0] = {LOWEST, 0};
    }
    walk.clear();
    __syncthreads();  // as in v1

    if (group < GROUPS) {
        registers_increase<Registers<KEY, GROUPS>::STATE>();
        State<T, KEY> state;
        state.begin(nullptr, 0, 0, 0);
        walk.gather(state, group);
        long long at = 1ll * part * own.slices * GROUPS + own.value / PANEL + group;
        state.store_part(C_part + at * state.PART);
    } else if (group == GROUPS) {
        registers_decrease<Registers<KEY, GROUPS>::SCORES>();
        KeySum<T, KEY> sum;
        sum.begin(nullptr, 0);
        walk.gather(sum);
        if (own.value == 0) sum.each([&](int key, float n) { n_part[1ll * part * KEY + key] = n; });
    } else {
        registers_decrease<Registers<KEY, GROUPS>::SCAN>();
        GateScan<SCANNERS> scan(i_gate + row, f_gate + row, own.from, own.to, S, threadIdx.x / 32 % 4, before);
        Before last = walk.template bring<false>(scan, k, k, v, 0, nullptr, false);
        if (own.value == 0 && walk.brings_last() && threadIdx.x % 32 == 0) behind[part] = last;
    }
}

// ANCHOR: join
// M of the state that the parts leave, one after the other, to one with M; use(p, gamma, alpha) joins them.
template <class Use> __device__ __forceinline__ double join(const Before* parts, int count, double M, Use use) {
    for (int p = 0; p < count; ++p) {
        double before = M + parts[p].sum, m = before > parts[p].m ? before : parts[p].m;
        use(p, expf(static_cast<float>(before - m)), expf(static_cast<float>(parts[p].m - m)));
        M = m > LOWEST ? m : LOWEST;
    }
    return M;
}
// ANCHOR_END: join

template <class T, int KEY, int GROUPS, int PLACES>
__global__ void __launch_bounds__((GROUPS + 2) * 128, 1)
    vlstm_fw_segments(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                      const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap h,
                      const float* __restrict__ i_gate, const float* __restrict__ f_gate, float* __restrict__ m_out,
                      float* __restrict__ n_out, const float* __restrict__ C0, const float* __restrict__ n0,
                      const float* __restrict__ m0, float* __restrict__ CN, float* __restrict__ nN,
                      float* __restrict__ mN, unsigned* __restrict__ saved, float* __restrict__ saved_n,
                      float* __restrict__ slopes, const float* __restrict__ C_part,
                      const float* __restrict__ n_part, const Before* __restrict__ behind, bool given, bool wanted, bool through_n,
                      int anchors, int S, int dhqk, int dhhv, int segments, int chunks_each, float log2_scale,
                      float eps) {
    DYNAMIC_TILES(unsigned char, memory);
    __shared__ Ring<PLACES> places;
    __shared__ Ring<2> pairs;
    __shared__ Before before[SCANNERS];
    Segment<GROUPS> own(S, dhhv, segments, chunks_each);
    int group = threadIdx.x / 128, head = own.head, part = head * (segments - 1);
    long long row = 1ll * head * S, cell = 1ll * head * dhqk;
    double m = given ? m_from(m0[head]) : LOWEST;
    wanted = wanted && own.index == segments - 1;
    behind += part;
    Walk<T, KEY, GROUPS, PLACES> walk{*reinterpret_cast<Shared<T, KEY, GROUPS, PLACES>*>(memory),
                                      places, pairs, Sequence(head, S), own.value, own.from, own.to};
    if (threadIdx.x == 0) {
        walk.init();
        before[0] = {join(behind, own.index, m, [](int, float, float) {}), 0};
    }
    walk.clear();
    __syncthreads();  // as in v1

    Anchors at_anchors(walk.sequence, anchors, own.slices * GROUPS, saved, through_n ? saved_n : nullptr,
                       through_n ? slopes : nullptr);
    if (group < GROUPS) {
        registers_increase<Registers<KEY, GROUPS>::STATE>();
        State<T, KEY> state;
        int value = own.value + group * PANEL;
        state.begin(given ? C0 + cell * dhhv : nullptr, value, dhqk, dhhv);
        join(behind, own.index, m, [&](int p, float gamma, float alpha) {
            long long at = 1ll * (part + p) * own.slices * GROUPS + own.value / PANEL + group;
            state.join(C_part + at * state.PART, gamma, alpha);
        });
        walk.hold(state, h, group, at_anchors);
        if (wanted) state.end(CN + cell * dhhv, value, dhqk, dhhv);
    } else if (group == GROUPS) {
        registers_decrease<Registers<KEY, GROUPS>::SCORES>();
        KeySum<T, KEY> sum;
        sum.begin(given ? n0 + cell : nullptr, dhqk);
        join(behind, own.index, m, [&](int p, float gamma, float alpha) {
            sum.join(n_part + 1ll * (part + p) * KEY, gamma, alpha);
        });
        walk.make_scores(sum, eps, n_out + row, own.value == 0, at_anchors);
        if (wanted && own.value == 0)
            sum.each([&](int key, float n) { if (key < dhqk) nN[cell + key] = n; });
    } else {
        registers_decrease<Registers<KEY, GROUPS>::SCAN>();
        GateScan<SCANNERS> scan(i_gate + row, f_gate + row, own.from, own.to, S, threadIdx.x / 32 % 4, before);
        Before last = walk.template bring<true>(scan, q, k, v, log2_scale, m_out + row, own.value == 0);
        if (wanted && own.value == 0 && walk.brings_last() && threadIdx.x % 32 == 0) mN[head] = m_of(last.m);
    }
}
