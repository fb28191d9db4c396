// Which sequence a tile of rows is of, and where that lies: one of a batch, of S positions each, or one of N that are packed one
// behind the other, S positions in all.
//
// Tiles of R rows begin at each sequence's own first position. Packed sequence n, which begins at position b, has those from
// b / R + n on: one more than b / R for each sequence before it, whose last tile may be a piece of one. So S / R + N tiles are
// enough, and which they are follows from b and n alone. Some have no row.
#pragma once

namespace lab {

template <int RANK> struct Coordinates { int at[RANK]; };

// That of a batch which has this head, counted from the first of all. Its maps: columns, positions, heads, sequences.
struct BatchSequence {
    int head, heads, length;

    // The head, counted from the first of the sequence.
    __device__ __forceinline__ int own_head() const { return head % heads; }
    __device__ __forceinline__ Coordinates<4> box(int column, int row, int own_head) const {
        return {{column, row, own_head, head / heads}};
    }
    // Heads of earlier sequences, `group` for each of these; its first position, and where attention_rows has it.
    __device__ __forceinline__ long long heads_before(int group) const { return 1ll * (head / heads) * heads * group; }
    __device__ __forceinline__ int first_position() const { return 0; }
    __device__ __forceinline__ int first_record() const { return 0; }
};

// Rows of a head for which attention_rows has a place, whole tiles of so many of each packed sequence.
constexpr int RECORDS = 128;

// A head of the index-th of those that are packed, from position `begin` on. Its maps end anywhere (TensorMap::ending_anywhere in lab_device):
// they have two coordinates for a position, r and e, which name position r + e - END: with e the sequence's end, r < END is what comes
// before it. So a box that goes on behind the end has zeros there, and stores nothing there, whoever's that may be.
struct PackedSequence {
    static constexpr int END = 1 << 30;
    int head, index, begin, length;

    // Nobody has looked at the numbers.
    static __device__ __forceinline__ int within(int position, int least, int S) { return max(least, min(position, S)); }

    template <int R> __device__ __forceinline__ int first_tile() const { return begin / R + index; }

    // ANCHOR: search
    // The one that has this tile of R rows, if any has: the last that begins at it or before it.
    template <int R>
    static __device__ __forceinline__ PackedSequence of_tile(const int* cu_seqlens, int count, int S, int head, int tile) {
        int low = 0;
        for (int high = count; high - low > 1;) {
            int middle = (low + high) / 2;
            (within(cu_seqlens[middle], 0, S) / R + middle <= tile ? low : high) = middle;
        }
        int begin = within(cu_seqlens[low], 0, S);
        return {head, low, begin, within(cu_seqlens[low + 1], begin, S) - begin};
    }
    // ANCHOR_END: search

    __device__ __forceinline__ int own_head() const { return head; }
    __device__ __forceinline__ Coordinates<5> box(int column, int row, int own_head) const {
        return {{column, END - length + row, begin + length, END, own_head}};
    }
    __device__ __forceinline__ long long heads_before(int) const { return 0; }
    __device__ __forceinline__ int first_position() const { return begin; }
    __device__ __forceinline__ int first_record() const { return first_tile<RECORDS>() * RECORDS; }
};

// Rows from `first` on of a head of a sequence.
template <class Sequence> struct Piece {
    int first;
    Sequence sequence;

    __device__ __forceinline__ bool is_empty() const { return first < 0 || first >= sequence.length; }
};

// All that a call has.
struct Sequences {
    int heads, S;
    const int* cu_seqlens;
    int count;

    template <bool PACKED, int R> __device__ __forceinline__ auto piece(int head, int tile) const {
        if constexpr (PACKED) {
            PackedSequence own = PackedSequence::of_tile<R>(cu_seqlens, count, S, head, tile);
            return Piece<PackedSequence>{(tile - own.first_tile<R>()) * R, own};
        } else {
            return Piece<BatchSequence>{tile * R, {head, heads, S}};
        }
    }
};

}  // namespace lab
