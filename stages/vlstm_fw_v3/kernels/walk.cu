// Along the chunks, the states: from what each chunk adds, what lies ahead of each.
//
//   C⁺ = γ C + C_part      n⁺ = γ n + n_part
//
// C ahead of a chunk is stored as T, as the tensor cores take it, rounded once and never read again
// here: what goes on is the f32 in a register. `room`, a power of two, keeps it within what T
// holds.
//
// Work split: a thread owns four neighbours of C or n of a head, and goes along all chunks. Nothing
// is shared, so that memory alone decides the time.
//
// C_part, C: heads x chunks x dhqk x dhhv, n_part, n: heads x chunks x dhqk, C0, CN: heads x dhqk x
// dhhv, n0, nN: heads x dhqk. A grid of heads blocks_a_head blocks.
#include "lab/vlstm/chunkwise.cuh"

using namespace lab;

constexpr int THREADS = 256;

// ANCHOR: walk
// Four neighbours of `cells` of a head, from `first` or from 0, along its chunks, to `last` if it
// is there.
template <bool ROOM, class To>
__device__ __forceinline__ void walk(const float* first, const float* part, To* ahead, float* last,
                                     const Chunk* chunk, int chunks, long long cells) {
    Pack<float> state{};
    if (first) state = load_pack(first);
#pragma unroll 4
    for (int c = 0; c < chunks; ++c) {
        Pack<float> own = load_pack(part + c * cells);
        float gamma = chunk[c].gamma, room = ROOM ? chunk[c].room : 1.0f, scaled[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            scaled[e] = room * state.v[e];
            state.v[e] = gamma * state.v[e] + own.v[e];
        }
        Matrix<To>{ahead + c * cells, 1, 4}.template store<true>(scaled, 0, 0);
    }
    if (last) store_pack(last, state);
}
// ANCHOR_END: walk

template <class T>
__global__ void __launch_bounds__(THREADS)
    walk_chunks(const float* __restrict__ C0, const float* __restrict__ n0,
                const float* __restrict__ C_part, const float* __restrict__ n_part,
                const Chunk* __restrict__ chunk, T* __restrict__ C, float* __restrict__ n,
                float* __restrict__ CN, float* __restrict__ nN, int chunks, int dhqk, int dhhv,
                int blocks_a_head, bool given, bool wanted) {
    long long head = blockIdx.x / blocks_a_head, cells = dhqk * dhhv;
    int at = 4 * (blockIdx.x % blocks_a_head * THREADS + threadIdx.x);
    const Chunk* own = chunk + head * chunks;
    if (at < cells) {
        long long first = head * cells + at, rest = head * chunks * cells + at;
        walk<true>(given ? C0 + first : nullptr, C_part + rest, C + rest,
                   wanted ? CN + first : nullptr, own, chunks, cells);
    } else if (at < cells + dhqk) {
        at -= cells;
        long long first = head * dhqk + at, rest = head * chunks * dhqk + at;
        walk<false>(given ? n0 + first : nullptr, n_part + rest, n + rest,
                    wanted ? nN + first : nullptr, own, chunks, dhqk);
    }
}
