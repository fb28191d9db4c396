// step.cu on tensor cores, a sequence split over blocks: the keys and values of a cache are read once for up to 16 heads of q that
// share them, which are the rows of both products, as in mma.cu.
//
// Work split: the positions of a sequence come in tiles of 16. A block has the tiles of one of `splits` parts, for 16 heads of q at
// most; a warp has every WARPS-th of these, in a ring of its own: a tile is read while the next one is on its way. A row runs as
// online.cu says, in each warp for itself; then a block adds up what its warps have, and the last block of a sequence what all parts
// have, both in order, so that a sum does not depend on who came first:
//
//     m = max_p m_p      o = Σ_p 2^(m_p - m) o_p / Σ_p 2^(m_p - m) l_p
//
// q, o: batch x heads x D; k, v: batch x heads / group x room x D; lengths: batch, from 1 to room. sums, rows: of each head of q and
// each part o_p [D] and (m_p, l_p). A grid of batch heads / group sixteens splits blocks, where a group has that many sixteens.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ticket.cuh"
#include "weights.cuh"

using namespace lab;

// Heads of a block and positions of a tile.
constexpr int SIXTEEN = 16;

// 16 rows of halves.
template <class T, int ROOM> using Rows = T[ROOM / PANEL][SIXTEEN * PANEL];

template <class T, int ROOM> struct Place {
    Rows<T, ROOM> k, v;
};
template <class T, int ROOM, int WARPS> struct Split {
    Rows<T, ROOM> q;
    Place<T, ROOM> rings[WARPS][2];  // behind its last tile a warp's o_p: 16 x ROOM floats
    float2 rows[WARPS][SIXTEEN];     // and its (m_p, l_p)
    bool ends;
};
template <class T, int ROOM, int WARPS> constexpr int attention_split_shared = sizeof(Split<T, ROOM, WARPS>);

// 16 rows from r0 on, zeros where none is, by LANES lanes.
template <int ROOM, int LANES, class T>
__device__ __forceinline__ void copy_rows(Rows<T, ROOM>& to, Matrix<const T> from, int r0, int lane) {
#pragma unroll
    for (int e = lane * 8; e < SIXTEEN * ROOM; e += LANES * 8) {
        int r = e / ROOM, c = e % ROOM;
        async_copy_or_zero<16>(cell(to[c / PANEL], r, c % PANEL), from.at(r0 + r, c), from.inside(r0 + r, c));
    }
}

// ANCHOR: combine
// Four columns of what parts have, (m_p, l_p) as row_of(p) and o_p as sum_of(p) say; (m, l) of them all is returned.
template <class Row, class Sum>
__device__ __forceinline__ float2 combine(float4& sum, int parts, const Row& row_of, const Sum& sum_of) {
    float m = lowest<float>(), l = 0;
    sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int p = 0; p < parts; ++p) m = max(m, row_of(p).x);
#pragma unroll 4
    for (int p = 0; p < parts; ++p) {
        float2 row = row_of(p);
        float4 x = *reinterpret_cast<const float4*>(sum_of(p));
        float share = row.x == lowest<float>() ? 0 : power_of_two(row.x - m);  // it may have had no position
        l = fmaf(share, row.y, l);
        sum.x = fmaf(share, x.x, sum.x), sum.y = fmaf(share, x.y, sum.y);
        sum.z = fmaf(share, x.z, sum.z), sum.w = fmaf(share, x.w, sum.w);
    }
    return make_float2(m, l);
}
// ANCHOR_END: combine

// of(r, c) for each four columns c of `count` rows r of D, shared by THREADS threads.
template <int THREADS, class Of> __device__ __forceinline__ void each_four(int count, int D, const Of& of) {
    for (int e = threadIdx.x * 4; e < count * D; e += THREADS * 4) of(e / D, e % D);
}

// What a warp has of its 16 rows, to shared memory.
template <int ROOM>
__device__ __forceinline__ void leave_rows(float (*sums)[ROOM], float2* rows, const float (&out)[ROOM / 2], const Running& row) {
    int own = threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float l = warp_reduce<4>(row.sum[r], Add{});
        if (threadIdx.x % 4 == 0) rows[own + 8 * r] = make_float2(row.top[r], l);
    }
#pragma unroll
    for (int n = 0; n < ROOM / 2; n += 2)
        *reinterpret_cast<float2*>(&sums[own + n / 2 % 2 * 8][own_column(n)]) = make_float2(out[n], out[n + 1]);
}

// ANCHOR: split
template <class T, int ROOM, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 3)
    attention_split(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                    const int* __restrict__ lengths, T* __restrict__ o, float* sums, float2* rows, unsigned* tickets,
                    int heads, int group, int splits, int room, int D, float log2_scale) {
    static_assert(attention_split_shared<T, ROOM, WARPS> <= 99 * 1024, "an RTX 4060 has 99 KB of shared memory for a block");
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<Split<T, ROOM, WARPS>*>(memory);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = blockIdx.x % splits, those = blockIdx.x / splits;
    int sixteens = (group + SIXTEEN - 1) / SIXTEEN, of_group = those % sixteens * SIXTEEN, kv = those / sixteens;
    int head = kv * group + of_group, count = min(SIXTEEN, group - of_group);
    int length = min(lengths[kv / (heads / group)], room), tiles = (length + SIXTEEN - 1) / SIXTEEN;
    int first = 1ll * tiles * split / splits + warp, end = 1ll * tiles * (split + 1) / splits;
    Matrix<const T> K{k + 1ll * kv * room * D, length, D}, V{v + 1ll * kv * room * D, length, D};
    int last[2] = {length - 1, length - 1};
    auto fetch = [&](Place<T, ROOM>& place, int tile) {
        if (tile < end) {
            copy_rows<ROOM, 32>(place.k, K, tile * SIXTEEN, lane);
            copy_rows<ROOM, 32>(place.v, V, tile * SIXTEEN, lane);
        }
        async_commit();  // a group without copies counts, too
    };

    float out[ROOM / 2] = {};
    unsigned query[ROOM / 16][4], b[4], pairs[1][4];
    Running row;
    copy_rows<ROOM, WARPS * 32>(shared.q, Matrix<const T>{q + 1ll * head * D, count, D}, 0, threadIdx.x);
    fetch(shared.rings[warp][0], first);
    fetch(shared.rings[warp][1], first + WARPS);
    async_wait<1>();
    __syncthreads();  // each warp reads all of q
#pragma unroll
    for (int c = 0; c < ROOM; c += 16)
        load_matrices(query[c / 16], cell(shared.q[c / PANEL], lane % 16, c % PANEL + lane / 16 * 8));
    for (int tile = first, turn = 0; tile < end; tile += WARPS, turn ^= 1) {
        auto& place = shared.rings[warp][turn];
        float score[8] = {};
        async_wait<1>();
        __syncwarp();  // what other lanes have copied is there
#pragma unroll
        for (int c = 0; c < ROOM; c += 16) {
            load_matrices(b, cell(place.k[c / PANEL], lane / 16 * 8 + lane % 8, c % PANEL + lane / 8 % 2 * 8));
            multiply_add_16<T>(score, query[c / 16], b);
        }
        if (tile == tiles - 1) hide_later(score, last, tile * SIXTEEN);
        scale_rows(out, row.weigh(score, log2_scale));
        round_pairs<T>(pairs, score);
#pragma unroll
        for (int c = 0; c < ROOM; c += 16) {
            load_matrices_transposed(b, cell(place.v[c / PANEL], lane % 16, c % PANEL + lane / 16 * 8));
            multiply_add_16<T>(out + c / 2, pairs[0], b);
        }
        __syncwarp();  // all lanes have read the tile, whose place comes next
        fetch(place, tile + 2 * WARPS);
    }
    // ANCHOR_END: split

    auto sums_of = [&](int w) { return reinterpret_cast<float(*)[ROOM]>(&shared.rings[w]); };
    leave_rows<ROOM>(sums_of(warp), shared.rows[warp], out, row);
    __syncthreads();  // what all warps have is there
    auto part = [&](int r, int p) { return (1ll * head + r) * splits + p; };
    auto finish = [&](int r, int c, float l, const float4& sum) {
        float four[4] = {sum.x / l, sum.y / l, sum.z / l, sum.w / l};
        Matrix<T>{o + 1ll * head * D, count, D}.template store<true>(four, r, c);
    };
    float4 sum;
    each_four<WARPS * 32>(count, D, [&](int r, int c) {
        float2 of_all = combine(
            sum, WARPS, [&](int w) { return shared.rows[w][r]; }, [&](int w) { return &sums_of(w)[r][c]; });
        if (splits == 1) return finish(r, c, of_all.y, sum);
        *reinterpret_cast<float4*>(sums + part(r, split) * D + c) = sum;
        if (c == 0) rows[part(r, split)] = of_all;
    });
    if (splits == 1) return;
    __syncthreads();  // the part is written
    if (threadIdx.x == 0) shared.ends = last_to_come(tickets + those, splits);
    __syncthreads();  // all have the answer
    if (!shared.ends) return;
    each_four<WARPS * 32>(count, D, [&](int r, int c) {
        float2 of_all = combine(
            sum, splits, [&](int p) { return rows[part(r, p)]; }, [&](int p) { return sums + part(r, p) * D + c; });
        finish(r, c, of_all.y, sum);
    });
}
