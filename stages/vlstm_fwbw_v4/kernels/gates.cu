// The weights of all chunks, for both directions, in two launches: M of a chunk needs what the chunks before it add.
//
// Without M (lab/vlstm/policy.cuh) the second is enough.
//
// Work split of both: a warp for each chunk of each sequence, a lane for two neighbouring positions.
#include "lab/reduce.cuh"
#include "weights.cuh"

using namespace lab;

// The warp's place among the chunks of all heads.
__device__ __forceinline__ long long own_chunk() { return (blockIdx.x * 1ll * blockDim.x + threadIdx.x) / 32; }

// The gates of a chunk.
template <class GATES = Exponential> struct Chunk {
    int first;
    float input[2];
    double forget[2];

    __device__ __forceinline__ Chunk(const float* i, const float* f, const Slot& slot) : first(slot.part * CHUNK) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            // Past the end gates keep all and take nothing.
            int t = first + threadIdx.x % 32 * 2 + n;
            bool there = t < slot.sequence.length;
            input[n] = GATES::log_weight(there ? GATES::input(i, slot.sequence.row() + t) : GATES::nothing());
            forget[n] = GATES::log_kept(there ? f[slot.sequence.row() + t] : GATES::open());
        }
    }
};

// ANCHOR: sums
// What a chunk makes of M = 0 and of M = -∞: `sum` and `m`.
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    vlstm_gate_sums(const float* __restrict__ i, const float* __restrict__ f, Before* __restrict__ sums,
                    const int* __restrict__ cu_seqlens, bool packed, int heads, int sequences, int chunks, int S) {
    if (own_chunk() >= 1ll * heads * chunks) return;
    Slot slot(own_chunk(), CHUNK, chunks, S, packed ? cu_seqlens : nullptr, heads, sequences);
    if (!slot.is_in_sequence(CHUNK)) return;
    Chunk<> own(i, f, slot);
    ChunkGates<> gates(own.input, own.forget);
    if (threadIdx.x % 32 == 31) sums[own_chunk()] = {gates.all + gates.largest, gates.all};
}

// M behind `count` chunks that follow one of m0: each lane joins some that follow each other, and then lanes join theirs.
__device__ __forceinline__ double join(const Before* sums, int count, double m0) {
    int each = (count + 31) / 32, from = threadIdx.x % 32 * each, to = min(count, from + each);
    Before all{LOWEST, 0};
    auto add = [&](Before next) {
        all = {ChunkGates<>::larger(all.m + next.sum, next.m), all.sum + next.sum};
    };
    for (int c = from; c < to; ++c) add(sums[c]);
    for (int d = 1; d < 32; d *= 2)
        add({__shfl_down_sync(0xffffffff, all.m, d), __shfl_down_sync(0xffffffff, all.sum, d)});
    all.m = ChunkGates<>::larger(m0 + all.sum, all.m);
    return ChunkGates<>::larger(__shfl_sync(0xffffffff, all.m, 0), LOWEST);
}
// ANCHOR_END: sums

// ρ_t = -(dh_t·h_t) dn_t / dl_t, a warp for each of the `rows` of all heads.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS)
    vlstm_normaliser_gradient(const T* __restrict__ h, const T* __restrict__ dh, const float* __restrict__ slopes,
                              float* __restrict__ rho, int rows, int dhhv) {
    int row = (blockIdx.x * THREADS + threadIdx.x) / 32;
    if (row >= rows) return;
    float sum = 0;
    for (int c = threadIdx.x % 32 * 2; c < dhhv; c += 64) {
        auto two = [&](const T* from) {
            return floats_of<T>(*reinterpret_cast<const unsigned*>(from + 1ll * row * dhhv + c));
        };
        float2 a = two(h), b = two(dh);
        sum += a.x * b.x + a.y * b.y;
    }
    sum = warp_reduce(sum, Add());
    float slope = slopes[row];
    if (threadIdx.x % 32 == 0) rho[row] = slope == 0 ? 0 : -slope * sum;
}

// ANCHOR: weights
// Of chunks, or, in UNIT chunks each, of stretches: then R and b are counted from a stretch's first position on, β is
// of the state at its one end and α of that at its other.
template <class T, int UNIT, class GATES = Exponential, class NORMALIZER = MaxExp>
__device__ __forceinline__ void make_weights(const float* __restrict__ i, const float* __restrict__ f, const float* __restrict__ normaliser,
                                             const float* __restrict__ rho, const float* __restrict__ m0, const Before* __restrict__ sums,
                                             Weights* __restrict__ forward, Weights* __restrict__ reverse,
                                             const int* __restrict__ cu_seqlens, bool packed, bool exact, bool given, int heads,
                                             int sequences, int chunks, int S, float log2_scale, float eps, bool weighed) {
    if (own_chunk() >= 1ll * heads * chunks) return;
    Slot slot(own_chunk(), CHUNK, chunks, S, packed ? cu_seqlens : nullptr, heads, sequences);
    if (!slot.is_in_sequence(CHUNK)) return;
    const Sequence& sequence = slot.sequence;
    static_assert(GATES::STABILISED || UNIT == 1, "stretches ask for sums, which only Exponential gates have: add a launch");
    Chunk<GATES> own(GATES::MAY_BE_ONE && !weighed ? nullptr : i, f, slot);
    ChunkGates<GATES::STABILISED> gates(own.input, own.forget);
    double M = GATES::STABILISED && given ? m_from(m0[sequence.index]) : GATES::STABILISED ? LOWEST : 0;
    if constexpr (GATES::STABILISED) M = join(sums + sequence.slot(CHUNK, chunks), slot.part, M);
    normaliser += sequence.row(), rho += sequence.row();
    double last = __shfl_sync(0xffffffff, gates.R(M, 1), 31), before = M, earlier = 0, all = gates.all;
    bool ends = own.first + CHUNK >= sequence.length;
    if constexpr (UNIT > 1) {
        int from = slot.part / UNIT * UNIT, to = min(from + UNIT, (sequence.length + CHUNK - 1) / CHUNK);
        const Before* of_sequence = sums + sequence.slot(CHUNK, chunks);
        double M0 = given ? m_from(m0[sequence.index]) : LOWEST;
        before = join(of_sequence, from, M0), ends = to * CHUNK >= sequence.length;
        for (int c = from; c < slot.part; ++c) earlier += of_sequence[c].sum;
        all = earlier;
        for (int c = slot.part; c < to; ++c) all += of_sequence[c].sum;
        last = join(of_sequence, to, M0) - all;
    }
    // As the forward pass rounds the m that may go out.
    if (GATES::STABILISED && ends) last = static_cast<float>(ChunkGates<>::larger(all + last, LOWEST)) - all;
    Weights&to = forward[own_chunk()], &back = reverse[own_chunk()];
    float a[2], alpha[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        int at = threadIdx.x % 32 * 2 + n, t = own.first + at;
        double R = gates.R(M, n) - earlier, x = gates.x[n] - earlier;
        bool there = t < sequence.length;
        float N = -lowest<float>();
        if (there) N = NORMALIZER::DIVIDES ? normaliser[t] + eps : 1;
        float2 A = two_floats(log2_scale - R * LOG2E_64 - log2(static_cast<double>(N)));
        float2 B = two_floats(x * LOG2E_64);
        a[n] = exp2f(log2_scale) * power(before - R) / N, alpha[n] = power(x - last);
        to.row[at] = back.column[at] = A, to.column[at] = back.row[at] = B;
        to.beta[at] = a[n], back.beta[at] = alpha[n];
        to.rho[at] = back.rho[at] = exact && there ? rho[t] : 0;
    }
    to.alpha[threadIdx.x % 32] = two_halves<T>(alpha[0], alpha[1]);
    float unit = 1;
    if constexpr (is_f16<T> && UNIT == 1) {
        float U = unit_of(warp_reduce(fmaxf(a[0], a[1]), Max()));
        a[0] *= U, a[1] *= U, unit = 1 / U;
    }
    back.alpha[threadIdx.x % 32] = two_halves<T>(a[0], a[1]);
    float alpha_sum = alpha[0] + alpha[1], a_sum = a[0] + a[1];
    if (threadIdx.x % 32 == 0) {
        float gamma = power(before - last);
        to.gamma = back.gamma = gamma, to.alpha_sum = alpha_sum, back.alpha_sum = a_sum;
        if constexpr (is_f16<T>) {
            to.unit = to.behind = 1, back.unit = unit;
            // The chunk before this one reads the state in this one's unit.
            if (own.first + CHUNK >= sequence.length) back.behind = 1;
            if (slot.part > 0) reverse[own_chunk() - 1].behind = unit;
        } else {
            for (Weights* both : {&to, &back}) both->unit = both->behind = 0;
        }
    }
}
// ANCHOR_END: weights

template <class T, int THREADS, int UNIT, class GATES = Exponential, class NORMALIZER = MaxExp>
__global__ void __launch_bounds__(THREADS)
    vlstm_gate_weights(const float* __restrict__ i, const float* __restrict__ f, const float* __restrict__ normaliser,
                       const float* __restrict__ rho, const float* __restrict__ m0, const Before* __restrict__ sums,
                       Weights* __restrict__ forward, Weights* __restrict__ reverse,
                       const int* __restrict__ cu_seqlens, bool packed, bool exact, bool given, int heads,
                       int sequences, int chunks, int S, float log2_scale, float eps, bool weighed) {
    make_weights<T, UNIT, GATES, NORMALIZER>(i, f, normaliser, rho, m0, sums, forward, reverse, cu_seqlens, packed, exact,
                                             given, heads, sequences, chunks, S, log2_scale, eps, weighed);
}

// Of chunks, of_chunks and back_of_chunks, by the blocks of y = 0, and of stretches, by others.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS)
    vlstm_gate_weights_twice(const float* __restrict__ i, const float* __restrict__ f, const float* __restrict__ normaliser,
                             const float* __restrict__ rho, const float* __restrict__ m0, const Before* __restrict__ sums,
                             Weights* __restrict__ forward, Weights* __restrict__ reverse,
                             const int* __restrict__ cu_seqlens, bool packed, bool exact, bool given, int heads,
                             int sequences, int chunks, int S, float log2_scale, float eps,
                             Weights* __restrict__ of_chunks, Weights* __restrict__ back_of_chunks) {
    if (blockIdx.y == 0)
        make_weights<T, 1>(i, f, normaliser, rho, m0, sums, of_chunks, back_of_chunks, cu_seqlens, packed, exact, given,
                           heads, sequences, chunks, S, log2_scale, eps, true);
    else
        make_weights<T, ANCHOR_CHUNKS>(i, f, normaliser, rho, m0, sums, forward, reverse, cu_seqlens, packed, exact,
                                       given, heads, sequences, chunks, S, log2_scale, eps, true);
}
