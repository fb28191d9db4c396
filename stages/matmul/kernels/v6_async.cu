// C = A B, warp tiles as before, while the next tiles are on their way:  C_ij = Σ_k0 Σ_k As_ki Bs_kj
//
// Work split: a block BM x BN elements of C, a warp WM x WN, a thread TM x TN; blockIdx.z is the
// matrix of the batch. Shared memory holds STAGES pairs of tiles: one is computed with, the others
// are filled by cp.async, which needs no register for what is on its way. In the same manner a
// thread holds two steps' elements of A and B: one is computed with, the other is loaded.
//
// cp.async moves what it copies unchanged, and 4 bytes at least. So A is transposed one float at a
// time, and this version is for f32 alone. B comes in packs of PACK floats: 4 if N is a multiple of
// 4, else 1.
//
// A: M x K, B: K x N, C: M x N, row-major.
#include "lab/ptx/cp_async.cuh"
#include "lab/tile.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, int BLOCKS,
          int PACK>
__global__ void __launch_bounds__(BM* BN / (TM * TN), BLOCKS)
    matmul_async(const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ C, int M, int N,
                 int K) {
    constexpr int THREADS = BM * BN / (TM * TN), LANES_J = WN / TN;
    static_assert(sizeof(T) == 4, "cp.async moves 4 bytes at least: halves cannot be transposed");
    static_assert(TM % 4 == 0 && TN % 4 == 0, "rows and columns come in fours: change TM or TN");
    static_assert(WM * WN == 32 * TM * TN, "a warp has 32 lanes: WM WN must be 32 TM TN");
    static_assert(BM % WM == 0 && BN % WN == 0, "BM and BN must be multiples of WM and WN");
    static_assert(THREADS % BK == 0 && BM % (THREADS / BK) == 0,
                  "all threads copy whole rows of BK floats of A: change BK, or TM or TN");
    static_assert(THREADS * PACK % BN == 0 && BK % (THREADS * PACK / BN) == 0,
                  "all threads copy whole rows of BN floats of B: change BK, or TM or TN");
    static_assert(BK % 2 == 0, "two steps take turns: BK must be even");
    static_assert(STAGES >= 2, "one pair of tiles to compute with, one to fill: raise STAGES");
    constexpr int PAD = 4;  // the lanes that transpose a tile touch every bank once
    __shared__ __align__(16) T As[STAGES][BK][BM + PAD], Bs[STAGES][BK][BN];
    Matrix<const T> a{A + blockIdx.z * 1ll * M * K, M, K}, b{B + blockIdx.z * 1ll * K * N, K, N};
    Matrix<T> c{C + blockIdx.z * 1ll * M * N, M, N};
    int i0 = blockIdx.y * BM, j0 = blockIdx.x * BN;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int ti = warp / (BN / WN) * WM + (lane / (2 * LANES_J) * 2 + lane % 2) * 4;
    int tj = warp % (BN / WN) * WN + lane / 2 % LANES_J * 4;
    constexpr int STEP_I = WM / TM * 4, STEP_J = WN / TN * 4;  // from four to four

    // ANCHOR: copies
    // What this thread copies first, and from where; its next copies are STEP rows further on each.
    int ai = threadIdx.x / BK, ak = threadIdx.x % BK;
    int bk = threadIdx.x * PACK / BN, bj = threadIdx.x * PACK % BN;
    const T *from_a = a.at(i0 + ai, ak), *from_b = b.at(bk, j0 + bj);
    constexpr int STEP_A = THREADS / BK, STEP_B = THREADS * PACK / BN;

    // The next tiles, which start at k0, into stage s, as one group. Past the end of K they are 0.
    auto copy_tiles = [&](int s, int k0) {
#pragma unroll
        for (int i = 0; i < BM; i += STEP_A)
            async_copy_or_zero<4>(&As[s][ak][ai + i], from_a + i * K,
                                  a.inside(i0 + ai + i, k0 + ak));
#pragma unroll
        for (int k = 0; k < BK; k += STEP_B)
            async_copy_or_zero<4 * PACK>(&Bs[s][bk + k][bj], from_b + k * N,
                                         b.inside(k0 + bk + k, j0 + bj));
        async_commit();
        from_a += BK;
        from_b += 1ll * BK * N;
    };
    // ANCHOR_END: copies

    // ANCHOR: pipeline
    float sum[TM][TN] = {}, a_k[2][TM], b_k[2][TN];
    for (int s = 0; s + 1 < STAGES; ++s) copy_tiles(s, s * BK);
    async_wait<STAGES - 2>();
    __syncthreads();  // everybody's copies into the first stage have landed
    load_fours(a_k[0], &As[0][0][ti], STEP_I);
    load_fours(b_k[0], &Bs[0][0][tj], STEP_J);
    int reading = 0;
    for (int k0 = 0; k0 < K; k0 += BK) {
        copy_tiles(reading == 0 ? STAGES - 1 : reading - 1, k0 + (STAGES - 1) * BK);
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k + 1 == BK) {
                async_wait<STAGES - 2>();
                __syncthreads();  // the next stage has landed, and nobody reads this one any more
                reading = reading + 1 == STAGES ? 0 : reading + 1;
            }
            load_fours(a_k[(k + 1) % 2], &As[reading][(k + 1) % BK][ti], STEP_I);
            load_fours(b_k[(k + 1) % 2], &Bs[reading][(k + 1) % BK][tj], STEP_J);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int n = 0; n < TN; ++n) {
                    int j = i % 2 ? TN - 1 - n : n;  // back and forth: neighbours share an operand
                    sum[i][j] += a_k[k % 2][i] * b_k[k % 2][j];
                }
        }
    }
    // ANCHOR_END: pipeline
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; j += 4)
            c.template store<PACK != 1>(&sum[i][j], i0 + ti + i / 4 * STEP_I + i % 4,
                                        j0 + tj + j / 4 * STEP_J);
}
