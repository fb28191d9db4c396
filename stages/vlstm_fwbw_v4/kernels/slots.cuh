// Which part of which sequence a warp has, where each is for one of many parts.
#pragma once
#include "lab/vlstm/chunk.cuh"

namespace lab {

// The index-th of [heads][count], where Sequence::slot puts the parts of `size` positions. Packed sequences may leave the
// last of a sequence's slots empty.
struct Slot {
    Sequence sequence;
    int part;

    __device__ __forceinline__ Slot(long long index, int size, int count, int S, const int* cu_seqlens, int heads,
                                    int sequences)
        : sequence(number_of(index % count, size, cu_seqlens, sequences) * heads + index / count, S, cu_seqlens, heads),
          part(index % count - (sequence.begin / size + sequence.number)) {}

    // Whether the sequence has so many.
    __device__ __forceinline__ bool is_in_sequence(int size) const { return part >= 0 && part * size < sequence.length; }

    // The last sequence whose slots begin at this one or before.
    __device__ __forceinline__ static int number_of(int slot, int size, const int* cu_seqlens, int sequences) {
        int from = 0, to = cu_seqlens ? sequences : 1;
        while (to - from > 1) {
            int middle = (from + to) / 2;
            (cu_seqlens[middle] / size + middle <= slot ? from : to) = middle;
        }
        return from;
    }
};

}  // namespace lab
