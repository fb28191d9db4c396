// What x adds to the gates of all steps, one product before the first step, by wgmma and TMA.
//
//   ax_rn = Σ_k x_rk w_nk + b_n       products of T's, sums in f32; n = 4 j + g: gate g of unit j
//
// x [T B, I], W_ih [4H, I], ax [T B, 4H], whose rows have the gates of a unit side by side, as v3_tensor.cu reads them:
// weights of column n are row g H + j of W_ih. Nobody moves them: TMA's box of W_ih takes the gates as a dimension of its
// own, between k and the units.
//
// Work split: that of matmul's v13_stores. A block a multiprocessor goes from tile to tile, BM x BN; one warp asks for
// tiles of x and W_ih, two warpgroups multiply 64 rows each, and TMA stores. Both operands lie along k.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/ptx/wgmma.cuh"
#include "lab/ring.cuh"
#include "lab/scalar.cuh"
#include "lab/staged_store.cuh"
#include "lab/tile_order.cuh"

using namespace lab;

// Of a block of three warpgroups, two of which multiply; together no more than the block was launched with.
constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240, GATES = 4;

// BM rows of x and BN of the weights, BK deep: a span of 128 bytes.
template <class T, int BM, int BN, int BK> struct RowTiles {
    static constexpr int SPAN = 128, STEP = 32 / sizeof(T), CELLS = (BM + BN) * BK, BYTES = CELLS * sizeof(T);
    static_assert(BK * sizeof(T) == SPAN && BM % 64 == 0 && BN % (8 * GATES) == 0, "whole spans, whole units");
    T *x, *w;

    __device__ __forceinline__ explicit RowTiles(T* tiles) : x(tiles), w(tiles + BM * BK) {}

    // Rows r of x and columns n of ax, from k on; one thread.
    __device__ __forceinline__ void load(const TensorMap& X, const TensorMap& W, int r, int n, int k, Mbarrier* full) const {
        mbarrier_arrive_expect(full, BYTES);
        tensor_load(x, X, {k, r}, full);
        tensor_load(w, W, {k, 0, n / GATES}, full);
    }
    // sum = or += the product of 64 rows of x, from `row` on, and the weights: one group of wgmma.
    __device__ __forceinline__ void multiply(float (&sum)[BN / 2], int row, bool adds) const {
        auto rows = k_major<SPAN>(x + row * BK, 8 * SPAN), columns = k_major<SPAN>(w, 8 * SPAN);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK; k += STEP)
            wgmma<T, BN>(sum, advance(rows, k * sizeof(T)), advance(columns, k * sizeof(T)), adds || k > 0);
        wgmma_commit();
    }
};

// The biases of a tile's columns, which a warpgroup keeps in shared memory.
template <class T, int BN> struct Biases {
    float* of_column;  // BN

    // Of columns from n0 on. All have added those of the tile before: a barrier of its stores lies between.
    __device__ __forceinline__ void load(const T* bias_ih, const T* bias_hh, int n0, int H, bool biased) const {
        for (int i = threadIdx.x % 128; i < BN; i += 128) {
            int n = n0 + i, row = n % GATES * H + n / GATES;
            of_column[i] = biased && n < GATES * H ? to_math(bias_ih[row]) + to_math(bias_hh[row]) : 0.0f;
        }
    }
    __device__ __forceinline__ void add(float (&sum)[BN / 2]) const {
        named_barrier_sync(1 + threadIdx.x / 128, 128);  // what all threads of the warpgroup have loaded
        const float* own = of_column + 2 * (threadIdx.x % 4);
#pragma unroll
        for (int j = 0; j < BN / 8; ++j) {
            float2 two = *reinterpret_cast<const float2*>(own + 8 * j);
            sum[4 * j] += two.x, sum[4 * j + 1] += two.y, sum[4 * j + 2] += two.x, sum[4 * j + 3] += two.y;
        }
    }
};

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int gates_of_x_shared = PLACES * RowTiles<T, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    gates_of_x(const __grid_constant__ TensorMap X, const __grid_constant__ TensorMap W,
               const __grid_constant__ TensorMap AX, const T* __restrict__ bias_ih, const T* __restrict__ bias_hh,
               int rows, int H, int I, int biased) {
    using Tiles = RowTiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    __shared__ float2 bias[BM / 64][BN / 2];
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    TileOrder<HIGH> order{(rows + BM - 1) / BM, (GATES * H + BN - 1) / BN};
    int all = order.down * order.across;
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2)
            for (int n = blockIdx.x; n < all; n += gridDim.x) {
                auto [i, j, g] = order.at(n);
                for (int k = 0; k < I; k += BK, turn.advance()) {
                    ring.wait_empty(turn);
                    Tiles(tiles + turn.place * Tiles::CELLS).load(X, W, i * BM, j * BN, k, &ring.full[turn.place]);
                }
            }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        float sum[BN / 2];
        int group = threadIdx.x / 128, row = group * 64;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        Biases<T, BN> biases{&bias[group][0].x};
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            auto [i, j, g] = order.at(n);
            biases.load(bias_ih, bias_hh, j * BN, H, biased);
            Turn<PLACES> last;
            for (int k = 0; k < I; k += BK, turn.advance()) {
                ring.wait_full(turn);
                Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum, row, k > 0);
                wgmma_wait<1>();
                if (k > 0 && threadIdx.x % 128 == 0) ring.leave(last);
                last = turn;
            }
            wgmma_wait<0>();
            if (threadIdx.x % 128 == 0) ring.leave(last);
            biases.add(sum);
            staged.store(AX, sum, i * BM + row, j * BN, 0);
        }
        staged.finish();
    }
}
