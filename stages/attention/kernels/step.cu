// Softmax attention of one position, the last of its sequence, over the keys and values that a cache holds:
//
//     S_j = q · k_j / √D      o = Σ_j exp(S_j) v_j / Σ_j exp(S_j)      j < length of the sequence
//
// with a running maximum over tiles of positions, as in online.cu. The length is read from the device's memory, so that the same
// launch serves every token.
//
// Work split: a block a head of q, of a sequence. A tile has TK positions, and each thread one of them: it makes its score and its
// weight. Then a thread has columns: it adds up all positions of the tile.
//
// q, o: batch x heads x D; k, v: batch x heads / group x room x D; lengths: batch, from 1 to room. A grid of batch heads blocks.
#include "lab/gates.cuh"
#include "lab/pack.cuh"
#include "lab/reduce.cuh"

using namespace lab;

constexpr int MOST_COLUMNS = 256;

// ANCHOR: step
template <class T, int TK>
__global__ void __launch_bounds__(TK, 4)
    attention_step(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                   const int* __restrict__ lengths, T* __restrict__ o, int heads, int group, int room, int D,
                   float log2_scale) {
    constexpr int PACK = 16 / sizeof(T), COLUMNS = (MOST_COLUMNS + TK - 1) / TK;
    __shared__ float query[MOST_COLUMNS], weights[TK];
    long long head = blockIdx.x, start = head / group * room * D;
    int length = min(lengths[head / heads], room), thread = threadIdx.x;
    for (int c = thread; c < D; c += TK) query[c] = to_math(q[head * D + c]) * log2_scale;
    __syncthreads();  // each thread reads all of q

    float out[COLUMNS] = {}, sum = 0, top = lowest<float>();
    for (int j0 = 0; j0 < length; j0 += TK) {
        float score = lowest<float>();
        if (j0 + thread < length) {
            score = 0;
            const T* key = k + start + (j0 + thread) * 1ll * D;
            for (int c = 0; c < D; c += PACK) {
                Pack<T> pack = load_pack(key + c);
#pragma unroll
                for (int i = 0; i < PACK; ++i) score = fmaf(query[c + i], pack.v[i], score);
            }
        }
        // Its barriers stand between the columns that read the weights of the tile before and the stores of new ones.
        float most = max(top, block_reduce<TK>(score, Max{}, lowest<float>())), shrinks = power_of_two(top - most);
        weights[thread] = power_of_two(score - most);
        __syncthreads();  // each column reads all weights
        int count = min(TK, length - j0);
        sum *= shrinks;
        for (int j = 0; j < count; ++j) sum += weights[j];
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) {
            int c = thread + n * TK;
            out[n] *= shrinks;
            const T* value = v + start + j0 * 1ll * D + c;
            for (int j = 0; c < D && j < count; ++j) out[n] = fmaf(weights[j], to_math(value[j * D]), out[n]);
        }
        top = most;
    }
#pragma unroll
    for (int n = 0, c = thread; n < COLUMNS; ++n, c += TK) {
        if (c < D) o[head * D + c] = from_math<T>(out[n] / sum);
    }
}
// ANCHOR_END: step
