// Parameters that move by the sums of a cluster.
#pragma once
#include "descent.cuh"
#include "lab/cluster_sums.cuh"

namespace lab {

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
