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
#include "lab/ptx/dynamic_shared.cuh"
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

// Goes from tile to tile, `all` of them: job.steps(n) groups of products each, whose operands job.load(n, step, tiles, full)
// asks for; job.store(n, store) says where the sums go, store(map, i, j) what to do with them.
template <class Tiles, class T, int BM, int BN, int PLACES, class Job>
__device__ __forceinline__ void go_through(T* tiles, int all, const Job& job) {
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2)
            for (int n = blockIdx.x; n < all; n += gridDim.x)
                for (int s = 0; s < job.steps(n); ++s, turn.advance()) {
                    ring.wait_empty(turn);
                    job.load(n, s, Tiles(tiles + turn.place * Tiles::CELLS), &ring.full[turn.place]);
                }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        float sum[BN / 2];
        int group = threadIdx.x / 128, row = group * 64;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            Turn<PLACES> last;
            int steps = job.steps(n);
            for (int s = 0; s < steps; ++s, turn.advance()) {
                ring.wait_full(turn);
                Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum, row, s > 0);
                wgmma_wait<1>();
                if (s > 0 && threadIdx.x % 128 == 0) ring.leave(last);
                last = turn;
            }
            wgmma_wait<0>();
            if (threadIdx.x % 128 == 0) ring.leave(last);
            job.store(n, [&](const TensorMap& C, int i, int j) { staged.store(C, sum, i + row, j, 0); });
        }
        staged.finish();
    }
}

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int BYTES_OF_RING = PLACES * PanelTiles<T, false, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

// Tiles of dW_ih, then those of dW_hh.
template <int BM, int BN, int BK, int HIGH> struct WeightJob {
    const TensorMap &DA, &X, &Y, &FIRST, &H0, &DW_IH, &DW_HH;
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
    template <class Store> __device__ __forceinline__ void store(int n, Store store) const {
        auto [i, j, g] = at(n);
        store(by_x(n) ? DW_IH : DW_HH, i * BM, j * BN);
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
    WeightJob<BM, BN, BK, HIGH> job{DA,   X,    Y,    FIRST, H0,     DW_IH,           DW_HH,
                                    of_x, of_h, rows, B,     column, reverse ? B : -B};
    go_through<PanelTiles<T, true, BM, BN, BK>, T, BM, BN, PLACES>(tiles, down * (of_x.across + of_h.across), job);
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
