// Sums of a tile whose products the blocks of a cluster share, each some of k: every block leaves its own in its shared
// memory, and adds up all blocks' sums of some rows.
#pragma once
#include <cooperative_groups.h>

namespace lab {

// BM rows of BN, and one sum more of each row, in shared memory: rows begin 8 banks apart where BN is a multiple of
// 32, so that the lanes of a warp store to all banks.
template <int BM, int BN> struct ClusterSums {
    using Cluster = cooperative_groups::cluster_group;
    static constexpr int ROW = BN + 8, BYTES = BM * ROW * 4;
    float* x;

    // Those that this thread of the warpgroups that multiply has, as wgmma leaves them.
    __device__ __forceinline__ void store(const float (&sum)[BN / 2]) const {
        int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < BN / 8; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                *reinterpret_cast<float2*>(x + (row + 8 * h) * ROW + 8 * j + column) =
                    make_float2(sum[4 * j + 2 * h], sum[4 * j + 2 * h + 1]);
    }
    // Four neighbours, those of all blocks of the cluster added up, in their order.
    __device__ __forceinline__ void load(float (&four)[4], Cluster cluster, int r, int c) const {
        for (int block = 0; block < int(cluster.num_blocks()); ++block) {
            float4 part = *reinterpret_cast<float4*>(cluster.map_shared_rank(x, block) + r * ROW + c);
            four[0] += part.x, four[1] += part.y, four[2] += part.z, four[3] += part.w;
        }
    }
    // The sum behind them.
    __device__ __forceinline__ float& one_more(int r) const { return x[r * ROW + BN]; }
    __device__ __forceinline__ float load_one_more(Cluster cluster, int r) const {
        float sum = 0;
        for (int block = 0; block < int(cluster.num_blocks()); ++block)
            sum += *cluster.map_shared_rank(&one_more(r), block);
        return sum;
    }
};

}  // namespace lab
