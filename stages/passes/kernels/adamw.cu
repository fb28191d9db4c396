// AdamW over one flat arena (Loshchilov & Hutter 2019, arXiv 1711.05101), the equations of lab/optimizer.cuh:
// masters and gradients in f32, the working copy in T, written in the same pass. The first `decayed` parameters
// decay, the others do not.
//
// Two launches: sums of squares, one a block, and the update, in which each block adds those up in the same
// order. So the host need not know the norm. A step whose loss or gradients are not finite changes nothing but
// the counts.
//
// Work split: a thread four parameters at a time, 16 bytes of each tensor: 30 bytes a parameter with a copy of
// halves.
//
// p, m, v: N in f32; g: N in G, which is f32, or bf16 where devices have summed rounded gradients; copy: N in T,
// not touched where T is f32; squares: one a block; rates: one a step, the last of them for all later ones; loss:
// one number. Where gradients of several ranks have come and nobody has summed them, g has N of each rank, one rank's
// behind the other's: both launches add them up in f32, in the order of the ranks. N is then a multiple of four.
#include "lab/halves.cuh"
#include "lab/optimizer_step.cuh"
#include "lab/pack.cuh"

using namespace lab;

// Parameters of a thread; packs of gradients on its way.
constexpr int FOUR = 4, AHEAD = 4;

// Four gradients: 16 bytes of floats, 8 of halves.
template <class G> __device__ __forceinline__ Pack<float> load_four(const G* from) {
    if constexpr (sizeof(G) == sizeof(float)) {
        return load_pack(from);
    } else {
        uint2 words = *reinterpret_cast<const uint2*>(from);
        float2 low = floats_of<G>(words.x), high = floats_of<G>(words.y);
        return {low.x, low.y, high.x, high.y};
    }
}

// What a thread has of four parameters.
struct Four {
    Pack<float> p, g, m, v;
};

__device__ __forceinline__ void add_four(Pack<float>& sum, Pack<float> x) {
#pragma unroll
    for (int i = 0; i < FOUR; ++i) sum.v[i] += x.v[i];
}

// squares: one a block. `made`: sums of squares of other gradients, which the launches that made these have left.
// The first launch of a step that reads where training stands. It begins at the end: the update then begins with
// the gradients that were read last, and finds them in the L2 cache.
template <class G>
__global__ void __launch_bounds__(OPTIMIZER_THREADS)
    arena_squares(const G* __restrict__ g, const double* __restrict__ made, double* __restrict__ squares,
                  long long* counts, double* numbers, int ranks, long long made_sums, long long N) {
    if (blockIdx.x == 0) Progress{counts, numbers}.begin(threadIdx.x);
    long long thread = blockIdx.x * 1ll * OPTIMIZER_THREADS + threadIdx.x;
    long long threads = gridDim.x * 1ll * OPTIMIZER_THREADS;
    double sum = 0;
    for (long long n = thread; n < N / FOUR; n += AHEAD * threads) {
        Pack<float> ahead[AHEAD];
        auto load = [&](int k, int rank) {
            long long own = n + k * threads;
            return own < N / FOUR ? load_four(g + rank * N + (N / FOUR - 1 - own) * FOUR) : Pack<float>{};
        };
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) ahead[k] = load(k, 0);
        for (int rank = 1; rank < ranks; ++rank)
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) add_four(ahead[k], load(k, rank));
#pragma unroll
        for (int k = 0; k < AHEAD; ++k)
#pragma unroll
            for (int i = 0; i < FOUR; ++i) sum += double(ahead[k].v[i]) * ahead[k].v[i];
    }
    long long n = N / FOUR * FOUR + thread;
    if (n < N) sum += double(to_math(g[n])) * to_math(g[n]);
    for (n = thread; n < made_sums; n += threads) sum += made[n];
    sum = block_reduce<OPTIMIZER_THREADS>(sum, Add{}, 0.0);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// What all parameters of a step share.
struct Step {
    float factor, lr, decay, beta1, beta2, eps, unbias1, unbias2;
    long long decayed;
    __device__ __forceinline__ void update(float& p, float g, float& m, float& v, long long n) const {
        float own = n < decayed ? decay : 0.0f;
        update_one<ADAMW>(p, g * factor, m, v, lr, own, beta1, beta2, eps, unbias1, unbias2);
    }
};

// ANCHOR: update
// `every`: steps after which the loss scale doubles; 0 where it stays, and then a step that is not finite is
// only left out. max_norm is 0 where the gradient is not clipped.
template <class T, class G = float>
__global__ void __launch_bounds__(OPTIMIZER_THREADS, 3)
    adamw(float* __restrict__ p, T* __restrict__ copy, const G* __restrict__ g, float* __restrict__ m,
          float* __restrict__ v, const double* __restrict__ squares, const double* __restrict__ rates,
          const double* __restrict__ loss, long long* counts, double* numbers, double beta1, double beta2,
          double eps, double decay, double max_norm, int every, int blocks, long long steps, long long decayed,
          int ranks, long long N) {
    long long thread = blockIdx.x * 1ll * OPTIMIZER_THREADS + threadIdx.x;
    long long threads = gridDim.x * 1ll * OPTIMIZER_THREADS;
    auto load = [&](long long n) {
        return n < N / FOUR ? Four{load_pack(p + n * FOUR), load_four(g + n * FOUR), load_pack(m + n * FOUR),
                                   load_pack(v + n * FOUR)}
                            : Four{};
    };
    Four next = load(thread);  // on its way while the norm is computed
    Progress at{counts, numbers};
    double scale = numbers[SCALE], norm = sqrt(sum_of(squares, blocks)) / scale, factor = 1 / scale;
    if (max_norm > 0 && max_norm / (norm + 1e-6) < 1) factor *= max_norm / (norm + 1e-6);
    bool good = finite(*loss) && finite(norm);
    Verdict what = every > 0 ? verdict(at, *loss, norm, true) : Verdict{false, good, !good};
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        advance(at, what, beta1, beta2, every);
        if (every == 0) at.next(SCALE, scale);
    }
    if (!what.updates) return;

    double power1 = numbers[POWER1] * beta1, power2 = numbers[POWER2] * beta2;
    double rate = rates[min(counts[STEP], steps - 1)];
    Step step{float(factor), float(rate), float(decay), float(beta1), float(beta2), float(eps),
              float(1 / (1 - power1)), float(1 / (1 - power2)), decayed};
    for (long long n = thread; n < N / FOUR; n += threads) {
        Four now = next;
        next = load(n + threads);
        for (int rank = 1; rank < ranks; ++rank) add_four(now.g, load_four(g + rank * N + n * FOUR));
#pragma unroll
        for (int i = 0; i < FOUR; ++i) step.update(now.p.v[i], now.g.v[i], now.m.v[i], now.v.v[i], n * FOUR + i);
        store_pack(p + n * FOUR, now.p), store_pack(m + n * FOUR, now.m), store_pack(v + n * FOUR, now.v);
        if constexpr (sizeof(T) < sizeof(float))
            *reinterpret_cast<uint2*>(copy + n * FOUR) = {two_halves<T>(now.p.v[0], now.p.v[1]),
                                                          two_halves<T>(now.p.v[2], now.p.v[3])};
    }
    long long n = N / FOUR * FOUR + thread;
    if (n >= N) return;
    step.update(p[n], to_math(g[n]), m[n], v[n], n);
    if constexpr (sizeof(T) < sizeof(float)) copy[n] = from_math<T>(p[n]);
}
// ANCHOR_END: update
