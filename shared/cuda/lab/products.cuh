// Two products of tiles, the second with what the first gives: rows times rows, and scores times
// rows. In shared memory tiles are rows of DH floats, whatever the type in device memory.
//
// The threads lie in rows and columns, ti and tj. Of both products a thread has the rows ti, ti + WI,
// …; of the scores the columns tj, tj + WJ, …; of the outputs fours of columns, 4 tj, 4 tj + 4 WJ, ….
// All its loads are 16 bytes: four neighbours along the sum, or, of the second operand of the second
// product, four neighbours of the outputs.
#pragma once
#include "lab/reduce.cuh"
#include "lab/tile.cuh"

namespace lab {

// As much shared memory as a block has on the smallest GPU that the stages are for, an RTX 4060.
constexpr int MOST_SHARED = 99 * 1024;

// ANCHOR: layout
// Rows of a tile lie four banks apart, so that eight lanes with 16 bytes of a row each touch every
// bank once; rows of scores 16 apart, so that two half warps that store a row each do.
template <int DH> constexpr int ROW = DH + 4;
template <int TKV> constexpr int SCORES_ROW = TKV + 16;
// ANCHOR_END: layout

// Bytes of OWN rows, of PAST that come past, and of the scores between them.
template <int OWN, int PAST, int DH>
constexpr int TILES_BYTES = ((OWN + PAST) * ROW<DH> + OWN * SCORES_ROW<PAST>) * 4;

// How threads lie: WI rows and WJ columns of them, a row within a warp.
struct InRows {
    static constexpr int WI = 8, WJ = 16, THREADS = WI * WJ;
    static __device__ __forceinline__ int ti() { return threadIdx.x / WJ; }
    static __device__ __forceinline__ int tj() { return threadIdx.x % WJ; }
    template <class Op> static __device__ __forceinline__ float over_row(float v, Op op) {
        return warp_reduce<WJ>(v, op);
    }
};

// ANCHOR: twins
// As InRows, in another order: lanes that differ in bit 0 lie in one row, those that differ in bit 1
// in one column. Each load of 16 bytes then has two lanes that ask for the same, one or two apart,
// and takes two wavefronts in place of four.
template <int ROWS, int COLUMNS> struct Twins {
    static constexpr int WI = ROWS, WJ = COLUMNS, THREADS = WI * WJ;
    static_assert(WJ == 8 || WJ == 16, "a warp has 4 rows of 8 threads, or 2 of 16");
    // The bits of a lane that choose its row.
    static constexpr int OF_ROW = WJ == 16 ? 0b00010 : 0b01010;

    static __device__ __forceinline__ int ti() {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        int row = WJ == 16 ? lane / 2 % 2 : lane / 2 % 2 + lane / 8 % 2 * 2;
        return warp * (32 / WJ) + row;
    }
    static __device__ __forceinline__ int tj() {
        int lane = threadIdx.x % 32;
        return WJ == 16 ? lane % 2 + lane / 4 * 2 : lane % 2 + lane / 4 % 2 * 2 + lane / 16 * 4;
    }
    template <class Op> static __device__ __forceinline__ float over_row(float v, Op op) {
#pragma unroll
        for (int d = 16; d > 0; d /= 2)
            if ((OF_ROW & d) == 0) v = op(v, __shfl_xor_sync(0xffffffffu, v, d));
        return v;
    }
};
// ANCHOR_END: twins

// ROWS rows from r0 on, filled up with zeros past the last row and the last column.
template <int ROWS, int DH, int PACK, int THREADS = InRows::THREADS, class T>
__device__ __forceinline__ void load_tile(float (*tile)[ROW<DH>], Matrix<const T> from, int r0) {
    static_assert(ROWS * DH % (THREADS * PACK) == 0,
                  "each thread loads equally many packs: change TQ, TKV or DH");
    [[maybe_unused]] constexpr int AHEAD = PACK == 8 ? 2 : 4;  // packs on their way at once
#pragma unroll AHEAD
    for (int n = 0; n < ROWS * DH / (THREADS * PACK); ++n) {
        int e = (n * THREADS + threadIdx.x) * PACK;
        float pack[PACK];
        from.template load<PACK>(pack, r0 + e / DH, e % DH);
        store_cells(&tile[e / DH][e % DH], pack);
    }
}

// score_ij += Σ_c a_ic b_jc, over `columns` columns, of a those from a0 on.
template <class L, int RI, int RJ, int A, int B>
__device__ __forceinline__ void rows_times_rows(float (&score)[RI][RJ], float (*a)[A],
                                                float (*b)[B], int columns, int a0 = 0) {
    static_assert(RI > 0 && RJ > 0, "each thread has scores: rows in WIs, columns in WJs");
    int ti = L::ti(), tj = L::tj();
    // ANCHOR: scores
#pragma unroll 2
    for (int c = 0; c < columns; c += 4) {
        float a_i[RI][4], b_j[RJ][4];
#pragma unroll
        for (int i = 0; i < RI; ++i) load_fours(a_i[i], &a[ti + i * L::WI][a0 + c], 0);
#pragma unroll
        for (int j = 0; j < RJ; ++j) load_fours(b_j[j], &b[tj + j * L::WJ][c], 0);
#pragma unroll
        for (int i = 0; i < RI; ++i)
#pragma unroll
            for (int j = 0; j < RJ; ++j)
#pragma unroll
                for (int p = 0; p < 4; ++p) score[i][j] += a_i[i][p] * b_j[j][p];
    }
    // ANCHOR_END: scores
}

// sum_ic += Σ_j scores_ij v_jc, over ROWS rows of v, whose scores begin at column j0.
template <class L, int ROWS, int RI, int RC, int S, int V>
__device__ __forceinline__ void scores_times_rows(float (&sum)[RI][RC], float (*scores)[S],
                                                  float (*v)[V], int j0 = 0) {
    static_assert(RC % 4 == 0 && ROWS % 4 == 0, "a thread has fours of outputs: DH in 4 WJs");
    int ti = L::ti(), tj = L::tj();
    // ANCHOR: outputs
    for (int j = 0; j < ROWS; j += 4) {
        float s_i[RI][4];
#pragma unroll
        for (int i = 0; i < RI; ++i) load_fours(s_i[i], &scores[ti + i * L::WI][j0 + j], 0);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            float v_j[RC];
            load_fours(v_j, &v[j + p][4 * tj], 4 * L::WJ);
#pragma unroll
            for (int i = 0; i < RI; ++i)
#pragma unroll
                for (int c = 0; c < RC; ++c) sum[i][c] += s_i[i][p] * v_j[c];
        }
    }
    // ANCHOR_END: outputs
}

// Σ_c sum_ac X_rc of a thread's row of outputs and row r of X.
template <class L = InRows, int RC, class T>
__device__ __forceinline__ float dot_of_row(const float (&sum)[RC], Matrix<const T> X, int r) {
    float dot = 0;
#pragma unroll
    for (int c = 0; c < RC; c += 4)
#pragma unroll
        for (int p = 0; p < 4; ++p) dot += sum[c + p] * X.cell(r, 4 * L::tj() + c * L::WJ + p);
    return L::over_row(dot, Add{});
}

}  // namespace lab
