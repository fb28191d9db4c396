// All steps of the LSTM in one launch, of more units than a cluster keeps the weights of: a group of blocks of the grid
// does, and hands h around through device memory.
//
//   a_t = ax_t + W_hh h_{t-1}        products of T's, sums in f32; then as in lstm.cuh
//
// Work split: a group has ROWS rows of the batch, a block of it the four gates of 16 units: 64 rows of W_hh, one tile of
// wgmma. Each of its four warpgroups sums up over a quarter of h, with weights that stay in registers, as soon as the
// blocks of that quarter have given theirs. A thread has a cell, adds up its four sums, and keeps its c and h.
//
// Steps: a quarter of h has come · product · a barrier · cells, h · a barrier, the block's flag · y. A block writes h of
// step s where h of step s - 2 was: it has the h of all blocks of step s - 1 then, which they gave after they had read that.
//
// post: 2 boxes of h a group, [HT / 8][ROWS][8]; flags: [COPIES][4] lines a group, zero at first. Other tensors are as v5_wgmma.cu has
// them; the first group has the rows from `first_row` on. A grid of groups x BLOCKS, all resident.
#include "grid_exchange.cuh"
#include "gate_groups.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lstm.cuh"
#include "quick_step.cuh"

using namespace lab;

// A block's share of HT units, and that of each of its warpgroups, with ROWS rows of the batch.
template <int HT, int ROWS_> struct GridShares : GroupShare<HT / 64, HT / 64, ROWS_, HT / 64> {
    static constexpr int UNITS = 16, BLOCKS = HT / UNITS, GROUPS = 4, THREADS = 128 * GROUPS, SOURCES = BLOCKS / GROUPS;
    static constexpr int COPIES = (BLOCKS + 7) / 8, LINE = GROUPS * FLAGS_OF_LINE;  // of flags: eight blocks ask for each
    static constexpr int CELLS = ROWS_ / 8, BOX = HT * ROWS_, QUARTER = BOX / GROUPS;
    // Sums of a row, of four more: lanes of four rows store two each in different banks.
    static constexpr int PITCH = GATES * UNITS + 4, SUMS = ROWS_ * PITCH;
    static constexpr int BYTES = 2 * BOX + 4 * GROUPS * SUMS;
    static_assert(ROWS_ % 8 == 0 && UNITS * ROWS_ <= THREADS, "whole columns of wgmma, and a thread a cell");
};

template <class T, int HT, int ROWS> constexpr int lstm_grid_shared = GridShares<HT, ROWS>::BYTES;

template <class T, int HT, int ROWS>
__global__ void __launch_bounds__(GridShares<HT, ROWS>::THREADS, 1)
    lstm_grid(const T* __restrict__ ax, const T* __restrict__ weight_hh, const T* __restrict__ h0,
              const T* __restrict__ c0, const int* __restrict__ lengths, T* __restrict__ y, float* __restrict__ c,
              float* __restrict__ gates, T* __restrict__ hn, T* __restrict__ cn, T* post, unsigned* flags, int first_row,
              int count, int B, int H, int stride, int column, int state, int reverse, int keep, int together) {
    using S = GridShares<HT, ROWS>;
    DYNAMIC_SHARED(T, box);
    float* sums = reinterpret_cast<float*>(box + S::BOX);
    int rank = blockIdx.x % S::BLOCKS, group = blockIdx.x / S::BLOCKS, quarter = threadIdx.x / 128;
    post += group * 2 * S::BOX, flags += group * S::COPIES * S::LINE, first_row += group * ROWS;
    unsigned* own_flags = flags + rank / S::SOURCES * FLAGS_OF_LINE + rank % S::SOURCES;
    const unsigned* flags_of = flags + rank % S::COPIES * S::LINE;
    T* own_box = box + quarter * S::QUARTER;
    // All warpgroups have the same units.
    int first_unit = rank * S::UNITS, as_first = first_unit - quarter * S::UNITS;
    GateGroups<T, S> weights(reinterpret_cast<uint4*>(box), weight_hh, as_first, H, quarter * (HT / S::GROUPS));

    for (int i = threadIdx.x; i < S::BOX; i += S::THREADS) {
        int row = first_row + i / 8 % ROWS, k = i / 8 / ROWS * 8 + i % 8;
        box[i] = row < B && k < H ? h0[(state * 1ll * B + row) * H + k] : from_math<T>(0);
    }
    int u = threadIdx.x % S::UNITS, r = threadIdx.x / S::UNITS, j = first_unit + u, row = first_row + r;
    bool is = r < ROWS, there = is && j < H && row < B;
    auto step = [&](int s) { return reverse ? count - 1 - s : s; };
    long long in_state = (state * 1ll * B + row) * H + j, at = step(0) * 1ll * B + row, onwards = reverse ? -1ll * B : B;
    T own_h = there ? h0[in_state] : from_math<T>(0);
    float own_c = there ? to_math(c0[in_state]) : 0.0f;
    int length = there ? lengths[row] : 0;
    auto x_of = reinterpret_cast<const uint2*>(ax);
    uint2 next = there ? x_of[at * H + j] : make_uint2(0, 0);
    fence_proxy_async_shared();  // wgmma reads h0
    __syncthreads();             // of all threads

    for (int s = 0; s < count; ++s, at += onwards) {
        // ANCHOR: step
        if (s > 0) {
            const T* come = post + s % 2 * S::BOX + quarter * S::QUARTER;
            int thread = threadIdx.x % 128, barrier = 1 + quarter;
            wait_for_blocks<S::SOURCES, 128>(flags_of + quarter * FLAGS_OF_LINE, s, thread, barrier);
            fetch_operand<S::QUARTER, 128>(own_box, come, thread, barrier);
        }
        float sum[S::CELLS][4];
        weights.multiply(sum, own_box);
        store_gate_sums<S>(sums + quarter * S::SUMS, sum);
        uint2 x = next;
        if (there && s + 1 < count) next = x_of[(at + onwards) * H + j];
        __syncthreads();  // threads add up what all warpgroups have stored
        float4 a = make_float4(0, 0, 0, 0);
        bool live = step(s) < length;
        if (is) {
            float2 i_f = floats_of<T>(x.x), g_o = floats_of<T>(x.y);
            a = make_float4(i_f.x, i_f.y, g_o.x, g_o.y);
#pragma unroll
            for (int n = 0; n < S::GROUPS; ++n)
                add(a, *reinterpret_cast<const float4*>(sums + n * S::SUMS + r * S::PITCH + GATES * u));
            float c_t = own_c, h_t = quick_step<T>(a, c_t);
            own_c = live ? c_t : own_c, own_h = live ? from_math<T>(h_t) : own_h;
            post[(s + 1) % 2 * S::BOX + (j / 8 * ROWS + r) * 8 + j % 8] = own_h;
        }
        tell_blocks<S::COPIES, S::LINE>(own_flags, s + 1);  // its barrier also says that all sums have been read
        // ANCHOR_END: step
        if (there) y[at * stride + column + j] = live ? own_h : from_math<T>(0);
        if (!keep || !live) continue;
        if (together) store_together(gates, c, a, own_c, at, j, H);
        else store_kept(gates, c, a, own_c, at, j, H);
    }
    if (there) hn[in_state] = own_h, cn[in_state] = from_math<T>(own_c);
}
