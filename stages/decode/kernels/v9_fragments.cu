// y = s (x Wᵀ) + residual of one row to eight: W streams through shared memory, and each role has warps of its own.
//
//     y_rn = s_n Σ_k W_nk z_rk + residual_rn        z: x, or its norm (normed_rows.cuh)
//
// As v6_columns, a block has as many columns of y as any other, ± 1, and z lies in shared memory. But bulk copies bring W, in stages of
// eight rows and 2 kB of each, so no register holds what is on its way, and no warp waits for all that it has asked for:
//
//   the producer   asks for a stage as soon as all have read what lies in its place
//   WARPS warps    multiply 128 bytes of each row of a stage on the tensor cores (fragments.cuh); a tile's last chunk ends with their sums
//   one warp       adds up the sums of all, in their order, and ends the columns of the tile, while the others go on
//
// With int8 that is two instructions a number. One block fills a multiprocessor: x is there once, and each block norms all rows of it.
//
// When the producer has asked for its last stage, the launch behind this one may begin, and it asks for what that begins with (ahead.cuh).
//
// weight: N x K, or 2 N x K; scale: one for each of its rows; x: R x K; norm: K; ogate (o): R x K; residual: R x N; y: R x N, in
// parts (cell_of). K is a multiple of 16; R is ROWS at most.
#include "ahead.cuh"
#include "fragments.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

#ifdef LAB_CLUSTERS
// The end of a tile's columns by a warp.
template <class W, int ROWS, int WARPS, class T>
__device__ __forceinline__ void end_tile(const float (&part)[WARPS][TILE * ROWS], const BlockRows& own, int tile, const float* scale,
                                         const T* residual, int has_residual, int gated, Mbarrier* ready, unsigned phase,
                                         const Columns<T>& to) {
    constexpr int CELLS = (TILE * ROWS + 31) / 32;
    int across = gated ? TILE / 2 : TILE, columns = min(across, own.columns - tile * across), first = own.first + tile * across;
    int lane = threadIdx.x % 32, c = lane % across, r0 = lane / across, down = 32 / across, n = first + c;
    float added[CELLS] = {}, gate_scale = 1, up_scale = 1;
    if (c < columns) {
#pragma unroll
        for (int i = 0; i < CELLS; ++i)
            if (has_residual && r0 + i * down < to.R) added[i] = to_math(residual[1ll * (r0 + i * down) * to.N + n]);
        gate_scale = scale_of<W>(scale, n);
        if (gated) up_scale = scale_of<W>(scale, to.N + n);
    }
    mbarrier_wait(ready, phase);  // the sums of all warps are there
    auto sum_of = [&](int row, int r) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += part[w][row * ROWS + r];
        return sum;
    };
#pragma unroll
    for (int i = 0; i < CELLS; ++i) {
        int r = r0 + i * down;
        if (c >= columns || r >= to.R) continue;
        float total = sum_of(gated ? 2 * c : c, r) * gate_scale;
        if (gated) total *= quick_sigmoid(total) * sum_of(2 * c + 1, r) * up_scale;
        to.store(r, n, has_residual ? total + added[i] : total);
    }
}
#endif

// ANCHOR: fragments
template <class T, class W, int ROWS, Norm NORM, int WARPS>
__global__ void __launch_bounds__(32 * (WARPS + 2), 1)
    few_rows_fragments(const W* __restrict__ weight, const float* __restrict__ scale, const T* x, const T* __restrict__ norm,
                       const T* ogate, const T* __restrict__ bias, const T* residual, T* y, float* gates, int R, int N, int K,
                       int D, int stages, int has_residual, int gated, float eps, int heads, float cap, int p1, int p2, int p3,
                       int p4, const W* __restrict__ next, long long next_half, int next_share, int next_bytes,
                       const float* state, int state_bytes) {
#ifdef LAB_CLUSTERS
    constexpr int BLOCK = 32 * (WARPS + 2), FOURS = (ROWS + 3) / 4, PRODUCER = WARPS;
    DYNAMIC_SHARED(unsigned char, memory);  // the stages, z [R, K], and what the norm needs
    __shared__ Mbarrier full[MOST_STAGES], empty[MOST_STAGES], ready[2], taken[2];
    __shared__ float part[2][WARPS][TILE * ROWS];
    BlockRows own(N, gated);
    int chunks = (K * static_cast<int>(sizeof(W)) + CHUNK - 1) / CHUNK, tiles = (own.rows + TILE - 1) / TILE;
    Stream<W> stream{weight, memory, full, empty, own, N, K, gated, stages, chunks, tiles};
    T* z = reinterpret_cast<T*>(memory + stages * STAGE);
    int warp = threadIdx.x / 32, ahead = min(stages, tiles * chunks);  // stages that nobody waits for
    Turn turn;
    bool speaks = threadIdx.x % 32 == 0;

    if (warp == PRODUCER) {
        if (speaks) {
            for (int i = 0; i < stages; ++i) mbarrier_init(full + i, 1), mbarrier_init(empty + i, WARPS);
            for (int i = 0; i < 2; ++i) mbarrier_init(ready + i, WARPS), mbarrier_init(taken + i, 1);
            mbarrier_fence_init();
        }
        // W is nobody's result: it is on its way before x is there.
        for (int i = 0; i < ahead; ++i, turn.next(chunks, stages)) stream.ask(turn);
    }
    bring_rows<NORM, ROWS, BLOCK>(z, z + R * K, x, norm, ogate, eps, K, D, R);
    __syncthreads();  // z is there, and so are the barriers

    if (warp == PRODUCER) {
        for (; turn.tile < tiles; turn.next(chunks, stages)) {
            mbarrier_wait(empty + turn.place, turn.phase ^ 1);  // all have read what lies there
            stream.ask(turn);
        }
        griddep_launch_dependents();
        ask_ahead(threadIdx.x % 32, 32, next, next_half, next_share, next_bytes, state, state_bytes);
    } else if (warp > PRODUCER) {
        for (int tile = 0; tile < tiles; ++tile) {
            int slot = tile % 2;
            end_tile<W, ROWS, WARPS>(part[slot], own, tile, scale, residual, has_residual, gated, ready + slot, tile / 2 % 2,
                        Columns<T>{y, gates, bias, R, N, heads, cap, p1, p2, p3, p4});
            __syncwarp();  // all lanes have read the sums
            if (speaks) mbarrier_arrive(taken + slot);
        }
    } else {
        LanePlace lane;
        const T* own_z[FOURS];  // rows past the last are it again: nobody stores their sums
#pragma unroll
        for (int n = 0; n < FOURS; ++n) own_z[n] = z + min(4 * n + lane.sub, R - 1) * K;
        float sum[FOURS][4] = {};
        for (int tile = 0; tile < tiles; ++tile) {
            for (int c = 0; c < chunks; ++c, turn.next(chunks, stages)) {
                int k = (c * CHUNK + warp * 128) / static_cast<int>(sizeof(W));
                mbarrier_wait(full + turn.place, turn.phase);
                if (k < K) multiply_stage<T, W>(sum, stream.place(turn) + warp * 128, own_z, k, K, own.rows - tile * TILE, lane);
                __syncwarp();  // all lanes have read the stage
                if (speaks) mbarrier_arrive(empty + turn.place);
            }
            int slot = tile % 2;
            mbarrier_wait(taken + slot, tile / 2 % 2 ^ 1);  // the sums of the tile before last have been added up
            put_tile<ROWS>(part[slot][warp], sum, lane);
            __syncwarp();  // all lanes have written
            if (speaks) mbarrier_arrive(ready + slot);
        }
    }
#endif
}
// ANCHOR_END: fragments
