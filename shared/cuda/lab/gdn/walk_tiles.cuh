// What walks over the chunks of a head on tensor cores share, forward and back.
//
// A warp has 16 columns of V, as rows of transposed matrices: Cᵀ [16, KEY], or Uᵀ, Hᵀ and the like [16, CHUNK]. A lane holds them as
// the sums of a product, and so as the left operand of the next (lab/ptx/mma.cuh).
#pragma once
#include "lab/gdn/decays.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/sequence.cuh"
#include "lab/vlstm/warp_tiles.cuh"

namespace lab {

constexpr int VALUE = 64, WALKERS = 128;  // columns of a block, 16 a warp, and its threads

// What a chunk brings.
template <class T, int KEY> struct Place {
    T q[KEY / PANEL][CHUNK * PANEL], k[KEY / PANEL][CHUNK * PANEL];
    T v[1][CHUNK * PANEL], inverse[1][CHUNK * PANEL], pairs[1][CHUNK * PANEL];
    Decays decays;
};

// A multiprocessor of an H100 is to have room for two blocks, and an RTX 4060 for one. With more than 64 keys that is a place each:
// then other blocks work while a chunk is on its way.
template <int KEY> constexpr int PLACES = KEY > 64 ? 1 : 2;
template <class T, int KEY> constexpr int WALK_BYTES = PLACES<KEY> * sizeof(Place<T, KEY>);
static_assert(WALK_BYTES<__half, 256> <= 99 * 1024, "an RTX 4060 has 99 KB of shared memory for a block: fewer keys");

// Tensors of a head, from a block's first column on.
template <class T> struct Head {
    Matrix<const T> q, k, v, inverse, pairs;
    Matrix<T> h;
    const Decays* decays;
    int value;
};

// CHUNK rows of panels, from r0 and c0 on, on their way; zeros past the matrix. A thread has the same eight columns of each panel,
// and every 16th row, which is swizzled as the first: so it needs one address of each side.
template <class T, int PANELS>
__device__ __forceinline__ void copy_rows(T (&to)[PANELS][CHUNK * PANEL], Matrix<const T> from, int r0, int c0) {
    constexpr int AT_ONCE = WALKERS * 8 / PANEL;
    int r = threadIdx.x / 8, c = c0 + threadIdx.x % 8 * 8;
    const T* at = from.at(r0 + r, c);
    T* place = cell(to[0], r, threadIdx.x % 8 * 8);
    // Not unrolled: its addresses would take the place of the state's registers.
#pragma unroll 1
    for (int n = 0; n < CHUNK; n += AT_ONCE, at += AT_ONCE * from.columns, place += AT_ONCE * PANEL)
#pragma unroll
        for (int p = 0; p < PANELS; ++p)
            async_copy_or_zero<16>(place + p * CHUNK * PANEL, at + p * PANEL,
                                   from.inside(r0 + r + n, c + p * PANEL));
}

// Asks for a chunk's rows; for what the launch before has made of it; for its gates.
template <class P, class T>
__device__ __forceinline__ void copy_positions(P& place, const Head<T>& head, int chunk) {
    copy_rows(place.k, head.k, chunk * CHUNK, 0);
    copy_rows(place.q, head.q, chunk * CHUNK, 0);
    copy_rows(place.v, head.v, chunk * CHUNK, head.value);
}
template <class P, class T> __device__ __forceinline__ void copy_weights(P& place, const Head<T>& head, int chunk) {
    copy_rows(place.inverse, head.inverse, chunk * CHUNK, 0);
    copy_rows(place.pairs, head.pairs, chunk * CHUNK, 0);
}
template <class T> __device__ __forceinline__ void copy_decays(Decays& to, const Head<T>& head, int chunk) {
    constexpr int WORDS = sizeof(Decays) / 16;
    if (threadIdx.x < WORDS)
        async_copy<16>(reinterpret_cast<uint4*>(&to) + threadIdx.x,
                       reinterpret_cast<const uint4*>(head.decays + chunk) + threadIdx.x);
}

// Asks for a chunk.
template <class T, int KEY>
__device__ __forceinline__ void fetch(Place<T, KEY>& place, const Head<T>& head, int chunk) {
    copy_positions(place, head, chunk);
    copy_weights(place, head, chunk);
    copy_decays(place.decays, head, chunk);
    async_commit();
}

// Where a lane's rows of a panel's matrices begin, in elements from the first of 16 rows: once for all chunks, so that what is left
// to add is known when this is compiled. For each 16 columns of a panel: `right` as the right operand whose columns the rows are,
// `turned` as that whose rows they are; and of a warp's own columns of V as the left operand, turned, which is right[warp].
struct Offsets {
    int right[4], turned[4], own;

    __device__ __forceinline__ Offsets() {
        int lane = threadIdx.x % 32, swizzle = lane % 8;
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            right[m] = (lane / 16 * 8 + lane % 8) * PANEL + ((2 * m + lane / 8 % 2) ^ swizzle) * 8;
            turned[m] = lane % 16 * PANEL + ((2 * m + lane / 16) ^ swizzle) * 8;
        }
        int warp = threadIdx.x / 32;
        own = (lane / 16 * 8 + lane % 8) * PANEL + ((2 * warp + lane / 8 % 2) ^ swizzle) * 8;
    }
};

// Two neighbours of each 8 positions, which a lane has in words w of 16 positions from j on.
__device__ __forceinline__ float2 own_pair(const float* of, int j, int w) {
    return *reinterpret_cast<const float2*>(of + j + w / 2 * 8 + threadIdx.x % 4 * 2);
}

// A column of Cᵀ that a lane has as state[n], and its row among the block's.
__device__ __forceinline__ int key_of(int n) { return n / 4 * 8 + threadIdx.x % 4 * 2 + n % 2; }
__device__ __forceinline__ int value_of(int n) { return own_row() + n / 2 % 2 * 8; }

template <int KEY>
__device__ __forceinline__ void load_state(float (&state)[KEY / 2], const float* C, int value, int dhqk, int dhhv) {
#pragma unroll
    for (int n = 0; n < KEY / 2; ++n) {
        int r = key_of(n), c = value + value_of(n);
        state[n] = C && r < dhqk && c < dhhv ? C[r * dhhv + c] : 0;
    }
}
template <int KEY>
__device__ __forceinline__ void store_state(const float (&state)[KEY / 2], float* C, int value, int dhqk, int dhhv) {
#pragma unroll
    for (int n = 0; n < KEY / 2; ++n) {
        int r = key_of(n), c = value + value_of(n);
        if (r < dhqk && c < dhhv) C[r * dhhv + c] = state[n];
    }
}

// sum += xᵀ weightsᵀ, of weights below the diagonal.
template <class T>
__device__ __forceinline__ void multiply_triangle(float (&sum)[CHUNK / 2], const unsigned (&x)[CHUNK / 16][4],
                                                  const T* weights, const Offsets& at) {
#pragma unroll
    for (int j = 0; j < CHUNK; j += 16)
#pragma unroll
        for (int i = j; i < CHUNK; i += 16) {
            unsigned b[4];
            load_matrices(b, weights + i * PANEL + at.right[j / 16]);
            multiply_add_16<T>(sum + i / 2, x[j / 16], b);
        }
}

// Cᵀ += left X, of X in panels [position][key].
template <class T, int KEY>
__device__ __forceinline__ void add_to_state(float (&state)[KEY / 2], const unsigned (&left)[CHUNK / 16][4],
                                             const T (&x)[KEY / PANEL][CHUNK * PANEL], const Offsets& at) {
#pragma unroll
    for (int j = 0; j < CHUNK; j += 16)
#pragma unroll
        for (int c = 0; c < KEY; c += 16) {
            unsigned b[4];
            load_matrices_transposed(b, x[c / PANEL] + j * PANEL + at.turned[c % PANEL / 16]);
            multiply_add_16<T>(state + c / 2, left[j / 16], b);
        }
}

// A warp's hᵀ, by way of its columns of V, which it alone reads and has read: rows of 32 bytes.
template <class T, class P>
__device__ __forceinline__ void store_rows(const float (&out)[CHUNK / 2], P& place, const Head<T>& head, int first) {
    int lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
    __syncwarp();  // all lanes have read V
#pragma unroll
    for (int n = 0; n < CHUNK / 2; ++n) *cell(place.v[0], key_of(n), value_of(n)) = from_math<T>(out[n]);
    __syncwarp();  // a lane reads what others have stored
#pragma unroll
    for (int r = 0; r < CHUNK; r += 16) {
        int i = r + lane / 2, c = own + lane % 2 * 8;
        if (head.h.inside(first + i, head.value + c))
            *reinterpret_cast<uint4*>(head.h.at(first + i, head.value + c)) =
                *reinterpret_cast<const uint4*>(cell(place.v[0], i, c));
    }
}

// Of a block: its head's tensors, from its columns on; of packed sequences, from its own sequence on. A head has room for `chunks`.
template <class T>
__device__ __forceinline__ Head<T> own_head(const Sequence& own, const T* q, const T* k, const T* v, T* h, const T* inverse,
                                            const T* pairs, const Decays* decays, int chunks, int dhqk, int dhhv, int group,
                                            int slices) {
    long long keys = own.shared_row(group) * dhqk, values = own.row() * dhhv, chunk = own.slot(CHUNK, chunks);
    int rows = own.parts(CHUNK) * CHUNK, value = blockIdx.x % slices * VALUE;
    return {{q + keys, own.length, dhqk},
            {k + keys, own.length, dhqk},
            {v + values, own.length, dhhv},
            {inverse + chunk * CHUNK * CHUNK, rows, CHUNK},
            {pairs + chunk * CHUNK * CHUNK, rows, CHUNK},
            {h + values, own.length, dhhv},
            decays + chunk,
            value};
}

}  // namespace lab
