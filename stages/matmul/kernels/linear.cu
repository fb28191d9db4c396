// A product with all that stands behind it in a network, in one launch, by wgmma and TMA: a linear layer and its gradients.
//
//   C_ij = f(scale Σ_k A_ik B_kj + bias_j) + R_ij      products of T's, sums in f32; f: lab/epilogue.cuh
//   C_ij += the same                                   where C is of f32
//
// G matrices C [M, N], of T or f32, and R likewise. A along k is [M, K], across it [K, M]; B along k is [N, K], across it
// [K, N]. With x, W [N, K] and dy, row-major:
//
//   y = f(x Wᵀ + b)     both along k
//   dx = dy W           W across k
//   dW = dyᵀ x          both across k, M of them the columns of dy
//
// Work split: that of v13_stores, by lab/product.cuh.
#include "lab/epilogue.cuh"
#include "lab/product.cuh"

using namespace lab;

template <class T, class OUT, int BM, int BN, int BK, int HIGH> struct LinearJob : ProductJob {
    static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
    const TensorMap &A, &B, &C;
    const T* bias;
    const OUT* added;
    TileOrder<HIGH> order;
    int M, N, K, activation, has_added, accumulates;
    float scale;
    float (*biases)[BN];  // of a tile's columns, which a warpgroup keeps in shared memory

    struct Tile { int i, j, g; };

    __device__ __forceinline__ Tile at(int n) const {
        auto [i, j, g] = order.at(n);
        return {i * BM, j * BN, g};
    }
    __device__ __forceinline__ int steps(Tile) const { return (K + BK - 1) / BK; }
    template <class Tiles> __device__ __forceinline__ void load(Tile at, int s, Tiles tiles, Mbarrier* full) const {
        tiles.load(A, B, at.i, at.j, s * BK, full, at.g);
    }
    // ANCHOR: epilogue
    // All have added the biases of the tile before: a barrier of its stores lies between.
    __device__ __forceinline__ void begin(Tile at) const {
        float* own = biases[threadIdx.x / 128];
        for (int j = threadIdx.x % 128; j < BN; j += 128) own[j] = at.j + j < N ? to_math(bias[at.j + j]) : 0.0f;
    }
    template <class Store>
    __device__ __forceinline__ void end(Tile at, float (&sum)[BN / 2], int row, Store store) const {
        named_barrier_sync(1 + threadIdx.x / 128, 128);  // what all threads of the warpgroup have loaded
        scale_sums(sum, scale);
        add_to_columns<BN>(sum, biases[threadIdx.x / 128]);
        activate(sum, activation);
        if (has_added) add_matrix<BN>(sum, Matrix<const OUT>{added + at.g * 1ll * M * N, M, N}, at.i + row, at.j);
        store(C, at.i + row, at.j, at.g, accumulates);
    }
    // ANCHOR_END: epilogue
};

template <class T, class OUT, Along A_LIES, Along B_LIES, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int linear_shared = PRODUCT_BYTES<T, BM, BN, BK, PLACES>;

template <class T, class OUT, Along A_LIES, Along B_LIES, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(PRODUCT_THREADS<BM>, 1)
    linear(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, const __grid_constant__ TensorMap C,
           const T* bias, const OUT* added, int G, int M, int N, int K, float scale, int activation, int has_added,
           int accumulates) {
    DYNAMIC_TILES(T, tiles);
    __shared__ __align__(8) float biases[BM / 64][BN];
    TileOrder<HIGH> order{(M + BM - 1) / BM, (N + BN - 1) / BN};
    LinearJob<T, OUT, BM, BN, BK, HIGH> job{{},    A, B, C, bias,       added,     order,       M,
                                            N,     K, activation, has_added, accumulates, scale, biases};
    go_through<OperandTiles<T, A_LIES, B_LIES, BM, BN, BK>, T, BM, BN, PLACES, OUT>(tiles, order.down * order.across * G, job);
}
