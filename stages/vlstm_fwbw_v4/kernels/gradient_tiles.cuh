// The tiles of a walk for one gradient (gradient.cuh), by TMA: the roles that bring them and that hand on what has been made.
#pragma once
#include "gradient.cuh"

namespace lab {

// One thread: tiles, and the sequence's weights, by TMA. Who only adds to the state needs no x.
template <class W, Gradient OF, bool THROUGH_N>
template <bool WITH_X>
__device__ __forceinline__ void GradientWalk<W, OF, THROUGH_N>::bring(const TensorMap& x, const TensorMap& y,
                                                                      const TensorMap& z, const Weights* weights) const {
    using Place = GradientPlace<W>;
    Turn<W::PLACES> turn;
    Sequence of_keys = keys(), of_xy = OF == Gradient::V ? of_keys : sequence, of_z = OF == Gradient::V ? sequence : of_keys;
    for (int n = 0; n < count(); ++n, turn.advance()) {
        auto& place = shared.places[turn.place];
        Mbarrier* full = &places.full[turn.place];
        int first = chunk(n) * CHUNK;
        places.wait_empty(turn);
        mbarrier_arrive_expect(
            full, ((WITH_X + 1) * Place::PANELS + W::COLUMNS) * CHUNK * SPAN + sizeof(Weights));
        bulk_load(&place.weights, weights + chunk(n), sizeof(Weights), full);
#pragma unroll
        for (int p = 0; p < Place::PANELS; ++p) {
            if (WITH_X) tensor_load(place.x[p], x, of_xy.box(p * PANEL, first).at, full);
            tensor_load(place.y[p], y, of_xy.box(p * PANEL, first).at, full);
        }
#pragma unroll
        for (int p = 0; p < W::COLUMNS; ++p) tensor_load(place.z[p], z, of_z.box(column + p * PANEL, first).at, full);
    }
}

// One thread: what dots are made with.
template <class W, Gradient OF, bool THROUGH_N>
__device__ __forceinline__ void GradientWalk<W, OF, THROUGH_N>::bring_others(const TensorMap& other) const {
    Turn<1> turn;
    for (int n = 0; n < count(); ++n, turn.advance())
        for (int p = 0; p < W::COLUMNS; ++p) {
            others[p].wait_empty(turn);
            mbarrier_arrive_expect(&others[p].full[0], CHUNK * SPAN);
            tensor_load(shared.other[p], other, keys().box(column + p * PANEL, chunk(n) * CHUNK).at, &others[p].full[0]);
        }
}

// A warp: a panel of what has been made to device memory, and its dots to those of the sequence.
template <class W, Gradient OF, bool THROUGH_N>
__device__ __forceinline__ void GradientWalk<W, OF, THROUGH_N>::hand_on(int panel, const TensorMap& to, float* dots) const {
    int lane = threadIdx.x % 32;
    Turn<1> turn;
    for (int n = 0; n < count(); ++n, turn.advance()) {
        int first = chunk(n) * CHUNK;
        outs[panel].wait_full(turn);
        if (lane == 0) {
            tensor_store(to, sequence.box(column + panel * PANEL, first).at, shared.out[panel]);
            bulk_commit();
        }
        for (int row = lane; DOTS && row < min(CHUNK, sequence.length - first); row += 32) {
            auto& all = shared.dots[panel];
            dots[first + row] = (all[0][row] + all[1][row]) + (all[2][row] + all[3][row]);
        }
        if (lane == 0) bulk_wait_read<0>();
        leave(outs[panel], turn);
    }
}

}  // namespace lab
