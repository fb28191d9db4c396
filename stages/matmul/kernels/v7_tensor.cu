// C = A B on the tensor cores: A [M, K], B [K, N], C [M, N], row-major, a batch of such along
// blockIdx.z.
//
//   C_ij = Σ_k A_ik B_kj      products of T's (f32 is rounded to TF32), sums in f32
//
// A block computes BM x BN elements of C, its warps WM x WN each, as tiles of 16 x 8, whose sums lie
// in the registers of a warp's lanes. Both tiles, BK deep, go by cp.async to shared memory, swizzled,
// STAGES of them in flight, and by ldmatrix from there to registers, a step of 32 bytes of k ahead
// of the products. B is row-major, so that a column of it, which the tensor cores ask for, lies across
// rows: ldmatrix transposes halves on the way. Of 4-byte elements it cannot, and each lane loads its
// own.
//
// PACK elements are copied at a time: 16 bytes, which asks that K and N be a multiple of as many, or
// one by one.
#include "lab/ptx/dynamic_shared.cuh"
#include "tensor.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int, int, int STAGES, int>
constexpr int matmul_tensor_shared = STAGES * (BM + BN) * BK * sizeof(T);

template <class T, int BM, int BN, int BK, int WM, int WN, int STAGES, int PACK>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    matmul_tensor(const T* A, const T* B, T* C, int M, int N, int K) {
    constexpr int THREADS = BM / WM * (BN / WN) * 32;
    constexpr int CELLS = 16 / sizeof(T), STEP = MMA_K<T>, STEPS = BK / STEP;
    static_assert(WM % 16 == 0 && WN % 16 == 0, "a warp has whole pairs of 16 x 8: change WM, WN");
    static_assert(BM % WM == 0 && BN % WN == 0, "a block has whole warps: change BM, BN");
    static_assert(BK % (2 * STEP) == 0 && STAGES >= 3, "pairs of steps of 32 bytes, two tiles ahead");
    static_assert(BM * BK % (CELLS * THREADS) == 0 && BK * BN % (CELLS * THREADS) == 0,
                  "each thread copies as many chunks: change BM, BN or BK");
    // Rows of B's tile are read four at a time if not by ldmatrix, and eight columns of each.
    using TileA = SwizzledTile<T, BK>;
    using TileB = SwizzledTile<T, BN, sizeof(T) == 4 ? 2 : 1>;

    constexpr int STAGE = BM * BK + BK * BN;  // a tile of A, then one of B
    DYNAMIC_SHARED(T, tiles);
    Matrix<const T> a{A + blockIdx.z * 1ll * M * K, M, K}, b{B + blockIdx.z * 1ll * K * N, K, N};
    Matrix<T> c{C + blockIdx.z * 1ll * M * N, M, N};
    int i0 = blockIdx.y * BM, j0 = blockIdx.x * BN;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int wi = warp / (BN / WN) * WM, wj = warp % (BN / WN) * WN;

    // ANCHOR: copies
    // What this thread copies first, and from where; its next chunks are so many rows further on.
    constexpr int STEP_A = THREADS * CELLS / BK, STEP_B = THREADS * CELLS / BN;
    int ai = threadIdx.x * CELLS / BK, ak = threadIdx.x * CELLS % BK;
    int bk = threadIdx.x * CELLS / BN, bj = threadIdx.x * CELLS % BN;
    const T *from_a = a.at(i0 + ai, ak), *from_b = b.at(bk, j0 + bj);
    int to_a = TileA::offset(ai, ak), to_b = BM * BK + TileB::offset(bk, bj);
    static_assert(STEP_A % TileA::ROWS == 0 && STEP_B % TileB::ROWS == 0,
                  "rows so far apart are swizzled alike: more threads, or change BK or BN");

    // One of STEPS parts of the tiles that start at k0, into a stage.
    auto copy_part = [&](int part, T* stage, int k0) {
#pragma unroll
        for (int i = part * STEP_A; i < BM; i += STEPS * STEP_A)
            copy_chunk<PACK>(stage + to_a + i * BK, from_a + i * K, i0 + ai + i < M, K - k0 - ak);
#pragma unroll
        for (int k = part * STEP_B; k < BK; k += STEPS * STEP_B)
            copy_chunk<PACK>(stage + to_b + k * BN, from_b + k * N, k0 + bk + k < K, N - j0 - bj);
        if (part + 1 < STEPS) return;
        async_commit();
        from_a += BK;
        from_b += 1ll * BK * N;
    };
    // ANCHOR_END: copies

    // ANCHOR: loads
    // Where in a stage this lane's row of A is at each step, and its row of B for each 16 columns.
    int a_at[STEPS], b_at[WN / 16];
#pragma unroll
    for (int k = 0; k < STEPS; ++k)
        a_at[k] = TileA::offset(wi + lane % 16, k * STEP + lane / 16 * CELLS);
#pragma unroll
    for (int j = 0; j < WN / 16; ++j)
        b_at[j] = BM * BK + TileB::offset(lane % 16, wj + j * 16 + lane / 16 * CELLS);

    unsigned a_k[2][WM / 16][4], b_k[2][WN / 8][2];
    // This warp's rows of A and columns of B at step k of a stage, into one of the two sets.
    auto load_step = [&](int into, const T* stage, int k) {
#pragma unroll
        for (int i = 0; i < WM / 16; ++i) {
            unsigned(&to)[4] = a_k[into][i];
            load_matrices(to, stage + a_at[k] + i * 16 * BK);
            if constexpr (sizeof(T) == 4) {
#pragma unroll
                for (int r = 0; r < 4; ++r) to[r] = to_tf32(to[r]);
            }
        }
#pragma unroll
        for (int j = 0; j < WN / 8; j += 2) {
            unsigned to[4];
            if constexpr (sizeof(T) == 4) {
                TileB b{const_cast<T*>(stage) + BM * BK};
#pragma unroll
                for (int r = 0; r < 4; ++r)
                    to[r] = to_tf32(__float_as_uint(
                        *b.at(k * STEP + t + r % 2 * 4, wj + (j + r / 2) * 8 + g)));
            } else {
                load_matrices_transposed(to, stage + b_at[j / 2] + k * STEP * BN);
            }
#pragma unroll
            for (int r = 0; r < 4; ++r) b_k[into][j + r / 2][r % 2] = to[r];
        }
    };
    // ANCHOR_END: loads

    // ANCHOR: pipeline
    float sum[WM / 16][WN / 8][4] = {};
    for (int s = 0; s + 1 < STAGES; ++s)
#pragma unroll
        for (int part = 0; part < STEPS; ++part) copy_part(part, tiles + s * STAGE, s * BK);
    async_wait<STAGES - 2>();
    __syncthreads();  // everybody's copies into the first stage have landed
    T *reading = tiles, *copying = tiles + (STAGES - 1) * STAGE;
    auto next = [&](T* stage) { return stage == tiles + (STAGES - 1) * STAGE ? tiles : stage + STAGE; };
    load_step(0, reading, 0);
    for (int k0 = 0; k0 < K; k0 += BK) {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            if (k + 1 == STEPS) {
                async_wait<STAGES - 3>();
                __syncthreads();  // the next stage has landed, and nobody reads this one any more
                reading = next(reading);
            }
            load_step((k + 1) % 2, reading, (k + 1) % STEPS);
            copy_part(k, copying, k0 + (STAGES - 1) * BK);
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
#pragma unroll
                for (int j = 0; j < WN / 8; ++j)
                    multiply_add<T>(sum[i][j], a_k[k % 2][i], b_k[k % 2][j][0], b_k[k % 2][j][1]);
        }
        copying = next(copying);
    }
    // ANCHOR_END: pipeline
    // ANCHOR: stores
#pragma unroll
    for (int i = 0; i < 2 * (WM / 16); ++i)
#pragma unroll
        for (int j = 0; j < WN / 8; j += 2) {
            float four[4];
            exchange(four, &sum[i / 2][j][i % 2 * 2], &sum[i / 2][j + 1][i % 2 * 2]);
            c.template store<PACK != 1>(four, i0 + wi + i * 8 + g,
                                        j0 + wj + (j + t % 2) * 8 + t / 2 * 4);
        }
    // ANCHOR_END: stores
}
