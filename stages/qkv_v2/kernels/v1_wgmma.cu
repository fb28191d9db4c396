// O = Q (K^T V) / √DHQK by wgmma, in three launches of which this file has the first and the last: as v0_reordered.cu,
// with the same P, C and factor, for halves.
//
//   P_s,ij = Σ_{r of segment s} K_ri V_rj       f32, a segment of S each
//   C_ij   = Σ_s P_s,ij                         add_parts.cu: rounded to T, times a power of two
//   O_rj   = factor_j Σ_i Q_ri C_ij             factor: 1 / √DHQK over that power
//
// Work split: of P a block has DHV columns of a segment of a head, of O the same columns of the segment's rows. TMA
// brings 64 rows at a time, to PLACES places in turn, and the tensor cores take them from there (places.cuh).
//
// A grid of heads segments x ceil(dhhv / DHV) blocks; a segment is `tiles` tiles of 64 rows, the last one fewer.
#include "lab/tile.cuh"
#include "places.cuh"

using namespace lab;

template <class T, int DQK, int DHV, int PLACES>
constexpr int qkv_wgmma_parts_shared = PLACES * Place<T, DQK, DHV>::BYTES;
template <class T, int DQK, int DHV, int PLACES>
constexpr int qkv_wgmma_rows_shared = PLACES * Place<T, DQK, DHV>::BYTES + Place<T, DQK, DHV>::STATE_BYTES;

template <class T, int DQK, int DHV, int PLACES>
__global__ void __launch_bounds__(Place<T, DQK, DHV>::THREADS)
    qkv_wgmma_parts(const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V, float* parts, int S,
                    int dhqk, int dhhv, int segments, int tiles) {
    using Place = Place<T, DQK, DHV>;
    DYNAMIC_TILES(T, places);
    __shared__ Ring<PLACES> ring;
    int head = blockIdx.x / segments, r0 = blockIdx.x % segments * tiles * ROWS, j0 = blockIdx.y * DHV;
    int own = min(tiles, (S - r0 + ROWS - 1) / ROWS);
    auto fill = [&](int n, int at) {
        if (n < own) Place(places, at).load(K, V, r0 + n * ROWS, j0, head, &ring.full[at]);
    };
    Stream<PLACES, decltype(fill)> stream(ring, Place::GROUPS, fill);

    float sum[DHV / 2];
    sum_keys_values<T, DQK, DHV>(sum, stream, places, own);
    Matrix<float> P{parts + blockIdx.x * 1ll * dhqk * dhhv, dhqk, dhhv};
    int i = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, j = j0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < DHV / 4; ++n) P.template store<true, 2>(&sum[2 * n], i + n % 2 * 8, j + n / 2 * 8);
}

template <class T, int DQK, int DHV, int PLACES>
__global__ void __launch_bounds__(Place<T, DQK, DHV>::THREADS)
    qkv_wgmma_rows(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap C,
                   const __grid_constant__ TensorMap O, const float* factor, int S, int dhhv, int segments, int tiles) {
    using Place = Place<T, DQK, DHV>;
    DYNAMIC_TILES(T, places);
    __shared__ Ring<PLACES> ring;
    __shared__ Mbarrier here;  // C is
    T* state = places + PLACES * Place::CELLS;
    int head = blockIdx.x / segments, r0 = blockIdx.x % segments * tiles * ROWS, j0 = blockIdx.y * DHV;
    int own = min(tiles, (S - r0 + ROWS - 1) / ROWS);
    if (threadIdx.x == 0) {
        mbarrier_init(&here, 1);
        mbarrier_fence_init();
        mbarrier_arrive_expect(&here, Place::STATE_BYTES);
#pragma unroll
        for (int c = 0; c < DHV; c += 64) tensor_load(state + c * DQK, C, {j0 + c, 0, head}, &here);
    }
    auto fill = [&](int n, int at) {
        if (n < own) Place(places, at).load(Q, r0 + n * ROWS, head, &ring.full[at]);
    };
    Stream<PLACES, decltype(fill)> stream(ring, Place::GROUPS, fill);

    float mine[16];
    int j = j0 + threadIdx.x / 128 * 64;
    load_factors(mine, factor + head * 1ll * dhhv + j, dhhv - j);
    mbarrier_wait(&here, 0);
    multiply_rows<T, DQK, DHV>(O, stream, places, state, mine, own, r0, j0, head);
}
