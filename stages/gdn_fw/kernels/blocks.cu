// As substitute.cu, on tensor cores, with the inverse by blocks of 16:
//
//   A = tril(diag(beta) (K Kᵀ ⊙ E), -1)      inverse = X = (I + A)⁻¹      pairs = s tril(Q Kᵀ ⊙ E)
//
//   X_bb = (I + A_bb)⁻¹ by forward substitution          of each block b on the diagonal
//   X_bc = -X_bb Σ_{c <= m < b} A_bm X_mc                below it, from the diagonal downwards
//
// Merges are products of TF32, of each number as a sum of two: 22 bits. TF32 alone has 9e-4 of the inverse wrong where keys
// are alike, bf16 6e-3; and all powers of A at once have nothing right.
//
// Work split: a block has a chunk of a head. Of the products a warp has 16 rows; of the inverse a warp has a block of the
// diagonal, of which a lane has a column, and then the blocks below it.
//
// q, k: heads / group x S x dhqk, g, beta: heads x S; inverse, pairs: heads x chunks x CHUNK x CHUNK, decays: heads x chunks. A
// grid of heads chunks blocks. Of packed sequences (lab/vlstm/sequence.cuh) each begins its own chunk; some are no sequence's.
#include "lab/ptx/cvt.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/warp_tiles.cuh"
#include "lab/gdn/decays.cuh"
#include "lab/vlstm/sequence.cuh"

using namespace lab;

constexpr int SIDE = 16, BLOCKS = CHUNK / SIDE, THREADS = 32 * BLOCKS;
constexpr int ROW = CHUNK + 4;  // rows of A and X begin four banks apart: loads of a left operand do not meet

template <class T> struct Shared {
    T q[1][CHUNK * PANEL], k[1][CHUNK * PANEL];
    float a[CHUNK * ROW], x[CHUNK * ROW];
    float2 gamma[CHUNK];
    Decays decays;
};

template <class T> constexpr int gdn_fw_blocks_shared = sizeof(Shared<T>);

// sum += of a warp's 16 rows with all rows of `right` up to theirs.
template <class T>
__device__ __forceinline__ void add_products(float (&sum)[CHUNK / 2], T* left, T* right) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < PANEL; c += 16) {
        unsigned a[4], b[4];
        load_matrices(a, cell(left, warp * 16 + lane % 16, c + lane / 16 * 8));
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16) {
            if (j > warp * 16) continue;
            load_matrices(b, cell(right, j + lane / 16 * 8 + lane % 8, c + lane / 8 % 2 * 8));
            multiply_add_16<T>(sum + j / 2, a, b);
        }
    }
}

// ANCHOR: split
// A number as two of TF32. What cvt leaves in the 13 bits that a TF32 has not is nobody's promise.
struct Split {
    unsigned high, low;
    __device__ __forceinline__ explicit Split(float x) {
        high = to_tf32(__float_as_uint(x)) & 0xffffe000u;
        low = to_tf32(__float_as_uint(x - __uint_as_float(high)));
    }
};

// sum += of two blocks of 16 x 16, whose corners these are. All but low times low.
__device__ __forceinline__ void multiply_blocks(float (&sum)[2][4], const float* left, const float* right) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < SIDE; k += 8) {
        unsigned high[4], low[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            Split of(left[(g + e % 2 * 8) * ROW + k + t + e / 2 * 4]);
            high[e] = of.high, low[e] = of.low;
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            Split first(right[(k + t) * ROW + 8 * n + g]), second(right[(k + t + 4) * ROW + 8 * n + g]);
            multiply_add<float>(sum[n], low, first.high, second.high);
            multiply_add<float>(sum[n], high, first.low, second.low);
            multiply_add<float>(sum[n], high, first.high, second.high);
        }
    }
}
// ANCHOR_END: split

__device__ __forceinline__ float* corner(float* matrix, int row, int column) {
    return matrix + row * SIDE * ROW + column * SIDE;
}

// The sums of a block, times `sign`, to where its corner is.
__device__ __forceinline__ void store_block(float* to, const float (&sum)[2][4], float sign) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r)
            *reinterpret_cast<float2*>(to + (g + 8 * r) * ROW + 8 * n + 2 * t) =
                make_float2(sign * sum[n][2 * r], sign * sum[n][2 * r + 1]);
}

// ANCHOR: diagonal
// A warp's block on the diagonal: lanes 0 to 15 have a column each, and the others the same again.
__device__ __forceinline__ void invert_diagonal(const float* a, float* x) {
    int j = threadIdx.x % SIDE;
    float column[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
        float sum = i == j;
#pragma unroll
        for (int m = 0; m < i; ++m) sum -= a[i * ROW + m] * column[m];
        column[i] = sum;
        if (threadIdx.x % 32 < SIDE) x[i * ROW + j] = sum;
    }
}
// ANCHOR_END: diagonal

// ANCHOR: merge
// A warp's blocks below the diagonal. Of other warps it reads X_bb only.
__device__ __forceinline__ void merge(float* a, float* x, int column) {
    for (int row = column + 1; row < BLOCKS; ++row) {
        float sum[2][4] = {}, product[2][4] = {}, *to = corner(x, row, column);
        for (int m = column; m < row; ++m) multiply_blocks(sum, corner(a, row, m), corner(x, m, column));
        store_block(to, sum, 1);
        __syncwarp();  // the next product reads all of it
        multiply_blocks(product, corner(x, row, row), to);
        __syncwarp();  // it is read: X takes its place
        store_block(to, product, -1);
        __syncwarp();  // the next row's products read it
    }
}
// ANCHOR_END: merge

template <class T>
__global__ void __launch_bounds__(THREADS)
    gdn_fw_blocks(const T* __restrict__ q, const T* __restrict__ k, const float* __restrict__ g,
                  const float* __restrict__ beta, T* __restrict__ inverse, T* __restrict__ pairs,
                  Decays* __restrict__ decays, const int* __restrict__ cu_seqlens, bool packed, int heads, int sequences,
                  int chunks, int S, int dhqk, int group, float scale) {
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<Shared<T>*>(memory);
    int warp = threadIdx.x / 32;
    long long at = blockIdx.x;
    Slot slot(at, CHUNK, chunks, S, packed ? cu_seqlens : nullptr, heads, sequences);
    if (!slot.is_in_sequence(CHUNK)) return;
    const Sequence& own = slot.sequence;
    int first = slot.part * CHUNK;
    long long keys = own.shared_row(group) * dhqk;
    Matrix<const T> Q{q + keys, own.length, dhqk}, K{k + keys, own.length, dhqk};
    g += own.row(), beta += own.row();
    if (warp == 0) scan_gates(shared.gamma, shared.decays, g, beta, first, own.length);

    float qk[CHUNK / 2] = {}, kk[CHUNK / 2] = {};
    for (int c = 0; c < dhqk; c += PANEL) {
        copy_panels<PANEL, CHUNK>(shared.q, Q, first, c);
        copy_panels<PANEL, CHUNK>(shared.k, K, first, c);
        async_commit();
        async_wait<0>();
        __syncthreads();  // the panels of all threads are there; and γ, the first time
        add_products(qk, shared.q[0], shared.k[0]);
        add_products(kk, shared.k[0], shared.k[0]);
        __syncthreads();  // they are read: the next may come
    }
    // ANCHOR: weights
    T* own_pairs = pairs + at * CHUNK * CHUNK;
#pragma unroll
    for (int n = 0; n < CHUNK / 2; n += 2) {
        int i = own_row() + n / 2 % 2 * 8, j = n / 4 * 8 + threadIdx.x % 4 * 2;
        float row_beta = shared.decays.beta[i], a[2], p[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float kept = j + e <= i ? decay(shared.gamma, i, j + e) : 0;
            p[e] = j + e <= i ? scale * qk[n + e] * kept : 0;
            a[e] = j + e < i ? row_beta * kk[n + e] * kept : 0;
        }
        *reinterpret_cast<unsigned*>(own_pairs + i * CHUNK + j) = two_halves<T>(p[0], p[1]);
        *reinterpret_cast<float2*>(shared.a + i * ROW + j) = make_float2(a[0], a[1]);
    }
    // ANCHOR_END: weights
    __syncwarp();  // the rows of a warp's block on the diagonal are its own
    invert_diagonal(corner(shared.a, warp, warp), corner(shared.x, warp, warp));
    __syncthreads();  // a warp reads A of all rows, and the diagonal's blocks of all warps
    merge(shared.a, shared.x, warp);
    __syncthreads();  // all of X is there
    for (int e = 2 * threadIdx.x; e < CHUNK * CHUNK; e += 2 * THREADS) {
        int i = e / CHUNK, j = e % CHUNK;
        float x[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) x[n] = j + n <= i ? shared.x[i * ROW + j + n] : 0;
        *reinterpret_cast<unsigned*>(inverse + at * CHUNK * CHUNK + e) = two_halves<T>(x[0], x[1]);
    }
    if (threadIdx.x < CHUNK) {
        decays[at].read[threadIdx.x] = shared.decays.read[threadIdx.x];
        decays[at].write[threadIdx.x] = shared.decays.write[threadIdx.x];
        decays[at].beta[threadIdx.x] = shared.decays.beta[threadIdx.x];
    }
}
