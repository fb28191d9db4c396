// As v3_resident.cu, for a backward pass that follows: it leaves the state before each chunk and U, both transposed and rounded as
// this walk's own products take them.
//
// q, k: heads / group x S x dhqk, v, h: heads x S x dhhv, C0, CN: heads x dhqk x dhhv; inverse, pairs: heads x chunks x CHUNK x
// CHUNK, decays: heads x chunks; C: heads x chunks x dhhv x dhqk, saved_values: heads x chunks x dhhv x CHUNK. A grid of heads
// slices blocks, slices = ceil(dhhv / VALUE). Of packed sequences (lab/vlstm/sequence.cuh) a block walks one of a head: states are
// sequences x heads x dhqk x dhhv, and a head has room for the chunks of all its sequences.
#include "lab/gdn/saving_walk.cuh"
#include "walk.cuh"

using namespace lab;

template <class T, int KEY> constexpr int gdn_fw_saving_shared = sizeof(Places<T, KEY>);

template <class T, int KEY>
__global__ void __launch_bounds__(WALKERS, 2)
    gdn_fw_saving(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  const T* __restrict__ inverse, const T* __restrict__ pairs, const Decays* __restrict__ decays,
                  const float* __restrict__ C0, float* CN, T* __restrict__ C, T* __restrict__ saved_values,
                  T* __restrict__ h, const int* __restrict__ cu_seqlens, bool packed, int heads, int chunks, int S,
                  int dhqk, int dhhv, int group, int slices, bool given, bool wanted, float scale) {
    DYNAMIC_TILES(unsigned char, memory);
    Sequence own(blockIdx.x / slices, S, packed ? cu_seqlens : nullptr, heads);
    long long cells = 1ll * own.index * dhqk * dhhv;
    auto head = own_head(own, q, k, v, h, inverse, pairs, decays, chunks, dhqk, dhhv, group, slices);
    Saved<T> saved(C, saved_values, own.slot(CHUNK, chunks), dhqk, dhhv, head.value);
    float state[KEY / 2], out[CHUNK / 2];
    unsigned left[CHUNK / 16][4];
    Offsets offsets;
    load_state<KEY>(state, given ? C0 + cells : nullptr, head.value, dhqk, dhhv);
    auto solve = [&](const View<T, KEY>& place, int chunk) {
        unsigned written[CHUNK / 16][4];
        float rest[CHUNK / 2];
        saved.state(state, chunk);
        read_state<T, KEY>(rest, out, state, place, offsets);
        write_values<T, KEY>(written, left, rest, place, offsets);
        saved.rows(written, chunk);
        read_values<T, KEY>(out, written, place, offsets, scale);
    };
    auto update_state = [&](const View<T, KEY>& place, int chunk) {
        store_rows(out, place, head, chunk * CHUNK);
        update<T, KEY>(state, left, place, offsets);
    };
    walk_ahead(*reinterpret_cast<Places<T, KEY>*>(memory), head, own.parts(CHUNK), [](int n) { return n; }, solve, update_state);
    if (wanted) store_state<KEY>(state, CN + cells, head.value, dhqk, dhhv);
}
