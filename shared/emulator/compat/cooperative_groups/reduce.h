// cooperative_groups::reduce: over the lanes of a tile or of a coalesced group.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {
#define EMU_OPERATOR(name, expression)                                             \
    template <class T = void> struct name {                                        \
        __forceinline__ T operator()(const T& a, const T& b) const { return expression; } \
    };                                                                             \
    template <> struct name<void> {                                                \
        template <class T> __forceinline__ T operator()(const T& a, const T& b) const { \
            return expression;                                                     \
        }                                                                          \
    };
EMU_OPERATOR(plus, T(a + b))
EMU_OPERATOR(less, b < a ? b : a)
EMU_OPERATOR(greater, a < b ? b : a)
EMU_OPERATOR(bit_and, T(a & b))
EMU_OPERATOR(bit_or, T(a | b))
EMU_OPERATOR(bit_xor, T(a ^ b))
#undef EMU_OPERATOR

namespace emu_groups {
template <class Group> __forceinline__ coalesced_group lanes(const Group& group) {
    return coalesced_group(group.mask(), 0, 1);
}
__forceinline__ coalesced_group lanes(const thread_group& group) { return group.as_lanes(); }
}  // namespace emu_groups

// By halves, where the group is a power of two, in the order that shuffles have on a GPU; else one
// thread after the other.
template <class Group, class T, class F>
__forceinline__ std::decay_t<T> reduce(const Group& group, T&& value, F&& f) {
    std::decay_t<T> sum = value;
    coalesced_group lanes = emu_groups::lanes(group);
    unsigned size = lanes.size();
    if ((size & (size - 1)) == 0) {
        for (unsigned half = size / 2; half > 0; half /= 2) sum = f(sum, lanes.shfl_xor(sum, half));
        return sum;
    }
    std::decay_t<T> own = sum;
    sum = lanes.shfl(own, 0);
    for (unsigned i = 1; i < size; ++i) sum = f(sum, lanes.shfl(own, int(i)));
    return sum;
}
// One thread hands the group's result to an atomic.
template <class Group, class A, class T, class F>
__forceinline__ void reduce_update_async(const Group& group, A& atomic, T&& value, F&& f) {
    auto sum = reduce(group, value, f);
    if (group.thread_rank() != 0) return;
    auto old = atomic.load();
    while (!atomic.compare_exchange_weak(old, f(old, sum))) {}
}
}  // namespace cooperative_groups
