// O = Q (K^T V) / √DHQK by wgmma, in one launch.
//
//   P_b,ij   = Σ_{r of block b} K_ri V_rj         f32
//   C_ij     = power_j Σ_b P_b,ij                 T; power_j: of two, so that the column's largest is 2^14 to 2^15
//   factor_j = scale / power_j                    scale = 1 / √DHQK
//   O_rj     = factor_j Σ_i Q_ri C_ij
//
// Work split: the blocks of a cluster share a head (and DHV columns of V and O), each has a part of its rows. A block
// adds up P over its rows of K and V. Then each block adds up all P for some of the columns, in the order of the blocks,
// rounds, and writes these columns of C to all blocks, through distributed shared memory. Then each multiplies its rows
// of Q, which have been on their way since the first places were free.
//
// Q, K: heads x S x dhqk, V, O: heads x S x dhhv, row-major. A grid of heads blocks x ceil(dhhv / DHV), in clusters
// along x of at most 32 blocks, and of at most ceil(S / 64).
#include "columns.cuh"
#include "places.cuh"

using namespace lab;
namespace cg = cooperative_groups;

// A block's P, and the C that all blocks of a cluster make of theirs.
template <class T, int DQK, int DHV> struct State {
    static constexpr int ROW = DHV + 4;  // rows lie four banks apart: 16 bytes of each of eight rows meet no bank twice
    static constexpr int BYTES = DQK * DHV * sizeof(T) + (DQK * ROW + DHV) * 4;
    T* state;       // swizzled, in panels of 64 columns
    float *parts, *factor;

    __device__ __forceinline__ explicit State(T* memory)
        : state(memory), parts(reinterpret_cast<float*>(memory + DQK * DHV)), factor(parts + DQK * ROW) {}

    // A warpgroup's 64 rows of P.
    __device__ __forceinline__ void store(const float (&sum)[DHV / 2]) const {
        int lane = threadIdx.x % 32;
        float* own = parts + (threadIdx.x / 32 * 16 + lane / 4) * ROW + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < DHV / 8; ++n) {
            *reinterpret_cast<float2*>(own + n * 8) = make_float2(sum[4 * n], sum[4 * n + 1]);
            *reinterpret_cast<float2*>(own + n * 8 + 8 * ROW) = make_float2(sum[4 * n + 2], sum[4 * n + 3]);
        }
    }

    // ANCHOR: exchange
    // Columns j to j + 3 of C for all blocks, from what all have stored; a warp, whose lanes have rows.
    __device__ __forceinline__ void hand_out(cg::cluster_group cluster, int j, int dhqk, float scale) const {
        int blocks = cluster.num_blocks(), lane = threadIdx.x % 32;
        Columns<T, DQK> columns;
#pragma unroll 4  // so many blocks' parts are on their way at once
        for (int b = 0; b < blocks; ++b) columns.add(cluster.map_shared_rank(parts, b) + lane * ROW + j, ROW);
        columns.find_powers(dhqk);
        for (int b = 0; b < blocks; ++b) {
            columns.store(cluster.map_shared_rank(state, b), j);
            if (lane == b) columns.store_factors(cluster.map_shared_rank(factor, b), j, scale);
        }
    }
    // ANCHOR_END: exchange
};

template <class T, int DQK, int DHV, int PLACES>
constexpr int qkv_cluster_shared = PLACES * Place<T, DQK, DHV>::BYTES + State<T, DQK, DHV>::BYTES;

template <class T, int DQK, int DHV, int PLACES>
__global__ void __launch_bounds__(Place<T, DQK, DHV>::THREADS)
    qkv_cluster(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O, int S, int dhqk, float scale) {
    using Place = Place<T, DQK, DHV>;
    DYNAMIC_TILES(T, places);
    __shared__ Ring<PLACES> ring;
    State<T, DQK, DHV> state(places + PLACES * Place::CELLS);
    auto cluster = cg::this_cluster();
    int rank = cluster.block_rank(), blocks = cluster.num_blocks(), head = blockIdx.x / blocks, j0 = blockIdx.y * DHV;
    int all = (S + ROWS - 1) / ROWS, first = all * 1ll * rank / blocks, tiles = all * (rank + 1ll) / blocks - first;

    // ANCHOR: fill
    // This block's tiles of K and V, then those of Q.
    auto fill = [&](int n, int at) {
        Place place(places, at);
        if (n < tiles)
            place.load(K, V, (first + n) * ROWS, j0, head, &ring.full[at]);
        else if (n < 2 * tiles)
            place.load(Q, (first + n - tiles) * ROWS, head, &ring.full[at]);
    };
    Stream<PLACES, decltype(fill)> stream(ring, Place::GROUPS, fill);
    // ANCHOR_END: fill

    // ANCHOR: phases
    float sum[DHV / 2];
    sum_keys_values<T, DQK, DHV>(sum, stream, places, tiles);
    state.store(sum);
    cluster.sync();  // the parts of all blocks are there
    for (int n = rank + threadIdx.x / 32 * blocks; n < DHV / 4; n += Place::THREADS / 32 * blocks)
        state.hand_out(cluster, n * 4, dhqk, scale);
    cluster.sync();                // all columns of C are here, and nobody reads this block's part any more
    fence_proxy_async_shared();  // wgmma reads what threads of all blocks have written by plain stores

    float factor[16];
    load_factors(factor, state.factor + threadIdx.x / 128 * 64, 64);
    multiply_rows<T, DQK, DHV>(O, stream, places, state.state, factor, tiles, first * ROWS, j0, head);
    // ANCHOR_END: phases
}
