// cooperative_groups::memcpy_async, by the group's threads. Each call is a stage of its own.
#pragma once
#include "../cooperative_groups.h"
#include "../copies.h"

namespace cooperative_groups {
template <class Group, class T, class Size>
__forceinline__ void memcpy_async(const Group& group, T* to, const T* from, const Size& bytes) {
    emu::copy_async(group.thread_rank(), group.size(), to, from, bytes);
    emu_async_commit();
}
// With the places that either side has: as many as both do.
template <class Group, class T, class U, class N, class M>
__forceinline__ void memcpy_async(const Group& group, T* to, const N& places, const U* from,
                                  const M& elements) {
    size_t count = size_t(places) < size_t(elements) ? size_t(places) : size_t(elements);
    memcpy_async(group, to, static_cast<const T*>(from), count * sizeof(T));
}
template <class Group> __forceinline__ void wait(const Group& group) {
    emu_async_wait(0);
    group.sync();
}
template <unsigned STAGES, class Group> __forceinline__ void wait_prior(const Group& group) {
    emu_async_wait(STAGES);
    group.sync();
}
}  // namespace cooperative_groups
