// The state of a head with more than 128 keys, in one warpgroup, whose threads have 128 registers of it and few beside.
#pragma once
#include "lab/vlstm/state.cuh"

namespace lab {

// As State, with other registers beside the accumulators: 32 keys of C at a time are rounded, to one of two sets, while
// wgmma reads the other; α z takes the place of z; h is stored in the chunk that it is of.
template <class T, int KEY> class WideState : public State<T, KEY> {
  protected:
    using Base = State<T, KEY>;
    using Base::c, Base::out, Base::h, Base::mass, Base::z, Base::warp, Base::lane, Base::BLOCKS;

  private:
    static constexpr int PIECE = 32, PIECES = KEY / PIECE, HALF = KEY / 2;
    unsigned piece_of[2][PIECE / 16][4];

    __device__ __forceinline__ void round_piece(int piece) {
        float down[2] = {mass[0].down(), mass[1].down()};
#pragma unroll
        for (int k = 0; k < PIECE / 16; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                int at = piece * (PIECE / 2) + 8 * k + 2 * w;
                piece_of[piece % 2][k][w] = two_halves<T>(c[at] * down[w % 2], c[at + 1] * down[w % 2]);
            }
    }

    // A group of wgmma.
    template <class Place> __device__ __forceinline__ void read_piece(const Place& place, int piece) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < PIECE; k += 16) {
            int key = piece * PIECE + k;
            wgmma<T, CHUNK>(out, piece_of[piece % 2][k / 16],
                            advance(k_major<SPAN>(place.x[key / PANEL], 8 * SPAN), key % PANEL * 2), key > 0);
        }
        wgmma_commit();
    }

  public:
    // The first two pieces, once nothing is on its way.
    __device__ __forceinline__ void round() {
        wgmma_wait<0>();
        round_piece(0);
        round_piece(1);
    }

    // ANCHOR: wide_read
    // out_i = Cᵀ x_i, as the state is before the chunk.
    template <class Place> __device__ __forceinline__ void multiply_by_state(const Place& place) {
        read_piece(place, 0);
        read_piece(place, 1);
#pragma unroll
        for (int piece = 2; piece < PIECES; ++piece) {
            wgmma_wait<1>();  // the product of the piece before last no longer reads its registers
            round_piece(piece);
            read_piece(place, piece);
        }
    }
    // ANCHOR_END: wide_read

    __device__ __forceinline__ void take(const T* values) {
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j) load_columns(z[j], values, j * 16, warp() * 16);
    }

    // z ← α z, once the product of the pairs is there, which reads z.
    __device__ __forceinline__ void weigh_values(const T* alpha) {
        unsigned words[BLOCKS][2];
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
            for (int half = 0; half < 2; ++half)
                words[j][half] = *reinterpret_cast<const unsigned*>(alpha + j * 16 + half * 8 + lane() % 4 * 2);
        wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
            for (int w = 0; w < 4; ++w) z[j][w] = multiply_halves<T>(z[j][w], words[j][w / 2]);
    }

    // C += Σ_j α_j z_j y_jᵀ: a group. Half of the keys by each wgmma: one of 256 would take more registers than a thread has
    // at the launch.
    template <class Place> __device__ __forceinline__ void add_keys(const Place& place) {
        constexpr unsigned ROWS = Place::Y_ROWS * SPAN;
        wgmma_fence();
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < BLOCKS; ++j)
                wgmma<T, HALF, true>(
                    reinterpret_cast<float(&)[HALF / 2]>(c[half * (HALF / 2)]), z[j],
                    advance(mn_major<SPAN>(place.y[half * (HALF / PANEL)], ROWS, 8 * SPAN), j * 16 * SPAN));
        wgmma_commit();
    }

    // h_i = out_i / (n_i + eps), rounded.
    __device__ __forceinline__ void divide(const float* inverse) {
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n) {
            float2 by = *reinterpret_cast<const float2*>(&inverse[n * 8 + lane() % 4 * 2]);
            for (int half = 0; half < 2; ++half)
                h[n / 2][n % 2 * 2 + half] =
                    two_halves<T>(out[4 * n + 2 * half] * by.x, out[4 * n + 2 * half + 1] * by.y);
        }
    }
};

}  // namespace lab
