// A training step of B pairs whose three products with w2 are by wgmma and TMA: of bf16, added up in f32. The launches
// are those of v1_tensor.cu, of which the hidden layer's are in v3_hidden.cu; parameters stay in f32, beside w2 there is
// its copy in bf16.
//
// Logits are not stored. A tile of them leaves, of each row, the largest, m, and
//
//   e_v = exp(z_v - m)       in bf16, off by a factor of 1 ± 2^-9, as dz is: what is rounded is not the exponent
//
// Of these the softmax makes dz, in place. Only the target's logit is kept in f32, for its dz is a small difference where
// the network is sure.
//
// Work split: a block has a tile of a product, a warpgroup 64 rows of it: wgmma_tile.cuh. Two blocks share a
// multiprocessor, so that one multiplies while the other is at its exponentials, or moves weights.
//
// dz: B rows of ZB, V rounded up to 8. h, w2's copy: rows of HB. TMA sees V, or H, columns of them, and zeros behind.
#include "lab/ptx/ex2.cuh"
#include "lab/product.cuh"
#include "cluster_descent.cuh"
#include "mlp.cuh"
#include "wgmma_tile.cuh"

using namespace lab;
namespace cg = cooperative_groups;

constexpr float LOG2E = 1.4426950408889634f;

template <int BM, int BN, int PLACES>
constexpr int logits_wgmma_shared = WgmmaTile<BM, BN, PLACES, ALONG_K, ALONG_K>::BYTES +
                                    BM / 64 * StagedStore<Half, BN, 1>::BYTES;

// ANCHOR: logits
// A grid of B / BM · V / BN blocks, rounded up. stats: for each row and BN logits the largest, and the sum of the
// exponentials. of_target: each pair's logit.
template <int BM, int BN, int PLACES>
__global__ void __launch_bounds__(BM * 2 + 32, 2)
    logits_wgmma(const __grid_constant__ TensorMap ROUNDED, const __grid_constant__ TensorMap COPY,
                 const __grid_constant__ TensorMap DZ, const int* __restrict__ ids, const float* __restrict__ b2,
                 float* __restrict__ stats, float* __restrict__ of_target, int B, int V, int H) {
    using Tile = WgmmaTile<BM, BN, PLACES, ALONG_K, ALONG_K>;
    DYNAMIC_TILES(Half, stages);
    __shared__ Ring<PLACES> ring;
    __shared__ __align__(8) float bias[BN];
    int down = (B + BM - 1) / BM, slice = blockIdx.x / down, slices = (V + BN - 1) / BN;
    int m0 = blockIdx.x % down * BM, n0 = slice * BN, t = threadIdx.x % 4;
    // Behind V a logit counts for nothing.
    for (int n = threadIdx.x; n < BN; n += Tile::THREADS) bias[n] = n0 + n < V ? b2[n0 + n] : lowest<float>();
    int b = m0 + Tile::row(), target[2] = {b < B ? ids[B + b] : -1, b + 8 < B ? ids[B + b + 8] : -1};
    Tile tile;
    if (!tile.run(stages, ring, ROUNDED, m0, COPY, n0, 0, H, [](unsigned long long, bool) {})) return;
    add_to_columns<BN>(tile.sum, bias);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float largest = lowest<float>(), total = 0, picked = 0;
#pragma unroll
        for (int j = 0; j < BN / 8; ++j)
            largest = max(largest, max(tile.sum[4 * j + 2 * h], tile.sum[4 * j + 2 * h + 1]));
        int at = target[h] - n0;
        bool own = at >= 0 && at < BN && at % 8 / 2 == t;
        if (__any_sync(0xffffffffu, own)) {
#pragma unroll
            for (int j = 0; j < BN / 8; ++j) {
                float left = tile.sum[4 * j + 2 * h], right = tile.sum[4 * j + 2 * h + 1];
                if (at / 8 == j) picked = at % 2 ? right : left;
            }
            if (own) of_target[b + 8 * h] = picked;
        }
        largest = warp_reduce<4>(largest, Max{});
#pragma unroll
        for (int j = 0; j < BN / 8; ++j)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                float& z = tile.sum[4 * j + 2 * h + c];
                z = power_of_two((z - largest) * LOG2E), total += z;
            }
        total = warp_reduce<4>(total, Add{});
        if (t > 0 || b + 8 * h >= B) continue;
        *reinterpret_cast<float2*>(stats + ((b + 8 * h) * 1ll * slices + slice) * 2) = make_float2(largest, total);
    }
    int group = threadIdx.x / 128;
    StagedStore<Half, BN, 1> staged{stages + PLACES * Tile::STAGE + group * StagedStore<Half, BN, 1>::CELLS};
    staged.store(DZ, tile.sum, m0 + group * 64, n0, 0);
    staged.finish();
}
// ANCHOR_END: logits

// ANCHOR: softmax
// A grid of B blocks; `slices` of WIDTH exponentials a row.
template <int THREADS, int WIDTH>
__global__ void __launch_bounds__(THREADS)
    softmax_of_powers(const int* __restrict__ ids, const long long* __restrict__ counts,
                      const float* __restrict__ stats, const float* __restrict__ of_target, Half* dz,
                      double* __restrict__ row_losses, int pairs, int B, int ZB, int slices) {
    constexpr int CELLS = 8, PACKS = 4;
    int b = blockIdx.x, live = live_pairs(counts[STEP], pairs, B);
    dz += b * 1ll * ZB;
    if (b >= live) {
        for (int v = threadIdx.x * CELLS; v < ZB; v += THREADS * CELLS) store_pack(dz + v, Pack<Half>{});
        if (threadIdx.x == 0) row_losses[b] = 0;
        return;
    }
    Raw<Half> own[PACKS];  // on their way while the statistics come
    auto load = [&](int first) {
#pragma unroll
        for (int n = 0; n < PACKS; ++n) {
            int v = first + n * THREADS * CELLS;
            if (v < ZB) own[n] = load_raw(dz + v);
        }
    };
    load(threadIdx.x * CELLS);
    const float2* of_slice = reinterpret_cast<const float2*>(stats) + b * 1ll * slices;
    float largest = lowest<float>(), sum = 0, each = 1.0f / live;
    for (int n = threadIdx.x; n < slices; n += THREADS) largest = max(largest, of_slice[n].x);
    largest = block_reduce<THREADS>(largest, Max{}, lowest<float>());
    for (int n = threadIdx.x; n < slices; n += THREADS)
        sum += of_slice[n].y * power_of_two((of_slice[n].x - largest) * LOG2E);
    sum = block_reduce<THREADS>(sum, Add{}, 0.0f);
    int target = ids[B + b];
    float relative = of_target[b] - largest, of_all = each / sum;
    float dz_target = power_of_two(relative * LOG2E) * of_all - each;
    for (int first = threadIdx.x * CELLS; first < ZB; first += PACKS * THREADS * CELLS) {
#pragma unroll
        for (int n = 0; n < PACKS; ++n) {
            int v = first + n * THREADS * CELLS;
            if (v >= ZB) break;
            float factor = power_of_two((of_slice[v / WIDTH].x - largest) * LOG2E) * of_all;
            Pack<Half> pack = in_math(own[n]);
#pragma unroll
            for (int i = 0; i < CELLS; ++i) pack.v[i] = v + i == target ? dz_target : pack.v[i] * factor;
            store_pack(dz + v, pack);
        }
        load(first + PACKS * THREADS * CELLS);
    }
    if (threadIdx.x == 0) row_losses[b] = double(logf(sum) - relative) / live;
}
// ANCHOR_END: softmax

template <int BM, int BN, int PLACES>
constexpr int hidden_gradient_wgmma_shared =
    WgmmaTile<BM, BN, PLACES, ALONG_K, ACROSS_K>::BYTES > ClusterSums<BM, BN>::BYTES
        ? WgmmaTile<BM, BN, PLACES, ALONG_K, ACROSS_K>::BYTES
        : ClusterSums<BM, BN>::BYTES;

// ANCHOR: gradient
// da = [h > 0] w2ᵀ dz. A grid of B / BM · H / BN clusters, rounded up, whose blocks have `span` tokens each, a multiple of
// BK. Each block leaves its sums in its shared memory, and adds up all blocks' sums of some rows.
template <int BM, int BN, int PLACES>
__global__ void __launch_bounds__(BM * 2 + 32, 2)
    hidden_gradient_wgmma(const __grid_constant__ TensorMap DZ, const __grid_constant__ TensorMap COPY,
                          const double* __restrict__ row_losses, const long long* __restrict__ counts,
                          const Half* __restrict__ rounded, float* __restrict__ da, double* __restrict__ losses, int B,
                          int V, int H, int HB, int span) {
    using Tile = WgmmaTile<BM, BN, PLACES, ALONG_K, ACROSS_K>;
    DYNAMIC_TILES(Half, stages);
    __shared__ Ring<PLACES> ring;
    auto cluster = cg::this_cluster();
    int rank = cluster.block_rank(), parts = cluster.num_blocks(), own = blockIdx.x / parts;
    int across = (H + BN - 1) / BN, m0 = own / across * BM, n0 = own % across * BN, first = rank * span;
    if (blockIdx.x == 0) {
        double sum = 0;
        for (int b = threadIdx.x; b < B; b += Tile::THREADS) sum += row_losses[b];
        sum = block_reduce<Tile::THREADS>(sum, Add{}, 0.0);
        if (threadIdx.x == 0) losses[counts[STEP]] = sum;
    }
    Tile tile;
    ClusterSums<BM, BN> sums{reinterpret_cast<float*>(stages)};
    if (tile.run(stages, ring, DZ, m0, COPY, n0, first, min(first + span, V), [](unsigned long long, bool) {})) {
        named_barrier_sync(1, Tile::CONSUMERS);  // all have read the tiles: sums take their place
        sums.store(tile.sum);
    }
    cluster.sync();  // the sums of all blocks are there
    int rows = (BM + parts - 1) / parts, end = min((rank + 1) * rows, BM) - rank * rows;
    for (int n = threadIdx.x; n < end * (BN / 4); n += Tile::THREADS) {
        int r = rank * rows + n / (BN / 4), c = n % (BN / 4) * 4, b = m0 + r, j = n0 + c;
        if (b >= B || j >= H) continue;
        float four[4] = {};
        Half h[4];
        sums.load(four, cluster, r, c);
        uint2 raw = *reinterpret_cast<const uint2*>(rounded + b * 1ll * HB + j);
        memcpy(static_cast<void*>(h), &raw, sizeof raw);
#pragma unroll
        for (int i = 0; i < 4; ++i) four[i] = to_math(h[i]) > 0 ? four[i] : 0.0f;
        Matrix<float> to{da, B, H};
        if (H % 4 == 0) to.template store<true>(four, b, j);
        else to.template store<false>(four, b, j);
    }
    cluster.sync();  // nobody ends while others may read his sums
}
// ANCHOR_END: gradient

// A tile of dx, by the warpgroups of a block of output_weights_wgmma.
template <int BM, int PACK>
using InputTile = RoundedTile<BM / 2, 64, 64, 16, 32, ALONG_K, ACROSS_K, PACK>;

template <Use, int, int BM, int BN, int PLACES>
constexpr int output_weights_wgmma_shared = WgmmaTile<BM, BN, PLACES, ACROSS_K, ACROSS_K>::BYTES + 1024;

// ANCHOR: weights
// A grid of 2 B / BM · E / 64 + V / BM · H / BN blocks, rounded up. Where w2 moves, its copy is made anew. The gradient by b2
// is dz's product with a column of ones, as eight columns are the fewest that wgmma has.
template <Use USE, int PACK, int BM, int BN, int PLACES>
__global__ void __launch_bounds__(BM * 2 + 32, 2)
    output_weights_wgmma(const __grid_constant__ TensorMap DZ, const __grid_constant__ TensorMap ROUNDED,
                         const float* __restrict__ da, const float* __restrict__ w1, float* __restrict__ dx, float* w2,
                         Half* __restrict__ copy, float* b2, const long long* __restrict__ counts,
                         const double* __restrict__ rates, const double* __restrict__ losses, int B, int V, int E,
                         int H, int HB) {
    using Tile = WgmmaTile<BM, BN, PLACES, ACROSS_K, ACROSS_K>;
    DYNAMIC_TILES(Half, stages);
    __shared__ Ring<PLACES> ring;
    using OfInput = InputTile<BM, PACK>;
    int own = blockIdx.x - (B + OfInput::BM - 1) / OfInput::BM * ((E + OfInput::BN - 1) / OfInput::BN);
    if (own < 0) {
        if (threadIdx.x < OfInput::THREADS)
            input_tile<OfInput, PACK>(stages, blockIdx.x, da, w1, dx, B, E, H);
        return;
    }
    Step step{counts, rates, losses};
    if (USE == DESCEND && step.stops()) return;
    int across = (H + BN - 1) / BN, m0 = own / across * BM, n0 = own % across * BN;
    Half* ones = stages + PLACES * Tile::STAGE;
    for (int n = threadIdx.x; n < 512; n += Tile::THREADS) ones[n] = from_math<Half>(1.0f);
    fence_proxy_async_shared();  // wgmma reads what was written by plain stores
    auto column = k_major<Tile::Tiles::SPAN>(ones, 8 * Tile::Tiles::SPAN);
    float bias[4];
    Tile tile;
    bool sums = tile.run(stages, ring, DZ, m0, ROUNDED, n0, 0, B, [&](unsigned long long rows, bool adds) {
        wgmma<Half, 8, true, false>(bias, rows, column, adds);
    });
    if (!sums) return;
    float lr = USE == DESCEND ? step.rate() : 0.0f;
    Matrix<float> p{w2, V, H};
    constexpr int FOURS = 4;  // on their way before the first of them moves
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int v = m0 + Tile::row() + 8 * h;
#pragma unroll
        for (int first = 0; first < BN / 16; first += FOURS) {
            float now[FOURS][4];
#pragma unroll
            for (int j = 0; j < FOURS; ++j) before<USE, PACK>(now[j], p, v, n0 + Tile::column(first + j));
#pragma unroll
            for (int j = 0; j < FOURS; ++j) {
                float gradient[4];
                int c = n0 + Tile::column(first + j);
                tile.four(gradient, h, first + j);
                after<USE, PACK>(now[j], p, v, c, gradient, lr);
                if (USE == DESCEND) Matrix<Half>{copy, V, HB}.template store<true>(now[j], v, c);
            }
        }
        if (n0 == 0 && threadIdx.x % 4 == 0 && v < V) apply<USE>(b2[v], bias[2 * h], lr);
    }
}
// ANCHOR_END: weights
