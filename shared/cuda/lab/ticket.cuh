// Which of several blocks is the last to come.
#pragma once

namespace lab {

// ANCHOR: ticket
// Whether all `blocks` blocks that share a ticket are here, all threads of each of which have met at a barrier since they read or
// wrote what is at stake. One thread asks. The ticket wraps to zero, for the next launch.
__device__ __forceinline__ bool last_to_come(unsigned* ticket, unsigned blocks) {
    __threadfence();
    bool last = atomicInc(ticket, blocks - 1) == blocks - 1;
    __threadfence();
    return last;
}
// ANCHOR_END: ticket

}  // namespace lab
