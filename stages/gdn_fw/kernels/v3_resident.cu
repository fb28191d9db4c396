// As v2_blocks.cu, with a state that stays in registers from the first chunk to the last: the sums of the product that updates
// it are the left operand of the two that read it. C is the last state, where one is wanted.
//
// q, k: heads / group x S x dhqk, v, h: heads x S x dhhv, C0, C: heads x dhqk x dhhv; inverse, pairs: heads x chunks x CHUNK x
// CHUNK, decays: heads x chunks. A grid of heads slices blocks, slices = ceil(dhhv / VALUE). Of packed sequences as saving.cu.
#include "walk.cuh"

using namespace lab;

template <class T, int KEY> constexpr int gdn_fw_resident_shared = WALK_BYTES<T, KEY>;

template <class T, int KEY>
__global__ void __launch_bounds__(WALKERS, 2)
    gdn_fw_resident(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  const T* __restrict__ inverse, const T* __restrict__ pairs, const Decays* __restrict__ decays,
                  const float* __restrict__ C0, float* C, T* __restrict__ h, const int* __restrict__ cu_seqlens,
                  bool packed, int heads, int chunks, int S, int dhqk, int dhhv, int group, int slices, bool given,
                  bool wanted, float scale) {
    DYNAMIC_TILES(unsigned char, memory);
    auto places = reinterpret_cast<Place<T, KEY>*>(memory);
    Sequence own(blockIdx.x / slices, S, packed ? cu_seqlens : nullptr, heads);
    long long cells = 1ll * own.index * dhqk * dhhv;
    auto head = own_head(own, q, k, v, h, inverse, pairs, decays, chunks, dhqk, dhhv, group, slices);
    walk_chunks<true>(places, head, given ? C0 + cells : nullptr, C + (wanted ? cells : 0), wanted, own.parts(CHUNK), dhqk, dhhv, scale);
}
