// The part of cooperative groups that the emulator knows: the grid, clusters of blocks in x, the
// block, and tiles of a warp.
#pragma once
#include "emulator.h"

namespace cooperative_groups {
struct thread_block {
    __forceinline__ void sync() const { __syncthreads(); }
    __forceinline__ unsigned thread_rank() const {
        return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    }
    __forceinline__ unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
    __forceinline__ unsigned num_threads() const { return size(); }
    __forceinline__ dim3 group_index() const { return blockIdx; }
    __forceinline__ dim3 thread_index() const { return threadIdx; }
};
__forceinline__ thread_block this_thread_block() { return {}; }

struct grid_group {
    __forceinline__ void sync() const { emu_grid_sync(); }
    __forceinline__ unsigned long long num_blocks() const {
        return 1ull * gridDim.x * gridDim.y * gridDim.z;
    }
    __forceinline__ unsigned long long block_rank() const {
        return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    __forceinline__ unsigned long long size() const {
        return num_blocks() * this_thread_block().size();
    }
    __forceinline__ unsigned long long num_threads() const { return size(); }
    __forceinline__ unsigned long long thread_rank() const {
        return block_rank() * this_thread_block().size() + this_thread_block().thread_rank();
    }
};
__forceinline__ grid_group this_grid() { return {}; }

struct cluster_group {
    __forceinline__ void sync() const { emu_cluster_sync(); }
    __forceinline__ unsigned block_rank() const { return emu_coordinate(EMU_CLUSTER_RANK); }
    __forceinline__ unsigned num_blocks() const { return emu_coordinate(EMU_CLUSTER_SIZE); }
    __forceinline__ unsigned thread_rank() const {
        return block_rank() * this_thread_block().size() + this_thread_block().thread_rank();
    }
    __forceinline__ unsigned num_threads() const {
        return num_blocks() * this_thread_block().size();
    }
    template <class T> __forceinline__ T* map_shared_rank(T* own, unsigned rank) const {
        return static_cast<T*>(emu_map_shared(own, rank));
    }
};
__forceinline__ cluster_group this_cluster() { return {}; }

template <unsigned N, class Parent = void> struct thread_block_tile {
    static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0,
                  "a tile of a warp has 1, 2, 4, 8, 16 or 32 lanes");
    __forceinline__ unsigned thread_rank() const { return this_thread_block().thread_rank() % N; }
    __forceinline__ unsigned meta_group_rank() const {
        return this_thread_block().thread_rank() / N;
    }
    __forceinline__ unsigned meta_group_size() const {
        return (this_thread_block().size() + N - 1) / N;
    }
    static constexpr unsigned size() { return N; }
    static constexpr unsigned num_threads() { return N; }
    __forceinline__ unsigned mask() const {
        unsigned lane = this_thread_block().thread_rank() % 32;
        return N == 32 ? 0xffffffffu : ((1u << (N % 32)) - 1) << (lane / N * N);
    }
    __forceinline__ void sync() const { __syncwarp(mask()); }
    template <class T> __forceinline__ T shfl(T v, int lane) const {
        return __shfl_sync(mask(), v, lane, N);
    }
    template <class T> __forceinline__ T shfl_up(T v, unsigned delta) const {
        return __shfl_up_sync(mask(), v, delta, N);
    }
    template <class T> __forceinline__ T shfl_down(T v, unsigned delta) const {
        return __shfl_down_sync(mask(), v, delta, N);
    }
    template <class T> __forceinline__ T shfl_xor(T v, unsigned lanes) const {
        return __shfl_xor_sync(mask(), v, int(lanes), N);
    }
    __forceinline__ int all(int p) const { return __all_sync(mask(), p); }
    __forceinline__ int any(int p) const { return __any_sync(mask(), p); }
    __forceinline__ unsigned ballot(int p) const {
        unsigned lane = this_thread_block().thread_rank() % 32;
        return __ballot_sync(mask(), p) >> (lane / N * N);
    }
};
template <unsigned N> __forceinline__ thread_block_tile<N> tiled_partition(const thread_block&) {
    return {};
}
}  // namespace cooperative_groups
