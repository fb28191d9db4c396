// y_r = weight[token_r], and back: dweight_t = Σ over the rows r with token t of dy_r.
//
// A sum by atomics would have other last digits each run. So the rows are sorted by token, and within a token
// by their number; that order is the order of the sum. Sorted: integer atomics count the rows of each token and
// place them; what they leave to chance, the order within a token, is then set right. The sum goes over pieces
// of PIECE sorted rows, so that a frequent token keeps many blocks busy: a token whose rows lie in one piece is
// done there, of others each piece leaves a partial sum, and the last launch adds these up in their order.
//
// A token outside of the vocabulary is padding: it reads zeros and has no gradient.
//
// tokens: rows; weight: V x width in T; y, dy: rows x width; dweight: V x width in f32. starts: where the rows
// of each token begin in `order`, V + 1. used: of each token, whether its row of dweight is not zero; kept from run to
// run, where somebody keeps it. partials: pieces x 2 x width, of the token that a piece begins with and
// of the one that it ends with.
#include "strip.cuh"

using namespace lab;

constexpr int PIECE = 32, SCAN_THREADS = 1024, SUM_THREADS = 128, RANK_LANES = 8;

__device__ __forceinline__ bool is_word(int token, int vocabulary) { return token >= 0 && token < vocabulary; }

// Work split: a thread N columns of a row.
template <class T, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    embedding(const int* __restrict__ tokens, const T* __restrict__ weight, T* __restrict__ y, int rows,
              int width, int vocabulary) {
    unsigned packs = width / N, thread = blockIdx.x * PASS_THREADS + threadIdx.x;
    long long r = thread / packs;
    if (r >= rows) return;
    int c = thread % packs * N, token = tokens[r];
    float cells[N] = {};
    if (is_word(token, vocabulary)) load_cells<N>(cells, weight + token * 1ll * width + c);
    store_cells<N>(y + r * width + c, cells);
}

// counts: zero before.
__global__ void __launch_bounds__(PASS_THREADS)
    count_tokens(const int* __restrict__ tokens, int* __restrict__ counts, int rows, int vocabulary) {
    int r = blockIdx.x * PASS_THREADS + threadIdx.x;
    if (r < rows && is_word(tokens[r], vocabulary)) atomicAdd(counts + tokens[r], 1);
}

// starts_t = Σ counts of the tokens before t; `next` is a copy that the placing moves on. Tokens that have rows
// become used ones. Work split: a thread a token. Each block adds up all counts before its tokens by itself, so that no block waits for another.
__global__ void __launch_bounds__(SCAN_THREADS)
    scan_counts(const int* __restrict__ counts, int* __restrict__ starts, int* __restrict__ next,
                int* __restrict__ used, int vocabulary, bool has_used) {
    constexpr int WARPS = SCAN_THREADS / 32;
    __shared__ int warp_sums[WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int t0 = blockIdx.x * SCAN_THREADS, t = t0 + threadIdx.x, at = 0;
#pragma unroll 16
    for (int before = threadIdx.x; before < t0; before += SCAN_THREADS) at += counts[before];
    int count = t < vocabulary ? counts[t] : 0, up_to = count;  // and over the lanes before it
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(0xffffffffu, up_to, d);
        if (lane >= d) up_to += other;
    }
    if (lane == 31) warp_sums[warp] = up_to;
    // Its barriers are also between the sums of all warps and who reads them.
    at = block_reduce<SCAN_THREADS>(at, Add{}, 0);
    for (int w = 0; w < warp; ++w) at += warp_sums[w];
    at += up_to - count;
    if (t < vocabulary) starts[t] = next[t] = at;
    if (has_used && count > 0) used[t] = 1;
    if (t == vocabulary - 1) starts[vocabulary] = at + count;
}

// The rows of each token together, in an order that is chance.
__global__ void __launch_bounds__(PASS_THREADS)
    place_rows(const int* __restrict__ tokens, int* __restrict__ next, int* __restrict__ placed, int rows,
               int vocabulary) {
    int r = blockIdx.x * PASS_THREADS + threadIdx.x;
    if (r < rows && is_word(tokens[r], vocabulary)) placed[atomicAdd(next + tokens[r], 1)] = r;
}

// ANCHOR: order
// A row's place among those of its token is how many of them have a smaller number.
// Work split: RANK_LANES lanes a row, for a token may have thousands.
__global__ void __launch_bounds__(PASS_THREADS)
    order_rows(const int* __restrict__ tokens, const int* __restrict__ starts, const int* __restrict__ placed,
               int* __restrict__ order, int vocabulary) {
    unsigned thread = blockIdx.x * PASS_THREADS + threadIdx.x;
    int n = thread / RANK_LANES, lane = thread % RANK_LANES;
    bool inside = n < starts[vocabulary];
    int r = inside ? placed[n] : 0, first = inside ? starts[tokens[r]] : 0, end = inside ? starts[tokens[r] + 1] : 0;
    int before = 0;
#pragma unroll 8
    for (int other = first + lane; other < end; other += RANK_LANES) before += placed[other] < r;
    before = warp_reduce<RANK_LANES>(before, Add{});
    if (inside && lane == 0) order[first + before] = r;
}
// ANCHOR_END: order

// A piece: sorted rows from `first` up to `end`, of n in all.
struct Piece {
    int first, end;
    __device__ __forceinline__ Piece(int number, int n) : first(number * PIECE), end(min(first + PIECE, n)) {}
};

// dweight ← sum, or dweight += sum.
template <int N> __device__ __forceinline__ void give(float* to, const float (&sum)[N], bool accumulates) {
#pragma unroll
    for (int i = 0; i < N; i += N > 1 ? 4 : 1) {
        float four[N > 1 ? 4 : 1];
        if (accumulates) load_cells(four, to + i);
#pragma unroll
        for (int k = 0; k < (N > 1 ? 4 : 1); ++k) four[k] = (accumulates ? four[k] : 0.0f) + sum[i + k];
        store_cells(to + i, four);
    }
}

// ANCHOR: pieces
// Work split: a block a piece, a thread N columns at a time. AHEAD rows are on their way at once.
template <class T, int N>
__global__ void __launch_bounds__(SUM_THREADS)
    sum_pieces(const T* __restrict__ dy, const int* __restrict__ tokens, const int* __restrict__ starts,
               const int* __restrict__ order, float* __restrict__ dweight, float* __restrict__ partials, int width,
               int vocabulary, bool accumulates) {
    constexpr int AHEAD = 4;
    __shared__ int row[PIECE], token[PIECE];
    Piece piece(blockIdx.x, starts[vocabulary]);
    if (piece.first >= piece.end) return;
    int own = threadIdx.x;
    if (own < piece.end - piece.first) {
        row[own] = order[piece.first + own];
        token[own] = tokens[row[own]];
    }
    __syncthreads();  // all threads walk through the piece
    for (int c = threadIdx.x * N; c < width; c += SUM_THREADS * N) {
        float sum[N] = {};
        for (int n0 = 0; n0 < piece.end - piece.first; n0 += AHEAD) {
            float d[AHEAD][N];
#pragma unroll
            for (int k = 0; k < AHEAD; ++k)
                if (piece.first + n0 + k < piece.end) load_cells<N>(d[k], dy + row[n0 + k] * 1ll * width + c);
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                int n = piece.first + n0 + k;
                if (n >= piece.end) continue;
#pragma unroll
                for (int i = 0; i < N; ++i) sum[i] += d[k][i];
                int t = token[n0 + k], first = starts[t], end = starts[t + 1];
                if (n + 1 < end && n + 1 < piece.end) continue;  // the token goes on in this piece
                bool begins = first >= piece.first, ends = end <= piece.end;
                if (begins && ends) give<N>(dweight + t * 1ll * width + c, sum, accumulates);
                else give<N>(partials + (blockIdx.x * 2ll + begins) * width + c, sum, false);
#pragma unroll
                for (int i = 0; i < N; ++i) sum[i] = 0;
            }
        }
    }
}
// ANCHOR_END: pieces

// Work split: a block a piece. If its last token begins in it and goes on, it adds up the partial sums of that.
__global__ void __launch_bounds__(SUM_THREADS)
    join_pieces(const int* __restrict__ tokens, const int* __restrict__ starts, const int* __restrict__ order,
                const float* __restrict__ partials, float* __restrict__ dweight, int width, int vocabulary,
                bool accumulates) {
    Piece piece(blockIdx.x, starts[vocabulary]);
    if (piece.first >= piece.end) return;
    int t = tokens[order[piece.end - 1]], first = starts[t], end = starts[t + 1];
    if (first < piece.first || end <= piece.end) return;
    for (int c = threadIdx.x; c < width; c += SUM_THREADS) {
        float sum = partials[(blockIdx.x * 2ll + 1) * width + c];
#pragma unroll 4
        for (int p = blockIdx.x + 1; p * PIECE < end; ++p) sum += partials[p * 2ll * width + c];
        float* to = dweight + t * 1ll * width + c;
        *to = accumulates ? *to + sum : sum;
    }
}

// The gradients of tokens that no row has; where it is known which are used, of these. Work split: a warp a token,
// a lane N columns at a time.
template <class T, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    clear_unused(const int* __restrict__ counts, int* __restrict__ used, T* __restrict__ dweight, int width,
                 int vocabulary, bool has_used) {
    int t = blockIdx.x * (PASS_THREADS / 32) + threadIdx.x / 32;
    if (t >= vocabulary || counts[t] > 0 || (has_used && used[t] == 0)) return;
    __syncwarp();  // all lanes have read it
    if (has_used && threadIdx.x % 32 == 0) used[t] = 0;
    const float zeros[N] = {};
    for (int c = threadIdx.x % 32 * N; c < width; c += 32 * N) store_cells<N>(dweight + t * 1ll * width + c, zeros);
}
