// C = A B by wgmma, the last round of tiles shared. A [G, M, K], B [G, K, N], C [G, M, N], row-major, halves.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32
//
// As v13, but that blocks without a tile of the last round multiply the first steps of others' tiles
// (shared_round.cuh). A cooperative launch, for blocks wait for others.
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "lab/staged_store.cuh"
#include "lab/tile_order.cuh"
#include "shared_round.cuh"
#include "warpgroup.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int matmul_round_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

// sums: [tiles of the last round, BM, BN]; flags: [tiles of the last round, BM / 64], zeros before the launch and after it.
template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    matmul_round(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                 const __grid_constant__ TensorMap C, float* sums, unsigned* flags, int helped, int G, int M,
                 int N, int K) {
    using Tiles = Tiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    TileOrder<HIGH> order{(M + BM - 1) / BM, (N + BN - 1) / BN};
    SharedRound round{order.down * order.across * G, (K + BK - 1) / BK, helped};
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2)
            for (int n = blockIdx.x; n < round.end(); n += gridDim.x) {
                auto work = round.at(n);
                auto [i, j, g] = order.at(work.tile);
                for (int k = work.first; k < work.end; ++k, turn.advance()) {
                    ring.wait_empty(turn);
                    Tiles(tiles + turn.place * Tiles::CELLS).load(A, B, i * BM, j * BN, k * BK, &ring.full[turn.place], g);
                }
            }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        float sum[BN / 2];
        // By a lane for all: the compiler then knows that it is one number for the warp.
        int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0), row = group * 64;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        for (int n = blockIdx.x; n < round.end(); n += gridDim.x) {
            auto work = round.at(n);
            GivenSums<BN / 2> given{sums, flags, work.place};
            Turn<PLACES> before;
            int k = work.first;
            // Where sums are taken, the second warpgroup takes them later: it multiplies while the first one waits.
            for (int part = work.takes() ? 0 : 2; part < 3; ++part) {
                int end = part == 2 ? work.end : min(work.end, work.due + part * (PLACES - 1));
                for (; k < end; ++k, turn.advance()) {
                    ring.wait_full(turn);
                    Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum, row, k > work.first);
                    wgmma_wait<1>();
                    if (k > work.first && threadIdx.x % 128 == 0) ring.leave(before);
                    before = turn;
                }
                wgmma_wait<0>();
                if (part == group) given.take(sum);
            }
            if (threadIdx.x % 128 == 0) ring.leave(before);
            if (work.gives) {
                given.give(sum);
            } else {
                auto [i, j, g] = order.at(work.tile);
                staged.store(C, sum, i * BM + row, j * BN, g);
            }
        }
        staged.finish();
    }
}
