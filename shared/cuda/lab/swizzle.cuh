// A row-major tile in shared memory whose rows permute their chunks of 16 bytes, each row its own
// way, so that one column of chunks is spread over the banks.
//
// The 32 banks hold 128 bytes side by side. Eight lanes that read 16 bytes each are served in one
// wavefront if their chunks differ in their place within 128 bytes. Down a column of chunks all
// would be at one place: chunk j of row r moves to j ^ r (for rows of 128 bytes or more; of shorter
// ones, several make 128 bytes, and they move together). Nothing is wasted, as padding would, and
// every chunk stays at a multiple of 16 bytes.
#pragma once

namespace lab {

// STEP is how many chunks a row moves further than the row above it.
template <class T, int COLUMNS, int STEP = 1> struct SwizzledTile {
    static constexpr int CELLS = 16 / sizeof(T);  // of a chunk
    static constexpr int CHUNKS = COLUMNS / CELLS;
    static constexpr int PERIOD = CHUNKS < 8 ? CHUNKS : 8;
    static constexpr int ROWS = 8 / STEP;  // that many rows further down, chunks are moved alike
    static_assert(COLUMNS % CELLS == 0, "a row is whole chunks of 16 bytes: change COLUMNS");
    static_assert((CHUNKS & (CHUNKS - 1)) == 0, "a power of two of chunks, or ^ would leave the row");
    T* x;

    // Where the chunk that column c, a multiple of CELLS, begins. A multiple of ROWS further down it
    // is as many times COLUMNS further on.
    __device__ __forceinline__ static int offset(int r, int c) {
        int moved = r / (8 / PERIOD) * STEP % PERIOD;
        return (r * CHUNKS + (c / CELLS ^ moved)) * CELLS;
    }
    __device__ __forceinline__ T* chunk(int r, int c) const { return x + offset(r, c); }
    __device__ __forceinline__ T* at(int r, int c) const { return chunk(r, c) + c % CELLS; }
};

}  // namespace lab
