// cooperative_groups::memcpy_async, done at once by the group's threads. What it is not: late. A
// forgotten wait is seen as the race that it is between the group's threads, not as a stale read.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {
template <class Group, class T>
__forceinline__ void memcpy_async(const Group& group, T* to, const T* from, size_t bytes) {
    if constexpr (std::is_void<T>::value) {
        memcpy_async(group, static_cast<char*>(to), static_cast<const char*>(from), bytes);
    } else {
        size_t count = bytes / sizeof(T), size = group.size();
        for (size_t i = group.thread_rank(); i < count; i += size) to[i] = from[i];
    }
}
// With the places that either side has: as many as both do.
template <class Group, class T, class U, class N, class M>
__forceinline__ void memcpy_async(const Group& group, T* to, const N& places, const U* from,
                                  const M& elements) {
    size_t count = size_t(places) < size_t(elements) ? size_t(places) : size_t(elements);
    memcpy_async(group, to, static_cast<const T*>(from), count * sizeof(T));
}
template <class Group> __forceinline__ void wait(const Group& group) { group.sync(); }
template <unsigned STAGES, class Group> __forceinline__ void wait_prior(const Group& group) {
    group.sync();
}
}  // namespace cooperative_groups
