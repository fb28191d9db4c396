// Products of one row or two whose warps walk down their columns of W: which rows and columns they have, and their sums.
#pragma once
#include "lab/ptx/prmt.cuh"
#include "normed_rows.cuh"

namespace lab {

constexpr int LEAST = 64;  // packs of a slice, where a row has so many

// Byte i of a word whose sign bits are turned, as a signed number: signed_byte, but one permutation brings the byte to its place.
__device__ __forceinline__ float turned_byte(unsigned turned, int i) {
    return __uint_as_float(permute_bytes(turned, 0x4b000000u, 0x7540u + i)) - 8388736.0f;
}

// The numbers of a word of W, or of x.
template <class W> __device__ __forceinline__ void widen_word(float* v, unsigned word) {
    if constexpr (is_int8<W>) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = turned_byte(word ^ 0x80808080u, i);
    } else if constexpr (is_bf16<W>) {  // the upper half of a float
        v[0] = __uint_as_float(word << 16), v[1] = __uint_as_float(word & 0xffff0000u);
    } else {
        W two[2];
        memcpy(static_cast<void*>(two), &word, 4);
        v[0] = to_math(two[0]), v[1] = to_math(two[1]);
    }
}

// Adds up V values over the lanes of a warp: lane l gets the sum of value l / (32 / V). Each value is added as by a butterfly, in
// the same order for any V.
template <int V> __device__ __forceinline__ float add_lanes(float (&v)[V]) {
    int lane = threadIdx.x % 32, d = 16;
#pragma unroll
    for (int half = V / 2; half > 0; half /= 2, d /= 2)
#pragma unroll
        for (int i = 0; i < half; ++i) {
            bool upper = lane & d;
            float given = upper ? v[i] : v[i + half];
            v[i] = (upper ? v[i + half] : v[i]) + __shfl_xor_sync(0xffffffffu, given, d);
        }
#pragma unroll
    for (; d > 0; d /= 2) v[0] += __shfl_xor_sync(0xffffffffu, v[0], d);
    return v[0];
}

// ANCHOR: share
// A block's columns of y, and rows of W. Row i of the block is row i of W from `first` on; gated, rows of gate and of up take turns.
struct BlockRows {
    int first, columns, rows;

    __device__ __forceinline__ BlockRows(int N, int gated) {
        // The first blocks have a column more, where N is no multiple of them.
        unsigned blocks = gridDim.x, block = blockIdx.x, each = static_cast<unsigned>(N) / blocks, more = N - each * blocks;
        first = static_cast<int>(block * each + min(block, more)), columns = static_cast<int>(each + (block < more));
        rows = gated ? 2 * columns : columns;
    }
    // Row i of the block in W.
    __device__ __forceinline__ int row_of(int i, int N, int gated) const { return gated ? first + i / 2 + i % 2 * N : first + i; }
};

// What a warp has of its block's rows of W: a slice of the columns, EACH rows at a time.
template <class W, int WARPS, int EACH> struct Share : BlockRows {
    static constexpr int E = OF_PACK<W>, STEP = 32 * E, ROWS = EACH;
    int slices, slice, group;     // of a row; this warp's; its group's number
    int begin, end, turns;        // this lane's first column, the end of the slice, steps of a row
    int batch;                    // rows between two turns of a group
    long long odd, pair;          // from an even row to the next, and to the one behind it

    __device__ __forceinline__ Share(int N, int K, int gated) : BlockRows(N, gated) {
        int warp = threadIdx.x / 32, packs = K / E, log = 0;
        while (1 << (log + 1) <= WARPS && packs >= LEAST << (log + 1)) ++log;
        slices = 1 << log, slice = warp & (slices - 1), group = warp >> log;
        int own = (((packs + slices - 1) >> log) + 7) / 8 * 8;  // packs of a slice: whole lines of 128 bytes
        begin = (slice * own + static_cast<int>(threadIdx.x) % 32) * E, end = min((slice + 1) * own * E, K);
        turns = (own + 31) / 32;
        batch = (WARPS >> log) * EACH;
        odd = gated ? 1ll * N * K : K, pair = gated ? K : 2ll * K;
    }
    __device__ __forceinline__ int steps() const {
        int left = rows - group * EACH;
        return left > 0 ? (left + batch - 1) / batch * turns : 0;
    }
};

// Where a lane is on its way through its packs.
template <class Own> struct Place {
    int row, k, turn = 0;

    __device__ __forceinline__ explicit Place(const Own& own) : row(own.group * Own::ROWS), k(own.begin) {}
    // Whether the next step is of other rows.
    __device__ __forceinline__ bool advance(const Own& own) {
        k += Own::STEP;
        if (++turn < own.turns) return false;
        turn = 0, k = own.begin, row += own.batch;
        return true;
    }
};

// The same of loads, which are ahead.
template <class W, class Own> struct Loads {
    Place<Own> place;
    const W* at;
    long long back;  // from behind the last step of some rows to the first of the next

    __device__ __forceinline__ Loads(const W* weight, const Own& own)
        : place(own), at(weight + (1ll * place.row / 2 * own.pair + own.begin)),
          back(own.batch / 2 * own.pair - 1ll * own.turns * Own::STEP) {}
    // Asks for its packs of EACH rows, but for rows past the end and columns past those of the slice: nobody multiplies these.
    template <class Ask> __device__ __forceinline__ void next(const Own& own, Ask ask) {
        bool inside = place.k < own.end;
#pragma unroll
        for (int j = 0; j < Own::ROWS; ++j)
            if (inside && place.row + j < own.rows) ask(j, at + (j / 2 * own.pair + j % 2 * own.odd));
        at += Own::STEP;
        if (place.advance(own)) at += back;
    }
};
// ANCHOR_END: share

// sum[j][r] += W z over a lane's pack of each of EACH rows. `z` is its column of the first row of z. Eight numbers of z are in
// registers at a time.
template <class W, int EACH, int ROWS, class T>
__device__ __forceinline__ void multiply_packs(float (&sum)[EACH * ROWS], const uint4 (&raw)[EACH], const T* z, int K) {
    constexpr int OF_WORD = 4 / sizeof(W), CHUNK = 8 / ROWS, WORDS = CHUNK / OF_WORD;  // columns of a word and of a chunk
#pragma unroll
    for (int c = 0; c < OF_PACK<W> / CHUNK; ++c) {
        float v[ROWS][CHUNK];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            unsigned words[CHUNK / 2];
            memcpy(words, __builtin_assume_aligned(z + r * K + c * CHUNK, sizeof(words)), sizeof(words));
#pragma unroll
            for (int i = 0; i < CHUNK / 2; ++i) widen_word<T>(v[r] + 2 * i, words[i]);
        }
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            unsigned all[4] = {raw[j].x, raw[j].y, raw[j].z, raw[j].w};
            float w[CHUNK];
#pragma unroll
            for (int i = 0; i < WORDS; ++i) widen_word<W>(w + i * OF_WORD, all[c * WORDS + i]);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int i = 0; i < CHUNK; ++i) sum[j * ROWS + r] += w[i] * v[r][i];
        }
    }
}

// The shared memory of a block behind `z`: what is added to its columns of y, and the sums of its rows of W, `room` of each slice. Row
// i has those of its ROWS products from ROWS i on.
template <int ROWS> struct BlockSums {
    float *added, *sums;
    int room, slices;

    template <class Own> __device__ __forceinline__ BlockSums(void* behind, const Own& own)
        : added(static_cast<float*>(behind)), sums(added + own.columns * ROWS), room(own.rows * ROWS), slices(own.slices) {}

    // EACH rows from `row` on of a warp's slice: `sum` of each lane.
    template <class Own, int V> __device__ __forceinline__ void put(const Own& own, int row, float (&sum)[V]) {
        float all = add_lanes<V>(sum);
        int lane = threadIdx.x % 32, v = lane / (32 / V);
        if (lane % (32 / V) == 0 && row + v / ROWS < own.rows) sums[own.slice * room + row * ROWS + v] = all;
    }
    // In the order of the slices.
    __device__ __forceinline__ float all(int e) const {
        float sum = 0;
        for (int s = 0; s < slices; ++s) sum += sums[s * room + e];
        return sum;
    }
    template <int THREADS, class T, class Own>
    __device__ __forceinline__ void bring_added(const T* residual, const Own& own, int N) {
#pragma unroll 1
        for (int e = threadIdx.x; e < own.columns * ROWS; e += THREADS)
            added[e] = to_math(residual[1ll * (e % ROWS) * N + own.first + e / ROWS]);
    }
};

// The end of all columns of a block. scale(i) is that of row i of the block.
template <int ROWS, int THREADS, class T, class Own, class Scale>
__device__ __forceinline__ void store_columns(const BlockSums<ROWS>& sums, const Own& own, Scale scale, int has_residual, int gated,
                                              const Columns<T>& to) {
#pragma unroll 1
    for (int e = threadIdx.x; e < own.columns * ROWS; e += THREADS) {
        int c = e / ROWS, r = e % ROWS, n = own.first + c;
        int i = gated ? 2 * c : c;
        float total = sums.all(i * ROWS + r) * scale(i);
        if (gated) total *= quick_sigmoid(total) * sums.all((i + 1) * ROWS + r) * scale(i + 1);
        if (has_residual) total += sums.added[e];
        to.store(r, n, total);
    }
}

}  // namespace lab
