// O = Q (K^T V) / √DHQK by wgmma, in one launch without clusters: as v2_cluster.cu, with the same P, C and factor.
//
// Work split: a block a multiprocessor, with nearly all of its shared memory for tiles. A group of `blocks` blocks
// shares a head (and DHV columns of V and O), each has a part of its rows; then it goes on to its next head, whose K
// and V are on their way by then. The blocks of a group hand each other P through device memory, which the second-level
// cache holds, and each makes all of C. They wait for each other: all must be resident, so the launch is cooperative.
//
// Q, K: heads x S x dhqk, V, O: heads x S x dhhv, row-major. Twice for each group, for heads in turn: parts, blocks x
// DHV / 4 x DQK x 4, and arrived, zero before the first launch and after each. A grid of groups blocks, at most
// ceil(S / 64) blocks a group.
#include "columns.cuh"
#include "lab/ptx/order.cuh"
#include "pairs.cuh"

using namespace lab;

constexpr int RESIDENT_THREADS = 256;

// P of all blocks of a group, in device memory, and the C that a block makes of them.
template <class T, int DQK, int DHV> struct State {
    static constexpr int CELLS = DQK * DHV, BYTES = CELLS * sizeof(T) + DHV * 4;
    T* state;  // swizzled, in panels of 64 columns
    float* factor;

    __device__ __forceinline__ explicit State(T* memory)
        : state(memory), factor(reinterpret_cast<float*>(memory + CELLS)) {}

    // A warpgroup's 64 rows of P, in groups of four columns: a warp stores and loads whole sectors.
    __device__ __forceinline__ void store(const float (&sum)[DHV / 2], float* part) const {
        int lane = threadIdx.x % 32, i = threadIdx.x / 32 * 16 + lane / 4;
        float* own = part + (lane % 4 / 2 * DQK + i) * 4 + lane % 2 * 2;
#pragma unroll
        for (int n = 0; n < DHV / 8; ++n) {
            *reinterpret_cast<float2*>(own + n * 8 * DQK) = make_float2(sum[4 * n], sum[4 * n + 1]);
            *reinterpret_cast<float2*>(own + n * 8 * DQK + 32) = make_float2(sum[4 * n + 2], sum[4 * n + 3]);
        }
    }

    // ANCHOR: collect
    // C, from the parts of all blocks, in their order.
    __device__ __forceinline__ void collect(const float* parts, int blocks, int dhqk, float scale) const {
        constexpr int WARPS = RESIDENT_THREADS / 32, EACH = DHV / 4 / WARPS;
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        Columns<T, DQK> columns[EACH];
#pragma unroll(DQK == 64 ? 4 : 2)  // so many blocks' parts are on their way at once
        for (int b = 0; b < blocks; ++b)
#pragma unroll
            for (int n = 0; n < EACH; ++n)
                columns[n].add(parts + b * CELLS + ((warp + n * WARPS) * DQK + lane) * 4, 4);
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            int j = (warp + n * WARPS) * 4;
            columns[n].find_powers(dhqk);
            columns[n].store(state, j);
            if (lane == 0) columns[n].store_factors(factor, j, scale);
        }
    }
    // ANCHOR_END: collect
};

// ANCHOR: meet
// All blocks of a group have stored what they have before it. The last to arrive makes 0 of the counter, and that is
// what all wait for: a block has arrived itself, so that it does not take the 0 of the beginning for it.
//
// A counter serves every second head. Who arrives at it again has met the others in between, at the other counter: so
// none still waits for the 0 of the last time, and none still reads the parts of that time.
__device__ __forceinline__ void meet_group(unsigned* arrived, unsigned blocks) {
    __syncthreads();  // all threads have stored: one says so
    if (threadIdx.x == 0) {
        increment_release(arrived, blocks - 1);
        while (load_acquire(arrived) != 0) {}
    }
    __syncthreads();  // one has seen that all have arrived
}
// ANCHOR_END: meet

template <class T, int DQK, int DHV, int PLACES>
constexpr int qkv_resident_shared = PLACES * Place<T, DQK, DHV>::BYTES + State<T, DQK, DHV>::BYTES;

template <class T, int DQK, int DHV, int PLACES>
__global__ void __launch_bounds__(RESIDENT_THREADS, 1)
    qkv_resident(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                 const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O, float* parts,
                 unsigned* arrived, int heads, int S, int dhqk, int slices, int blocks, float scale) {
    using Place = Place<T, DQK, DHV>;
    using State = State<T, DQK, DHV>;
    DYNAMIC_TILES(T, places);
    __shared__ Ring<PLACES> ring;
    State state(places + PLACES * Place::CELLS);
    int rank = blockIdx.x % blocks, group = blockIdx.x / blocks, groups = gridDim.x / blocks, work = heads * slices;
    int all = (S + ROWS - 1) / ROWS, first = all * 1ll * rank / blocks, tiles = all * (rank + 1ll) / blocks - first;

    // ANCHOR: fill
    // Of each of this block's heads: tiles of K and V, then pairs of those of Q.
    int each = tiles + (tiles + 1) / 2;
    auto fill = [&](int n, int at) {
        int w = group + n / each * groups, m = n % each, head = w / slices, q = 2 * (m - tiles);
        if (w >= work) return;
        Place place(places, at);
        if (m < tiles)
            place.load(K, V, (first + m) * ROWS, w % slices * DHV, head, &ring.full[at]);
        else
            Pair<T, DQK, DHV>{place.rows}.load(Q, (first + q) * ROWS, tiles - q, head, &ring.full[at]);
    };
    Stream<PLACES, decltype(fill)> stream(ring, RESIDENT_THREADS / 128, fill);
    // ANCHOR_END: fill

    // ANCHOR: phases
    for (int w = group, turn = 0; w < work; w += groups, ++turn) {
        int both = group * 2 + turn % 2;
        float* of_group = parts + both * 1ll * blocks * State::CELLS;
        float sum[DHV / 2], factor[DHV / 4];
        if (threadIdx.x < Place::THREADS) {
            sum_keys_values<T, DQK, DHV>(sum, stream, places, tiles);
            state.store(sum, of_group + rank * State::CELLS);
        } else {
            stream.skip(tiles);  // one warpgroup is fast enough for 64 columns
        }
        meet_group(arrived + both, blocks);
        state.collect(of_group, blocks, dhqk, scale);
        fence_proxy_async_shared();  // wgmma reads what threads have written by plain stores
        __syncthreads();             // all of them
        load_factors(factor, state.factor, DHV);
        multiply_pairs<T, DQK, DHV>(O, stream, places, state.state, factor, tiles, first * ROWS, w % slices * DHV,
                                    w / slices);
    }
    // ANCHOR_END: phases
}
