// The shapes of walks, and which part of a head a block has.
#pragma once
#include "gradient_pairs.cuh"
#include "gradient_tiles.cuh"

namespace lab {

// The shape of a walk whose x and y have up to COLUMNS columns; of 64 it has as many threads as the others, where FOUR says so.
template <class T, int COLUMNS, bool FOUR = (COLUMNS > 64)> struct ShapeOf { using type = Shape<T, 128, 1, 2, 3>; };
template <class T> struct ShapeOf<T, 64, false> { using type = Shape<T, 64, 1, 1, 4>; };
template <class T> struct ShapeOf<T, 64, true> { using type = Shape<T, 64, 1, 2, 4>; };
template <class T> struct ShapeOf<T, 256, true> { using type = Shape<T, 128, 2, 1, 2>; };

// A block's index among sequences × segments × `columns`; chunks from `from` to `to`.
struct Segment {
    int index, column, from, to;
    Sequence sequence;

    __device__ __forceinline__ Segment(int block, int columns, int segments, int chunks_each, int S,
                                       const int* cu_seqlens = nullptr, int heads = 0)
        : index(block / columns % segments), column(block % columns),
          sequence(block / columns / segments, S, cu_seqlens, heads) {
        from = index * chunks_each, to = min((sequence.length + CHUNK - 1) / CHUNK, from + chunks_each);
    }
};

}  // namespace lab
