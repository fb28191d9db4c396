// Cooperative groups as foreign code uses them: on top of the ones that the lab's kernels do.
//
// A tile, a partition and a coalesced group are all lanes of one warp here, named by a mask. The
// lab's groups get other names, so that those with CUDA's can be derived from them.
#pragma once
#include "../include/emulator.h"

#include "instructions.h"
#define thread_block lab_block
#define this_thread_block lab_this_block
#define grid_group lab_grid
#define this_grid lab_this_grid
#define thread_block_tile lab_tile
#define tiled_partition lab_partition
#define this_cluster lab_this_cluster
#include "../include/cooperative_groups.h"
#undef thread_block
#undef this_thread_block
#undef grid_group
#undef this_grid
#undef thread_block_tile
#undef tiled_partition
#undef this_cluster

namespace cooperative_groups {
struct thread_block : lab_block {
    __forceinline__ dim3 group_dim() const { return blockDim; }
    __forceinline__ dim3 dim_threads() const { return blockDim; }
    static constexpr bool is_valid() { return true; }
};
__forceinline__ thread_block this_thread_block() { return {}; }
struct grid_group : lab_grid {
    __forceinline__ dim3 group_dim() const { return gridDim; }
    __forceinline__ dim3 dim_blocks() const { return gridDim; }
    __forceinline__ dim3 block_index() const { return blockIdx; }
    __forceinline__ bool is_valid() const { return true; }
};
__forceinline__ grid_group this_grid() { return {}; }
__forceinline__ cluster_group this_cluster() { return EMU_NEEDS_this_cluster__ lab_this_cluster(); }

namespace emu_groups {
__forceinline__ unsigned lane() { return this_thread_block().thread_rank() % 32; }
// The lane of the group's n-th thread.
__forceinline__ unsigned lane_of(unsigned mask, unsigned rank) {
    for (; rank > 0 && mask; --rank) mask &= mask - 1;
    return mask ? unsigned(__builtin_ctz(mask)) : 0;
}
// As many of a wide value's words as it takes.
template <class T, class F> __forceinline__ T by_words(T v, F move) {
    if constexpr (sizeof(T) <= 8) {
        return move(v);
    } else {
        constexpr size_t count = (sizeof(T) + 7) / 8;
        uint64_t words[count] = {};
        __builtin_memcpy(words, &v, sizeof v);
        for (uint64_t& word : words) word = move(word);
        T result;
        __builtin_memcpy(static_cast<void*>(&result), words, sizeof result);
        return result;
    }
}
// Threads of the group that a tile is cut from; 0 where it is the block.
template <class Parent> struct threads_of { static constexpr unsigned value = 0; };
}  // namespace emu_groups

template <unsigned N, class Parent = void> struct thread_block_tile : lab_tile<N> {
    using lab_tile<N>::mask;
    static constexpr unsigned parent = emu_groups::threads_of<Parent>::value;
    thread_block_tile() = default;
    // Which group it was cut from may be forgotten.
    template <class Other>
    __forceinline__ thread_block_tile(const thread_block_tile<N, Other>&) {
        static_assert(std::is_void<Parent>::value || std::is_void<Other>::value,
                      "a tile of another group");
    }
    __forceinline__ unsigned meta_group_rank() const {
        unsigned rank = this_thread_block().thread_rank();
        return (parent ? rank % (parent ? parent : 1) : rank) / N;
    }
    __forceinline__ unsigned meta_group_size() const {
        return parent ? parent / N : lab_tile<N>::meta_group_size();
    }
    static constexpr bool is_valid() { return true; }
    template <class T> __forceinline__ T shfl(T v, int lane) const {
        lab_tile<N> own;
        return emu_groups::by_words(v, [&](auto w) { return own.shfl(w, lane); });
    }
    template <class T> __forceinline__ T shfl_up(T v, unsigned delta) const {
        lab_tile<N> own;
        return emu_groups::by_words(v, [&](auto w) { return own.shfl_up(w, delta); });
    }
    template <class T> __forceinline__ T shfl_down(T v, unsigned delta) const {
        lab_tile<N> own;
        return emu_groups::by_words(v, [&](auto w) { return own.shfl_down(w, delta); });
    }
    template <class T> __forceinline__ T shfl_xor(T v, unsigned lanes) const {
        lab_tile<N> own;
        return emu_groups::by_words(v, [&](auto w) { return own.shfl_xor(w, lanes); });
    }
    template <class T> __forceinline__ unsigned match_any(T v) const {
        return __match_any_sync(mask(), v) >> (emu_groups::lane() / N * N);
    }
    template <class T> __forceinline__ unsigned match_all(T v, int& all) const {
        return __match_all_sync(mask(), v, &all) >> (emu_groups::lane() / N * N);
    }
};
// What tiles of several warps talk through. Those themselves are not here: they compile, and trap.
template <unsigned N> struct block_tile_memory {};
template <unsigned N>
__forceinline__ thread_block this_thread_block(block_tile_memory<N>&) { return {}; }
template <unsigned N> struct emu_wide_tile {
    __forceinline__ unsigned mask() const {
        emu_trap("a tile of more threads than a warp has, which is not run here");
        return 0;
    }
    __forceinline__ void sync() const { mask(); }
    __forceinline__ unsigned thread_rank() const { return this_thread_block().thread_rank() % N; }
    __forceinline__ unsigned meta_group_rank() const {
        return this_thread_block().thread_rank() / N;
    }
    __forceinline__ unsigned meta_group_size() const { return this_thread_block().size() / N; }
    static constexpr unsigned size() { return N; }
    static constexpr unsigned num_threads() { return N; }
};
namespace emu_groups {
template <unsigned N, class Parent> struct threads_of<thread_block_tile<N, Parent>> {
    static constexpr unsigned value = N;
};
}  // namespace emu_groups

// Lanes of a warp, any of them; their ranks are in the lanes' order.
class coalesced_group {
  public:
    coalesced_group() = default;
    __forceinline__ explicit coalesced_group(unsigned lanes, unsigned rank = 0, unsigned size = 1)
        : lanes(lanes), group_rank(rank), group_size(size) {}
    __forceinline__ unsigned mask() const { return lanes; }
    __forceinline__ unsigned size() const { return unsigned(__builtin_popcount(lanes)); }
    __forceinline__ unsigned num_threads() const { return size(); }
    __forceinline__ unsigned thread_rank() const {
        return unsigned(__builtin_popcount(lanes & ((1u << emu_groups::lane()) - 1)));
    }
    __forceinline__ unsigned meta_group_rank() const { return group_rank; }
    __forceinline__ unsigned meta_group_size() const { return group_size; }
    __forceinline__ bool is_valid() const { return lanes != 0; }
    __forceinline__ void sync() const { __syncwarp(lanes); }
    template <class T> __forceinline__ T shfl(T v, int rank) const {
        int from = int(emu_groups::lane_of(lanes, unsigned(rank) % size()));
        return emu_groups::by_words(v, [&](auto w) { return __shfl_sync(lanes, w, from); });
    }
    // A thread without a neighbour there gets its own value back.
    template <class T> __forceinline__ T shfl_down(T v, unsigned delta) const {
        unsigned rank = thread_rank();
        return shfl(v, int(rank + delta < size() ? rank + delta : rank));
    }
    template <class T> __forceinline__ T shfl_up(T v, unsigned delta) const {
        unsigned rank = thread_rank();
        return shfl(v, int(rank >= delta ? rank - delta : rank));
    }
    template <class T> __forceinline__ T shfl_xor(T v, unsigned ranks) const {
        unsigned other = thread_rank() ^ ranks;
        return shfl(v, int(other < size() ? other : thread_rank()));
    }
    __forceinline__ int any(int p) const { return __any_sync(lanes, p); }
    __forceinline__ int all(int p) const { return __all_sync(lanes, p); }
    __forceinline__ unsigned ballot(int p) const { return packed(__ballot_sync(lanes, p)); }
    template <class T> __forceinline__ unsigned match_any(T v) const {
        return packed(__match_any_sync(lanes, v));
    }
    template <class T> __forceinline__ unsigned match_all(T v, int& all) const {
        return packed(__match_all_sync(lanes, v, &all));
    }

  private:
    // Bits by lane to bits by rank.
    __forceinline__ unsigned packed(unsigned bits) const {
        unsigned result = 0, place = 0;
        for (unsigned rest = lanes; rest; rest &= rest - 1, ++place)
            if (bits & rest & -rest) result |= 1u << place;
        return result;
    }
    unsigned lanes = 0, group_rank = 0, group_size = 1;
};
__forceinline__ coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

// Any group: the whole block, or lanes of a warp.
class thread_group {
  public:
    __forceinline__ thread_group(const thread_block&) : is_block(true) {}
    __forceinline__ thread_group(const coalesced_group& lanes) : lanes(lanes) {}
    template <unsigned N, class Parent>
    __forceinline__ thread_group(const thread_block_tile<N, Parent>& tile)
        : lanes(tile.mask(), tile.meta_group_rank(), tile.meta_group_size()) {}
    __forceinline__ unsigned size() const {
        return is_block ? this_thread_block().size() : lanes.size();
    }
    __forceinline__ unsigned num_threads() const { return size(); }
    __forceinline__ unsigned thread_rank() const {
        return is_block ? this_thread_block().thread_rank() : lanes.thread_rank();
    }
    __forceinline__ bool is_valid() const { return true; }
    __forceinline__ void sync() const {
        if (is_block) __syncthreads();
        else lanes.sync();
    }
    __forceinline__ const coalesced_group& as_lanes() const { return lanes; }

  private:
    bool is_block = false;
    coalesced_group lanes;
};

// ---- partitions ---------------------------------------------------------------------------------
template <unsigned N, class Parent>
__forceinline__ auto tiled_partition(const Parent&) {
    if constexpr (N > 32) return emu_wide_tile<N>{};
    else return thread_block_tile<N, Parent>{};
}
namespace emu_groups {
// The group of `size` threads of `mask` that this one is in.
__forceinline__ coalesced_group slice(unsigned mask, unsigned rank, unsigned size) {
    unsigned first = rank / size * size, lanes = 0, place = 0;
    for (unsigned rest = mask; rest; rest &= rest - 1, ++place)
        if (place >= first && place < first + size) lanes |= rest & -rest;
    return coalesced_group(lanes, rank / size,
                           (unsigned(__builtin_popcount(mask)) + size - 1) / size);
}
}  // namespace emu_groups
__forceinline__ coalesced_group tiled_partition(const coalesced_group& parent, unsigned size) {
    return emu_groups::slice(parent.mask(), parent.thread_rank(), size);
}
// Of at most 32 threads, as CUDA has it.
__forceinline__ thread_group tiled_partition(const thread_block& block, unsigned size) {
    unsigned left = block.size() - block.thread_rank() / 32 * 32;
    unsigned warp = left >= 32 ? ~0u : (1u << left) - 1;
    coalesced_group own = emu_groups::slice(warp, emu_groups::lane(), size);
    return coalesced_group(own.mask(), block.thread_rank() / size,
                           (block.size() + size - 1) / size);
}
__forceinline__ thread_group tiled_partition(const thread_group& parent, unsigned size) {
    if (parent.size() == this_thread_block().size() && parent.as_lanes().mask() == 0)
        return tiled_partition(this_thread_block(), size);
    return tiled_partition(parent.as_lanes(), size);
}
// Threads of equal label together; groups are numbered by their first threads.
template <class Group, class Label>
__forceinline__ coalesced_group labeled_partition(const Group& group, Label label) {
    unsigned mask = group.mask(), own = __match_any_sync(mask, label);
    bool leads = unsigned(__builtin_ctz(own)) == emu_groups::lane();
    unsigned leaders = __ballot_sync(mask, leads);
    unsigned before = leaders & ((own & -own) - 1);
    return coalesced_group(own, unsigned(__builtin_popcount(before)),
                           unsigned(__builtin_popcount(leaders)));
}
template <class Group>
__forceinline__ coalesced_group binary_partition(const Group& group, bool predicate) {
    return labeled_partition(group, int(predicate));
}

// ---- free functions -----------------------------------------------------------------------------
template <class Group> __forceinline__ void sync(const Group& group) { group.sync(); }
template <class Group> __forceinline__ auto thread_rank(const Group& group) {
    return group.thread_rank();
}
template <class Group> __forceinline__ auto group_size(const Group& group) { return group.size(); }
__forceinline__ dim3 group_index(const thread_block& block) { return block.group_index(); }
__forceinline__ dim3 thread_index(const thread_block& block) { return block.thread_index(); }
template <class Group, class F> __forceinline__ void invoke_one(const Group& group, F f) {
    if (group.thread_rank() == 0) f();
}
}  // namespace cooperative_groups
