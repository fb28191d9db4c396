// A tile of a product on the tensor cores whose operands are in f32 in device memory: TensorTile, but that the
// operands go through registers, where they are rounded to bf16. So an operand may be gathered, lie along k or
// across it, and end anywhere, as with RegisterTile. The next tiles are on their way while these are multiplied.
#pragma once
#include "lab/ptx/named_barrier.cuh"
#include "tensor_tile.cuh"

namespace lab {

// Sums as tensor cores leave them: a lane has two neighbours of each 8 columns. Lanes 2 i and 2 i + 1 exchange halves of
// 16 columns, and each has four neighbours, from column four_at() on: 16 bytes.
__device__ __forceinline__ void join_fours(float (&four)[4], const float* first, const float* second) {
    bool odd = threadIdx.x & 1;
    float left = __shfl_xor_sync(0xffffffffu, odd ? first[0] : second[0], 1);
    float right = __shfl_xor_sync(0xffffffffu, odd ? first[1] : second[1], 1);
    four[0] = odd ? left : first[0], four[1] = odd ? right : first[1];
    four[2] = odd ? second[0] : left, four[3] = odd ? second[1] : right;
}
__device__ __forceinline__ int four_at() { return threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4; }

template <int BM_, int BN_, int WM, int WN, Along A_LIES, Along B_LIES, int PACK>
struct RoundedTile : TensorTile<BM_, BN_, WM, WN, A_LIES, B_LIES> {
    using Base = TensorTile<BM_, BN_, WM, WN, A_LIES, B_LIES>;
    static constexpr int BM = BM_, BN = BN_, BK = Base::BK, THREADS = Base::THREADS;
    static constexpr int STAGE = Base::STAGE, BYTES = 2 * STAGE * sizeof(Half);

    // This thread's share of SIDE x BK elements: at(row, k) is where a pack is, or null outside. Packs of four are
    // on their way in registers; elements one by one go straight to the tile.
    template <int SIDE, Along LIES> struct Share {
        static constexpr int WIDTH = LIES == ALONG_K ? BK : SIDE, OF_ROW = WIDTH / PACK;
        static constexpr int PACKS = SIDE * BK / (THREADS * PACK);
        static_assert(SIDE * BK % (THREADS * PACK) == 0, "each thread loads equally many packs");
        Pack<float> own[PACK == 4 ? PACKS : 1];

        static __device__ __forceinline__ int row(int n) { return (n * THREADS + int(threadIdx.x)) / OF_ROW; }
        static __device__ __forceinline__ int column(int n) {
            return (n * THREADS + int(threadIdx.x)) % OF_ROW * PACK;
        }
        template <class At> static __device__ __forceinline__ const float* find(int n, int k0, At at) {
            return LIES == ALONG_K ? at(row(n), k0 + column(n)) : at(column(n), k0 + row(n));
        }
        template <class At> __device__ __forceinline__ void load(int k0, At at) {
            if constexpr (PACK == 4) {
#pragma unroll
                for (int n = 0; n < PACKS; ++n) {
                    const float* from = find(n, k0, at);
                    own[n] = from ? load_pack(from) : Pack<float>{};
                }
            }
        }
        template <class At> __device__ __forceinline__ void store(Half* to, int k0, At at) const {
            SwizzledTile<Half, WIDTH> tile{to};
            if constexpr (PACK == 4) {
#pragma unroll
                for (int n = 0; n < PACKS; ++n)
                    Matrix<Half>{tile.at(row(n), column(n)), 1, 4}.template store<true>(own[n].v, 0, 0);
            } else {
#pragma unroll 4
                for (int n = 0; n < PACKS; ++n) {
                    const float* from = find(n, k0, at);
                    *tile.at(row(n), column(n)) = from_math<Half>(from ? *from : 0.0f);
                }
            }
        }
    };

    // Adds the products of k from `first` to before `end`. a(m, k) and b(n, k) are null from `end` on, at the latest.
    // each(tile of A) sees every one of them. The first THREADS threads of a block come here, at its named barrier 1.
    template <class A, class B, class Each>
    __device__ __forceinline__ void run(Half* stages, int first, int end, A a, B b, Each each) {
        Share<BM, A_LIES> of_a;
        Share<BN, B_LIES> of_b;
        of_a.load(first, a), of_b.load(first, b);
        of_a.store(stages, first, a), of_b.store(stages + BM * BK, first, b);
        named_barrier_sync(1, THREADS);  // the first tiles are there
        int now = 0;
        for (int k = first; k < end; k += BK, now ^= 1) {
            bool more = k + BK < end;
            Half *stage = stages + now * STAGE, *other = stages + (now ^ 1) * STAGE;
            if (more) of_a.load(k + BK, a), of_b.load(k + BK, b);
            this->multiply(stage);
            each(stage);
            // Nobody reads the other stage since the last barrier.
            if (more) of_a.store(other, k + BK, a), of_b.store(other + BM * BK, k + BK, b);
            named_barrier_sync(1, THREADS);  // the next tiles are there, and these are read
        }
    }
    template <class A, class B>
    __device__ __forceinline__ void run(Half* stages, int first, int end, A a, B b) {
        run(stages, first, end, a, b, [](const Half*) {});
    }

    // f(m, n, four) for each four neighbours that this lane has after an exchange.
    template <class F> __device__ __forceinline__ void for_each_four(F f) const {
        int row = this->wi() + threadIdx.x % 32 / 4, column = this->wj() + four_at();
#pragma unroll
        for (int i = 0; i < WM / 8; ++i)
#pragma unroll
            for (int j = 0; j < WN / 16; ++j) {
                float four[4];
                join_fours(four, &this->sum[i / 2][2 * j][i % 2 * 2], &this->sum[i / 2][2 * j + 1][i % 2 * 2]);
                f(row + i * 8, column + j * 16, four);
            }
    }
};

}  // namespace lab
