// The next token of each sequence, drawn from its logits:
//
//   x_v = cap tanh(logit_v / cap), of a token among the last ones divided by `repetition`, or multiplied where it is not above 0
//   kept: of the largest x those of rank < top_k, of these the fewest, largest first, that have the share top_p of exp(x / temperature)
//   token: the first v with Σ_{kept u <= v} exp(x_u / temperature) > random, a number from 0 to the sum of all that are kept
//
// A temperature of 0 takes the largest x. Of equal ones that with the smaller v comes first. exp is counted in units of 2^-40 of the
// largest, so that sums are those of integers: the same in any order.
//
// Work split: a block a sequence. What is kept is found by its smallest x, bit after bit: 32 sums over the row, of which x lies in `scores`.
//
// logits: B x stride, of which the first V are looked at, scores: B x V, draws: B of Draw, tokens: B. A grid of B blocks.
#include "lab/reduce.cuh"
#include "lab/scalar.cuh"

using namespace lab;

constexpr int THREADS = 512, RECENT = 64;
using Mass = unsigned long long;

// What one sequence asks for. recent: its last tokens, each once, and -1 where there are fewer.
struct Draw {
    double top_p;  // a float would be more or less, and keep another number of equal ones
    float temperature, repetition;
    int top_k;  // 0 for all
    unsigned random[2];
    int V;  // those that a text may have, at least one
    int recent[RECENT];
};

// Larger for larger floats; a NaN is the smallest.
__device__ __forceinline__ unsigned key_of(float x) {
    unsigned bits = __float_as_uint(x);
    return x != x ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Of each thread what those before it have, and what all have.
__device__ __forceinline__ Mass before(Mass own, Mass& all) {
    __shared__ Mass of_warp[THREADS / 32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Mass sum = own;
    for (int d = 1; d < 32; d *= 2) {
        Mass other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();  // the sums of all warps are there
    Mass first = 0;
    all = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
        if (w < warp) first += of_warp[w];
        all += of_warp[w];
    }
    __syncthreads();  // they are read: the next ones may be written
    return first + sum - own;
}

// What is kept of a row: keys above `least`, and of those that equal it the first `ties`.
struct Kept {
    unsigned least = 0;
    Mass ties = ~0ull;
};

struct Row {
    const float* scores;
    int V;
    float largest, per_temperature;

    __device__ __forceinline__ Mass mass(float x) const {
        // exp2f of a NaN or of -∞ is no mass.
        float share = exp2f((x - largest) * per_temperature);
        return share > 0 ? static_cast<Mass>(static_cast<double>(share) * 0x1p40) : 0;
    }

    // Σ weigh(x) over all x whose keys are `least` or more; every thread has it.
    template <class Weigh> __device__ __forceinline__ Mass sum(unsigned least, Weigh weigh) const {
        Mass own = 0;
        for (int v = threadIdx.x; v < V; v += THREADS)
            if (key_of(scores[v]) >= least) own += weigh(scores[v]);
        return block_reduce<THREADS>(own, Add(), Mass(0));
    }

    // ANCHOR: keep
    // The fewest, largest first, whose weights are `target` together; of those that `all` keeps.
    template <class Weigh> __device__ __forceinline__ Kept keep(Kept all, Mass target, Weigh weigh) const {
        Mass above = all.least == ~0u ? 0 : sum(all.least + 1, weigh);
        Kept kept = all;
        if (target <= above) {
            kept.least = 0;
            for (unsigned bit = 1u << 31; bit > 0; bit /= 2)
                if (sum(kept.least | bit, weigh) >= target) kept.least |= bit;
            above = kept.least == ~0u ? 0 : sum(kept.least + 1, weigh);
            kept.ties = ~0ull;
        }
        // Those that equal the last one weigh the same.
        Mass each = weigh(__uint_as_float(kept.least >> 31 ? kept.least & 0x7fffffff : ~kept.least));
        kept.ties = min(kept.ties, each > 0 ? (target - above + each - 1) / each : 1);
        return kept;
    }
    // ANCHOR_END: keep

    // Calls use(v, mass) for those that are kept of a thread's neighbours, so that threads before it have all smaller v.
    template <class Use> __device__ __forceinline__ void each_kept(const Kept& kept, Use use) const {
        int each = (V + THREADS - 1) / THREADS, from = min(V, int(threadIdx.x) * each), to = min(V, from + each);
        Mass equal = 0, all;
        for (int v = from; v < to; ++v) equal += key_of(scores[v]) == kept.least;
        Mass rank = before(equal, all);
        for (int v = from; v < to; ++v) {
            unsigned key = key_of(scores[v]);
            if (key > kept.least || (key == kept.least && rank++ < kept.ties)) use(v, mass(scores[v]));
        }
    }
};

// The upper half of all × random: less than `all`.
__device__ __forceinline__ Mass share_of(Mass all, unsigned low, unsigned high) {
    Mass below = static_cast<unsigned>(all), above = all >> 32, middle = below * high + ((below * low) >> 32);
    return above * high + (middle >> 32) + ((above * low + static_cast<unsigned>(middle)) >> 32);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    draw_tokens(const T* __restrict__ logits, float* scores, const int* __restrict__ draws, int* __restrict__ tokens, int V,
                int stride, float cap) {
    const Draw& draw = reinterpret_cast<const Draw*>(draws)[blockIdx.x];
    const T* of = logits + 1ll * blockIdx.x * stride;
    scores += 1ll * blockIdx.x * V;
    V = min(V, draw.V);
    for (int v = threadIdx.x; v < V; v += THREADS) {
        float x = to_math(of[v]);
        scores[v] = cap > 0 ? cap * tanhf(x / cap) : x;
    }
    __syncthreads();  // whoever has a recent token reads what another thread wrote
    int recent = threadIdx.x < RECENT ? draw.recent[threadIdx.x] : -1;
    if (draw.repetition != 1 && recent >= 0 && recent < V) {
        float x = scores[recent];
        scores[recent] = x > 0 ? x / draw.repetition : x * draw.repetition;
    }
    __syncthreads();  // the row is whole

    // The largest, and of equal ones the first.
    Mass best = 0;
    for (int v = threadIdx.x; v < V; v += THREADS)
        best = max(best, Mass(key_of(scores[v])) << 32 | (0xffffffffu - v));
    best = block_reduce<THREADS>(best, Max(), Mass(0));
    int first = 0xffffffffu - unsigned(best);
    if (draw.temperature == 0) {
        if (threadIdx.x == 0) tokens[blockIdx.x] = first;
        return;
    }
    Row row{scores, V, scores[first], 1.4426950408889634f / draw.temperature};
    auto mass = [&row](float x) { return row.mass(x); };
    Kept kept;
    if (draw.top_k > 0 && draw.top_k < V) kept = row.keep(kept, draw.top_k, [](float) { return Mass(1); });

    // ANCHOR: draw
    Mass own = 0, all;
    row.each_kept(kept, [&](int, Mass mass) { own += mass; });
    Mass ahead = before(own, all);
    if (draw.top_p < 1) {
        Mass enough = static_cast<Mass>(ceil(draw.top_p * static_cast<double>(all)));
        kept = row.keep(kept, max(Mass(1), min(enough, all)), mass);
        own = 0;
        row.each_kept(kept, [&](int, Mass mass) { own += mass; });
        ahead = before(own, all);
    }
    Mass at = share_of(all, draw.random[0], draw.random[1]);
    bool here = at >= ahead && at < ahead + own;
    int token = -1;
    row.each_kept(kept, [&](int v, Mass mass) {
        if (here && token < 0 && at < ahead + mass) token = v;
        ahead += mass;
    });
    if (token >= 0) tokens[blockIdx.x] = token;
    if (all == 0 && threadIdx.x == 0) tokens[blockIdx.x] = first;  // no x is finite
    // ANCHOR_END: draw
}
