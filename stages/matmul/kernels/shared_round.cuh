// The last round of tiles, shared along k: blocks that have no tile of it help those that have one.
//
// Block b of P has the tiles b, b + P, b + 2P, ... of T. The last round has R = T % P of them. P - R blocks have none: they
// help. Such a block takes the first `helped` steps of k of several of the last tiles, one after the other, and leaves
// their sums in device memory. A tile's own block begins behind these steps, and adds the sums when they are due: between
// two of its steps, or behind the last one. Helping blocks wait for nobody, so that nobody waits for ever.
#pragma once
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/order.cuh"

namespace lab {

// Steps first to end - 1 of a tile.
struct TileSteps {
    int tile, first, end;
    int place = -1;      // of sums that are handed over: which tile of the last round
    bool gives = false;  // them, to the tile's own block; else takes
    int due = 0;         // before which step it takes them

    __device__ __forceinline__ bool takes() const { return place >= 0 && !gives; }
};

// What block b does: at(b), at(b + P), ..., before end().
struct SharedRound {
    // For a helping block to leave its sums, in steps' time.
    static constexpr int SLACK = 4;
    int tiles, steps, helped;
    int block = blockIdx.x, last = tiles % int(gridDim.x), whole = tiles - last, helping = gridDim.x - last;
    int place = block - last;  // of the tile that this block helps with next: each has every `helping`th

    __device__ __forceinline__ int end() const {
        int helps = (last - (block - last) + helping - 1) / helping;
        return block < last ? tiles : whole + helps * int(gridDim.x);
    }
    __device__ __forceinline__ TileSteps at(int n) {
        if (n < whole) return {n, 0, steps};
        if (block < last) {
            // Its helping block has block / helping tiles before this one. And SLACK steps more.
            return {n, helped, steps, block, false, min(steps, (block / helping + 2) * (helped + SLACK))};
        }
        int now = place;
        place += helping;
        return {whole + now, 0, helped, now, true};
    }
};

// ANCHOR: given
// A warpgroup's sums of COUNT a thread, given to another warpgroup whose threads have the same elements of the tile. The
// flag is 0 again when they are taken, as it was before the launch.
template <int COUNT> struct GivenSums {
    float4* sums;
    unsigned* flag;

    // Of two warpgroups a block.
    __device__ __forceinline__ GivenSums(float* all, unsigned* flags, int place)
        : sums(reinterpret_cast<float4*>(all) + (place * 2 + threadIdx.x / 128) * 1ll * COUNT * 32 + threadIdx.x % 128),
          flag(flags + place * 2 + threadIdx.x / 128) {}

    __device__ __forceinline__ void give(const float (&sum)[COUNT]) const {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) sums[i * 32] = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
        meet();  // all have stored
        if (threadIdx.x % 128 == 0) store_release(flag, 1u);
    }

    // sum += what was given; waits for it.
    __device__ __forceinline__ void take(float (&sum)[COUNT]) const {
        if (threadIdx.x % 128 == 0) {
            while (load_acquire(flag) == 0) {}
            *flag = 0;
        }
        meet();  // the sums are there, for all
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            float4 given = sums[i * 32];
            sum[i] += given.x, sum[i + 1] += given.y, sum[i + 2] += given.z, sum[i + 3] += given.w;
        }
    }

  private:
    __device__ __forceinline__ static void meet() { named_barrier_sync(1 + threadIdx.x / 128, 128); }
};
// ANCHOR_END: given

}  // namespace lab
