// Two products of tiles with weights between them, as in lab/weighted.cuh, piece by piece, the next
// piece on its way while the present one is multiplied:
//
//   sum_ac += Σ_b w_ab Z_bc        w_ab = weigh(Σ_c own_ac X_bc)
//
// A tile is PAST rows b. X comes in pieces of CX columns, Z in pieces of as many elements: a few
// rows, whole. Two places hold pieces, in turns: so X and Z need no tile each, and the block's own
// rows may be many. A barrier a piece.
//
// How the threads lie, and what of a product is a thread's own: lab/products.cuh.
#pragma once
#include "lab/ptx/cp_async.cuh"
#include "lab/products.cuh"

namespace lab {

// The block's shared memory: its own rows, two pieces of those that come past, the weights between
// them. Rows of weights lie WJ banks apart, so that the rows that a warp stores touch every bank
// once.
template <int OWN, int PAST, int DH, int CX, class L> struct Passing {
    static constexpr int ROWS_Z = PAST * CX / DH;
    static constexpr int PIECE_X = PAST * ROW<CX>, PIECE_Z = ROWS_Z * ROW<DH>;
    static constexpr int PLACE = PIECE_X > PIECE_Z ? PIECE_X : PIECE_Z;
    static constexpr int WEIGHTS_ROW = PAST % 32 == 0 ? PAST + L::WJ : PAST + (PAST + L::WJ) % 32;
    static constexpr int BYTES = (OWN * (ROW<DH> + WEIGHTS_ROW) + 2 * PLACE) * 4;
    static_assert(BYTES <= MOST_SHARED,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower TQ or TKV");
    static_assert(ROWS_Z % 4 == 0 && PAST % ROWS_Z == 0, "Z comes in fours of rows: raise PAST");
    float (*own)[ROW<DH>];
    float (*weights)[WEIGHTS_ROW];
    float* place;

    __device__ __forceinline__ explicit Passing(float* memory)
        : own(reinterpret_cast<float(*)[ROW<DH>]>(memory)),
          weights(reinterpret_cast<float(*)[WEIGHTS_ROW]>(own + OWN)),
          place(reinterpret_cast<float*>(weights + OWN)) {}
};

// ANCHOR: piece
// ROWS rows and COLUMNS columns from r0 and c0 on, on their way to a place in shared memory: zeros
// past the last row and the last column. Floats are copied past the registers. What must be
// converted waits in them, 16 bytes a pack.
template <class T, int ELEMENTS, int THREADS> struct Piece {
    static constexpr int PACK = 16 / sizeof(T), PACKS = ELEMENTS / (THREADS * PACK);
    static_assert(ELEMENTS % (THREADS * PACK) == 0,
                  "each thread loads equally many packs: change TQ, TKV or the threads");
    static constexpr bool AS_IT_IS = sizeof(T) == sizeof(float);
    float* to[AS_IT_IS ? 1 : PACKS];
    Raw<T> raw[AS_IT_IS ? 1 : PACKS];

    template <int COLUMNS>
    __device__ __forceinline__ void fetch(float* place, Matrix<const T> from, int r0, int c0) {
        constexpr int STEP = THREADS * PACK / COLUMNS;  // rows from pack to pack
        static_assert(THREADS * PACK % COLUMNS == 0, "all threads load whole rows at a time");
        int r = threadIdx.x * PACK / COLUMNS, c = threadIdx.x * PACK % COLUMNS;
        int rows = c0 + c < from.columns ? from.rows - (r0 + r) : 0;  // from this thread's on
        const T* at = from.at(r0 + r, c0 + c);
        float* cell = place + r * ROW<COLUMNS> + c;
#pragma unroll
        for (int n = 0; n < PACKS; ++n, at += STEP * from.columns, cell += STEP * ROW<COLUMNS>) {
            bool inside = n * STEP < rows;
            if constexpr (AS_IT_IS) {
                async_copy_or_zero<16>(cell, at, inside);
            } else {
                to[n] = cell;
                raw[n] = inside ? load_raw(at) : Raw<T>{};
            }
        }
        if constexpr (AS_IT_IS) async_commit();
    }

    // This thread's part is there. Others see it behind a barrier.
    __device__ __forceinline__ void land() {
        if constexpr (AS_IT_IS) {
            async_wait<0>();
        } else {
#pragma unroll
            for (int n = 0; n < PACKS; ++n) store_cells(to[n], in_math(raw[n]).v);
        }
    }
};
// ANCHOR_END: piece

// The pieces of X and Z in the order in which the products need them, one ahead.
template <class T, int OWN, int PAST, int DH, int CX, class L> class Pieces {
    using Shared = Passing<OWN, PAST, DH, CX, L>;
    float* place;
    Matrix<const T> X, Z;
    int b0, end, n = 0, turn = 0;  // the next piece: the n-th of the tile from b0, into place `turn`
    Piece<T, PAST * CX, L::THREADS> coming;

    __device__ __forceinline__ int of_x() const { return (X.columns + CX - 1) / CX; }

    __device__ __forceinline__ void fetch() {
        if (b0 >= end) return;
        float* to = place + turn * Shared::PLACE;
        if (n < of_x())
            coming.template fetch<CX>(to, X, b0, n * CX);
        else
            coming.template fetch<DH>(to, Z, b0 + (n - of_x()) * Shared::ROWS_Z, 0);
        if (++n == of_x() + PAST / Shared::ROWS_Z) n = 0, b0 += PAST;
    }

  public:
    __device__ __forceinline__ Pieces(Shared shared, Matrix<const T> X, Matrix<const T> Z,
                                      int first, int end)
        : place(shared.place), X(X), Z(Z), b0(first), end(end) {
        fetch();
    }

    // The next piece. All that anybody stored before is seen by all behind it.
    __device__ __forceinline__ float* next() {
        coming.land();
        __syncthreads();  // the piece is there; the one before, whose place comes next, is read
        float* here = place + turn * Shared::PLACE;
        turn ^= 1;
        fetch();
        return here;
    }
};

// The rows from `first` up to `end`; the own ones are those of `rows` from r0 on. meet(b0) is called
// before the products with the tile from b0, and may load what weigh(score, met, b0) needs to turn a
// thread's products into weights; what lies past the end must weigh zero.
template <class L, class T, int OWN, int PAST, int DH, int CX, int RC, class Meet, class Weigh>
__device__ __forceinline__ void
products_ahead(float (&sum)[OWN / L::WI][RC], Passing<OWN, PAST, DH, CX, L> shared,
               Matrix<const T> rows, int r0, Matrix<const T> X, Matrix<const T> Z, int first,
               int end, Meet meet, Weigh weigh) {
    using Shared = Passing<OWN, PAST, DH, CX, L>;
    static_assert(OWN % L::WI == 0 && PAST % L::WJ == 0 && RC * L::WJ == DH,
                  "threads share rows and columns: change TQ, TKV or how the threads lie");
    constexpr int RI = OWN / L::WI, RJ = PAST / L::WJ;
    Pieces<T, OWN, PAST, DH, CX, L> pieces(shared, X, Z, first, end);
    load_tile<OWN, DH, 16 / sizeof(T), L::THREADS>(shared.own, rows, r0);
    // ANCHOR: loop
    for (int b0 = first; b0 < end; b0 += PAST) {
        auto met = meet(b0);
        float score[RI][RJ] = {};
        for (int c = 0; c < X.columns; c += CX) {
            auto x = reinterpret_cast<float(*)[ROW<CX>]>(pieces.next());
            rows_times_rows<L>(score, shared.own, x, CX, c);
        }
        weigh(score, met, b0);
        // Those of the tile before are read: a piece of X lies between.
#pragma unroll
        for (int a = 0; a < RI; ++a)
#pragma unroll
            for (int b = 0; b < RJ; ++b)
                shared.weights[L::ti() + a * L::WI][L::tj() + b * L::WJ] = score[a][b];
        for (int j = 0; j < PAST; j += Shared::ROWS_Z) {
            auto z = reinterpret_cast<float(*)[ROW<DH>]>(pieces.next());
            scores_times_rows<L, Shared::ROWS_Z>(sum, shared.weights, z, j);
        }
    }
    // ANCHOR_END: loop
    __syncthreads();  // own rows, weights and pieces are read: the next products may overwrite them
}

}  // namespace lab
