// All steps of the LSTM's way back in one launch, of as many units as v7_tensor_grid.cu takes.
//
//   dh_{t-1} = W_hh^T da_t + dy_{t-1}     products of T's, sums in f32; da as in lstm.cuh
//
// Work split: a group has ROWS rows of the batch, and its blocks are a square of SIDE by SIDE. Each has the cells of 16 units.
// Block (p, q) multiplies the da of all blocks of line p by the weights of the units of line q: a part of their dh. So da goes
// to SIDE blocks, and parts come from SIDE, where one to all would be SIDE^2. A warpgroup has a tile of 64 units and a share
// of the sum, its weights in registers.
//
// Steps: parts have come · cells, da · a barrier, a flag · da of the line has come · product · a barrier · sums of the
// warpgroups, parts · a barrier, a flag. Two boxes of each, of even steps and of odd ones: a block writes the da of step s
// when it has parts of step s - 1, whose da all blocks of its line had given after they had read that of step s - 2; likewise
// parts.
//
// post: of each group 2 boxes of da, [SIDE][SIDE * 8][ROWS][8], the gates of a unit side by side; parts: 2 boxes of them,
// [SIDE][BLOCKS][ROWS][16]; flags: 2 SIDE lines a group, zero at first. gates: if `halves`, [T B, H, 4], and da goes to
// da_halves; else [T B, 4, H], and da takes their place in f32 (v3_tensor_back.cu). Other tensors are as v6_wgmma_back.cu has
// them; the first group has the rows from `first_row` on. A grid of groups x BLOCKS, all resident.
#include "grid_exchange.cuh"
#include "gate_groups.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "tensor_back.cuh"

using namespace lab;

template <int HT> constexpr int SIDE_OF = HT == 1024 ? 8 : 4;

// Side by side, or gate by gate.
__device__ __forceinline__ float4 load_gates(const float* gates, bool together, long long at, int j, int H) {
    if (together) return reinterpret_cast<const float4*>(gates)[at * H + j];
    const float* of = gates + at * GATES * H + j;
    return make_float4(of[0], of[H], of[2 * H], of[3 * H]);
}

// A block's share of HT units, and that of each of its four warpgroups, with ROWS rows of the batch.
template <int HT, int ROWS_, int SIDE_ = SIDE_OF<HT>, int TILES_ = SIDE_ / 4>
struct GridBackShares : GroupShare<SIDE_ * TILES_, SIDE_ * TILES_, ROWS_, SIDE_ * TILES_> {
    static constexpr int UNITS = 16, SIDE = SIDE_, BLOCKS = SIDE * SIDE, THREADS = 512, CELLS = UNITS * ROWS_;
    // Tiles of 64 units, and warpgroups that share the sum of one.
    static constexpr int TILES = TILES_, GROUPS = 4 / TILES, OF_TILES = 128 * TILES;
    static constexpr int OUT = SIDE * UNITS, LINE = GATES * OUT * ROWS_, SHARE = LINE / GROUPS, SOURCES = SIDE / GROUPS;
    static constexpr int PARTS = SIDE * HT * ROWS_;
    // Sums of a row of the batch, of four more: lanes of four rows store in different banks.
    static constexpr int PITCH = OUT + 4, SUMS = ROWS_ * PITCH;
    static constexpr int BYTES = 2 * LINE + 4 * GROUPS * SUMS;
    static_assert(HT == BLOCKS * UNITS, "a square of blocks");
    static_assert(ROWS_ % 8 == 0 && CELLS <= THREADS, "whole columns of wgmma, and a thread a cell");
};

template <class T, int HT, int ROWS> constexpr int lstm_grid_back_shared = GridBackShares<HT, ROWS>::BYTES;

template <class T, int HT, int ROWS>
__global__ void __launch_bounds__(512, 1)
    lstm_grid_back(const T* __restrict__ dy, const T* __restrict__ weight_hh, const T* __restrict__ c0,
                   const T* __restrict__ dhn, const T* __restrict__ dcn, const int* __restrict__ lengths,
                   const float* __restrict__ c, float* gates, T* __restrict__ da_halves,
                   T* __restrict__ first_da, float* __restrict__ bias_sums, T* __restrict__ dh0, T* __restrict__ dc0,
                   T* post, float* parts, unsigned* flags, int first_row, int count, int B, int H, int stride, int column,
                   int state, int reverse, int halves) {
    using S = GridBackShares<HT, ROWS>;
    DYNAMIC_SHARED(T, box);
    float* sums = reinterpret_cast<float*>(box + S::LINE);
    int rank = blockIdx.x % S::BLOCKS, group = blockIdx.x / S::BLOCKS, p = rank / S::SIDE, q = rank % S::SIDE;
    int warpgroup = threadIdx.x / 128, share = warpgroup / S::TILES, tile = warpgroup % S::TILES;
    post += (group * 2 * S::SIDE + p) * S::LINE, parts += group * 2 * S::PARTS;
    // Those of line p and of line q; this block gives da to the blocks of its line p, and parts to those of line q.
    auto flags_of_line = [&](int n) { return flags + (group * 2 * S::SIDE + n) * FLAGS_OF_LINE; };
    unsigned *gave_da = flags_of_line(p), *gave_parts = flags_of_line(S::SIDE + p), *own_parts = flags_of_line(S::SIDE + q) + p;
    first_row += group * ROWS;

    GroupFragments<T, S> weights(reinterpret_cast<uint4*>(box));
    weights.fill_by_gates(weight_hh, H, [&](int f) {
        int unit = q * S::OUT + tile * 64 + threadIdx.x / 32 % 4 * 16;
        return make_int2(unit, p * S::OUT + (share * S::STEPS + f) * 4);
    });

    int u = threadIdx.x % S::UNITS, r = threadIdx.x / S::UNITS, j = rank * S::UNITS + u, row = first_row + r;
    bool is = r < ROWS, there = is && j < H && row < B;
    auto step = [&](int s) { return reverse ? s : count - 1 - s; };
    long long in_state = (state * 1ll * B + row) * H + j, onwards = reverse ? B : -1ll * B;
    int length = there ? lengths[row] : 0;
    KeptCell<T> now;
    // c_before of a row's first step is c0, and dh gets dhn at its last.
    auto fetch = [&](int s) {
        int t = step(s);
        long long at = t * 1ll * B + row;
        bool has = s < count && t < length;
        now.gates = has ? load_gates(gates, halves, at, j, H) : make_float4(0, 0, 0, 0);
        now.c = has ? c[at * H + j] : 0.0f, now.dy = has ? dy[at * stride + column + j] : from_math<T>(0);
        bool first = Ends(t, length, reverse != 0).first;
        now.c_before = !has ? 0.0f : first ? to_math(c0[in_state]) : c[(at + onwards) * H + j];
    };
    auto sum_of_parts = [&](int s) {
        wait_for_blocks<S::SIDE, S::CELLS>(gave_parts, s, threadIdx.x, 5);
        const float* own = parts + s % 2 * S::PARTS + rank * (S::UNITS * ROWS) + threadIdx.x;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < S::SIDE; ++n) sum += own[n * HT * ROWS];
        return sum;
    };
    float dc = there ? to_math(dcn[in_state]) : 0.0f;
    float4 bias = make_float4(0, 0, 0, 0);
    uint2 own_da = make_uint2(0, 0);
    fetch(0);

    for (int s = 0; s < count; ++s) {
        int t = step(s);
        // ANCHOR: step_back
        Factors factors;
        factors.template take<T>(now.gates, now.c, now.c_before);
        float4 da = make_float4(0, 0, 0, 0);
        if (is) {
            float dh = s > 0 ? sum_of_parts(s) : 0.0f;
            // Of a row that has no more steps it stays that of its first: their products are dh0.
            if (t < length) {
                if (Ends(t, length, reverse != 0).last) dh += to_math(dhn[in_state]);
                da = factors.step(dh + to_math(now.dy), dc), own_da = four_halves_of<T>(da);
                add(bias, da);
            }
            T* own = post + s % 2 * S::SIDE * S::LINE + ((q * S::UNITS + u) / 2 * ROWS + r) * 8 + u % 2 * 4;
            *reinterpret_cast<uint2*>(own) = own_da;
        }
        tell_blocks<1, 1>(gave_da + q, s + 1);
        long long in_da = (t * 1ll * B + row) * GATES * H + j;
        if (there && halves) store_gates(da_halves + in_da, H, da);
        if (there && !halves) store_gates(gates + in_da, H, da);
        fetch(s + 1);  // on its way while blocks wait for each other
        int thread = threadIdx.x % S::OF_TILES, barrier = 1 + share;
        wait_for_blocks<S::SOURCES, S::OF_TILES>(gave_da + share * S::SOURCES, s + 1, thread, barrier);
        const T* come = post + s % 2 * S::SIDE * S::LINE + share * S::SHARE;
        T* own_box = box + share * S::SHARE;
        fetch_operand<S::SHARE, S::OF_TILES>(own_box, come, thread, barrier);
        float sum[S::COLUMNS / 2];
        weights.multiply(sum, 0, own_box);
        wgmma_wait<0>();
        store_unit_sums<S>(sums + share * S::SUMS + tile * 64, sum);
        __syncthreads();  // threads add up what all warpgroups have stored
        float* to = parts + (s + 1) % 2 * S::PARTS + (p * S::BLOCKS + q * S::SIDE) * (S::UNITS * ROWS);
#pragma unroll
        for (int i = threadIdx.x; i < S::OUT * ROWS / 4; i += S::THREADS) {
            int quad = i % 4, of_row = i / 4 % ROWS, block = i / 4 / ROWS;
            const float* from = sums + of_row * S::PITCH + block * S::UNITS + 4 * quad;
            float4 part = *reinterpret_cast<const float4*>(from);
            for (int n = 1; n < S::GROUPS; ++n) add(part, *reinterpret_cast<const float4*>(from + n * S::SUMS));
            reinterpret_cast<float4*>(to)[i] = part;
        }
        tell_blocks<1, 1>(own_parts, s + 1);  // its barrier also says that all sums have been read
        // ANCHOR_END: step_back
    }
    if (!is) return;
    float dh = sum_of_parts(count);
    if (!there) return;
    dh0[in_state] = from_math<T>(length > 0 ? dh : to_math(dhn[in_state])), dc0[in_state] = from_math<T>(dc);
    store_gates(first_da + row * 1ll * GATES * H + j, H, four_floats<T>(own_da));
    store_gates(bias_sums + row * 1ll * GATES * H + j, H, bias);
}
