// What a step of an optimizer does with one parameter, and with the whole of them: the pieces of lab/optimizer.cuh, which
// has the equations.
#pragma once
#include "lab/progress.cuh"
#include "lab/reduce.cuh"
#include "lab/scalar.cuh"

namespace lab {

enum Rule { SGD, ADAM, ADAMW };

constexpr int OPTIMIZER_THREADS = 256;

// The loss scale stays between these.
constexpr double LEAST_SCALE = 1.0 / 65536, LARGEST_SCALE = 16777216;

// The sum of the blocks' sums of squares: the same in every block.
__device__ __forceinline__ double sum_of(const double* squares, int blocks) {
    double sum = 0;
    for (int b = threadIdx.x; b < blocks; b += OPTIMIZER_THREADS) sum += squares[b];
    return block_reduce<OPTIMIZER_THREADS>(sum, Add{}, 0.0);
}

// What the step is to do, the same in all blocks.
struct Verdict {
    bool stops, updates, skips;
};
__device__ __forceinline__ Verdict verdict(const Progress& at, double loss, double norm,
                                           bool dynamic) {
    bool may_skip = dynamic && at.numbers[SCALE] > LEAST_SCALE;
    bool stops = at.counts[STOPPED] || !finite(loss) || (!finite(norm) && !may_skip);
    return {stops, !stops && finite(norm), !stops && !finite(norm)};
}

// By one thread.
__device__ __forceinline__ void advance(const Progress& at, Verdict v, double beta1, double beta2,
                                        int every) {
    long long good = at.counts[GOOD] + (v.updates ? 1 : 0);
    double scale = at.numbers[SCALE];
    if (v.skips) scale /= 2, good = 0;
    if (every > 0 && good >= every) scale = min(2 * scale, LARGEST_SCALE), good = 0;
    at.next(STEP, at.counts[STEP] + (v.stops ? 0 : 1));
    at.next(TAKEN, at.counts[TAKEN] + (v.stops ? 0 : 1));
    at.next(UPDATES, at.counts[UPDATES] + (v.updates ? 1 : 0));
    at.next(GOOD, good);
    at.next(SKIPPED, at.counts[SKIPPED] + (v.skips ? 1 : 0));
    at.next(STOPPED, v.stops ? 1 : 0);
    at.next(SCALE, scale);
    at.next(POWER1, at.numbers[POWER1] * (v.updates ? beta1 : 1));
    at.next(POWER2, at.numbers[POWER2] * (v.updates ? beta2 : 1));
}

// ANCHOR: rule
// One parameter. `unbias`: 1 / (1 − βᵗ) of both moments. SGD has no v.
template <int RULE, class M>
__device__ __forceinline__ void update_one(M& p, M g, M& m, [[maybe_unused]] M& v, M lr, M decay,
                                           M beta1, M beta2, M eps, M unbias1, M unbias2) {
    if constexpr (RULE == ADAMW) p -= lr * decay * p;
    else g += decay * p;
    if constexpr (RULE == SGD) {
        m = beta1 * m + g;
        p -= lr * m;
    } else {
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        p -= lr * (m * unbias1) / (root(v * unbias2) + eps);
    }
}
// ANCHOR_END: rule

}  // namespace lab
