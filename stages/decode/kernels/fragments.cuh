// A product whose weights stream through shared memory into fragments: stages, their loads and their products.
//
// A fragment has 16 rows of W and 8 of x. Here two groups of columns share it: its rows and columns 2 s + p are row s of W, and of x, in
// group p. So a warp takes 128 bytes of each of eight rows of W at a time, without bank conflicts; and of the 16 x 8 sums those of
// different groups are nobody's.
#pragma once
#include "columns.cuh"
#include "lab/ptx/bulk.cuh"
#include "mma_rows.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

constexpr int TILE = 8, CHUNK = 2048;  // rows of W of a stage, and bytes of each: 128 for each of 16 warps
constexpr int STAGE = TILE * CHUNK, MOST_STAGES = 12;

// ANCHOR: stream
// The stage that comes next: a tile of eight rows, a chunk of their columns, the place where it lies, and the parity of its barrier.
struct Turn {
    int tile = 0, chunk = 0, place = 0;
    unsigned phase = 0;

    __device__ __forceinline__ void next(int chunks, int stages) {
        if (++chunk == chunks) chunk = 0, ++tile;
        if (++place == stages) place = 0, phase ^= 1;
    }
};

// The rows of a block on their way to its shared memory.
template <class W> struct Stream {
    const W* weight;
    unsigned char* memory;  // shared, places for `stages` of them
    Mbarrier *full, *empty;
    BlockRows own;
    int N, K, gated, stages, chunks, tiles;

    __device__ __forceinline__ unsigned char* place(const Turn& turn) const { return memory + turn.place * STAGE; }

    // A warp asks for a stage, a lane for each row.
    __device__ __forceinline__ void ask(const Turn& turn) const {
        int lane = threadIdx.x % 32, at = turn.chunk * CHUNK, row = turn.tile * TILE + lane;
        int rows = min(TILE, own.rows - turn.tile * TILE), bytes = min(CHUNK, K * static_cast<int>(sizeof(W)) - at);
        Mbarrier* barrier = full + turn.place;
        if (lane == 0) mbarrier_arrive_expect(barrier, rows * bytes);
        __syncwarp();  // the bytes are expected before they come
        if (lane < rows) {
            const W* from = weight + 1ll * own.row_of(row, N, gated) * K;
            bulk_load(place(turn) + lane * CHUNK, reinterpret_cast<const char*>(from) + at, bytes, barrier);
        }
    }
};
// ANCHOR_END: stream

// Where a lane is in a fragment: rows 2 sub and 2 sub + 1 of a tile, and of x row sub of each four; column pack % 8 of 128 bytes.
struct LanePlace {
    int g, t, sub, pack, group;
    __device__ __forceinline__ LanePlace()
        : g(threadIdx.x % 32 / 4), t(threadIdx.x % 4), sub(g / 2), pack(threadIdx.x % 8), group(g % 2) {}
};

// A lane's words of 16 bytes of W. With int8 lanes of group 1 take their second half first: so do they with x, whose 16-byte packs then
// lie in all banks.
template <class W> __device__ __forceinline__ void words_of(unsigned (&words)[4], const uint4& raw, bool swap) {
    bool other = is_int8<W> && swap;
    words[0] = other ? raw.z : raw.x, words[1] = other ? raw.w : raw.y;
    words[2] = other ? raw.x : raw.z, words[3] = other ? raw.y : raw.w;
}

// ANCHOR: multiply
// sum += W zᵀ over a warp's columns of a stage, from column k on, and its `rows` first rows. z[n] is this lane's row of each four rows of z.
// What is not there is zero.
template <class T, class W, int FOURS>
__device__ __forceinline__ void multiply_stage(float (&sum)[FOURS][4], const unsigned char* stage, const T* const (&z)[FOURS], int k,
                                               int K, int rows, const LanePlace& lane) {
    constexpr int E = OF_PACK<W>;
    const uint4 none = {0, 0, 0, 0};
    k += lane.pack * E;
    bool inside = k < K;
    const unsigned char* at = stage + 2 * lane.sub * CHUNK + lane.pack * 16;
    unsigned even[4], odd[4];
    words_of<W>(even, inside && 2 * lane.sub < rows ? *reinterpret_cast<const uint4*>(at) : none, lane.group);
    words_of<W>(odd, inside && 2 * lane.sub + 1 < rows ? *reinterpret_cast<const uint4*>(at + CHUNK) : none, lane.group);
#pragma unroll
    for (int q = 0; q < E; q += 8) {
        int from = k + (is_int8<W> && lane.group ? q ^ 8 : q);
        multiply_eight<T, W>(sum, even, odd, q, [&](int n) {
            return inside ? *reinterpret_cast<const uint4*>(z[n] + from) : none;
        });
    }
}
// ANCHOR_END: multiply

// ANCHOR: put
// A warp's sums of a tile. A lane has group 0 of its even row and group 1 of the odd one, or the other way round: its neighbour in the
// other group has the rest. Lane (g, t) ends with row g of the tile, and row t of each four rows of z.
template <int ROWS, int FOURS>
__device__ __forceinline__ void put_tile(float (&part)[TILE * ROWS], float (&sum)[FOURS][4], const LanePlace& lane) {
#pragma unroll
    for (int n = 0; n < FOURS; ++n) {
        float(&c)[4] = sum[n];
        float given = lane.group ? c[1] : c[2], kept = lane.group ? c[3] : c[0];
        float all = kept + __shfl_xor_sync(0xffffffffu, given, 4);
        if (4 * n + lane.t < ROWS) part[lane.g * ROWS + 4 * n + lane.t] = all;
        c[0] = c[1] = c[2] = c[3] = 0;
    }
}
// ANCHOR_END: put

}  // namespace lab
#endif
