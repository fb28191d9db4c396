// Sequences that are packed one behind the other, S positions in all, in place of a batch of them: where a tile's is.
//
// Tiles of R rows begin at each sequence's own first position. Sequence n, which begins at position b, has those from b / R + n
// on: one more than b / R for each sequence before it, whose last tile may be a piece of one. So S / R + N tiles are enough, and
// which they are follows from b and n alone. Some have no row.
#pragma once

namespace lab {

template <int RANK> struct Coordinates { int at[RANK]; };

// Rows of a head for which attention_rows has places: whole tiles of so many of each sequence.
constexpr int RECORDS = 128;

// The index-th, from position `begin` on. Its maps end anywhere (TensorMap::ending_anywhere in lab_device): they have two coordinates
// for a position, r and e, which name position r + e - END: with e the sequence's end, r < END is what comes before it. So a box that
// goes on behind the end has zeros there, and stores nothing there, whoever's that may be.
struct PackedSequence {
    static constexpr int END = 1 << 30;
    int index, begin, length;

    // Nobody has looked at the numbers.
    static __device__ __forceinline__ int within(int position, int least, int S) { return max(least, min(position, S)); }

    // ANCHOR: search
    // The one that has this tile of R rows, if any has: the last that begins at it or before it.
    template <int R>
    static __device__ __forceinline__ PackedSequence of_tile(const int* cu_seqlens, int count, int S, int tile) {
        int low = 0;
        for (int high = count; high - low > 1;) {
            int middle = (low + high) / 2;
            (within(cu_seqlens[middle], 0, S) / R + middle <= tile ? low : high) = middle;
        }
        int begin = within(cu_seqlens[low], 0, S);
        return {low, begin, within(cu_seqlens[low + 1], begin, S) - begin};
    }
    // ANCHOR_END: search

    // The first row of a tile of R, counted from the first of the sequence; and whether that is one of its rows.
    template <int R> __device__ __forceinline__ int row(int tile) const { return (tile - begin / R - index) * R; }
    template <int R> __device__ __forceinline__ bool has(int tile) const { return row<R>(tile) >= 0 && row<R>(tile) < length; }
    __device__ __forceinline__ int first_record() const { return (begin / RECORDS + index) * RECORDS; }

    __device__ __forceinline__ Coordinates<5> box(int column, int row, int head) const {
        return {{column, END - length + row, begin + length, END, head}};
    }
};

// A sequence by what its maps need: its number in a batch, or itself where it is packed.
template <bool PACKED> __device__ __forceinline__ auto sequence_of(const PackedSequence& packed, int number) {
    if constexpr (PACKED) return packed;
    else return number;
}

}  // namespace lab
