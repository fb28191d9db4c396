// The state that a warpgroup of a walk for one gradient (gradient.cuh) holds, and what it makes of it.
#pragma once
#include "gradient_shared.cuh"
#include "normaliser.cuh"

namespace lab {

// What an operand of f16 is multiplied by once it has been read, of rows lane / 4 and 8 more. Others need no such thing.
template <class T> struct Ups {};
template <> struct Ups<__half> { float up[2]; };

// The state of one warpgroup, and what it makes of it.
template <class W> class GradientState : public State<typename W::T, W::KEY, W::PARTS>, public Ups<typename W::T> {
    using T = typename W::T;
    using Base = State<T, W::KEY, W::PARTS>;
    using Base::c, Base::out, Base::both, Base::h, Base::rounded, Base::weighted, Base::part_;
    using Base::warp, Base::lane, Base::SHARE, Base::made;
    float dot[2];  // of two positions

    // Sums over the lanes that differ in their bits 2 to 4: of each step a lane keeps half of the positions, while it has more.
    template <int LANES, int EIGHTS> __device__ __forceinline__ void reduce_scatter_into_dot(float (&all)[EIGHTS][2]) {
        constexpr bool HALVES = EIGHTS > 1;
        bool upper = HALVES && threadIdx.x % 32 / LANES % 2 > 0;
        float kept[HALVES ? EIGHTS / 2 : 1][2];
#pragma unroll
        for (int n = 0; n < (HALVES ? EIGHTS / 2 : 1); ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float low = all[n][e], high = all[HALVES ? n + EIGHTS / 2 : n][e];
                kept[n][e] = (upper ? high : low) + __shfl_xor_sync(0xffffffff, upper ? low : high, LANES);
            }
        if constexpr (LANES > 4) reduce_scatter_into_dot<LANES / 2>(kept);
        else dot[0] = kept[0][0], dot[1] = kept[0][1];
    }
    // The first of the two positions that are left.
    __device__ __forceinline__ int position() const {
        int eight = W::PARTS > 1 ? part_ * 4 + lane() / 8 : lane() / 16 * 4 + lane() / 8 % 2 * 2 + lane() / 4 % 2;
        return eight * 8 + lane() % 4 * 2;
    }

    // Half of out goes to the other part, which takes it in its own time, a chunk later: the parts are not in step. In turn by
    // one of two places, each with a barrier for each part. Who gives a third time has been given to a second time, and so the
    // other has read what it was given first.
    __device__ __forceinline__ static float4* place_of(float4* room, int turn) {
        return room + turn % 2 * (2 * 4 * 128) + threadIdx.x % 128;
    }
    __device__ __forceinline__ static int given(int part, int turn) { return 3 + turn % 2 * 2 + part; }
    __device__ __forceinline__ void give(float4* room, int turn) {
        float4* place = place_of(room, turn);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const float* there = out + 4 * n;
            float4 low = make_float4(there[0], there[1], there[2], there[3]);
            float4 high = make_float4(there[16], there[17], there[18], there[19]);
            place[(part_ * 4 + n) * 128] = part_ > 0 ? low : high;
        }
        named_barrier_arrive(given(part_, turn), 256);
#pragma unroll
        for (int n = 0; n < 16; ++n) both[n] = part_ > 0 ? out[16 + n] : out[n];
    }
    __device__ __forceinline__ void take_given(float4* room, int turn) {
        const float4* place = place_of(room, turn);
        named_barrier_sync(given(1 - part_, turn), 256);  // the other has sent
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            float4 more = place[((1 - part_) * 4 + n) * 128];
            float with[4] = {more.x, more.y, more.z, more.w};
#pragma unroll
            for (int w = 0; w < 4; ++w) both[4 * n + w] = with[w] + both[4 * n + w];
        }
    }

  public:
    using Base::Base;
    NormaliserState n;

    // Of the parts that share out one adds to it.
    __device__ __forceinline__ bool is_first_part() const { return W::PARTS == 1 || part_ == 0; }

    // ANCHOR: f16
    // The state as an operand. Of f16 each row is divided by a power of two that its largest element says: Σ α, by which
    // Base divides, says nothing of z, and dh may be as large as its loss has been scaled.
    __device__ __forceinline__ void round() {
        if constexpr (is_f16<T>) {
            wgmma_wait<0>();
            float largest[2] = {}, down[2];
#pragma unroll
            for (int n = 0; n < W::KEY / 2; ++n) largest[n / 2 % 2] = fmaxf(largest[n / 2 % 2], fabsf(c[n]));
            for (int half = 0; half < 2; ++half) {
                down[half] = power_for_f16(warp_reduce<4>(largest[half], Max()));
                this->up[half] = inverse_of_power(down[half]);
            }
#pragma unroll
            for (int n = 0; n < W::KEY / 2; n += 2)
                rounded[n / 8][n / 2 % 4] = two_halves<T>(c[n] * down[n / 2 % 2], c[n + 1] * down[n / 2 % 2]);
        } else {
            Base::round();
        }
    }

    // C ← γ C, and, once it is there, out_i ← β_i out_i. Of f16 out is multiplied by `powers` as well, as pairs are.
    __device__ __forceinline__ void scale(const Weights& weights, const float* powers) {
        if constexpr (is_f16<T>) {
            float gamma = weights.template carried<T>(), by[2] = {this->up[0] * weights.behind, this->up[1] * weights.behind};
#pragma unroll
            for (int n = 0; n < W::KEY / 2; ++n) c[n] *= gamma;
            wgmma_wait<0>();
#pragma unroll
            for (int n = 0; n < CHUNK / 8; ++n) {
                int at = n * 8 + lane() % 4 * 2;
                float2 beta = *reinterpret_cast<const float2*>(&weights.beta[at]);
                float2 power = *reinterpret_cast<const float2*>(&powers[at]);
                beta.x *= power.x, beta.y *= power.y;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    out[4 * n + 2 * half] *= beta.x * by[half];
                    out[4 * n + 2 * half + 1] *= beta.y * by[half];
                }
            }
        } else {
            Base::scale(weights);
        }
    }

    // Of f16: the state as it is in memory, of one that is counted in `unit`.
    __device__ __forceinline__ void multiply(float unit) {
#pragma unroll
        for (int n = 0; n < W::KEY / 2; ++n) c[n] *= unit;
    }

    // Of f16: out without the powers.
    __device__ __forceinline__ void divide(const float* powers) {
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n) {
            int at = n * 8 + lane() % 4 * 2;
            float by[2] = {inverse_of_power(powers[at]), inverse_of_power(powers[at + 1])};
#pragma unroll
            for (int e = 0; e < 4; ++e) out[4 * n + e] *= by[e % 2];
        }
    }
    // ANCHOR_END: f16

    // What the normaliser adds to out, once C has been read, and the chunk to n, once z has been taken.
    template <Gradient OF> __device__ __forceinline__ void pass_normaliser(const Weights& weights, const float* powers) {
        if (is_first_part()) n.template read<T, OF == Gradient::Q>(out, weights, powers);
        n.template add<T, OF == Gradient::K>(weighted, weights, [this](int j) { return this->block(j) * 16; });
    }

    // out, once it is there: rounded, or a half of it to the other part.
    __device__ __forceinline__ void finish_out(float4* room, int turn, const float* powers) {
        wgmma_wait<1>();
        if constexpr (is_f16<T>) divide(powers);
        if constexpr (W::PARTS > 1) give(room, turn);
        else round_out();
    }
    __device__ __forceinline__ void round_out() {
#pragma unroll
        for (int n = 0; n < SHARE / 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                h[n / 2][n % 2 * 2 + half] = two_halves<T>(made()[4 * n + 2 * half], made()[4 * n + 2 * half + 1]);
    }

    // The share of out that is this part's.
    __device__ __forceinline__ void finish_share(float4* room, int turn) {
        take_given(room, turn);
        round_out();
    }

    // Its dots with the rows of a panel: before it is rounded, for what is made of them takes them from each other.
    __device__ __forceinline__ void multiply_rows(const T* other) {
        float all[SHARE / 8][2] = {};
#pragma unroll
        for (int j = 0; j < SHARE / 16; ++j) {
            unsigned by[4];
            load_columns(by, other, (W::PARTS > 1 ? part_ * SHARE : 0) + j * 16, warp() * 16);
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                int n = 2 * j + w / 2, at = 4 * n + w % 2 * 2;
                float2 two = floats_of<T>(by[w]);
                all[n][0] += made()[at] * two.x, all[n][1] += made()[at + 1] * two.y;
            }
        }
        reduce_scatter_into_dot<16>(all);
    }

    // To a panel, and the dots to those of the warp.
    template <bool DOTS> __device__ __forceinline__ void store_out(T* panel, float (*dots)[CHUNK]) const {
        this->store_share(panel);
        if (DOTS && (W::PARTS == 1 || lane() / 4 % 2 == 0))
            *reinterpret_cast<float2*>(&dots[warp()][position()]) = make_float2(dot[0], dot[1]);
    }
};

}  // namespace lab
