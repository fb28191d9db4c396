// All steps of the LSTM's way back in one launch, where a cluster has more than four rows: W_hhᵀ da of a step by wgmma.
//
//   dh_{t−1} = W_hhᵀ da_t + dy_{t−1}     products of T's, sums in f32; da as in lstm.cuh
//
// Work split: as in v3_tensor_back.cu a cluster has ROWS rows of the batch, a block the da of UNITS units, and the rows of
// W_hh that belong to their gates: their product with its da is a part of dh of all HT units. A warp's 16 rows of a tile of
// 64 are units of one block, to which it sends its part (lab/slices.cuh) as soon as it has it, while the next tile is being
// multiplied. A part is f32 or, PART = 2 bytes, T's, where boxes of f32 find no room. Who owns a unit adds up the parts of
// all blocks in f32, always in the same order; a thread has a unit of two rows that lie side by side in memory.
//
// Steps: parts have come · cells, da of this block · a barrier · products, tile by tile, which each warp sends. All that a
// cell takes from the gates and c alone is computed before the parts come.
//
// gates: [T B, H, 4], the gates of a cell side by side; c: [T B, H]. da_halves [T B, 4H] in T; zero where a row has no step.
// Other tensors are as v3_tensor_back.cu has them. A grid of B / ROWS clusters, rounded up. f16 and bf16 alone, no peepholes.
#include "gate_groups.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "tensor_back.cuh"

using namespace lab;

// What is PART bytes on its way.
template <class T, int PART> struct PartOf { using type = T; };
template <class T> struct PartOf<T, 4> { using type = float; };

// Two parts of neighbouring rows.
template <class T, class P> __device__ __forceinline__ void store_parts(P* to, float a, float b) {
    if constexpr (sizeof(P) == 4) *reinterpret_cast<float2*>(to) = make_float2(a, b);
    else *reinterpret_cast<unsigned*>(to) = two_halves<T>(a, b);
}
template <class T, class P> __device__ __forceinline__ float2 load_parts(const P* from) {
    if constexpr (sizeof(P) == 4) return *reinterpret_cast<const float2*>(from);
    else return floats_of<T>(*reinterpret_cast<const unsigned*>(from));
}

// A cluster's shares of the products: tile m of a warp is 16 units of the block peer(m); the sum is over all gates of the
// block's units.
template <int HT, int BLOCKS, int ROWS, int KEPT, int PART>
struct GroupBackShares : GroupShare<BLOCKS / 8 * (HT / BLOCKS / 16) * (HT / BLOCKS / 4), HT / BLOCKS / 4, ROWS, KEPT> {
    static constexpr int WARPS = 8, THREADS = 32 * WARPS, GROUPS = THREADS / 128;
    static constexpr int UNITS = HT / BLOCKS, OF_BLOCK = UNITS / 16, TILES = BLOCKS / WARPS * OF_BLOCK;
    static constexpr int DA = GATES * UNITS * ROWS + GroupBackShares::GAP;
    // The rows of a unit, an odd number of pairs: lanes of neighbouring units read pairs of different banks.
    static constexpr int PITCH = ROWS / 2 % 2 ? ROWS : ROWS + 2, SLICE = UNITS * PITCH, BOX = BLOCKS * SLICE;
    // Threads have whole rows of units: so many rows at a time, and pairs each.
    static constexpr int USED = THREADS / UNITS * UNITS, ROUND = USED / UNITS * 2, PAIRS = UNITS * ROWS / 2;
    static constexpr int COUNT = (PAIRS + USED - 1) / USED;
    // Fragments, sums of da; boxes and slices, da of two steps; barriers and words of lab/slices.cuh, lengths of rows.
    static constexpr int BYTES = 16 * (GroupBackShares::IN_SHARED * GROUPS * GroupBackShares::OPERAND + 2 * PAIRS) +
                                 4 * PART * BOX + 2 * 2 * DA + sizeof(Arrived<BLOCKS>) + 4 * ROWS;
    static_assert(UNITS % 16 == 0 && UNITS * BLOCKS == HT, "whole tiles for each block: change HT or BLOCKS");
    static_assert(BLOCKS % WARPS == 0, "a warp has all units of a block, or of two");
    static_assert(ROWS % 2 == 0, "a thread has two rows");

    static __device__ __forceinline__ int peer(int m) { return threadIdx.x / 32 + m / OF_BLOCK * WARPS; }
    static __device__ constexpr int unit(int m) { return m % OF_BLOCK * 16; }
};

template <class T, int HT, int BLOCKS, int ROWS, int KEPT, int PART>
constexpr int lstm_wgmma_back_shared = GroupBackShares<HT, BLOCKS, ROWS, KEPT, PART>::BYTES;

template <class T, int HT, int BLOCKS, int ROWS, int KEPT, int PART>
__global__ void __launch_bounds__(256, 1)
    lstm_wgmma_back(const T* __restrict__ dy, const T* __restrict__ weight_hh, const T* __restrict__ c0,
                    const T* __restrict__ dhn, const T* __restrict__ dcn, const int* __restrict__ lengths,
                    const float* __restrict__ c, const float* __restrict__ gates, T* __restrict__ da_halves,
                    T* __restrict__ first_da, float* __restrict__ bias_sums, T* __restrict__ dh0,
                    T* __restrict__ dc0, int count, int B, int H, int stride, int column, int state, int reverse) {
    using S = GroupBackShares<HT, BLOCKS, ROWS, KEPT, PART>;
    using P = typename PartOf<T, PART>::type;
    DYNAMIC_SHARED(uint4, operands);
    float4* bias = reinterpret_cast<float4*>(operands + S::IN_SHARED * S::GROUPS * S::OPERAND);  // no place in registers
    P* boxes = reinterpret_cast<P*>(bias + 2 * S::PAIRS);
    T* das = reinterpret_cast<T*>(boxes + 4 * S::BOX);  // of even steps and of odd ones: [4 UNITS / 8][ROWS][8]
    auto* arrived = reinterpret_cast<Arrived<BLOCKS>*>(das + 2 * S::DA);
    int* length = reinterpret_cast<int*>(arrived + 1);
    int rank = blockIdx.x % BLOCKS, first_row = blockIdx.x / BLOCKS * ROWS, first_unit = rank * S::UNITS;
    int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    Slices<P, BLOCKS, S::SLICE, S::THREADS, BLOCKS> parts(boxes, boxes + 2 * S::BOX, *arrived, rank);
    GroupFragments<T, S> weights(operands);
    weights.fill_by_gates(weight_hh, H, [&](int f) {
        int m = f / S::STEPS;
        return make_int2(S::peer(m) * S::UNITS + S::unit(m), first_unit + f % S::STEPS * 4);
    });

    for (int i = threadIdx.x; i < ROWS; i += S::THREADS)
        length[i] = first_row + i < B ? lengths[first_row + i] : 0;
    for (int i = threadIdx.x; i < S::BOX; i += S::THREADS) boxes[i] = P(0.0f);
    for (int i = threadIdx.x; i < 2 * S::BOX; i += S::THREADS) parts.slice(0)[i] = P(0.0f);  // what lies between rows goes along
    for (int i = threadIdx.x; i < 2 * S::DA; i += S::THREADS) das[i] = from_math<T>(0);
    for (int i = threadIdx.x; i < 2 * S::PAIRS; i += S::THREADS) bias[i] = make_float4(0, 0, 0, 0);
    __syncthreads();  // threads read lengths that others have stored

    // This thread's unit and its rows: cell (n, e) has row(n, e).
    int u = threadIdx.x % S::UNITS, first = threadIdx.x / S::UNITS * 2, j = first_unit + u;
    auto row = [&](int n, int e) { return first + n * S::ROUND + e; };
    auto is = [&](int n) { return int(threadIdx.x) < S::USED && row(n, 0) < ROWS; };
    auto there = [&](int n, int e) { return is(n) && j < H && first_row + row(n, e) < B; };
    auto in_state = [&](int n, int e) { return (state * 1ll * B + first_row + row(n, e)) * H + j; };
    auto in_da = [&](int n, int e) { return (u / 2 * ROWS + row(n, e)) * 8 + u % 2 * 4; };
    auto in_bias = [&](int n, int e) { return e * S::PAIRS + n * S::USED + threadIdx.x; };
    auto step = [&](int s) { return reverse ? s : count - 1 - s; };
    // Where they are in a step's tensors: of the step to be fetched, of the step at hand.
    long long of_step = B * 1ll * H, onwards = reverse ? 1 : -1, at = step(0) * of_step + (first_row + first) * 1ll * H + j;
    auto gates_of = reinterpret_cast<const float4*>(gates) + at;
    const float* c_of = c + at;
    const T* dy_of = dy + (step(0) * 1ll * B + first_row + first) * stride + column + j;
    T* da_of = da_halves + (step(0) * 1ll * B + first_row + first) * GATES * H + j;

    KeptCell<T> now[S::COUNT][2];
    float dc[S::COUNT][2];
    unsigned live = 0, there_bits = 0;  // a bit for each cell: its row has the step; it is of the problem
    // c_before of a row's first step is c0, and dh gets dhn at its last: both are seen to later.
    auto fetch = [&](int s) {
        int t = step(s);
        live = 0;
#pragma unroll
        for (int n = 0; n < S::COUNT; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                int i = n * S::ROUND + e, of_row = there_bits >> (2 * n + e) & 1 ? length[row(n, e)] : 0;
                bool has = s < count && t < of_row;
                live |= has ? 1u << (2 * n + e) : 0u;
                KeptCell<T>& of = now[n][e];
                of.gates = has ? gates_of[i * H] : make_float4(0, 0, 0, 0), of.c = has ? c_of[i * H] : 0.0f;
                of.c_before = has && !Ends(t, of_row, reverse != 0).first ? c_of[i * H + onwards * of_step] : 0.0f;
                of.dy = has ? dy_of[i * stride] : from_math<T>(0);
            }
        gates_of += onwards * of_step, c_of += onwards * of_step, dy_of += onwards * B * stride;
    };
    auto sum_of_parts = [&](int n, int s) {
        const P* own = parts.box(s) + u * S::PITCH + row(n, 0);
        float2 sum = make_float2(0, 0);
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
            float2 part = load_parts<T>(own + b * S::SLICE);
            sum.x += part.x, sum.y += part.y;
        }
        return sum;
    };
#pragma unroll
    for (int n = 0; n < S::COUNT; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            there_bits |= there(n, e) ? 1u << (2 * n + e) : 0u;
            dc[n][e] = there(n, e) ? to_math(dcn[in_state(n, e)]) : 0.0f;
        }
    fetch(0);
    parts.begin();

    for (int s = 0; s < count; ++s) {
        T *da = das + s % 2 * S::DA, *before = das + (s + 1) % 2 * S::DA;
        // ANCHOR: step_back
        Factors factors[S::COUNT][2];
        float upstream[S::COUNT][2] = {};
#pragma unroll
        for (int n = 0; n < S::COUNT; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                KeptCell<T>& of = now[n][e];
                if (live >> (2 * n + e) & 1) {
                    Ends ends(step(s), length[row(n, e)], reverse != 0);
                    if (ends.last) upstream[n][e] = to_math(dhn[in_state(n, e)]);
                    if (ends.first) of.c_before = to_math(c0[in_state(n, e)]);
                }
                factors[n][e].template take<T>(of.gates, of.c, of.c_before);
            }
        if (s > 0) parts.wait(s);
#pragma unroll
        for (int n = 0; n < S::COUNT; ++n) {
            if (!is(n)) continue;
            float2 sum = sum_of_parts(n, s);
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float dh = (e ? sum.y : sum.x) + to_math(now[n][e].dy) + upstream[n][e];
                float4 own = make_float4(0, 0, 0, 0);
                // Of a row that has no more steps, those of its first: their products are dh0.
                uint2 halves = *reinterpret_cast<const uint2*>(before + in_da(n, e));
                if (live >> (2 * n + e) & 1) {
                    own = factors[n][e].step(dh, dc[n][e]), halves = four_halves_of<T>(own);
                    add(bias[in_bias(n, e)], own);
                }
                *reinterpret_cast<uint2*>(da + in_da(n, e)) = halves;
                if (there_bits >> (2 * n + e) & 1) store_gates(da_of + (n * S::ROUND + e) * GATES * H, H, own);
            }
        }
        da_of += onwards * B * GATES * H;
        fence_proxy_async_shared();  // wgmma reads da
        __syncthreads();             // of all units of the block, and the box is read
        parts.tell(s);
        fetch(s + 1);  // on its way while products are made and parts travel
        float sum[2][S::COLUMNS / 2];
        weights.multiply(sum[0], 0, da);
#pragma unroll
        for (int m = 0; m < S::TILES; ++m) {
            if (m + 1 < S::TILES) weights.multiply(sum[(m + 1) % 2], (m + 1) * S::STEPS, da), wgmma_wait<1>();
            else wgmma_wait<0>();
            P* to = parts.slice(s, S::peer(m)) + (S::unit(m) + g) * S::PITCH + 2 * q;
#pragma unroll
            for (int n = 0; n < S::COLUMNS / 8; ++n)
                if (8 * n + 8 <= ROWS || 8 * n + 2 * q < ROWS) {
                    const float* of = sum[m % 2] + 4 * n;
                    store_parts<T>(to + 8 * n, of[0], of[1]), store_parts<T>(to + 8 * n + 8 * S::PITCH, of[2], of[3]);
                }
            // da may still be read, and so the next step writes the other.
            if ((m + 1) % S::OF_BLOCK == 0) parts.send_one(s, m / S::OF_BLOCK);
        }
        // ANCHOR_END: step_back
    }
    parts.wait(count);
#pragma unroll
    for (int n = 0; n < S::COUNT; ++n) {
        if (!is(n)) continue;
        float2 sum = sum_of_parts(n, count);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            if (!there(n, e)) continue;
            float dh = length[row(n, e)] > 0 ? (e ? sum.y : sum.x) : to_math(dhn[in_state(n, e)]);
            dh0[in_state(n, e)] = from_math<T>(dh), dc0[in_state(n, e)] = from_math<T>(dc[n][e]);
            long long first_at = (first_row + row(n, e)) * 1ll * GATES * H + j;
            uint2 da = *reinterpret_cast<const uint2*>(das + (count - 1) % 2 * S::DA + in_da(n, e));
            store_gates(first_da + first_at, H, four_floats<T>(da));
            store_gates(bias_sums + first_at, H, bias[in_bias(n, e)]);
        }
    }
    parts.end();
}
