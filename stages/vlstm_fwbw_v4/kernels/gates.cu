// The weights of all chunks, for both directions, in two launches: M of a chunk needs what the chunks before it add.
//
// Without M (lab/vlstm/policy.cuh) the forward pass leaves them.
//
// Work split of both: a warp for each chunk of each sequence, a lane for two neighbouring positions.
#include "lab/reduce.cuh"
#include "lab/vlstm/scan.cuh"
#include "lab/vlstm/weights.cuh"

using namespace lab;

// The warp's place among the chunks of all heads.
__device__ __forceinline__ long long own_chunk() { return (blockIdx.x * 1ll * blockDim.x + threadIdx.x) / 32; }

// The gates of a chunk.
struct Chunk {
    int first;
    float input[2];
    double forget[2];

    __device__ __forceinline__ Chunk(const float* i, const float* f, const Slot& slot) : first(slot.part * CHUNK) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            // Past the end gates keep all and take nothing.
            int t = first + threadIdx.x % 32 * 2 + n;
            bool there = t < slot.sequence.length;
            input[n] = there ? i[slot.sequence.row() + t] : lowest<float>();
            forget[n] = there ? log_kept(f[slot.sequence.row() + t]) : 0;
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
    Chunk own(i, f, slot);
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
template <class T, int UNIT>
__device__ __forceinline__ void make_weights(const float* __restrict__ i, const float* __restrict__ f, const float* __restrict__ normaliser,
                                             const float* __restrict__ rho, const float* __restrict__ m0, const Before* __restrict__ sums,
                                             Weights* __restrict__ forward, Weights* __restrict__ reverse,
                                             const int* __restrict__ cu_seqlens, bool packed, bool exact, bool given, int heads,
                                             int sequences, int chunks, int S, float log2_scale, float eps) {
    if (own_chunk() >= 1ll * heads * chunks) return;
    Slot slot(own_chunk(), CHUNK, chunks, S, packed ? cu_seqlens : nullptr, heads, sequences);
    if (!slot.is_in_sequence(CHUNK)) return;
    const Sequence& sequence = slot.sequence;
    Chunk own(i, f, slot);
    ChunkGates<> gates(own.input, own.forget);
    double M = given ? m_from(m0[sequence.index]) : LOWEST;
    M = join(sums + sequence.slot(CHUNK, chunks), slot.part, M);
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
    if (ends) last = static_cast<float>(ChunkGates<>::larger(all + last, LOWEST)) - all;
    WeightsOfTwo two;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        int t = own.first + threadIdx.x % 32 * 2 + n;
        double R = gates.R(M, n) - earlier, x = gates.x[n] - earlier;
        bool there = t < sequence.length;
        float N = there ? normaliser[t] + eps : -lowest<float>();
        two.A[n] = two_floats(log2_scale - R * LOG2E_64 - log2(static_cast<double>(N)));
        two.B[n] = two_floats(x * LOG2E_64);
        two.a[n] = exp2f(log2_scale) * power(before - R) / N, two.alpha[n] = power(x - last);
        two.rho[n] = exact && there ? rho[t] : 0;
    }
    two.store<T, UNIT == 1>(forward[own_chunk()], reverse[own_chunk()], slot.part > 0 ? &reverse[own_chunk() - 1] : nullptr,
                            own.first + CHUNK >= sequence.length, power(before - last));
}
// ANCHOR_END: weights

template <class T, int THREADS, int UNIT>
__global__ void __launch_bounds__(THREADS)
    vlstm_gate_weights(const float* __restrict__ i, const float* __restrict__ f, const float* __restrict__ normaliser,
                       const float* __restrict__ rho, const float* __restrict__ m0, const Before* __restrict__ sums,
                       Weights* __restrict__ forward, Weights* __restrict__ reverse,
                       const int* __restrict__ cu_seqlens, bool packed, bool exact, bool given, int heads,
                       int sequences, int chunks, int S, float log2_scale, float eps) {
    make_weights<T, UNIT>(i, f, normaliser, rho, m0, sums, forward, reverse, cu_seqlens, packed, exact,
                                             given, heads, sequences, chunks, S, log2_scale, eps);
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
                           heads, sequences, chunks, S, log2_scale, eps);
    else
        make_weights<T, ANCHOR_CHUNKS>(i, f, normaliser, rho, m0, sums, forward, reverse, cu_seqlens, packed, exact,
                                       given, heads, sequences, chunks, S, log2_scale, eps);
}
