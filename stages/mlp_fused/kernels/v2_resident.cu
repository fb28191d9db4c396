// N training steps of a pair each in one launch, with all parameters in shared memory: of a cluster of
// 16 blocks, or, on devices without, of 16 blocks of a cooperative launch. The equations are those of
// mlp.cuh.
//
// A block has a sixteenth of the vocabulary: its rows of emb, of w2 and of b2. Each has all of w1 and b1,
// computes the same hidden layer and moves them alike. Blocks meet once a step. A softmax is of all logits,
// and what w2ᵀ dz needs of it are two numbers, so that each block sends all others, before it knows them,
//
//   m = max z_v      s = Σ exp(z_v − m)      u_j = Σ exp(z_v − m) w2_vj      of its own v
//
// and the owner of the target its row of w2, the owner of the next token its embedding. Then every block
// has M = max m, S = Σ s exp(m − M) and  da = [h > 0] (Σ u exp(m − M) / S − w2_target).
//
// Where the next token is this one, its embedding moves in this step; each block works that out for
// itself.
//
// Work split, 256 threads: of h and of da 256 / HT threads a unit; of z four a row of w2; of u a warp has
// some rows and its lanes the columns; of w1 and dx 4 columns a thread, 1024 / ET of them share the rows.
//
// HT, ET: room for H and E. What is past H, E and V is zero, and stays so.
#include "lab/exchange.cuh"
#include "lab/reduce.cuh"
#include "lab/scalar.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/tile.cuh"

using namespace lab;

constexpr int BLOCKS = 16, THREADS = 256, WARPS = THREADS / 32, LANES_Z = 4;

// Numbers of a block in shared memory. Rows of w1 are 8 banks apart and those of w2 16, so that the threads
// that read different rows read different banks.
template <int HT, int ET> struct Places {
    static constexpr int ROW1 = ET + 8, ROW2 = HT + 16;
    static constexpr int OF_RANK = HT + 2;  // u, m, s
    static constexpr int TARGET = BLOCKS * OF_RANK, NEXT = TARGET + HT, COUNT = NEXT + ET;
    static constexpr int PARTS = WARPS * HT > 1024 ? WARPS * HT : 1024;
    static_assert(THREADS % HT == 0 && ET % 4 == 0 && HT % 16 == 0, "change HT or ET");
    float *box, *w1, *b1, *h, *da, *x, *parts, *w2, *b2, *e, *emb;

    // With `rows` of the vocabulary, a multiple of 8: a warp has 8 of them at a time, or none.
    __device__ __forceinline__ Places(float* memory, int rows) {
        auto take = [&](int n) {
            float* own = memory;
            memory += n;
            return own;
        };
        box = take(2 * COUNT), w1 = take(HT * ROW1), b1 = take(HT), h = take(HT), da = take(HT);
        x = take(ET), parts = take(PARTS), w2 = take(rows * ROW2), b2 = take(rows), e = take(rows);
        emb = take(rows * ET);
    }
};

// `rows` rows of `columns` from device memory, or zero where there are none; `width` in shared memory.
__device__ __forceinline__ void fetch(float* to, int width, int room, const float* from, int rows,
                                      int columns, int room_rows) {
    for (int n = threadIdx.x; n < room_rows * room; n += THREADS) {
        int r = n / room, c = n % room;
        to[r * width + c] = r < rows && c < columns ? from[r * 1ll * columns + c] : 0.0f;
    }
}
__device__ __forceinline__ void put_back(float* to, const float* from, int width, int rows,
                                         int columns) {
    for (int n = threadIdx.x; n < rows * columns; n += THREADS)
        to[n] = from[n / columns * width + n % columns];
}

// Σ_c a_c b_c over this lane's fours of COLUMNS, then over LANES neighbours.
template <int COLUMNS, int LANES>
__device__ __forceinline__ float dot(const float* a, const float* b, int lane) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < COLUMNS; c += 4 * LANES) {
        Pack<float> of_a = load_pack(a + c + 4 * lane), of_b = load_pack(b + c + 4 * lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += of_a.v[i] * of_b.v[i];
    }
    return warp_reduce<LANES>(sum, Add{});
}

// to −= factor by, four at a time.
__device__ __forceinline__ void move_four(float* to, float factor, const Pack<float>& by) {
    Pack<float> four = load_pack(to);
#pragma unroll
    for (int i = 0; i < 4; ++i) four.v[i] -= factor * by.v[i];
    store_pack(to, four);
}

// This thread's value into `place` of all blocks' boxes: SHARES neighbours have the same one, and each sends
// it to its share of the blocks.
template <int SHARES, class X>
__device__ __forceinline__ void send_all(const X& exchange, int place, int share, float value) {
#pragma unroll
    for (int b = 0; b < BLOCKS / SHARES; ++b) exchange.send(share * (BLOCKS / SHARES) + b, place, value);
}

// A grid of 16 blocks of 256 threads: a cluster, or cooperative with `post` and `flags`. emb to b2 go in,
// *_to come out.
template <int HT, int ET>
__global__ void __launch_bounds__(THREADS)
    resident(const int* __restrict__ tokens, const int* __restrict__ targets,
             const float* __restrict__ emb, const float* __restrict__ w1,
             const float* __restrict__ b1, const float* __restrict__ w2,
             const float* __restrict__ b2, float* __restrict__ emb_to, float* __restrict__ w1_to,
             float* __restrict__ b1_to, float* __restrict__ w2_to, float* __restrict__ b2_to,
             double* __restrict__ losses, float* post, unsigned* flags, float lr, int steps, int V,
             int E, int H, int clustered) {
    using P = Places<HT, ET>;
    constexpr int UNIT = THREADS / HT;  // threads of a unit
    constexpr int OF_X = ET / 4, GROUPS = THREADS / OF_X;
    __shared__ float largest_of[WARPS];
    DYNAMIC_SHARED(float, memory);
    int rank = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int each = (V + BLOCKS - 1) / BLOCKS, v0 = rank * each, room = (each + 7) / 8 * 8;
    int rows = max(0, min(each, V - v0));
    P my(memory, room);
    int j = threadIdx.x / UNIT, share = threadIdx.x % UNIT;      // of h, u and da
    int row = threadIdx.x / LANES_Z, lane_z = threadIdx.x % LANES_Z;  // of w2
    int group = threadIdx.x / OF_X, e4 = threadIdx.x % OF_X * 4;     // of w1

    fetch(my.w2, P::ROW2, HT, w2 + v0 * 1ll * H, rows, H, room);
    fetch(my.b2, 1, 1, b2 + v0, rows, 1, room);
    fetch(my.emb, ET, ET, emb + v0 * 1ll * E, rows, E, room);
    fetch(my.w1, P::ROW1, ET, w1, H, E, HT);
    fetch(my.b1, 1, 1, b1, H, 1, HT);
    int token = tokens[0], next = steps > 1 ? tokens[1] : token, target = targets[0];
    fetch(my.x, ET, ET, emb + token * 1ll * E, 1, E, 1);
    Exchange<float, P::COUNT, BLOCKS, THREADS> exchange{my.box, post, flags, rank, clustered != 0};
    exchange.begin();

    for (int s = 0; s < steps; ++s) {
        // On their way while this step goes on.
        int after = s + 2 < steps ? tokens[s + 2] : next;
        int next_target = s + 1 < steps ? targets[s + 1] : target;

        // ANCHOR: own
        float a = dot<ET, UNIT>(my.w1 + j * P::ROW1, my.x, share) + my.b1[j];
        if (share == 0) my.h[j] = a < 0 ? 0.0f : a;
        __syncthreads();  // a logit takes all of h
        float m = lowest<float>();
        for (int v = row; v < room; v += THREADS / LANES_Z) {
            float z = dot<HT, LANES_Z>(my.w2 + v * P::ROW2, my.h, lane_z) + my.b2[v];
            if (v >= rows) continue;
            m = max(m, z);
            if (lane_z == 0) my.e[v] = z;
        }
        m = warp_reduce(m, Max{});
        if (lane == 0) largest_of[warp] = m;
        __syncthreads();  // the largest is of all logits of the block
        for (float other : largest_of) m = max(m, other);
        float z_target = target - v0 >= 0 && target - v0 < rows ? my.e[target - v0] : 0.0f;
        __syncthreads();  // the target's logit is read: exponentials take the place of logits
        for (int v = threadIdx.x; v < room; v += THREADS) my.e[v] = v < rows ? expf(my.e[v] - m) : 0.0f;
        __syncthreads();  // u takes all exponentials
        for (int c = 4 * lane; c < HT; c += 128) {
            Pack<float> sum{};
            for (int v = warp; v < room; v += WARPS) {
                Pack<float> w = load_pack(my.w2 + v * P::ROW2 + c);
#pragma unroll
                for (int i = 0; i < 4; ++i) sum.v[i] += my.e[v] * w.v[i];
            }
            store_pack(my.parts + warp * HT + c, sum);
        }
        float total = 0;
        for (int v = lane; v < room; v += 32) total += my.e[v];
        total = warp_reduce(total, Add{});
        __syncthreads();  // the parts of all warps are there
        float u = 0;
        for (int w = 0; w < WARPS; ++w) u += my.parts[w * HT + j];
        // ANCHOR_END: own

        // ANCHOR: exchange
        send_all<UNIT>(exchange, rank * P::OF_RANK + j, share, u);
        if (threadIdx.x < 2 * BLOCKS)
            exchange.send(threadIdx.x / 2, rank * P::OF_RANK + HT + threadIdx.x % 2,
                          threadIdx.x % 2 ? total : m);
        if (target - v0 >= 0 && target - v0 < rows)
            send_all<UNIT>(exchange, P::TARGET + j, share, my.w2[(target - v0) * P::ROW2 + j]);
        if (next - v0 >= 0 && next - v0 < rows)
            for (int n = threadIdx.x; n < ET * BLOCKS; n += THREADS)
                exchange.send(n / ET, P::NEXT + n % ET, my.emb[(next - v0) * ET + n % ET]);
        exchange.meet();
        const float* box = exchange.read();
        float of_rank = box[lane % BLOCKS * P::OF_RANK + HT];
        float largest = warp_reduce<BLOCKS>(of_rank, Max{});
        of_rank = expf(of_rank - largest);
        float sum = warp_reduce<BLOCKS>(of_rank * box[lane % BLOCKS * P::OF_RANK + HT + 1], Add{});
        float dh = 0;
#pragma unroll
        for (int n = 0; n < BLOCKS / UNIT; ++n) {
            int r = share * (BLOCKS / UNIT) + n;
            dh += box[r * P::OF_RANK + j] * __shfl_sync(0xffffffffu, of_rank, r);
        }
        dh = warp_reduce<UNIT>(dh, Add{}) / sum - box[P::TARGET + j];
        if (share == 0) my.da[j] = my.h[j] > 0 ? dh : 0.0f;
        if (target - v0 >= 0 && target - v0 < rows && threadIdx.x == 0)
            losses[s] = double(logf(sum) + (largest - z_target));
        __syncthreads();  // w1 takes all of da
        // ANCHOR_END: exchange

        // ANCHOR: descent
        float own = expf(m - largest) / sum;  // of softmax over exponential, in this block
        for (int v = row; v < rows; v += THREADS / LANES_Z) {
            float step = lr * (my.e[v] * own - float(v0 + v == target));
#pragma unroll
            for (int c = 4 * lane_z; c < HT; c += 4 * LANES_Z)
                move_four(my.w2 + v * P::ROW2 + c, step, load_pack(my.h + c));
            if (lane_z == 0) my.b2[v] -= step;
        }
        Pack<float> x = load_pack(my.x + e4), dx{};
        for (int i = group; i < HT; i += GROUPS) {
            float da = my.da[i];
            Pack<float> w = load_pack(my.w1 + i * P::ROW1 + e4);
#pragma unroll
            for (int c = 0; c < 4; ++c) dx.v[c] += da * w.v[c], w.v[c] -= lr * da * x.v[c];
            store_pack(my.w1 + i * P::ROW1 + e4, w);
        }
        store_pack(my.parts + group * ET + e4, dx);
        if (share == 0) my.b1[j] -= lr * my.da[j];
        __syncthreads();  // dx is the sum of all groups'
        if (threadIdx.x < ET) {
            int e = threadIdx.x;
            float sum = 0;
            for (int g = 0; g < GROUPS; ++g) sum += my.parts[g * ET + e];
            float moved = my.x[e] - lr * sum;
            if (token - v0 >= 0 && token - v0 < rows) my.emb[(token - v0) * ET + e] = moved;
            my.x[e] = next == token ? moved : box[P::NEXT + e];
        }
        __syncthreads();  // the next step takes x, and what has moved
        // ANCHOR_END: descent
        token = next, next = after, target = next_target;
    }
    put_back(w2_to + v0 * 1ll * H, my.w2, P::ROW2, rows, H);
    put_back(b2_to + v0, my.b2, 1, rows, 1);
    put_back(emb_to + v0 * 1ll * E, my.emb, ET, rows, E);
    if (rank > 0) return;
    put_back(w1_to, my.w1, P::ROW1, H, E);
    put_back(b1_to, my.b1, 1, H, 1);
}
