// The gradients by weights and by x, where da of all steps are known: products over all steps, by wgmma and TMA.
//
//   dW_ih = Σ_r da_rᵀ x_r      dW_hh = Σ_r da_rᵀ h_before(r)      dx_r = da_r W_ih, of one direction or the sum of both
//
// products of T's, sums in f32. r is a row of a step, T B of them. h_before(r) is y of B rows before, or of a reverse
// direction of B rows behind: beyond y TMA brings zeros, and y is zero where a row has no step. Only what a row's
// first step reads is not there: h0. So a second, short sum goes over the rows of the batch: that of da of their first steps.
//
// Work split: that of v4_product.cu, by lab/product.cuh. A block a multiprocessor goes from tile to tile, those of dW_ih and dW_hh in one
// launch. Along r lie neither da nor x: of both, consecutive columns lie side by side, and wgmma takes them transposed.
//
// da [T B, 4H], first_da [B, 4H], x [T B, C], y [T B, stride], h0 [B, H], W_ih [4H, C], all T's; C and H multiples of 8.
#include "lab/product.cuh"
#include "lstm.cuh"

using namespace lab;

// Tiles of dW_ih, then those of dW_hh.
template <int BM, int BN, int BK, int HIGH> struct WeightJob : ProductJob {
    const TensorMap &DA, &X, &Y, &FIRST, &H0;
    TileOrder<HIGH> of_x, of_h;
    int rows, B, column, shift;  // h before a row is y of `shift` rows further on

    struct Tile : Corner {
        bool by_x;
    };
    __device__ __forceinline__ Tile at(int n) const {
        bool by_x = n < of_x.down * of_x.across;
        auto [i, j, g] = by_x ? of_x.at(n) : of_h.at(n - of_x.down * of_x.across);
        return {{i * BM, j * BN}, by_x};
    }
    __device__ __forceinline__ int over(int length) const { return (length + BK - 1) / BK; }
    __device__ __forceinline__ int steps(Tile at) const { return over(rows) + (at.by_x ? 0 : over(B)); }
    template <class Tiles> __device__ __forceinline__ void load(Tile at, int s, Tiles tiles, Mbarrier* full) const {
        int k = s * BK, first = (s - over(rows)) * BK;
        if (at.by_x) return tiles.load(DA, X, at.i, at.j, k, full);
        if (first >= 0) return tiles.load(FIRST, H0, at.i, at.j, first, full);
        Tiles::expect(full);
        tiles.issue_load_of_a(DA, at.i, k, full);
        tiles.load_b(Y, column + at.j, k + shift, full);
    }
};

// Where whole tiles of them go.
template <int BM, int BN, int BK, int HIGH> struct WholeWeightJob : WeightJob<BM, BN, BK, HIGH> {
    const TensorMap &DW_IH, &DW_HH;

    template <class Tile, class Store>
    __device__ __forceinline__ void end(Tile at, float (&)[BN / 2], int row, Store store) const {
        store(at.by_x ? DW_IH : DW_HH, at.i + row, at.j);
    }
};

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int weight_gradients_shared = PRODUCT_BYTES<T, BM, BN, BK, PLACES>;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(PRODUCT_THREADS<BM>, 1)
    weight_gradients(const __grid_constant__ TensorMap DA, const __grid_constant__ TensorMap X,
                     const __grid_constant__ TensorMap Y, const __grid_constant__ TensorMap FIRST,
                     const __grid_constant__ TensorMap H0, const __grid_constant__ TensorMap DW_IH,
                     const __grid_constant__ TensorMap DW_HH, int rows, int B, int H, int C, int column, int reverse) {
    DYNAMIC_TILES(T, tiles);
    int down = (GATES * H + BM - 1) / BM;
    TileOrder<HIGH> of_x{down, (C + BN - 1) / BN}, of_h{down, (H + BN - 1) / BN};
    WholeWeightJob<BM, BN, BK, HIGH> job{
        {{}, DA, X, Y, FIRST, H0, of_x, of_h, rows, B, column, reverse ? B : -B}, DW_IH, DW_HH};
    go_through<OperandTiles<T, ACROSS_K, ACROSS_K, BM, BN, BK>, T, BM, BN, PLACES>(tiles, down * (of_x.across + of_h.across), job);
}

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int split_weight_gradients_shared = PLACES * OperandTiles<T, ACROSS_K, ACROSS_K, BM, BN, BK>::BYTES;

// The same where tiles are few: those of more columns, and the steps of each shared by a cluster.
template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(PRODUCT_THREADS<BM>, 1)
    split_weight_gradients(const __grid_constant__ TensorMap DA, const __grid_constant__ TensorMap X,
                           const __grid_constant__ TensorMap Y, const __grid_constant__ TensorMap FIRST,
                           const __grid_constant__ TensorMap H0, T* __restrict__ dweight_ih, T* __restrict__ dweight_hh,
                           int rows, int B, int H, int C, int column, int reverse) {
    using Tiles = OperandTiles<T, ACROSS_K, ACROSS_K, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    int down = (GATES * H + BM - 1) / BM;
    TileOrder<HIGH> of_x{down, (C + BN - 1) / BN}, of_h{down, (H + BN - 1) / BN};
    using Job = WeightJob<BM, BN, BK, HIGH>;
    Job job{{}, DA, X, Y, FIRST, H0, of_x, of_h, rows, B, column, reverse ? B : -B};
    share_tile<Tiles, T, BM, BN, PLACES>(tiles, job, [&](typename Job::Tile at, int r, int c, float (&)[4]) -> T* {
        int columns = at.by_x ? C : H, row = at.i + r, column = at.j + c;
        T* to = at.by_x ? dweight_ih : dweight_hh;
        return row < GATES * H && column < columns ? to + row * 1ll * columns + column : nullptr;
    });
}

// Tiles of dx: over the gates of one direction, then over those of the other.
template <int BM, int BN, int BK, int HIGH> struct InputJob : ProductJob {
    const TensorMap &DA, &W, &DA_REVERSE, &W_REVERSE, &DX;
    TileOrder<HIGH> order;
    int of_one, both;  // steps of a direction

    __device__ __forceinline__ Corner at(int n) const {
        auto [i, j, g] = order.at(n);
        return {i * BM, j * BN};
    }
    __device__ __forceinline__ int steps(Corner) const { return of_one * (1 + both); }
    template <class Tiles> __device__ __forceinline__ void load(Corner at, int s, Tiles tiles, Mbarrier* full) const {
        int k = s % of_one * BK;
        bool one = s < of_one;
        tiles.load(one ? DA : DA_REVERSE, one ? W : W_REVERSE, at.i, at.j, k, full);
    }
    template <class Store>
    __device__ __forceinline__ void end(Corner at, float (&)[BN / 2], int row, Store store) const {
        store(DX, at.i + row, at.j);
    }
};

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int gradient_by_x_shared = PRODUCT_BYTES<T, BM, BN, BK, PLACES>;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(PRODUCT_THREADS<BM>, 1)
    gradient_by_x(const __grid_constant__ TensorMap DA, const __grid_constant__ TensorMap W,
                  const __grid_constant__ TensorMap DA_REVERSE, const __grid_constant__ TensorMap W_REVERSE,
                  const __grid_constant__ TensorMap DX, int rows, int H, int C, int both) {
    DYNAMIC_TILES(T, tiles);
    TileOrder<HIGH> order{(rows + BM - 1) / BM, (C + BN - 1) / BN};
    InputJob<BM, BN, BK, HIGH> job{{}, DA, W, DA_REVERSE, W_REVERSE, DX, order, (GATES * H + BK - 1) / BK, both};
    go_through<OperandTiles<T, ALONG_K, ACROSS_K, BM, BN, BK>, T, BM, BN, PLACES>(tiles, order.down * order.across, job);
}
