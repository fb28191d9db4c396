// C = A B, a tile of C a block, WM x WN of it a warp, TM x TN a thread:  C_ij = Σ_k0 Σ_k As_ki Bs_kj
//
// Work split: a block BM x BN elements of C, cut into tiles of WM x WN, one a warp; blockIdx.z is
// the matrix of the batch. A warp of threads that lie in a square asks for fewer different elements
// than one that lies in a strip: 8 x 4 lanes take 8 fours of A and 4 of B, 2 x 16 lanes 2 and 16.
// The lanes lie in pairs, one below the other: neighbouring lanes read the same B element, lanes two
// apart the same A element.
//
// Device memory is read in packs of PACK elements, 16 bytes; K and N must be multiples of it. What
// is not takes PACK = 1. A is stored transposed, so that a thread's four rows lie side by side.
//
// A: M x K, B: K x N, C: M x N, row-major.
#include "lab/tile.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int WM, int WN, int TM, int TN, int PACK>
__global__ void __launch_bounds__(BM* BN / (TM * TN))
    matmul_warps(const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ C, int M, int N,
                 int K) {
    constexpr int THREADS = BM * BN / (TM * TN), LANES_J = WN / TN;
    static_assert(TM % 4 == 0 && TN % 4 == 0, "rows and columns come in fours: change TM or TN");
    static_assert(WM * WN == 32 * TM * TN, "a warp has 32 lanes: WM WN must be 32 TM TN");
    static_assert(WM % TM == 0 && WN % TN == 0, "WM and WN must be multiples of TM and TN");
    static_assert(BM % WM == 0 && BN % WN == 0, "BM and BN must be multiples of WM and WN");
    static_assert(BM * BK % (THREADS * PACK) == 0 && BK * BN % (THREADS * PACK) == 0,
                  "each thread loads equally many packs: raise BK, TM or TN");
    // PAD shifts each k by four banks: the lanes that transpose a tile touch every bank once.
    constexpr int PAD = 4;
    __shared__ __align__(16) float As[BK][BM + PAD], Bs[BK][BN];
    Matrix<const T> a{A + blockIdx.z * 1ll * M * K, M, K}, b{B + blockIdx.z * 1ll * K * N, K, N};
    Matrix<T> c{C + blockIdx.z * 1ll * M * N, M, N};
    int i0 = blockIdx.y * BM, j0 = blockIdx.x * BN;

    // ANCHOR: warp_cells
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int ti = warp / (BN / WN) * WM + (lane / (2 * LANES_J) * 2 + lane % 2) * 4;
    int tj = warp % (BN / WN) * WN + lane / 2 % LANES_J * 4;
    constexpr int STEP_I = WM / TM * 4, STEP_J = WN / TN * 4;  // from four to four
    // ANCHOR_END: warp_cells

    float sum[TM][TN] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
#pragma unroll
        for (int n = 0; n < BM * BK / (THREADS * PACK); ++n) {
            int e = (n * THREADS + threadIdx.x) * PACK;
            float pack[PACK];
            a.template load<PACK>(pack, i0 + e / BK, k0 + e % BK);
#pragma unroll
            for (int p = 0; p < PACK; ++p) As[e % BK + p][e / BK] = pack[p];
        }
#pragma unroll
        for (int n = 0; n < BK * BN / (THREADS * PACK); ++n) {
            int e = (n * THREADS + threadIdx.x) * PACK;
            float pack[PACK];
            b.template load<PACK>(pack, k0 + e / BN, j0 + e % BN);
            store_cells(&Bs[e / BN][e % BN], pack);
        }
        __syncthreads();  // a thread reads what others have stored
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float a_k[TM], b_k[TN];
            load_fours(a_k, &As[k][ti], STEP_I);
            load_fours(b_k, &Bs[k][tj], STEP_J);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] += a_k[i] * b_k[j];
        }
        __syncthreads();  // the tiles are read: the next ones may overwrite them
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; j += 4)
            c.template store<PACK != 1>(&sum[i][j], i0 + ti + i / 4 * STEP_I + i % 4,
                                        j0 + tj + j / 4 * STEP_J);
}
