// cooperative_groups::inclusive_scan and exclusive_scan over the lanes of a group.
#pragma once
#include "reduce.h"

namespace cooperative_groups {
template <class Group, class T, class F>
__forceinline__ std::decay_t<T> inclusive_scan(const Group& group, T&& value, F&& f) {
    std::decay_t<T> sum = value;
    coalesced_group lanes = emu_groups::lanes(group);
    unsigned size = lanes.size(), rank = lanes.thread_rank();
    for (unsigned delta = 1; delta < size; delta *= 2) {
        std::decay_t<T> before = lanes.shfl_up(sum, delta);
        if (rank >= delta) sum = f(before, sum);
    }
    return sum;
}
template <class Group, class T>
__forceinline__ std::decay_t<T> inclusive_scan(const Group& group, T&& value) {
    return inclusive_scan(group, value, plus<std::decay_t<T>>());
}
// The first thread gets the zero of sums; CUDA leaves it open for other operators.
template <class Group, class T, class F>
__forceinline__ std::decay_t<T> exclusive_scan(const Group& group, T&& value, F&& f) {
    std::decay_t<T> sum = inclusive_scan(group, value, f);
    coalesced_group lanes = emu_groups::lanes(group);
    sum = lanes.shfl_up(sum, 1);
    return lanes.thread_rank() == 0 ? std::decay_t<T>{} : sum;
}
template <class Group, class T>
__forceinline__ std::decay_t<T> exclusive_scan(const Group& group, T&& value) {
    return exclusive_scan(group, value, plus<std::decay_t<T>>());
}
}  // namespace cooperative_groups
