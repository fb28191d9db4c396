// The gates' gradients, from the dots that the walks have left:
//
//   di_t = k_t·dk_t       df_t = sigmoid(-f_t) G_t       G_t = Σ_{τ >= t} (q_τ·dq_τ - k_τ·dk_τ)
//
// That sum takes large numbers from each other, and dq comes of a rounded state, dk of a rounded gradient of it: over
// thousands of positions nothing right is left. But between two positions G = <C, dC>, of the state there and its
// gradient, which the walks know at anchors. In between G is carried by the sum from both sides, and what the two
// disagree in is shared out evenly. Of Decay gates (lab/vlstm/policy.cuh), g, dg_t = G_t. k_t·dk_t is the
// gradient by the logarithm of a weight: dw_t = k_t·dk_t / w_t, and di_t = sigmoid(-i_t) k_t·dk_t of Sigmoid gates.
//
// Work split: a warp has a stretch of a sequence between two anchors, a lane PER_LANE positions that follow each other.
#include "lab/reduce.cuh"
#include "lab/vlstm/policy.cuh"
#include "lab/vlstm/weights.cuh"

using namespace lab;

constexpr int PER_LANE = STRETCH / 32;

// ANCHOR: kernel
// Σ a b of n numbers, in each lane of a warp.
__device__ __forceinline__ float dot(const float* a, const float* b, int n) {
    float sum = 0;
    for (int at = threadIdx.x % 32; at < n; at += 32) sum += a[at] * b[at];
    return warp_reduce(sum, Add());
}

// q_dq, k_dk [slices][heads][S]: shares of q·dq and k·dk. products [heads][first state, anchors, last state][parts_of_dot]: shares
// of <C, dC>, as the walks leave them. stretches: those that a head has room for. saved_n, saved_dn [heads][anchors][keys], n0 … dnN [heads][dhqk].
template <int THREADS, class GATES = Exponential>
__global__ void __launch_bounds__(THREADS)
    vlstm_anchored_forget(const float* __restrict__ f, const float* __restrict__ q_dq, const float* __restrict__ k_dk,
                          const float* __restrict__ products, const float* __restrict__ saved_n,
                          const float* __restrict__ saved_dn, const float* __restrict__ n0,
                          const float* __restrict__ dn0, const float* __restrict__ nN, const float* __restrict__ dnN,
                          float* __restrict__ di, float* __restrict__ df, const int* __restrict__ cu_seqlens,
                          bool packed, bool through_n, bool given, bool given_last, int heads, int sequences,
                          int stretches, int anchors, int parts_of_dot, int slices, int keys, int dhqk, int S,
                          const float* __restrict__ i, bool weighed) {
    int lane = threadIdx.x % 32, index = (blockIdx.x * THREADS + threadIdx.x) / 32;
    if (index >= heads * stretches) return;
    Slot slot(index, STRETCH, stretches, S, packed ? cu_seqlens : nullptr, heads, sequences);
    if (!slot.is_in_sequence(STRETCH)) return;
    const Sequence& sequence = slot.sequence;
    int stretch = slot.part, length = sequence.length;
    // G at a border between stretches: 0 before the first position and behind the last, where no state is.
    auto at_border = [&](int border) {
        bool last = border == sequence.stretches();
        if ((border == 0 && !given) || (last && !given_last)) return 0.0f;
        float sum = 0;
        for (int p = lane; p < parts_of_dot; p += 32)
            sum += products[(sequence.borders(anchors, sequences) + border) * parts_of_dot + p];
        sum = warp_reduce(sum, Add());
        if (!through_n) return sum;
        long long end = 1ll * sequence.index * dhqk, inside = (sequence.first_anchor(anchors) + border - 1) * keys;
        if (border == 0) return sum + dot(n0 + end, dn0 + end, dhqk);
        if (last) return sum + dot(nN + end, dnN + end, dhqk);
        return sum + dot(saved_n + inside, saved_dn + inside, dhqk);
    };
    float before = at_border(stretch), behind = at_border(stretch + 1);
    int first = stretch * STRETCH, t0 = first + lane * PER_LANE;
    float own[PER_LANE];
    double sum = 0;
#pragma unroll
    for (int n = PER_LANE - 1; n >= 0; --n) {
        float r = 0, k = 0;
        long long at = sequence.row() + t0 + n;
        for (int slice = 0; slice < slices && t0 + n < length; ++slice)
            r += q_dq[1ll * slice * heads * S + at], k += k_dk[1ll * slice * heads * S + at];
        bool has_weight = !GATES::MAY_BE_ONE || weighed;
        if (has_weight && t0 + n < length) di[at] = GATES::gradient_of_weight(i, at, k);
        sum += r - k, own[n] = static_cast<float>(sum);
    }
    double later = sum;  // of all lanes from this one on
    for (int d = 1; d < 32; d *= 2) {
        double next = __shfl_down_sync(0xffffffff, later, d);
        if (lane + d < 32) later += next;
    }
    float missing = static_cast<float>(before - (behind + __shfl_sync(0xffffffff, later, 0)));
    if (!(fabsf(missing) < -lowest<float>())) missing = 0;  // ∞ or NaN of a position counts for it and those before it
    double of_next = __shfl_down_sync(0xffffffff, later, 1);  // not later - sum, which ∞ would make NaN
    float later_lanes = static_cast<float>(behind + (lane < 31 ? of_next : 0)), positions = min(STRETCH, length - first);
#pragma unroll
    for (int n = 0; n < PER_LANE; ++n) {
        int t = t0 + n;
        float G = t == 0 && !given ? 0 : own[n] + later_lanes + missing * (1 - (t - first) / positions);
        if (t < length) df[sequence.row() + t] = GATES::gradient_of_kept(f[sequence.row() + t], G);
    }
}
// ANCHOR_END: kernel
