// The gradients by weights and by x, where da of all steps are known: products over all steps, by wgmma and TMA.
//
//   dW_ih = Σ_r da_rᵀ x_r      dW_hh = Σ_r da_rᵀ h_before(r)      dx_r = da_r W_ih, of one direction or the sum of both
//
// products of T's, sums in f32. r is a row of a step, T B of them. h_before(r) is y of B rows before, or of a reverse
// direction of B rows behind: beyond y TMA brings zeros, and y is zero where a row has no step. Only what a row's
// first step reads is not there: h0. So a second, short sum goes over the rows of the batch: that of da of their first steps.
//
// Work split: that of v4_product.cu. A block a multiprocessor goes from tile to tile, those of dW_ih and dW_hh in one
// launch. Along r lie neither da nor x: of both, consecutive columns lie side by side, and wgmma takes them transposed.
//
// da [T B, 4H], first_da [B, 4H], x [T B, C], y [T B, stride], h0 [B, H], W_ih [4H, C], all T's; C and H multiples of 8.
#include "lab/cluster_sums.cuh"
#include "lab/halves.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/ptx/wgmma.cuh"
#include "lab/ring.cuh"
#include "lab/staged_store.cuh"
#include "lab/tile_order.cuh"
#include "lstm.cuh"

using namespace lab;

// Of a block of three warpgroups, two of which multiply; together no more than the block was launched with.
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

// BM rows of A and BN columns of B, BK deep: panels of 64 columns of B; of A too if TRANSPOSED, else a span of k a row.
template <class T, bool TRANSPOSED, int BM, int BN, int BK> struct PanelTiles {
    static constexpr int SPAN = 128, STEP = 32 / sizeof(T), PANEL = SPAN / sizeof(T);
    static constexpr int CELLS = (BM + BN) * BK, BYTES = CELLS * sizeof(T);
    static_assert(BK == PANEL && BM % 64 == 0 && BN % PANEL == 0, "whole spans");
    T *a, *b;

    __device__ __forceinline__ explicit PanelTiles(T* tiles) : a(tiles), b(tiles + BM * BK) {}

    // Rows i of A and columns j of B, A's from k on and B's from kb on; one thread.
    __device__ __forceinline__ void load(const TensorMap& A, const TensorMap& B, int i, int j, int k, int kb,
                                         Mbarrier* full) const {
        mbarrier_arrive_expect(full, BYTES);
        if constexpr (TRANSPOSED) {
#pragma unroll
            for (int p = 0; p < BM; p += PANEL) tensor_load(a + p * BK, A, {i + p, k}, full);
        } else {
            tensor_load(a, A, {k, i}, full);
        }
#pragma unroll
        for (int p = 0; p < BN; p += PANEL) tensor_load(b + p * BK, B, {j + p, kb}, full);
    }
    // sum = or += the product of 64 rows of A, from `row` on, and B: one group of wgmma.
    __device__ __forceinline__ void multiply(float (&sum)[BN / 2], int row, bool adds) const {
        constexpr int STRIDE = 8 * SPAN, A_STEP = TRANSPOSED ? STEP * SPAN : STEP * sizeof(T);
        auto rows = TRANSPOSED ? mn_major<SPAN>(a + row * BK, BK * SPAN, STRIDE) : k_major<SPAN>(a + row * BK, STRIDE);
        auto columns = mn_major<SPAN>(b, BK * SPAN, STRIDE);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / STEP; ++k)
            wgmma<T, BN, TRANSPOSED, true>(sum, advance(rows, k * A_STEP), advance(columns, k * STEP * SPAN),
                                           adds || k > 0);
        wgmma_commit();
    }
};

// Tiles on their way through the ring of a block: one thread asks for them, warpgroups multiply what has come.
template <class Tiles, class T, int BN, int PLACES> struct Pipeline {
    T* tiles;
    Ring<PLACES>& ring;
    Turn<PLACES> turn;

    __device__ __forceinline__ Tiles at(Turn<PLACES> turn) const { return Tiles(tiles + turn.place * Tiles::CELLS); }

    // The operands of a tile's steps from `first` to before `end`.
    template <class Job> __device__ __forceinline__ void ask(const Job& job, int n, int first, int end) {
        for (int s = first; s < end; ++s, turn.advance()) {
            ring.wait_empty(turn);
            job.load(n, s, at(turn), &ring.full[turn.place]);
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

// Goes from tile to tile, `all` of them: job.steps(n) groups of products each, whose operands job.load(n, step, tiles, full)
// asks for; job.store(n, store) says where the sums go, store(map, i, j) what to do with them.
template <class Tiles, class T, int BM, int BN, int PLACES, class Job>
__device__ __forceinline__ void go_through(T* tiles, int all, const Job& job) {
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there
    Pipeline<Tiles, T, BN, PLACES> pipeline{tiles, ring};
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2)
            for (int n = blockIdx.x; n < all; n += gridDim.x) pipeline.ask(job, n, 0, job.steps(n));
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        float sum[BN / 2];
        int group = threadIdx.x / 128, row = group * 64;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            pipeline.multiply(sum, row, job.steps(n));
            job.store(n, [&](const TensorMap& C, int i, int j) { staged.store(C, sum, i + row, j, 0); });
        }
        staged.finish();
    }
}

// A tile whose steps the blocks of a cluster share; each stores some rows of it. to(n, r, c) is where four neighbours go, or
// null outside.
template <class Tiles, class T, int BM, int BN, int PLACES, class Job, class To>
__device__ __forceinline__ void share_tile(T* tiles, const Job& job, To to) {
    __shared__ Ring<PLACES> ring;
    auto cluster = cooperative_groups::this_cluster();
    int parts = cluster.num_blocks(), rank = cluster.block_rank(), n = blockIdx.x / parts, steps = job.steps(n);
    int first = steps * rank / parts, end = steps * (rank + 1) / parts;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there
    Pipeline<Tiles, T, BN, PLACES> pipeline{tiles, ring};
    ClusterSums<BM, BN> sums{reinterpret_cast<float*>(tiles)};
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2) pipeline.ask(job, n, first, end);
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        float sum[BN / 2];
        int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
        pipeline.multiply(sum, threadIdx.x / 128 * 64, end - first);
        named_barrier_sync(1, BM * 2);  // all have read the tiles: sums take their place
#pragma unroll
        for (int j = 0; j < BN / 8; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                *reinterpret_cast<float2*>(sums.x + (row + 8 * h) * sums.ROW + 8 * j + column) =
                    make_float2(sum[4 * j + 2 * h], sum[4 * j + 2 * h + 1]);
    }
    cluster.sync();  // the sums of all blocks are there
    int rows = (BM + parts - 1) / parts;
    for (int e = threadIdx.x; e < rows * (BN / 4); e += BM * 2 + 128) {
        int r = rank * rows + e / (BN / 4), c = e % (BN / 4) * 4;
        T* place = r < BM ? to(n, r, c) : nullptr;
        if (place == nullptr) continue;
        float four[4] = {};
        sums.load(four, cluster, r, c);
        *reinterpret_cast<uint2*>(place) = {two_halves<T>(four[0], four[1]), two_halves<T>(four[2], four[3])};
    }
    cluster.sync();  // nobody ends while others may read his sums
}

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int BYTES_OF_RING = PLACES * PanelTiles<T, false, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

// Tiles of dW_ih, then those of dW_hh.
template <int BM, int BN, int BK, int HIGH> struct WeightJob {
    const TensorMap &DA, &X, &Y, &FIRST, &H0;
    TileOrder<HIGH> of_x, of_h;
    int rows, B, column, shift;  // h before a row is y of `shift` rows further on

    __device__ __forceinline__ bool by_x(int n) const { return n < of_x.down * of_x.across; }
    __device__ __forceinline__ auto at(int n) const {
        return by_x(n) ? of_x.at(n) : of_h.at(n - of_x.down * of_x.across);
    }
    __device__ __forceinline__ int over(int length) const { return (length + BK - 1) / BK; }
    __device__ __forceinline__ int steps(int n) const { return over(rows) + (by_x(n) ? 0 : over(B)); }
    template <class Tiles> __device__ __forceinline__ void load(int n, int s, Tiles tiles, Mbarrier* full) const {
        auto [i, j, g] = at(n);
        int k = s * BK, first = (s - over(rows)) * BK;
        if (by_x(n)) tiles.load(DA, X, i * BM, j * BN, k, k, full);
        else if (first < 0) tiles.load(DA, Y, i * BM, column + j * BN, k, k + shift, full);
        else tiles.load(FIRST, H0, i * BM, j * BN, first, first, full);
    }
};

// Where whole tiles of them go.
template <int BM, int BN, int BK, int HIGH> struct WholeWeightJob : WeightJob<BM, BN, BK, HIGH> {
    const TensorMap &DW_IH, &DW_HH;

    template <class Store> __device__ __forceinline__ void store(int n, Store store) const {
        auto [i, j, g] = this->at(n);
        store(this->by_x(n) ? DW_IH : DW_HH, i * BM, j * BN);
    }
};

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int weight_gradients_shared = BYTES_OF_RING<T, BM, BN, BK, PLACES>;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    weight_gradients(const __grid_constant__ TensorMap DA, const __grid_constant__ TensorMap X,
                     const __grid_constant__ TensorMap Y, const __grid_constant__ TensorMap FIRST,
                     const __grid_constant__ TensorMap H0, const __grid_constant__ TensorMap DW_IH,
                     const __grid_constant__ TensorMap DW_HH, int rows, int B, int H, int C, int column, int reverse) {
    DYNAMIC_TILES(T, tiles);
    int down = (GATES * H + BM - 1) / BM;
    TileOrder<HIGH> of_x{down, (C + BN - 1) / BN}, of_h{down, (H + BN - 1) / BN};
    WholeWeightJob<BM, BN, BK, HIGH> job{
        {DA, X, Y, FIRST, H0, of_x, of_h, rows, B, column, reverse ? B : -B}, DW_IH, DW_HH};
    go_through<PanelTiles<T, true, BM, BN, BK>, T, BM, BN, PLACES>(tiles, down * (of_x.across + of_h.across), job);
}

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int split_weight_gradients_shared = PLACES * PanelTiles<T, true, BM, BN, BK>::BYTES;

// The same where tiles are few: those of more columns, and the steps of each shared by a cluster.
template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    split_weight_gradients(const __grid_constant__ TensorMap DA, const __grid_constant__ TensorMap X,
                           const __grid_constant__ TensorMap Y, const __grid_constant__ TensorMap FIRST,
                           const __grid_constant__ TensorMap H0, T* __restrict__ dweight_ih, T* __restrict__ dweight_hh,
                           int rows, int B, int H, int C, int column, int reverse) {
    using Tiles = PanelTiles<T, true, BM, BN, BK>;
    static_assert(ClusterSums<BM, BN>::BYTES <= PLACES * Tiles::BYTES, "sums take the place of tiles");
    DYNAMIC_TILES(T, tiles);
    int down = (GATES * H + BM - 1) / BM;
    TileOrder<HIGH> of_x{down, (C + BN - 1) / BN}, of_h{down, (H + BN - 1) / BN};
    WeightJob<BM, BN, BK, HIGH> job{DA, X, Y, FIRST, H0, of_x, of_h, rows, B, column, reverse ? B : -B};
    share_tile<Tiles, T, BM, BN, PLACES>(tiles, job, [&](int n, int r, int c) -> T* {
        auto [i, j, g] = job.at(n);
        int columns = job.by_x(n) ? C : H, row = i * BM + r, at = j * BN + c;
        T* to = job.by_x(n) ? dweight_ih : dweight_hh;
        return row < GATES * H && at < columns ? to + row * 1ll * columns + at : nullptr;
    });
}

// Tiles of dx: over the gates of one direction, then over those of the other.
template <int BM, int BN, int BK, int HIGH> struct InputJob {
    const TensorMap &DA, &W, &DA_REVERSE, &W_REVERSE, &DX;
    TileOrder<HIGH> order;
    int of_one, both;  // steps of a direction

    __device__ __forceinline__ int steps(int) const { return of_one * (1 + both); }
    template <class Tiles> __device__ __forceinline__ void load(int n, int s, Tiles tiles, Mbarrier* full) const {
        auto [i, j, g] = order.at(n);
        int k = s % of_one * BK;
        bool one = s < of_one;
        tiles.load(one ? DA : DA_REVERSE, one ? W : W_REVERSE, i * BM, j * BN, k, k, full);
    }
    template <class Store> __device__ __forceinline__ void store(int n, Store store) const {
        auto [i, j, g] = order.at(n);
        store(DX, i * BM, j * BN);
    }
};

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int gradient_by_x_shared = BYTES_OF_RING<T, BM, BN, BK, PLACES>;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    gradient_by_x(const __grid_constant__ TensorMap DA, const __grid_constant__ TensorMap W,
                  const __grid_constant__ TensorMap DA_REVERSE, const __grid_constant__ TensorMap W_REVERSE,
                  const __grid_constant__ TensorMap DX, int rows, int H, int C, int both) {
    DYNAMIC_TILES(T, tiles);
    TileOrder<HIGH> order{(rows + BM - 1) / BM, (C + BN - 1) / BN};
    InputJob<BM, BN, BK, HIGH> job{DA, W, DA_REVERSE, W_REVERSE, DX, order, (GATES * H + BK - 1) / BK, both};
    go_through<PanelTiles<T, false, BM, BN, BK>, T, BM, BN, PLACES>(tiles, order.down * order.across, job);
}
