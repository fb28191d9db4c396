// A tile of a product on the tensor cores whose operands are in f32 in device memory: TensorTile, but that the
// operands go through registers, where they are rounded to bf16. So an operand may be gathered, lie along k or
// across it, and end anywhere, as with RegisterTile. The next tiles are on their way while these are multiplied.
#pragma once
#include "lab/halves.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "cluster_descent.cuh"
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

// Four neighbours, rounded two by two: alone each conversion takes as long as eight additions.
__device__ __forceinline__ uint2 store_halves(Half* to, const float (&four)[4]) {
    uint2 raw{two_halves<Half>(four[0], four[1]), two_halves<Half>(four[2], four[3])};
    *reinterpret_cast<uint2*>(to) = raw;
    return raw;
}

// PARTS = 2: of what is lost by rounding there is a second tile. Of the products of both only that of two such rests is
// left out, and the sums are nearly those of f32, off by 2^-17.
template <int BM_, int BN_, int BK_, int WM, int WN, Along A_LIES, Along B_LIES, int PACK, int PARTS = 1>
struct RoundedTile : TensorTile<BM_, BN_, WM, WN, A_LIES, B_LIES, BK_> {
    using Base = TensorTile<BM_, BN_, WM, WN, A_LIES, B_LIES, BK_>;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, THREADS = Base::THREADS, STAGE = PARTS * Base::STAGE;
    using Stages = Half[2 * STAGE];
    using Loaded = const Half*;  // what `each` of run() sees: the tile of A

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
#pragma unroll PACK == 4 ? PACKS : 4
            for (int n = 0; n < PACKS; ++n) {
                float v[PACK];
                if constexpr (PACK == 4) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) v[i] = own[n].v[i];
                } else {
                    const float* from = find(n, k0, at);
                    v[0] = from ? *from : 0.0f;
                }
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    Half* at = SwizzledTile<Half, WIDTH>{to + part * SIDE * BK}.at(row(n), column(n));
                    if constexpr (PACK == 4) {
                        uint2 raw = store_halves(at, v);
                        float2 left = floats_of<Half>(raw.x), right = floats_of<Half>(raw.y);
                        v[0] -= left.x, v[1] -= left.y, v[2] -= right.x, v[3] -= right.y;
                    } else {
                        *at = from_math<Half>(v[0]);
                        v[0] -= to_math(from_math<Half>(v[0]));
                    }
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
        constexpr int OF_B = PARTS * BM * BK;
        of_a.store(stages, first, a), of_b.store(stages + OF_B, first, b);
        named_barrier_sync(1, THREADS);  // the first tiles are there
        int now = 0;
        for (int k = first; k < end; k += BK, now ^= 1) {
            bool more = k + BK < end;
            Half *stage = stages + now * STAGE, *other = stages + (now ^ 1) * STAGE;
            if (more) of_a.load(k + BK, a), of_b.load(k + BK, b);
            this->multiply(stage, stage + OF_B);
            if constexpr (PARTS == 2) {
                this->multiply(stage, stage + OF_B + BN * BK);
                this->multiply(stage + BM * BK, stage + OF_B);
            }
            each(stage);
            // Nobody reads the other stage since the last barrier.
            if (more) of_a.store(other, k + BK, a), of_b.store(other + OF_B, k + BK, b);
            named_barrier_sync(1, THREADS);  // the next tiles are there, and these are read
        }
    }
    template <class A, class B>
    __device__ __forceinline__ void run(Half* stages, int first, int end, A a, B b) {
        run(stages, first, end, a, b, [](const Half*) {});
    }

    // Adds the elements of all k of a tile of A that lies across k, of row m.
    static __device__ __forceinline__ void add_column(float& sum, const Half* a, int m) {
        static_assert(A_LIES == ACROSS_K, "a tile that lies across k");
#pragma unroll 8
        for (int k = 0; k < BK; ++k) sum += to_math(*SwizzledTile<Half, BM>{const_cast<Half*>(a)}.at(k, m));
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

    // Leaves the sums in `stages`, which run() has read, and of each row a sum of its thread's.
    __device__ __forceinline__ ClusterSums<BM, BN> share(Half* stages, float of_row) const {
        ClusterSums<BM, BN> sums{reinterpret_cast<float*>(stages)};
        for_each_four([&](int m, int n, const float(&four)[4]) {
            *reinterpret_cast<float4*>(sums.x + m * sums.ROW + n) = make_float4(four[0], four[1], four[2], four[3]);
        });
        if (threadIdx.x < BM) sums.one_more(threadIdx.x) = of_row;
        return sums;
    }
};

// A tile of parameters moves, or their gradients are kept.
template <Use USE, int PACK, int BM, int BN, int BK, int WM, int WN, Along A_LIES, Along B_LIES,
          int PARTS>
__device__ __forceinline__ void apply(Matrix<float> p, int m0, int n0,
                                      const RoundedTile<BM, BN, BK, WM, WN, A_LIES, B_LIES, PACK, PARTS>& tile, float lr) {
    tile.for_each_four([&](int m, int n, const float(&g)[4]) {
        float now[4];
        before<USE, PACK>(now, p, m0 + m, n0 + n);
        after<USE, PACK>(now, p, m0 + m, n0 + n, g, lr);
    });
}

}  // namespace lab
