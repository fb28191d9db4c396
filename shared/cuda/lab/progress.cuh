// Where training stands, on the device, so that a step can be launched again and again without a word
// from the host. There are two copies. The launches of a step read NOW, which the first of them has
// made of NEXT; the last writes NEXT. So no block reads what another of the same launch writes.
#pragma once

namespace lab {

enum Count {
    STEP,     // of the epoch, from 0
    TAKEN,    // steps before this one in all epochs
    UPDATES,  // of them, those that changed the parameters
    GOOD,     // since the loss scale last changed
    SKIPPED,  // in this epoch, for a gradient that was not finite
    STOPPED,  // 1 once a step was not finite: all later ones repeat it, and change nothing
    COUNTS
};
enum Number {
    SCALE,   // of the loss
    POWER1,  // β₁ᵗ after the updates so far
    POWER2,
    NUMBERS
};

struct Progress {
    long long* counts;  // COUNTS of NOW, COUNTS of NEXT
    double* numbers;    // likewise

    // In the first launch of a step, by its first threads.
    __device__ __forceinline__ void begin(int thread) const {
        if (thread < COUNTS) counts[thread] = counts[COUNTS + thread];
        if (thread < NUMBERS) numbers[thread] = numbers[NUMBERS + thread];
    }
    __device__ __forceinline__ void next(Count count, long long value) const {
        counts[COUNTS + count] = value;
    }
    __device__ __forceinline__ void next(Number number, double value) const {
        numbers[NUMBERS + number] = value;
    }
};

// Of neither NaN nor an infinity.
template <class M> __device__ __forceinline__ bool finite(M v) { return v - v == 0; }

}  // namespace lab
