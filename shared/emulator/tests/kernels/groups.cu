// Parts of a block that do different things, right and wrong; tests/groups.rs says what must come of each.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/stmatrix.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"

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

// out [chunks, 32] = x [chunks, 32], each row backwards: four warps bring rows by turns, through a ring, for one that is
// slower than they are. A parity tells a phase from the next, and not from the one behind that: so nobody waits for a
// place before all rows before have got theirs. Who does, EARLY, may be two rounds ahead, and passes at once.
enum Claim { IN_TURN, EARLY };
template <int CLAIM> __global__ void by_turns(const int* x, int* out, int chunks) {
    constexpr int BRINGERS = 4, PLACES = 3;
    __shared__ Ring<PLACES> ring;
    __shared__ int places[PLACES][32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) ring.init(1);
    __syncthreads();  // the barriers are there
    Turn<PLACES> turn;
    if (warp < BRINGERS) {
        for (int n = 0; n < warp; ++n) turn.advance();
        for (int c = warp; c < chunks; c += BRINGERS) {
            if (CLAIM == EARLY) ring.wait_empty(turn);
            if (c > 0) named_barrier_sync(1 + warp, 64);
            if (CLAIM == IN_TURN) ring.wait_empty(turn);
            if (c + 1 < chunks) named_barrier_arrive(1 + (warp + 1) % BRINGERS, 64);
            places[turn.place][lane] = x[c * 32 + lane];
            __syncwarp();  // all lanes have written
            if (lane == 0) mbarrier_arrive(&ring.full[turn.place]);
            for (int n = 0; n < BRINGERS; ++n) turn.advance();
        }
    } else {
        for (int c = 0; c < chunks; ++c, turn.advance()) {
            ring.wait_full(turn);
            out[c * 32 + lane] = __shfl_sync(0xffffffffu, places[turn.place][lane], 31 - lane);
            __syncwarp();  // all lanes have read
            if (lane == 0) ring.leave(turn);
        }
    }
}
