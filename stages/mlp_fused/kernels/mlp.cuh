// What the kernels of a training step of many pairs share: the parts that have to do with the hidden layer
// and the embeddings alone, and the softmax of stored logits.
//
//   x = emb[token]    h = max(0, w1 x + b1)    z = w2 h + b2    loss = log Σ_v exp(z_v) − z_target
//   dz = (softmax(z) − one-hot(target)) / B    da = [h > 0] w2ᵀ dz    dx = w1ᵀ da
//
// Matrices are row-major: emb V x E, w1 H x E, w2 V x H; x, h, da, dx a row for each pair of the step.
#pragma once
#include "descent.cuh"
#include "lab/ptx/cluster.cuh"
#include "lab/reduce.cuh"
#include "register_tile.cuh"

namespace lab {

// The small products: the hidden layer, and the gradient by its weights. Few blocks with few warps each:
// what they wait for are loads, and so much of k is on its way at once.
template <Along A, Along B, int PACK> using SmallTile = RegisterTile<32, 32, 16 * PACK, 4, A, B, PACK>;

// ANCHOR: hidden
// The first launch of a step: x and h of its pairs, and their ids for the launches that follow. A grid of
// B / BM x H / BN blocks of THREADS of the tile, rounded up. `store(b, j, h)` keeps four neighbours, of
// which some may be outside, and then zero. ids: B tokens, then B targets; −1 of a pair that is not there,
// whose x is zero. `order`: in which the pairs come.
template <class Tile, int PACK, class Store>
__device__ __forceinline__ void hidden_tile(typename Tile::Stages& stages, const int* tokens, const int* targets, const int* order,
                                            long long* counts, double* numbers, int* ids,
                                            const float* emb, const float* w1, const float* b1,
                                            float* x, int pairs, int B, int E, int H, Store store) {
    __shared__ int token[Tile::BM];
    int m0 = blockIdx.x * Tile::BM, n0 = blockIdx.y * Tile::BN;
    bool first = blockIdx.y == 0;  // of the blocks that have these pairs
    // NEXT: what NOW is about to be.
    long long number = counts[COUNTS + STEP];
    int live = live_pairs(number, pairs, B);
    if (first && blockIdx.x == 0) Progress{counts, numbers}.begin(threadIdx.x);
    if (threadIdx.x < Tile::BM) {
        int b = m0 + threadIdx.x, pair = b < live ? order[number * B + b] : -1;
        token[threadIdx.x] = pair < 0 ? -1 : tokens[pair];
        if (first && b < B) ids[b] = token[threadIdx.x], ids[B + b] = pair < 0 ? -1 : targets[pair];
    }
    __syncthreads();  // all threads read rows of all tokens

    auto row = [&](int m, int k) -> const float* {
        return token[m] >= 0 && k < E ? emb + token[m] * 1ll * E + k : nullptr;
    };
    auto weight = [&](int n, int k) -> const float* {
        return n0 + n < H && k < E ? w1 + (n0 + n) * 1ll * E + k : nullptr;
    };
    Tile tile;
    tile.run(stages, 0, E, row, weight);
    tile.for_each_four([&](int m, int n, const float(&sum)[4]) {
        float h[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float a = n0 + n + i < H ? sum[i] + b1[n0 + n + i] : 0.0f;
            h[i] = a < 0 ? 0.0f : a;
        }
        store(m0 + m, n0 + n, h);
    });
    // Of x each of the blocks that have these pairs writes a share.
    for (int n = (blockIdx.y * Tile::THREADS + threadIdx.x) * PACK; n < Tile::BM * E;
         n += gridDim.y * Tile::THREADS * PACK) {
        const float* from = row(n / E, n % E);
        float own[PACK] = {};
        if (from) Matrix<const float>{from, 1, PACK}.template load<PACK>(own, 0, 0);
        Matrix<float>{x, B, E}.template store<PACK == 4, PACK>(own, m0 + n / E, n % E);
    }
}
// ANCHOR_END: hidden

// ANCHOR: softmax
// A row of logits, by a block of THREADS: its loss, from what each tile of WIDTH logits has left of it,
// the largest and the sum of the exponentials relative to that. put(v, dz) for each four of them; behind
// V there are as many as make `columns`, a multiple of four, with a logit that counts for nothing.
template <int THREADS, class Put>
__device__ __forceinline__ double softmax_row(const float* stats, int tiles, int target,
                                              const float* z, int columns, float each, Put put) {
    constexpr int FOURS = 4;  // on their way at a time, as put may write where z is
    float largest = lowest<float>(), sum = 0;
    for (int n = threadIdx.x; n < tiles; n += THREADS) largest = max(largest, stats[2 * n]);
    largest = block_reduce<THREADS>(largest, Max{}, lowest<float>());
    for (int n = threadIdx.x; n < tiles; n += THREADS)
        sum += stats[2 * n + 1] * expf(stats[2 * n] - largest);
    float of_target = z[target];
    sum = block_reduce<THREADS>(sum, Add{}, 0.0f);  // also: the target's logit is read, put may write
    Matrix<const float> row{z, 1, columns};
    for (int first = threadIdx.x * 4; first < columns; first += FOURS * THREADS * 4) {
        float own[FOURS][4];
#pragma unroll
        for (int n = 0; n < FOURS; ++n) row.template load<4>(own[n], 0, first + n * THREADS * 4);
#pragma unroll
        for (int n = 0; n < FOURS; ++n) {
            int v = first + n * THREADS * 4;
            if (v >= columns) break;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                own[n][i] = (expf(own[n][i] - largest) / sum - float(v + i == target)) * each;
            put(v, own[n]);
        }
    }
    return double(logf(sum) + (largest - of_target));
}
// ANCHOR_END: softmax

// ANCHOR: input
// A tile of dx = da w1, by the first THREADS of a block; `memory` has room for it. B / BM x E / BN tiles, rounded up.
template <class Tile, int PACK, class Stages>
__device__ __forceinline__ void input_tile(Stages& stages, int own, const float* da, const float* w1,
                                           float* dx, int B, int E, int H) {
    int tiles = (E + Tile::BN - 1) / Tile::BN;
    int m0 = own / tiles * Tile::BM, n0 = own % tiles * Tile::BN;
    auto da_of = [&](int m, int j) -> const float* {
        return m0 + m < B && j < H ? da + (m0 + m) * 1ll * H + j : nullptr;
    };
    auto weight = [&](int n, int j) -> const float* {
        return n0 + n < E && j < H ? w1 + j * 1ll * E + n0 + n : nullptr;
    };
    Tile tile;
    tile.run(stages, 0, H, da_of, weight);
    tile.for_each_four([&](int m, int n, const float(&sum)[4]) {
        Matrix<float>{dx, B, E}.template store<PACK == 4>(sum, m0 + m, n0 + n);
    });
}

// The same in f32, by a block of THREADS; `memory` has room for INPUT_TILE bytes.
constexpr int INPUT_TILE = 2 * sizeof(RegisterStage<64, 64, 32>);
template <int THREADS, int PACK>
__device__ __forceinline__ void input_tile(void* memory, int own, const float* da, const float* w1,
                                           float* dx, int B, int E, int H) {
    using Tile =
        RegisterTile<64, 64, PACK == 4 ? 32 : 16, 64 * 16 / THREADS, ALONG_K, ACROSS_K, PACK>;
    auto& stages = *static_cast<typename Tile::Stage(*)[2]>(memory);
    input_tile<Tile, PACK>(stages, own, da, w1, dx, B, E, H);
}
// ANCHOR_END: input

// ANCHOR: embedding
// The gradient by the embedding of a token, by the LANES threads of the first pair that has it, whole warps:
// the rows of dx of all that have it, in their order. Each warp makes a list of them, of WINDOW pairs at a
// time, so that several rows are on their way at once however rare the token is.
template <Use USE, int THREADS, int LANES, int PACK>
__device__ __forceinline__ void embedding_row(const int* ids, const float* dx, float* emb, int b,
                                              int B, int E, float lr) {
    constexpr int WINDOW = 256, PACKS = 64 / LANES;  // of a row, a thread
    __shared__ int found[THREADS / 32][WINDOW];
    int token = ids[b], lane = threadIdx.x % 32, *list = found[threadIdx.x / 32];
    if (token < 0) return;
    auto same = [&](int from, int end) {
        int other = from + lane;
        return __ballot_sync(0xffffffffu, other < end && ids[other] == token);
    };
    unsigned earlier = 0;
#pragma unroll 8
    for (int from = 0; from < b; from += 32) earlier |= same(from, b);
    if (earlier) return;  // others have it
    for (int e0 = 0; e0 < E; e0 += LANES * PACKS * PACK) {
        int e = e0 + threadIdx.x % LANES * PACK;  // and every LANES packs further on
        float sum[PACKS][4] = {};
        for (int window = b; window < B; window += WINDOW) {
            int count = 0, end = B - window < WINDOW ? B : window + WINDOW;
            unsigned all[WINDOW / 32];  // their ids are on their way at once, too
#pragma unroll
            for (int n = 0; n < WINDOW / 32; ++n) all[n] = same(window + n * 32, end);
#pragma unroll
            for (int n = 0; n < WINDOW / 32; ++n) {
                if (all[n] >> lane & 1)
                    list[count + __popc(all[n] & ((1u << lane) - 1))] = window + n * 32 + lane;
                count += __popc(all[n]);
            }
            __syncwarp();  // the warp's list is there
#pragma unroll 8
            for (int n = 0; n < count; ++n) {
#pragma unroll
                for (int p = 0; p < PACKS; ++p) {
                    float row[PACK];
                    Matrix<const float>{dx, B, E}.template load<PACK>(row, list[n], e + p * LANES * PACK);
#pragma unroll
                    for (int i = 0; i < PACK; ++i) sum[p][i] += row[i];
                }
            }
            __syncwarp();  // and read: the next window may overwrite it
        }
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            float now[4];
            int c = e + p * LANES * PACK;
            Matrix<float> own{emb + token * 1ll * E, 1, PACK == 4 || c >= E ? E : c + 1};
            before<USE, PACK>(now, own, 0, c);
            after<USE, PACK>(now, own, 0, c, sum[p], lr);
        }
    }
}
// ANCHOR_END: embedding

// The last launch of a step: the tiles of dw1 with, in the first of each row, b1, which take longest, and
// then the embeddings of the pairs, of THREADS / LANES a block. H / BM · E / BN blocks and those for B pairs,
// rounded up, of THREADS of the tile; where the tile is a CLUSTER's, as many clusters, whose blocks share the pairs.
template <class Tile, Use USE, int LANES, int PACK, bool CLUSTER = false>
__device__ __forceinline__ void input_gradient(const int* ids, const float* x, const float* da,
                                               const float* dx, float* emb, float* w1, float* b1,
                                               long long* counts, const double* rates,
                                               const double* losses, int B, int E, int H) {
    __shared__ __align__(16) typename Tile::Stages stages;
    Step step{counts, rates, losses};
    bool stops = USE == DESCEND && step.stops();
    if (USE == DESCEND && blockIdx.x == 0 && threadIdx.x == 0) {
        Progress at{counts, nullptr};
        at.next(STEP, counts[STEP] + !stops), at.next(TAKEN, counts[TAKEN] + !stops);
        at.next(UPDATES, counts[UPDATES] + !stops), at.next(STOPPED, stops);
    }
    if (stops) return;
    float lr = USE == DESCEND ? step.rate() : 0.0f;
    int blocks = 1;
#ifdef LAB_CLUSTERS
    if constexpr (CLUSTER) blocks = cooperative_groups::this_cluster().num_blocks();
#endif
    int tiles = (E + Tile::BN - 1) / Tile::BN, own = blockIdx.x / blocks;
    int block = blockIdx.x - (H + Tile::BM - 1) / Tile::BM * tiles * blocks;
    if (block >= 0) {
        int b = block * (Tile::THREADS / LANES) + threadIdx.x / LANES;
        if (b < B) embedding_row<USE, Tile::THREADS, LANES, PACK>(ids, dx, emb, b, B, E, lr);
        return;
    }

    int m0 = own / tiles * Tile::BM, n0 = own % tiles * Tile::BN;
    auto da_of = [&](int m, int b) -> const float* {
        return b < B && m0 + m < H ? da + b * 1ll * H + m0 + m : nullptr;
    };
    auto x_of = [&](int n, int b) -> const float* {
        return b < B && n0 + n < E ? x + b * 1ll * E + n0 + n : nullptr;
    };
    int first = 0, end = B;
    if constexpr (CLUSTER) {
        int span = (B + Tile::BK * blocks - 1) / (Tile::BK * blocks) * Tile::BK;
        first = blockIdx.x % blocks * span, end = min(first + span, B);
    }
    float bias = 0;
    Tile tile;
    tile.run(stages, first, end, da_of, x_of, [&](typename Tile::Loaded loaded) {
        if (n0 == 0 && threadIdx.x < Tile::BM) Tile::add_column(bias, loaded, threadIdx.x);
    });
    Matrix<float> p{w1, H, E};
    int j = m0 + threadIdx.x;
    if constexpr (CLUSTER) {
        auto sums = tile.share(stages, bias);
        apply<USE, PACK>(p, n0 == 0 ? b1 : nullptr, m0, n0, sums, lr);
    } else {
        apply<USE, PACK>(p, m0, n0, tile, lr);
        if (n0 == 0 && threadIdx.x < Tile::BM && j < H) apply<USE>(b1[j], bias, lr);
    }
}

}  // namespace lab
