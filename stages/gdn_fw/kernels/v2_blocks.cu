// The gated delta rule in chunks on tensor cores: the inverse by blocks of 16 (blocks.cu), and the walk of walk.cuh. The state
// lies in device memory between chunks, as in v1_chunks.cu: in C, which is the last state, where one is wanted.
//
// q, k: heads / group x S x dhqk, v, h: heads x S x dhhv, C0, C: heads x dhqk x dhhv; inverse, pairs: heads x chunks x CHUNK x
// CHUNK, decays: heads x chunks. A grid of heads slices blocks, slices = ceil(dhhv / VALUE).
#include "walk.cuh"

using namespace lab;

template <class T, int KEY> constexpr int gdn_fw_tensor_shared = WALK_BYTES<T, KEY>;

template <class T, int KEY>
__global__ void __launch_bounds__(WALKERS, 2)
    gdn_fw_tensor(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  const T* __restrict__ inverse, const T* __restrict__ pairs, const Decays* __restrict__ decays,
                  const float* __restrict__ C0, float* C, T* __restrict__ h, int chunks, int S, int dhqk, int dhhv,
                  int group, int slices, bool given, bool wanted, float scale) {
    DYNAMIC_TILES(unsigned char, memory);
    auto places = reinterpret_cast<Place<T, KEY>*>(memory);
    long long cells = blockIdx.x / slices * 1ll * dhqk * dhhv;
    auto head = own_head(Sequence(blockIdx.x / slices, S), q, k, v, h, inverse, pairs, decays, chunks, dhqk, dhhv, group, slices);
    walk_chunks<false>(places, head, given ? C0 + cells : nullptr, C + cells, wanted, chunks, dhqk, dhhv, scale);
}
