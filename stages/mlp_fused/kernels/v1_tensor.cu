// A training step of B pairs whose three products with w2 are made by the tensor cores: of bf16, added up
// in f32. The launches are those of v1_batch.cu, of which hidden_gradient and input_weights are taken as
// they are; parameters stay in f32.
//
// Beside w2 there is a copy in bf16, which the products read; whoever moves w2 writes it anew. h and dz go
// into the products as bf16, too. The logits do not: exp of a rounded one would be off by as much as the
// logit was, 2⁻⁹ of ten, not of one. So z is f32, and the softmax makes dz of it, in bf16, for both
// products on the way back.
//
// Work split: a block has a tile of BM x BN of a product, a warp WM x WN of it: tensor_tile.cuh.
//
// Columns of the bf16 tensors are padded with zeros to a multiple of 8, so that a row is whole chunks of
// 16 bytes: h and w2's copy have HB of them, dz has ZB. z: B rows of Z numbers, V rounded up to 4.
#include "mlp.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "tensor_tile.cuh"

using namespace lab;

// The bf16 copy of w2, for the first step. A grid of V HB / 256 blocks of 256 threads, rounded up.
template <class T>
__global__ void __launch_bounds__(256)
    round_weights(const float* __restrict__ w2, T* __restrict__ copy, int V, int H, int HB) {
    long long n = blockIdx.x * 256ll + threadIdx.x;
    if (n >= V * 1ll * HB) return;
    int j = n % HB;
    copy[n] = from_math<T>(j < H ? w2[n / HB * H + j] : 0.0f);
}

template <int PACK>
__global__ void __launch_bounds__(64)
    hidden_halves(const int* __restrict__ tokens, const int* __restrict__ targets,
                  const int* __restrict__ order, long long* counts, double* numbers,
                  int* __restrict__ ids, const float* __restrict__ emb,
                  const float* __restrict__ w1, const float* __restrict__ b1,
                  float* __restrict__ x, float* __restrict__ h, Half* __restrict__ rounded,
                  int pairs, int B, int E, int H, int HB) {
    using Tile = SmallTile<ALONG_K, ALONG_K, PACK>;
    __shared__ __align__(16) typename Tile::Stages stages;
    hidden_tile<Tile, PACK>(
        stages, tokens, targets, order, counts, numbers, ids, emb, w1, b1, x, pairs, B, E, H,
        [&](int b, int j, const float(&four)[4]) {
            Matrix<float>{h, B, H}.template store<PACK == 4>(four, b, j);
            Matrix<Half>{rounded, B, HB}.template store<true>(four, b, j);
        });
}

template <int BM, int BN, int WM, int WN>
constexpr int logits_tensor_shared = TensorTile<BM, BN, WM, WN, ALONG_K, ALONG_K>::BYTES;

// ANCHOR: logits
// A grid of V / BN x B / BM blocks, rounded up. stats: for each row and WN logits the largest and the
// sum.
template <int BM, int BN, int WM, int WN>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32, 2)
    logits_tensor(const Half* __restrict__ h, const Half* __restrict__ w2,
                  const float* __restrict__ b2, float* __restrict__ z, float* __restrict__ stats,
                  int B, int V, int HB, int Z) {
    DYNAMIC_SHARED(Half, stages);
    TensorTile<BM, BN, WM, WN, ALONG_K, ALONG_K> tile;
    int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN, t = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    tile.run(stages, Operand{h, HB, B, HB}, m0, Operand{w2, HB, V, HB}, n0, 0, HB,
             [](const Half*) {});
    int slice = blockIdx.x * (BN / WN) + tile.wj() / WN, slices = gridDim.x * (BN / WN);
#pragma unroll
    for (int i = 0; i < WM / 8; ++i) {
        int b = m0 + tile.wi() + i * 8 + g;
        float largest = lowest<float>(), total = 0, own[WN / 8][2];
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) {
            int v = n0 + tile.wj() + j * 8 + 2 * t;
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                float sum = tile.sum[i / 2][j][i % 2 * 2 + c];
                own[j][c] = v + c < V ? sum + b2[v + c] : lowest<float>();
                largest = max(largest, own[j][c]);
            }
            Matrix<float>{z, B, Z}.template store<true, 2>(own[j], b, v);
        }
        largest = warp_reduce<4>(largest, Max{});
#pragma unroll
        for (int j = 0; j < WN / 8; ++j)
#pragma unroll
            for (int c = 0; c < 2; ++c)
                total += n0 + tile.wj() + j * 8 + 2 * t + c < V ? expf(own[j][c] - largest) : 0.0f;
        total = warp_reduce<4>(total, Add{});
        if (t > 0 || b >= B) continue;
        float* to = stats + (b * 1ll * slices + slice) * 2;
        to[0] = largest, to[1] = total;
    }
}
// ANCHOR_END: logits

// A grid of B blocks; `slices` of stats a row.
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    softmax_halves(const int* __restrict__ ids, const long long* __restrict__ counts,
                   const float* __restrict__ stats, const float* __restrict__ z,
                   Half* __restrict__ dz, double* __restrict__ row_losses, int pairs, int B, int V,
                   int Z, int ZB, int slices) {
    int b = blockIdx.x, live = live_pairs(counts[STEP], pairs, B);
    z += b * 1ll * Z, dz += b * 1ll * ZB;
    bool there = b < live;
    for (int v = (there ? Z : 0) + threadIdx.x; v < ZB; v += THREADS) dz[v] = from_math<Half>(0.0f);
    double loss = 0;
    if (there) {
        auto put = [&](int v, const float(&of)[4]) { Matrix<Half>{dz, 1, ZB}.template store<true>(of, 0, v); };
        loss = softmax_row<THREADS>(stats + b * 2ll * slices, slices, ids[B + b], z, Z, 1.0f / live, put);
    }
    if (threadIdx.x == 0) row_losses[b] = loss / live;
}

template <int BM, int BN, int WM, int WN>
constexpr int output_input_tensor_shared = TensorTile<BM, BN, WM, WN, ALONG_K, ALONG_K>::BYTES;

// A grid of B / BM x H / BN x parts of V, of `span` tokens each, a multiple of BK; rounded up.
template <int BM, int BN, int WM, int WN>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32, 2)
    output_input_tensor(const Half* __restrict__ dz, const Half* __restrict__ w2,
                        const double* __restrict__ row_losses,
                        const long long* __restrict__ counts, float* __restrict__ parts,
                        double* __restrict__ losses, int B, int V, int H, int HB, int ZB, int span) {
    DYNAMIC_SHARED(Half, stages);
    using Tile = TensorTile<BM, BN, WM, WN, ALONG_K, ACROSS_K>;
    int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN, first = blockIdx.z * span;
    int end = first + span < V ? first + span : V;
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) {
        double sum = 0;
        for (int b = threadIdx.x; b < B; b += Tile::THREADS) sum += row_losses[b];
        sum = block_reduce<Tile::THREADS>(sum, Add{}, 0.0);
        if (threadIdx.x == 0) losses[counts[STEP]] = sum;
    }
    Tile tile;
    tile.run(stages, Operand{dz, ZB, B, ZB}, m0, Operand{w2, HB, V, HB}, n0, first, end,
             [](const Half*) {});
    float* part = parts + blockIdx.z * (B * 1ll * H);
    tile.for_each_row([&](int m, const int (&n)[WN / 8], const float* const (&sum)[WN / 8]) {
        Matrix<float> to{part, B, H};
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) {
            if (H % 2 == 0) to.template store<true, 2>(sum[j], m0 + m, n0 + n[j]);
            else to.template store<false, 2>(sum[j], m0 + m, n0 + n[j]);
        }
    });
}

// Two neighbours of a row; one access where columns come in fours.
template <int PACK>
__device__ __forceinline__ void load_pair(float (&to)[2], Matrix<float> from, int r, int c) {
    if constexpr (PACK == 4) {
        uint2 raw{};
        if (from.inside(r, c)) raw = *reinterpret_cast<const uint2*>(from.at(r, c));
        memcpy(static_cast<void*>(to), &raw, sizeof raw);
    } else {
        to[0] = from.cell(r, c), to[1] = from.cell(r, c + 1);
    }
}

template <Use, int, int BM, int BN, int WM, int WN>
constexpr int output_weights_tensor_shared = TensorTile<BM, BN, WM, WN, ALONG_K, ALONG_K>::BYTES;

// ANCHOR: weights
// A grid of B / 64 · E / 64 + V / BM · H / BN blocks, rounded up. Where w2 moves, its copy is made anew.
template <Use USE, int PACK, int BM, int BN, int WM, int WN>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32, 2)
    output_weights_tensor(const Half* __restrict__ dz, const Half* __restrict__ rounded,
                          const float* __restrict__ da, const float* __restrict__ w1,
                          float* __restrict__ dx, float* w2, Half* __restrict__ copy, float* b2,
                          const long long* __restrict__ counts, const double* __restrict__ rates,
                          const double* __restrict__ losses, int B, int V, int E, int H, int HB,
                          int ZB) {
    DYNAMIC_SHARED(Half, stages);
    using Tile = TensorTile<BM, BN, WM, WN, ACROSS_K, ACROSS_K>;
    int own = blockIdx.x - (B + 63) / 64 * ((E + 63) / 64);
    if (own < 0) return input_tile<Tile::THREADS, PACK>(stages, blockIdx.x, da, w1, dx, B, E, H);
    Step step{counts, rates, losses};
    if (USE == DESCEND && step.stops()) return;
    int tiles = (H + BN - 1) / BN, m0 = own / tiles * BM, n0 = own % tiles * BN;
    // Σ dz of the tile's columns: a thread has two of them, and one of GROUPS parts of the rows.
    constexpr int GROUPS = Tile::THREADS / (BM / 2);
    int two = threadIdx.x % (BM / 2) * 2, group = threadIdx.x / (BM / 2);
    float bias[2] = {};
    Tile tile;
    tile.run(stages, Operand{dz, ZB, B, ZB}, m0, Operand{rounded, HB, B, HB}, n0, 0, B,
             [&](const Half* stage) {
                 if (n0 > 0) return;
                 SwizzledTile<Half, BM> a{const_cast<Half*>(stage)};
#pragma unroll 8
                 for (int k = group; k < Tile::BK; k += GROUPS)
                     bias[0] += to_math(*a.at(k, two)), bias[1] += to_math(*a.at(k, two + 1));
             });
    float lr = USE == DESCEND ? step.rate() : 0.0f;
    tile.for_each_row([&](int m, const int (&n)[WN / 8], const float* const (&sum)[WN / 8]) {
        constexpr int PAIRS = 4;  // on their way before the first of them moves
        Matrix<float> p{w2, V, H};
#pragma unroll
        for (int first = 0; first < WN / 8; first += PAIRS) {
            float moved[PAIRS][2];
#pragma unroll
            for (int j = 0; j < PAIRS; ++j) load_pair<PACK>(moved[j], p, m0 + m, n0 + n[first + j]);
#pragma unroll
            for (int j = 0; j < PAIRS; ++j) {
                int column = n0 + n[first + j];
#pragma unroll
                for (int c = 0; c < 2; ++c)
                    moved[j][c] = USE == KEEP ? sum[first + j][c] : moved[j][c] - lr * sum[first + j][c];
                p.template store<PACK == 4, 2>(moved[j], m0 + m, column);
                if (USE == DESCEND)
                    Matrix<Half>{copy, V, HB}.template store<true, 2>(moved[j], m0 + m, column);
            }
        }
    });
    if (n0 > 0) return;
    float(*sums)[BM] = reinterpret_cast<float(*)[BM]>(stages);
    __syncthreads();  // all warps have read the last stages
    sums[group][two] = bias[0], sums[group][two + 1] = bias[1];
    __syncthreads();  // the sums of all parts are there
    int v = m0 + threadIdx.x;
    if (threadIdx.x >= BM || v >= V) return;
    float sum = 0;
    for (int n = 0; n < GROUPS; ++n) sum += sums[n][threadIdx.x];
    apply<USE>(b2[v], sum, lr);
}
// ANCHOR_END: weights
