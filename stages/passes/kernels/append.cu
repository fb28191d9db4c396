// One position more of each sequence, for attention's next token: q and k are turned by the position, as in rope.cu, and
// k and v take their place behind those of the positions before. With s = lengths[b] - 1, the new one's position:
//
//     q_turned[b, h] = turned(q[b, h], s)      K[b, h, s] = turned(k[b, h], s)      V[b, h, s] = v[b, h]
//
// The position is read from the device's memory, so that the same launch serves every token. Where the sequence has no
// position, or one that there is no room for, nothing is written.
//
// Work split: a thread N columns of the first half of a head, and those of the second half that belong to them; heads of
// q, then of k, then of v.
//
// q: [batch, heads, D], k, v: [batch, shared_heads, D], rows `q_stride` and `kv_stride` apart; q_turned as q, without
// gaps; K, V: [batch, shared_heads, room, D]; table: 2 x room x D / 2, cosines first.
#include "turn.cuh"

using namespace lab;

// ANCHOR: append
template <class T, int N>
__global__ void __launch_bounds__(PASS_THREADS, 4)
    append_to_cache(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                    const int* __restrict__ lengths, const float* __restrict__ table, T* __restrict__ q_turned,
                    T* __restrict__ K, T* __restrict__ V, int batch, int heads, int shared_heads, int half, int room,
                    long long q_stride, long long kv_stride) {
    unsigned packs = half / N, thread = blockIdx.x * PASS_THREADS + threadIdx.x;
    int all = heads + 2 * shared_heads, c = thread % packs * N, h = thread / packs % all, b = thread / packs / all;
    if (b >= batch) return;
    int s = lengths[b] - 1, D = 2 * half;
    if (s < 0 || s >= room) return;
    const T* from = q + b * q_stride + h * D;
    T* to = q_turned + (b * 1ll * heads + h) * D;
    bool is_q = h < heads, is_v = h >= heads + shared_heads;
    if (!is_q) {
        h -= is_v ? heads + shared_heads : heads;
        from = (is_v ? v : k) + b * kv_stride + h * D;
        to = (is_v ? V : K) + ((b * 1ll * shared_heads + h) * room + s) * D;
    }
    float first[N], second[N];
    load_cells<N>(first, from + c);
    load_cells<N>(second, from + c + half);
    if (!is_v) turn_pairs(first, second, table + s * 1ll * half + c, room * 1ll * half, false);
    store_cells<N>(to + c, first);
    store_cells<N>(to + c + half, second);
}
// ANCHOR_END: append
