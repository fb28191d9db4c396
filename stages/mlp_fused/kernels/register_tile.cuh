// A tile of a product in f32, C = A B, its sums in registers: a block has BM x BN of them, a thread TM x
// TN. Both operands go, BK deep, through shared memory, where k is the row: the next ones are on their
// way in registers while this one is multiplied with, so that what comes from device memory may lie
// along k or across it, be gathered, or end anywhere. Two stages, and one barrier for each BK of k.
#pragma once
#include "lab/along.cuh"
#include "lab/tile.cuh"

namespace lab {

// A tile of each operand. Rows are 4 banks apart, for what is stored across them.
template <int BM, int BN, int BK> struct RegisterStage {
    float a[BK][BM + 4], b[BK][BN + 4];
};

template <int BM_, int BN_, int BK, int TM_, Along A_LIES, Along B_LIES, int PACK, int TN = 4>
struct RegisterTile {
    static constexpr int BM = BM_, BN = BN_, TM = TM_, FOURS = TN / 4, LANES = BN / TN;
    static constexpr int THREADS = BM / TM * LANES;
    static_assert(TM % 4 == 0 && TN % 4 == 0 && BM % TM == 0 && BN % TN == 0,
                  "a thread has fours of both");
    static_assert(BM * BK % (THREADS * PACK) == 0 && BN * BK % (THREADS * PACK) == 0,
                  "each thread loads equally many packs: change BM, BN or BK");
    using Stage = RegisterStage<BM, BN, BK>;
    using Stages = Stage[2];
    using Loaded = const Stage&;  // what `each` of run() sees
    float sum[TM][FOURS][4] = {};

    // Two neighbouring lanes lie one below the other: loads of 16 bytes are served half a warp at a time
    // where neighbours read the same.
    static __device__ __forceinline__ int row() {
        return (threadIdx.x / (2 * LANES) * 2 + threadIdx.x % 2) * TM;
    }
    static __device__ __forceinline__ int column(int four) {
        return (threadIdx.x / 2 % LANES + four * LANES) * 4;
    }

    // Over the threads of a row, each of which gets the result.
    template <class Op> static __device__ __forceinline__ float reduce_row(float v, Op op) {
        static_assert(LANES <= 16, "a warp has whole rows of threads");
#pragma unroll
        for (int d = LANES; d > 1; d /= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, d));
        return v;
    }

    // This thread's share of ROWS x BK elements: at(row, k) is where a pack is, or null outside.
    template <int ROWS, Along LIES> struct Share {
        static constexpr int PACKS = ROWS * BK / (THREADS * PACK);
        // Along k a warp loads 32 bytes of each row, a sector. What it then stores across touches every
        // bank once.
        static constexpr int OF_ROW = LIES == ALONG_K ? 8 / PACK : ROWS / PACK;
        static constexpr int OUTER = LIES == ALONG_K ? ROWS : BK;
        float v[PACKS][PACK];

        static __device__ __forceinline__ int outer(int n) {
            return (n * THREADS + int(threadIdx.x)) / OF_ROW % OUTER;
        }
        static __device__ __forceinline__ int inner(int n) {
            int pack = n * THREADS + int(threadIdx.x);
            return (pack / (OF_ROW * OUTER) * OF_ROW + pack % OF_ROW) * PACK;
        }
        template <class At> __device__ __forceinline__ void load(int k0, At at) {
#pragma unroll
            for (int n = 0; n < PACKS; ++n) {
                const float* from = LIES == ALONG_K ? at(outer(n), k0 + inner(n))
                                                    : at(inner(n), k0 + outer(n));
                if constexpr (PACK == 1) {
                    v[n][0] = from ? *from : 0.0f;
                } else {
                    Pack<float> four{};
                    if (from) four = load_pack(from);
#pragma unroll
                    for (int i = 0; i < PACK; ++i) v[n][i] = four.v[i];
                }
            }
        }
        template <int COLUMNS> __device__ __forceinline__ void store(float (*to)[COLUMNS]) const {
#pragma unroll
            for (int n = 0; n < PACKS; ++n) {
                if constexpr (LIES == ACROSS_K) {
                    store_cells(&to[outer(n)][inner(n)], v[n]);
                } else {
#pragma unroll
                    for (int i = 0; i < PACK; ++i) to[inner(n) + i][outer(n)] = v[n][i];
                }
            }
        }
    };

    // Adds the elements of all k of a stage's A, of row m.
    static __device__ __forceinline__ void add_column(float& sum, const Stage& stage, int m) {
        for (auto& row : stage.a) sum += row[m];
    }

    // ANCHOR: multiply
    // While one k is multiplied, the operands of the next are on their way to registers.
    __device__ __forceinline__ void multiply(const Stage& stage) {
        float a_k[2][TM], b_k[2][TN];
        auto load = [&](int k) {
            load_fours(a_k[k % 2], &stage.a[k][row()], 4);
            load_fours(b_k[k % 2], &stage.b[k][column(0)], 4 * LANES);
        };
        load(0);
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k + 1 < BK) load(k + 1);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int n = 0; n < TN; ++n) {
                    int j = i % 2 ? TN - 1 - n : n;  // back and forth: neighbours share an operand
                    sum[i][j / 4][j % 4] += a_k[k % 2][i] * b_k[k % 2][j];
                }
        }
    }
    // ANCHOR_END: multiply

    // Adds the products of k from `first` to before `end`. a(m, k) and b(n, k) are null from `end` on, at
    // the latest. each(stage) sees every pair of tiles.
    template <class A, class B, class Each>
    __device__ __forceinline__ void run(Stage (&stage)[2], int first, int end, A a, B b, Each each) {
        Share<BM, A_LIES> of_a;
        Share<BN, B_LIES> of_b;
        of_a.load(first, a), of_b.load(first, b);
        of_a.store(stage[0].a), of_b.store(stage[0].b);
        __syncthreads();  // the first tiles are there
        int now = 0;
        for (int k = first; k < end; k += BK, now ^= 1) {
            bool more = k + BK < end;
            if (more) of_a.load(k + BK, a), of_b.load(k + BK, b);
            multiply(stage[now]);
            each(stage[now]);
            // Nobody reads the other stage since the last barrier.
            if (more) of_a.store(stage[now ^ 1].a), of_b.store(stage[now ^ 1].b);
            __syncthreads();  // the next tiles are there, and these are read
        }
    }
    template <class A, class B>
    __device__ __forceinline__ void run(Stage (&stage)[2], int first, int end, A a, B b) {
        run(stage, first, end, a, b, [](const Stage&) {});
    }

    // f(m, sums) for each of this thread's rows, with its sums in fours of neighbours, from column(four) on.
    template <class F> __device__ __forceinline__ void for_each_row(F f) const {
#pragma unroll
        for (int i = 0; i < TM; ++i) f(row() + i, sum[i]);
    }
    // f(m, n, sums) for each four.
    template <class F> __device__ __forceinline__ void for_each_four(F f) const {
        for_each_row([&](int m, const float(&sums)[FOURS][4]) {
#pragma unroll
            for (int j = 0; j < FOURS; ++j) f(m, column(j), sums[j]);
        });
    }
};

}  // namespace lab
