// A training step of B pairs in f32, in seven launches. The equations are those of mlp.cuh.
//
//   hidden          x, h                                      tiles of B x H, sums over E
//   logits          z = h w2ᵀ + b2, and of each tile the      tiles of B x V, sums over H
//                   largest of a row and Σ exp
//   softmax_loss    the loss of a row; z becomes dz           a block a row
//   output_input    parts of w2ᵀ dz                           tiles of B x H, sums over parts of V
//   hidden_gradient da: the parts are added up                a thread an element
//   output_weights  w2 −= lr dzᵀ h, b2 −= lr Σ dz, and in     tiles of V x H, sums over B
//                   blocks of their own dx                    tiles of B x E, sums over H
//   input_weights   w1 −= lr daᵀ x, b1, and the embeddings    tiles of H x E, sums over B; a block a
//                                                             token for the sum over its pairs
//
// What reads a parameter and what moves it are in different launches, and nobody adds to what another
// has written: the same bits at every run. With KEEP gradients are written where DESCEND would move
// parameters.
//
// z: B rows of Z numbers, V rounded up to 4. stats: for each row and 64 logits the largest and the sum.
#include "mlp.cuh"

using namespace lab;

constexpr int SOFTMAX_THREADS = 256;

// ROWS is 64, or 128 where there are many tiles: then a thread has 8 x 8 sums in place of 8 x 4, and four
// loads from shared memory serve 64 multiply-adds in place of three 32.
template <int ROWS, Along A, Along B, int PACK>
using Large = RegisterTile<ROWS, 64, 16, 8, A, B, PACK, ROWS / 16>;

template <int PACK>
__global__ void __launch_bounds__(64)
    hidden(const int* __restrict__ tokens, const int* __restrict__ targets,
           const int* __restrict__ order, long long* counts, double* numbers,
           int* __restrict__ ids, const float* __restrict__ emb, const float* __restrict__ w1,
           const float* __restrict__ b1, float* __restrict__ x, float* __restrict__ h, int pairs,
           int B, int E, int H) {
    using Tile = SmallTile<ALONG_K, ALONG_K, PACK>;
    __shared__ __align__(16) typename Tile::Stages stages;
    hidden_tile<Tile, PACK>(
        stages, tokens, targets, order, counts, numbers, ids, emb, w1, b1, x, pairs, B, E, H,
        [&](int b, int j, const float(&four)[4]) { Matrix<float>{h, B, H}.template store<PACK == 4>(four, b, j); });
}

// ANCHOR: logits
// A grid of V / 64 x B / ROWS blocks of 128 threads, rounded up.
template <int ROWS, int PACK>
__global__ void __launch_bounds__(128, 3)
    logits(const float* __restrict__ h, const float* __restrict__ w2, const float* __restrict__ b2,
           float* __restrict__ z, float* __restrict__ stats, int B, int V, int H, int Z) {
    using Tile = Large<ROWS, ALONG_K, ALONG_K, PACK>;
    __shared__ __align__(16) typename Tile::Stage stage[2];
    int m0 = blockIdx.y * Tile::BM, n0 = blockIdx.x * Tile::BN;
    auto h_of = [&](int m, int k) -> const float* {
        return m0 + m < B && k < H ? h + (m0 + m) * 1ll * H + k : nullptr;
    };
    auto weight = [&](int n, int k) -> const float* {
        return n0 + n < V && k < H ? w2 + (n0 + n) * 1ll * H + k : nullptr;
    };
    Tile tile;
    tile.run(stage, 0, H, h_of, weight);
    tile.for_each_row([&](int m, const float(&sum)[Tile::FOURS][4]) {
        float own[Tile::FOURS][4], largest = lowest<float>(), total = 0;
#pragma unroll
        for (int j = 0; j < Tile::FOURS; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int v = n0 + Tile::column(j) + i;
                own[j][i] = v < V ? sum[j][i] + b2[v] : lowest<float>();
                largest = max(largest, own[j][i]);
            }
            Matrix<float>{z, B, Z}.template store<true>(own[j], m0 + m, n0 + Tile::column(j));
        }
        largest = Tile::reduce_row(largest, Max{});
#pragma unroll
        for (int j = 0; j < Tile::FOURS; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                total += n0 + Tile::column(j) + i < V ? expf(own[j][i] - largest) : 0.0f;
        total = Tile::reduce_row(total, Add{});
        if (Tile::column(0) > 0 || m0 + m >= B) return;
        float* to = stats + ((m0 + m) * 1ll * gridDim.x + blockIdx.x) * 2;
        to[0] = largest, to[1] = total;
    });
}
// ANCHOR_END: logits

// A grid of B blocks. row_losses: of each pair, already divided by their number.
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    softmax_loss(const int* __restrict__ ids, const long long* __restrict__ counts,
                 const float* __restrict__ stats, float* z, double* __restrict__ row_losses,
                 int pairs, int B, int V, int Z, int tiles) {
    int b = blockIdx.x, live = live_pairs(counts[STEP], pairs, B);
    z += b * 1ll * Z;
    bool there = b < live;
    for (int v = (there ? Z : 0) + threadIdx.x; v < Z; v += THREADS) z[v] = 0;
    double loss = 0;
    if (there) {
        auto put = [&](int v, const float(&dz)[4]) { Matrix<float>{z, 1, Z}.template store<true>(dz, 0, v); };
        loss = softmax_row<THREADS>(stats + b * 2ll * tiles, tiles, ids[B + b], z, Z, 1.0f / live, put);
    }
    if (threadIdx.x == 0) row_losses[b] = loss / live;
}

// ANCHOR: split
// A grid of B / ROWS x H / 64 x parts of V blocks of 128 threads, rounded up; a part is `span` tokens. The
// first block also adds up the loss.
template <int ROWS, int PACK>
__global__ void __launch_bounds__(128, 3)
    output_input(const float* __restrict__ dz, const float* __restrict__ w2,
                 const double* __restrict__ row_losses, const long long* __restrict__ counts,
                 float* __restrict__ parts, double* __restrict__ losses, int B, int V, int H, int Z,
                 int span) {
    using Tile = Large<ROWS, ALONG_K, ACROSS_K, PACK>;
    __shared__ __align__(16) typename Tile::Stage stage[2];
    int m0 = blockIdx.x * Tile::BM, n0 = blockIdx.y * Tile::BN, first = blockIdx.z * span;
    int end = first + span < V ? first + span : V;
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) {
        double sum = 0;
        for (int b = threadIdx.x; b < B; b += Tile::THREADS) sum += row_losses[b];
        sum = block_reduce<Tile::THREADS>(sum, Add{}, 0.0);
        if (threadIdx.x == 0) losses[counts[STEP]] = sum;
    }
    auto dz_of = [&](int m, int v) -> const float* {
        return m0 + m < B && v < end ? dz + (m0 + m) * 1ll * Z + v : nullptr;
    };
    auto weight = [&](int n, int v) -> const float* {
        return n0 + n < H && v < end ? w2 + v * 1ll * H + n0 + n : nullptr;
    };
    Tile tile;
    tile.run(stage, first, end, dz_of, weight);
    Matrix<float> part{parts + blockIdx.z * (B * 1ll * H), B, H};
    tile.for_each_four([&](int m, int n, const float(&sum)[4]) {
        part.template store<PACK == 4>(sum, m0 + m, n0 + n);
    });
}
// ANCHOR_END: split

// ANCHOR: hidden_gradient
// The parts are added up in their order. A grid of B H / 256 blocks of 256 threads, rounded up.
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    hidden_gradient(const float* __restrict__ parts, const float* __restrict__ h,
                    float* __restrict__ da, int splits, long long count) {
    long long n = blockIdx.x * (1ll * THREADS) + threadIdx.x;
    if (n >= count) return;
    float sum = 0;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) sum += parts[s * count + n];
    da[n] = h[n] > 0 ? sum : 0.0f;
}
// ANCHOR_END: hidden_gradient

// ANCHOR: weights
// A grid of B / 64 · E / 64 + V / ROWS · H / 64 blocks of 128 threads, rounded up.
template <Use USE, int ROWS, int PACK>
__global__ void __launch_bounds__(128, 3)
    output_weights(const float* __restrict__ dz, const float* __restrict__ h,
                   const float* __restrict__ da, const float* __restrict__ w1,
                   float* __restrict__ dx, float* w2, float* b2,
                   const long long* __restrict__ counts, const double* __restrict__ rates,
                   const double* __restrict__ losses, int B, int V, int E, int H, int Z) {
    using Tile = Large<ROWS, ACROSS_K, ACROSS_K, PACK>;
    __shared__ __align__(16) char memory[INPUT_TILE];
    auto& stage = *reinterpret_cast<typename Tile::Stage(*)[2]>(memory);
    static_assert(sizeof stage <= sizeof memory, "one memory for both tiles");
    int own = blockIdx.x - (B + 63) / 64 * ((E + 63) / 64);
    if (own < 0) return input_tile<Tile::THREADS, PACK>(memory, blockIdx.x, da, w1, dx, B, E, H);
    Step step{counts, rates, losses};
    if (USE == DESCEND && step.stops()) return;
    int tiles = (H + Tile::BN - 1) / Tile::BN;
    int m0 = own / tiles * Tile::BM, n0 = own % tiles * Tile::BN;
    auto dz_of = [&](int m, int b) -> const float* {
        return b < B && m0 + m < Z ? dz + b * 1ll * Z + m0 + m : nullptr;
    };
    auto h_of = [&](int n, int b) -> const float* {
        return b < B && n0 + n < H ? h + b * 1ll * H + n0 + n : nullptr;
    };
    float bias = 0;
    Tile tile;
    tile.run(stage, 0, B, dz_of, h_of, [&](const typename Tile::Stage& s) {
        if (n0 > 0 || threadIdx.x >= Tile::BM) return;
        for (auto& row : s.a) bias += row[threadIdx.x];
    });
    float lr = USE == DESCEND ? step.rate() : 0.0f;
    apply<USE, PACK>(Matrix<float>{w2, V, H}, m0, n0, tile, lr);
    int v = m0 + threadIdx.x;
    if (n0 == 0 && threadIdx.x < Tile::BM && v < V) apply<USE>(b2[v], bias, lr);
}
// ANCHOR_END: weights

template <Use USE, int PACK>
__global__ void __launch_bounds__(64)
    input_weights(const int* __restrict__ ids, const float* __restrict__ x,
                  const float* __restrict__ da, const float* __restrict__ dx, float* emb, float* w1,
                  float* b1, long long* counts, const double* __restrict__ rates,
                  const double* __restrict__ losses, int B, int E, int H) {
    input_gradient<SmallTile<ACROSS_K, ACROSS_K, PACK>, USE, 64, PACK>(
        ids, x, da, dx, emb, w1, b1, counts, rates, losses, B, E, H);
}
