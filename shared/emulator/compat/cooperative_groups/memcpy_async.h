// cooperative_groups::memcpy_async, by the group's threads. Each call is a stage of its own.
#pragma once
#include "../cooperative_groups.h"
#include "../copies.h"

namespace cooperative_groups {
// A size that promises an alignment says it all; else the type does, and bytes behind its last multiple are left out.
template <class Group, class T, class Size>
__forceinline__ void memcpy_async(const Group& group, T* to, const T* from, const Size& bytes) {
    constexpr size_t promised = emu::promised_alignment<Size>;
    constexpr size_t alignment = promised > 1 ? promised : emu::own_alignment<T>;
    constexpr size_t needed = alignment < 16 ? alignment : 16;
    size_t whole = needed < 4 ? size_t(bytes) : size_t(bytes) / needed * needed;
    emu::copy_async<alignment>(group.thread_rank(), group.size(), to, from, whole);
    emu_async_commit();
}
// With the places that either side has: as many as both do.
template <class Group, class T, class U, class N, class M>
__forceinline__ void memcpy_async(const Group& group, T* to, const N& places, const U* from,
                                  const M& elements) {
    size_t count = size_t(places) < size_t(elements) ? size_t(places) : size_t(elements);
    constexpr size_t promised = emu::promised_alignment<N>;
    auto* source = static_cast<const T*>(from);
    if constexpr (promised > 1)
        memcpy_async(group, to, source, cuda::aligned_size_t<promised>(count * sizeof(T)));
    else
        memcpy_async(group, to, source, count * sizeof(T));
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
