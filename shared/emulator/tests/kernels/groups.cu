// Parts of a block that do different things, right and wrong; tests/groups.rs says what must come of each.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/stmatrix.cuh"
#include "lab/ptx/warp_roles.cuh"

using namespace lab;

enum Fault { NONE, NO_WAIT, WRITES_EARLY, OTHER_COUNT, NOT_ALL, NUMBER_0 };
enum { FULL = 1, EMPTY = 2 };

// out [rounds, 64] = x [rounds, 64], each row backwards: two warps hand rows to two others, through one box.
template <int FAULT> __global__ void handed(const int* x, int* out, int rounds) {
    __shared__ int box[64];
    int t = threadIdx.x % 64, all = 128;
    for (int n = 0; n < rounds; ++n)
        if (threadIdx.x < 64) {
            if (n > 0 && FAULT != WRITES_EARLY) named_barrier_sync(EMPTY, all);
            box[t] = x[n * 64 + t];
            if (FAULT == NOT_ALL && n == 1 && t >= 32) continue;
            named_barrier_arrive(FAULT == NUMBER_0 ? 0 : FULL, FAULT == OTHER_COUNT && t >= 32 ? 96 : all);
        } else {
            if (FAULT != NO_WAIT) named_barrier_sync(FULL, all);
            else named_barrier_arrive(FULL, all);
            out[n * 64 + t] = box[63 - t];
            if (n + 1 < rounds && FAULT != WRITES_EARLY) named_barrier_arrive(EMPTY, all);
        }
}

// A warpgroup gives registers back, two take them: as many as there are, one unit more, after one unit
// less was given, of one warp too few, the wrong way. Out comes how many lanes of the warp are elected.
enum Budget { FITS, TOO_MANY, TOO_FEW_BACK, A_WARP_MISSING, WRONG_WAY };
template <int BUDGET> __global__ void __launch_bounds__(384, 1) budget(int* out) {
    if (threadIdx.x < 128) {
        if (BUDGET == WRONG_WAY) registers_increase<24>();
        else if (BUDGET != A_WARP_MISSING || threadIdx.x < 96) registers_decrease<BUDGET == TOO_FEW_BACK ? 32 : 24>();
    } else {
        registers_increase<BUDGET == TOO_MANY ? 248 : 240>();
    }
    out[threadIdx.x] = __popc(__ballot_sync(0xffffffffu, elect_one()));
}

// out [32, 8] = four matrices of 8 x 8 halves, of which each lane has its words of `fragments` [32, 4].
template <int N, int TRANSPOSED> __global__ void stored(const unsigned* fragments, unsigned* out) {
    __shared__ __align__(16) unsigned short rows[32][8];
    int lane = threadIdx.x;
    unsigned words[N];
    for (int m = 0; m < N; ++m) words[m] = fragments[lane * 4 + m];
    if (TRANSPOSED) store_matrices_transposed(rows[lane], words);
    else store_matrices(rows[lane], words);
    __syncwarp();
    if (lane < 8 * N)
        for (int c = 0; c < 8; ++c) out[lane * 8 + c] = rows[lane][c];
}
