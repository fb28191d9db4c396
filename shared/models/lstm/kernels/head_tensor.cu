// What is read from the network at each step of a text, as head.cu has it, in halves and on tensor cores.
//
//   z_r = W y_r + b      the loss and dz of r, in f32      dW = Σ_r dz_rᵀ y_r
//
// Products of T's, sums in f32; both products with dz take it rounded to T. That with W, dy, is like dx
// (lstm_fused/kernels/v4_product_back.cu). db is summed up in f32, of 16 rows here, of all in lstm_fused/kernels/parameter_gradient.cu.
//
// Work split: lab/product.cuh's. A block has all outputs of its rows, BN at most. So a row's sums lie in four lanes, which
// have the softmax among them. The steps of dW are shared by the blocks of a cluster.
//
// y [T B, K], W [O, K], dz [T B, O rounded up to 8]; z [T B, O], parts [T B / 16, O]; data: tokens. All steps are read.
#include "lab/product.cuh"
#include "lab/progress.cuh"
#include "lab/reduce.cuh"
#include "lab/scalar.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK> struct HeadJob : ProductJob {
    static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
    const TensorMap &Y, &W, &DZ;
    const T* bias;
    const int *data, *order;  // order: from the first window of this step on
    float *z, *parts;
    double *row_losses, read_rows;
    int live, rows, B, K, O;
    float each;  // scale / read_rows
    float (*biases)[BN];

    __device__ __forceinline__ Corner at(int n) const { return {n * BM, 0}; }
    __device__ __forceinline__ int steps(Corner) const { return (K + BK - 1) / BK; }
    template <class Tiles> __device__ __forceinline__ void load(Corner at, int s, Tiles tiles, Mbarrier* full) const {
        tiles.load(Y, W, at.i, 0, s * BK, full);
    }
    __device__ __forceinline__ void begin(Corner) const {
        for (int o = threadIdx.x % 128; o < BN; o += 128) biases[threadIdx.x / 128][o] = o < O ? to_math(bias[o]) : 0.0f;
    }
    // A lane has of a row columns 8 n + 2 t and the next, of rows g and g + 8 of the warp's 16.
    template <class Store>
    __device__ __forceinline__ void end(Corner at, float (&sum)[BN / 2], int row, Store store) const {
        named_barrier_sync(1 + threadIdx.x / 128, 128);  // what all threads of the warpgroup have loaded
        add_to_columns<BN>(sum, biases[threadIdx.x / 128]);
        int lane = threadIdx.x % 32, first = at.i + row + threadIdx.x / 32 % 4 * 16, c0 = lane % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; ++h) softmax(sum, h, first + lane / 4 + 8 * h, c0);
        if (first < rows) {
            float* own = parts + first / 16 * O;
#pragma unroll
            for (int n = 0; n < BN / 4; ++n) {
                int at = n / 2 * 4 + n % 2, c = n / 2 * 8 + n % 2 + c0;
                float of_column = sum[at] + sum[at + 2];
                for (int lanes = 4; lanes < 32; lanes *= 2) of_column += __shfl_xor_sync(0xffffffffu, of_column, lanes);
                if (lane < 4 && c < O) own[c] = of_column;
            }
        }
        store(DZ, at.i + row, 0);
    }

  private:
    // Of the sums of row r, which are z, its loss and dz; what is no output's, or of no row, is zero then.
    __device__ __forceinline__ void softmax(float (&sum)[BN / 2], int h, int r, int c0) const {
        bool is = r < rows, lives = is && r % B < live;
        int target = lives ? data[order[r % B] + r / B + 1] : -1;
        float largest = lowest<float>(), total = 0, of_target = 0;
#pragma unroll
        for (int n = 0; n < BN / 4; ++n) {
            float v = sum[n / 2 * 4 + 2 * h + n % 2];
            int c = n / 2 * 8 + n % 2 + c0;
            if (c >= O) continue;
            if (is) z[r * 1ll * O + c] = lives ? v : 0.0f;
            largest = max(largest, v), of_target += c == target ? v : 0.0f;
        }
        largest = quad_reduce(largest, Max{});
#pragma unroll
        for (int n = 0; n < BN / 4; ++n) {
            float& v = sum[n / 2 * 4 + 2 * h + n % 2];
            v = n / 2 * 8 + n % 2 + c0 < O ? exponential(v - largest) : 0.0f;
            total += v;
        }
        total = quad_reduce(total, Add{}), of_target = quad_reduce(of_target, Add{});
        float factor = lives ? each : 0.0f, share = factor / total;
#pragma unroll
        for (int n = 0; n < BN / 4; ++n) {
            float& v = sum[n / 2 * 4 + 2 * h + n % 2];
            v = v * share - (n / 2 * 8 + n % 2 + c0 == target ? factor : 0.0f);
        }
        if (c0 == 0 && is) row_losses[r] = lives ? double(logarithm(total) + (largest - of_target)) / read_rows : 0.0;
    }
    template <class Op> static __device__ __forceinline__ float quad_reduce(float v, Op op) {
        v = op(v, __shfl_xor_sync(0xffffffffu, v, 1));
        return op(v, __shfl_xor_sync(0xffffffffu, v, 2));
    }
};

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int head_of_text_shared = PRODUCT_BYTES<T, BM, BN, BK, PLACES>;

template <class T, int BM, int BN, int BK, int PLACES>
__global__ void __launch_bounds__(PRODUCT_THREADS<BM>, 1)
    head_of_text(const __grid_constant__ TensorMap Y, const __grid_constant__ TensorMap W,
                 const __grid_constant__ TensorMap DZ, const T* __restrict__ bias, const int* __restrict__ data,
                 const int* __restrict__ order, const long long* __restrict__ counts,
                 const double* __restrict__ numbers, float* __restrict__ z, float* __restrict__ parts,
                 double* __restrict__ row_losses, int windows, int steps, int B, int K, int O) {
    DYNAMIC_TILES(T, tiles);
    __shared__ __align__(8) float biases[BM / 64][BN];
    long long first = counts[STEP] * B;
    int live = windows - first < B ? int(windows - first) : B, rows = steps * B;
    double read_rows = live * double(steps);
    HeadJob<T, BM, BN, BK> job{{}, Y, W, DZ, bias, data, order + first, z, parts, row_losses, read_rows, live, rows, B, K, O,
                               float(numbers[SCALE] / read_rows), biases};
    go_through<OperandTiles<T, ALONG_K, ALONG_K, BM, BN, BK>, T, BM, BN, PLACES>(tiles, (rows + BM - 1) / BM, job);
}

template <int BM, int BN, int BK> struct HeadGradientJob : ProductJob {
    const TensorMap &DZ, &Y;
    int across, rows;

    __device__ __forceinline__ Corner at(int n) const { return {n / across * BM, n % across * BN}; }
    __device__ __forceinline__ int steps(Corner) const { return (rows + BK - 1) / BK; }
    template <class Tiles> __device__ __forceinline__ void load(Corner at, int s, Tiles tiles, Mbarrier* full) const {
        tiles.load(DZ, Y, at.i, at.j, s * BK, full);
    }
};

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int head_gradient_shared = PLACES * OperandTiles<T, ACROSS_K, ACROSS_K, BM, BN, BK>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES>
__global__ void __launch_bounds__(PRODUCT_THREADS<BM>, 1)
    head_gradient(const __grid_constant__ TensorMap DZ, const __grid_constant__ TensorMap Y, T* __restrict__ dweight,
                  int rows, int K, int O) {
    using Tiles = OperandTiles<T, ACROSS_K, ACROSS_K, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    HeadGradientJob<BM, BN, BK> job{{}, DZ, Y, (K + BN - 1) / BN, rows};
    share_tile<Tiles, T, BM, BN, PLACES>(tiles, job, [&](Corner at, int r, int c, float (&)[4]) -> T* {
        int row = at.i + r, column = at.j + c;
        return row < O && column < K ? dweight + row * 1ll * K + column : nullptr;
    });
}
