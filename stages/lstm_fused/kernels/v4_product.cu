// What x adds to the gates of all steps, one product before the first step, by wgmma and TMA.
//
//   ax_rn = Σ_k x_rk w_nk + b_n       products of T's, sums in f32; n = 4 j + g: gate g of unit j
//
// x [T B, I], W_ih [4H, I], ax [T B, 4H], whose rows have the gates of a unit side by side, as v3_tensor.cu reads them:
// weights of column n are row g H + j of W_ih. Nobody moves them: TMA's box of W_ih takes the gates as a dimension of its
// own, between k and the units.
//
// Work split: that of matmul's v13_stores, by lab/product.cuh. A block a multiprocessor goes from tile to tile, BM x BN; one
// thread asks for tiles of x and W_ih, two warpgroups multiply 64 rows each, and TMA stores. Both operands lie along k.
#include "lab/product.cuh"
#include "lab/ptx/grid_dependency.cuh"
#include "lab/scalar.cuh"

using namespace lab;

constexpr int GATES = 4;

template <class T, int BM, int BN, int BK, int HIGH> struct GateJob : ProductJob {
    static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
    const TensorMap &X, &W, &AX;
    const T *bias_ih, *bias_hh;
    TileOrder<HIGH> order;
    int H, I, biased;
    float (*biases)[BN];  // of a tile's columns, which a warpgroup keeps in shared memory

    // ANCHOR: job
    __device__ __forceinline__ Corner at(int n) const {
        auto [i, j, g] = order.at(n);
        return {i * BM, j * BN};
    }
    __device__ __forceinline__ int steps(Corner) const { return (I + BK - 1) / BK; }
    // Columns j of ax are the gates of units from j / 4 on.
    template <class Tiles> __device__ __forceinline__ void load(Corner at, int s, Tiles tiles, Mbarrier* full) const {
        Tiles::expect(full);
        tiles.issue_load_of_a(X, at.i, s * BK, full);
        tensor_load(tiles.b, W, {s * BK, 0, at.j / GATES}, full);
    }
    // All have added the biases of the tile before: a barrier of its stores lies between.
    __device__ __forceinline__ void begin(Corner at) const {
        float* own = biases[threadIdx.x / 128];
        for (int i = threadIdx.x % 128; i < BN; i += 128) {
            int column = at.j + i, row = column % GATES * H + column / GATES;
            own[i] = biased && column < GATES * H ? to_math(bias_ih[row]) + to_math(bias_hh[row]) : 0.0f;
        }
    }
    template <class Store>
    __device__ __forceinline__ void end(Corner at, float (&sum)[BN / 2], int row, Store store) const {
        named_barrier_sync(1 + threadIdx.x / 128, 128);  // what all threads of the warpgroup have loaded
        add_to_columns<BN>(sum, biases[threadIdx.x / 128]);
        store(AX, at.i + row, at.j);
    }
    // ANCHOR_END: job
};

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int gates_of_x_shared = PRODUCT_BYTES<T, BM, BN, BK, PLACES>;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(PRODUCT_THREADS<BM>, 1)
    gates_of_x(const __grid_constant__ TensorMap X, const __grid_constant__ TensorMap W,
               const __grid_constant__ TensorMap AX, const T* __restrict__ bias_ih, const T* __restrict__ bias_hh,
               int rows, int H, int I, int biased) {
    static_assert(BN % (8 * GATES) == 0, "whole units");
    griddep_launch_dependents();  // all steps begin where blocks of this grid have ended, and wait for ax with their weights
    DYNAMIC_TILES(T, tiles);
    __shared__ __align__(8) float biases[BM / 64][BN];
    TileOrder<HIGH> order{(rows + BM - 1) / BM, (GATES * H + BN - 1) / BN};
    GateJob<T, BM, BN, BK, HIGH> job{{}, X, W, AX, bias_ih, bias_hh, order, H, I, biased, biases};
    go_through<OperandTiles<T, ALONG_K, ALONG_K, BM, BN, BK>, T, BM, BN, PLACES>(tiles, order.down * order.across, job);
}
