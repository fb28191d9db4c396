// All steps of the LSTM in one launch, for many rows: W_hh h of a step is a product of matrices, on tensor cores.
//
//   a_t = ax_t + W_hh h_{t−1}        products of T's, sums in f32; then as in lstm.cuh
//
// Work split: a cluster has ROWS rows of the batch, and keeps all of W_hh: a block the four gates of UNITS units, which
// its eight warps have as fragments (lab/fragments.cuh): half of the warps have one half of the sum over h. All leave
// their sums in shared memory, where a thread finds the four gates of its cells: a unit of a row each. It keeps their c.
// h goes around as T's, by bulk copies (lab/slices.cuh).
//
// Steps: h comes, and the products of what has come · sums · cells, h of this block · send. A box of h has, for each 16
// units, the rows one below the other.
//
// ax: T x B rows of H units, the four gates of a unit side by side, T's. Other tensors are as v1_sequence.cu has them. A
// grid of B / ROWS clusters, rounded up. f16 and bf16 alone, no peepholes.
#include "lab/fragments.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/grid_dependency.cuh"
#include "lab/quick.cuh"
#include "lab/slices.cuh"
#include "lstm.cuh"

using namespace lab;

// The gates of a cell: the sums of both halves of the warps, `apart` from each other, and what x adds.
template <class T> __device__ __forceinline__ float4 gates_of(const float4* sums, int apart, uint2 x) {
    float4 a = sums[0], b = sums[apart];
    float2 i_f = floats_of<T>(x.x), g_o = floats_of<T>(x.y);
    return make_float4(sigmoid_for<T>(a.x + b.x + i_f.x), sigmoid_for<T>(a.y + b.y + i_f.y),
                       tangent_for<T>(a.z + b.z + g_o.x), sigmoid_for<T>(a.w + b.w + g_o.y));
}

template <class T, int HT, int BLOCKS, int ROWS, int KEPT>
constexpr int lstm_tensor_shared = Shares<HT, BLOCKS, ROWS, KEPT>::BYTES;

template <class T, int HT, int BLOCKS, int ROWS, int KEPT>
__global__ void __launch_bounds__(256, 1)
    lstm_tensor(const T* __restrict__ ax, const T* __restrict__ weight_hh, const T* __restrict__ h0,
                const T* __restrict__ c0, const int* __restrict__ lengths, T* __restrict__ y, float* __restrict__ c,
                float* __restrict__ gates, T* __restrict__ hn, T* __restrict__ cn, int count, int B, int H, int stride,
                int column, int state, int reverse, int keep) {
    using S = Shares<HT, BLOCKS, ROWS, KEPT>;
    using Cell = CellOf<S, ROWS>;
    // What x adds is on its way during a step's products; where these are short, from the step before on.
    constexpr bool AHEAD = S::COLUMNS == 1;
    DYNAMIC_SHARED(float4, sums);
    uint4* fragments = reinterpret_cast<uint4*>(sums + S::HALVES * S::SUMS);
    T* boxes = reinterpret_cast<T*>(fragments + S::IN_SHARED * S::THREADS);
    auto* arrived = reinterpret_cast<Arrived<BLOCKS>*>(boxes + 2 * (S::BOX + S::SLICE));
    int* length = reinterpret_cast<int*>(arrived + 1);
    int rank = blockIdx.x % BLOCKS, first_row = blockIdx.x / BLOCKS * ROWS, first_unit = rank * S::UNITS;
    int fourth = threadIdx.x / 32 % S::FOURTHS, half = threadIdx.x / 32 / S::FOURTHS;
    using Exchange = Slices<T, BLOCKS, S::SLICE, S::THREADS, 1, 0, S::HALVES>;
    Exchange h(boxes, boxes + 2 * S::BOX, *arrived, rank);
    constexpr int PIECES = Exchange::PARTS / S::HALVES;  // of what a warp needs of h
    GateFragments<T, S> weights(fragments, weight_hh, first_unit + fourth * S::TILES * 4, half * S::STEPS * 16, H,
                                H * 1ll * H);
    Leave<S, ROWS> leave(sums + half * S::SUMS + fourth * S::TILES * 4);

    for (int i = threadIdx.x; i < ROWS; i += S::THREADS) length[i] = first_row + i < B ? lengths[first_row + i] : 0;
    for (int i = threadIdx.x; i < S::BOX; i += S::THREADS) {
        int row = first_row + i / 16 % ROWS, k = i / 16 / ROWS * 16 + i % 16;
        h.box(0)[i] = row < B && k < H ? h0[(state * 1ll * B + row) * H + k] : from_math<T>(0);
    }
    auto cell = [&](int n) { return Cell(n, first_unit, first_row, B, H); };
    auto in_slice = [](Cell of) { return (of.u / 16 * ROWS + of.r) * 16 + of.u % 16; };
    long long of_states = state * 1ll * B * H;
    auto step = [&](int s) { return reverse ? count - 1 - s : s; };
    // Of a row that has ended it is not used. Where a step has no next one, it is the last again.
    auto of_step = reinterpret_cast<const uint2*>(ax);
    auto fetch = [&](uint2(&to)[Cell::COUNT], int s) {
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n)
            to[n] = cell(n).there ? of_step[step(s) * 1ll * B * H + cell(n).in_step] : make_uint2(0, 0);
    };
    float own_c[Cell::COUNT];
    uint2 x[Cell::COUNT];
#pragma unroll
    for (int n = 0; n < Cell::COUNT; ++n) own_c[n] = cell(n).there ? to_math(c0[of_states + cell(n).in_step]) : 0.0f;
    griddep_wait();  // for ax: all else was there before
    h.begin();
    if (AHEAD) fetch(x, 0);

    for (int s = 0; s < count; ++s) {
        int t = step(s);
        // ANCHOR: step
        uint2 next[Cell::COUNT];
        float sum[S::TILES][S::COLUMNS][4];
        weights.template multiply<ROWS, PIECES>(sum, h.box(s) + half * S::STEPS * 16 * ROWS, [&](int piece) {
            if (s > 0) h.wait(s, half * PIECES + piece);
            if (piece == 0) fetch(AHEAD ? next : x, AHEAD ? min(s + 1, count - 1) : s);
        });
        leave(sum);
        __syncthreads();  // threads add up what both halves of the warps have left; the box is read
        if (s + 1 < count) h.tell(s);
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n) {
            Cell of = cell(n);
            if (!of.is) continue;
            float4 a = gates_of<T>(sums + of.r * S::SUM_ROW + of.u, S::SUMS, x[n]);
            float c_t = a.y * own_c[n] + a.x * a.z;
            bool live = t < length[of.r];
            // A row that has ended keeps this. Only this block's own copy writes here, behind the next step's barriers.
            T before = h.box(s)[rank * S::SLICE + in_slice(of)];
            h.slice(s)[in_slice(of)] = live ? from_math<T>(a.w * tangent_for<T>(c_t)) : before;
            if (live) own_c[n] = c_t;
            if (keep && live && of.there) store_kept(gates, c, a, c_t, t * 1ll * B + of.row, of.j, H);
            if (AHEAD) x[n] = next[n];
        }
        if (s + 1 < count) h.send(s);
        // ANCHOR_END: step
#pragma unroll
        for (int n = 0; n < Cell::COUNT; ++n) {
            Cell of = cell(n);
            if (!of.there) continue;
            T h_t = t < length[of.r] ? h.slice(s)[in_slice(of)] : from_math<T>(0);
            y[(t * 1ll * B + of.row) * stride + column + of.j] = h_t;
        }
    }
#pragma unroll
    for (int n = 0; n < Cell::COUNT; ++n) {
        Cell of = cell(n);
        if (!of.there) continue;
        hn[of_states + of.in_step] = h.slice(count - 1)[in_slice(of)], cn[of_states + of.in_step] = from_math<T>(own_c[n]);
    }
    h.end();
}
