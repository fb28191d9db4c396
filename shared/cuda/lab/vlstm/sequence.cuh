// Where a sequence lies, alone or one of several that are packed; and which part of which sequence somebody has, where each is for
// one of many parts.
#pragma once

namespace lab {

// Positions from one anchor to the next: places where the state is saved for a backward pass.
constexpr int STRETCH = 256;

// Coordinates of a box of a tensor map.
struct Box { int at[5]; };

// A sequence of a head: all S positions of a tensor [heads][S], or, where sequences are packed, those between two of
// them. Its maps end anywhere (TensorMap::ending_anywhere in lab_device): they have two coordinates for a position, r and e,
// which name position r + e - ROWS: with e the sequence's end, r < ROWS is what comes before the end. So a box that goes on
// behind it has zeros there, and stores nothing there, whoever's that may be.
struct Sequence {
    static constexpr int ROWS = 1 << 30;
    int index, number, head, begin, length, S;  // the index is that of the state

    // The index-th: where sequences are packed, of `heads` heads of the first sequence, then of the second …
    __device__ __forceinline__ Sequence(int index, int S, const int* cu_seqlens = nullptr, int heads = 0)
        : index(index), number(0), head(index), begin(0), length(S), S(S) {
        if (!cu_seqlens) return;
        number = index / heads, head = index % heads;
        begin = within(cu_seqlens[number], 0);
        length = within(cu_seqlens[number + 1], begin) - begin;
    }
    // Nobody has looked at the numbers.
    __device__ __forceinline__ int within(int position, int least) const { return max(least, min(position, S)); }

    // ANCHOR: sequence
    // From a column and a position of the sequence on.
    __device__ __forceinline__ Box box(int column, int first) const {
        return {{column, ROWS - length + first, begin + length, ROWS, head}};
    }
    // ANCHOR_END: sequence
    // Where its first position is in [heads][S]; and in [heads / sharing][S], where so many heads share one.
    __device__ __forceinline__ long long row() const { return 1ll * head * S + begin; }
    __device__ __forceinline__ long long shared_row(int sharing) const { return 1ll * (head / sharing) * S + begin; }
    // How many parts of `size` positions it has.
    __device__ __forceinline__ int parts(int size) const { return (length + size - 1) / size; }
    // Where its first part is in [heads][count], of parts of `size` positions: one more than begin / size for each sequence
    // before it, whose last part may be a piece of one.
    __device__ __forceinline__ long long slot(int size, int count) const {
        return 1ll * head * count + begin / size + number;
    }
    // Where its first anchor is in [heads][count].
    __device__ __forceinline__ long long first_anchor(int count) const { return 1ll * head * count + begin / STRETCH; }
    // Stretches between anchors, and where their first border is in [heads][anchors + 2 sequences].
    __device__ __forceinline__ int stretches() const { return parts(STRETCH); }
    __device__ __forceinline__ long long borders(int anchors, int sequences) const {
        return 1ll * head * (anchors + 2 * sequences) + begin / STRETCH + 2 * number;
    }
};

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
