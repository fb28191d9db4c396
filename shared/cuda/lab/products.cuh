// Two products of tiles, the second with what the first gives: rows times rows, and scores times
// rows. In shared memory tiles are rows of DH floats, whatever the type in device memory.
//
// The threads lie in TI rows and TJ columns, ti and tj; a kernel may choose another number of rows,
// WI. Of both products a thread has the rows ti, ti + WI, …; of the scores the columns tj, tj + TJ,
// …; of the outputs fours of columns, 4 tj, 4 tj + 4 TJ, …. All its loads are 16 bytes: four
// neighbours along the sum, or, of the second operand of the second product, four neighbours of the
// outputs.
#pragma once
#include "lab/reduce.cuh"
#include "lab/tile.cuh"

// ANCHOR: layout
constexpr int THREADS = 128, TI = 8, TJ = THREADS / TI;

// Rows of a tile lie four banks apart, so that eight lanes with 16 bytes of a row each touch every
// bank once; rows of scores 16, so that two half warps that store a row each do.
template <int DH> constexpr int ROW = DH + 4;
template <int TKV> constexpr int SCORES_ROW = TKV + (TKV % 32 == 0 ? 16 : 0);
// ANCHOR_END: layout

// ROWS rows from r0 on, filled up with zeros past the last row and the last column.
template <int ROWS, int DH, int PACK, class T>
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

// score_ij += Σ_c a_ic b_jc, over `columns` columns.
template <int DH, int WI = TI, int RI, int RJ>
__device__ __forceinline__ void rows_times_rows(float (&score)[RI][RJ], float (*a)[ROW<DH>],
                                                float (*b)[ROW<DH>], int columns) {
    static_assert(RI > 0 && RJ > 0, "threads share the scores: rows in 8s, columns in 16s");
    int ti = threadIdx.x / TJ, tj = threadIdx.x % TJ;
    // ANCHOR: scores
#pragma unroll 2
    for (int c = 0; c < columns; c += 4) {
        float a_i[RI][4], b_j[RJ][4];
#pragma unroll
        for (int i = 0; i < RI; ++i) load_fours(a_i[i], &a[ti + i * WI][c], 0);
#pragma unroll
        for (int j = 0; j < RJ; ++j) load_fours(b_j[j], &b[tj + j * TJ][c], 0);
#pragma unroll
        for (int i = 0; i < RI; ++i)
#pragma unroll
            for (int j = 0; j < RJ; ++j)
#pragma unroll
                for (int p = 0; p < 4; ++p) score[i][j] += a_i[i][p] * b_j[j][p];
    }
    // ANCHOR_END: scores
}

// sum_ic += Σ_j scores_ij v_jc, over the TKV rows of a tile.
template <int TKV, int DH, int WI = TI, int RI, int RC>
__device__ __forceinline__ void scores_times_rows(float (&sum)[RI][RC],
                                                  float (*scores)[SCORES_ROW<TKV>],
                                                  float (*v)[ROW<DH>]) {
    static_assert(RC == DH / TJ && RC % 4 == 0, "a thread has fours of outputs: DH in 64s");
    int ti = threadIdx.x / TJ, tj = threadIdx.x % TJ;
    // ANCHOR: outputs
    for (int j = 0; j < TKV; j += 4) {
        float s_i[RI][4];
#pragma unroll
        for (int i = 0; i < RI; ++i) load_fours(s_i[i], &scores[ti + i * WI][j], 0);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            float v_j[RC];
            load_fours(v_j, &v[j + p][4 * tj], 4 * TJ);
#pragma unroll
            for (int i = 0; i < RI; ++i)
#pragma unroll
                for (int c = 0; c < RC; ++c) sum[i][c] += s_i[i][p] * v_j[c];
        }
    }
    // ANCHOR_END: outputs
}

// Σ_c sum_ac X_rc of a thread's row of outputs and row r of X.
template <int RC, class T>
__device__ __forceinline__ float dot_of_row(const float (&sum)[RC], Matrix<const T> X, int r) {
    float dot = 0;
#pragma unroll
    for (int c = 0; c < RC; c += 4)
#pragma unroll
        for (int p = 0; p < 4; ++p)
            dot += sum[c + p] * X.cell(r, 4 * (threadIdx.x % TJ) + c * TJ + p);
    return warp_reduce<TJ>(dot, Add{});
}
