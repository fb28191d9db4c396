// dq and dk of heads that several heads of V share:
//
//   dq_a = Σ dq_h,  dk_a = Σ dk_h       over the `sharing` heads h of V that read head a of Q and K
//
// Work split: a thread has two neighbouring elements, of dq or, in the blocks of the grid's second row, of dk.
#include "lab/halves.cuh"

using namespace lab;

// dq_own, dk_own [heads of V][pairs_of_head], dq, dk [heads of Q][pairs_of_head]: pairs of halves, in words.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS)
    vlstm_sum_heads(const T* __restrict__ dq_own, const T* __restrict__ dk_own, T* __restrict__ dq, T* __restrict__ dk,
                    long long pairs_of_head, int key_heads, int sharing) {
    long long at = 1ll * blockIdx.x * THREADS + threadIdx.x;
    if (at >= key_heads * pairs_of_head) return;
    auto* from = reinterpret_cast<const unsigned*>(blockIdx.y > 0 ? dk_own : dq_own);
    auto* to = reinterpret_cast<unsigned*>(blockIdx.y > 0 ? dk : dq);
    from += at / pairs_of_head * sharing * pairs_of_head + at % pairs_of_head;
    float2 sum = {0, 0};
    for (int head = 0; head < sharing; ++head) {
        float2 own = floats_of<T>(from[head * pairs_of_head]);
        sum.x += own.x, sum.y += own.y;
    }
    to[at] = two_halves<T>(sum.x, sum.y);
}
