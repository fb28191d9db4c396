// Copies of boxes of a tensor (cp.async.bulk.tensor, sm_90): loads that count at an mbarrier, of one block
// or of several of a cluster, and stores in groups. The host's tensor map says how tensor and box lie. The
// copies are made in the async proxy, as all bulk copies. PTX ISA, "Tensor copy" and "Tensors".
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/ptx/wgmma.cuh"

using namespace lab;

// Most boxes have 8 rows of 8 floats; most tensors are 8 columns wide.
constexpr int CELLS = 64;
constexpr unsigned BYTES = CELLS * sizeof(float);

// Barriers of so many arrivals. The block and copies know of them; the block's cluster does after a
// barrier of its own.
__device__ void make_barriers(Mbarrier* bars, int count, unsigned arrivals) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < count; ++i) mbarrier_init(&bars[i], arrivals);
        mbarrier_fence_init();
    }
    __syncthreads();
}

// Zeros, over which copies may come.
__device__ void clear(float* shared, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) shared[i] = 0.0f;
    fence_proxy_async();
    __syncthreads();
}

__device__ int block_of_cluster() { return cooperative_groups::this_cluster().block_rank(); }

__device__ void meet_cluster() { cooperative_groups::this_cluster().sync(); }

// Where a tile with a swizzle has an element. Rows lie SPAN bytes apart; the 16-byte chunks of a span change
// places by the address.
template <int SPAN> __device__ int swizzled(const float* tile, int row, int column) {
    unsigned line = (shared_window_address(tile) + row * SPAN) / 128;
    int chunk = column / 4 ^ line % (SPAN / 16);
    return row * SPAN / 4 + chunk * 4 + column % 4;
}

// ---- loads: wrong ---------------------------------------------------------------------------------

// Asked for is not arrived.
__global__ void tensor_read_without_wait(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    clear(tile, CELLS);
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);  // BUG tensor_read_without_wait
    }
    out[t] = tile[63 - t];  // BUG tensor_read_without_wait
    mbarrier_wait(&full, 0);
}
// The thread that asked has waited; the others read.
__global__ void tensor_awaited_by_one_thread(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    clear(tile, CELLS);
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);  // BUG tensor_awaited_by_one_thread
        mbarrier_wait(&full, 0);  // BUG tensor_awaited_by_one_thread
    }
    out[t] = tile[63 - t];  // BUG tensor_awaited_by_one_thread
}
// The phase before the first is complete from the start: nobody waits for the copy.
__global__ void tensor_wrong_parity(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    clear(tile, CELLS);
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);  // BUG tensor_wrong_parity
    }
    mbarrier_wait(&full, 1);  // BUG tensor_wrong_parity
    out[t] = tile[63 - t];  // BUG tensor_wrong_parity
    mbarrier_wait(&full, 0);
}
// Half of the box lies outside of the tensor. Its zeros are counted, too, but not expected.
__global__ void tensor_expect_inside_only(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES / 2);  // BUG tensor_expect_inside_only
        tensor_load(tile, x, {0, 8}, &full);  // BUG tensor_expect_inside_only
    }
    mbarrier_wait(&full, 0);  // BUG tensor_expect_inside_only
    out[t] = tile[63 - t];  // BUG tensor_expect_inside_only
}
// One box comes; two are expected.
__global__ void tensor_expect_too_large(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, 2 * BYTES);  // BUG tensor_expect_too_large
        tensor_load(tile, x, {0, 0}, &full);  // BUG tensor_expect_too_large
    }
    mbarrier_wait(&full, 0);  // BUG tensor_expect_too_large
    out[t] = tile[63 - t];
}
// The map takes every second row of the box: half of its extents' bytes come.
__global__ void tensor_expect_skipped_rows(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);  // BUG tensor_expect_skipped_rows
        tensor_load(tile, x, {0, 0}, &full);  // BUG tensor_expect_skipped_rows
    }
    mbarrier_wait(&full, 0);  // BUG tensor_expect_skipped_rows
    if (t < CELLS / 2) out[t] = tile[t];
}
// The tile begins 16 bytes behind a multiple of 128.
__global__ void tensor_tile_misaligned(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float room[CELLS + 4];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    float* tile = room + 4;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);  // BUG tensor_tile_misaligned
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];
}
// The box begins at column 1: 4 bytes into the row.
__global__ void tensor_odd_column(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {1, 0}, &full);  // BUG tensor_odd_column
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];
}
// The second box goes where others may still read the first.
__global__ void tensor_refilled_too_early(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full[2];
    int t = threadIdx.x;
    float sum = 0.0f;
    make_barriers(full, 2, 1);
    for (int k = 0; k < 2; ++k) {
        if (t == 0) {
            mbarrier_arrive_expect(&full[k], BYTES);
            tensor_load(tile, x, {0, 8 * k}, &full[k]);  // BUG tensor_refilled_too_early
        }
        mbarrier_wait(&full[k], 0);
        sum += tile[63 - t];  // BUG tensor_refilled_too_early
    }
    out[t] = sum;
}
// Two warps read a slot; it is refilled when the first of them has.
__global__ void tensor_refilled_after_one_warp(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full[2], empty;
    int t = threadIdx.x;
    float sum = 0.0f;
    make_barriers(full, 2, 1);
    make_barriers(&empty, 1, 1);
    if (t >= 64) {
        for (int k = 0; k < 2 && t == 64; ++k) {
            mbarrier_wait(&empty, k ^ 1);
            mbarrier_arrive_expect(&full[k], BYTES);
            tensor_load(tile, x, {0, 8 * k}, &full[k]);  // BUG tensor_refilled_after_one_warp
        }
        return;
    }
    for (int k = 0; k < 2; ++k) {
        mbarrier_wait(&full[k], 0);
        sum += tile[63 - t];  // BUG tensor_refilled_after_one_warp
        __syncwarp();
        if (t == 0) mbarrier_arrive(&empty);  // BUG tensor_refilled_after_one_warp
    }
    out[t] = sum;
}
// Which comes last, the zeros or the copy? A barrier orders plain accesses.
__global__ void tensor_load_over_stores(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    tile[t] = 0.0f;  // BUG tensor_load_over_stores
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);  // BUG tensor_load_over_stores
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];  // BUG tensor_load_over_stores
}
// The box has four rows; the tile has eight, and all are read.
__global__ void tensor_rows_not_loaded(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES / 2);
        tensor_load(tile, x, {0, 0}, &full);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];  // BUG tensor_rows_not_loaded
}
// With a swizzle of 64 bytes, rows of 32 bytes lie 64 apart. Nobody writes what is between them.
__global__ void tensor_gaps_read(const __grid_constant__ TensorMap x, float* out) {
    __align__(512) __shared__ float tile[2 * CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];  // BUG tensor_gaps_read
}
// Such rows need room for whole spans. There is room for the rows only: the last four lie behind it.
__global__ void tensor_no_room_for_gaps(const __grid_constant__ TensorMap x, float* out) {
    DYNAMIC_TILES(float, tile);
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);  // BUG tensor_no_room_for_gaps
    }
    mbarrier_wait(&full, 0);
    if (t < CELLS / 2) out[t] = tile[swizzled<64>(tile, t / 8, t % 8)];
}

// ---- loads: right ---------------------------------------------------------------------------------

// A row that begins before the tensor, and one that ends behind it: zeros.
__global__ void tensor_row_beyond_ends(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[2][32];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile[0], x, {-8}, &full);
        tensor_load(tile[1], x, {24}, &full);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[t / 32][t % 32];
}
// Boxes cut at two corners of a tensor of 12 columns, and one that lies outside of it. All bytes count.
__global__ void tensor_cut_at_corners(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[3][32];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile[0], x, {-4, -2}, &full);
        tensor_load(tile[1], x, {8, 3}, &full);
        tensor_load(tile[2], x, {0, 100}, &full);
    }
    mbarrier_wait(&full, 0);
    for (int i = t; i < 96; i += 64) out[i] = tile[i / 32][i % 32];
}
// Three dimensions, of ints: two planes of two rows, half of each outside.
__global__ void tensor_of_three_dimensions(const __grid_constant__ TensorMap x, int* out) {
    __align__(128) __shared__ int tile[32];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, x, {4, 2, -1}, &full);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[t];
}
// Every second row from the fourth on, one below the other in the tile; the last one is outside.
__global__ void tensor_every_second_row(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[32];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, x, {0, 3}, &full);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[t];
}
// Halves; what lies outside is NaN.
__global__ void tensor_nan_outside(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ __half tile[32];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, x, {16, 2}, &full);
    }
    mbarrier_wait(&full, 0);
    float v = __half2float(tile[t]);
    out[t] = v == v ? v : -1.0f;
}
// The copy may come before its bytes are expected: without the arrival the phase goes on.
__global__ void tensor_expect_after_load(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        tensor_load(tile, x, {0, 0}, &full);
        mbarrier_arrive_expect(&full, BYTES);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[63 - t];
}
// Rows of a whole span, 8 of them.
template <int SPAN> __global__ void tensor_swizzled(const __grid_constant__ TensorMap x, float* out) {
    constexpr int WIDTH = SPAN / sizeof(float);
    __align__(1024) __shared__ float tile[8 * WIDTH];
    __shared__ Mbarrier full;
    make_barriers(&full, 1, 1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, x, {0, 0}, &full);
    }
    mbarrier_wait(&full, 0);
    for (int i = threadIdx.x; i < 8 * WIDTH; i += 64)
        out[i] = tile[swizzled<SPAN>(tile, i / WIDTH, i % WIDTH)];
}
// The pattern goes by the address: it need not begin with the tile.
__global__ void tensor_swizzled_from_third_line(const __grid_constant__ TensorMap x, float* out) {
    __align__(1024) __shared__ float room[12 * 32];
    __shared__ Mbarrier full;
    float* tile = room + 3 * 32;
    make_barriers(&full, 1, 1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&full, 8 * 128);
        tensor_load(tile, x, {0, 0}, &full);
    }
    mbarrier_wait(&full, 0);
    for (int i = threadIdx.x; i < 256; i += 64) out[i] = tile[swizzled<128>(tile, i / 32, i % 32)];
}
// Rows shorter than a span: what is between them is not touched.
__global__ void tensor_swizzled_short_rows(const __grid_constant__ TensorMap x, float* out) {
    __align__(512) __shared__ float tile[2 * CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[swizzled<64>(tile, t / 8, t % 8)];
}
// A warp brings boxes into two slots, two warps read them. One lane of each gives a slot back.
__global__ void tensor_ring(const __grid_constant__ TensorMap x, float* out, int boxes) {
    __align__(128) __shared__ float tile[2][CELLS];
    __shared__ Mbarrier full[2], empty[2];
    int t = threadIdx.x;
    float sum = 0.0f;
    make_barriers(full, 2, 1);
    make_barriers(empty, 2, 2);
    if (t >= 64) {
        for (int k = 0; k < boxes && t == 64; ++k) {
            mbarrier_wait(&empty[k % 2], k / 2 % 2 ^ 1);
            mbarrier_arrive_expect(&full[k % 2], BYTES);
            tensor_load(tile[k % 2], x, {0, 8 * k}, &full[k % 2]);
        }
        return;
    }
    for (int k = 0; k < boxes; ++k) {
        mbarrier_wait(&full[k % 2], k / 2 % 2);
        sum += tile[k % 2][63 - t];
        __syncwarp();
        if (t % 32 == 0) mbarrier_arrive(&empty[k % 2]);
    }
    out[t] = sum;
}
// A product of loaded operands, swizzled in spans of 32 bytes. They came in the async proxy, in which the
// product reads them: no proxy fence. A [64, 16] by B [16, 8], which is stored by columns.
__global__ void tensor_product(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                               float* C) {
    __align__(256) __shared__ __half a[64 * 16], b[8 * 16];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, sizeof(a) + sizeof(b));
        tensor_load(a, A, {0, 0}, &full);
        tensor_load(b, B, {0, 0}, &full);
    }
    mbarrier_wait(&full, 0);
    float d[4] = {};
    wgmma_fence();
    wgmma<__half, 8>(d, descriptor<32>(a, 16, 256), descriptor<32>(b, 16, 256));
    wgmma_commit();
    wgmma_wait<0>();
    int row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    for (int i = 0; i < 4; ++i) C[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];
}

// ---- stores: wrong --------------------------------------------------------------------------------

// A barrier orders plain accesses; the copy is none.
__global__ void tensor_store_unfenced(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    int t = threadIdx.x;
    tile[t] = t;  // BUG tensor_store_unfenced
    __syncthreads();
    if (t == 0) {
        tensor_store(y, {0, 0}, tile);  // BUG tensor_store_unfenced
        bulk_commit();
        bulk_wait<0>();
    }
}
// What was loaded is changed in place, and stored without a fence.
__global__ void tensor_change_unfenced(const __grid_constant__ TensorMap x,
                                       const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);
    }
    mbarrier_wait(&full, 0);
    tile[t] *= 2.0f;  // BUG tensor_change_unfenced
    __syncthreads();
    if (t == 0) {
        tensor_store(y, {0, 0}, tile);  // BUG tensor_change_unfenced
        bulk_commit();
        bulk_wait<0>();
    }
}
// The tile changes under the copy.
__global__ void tensor_source_overwritten(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        tensor_store(y, {0, 0}, tile);  // BUG tensor_source_overwritten
        bulk_commit();
    }
    tile[t] = 0.0f;  // BUG tensor_source_overwritten
    if (t == 0) bulk_wait<0>();
}
// The groups are those of thread 0; another thread has none to wait for.
__global__ void tensor_store_awaited_by_another(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        tensor_store(y, {0, 0}, tile);  // BUG tensor_store_awaited_by_another
        bulk_commit();
    }
    if (t == 32) bulk_wait_read<0>();  // BUG tensor_store_awaited_by_another
    __syncthreads();
    tile[t] = 0.0f;  // BUG tensor_store_awaited_by_another
    if (t == 0) bulk_wait<0>();
}
// What was stored has been read, but not yet written; then it is loaded.
__global__ void tensor_loaded_back_too_early(const __grid_constant__ TensorMap y, float* out) {
    __align__(128) __shared__ float tile[2][CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    tile[0][t] = t;
    fence_proxy_async();
    make_barriers(&full, 1, 1);
    if (t == 0) {
        tensor_store(y, {0, 0}, tile[0]);  // BUG tensor_loaded_back_too_early
        bulk_commit();
        bulk_wait_read<0>();  // BUG tensor_loaded_back_too_early
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile[1], y, {0, 0}, &full);  // BUG tensor_loaded_back_too_early
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[1][63 - t];
    if (t == 0) bulk_wait<0>();
}
// Two warps store a box each; the second begins in the middle of the first.
__global__ void tensor_stores_overlap(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[2][CELLS];
    int t = threadIdx.x, warp = t / 32;
    tile[0][t] = t;
    tile[1][t] = -t;
    fence_proxy_async();
    __syncthreads();
    if (t % 32 == 0) {
        tensor_store(y, {0, 4 * warp}, tile[warp]);  // BUG tensor_stores_overlap
        bulk_commit();
        bulk_wait<0>();
    }
}
// Two warps add to the same elements: which of them is first is not fixed, and neither is the sum's rounding.
__global__ void tensor_adds_overlap(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[2][CELLS];
    int t = threadIdx.x, warp = t / 32;
    tile[0][t] = t;
    tile[1][t] = -t;
    fence_proxy_async();
    __syncthreads();
    if (t % 32 == 0) {
        tensor_add(y, {0, 0}, tile[warp]);  // BUG tensor_adds_overlap
        bulk_commit();
        bulk_wait<0>();
    }
}
// What would come before the tensor is not cut off, as in a load: no coordinate of a store is negative.
__global__ void tensor_store_at_negative(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        tensor_store(y, {0, -4}, tile);  // BUG tensor_store_at_negative
        bulk_commit();
        bulk_wait<0>();
    }
}
// The block and its shared memory go while they are copied.
__global__ void tensor_exit_without_wait(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        tensor_store(y, {0, 0}, tile);  // BUG tensor_exit_without_wait
        bulk_commit();  // BUG tensor_exit_without_wait
    }
}

// ---- stores: right --------------------------------------------------------------------------------

// Four boxes cover a tensor of 12 columns and 5 rows. What lies outside of it is not stored.
__global__ void tensor_store_cut(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[4][32];
    int t = threadIdx.x;
    for (int i = t; i < 128; i += 64) {
        int box = i / 32, row = box / 2 * 4 + i % 32 / 8, column = box % 2 * 8 + i % 8;
        tile[box][i % 32] = 16 * row + column;
    }
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        for (int box = 0; box < 4; ++box)
            tensor_store(y, {box % 2 * 8, box / 2 * 4}, tile[box]);
        bulk_commit();
        bulk_wait<0>();
    }
}
// Rows of 6 floats, 8 apart. Nobody uses the two between them, over which the hardware may store.
__global__ void tensor_store_short_rows(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        tensor_store(y, {0, 0}, tile);
        bulk_commit();
        bulk_wait<0>();
    }
}
// In by one copy, doubled in place, out by another. One thread fences for all, behind the barrier.
__global__ void tensor_in_and_out(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    make_barriers(&full, 1, 1);
    if (t == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);
    }
    mbarrier_wait(&full, 0);
    tile[t] *= 2.0f;
    __syncthreads();
    if (t == 0) {
        fence_proxy_async();
        tensor_store(y, {0, 0}, tile);
        bulk_commit();
        bulk_wait<0>();
    }
}
// In by one copy, out by another: no thread touches the tile, and no proxy fence is needed.
__global__ void tensor_straight_through(const __grid_constant__ TensorMap x,
                                        const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    make_barriers(&full, 1, 1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile, x, {0, 0}, &full);
        mbarrier_wait(&full, 0);
        tensor_store(y, {0, 0}, tile);
        bulk_commit();
        bulk_wait<0>();
    }
}
// Once it has been read, the tile may be written again, though the copy may still be under way.
__global__ void tensor_source_read(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    int t = threadIdx.x;
    for (int k = 0; k < 2; ++k) {
        tile[t] = CELLS * k + t;
        fence_proxy_async();
        __syncthreads();
        if (t == 0) {
            tensor_store(y, {0, 8 * k}, tile);
            bulk_commit();
            bulk_wait_read<0>();
        }
        __syncthreads();
    }
    if (t == 0) bulk_wait<0>();
}
// What one thread has stored and waited for, it may load.
__global__ void tensor_loaded_back(const __grid_constant__ TensorMap y, float* out) {
    __align__(128) __shared__ float tile[2][CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x;
    tile[0][t] = t;
    fence_proxy_async();
    make_barriers(&full, 1, 1);
    if (t == 0) {
        tensor_store(y, {0, 0}, tile[0]);
        bulk_commit();
        bulk_wait<0>();
        mbarrier_arrive_expect(&full, BYTES);
        tensor_load(tile[1], y, {0, 0}, &full);
    }
    mbarrier_wait(&full, 0);
    out[t] = tile[1][63 - t];
}
// What has been stored is added to, once the store is complete.
__global__ void tensor_stored_and_added(const __grid_constant__ TensorMap y) {
    __align__(128) __shared__ float tile[CELLS];
    int t = threadIdx.x;
    tile[t] = t;
    fence_proxy_async();
    __syncthreads();
    if (t == 0) {
        tensor_store(y, {0, 0}, tile);
        bulk_commit();
        bulk_wait<0>();
        tensor_add(y, {0, 0}, tile);
        bulk_commit();
        bulk_wait<0>();
    }
}
// The threads write the tile as the map's swizzle has it.
__global__ void tensor_swizzled_store(const __grid_constant__ TensorMap y) {
    __align__(1024) __shared__ float tile[256];
    for (int i = threadIdx.x; i < 256; i += 64) tile[swizzled<128>(tile, i / 32, i % 32)] = i;
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        tensor_store(y, {0, 0}, tile);
        bulk_commit();
        bulk_wait<0>();
    }
}

// ---- to several blocks of a cluster ---------------------------------------------------------------

// The first block sends when its own barrier is there. Nobody says that the peer's is.
__global__ void tensor_multicast_before_init(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x, rank = block_of_cluster();
    meet_cluster();  // both have begun
    if (t == 0) {
        mbarrier_init(&full, 1);  // BUG tensor_multicast_before_init
        mbarrier_fence_init();
        mbarrier_arrive_expect(&full, BYTES);
        if (rank == 0)
            tensor_load_multicast(tile, x, {0, 0}, &full, 3);  // BUG tensor_multicast_before_init
    }
    __syncthreads();
    mbarrier_wait_cluster(&full, 0);
    out[CELLS * rank + t] = tile[63 - t];
    meet_cluster();
}
// One block leaves before the box that is sent to it has come.
__global__ void tensor_multicast_to_exited(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full;
    int t = threadIdx.x, rank = block_of_cluster();
    make_barriers(&full, 1, 1);
    if (t == 0) mbarrier_arrive_expect(&full, BYTES);
    meet_cluster();
    if (rank == 1) return;  // BUG tensor_multicast_to_exited
    if (t == 0) tensor_load_multicast(tile, x, {0, 0}, &full, 3);  // BUG tensor_multicast_to_exited
    mbarrier_wait_cluster(&full, 0);
    out[t] = tile[63 - t];
}
// The sender knows that its own threads have read the first box. Those of the peer?
__global__ void tensor_multicast_slot_reused(const __grid_constant__ TensorMap x, float* out) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full[2];
    int t = threadIdx.x, rank = block_of_cluster();
    float sum = 0.0f;
    make_barriers(full, 2, 1);
    if (t < 2) mbarrier_arrive_expect(&full[t], BYTES);
    meet_cluster();
    for (int k = 0; k < 2; ++k) {
        if (t == 0 && rank == 0)
            tensor_load_multicast(tile, x, {0, 8 * k}, &full[k], 3);  // BUG tensor_multicast_slot_reused
        mbarrier_wait_cluster(&full[k], 0);
        sum += tile[63 - t];  // BUG tensor_multicast_slot_reused
        __syncthreads();
    }
    out[CELLS * rank + t] = sum;
    meet_cluster();
}

// Each block brings half of each box to both. Before it brings the next, all threads of both have arrived
// at its barrier: they have read this one.
__global__ void tensor_multicast(const __grid_constant__ TensorMap x, float* out, int boxes) {
    __align__(128) __shared__ float tile[CELLS];
    __shared__ Mbarrier full, empty;
    int t = threadIdx.x, rank = block_of_cluster();
    float sum = 0.0f;
    make_barriers(&full, 1, 1);
    make_barriers(&empty, 1, 2 * 64);
    meet_cluster();
    for (int k = 0; k < boxes; ++k) {
        if (t == 0) {
            mbarrier_wait_cluster(&empty, k % 2 ^ 1);
            mbarrier_arrive_expect(&full, BYTES);
            tensor_load_multicast(tile + 32 * rank, x, {0, 8 * k + 4 * rank}, &full, 3);
        }
        mbarrier_wait_cluster(&full, k % 2);
        sum += tile[63 - t];
        for (int block = 0; block < 2; ++block)
            mbarrier_arrive_cluster(address_in_block(&empty, block));
    }
    out[CELLS * rank + t] = sum;
    meet_cluster();
}
