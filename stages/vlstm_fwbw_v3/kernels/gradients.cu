// dq, dk and dv of each chunk, all chunks at once, from its own positions, C ahead of it and dC behind it (gradient.cuh); and
// q·dq and di = k·dk, of sums that are not rounded yet.
//
// Work split: a block owns a chunk of a head, and one of the three. A grid of heads chunks blocks, for the one that `only`
// names; or, where that is -1, of three times as many, the three of a chunk side by side: they read the same tiles.
//
// q, k, dq, dk: heads x S x dhqk, v, dh, dv: heads x S x dhhv, C, dC: heads x chunks x dhqk x dhhv, n_state, dn: heads x
// chunks x dhqk, positions, back, rows: heads x chunks x L, q_dq, di: heads x S, room: heads x chunks.
#include "gradient.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

template <class T, int L> constexpr int chunk_gradients_shared = sizeof(ChunkTiles<T, L>);

template <class T, int L>
__global__ void __launch_bounds__(2 * L, 256 / L)
    chunk_gradients(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ dh,
                    const T* __restrict__ C, const T* __restrict__ dC, const float* __restrict__ n_state,
                    const float* __restrict__ dn, const Position* __restrict__ positions,
                    const Position* __restrict__ back, const Row* __restrict__ rows, const Chunk* __restrict__ chunk,
                    const float* __restrict__ room, T* __restrict__ dq, T* __restrict__ dk, T* __restrict__ dv,
                    float* __restrict__ q_dq, float* __restrict__ di, int chunks, int S, int dhqk, int dhhv, bool exact,
                    int only) {
    static_assert(chunk_gradients_shared<T, L> <= 99 * 1024,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower L");
    DYNAMIC_SHARED(unsigned char, memory);
    auto& tiles = *reinterpret_cast<ChunkTiles<T, L>*>(memory);
    int of = only < 0 ? blockIdx.x % 3 : only;
    long long at = only < 0 ? blockIdx.x / 3 : blockIdx.x, head = at / chunks;
    int r0 = at % chunks * L;
    Matrix<const T> Q{q + head * S * dhqk, S, dhqk}, K{k + head * S * dhqk, S, dhqk};
    Matrix<const T> V{v + head * S * dhhv, S, dhhv}, dH{dh + head * S * dhhv, S, dhhv};
    Matrix<const T> state{C + at * dhqk * dhhv, dhqk, dhhv}, gradient{dC + at * dhqk * dhhv, dhqk, dhhv};
    positions += at * L, back += at * L, rows += at * L, q_dq += head * S, di += head * S;
    const float *n = exact ? n_state + at * dhqk : nullptr, *of_n = exact ? dn + at * dhqk : nullptr;
    if (of == 0)
        make_gradient<Gradient::Q, T, L>({tiles, dH, V, K, state, r0}, positions, rows, chunk[at].room, n,
                                         {dq + head * S * dhqk, S, dhqk}, Q, q_dq);
    else if (of == 1)
        make_gradient<Gradient::K, T, L>({tiles, V, dH, Q, gradient, r0}, back, rows, room[at], of_n,
                                         {dk + head * S * dhqk, S, dhqk}, K, di);
    else
        make_gradient<Gradient::V, T, L>({tiles, K, Q, dH, gradient, r0}, back, rows, room[at], nullptr,
                                         {dv + head * S * dhhv, S, dhhv}, K, nullptr);
}
