// What a block of tensor_chunks.cu gathers in shared memory, and how it comes there.
#pragma once
#include "lab/gdn/decays.cuh"
#include "lab/gdn/panel_fragments.cuh"
#include "lab/ptx/compute_here.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/vlstm/sequence.cuh"

namespace lab {

constexpr int MAKERS = 256;  // threads

// Which chunk of which head of q and k a block has, of those that a head has room for: its first position and the one behind its
// sequence's last; whether that begins with it. It lies in shared memory, for threads have no registers left.
struct OwnChunk {
    int chunk, first, length, keys, end;
    bool begins;

    __device__ __forceinline__ void set(const Slot& slot, int chunks) {
        const Sequence& own = slot.sequence;
        chunk = blockIdx.x % chunks, keys = own.head, first = own.begin + slot.part * CHUNK;
        end = own.begin + own.length, length = min(CHUNK, end - first), begins = slot.part == 0;
    }
    __device__ __forceinline__ long long row(int S) const { return 1ll * keys * S + first; }
};

template <class T, int KEY> struct Gathered {
    // Columns of V at a time, and of C and dC⁺; places for these.
    static constexpr int PART = KEY > 128 ? 64 : 128, ROWS = 4096 / KEY, PLACES = KEY > 128 ? 1 : 2;
    T q[KEY / PANEL][CHUNK * PANEL], k[KEY / PANEL][CHUNK * PANEL];
    struct Heard {
        T dh[PART / PANEL][CHUNK * PANEL], rest[1][PART * PANEL];  // dH, dRᵀ
    };
    union {
        Heard heard;
        T pairs[2][CHUNK * PANEL];  // dS and Z, when those have been read
    };
    T values[1][PART * PANEL];  // Uᵀ
    union {
        T v[PART / PANEL][CHUNK * PANEL];
        T cells[PLACES][KEY / PANEL][ROWS * PANEL];  // of Cᵀ or dC⁺ᵀ
    };
    Decays decays;
    float2 gamma[CHUNK];
    float of_gate[2][CHUNK], of_beta[2][CHUNK];
    OwnChunk own;
};
static_assert(sizeof(Gathered<__half, 128>) <= 99 * 1024 - 128 && sizeof(Gathered<__half, 256>) <= 99 * 1024 - 128,
              "an RTX 4060 has 99 KB of shared memory for a block");

// A thread's part: the first of its warp's positions, and the first of its own; which half of the keys; which pair of columns of
// eight.
struct Part {
    int row, own_row, half, pair;

    __device__ __forceinline__ Part() {
        int thread = computed_here(threadIdx.x);
        row = thread / 32 % 4 * 16, own_row = row + thread % 32 / 4, half = thread / 128, pair = thread % 4 * 2;
    }
};

// All of a tile, from column c0 on, on its way; zeros past the matrix. A thread has the same columns of every AT_ONCE-th row, which
// are swizzled alike.
template <int PANELS, int CELLS, class T>
__device__ __forceinline__ void copy_tile(T (&to)[PANELS][CELLS], const T* from, int c0, int rows, int columns) {
    constexpr int COLUMNS = PANELS * PANEL, AT_ONCE = MAKERS * 8 / COLUMNS;
    int thread = computed_here(threadIdx.x), r = thread / (COLUMNS / 8), c = thread % (COLUMNS / 8) * 8;
    bool inside = c0 + c < columns;
    T* place = cell(to[c / PANEL], r, c % PANEL);
    from += 1ll * r * columns + c0 + c;
#pragma unroll 1
    for (int n = 0; n < CELLS / PANEL; n += AT_ONCE, from += AT_ONCE * columns, place += AT_ONCE * PANEL)
        async_copy_or_zero<16>(place, from, inside && r + n < rows);
}

// ANCHOR: stream
// C and then dC⁺, ROWS columns of V at a time, through two places: one is read while the next comes. With more than 128 keys there is
// one.
template <class T, int KEY> struct Stream {
    static constexpr int ROWS = Gathered<T, KEY>::ROWS, PLACES = Gathered<T, KEY>::PLACES;
    Gathered<T, KEY>& shared;
    const T *C, *dC;
    long long from;
    int columns, dhqk, slices;

    __device__ __forceinline__ Stream(Gathered<T, KEY>& shared, const T* C, const T* dC, long long from, int columns, int dhqk)
        : shared(shared), C(C), dC(dC), from(from), columns(columns), dhqk(dhqk), slices((columns + ROWS - 1) / ROWS) {
        for (int n = 0; n < PLACES; ++n) fetch(n);
    }
    __device__ __forceinline__ void fetch(int n) {
        int r = (n < slices ? n : n - slices) * ROWS;
        if (n < 2 * slices) copy_tile(shared.cells[n % PLACES], (n < slices ? C : dC) + from + r * dhqk, 0, columns - r, dhqk);
        async_commit();  // of nothing, too: a wait counts groups
    }
    __device__ __forceinline__ void wait() const {
        async_wait<PLACES - 1>();
        __syncthreads();  // the slice of all threads is there
    }
    __device__ __forceinline__ void next(int n) {
        __syncthreads();  // slice n is read
        fetch(n + PLACES);
    }
    __device__ __forceinline__ T (&place(int n) const)[KEY / PANEL][ROWS * PANEL] { return shared.cells[n % PLACES]; }

    // A thread's share of ⟨C, dC⁺⟩, of slice n: what it takes of dC⁺, before the slice of C is there; and then their product.
    static constexpr int PACKS = ROWS * KEY / (MAKERS * 8);
    __device__ __forceinline__ void ask_inner(uint4 (&by)[PACKS], int n) const {
        int e = computed_here(threadIdx.x) * 8, r = e / KEY, c = e % KEY;
        const T* at = dC + (from + (n * ROWS + r) * dhqk + c);
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            constexpr int AT_ONCE = MAKERS * 8 / KEY;
            by[i] = n * ROWS + r + i * AT_ONCE < columns && c < dhqk
                        ? *reinterpret_cast<const uint4*>(at + i * AT_ONCE * dhqk) : make_uint4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ float inner(const uint4 (&by)[PACKS], int n) const {
        int e = computed_here(threadIdx.x) * 8, r = e / KEY, c = e % KEY;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            uint4 of = *reinterpret_cast<const uint4*>(cell(place(n)[c / PANEL], r + i * (MAKERS * 8 / KEY), c % PANEL));
            unsigned a[4] = {of.x, of.y, of.z, of.w}, b[4] = {by[i].x, by[i].y, by[i].z, by[i].w};
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                float2 x = floats_of<T>(a[p]), y = floats_of<T>(b[p]);
                sum += x.x * y.x + x.y * y.y;
            }
        }
        return sum;
    }
};
// ANCHOR_END: stream

}  // namespace lab
