// Products of matrices of halves by wgmma and TMA, C = A B: what a kernel that has one leaves to others. A along k is
// [M, K] in memory, across it [K, M]; B along k is [N, K], across it [K, N]; C is [M, N]. Of a block one thread asks for tiles,
// and BM / 64 warpgroups multiply 64 rows each.
//
// A job says what is multiplied, and where the sums go; a kernel derives its own from ProductJob:
//
//   at(n)                       tile n: which rows and columns, i and j, and what else the job has to know of it
//   steps(tile)                 groups of products, one at least; of a shared tile one at least for each block
//   load(tile, s, tiles, full)  asks for the operands of step s, with lab/operand_tiles.cuh; one thread
//   begin(tile)                 by a warpgroup that multiplies, before its products: what the epilogue needs, such as biases.
//                               The threads of warpgroup w may meet at named barrier 1 + w, as end() and its stores do
//   end(tile, sum, row, store)  the epilogue of the sums of 64 rows, from row `row` of the tile on: adds to them, scales them
//                               (lab/epilogue.cuh), and calls store(C, i, j), which rounds and stores them, to rows i and columns j of C, a map
//                               of one matrix (Operand::stored)
//
// go_through() gives each block tile after tile; share_tile() has the blocks of a cluster share the steps of one, where
// tiles are few. A kernel calls one of them, once, with PRODUCT_THREADS a block in one dimension, and says so in its
// __launch_bounds__. `tiles` is dynamic shared memory, DYNAMIC_TILES.
#pragma once
#include "lab/cluster_sums.cuh"
#include "lab/epilogue.cuh"
#include "lab/halves.cuh"
#include "lab/operand_tiles.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "lab/staged_store.cuh"
#include "lab/tile_order.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

struct ProductJob {
    // Of a thread of the warpgroup that asks, and of those that multiply.
    static constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

    template <class Tile> __device__ __forceinline__ void begin(const Tile&) const {}
};

// Rows and columns of C from here on.
struct Corner {
    int i, j;
};

// Threads of a block, and bytes of dynamic shared memory: places of the ring, and of go_through()'s staged stores.
template <int BM> constexpr int PRODUCT_THREADS = BM * 2 + 128;
template <class T, int BM, int BN, int BK, int PLACES>
constexpr int PRODUCT_BYTES =
    PLACES * OperandTiles<T, ALONG_K, ALONG_K, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

// Tiles on their way through the ring of a block: one thread asks for them, warpgroups multiply what has come.
template <class Tiles, class T, int BN, int PLACES> struct Pipeline {
    T* tiles;
    Ring<PLACES>& ring;
    Turn<PLACES> turn;

    __device__ __forceinline__ Tiles at(Turn<PLACES> turn) const { return Tiles(tiles + turn.place * Tiles::CELLS); }

    // The operands of a tile's steps from `first` to before `end`.
    template <class Job, class Tile>
    __device__ __forceinline__ void ask(const Job& job, const Tile& tile, int first, int end) {
        for (int s = first; s < end; ++s, turn.advance()) {
            ring.wait_empty(turn);
            job.load(tile, s, at(turn), &ring.full[turn.place]);
        }
    }
    // sum = the products of 64 rows from `row` on, of so many steps, one at least.
    __device__ __forceinline__ void multiply(float (&sum)[BN / 2], int row, int steps) {
        Turn<PLACES> last;
        for (int s = 0; s < steps; ++s, turn.advance()) {
            ring.wait_full(turn);
            at(turn).multiply(sum, row, s > 0);
            wgmma_wait<1>();
            if (s > 0 && threadIdx.x % 128 == 0) ring.leave(last);
            last = turn;
        }
        wgmma_wait<0>();
        if (threadIdx.x % 128 == 0) ring.leave(last);
    }
};

// Registers of a multiprocessor for each of 128 threads of a block: who asks for more would wait for ever.
template <class Job, int BM> constexpr bool REGISTERS_SUFFICE =
    Job::PRODUCER_REGISTERS + BM / 64 * Job::CONSUMER_REGISTERS <= 65536 / 128;

// Goes from tile to tile, `all` of them.
template <class Tiles, class T, int BM, int BN, int PLACES, class Job>
__device__ __forceinline__ void go_through(T* tiles, int all, const Job& job) {
    static_assert(REGISTERS_SUFFICE<Job, BM>, "fewer registers a thread, or fewer rows");
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there
    Pipeline<Tiles, T, BN, PLACES> pipeline{tiles, ring};
    if (threadIdx.x >= BM * 2) {
        registers_decrease<Job::PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2)
            for (int n = blockIdx.x; n < all; n += gridDim.x) {
                auto tile = job.at(n);
                pipeline.ask(job, tile, 0, job.steps(tile));
            }
    } else {
        registers_increase<Job::CONSUMER_REGISTERS>();
        float sum[BN / 2];
        int group = threadIdx.x / 128, row = group * 64;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            auto tile = job.at(n);
            job.begin(tile);
            pipeline.multiply(sum, row, job.steps(tile));
            job.end(tile, sum, row, [&](const TensorMap& C, int i, int j) { staged.store(C, sum, i, j, 0); });
        }
        staged.finish();
    }
}

// A tile whose steps the blocks of a cluster share; each stores some rows of it. A grid of tiles x blocks of a cluster, in one
// dimension. The job's begin() and end() are not called: to(tile, r, c, four) is the epilogue of four neighbours of row r of
// the tile, from its column c on: it may change them, and says where they go, 8 bytes aligned, all of them; null is nowhere.
template <class Tiles, class T, int BM, int BN, int PLACES, class Job, class To>
__device__ __forceinline__ void share_tile(T* tiles, const Job& job, To to) {
    static_assert(sizeof(T) == 2, "sums are rounded to halves");
    static_assert(REGISTERS_SUFFICE<Job, BM>, "fewer registers a thread, or fewer rows");
    static_assert(ClusterSums<BM, BN>::BYTES <= PLACES * Tiles::BYTES, "sums take the place of tiles");
    __shared__ Ring<PLACES> ring;
    auto cluster = cooperative_groups::this_cluster();
    auto tile = job.at(blockIdx.x / cluster.num_blocks());
    int parts = cluster.num_blocks(), rank = cluster.block_rank(), steps = job.steps(tile);
    int first = steps * rank / parts, end = steps * (rank + 1) / parts;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there
    Pipeline<Tiles, T, BN, PLACES> pipeline{tiles, ring};
    ClusterSums<BM, BN> sums{reinterpret_cast<float*>(tiles)};
    if (threadIdx.x >= BM * 2) {
        registers_decrease<Job::PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2) pipeline.ask(job, tile, first, end);
    } else {
        registers_increase<Job::CONSUMER_REGISTERS>();
        float sum[BN / 2];
        pipeline.multiply(sum, threadIdx.x / 128 * 64, end - first);
        named_barrier_sync(1, BM * 2);  // all have read the tiles: sums take their place
        sums.store(sum);
    }
    cluster.sync();  // the sums of all blocks are there
    int rows = (BM + parts - 1) / parts;
    for (int e = threadIdx.x; e < rows * (BN / 4); e += PRODUCT_THREADS<BM>) {
        int r = rank * rows + e / (BN / 4), c = e % (BN / 4) * 4;
        if (r >= BM) continue;
        float four[4] = {};
        sums.load(four, cluster, r, c);
        if (T* place = to(tile, r, c, four))
            *reinterpret_cast<uint2*>(place) = {two_halves<T>(four[0], four[1]), two_halves<T>(four[2], four[3])};
    }
    cluster.sync();  // nobody ends while others may read his sums
}

}  // namespace lab
#endif
