// Sums of a tile whose products the blocks of a cluster share, each some of k: every block leaves its own in its shared
// memory, and adds up all blocks' sums of some rows.
#pragma once
#include <cooperative_groups.h>

#include "descent.cuh"

namespace lab {

// BM rows of BN, and one sum more of each row, in shared memory: rows begin 8 banks apart, so that the lanes of a warp store
// to all banks.
template <int BM, int BN> struct ClusterSums {
    using Cluster = cooperative_groups::cluster_group;
    static constexpr int ROW = BN + 8, BYTES = BM * ROW * 4;
    float* x;

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

// A tile of parameters moves, or their gradients are kept, from (m0, n0) on: each block has some of its rows. Of the
// first tile of a row of them `bias` as well, by the sums behind.
template <Use USE, int PACK, int BM, int BN>
__device__ __forceinline__ void apply(Matrix<float> p, float* bias, int m0, int n0, const ClusterSums<BM, BN>& sums, float lr) {
    auto cluster = cooperative_groups::this_cluster();
    int parts = cluster.num_blocks(), rows = (BM + parts - 1) / parts, first = cluster.block_rank() * rows;
    cluster.sync();  // the sums of all blocks are there
    for (int n = threadIdx.x; n < rows * (BN / 4); n += blockDim.x) {
        int r = first + n / (BN / 4), c = n % (BN / 4) * 4;
        if (r >= BM) break;
        float now[4], gradient[4] = {};
        before<USE, PACK>(now, p, m0 + r, n0 + c);
        sums.load(gradient, cluster, r, c);
        after<USE, PACK>(now, p, m0 + r, n0 + c, gradient, lr);
        if (bias && c == 0 && m0 + r < p.rows) apply<USE>(bias[m0 + r], sums.load_one_more(cluster, r), lr);
    }
    cluster.sync();  // nobody ends while others may read his sums
}

}  // namespace lab
