// A matrix with another number of columns: TMA takes rows of multiples of 16 bytes alone.
//
//   to_rc = from_rc     c < the fewer of both; zeros beyond
//
// Rows are T x B, those of a step side by side, and of one that has ended zeros are left: a product reads all rows, and zero
// times NaN is NaN. Without lengths, if not `masked`, all are as they were.
//
// Work split: a thread an element of `to`, [rows, to_columns]; from: [rows, from_columns]. A grid of rows x
// to_columns / 256 blocks, rounded up.
#include "lab/scalar.cuh"

template <class T>
__global__ void __launch_bounds__(256)
    other_columns(const T* __restrict__ from, const int* __restrict__ lengths, T* __restrict__ to, int rows, int B,
                  int from_columns, int to_columns, int masked) {
    long long at = blockIdx.x * 256ll + threadIdx.x, r = at / to_columns;
    int c = at % to_columns;
    if (r >= rows) return;
    bool is = c < from_columns && (!masked || r / B < lengths[r % B]);
    to[at] = is ? from[r * from_columns + c] : lab::from_math<T>(0);
}
