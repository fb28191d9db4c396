// Back along the chunks, the gradient of the states: from what each chunk adds, what lies behind each.
//
//   dC ← γ dC + dC_part      dn ← γ dn + dn_part      G = <C, dC> + n · dn, of the state between two chunks
//
// dC behind a chunk is stored as T, as the tensor cores take it, times a power of two that keeps it within what T holds, the
// `room` of its chunk. What goes on is the f32 in a register. G is what the gradients of all later forget gates add up to.
//
// Work split: a thread owns four neighbours of dC or dn of a head, a warp's share of G comes of its lanes. Nothing is shared.
//
// dC_part, dC, C: heads x chunks x dhqk x dhhv, dn_part, dn, n_state: heads x chunks x dhqk, room: heads x chunks,
// taken: heads x chunks x TAKEN, in whose unit dC_part is, products: heads x chunks x warps. A grid of heads
// ceil(warps / 8) blocks; warps: of a head.
#include "lab/reduce.cuh"
#include "lab/vlstm/chunkwise.cuh"
#include "lab/vlstm/powers.cuh"
#include "row.cuh"

using namespace lab;

constexpr int THREADS = 256, CELLS_A_WARP = 32 * 4;

// Four neighbours, of 16 bytes or of 8.
template <class T> __device__ __forceinline__ Pack<float> load_four(const T* from) {
    if constexpr (sizeof(T) == 4) return load_pack(from);
    else {
        uint2 raw = *reinterpret_cast<const uint2*>(from);
        float2 low = floats_of<T>(raw.x), high = floats_of<T>(raw.y);
        return {{low.x, low.y, high.x, high.y}};
    }
}

// ANCHOR: walk
// Four neighbours of `cells` of a head along its chunks, from the last to the first. A lane that has none goes along.
template <bool ROOM, int TAKEN, class T>
__device__ __forceinline__ void walk_back(const float* part, const T* ahead, T* behind, float* room, float* products,
                                          const Chunk* chunk, const float* taken, int chunks, int warps,
                                          long long cells, bool owns) {
    Pack<float> gradient{};
    float mass = 0;  // no element of dC is larger than this times the largest of q and of dh; of f16, than this
#pragma unroll 4
    for (int c = chunks - 1; c >= 0; --c) {
        Pack<float> own{}, state{};
        if (owns) own = load_pack(part + c * cells), state = load_four(ahead + c * cells);
        float gamma = chunk[c].gamma, up = ROOM ? 1 / chunk[c].room : 1.0f, dot = 0, scaled[4];
        float power = __int_as_float(__float_as_int(mass) & 0x7f800000);  // of two, at or below mass
        float down = ROOM && power > 1 ? 1 / power : 1;
        if constexpr (TAKEN > 1 && ROOM) {
            down = power_for_f16(mass);
            for (float& v : own.v) v *= taken[c * TAKEN + 1];
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            scaled[e] = down * gradient.v[e];
            gradient.v[e] = gamma * gradient.v[e] + own.v[e];
            dot += up * state.v[e] * gradient.v[e];
        }
        if (owns) Matrix<T>{behind + c * cells, 1, 4}.template store<true>(scaled, 0, 0);
        if (room) room[c] = down;
        mass = gamma * mass + taken[c * TAKEN];
        dot = warp_reduce(dot, Add());
        if (threadIdx.x % 32 == 0) products[c * 1ll * warps] = dot;
    }
}
// ANCHOR_END: walk

template <class T>
__global__ void __launch_bounds__(THREADS)
    walk_gradients(const float* __restrict__ dC_part, const float* __restrict__ dn_part, const T* __restrict__ C,
                   const float* __restrict__ n_state, const Chunk* __restrict__ chunk, const float* __restrict__ taken,
                   T* __restrict__ dC, float* __restrict__ dn, float* __restrict__ room, float* __restrict__ products,
                   int chunks, int dhqk, int dhhv, int warps) {
    int blocks = (warps * 32 + THREADS - 1) / THREADS, lane = threadIdx.x % 32;
    int warp = blockIdx.x % blocks * (THREADS / 32) + threadIdx.x / 32;
    if (warp >= warps) return;
    long long head = blockIdx.x / blocks, cells = dhqk * dhhv, at = warp * CELLS_A_WARP + 4 * lane;
    const Chunk* own = chunk + head * chunks;
    taken += head * chunks * TAKEN<T>, products += head * chunks * warps + warp;
    if (at < cells) {  // all lanes of a warp, or none: C has a multiple of 256 elements
        long long first = head * chunks * cells + at;
        walk_back<true, TAKEN<T>>(dC_part + first, C + first, dC + first, at == 0 ? room + head * chunks : nullptr,
                                  products, own, taken, chunks, warps, cells, true);
    } else {
        at -= cells;
        long long first = head * chunks * dhqk + at;
        walk_back<false, TAKEN<T>>(dn_part + first, n_state + first, dn + first, nullptr, products, own, taken, chunks,
                                   warps, dhqk, at < dhqk);
    }
}
