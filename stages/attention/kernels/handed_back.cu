// The gradients of softmax attention in one walk, five products for seven: the walk over positions of wgmma_back.cu makes dq,
// too. The equations are those of mma_back.cu.
//
//   dqᵀ_i = Σ_j Kᵀ_j dSᵀ_ij     of a tile i of L rows and a block's positions j, summed up over blocks in f32
//
// Work split: as attention_keys_wgmma, a block owns 64 GROUPS positions of a head of K and V, and tiles of rows come past, here
// from the last to the first. A warpgroup's slopes go to shared memory besides, a tile ahead, and each warpgroup makes a part
// of dqᵀ of all the block's positions: of 128 columns each has 64, of 64 columns each has half of the rows. One thread
// adds both by TMA to what blocks before have added: to block 0's, then to block 1's, in this order, so that each run
// gives the same bits. A flag of each tile of rows says how many have added. A block waits only for blocks that have begun before
// it, which its ticket says. All of a head begin at the last tile of rows, so that each stays a tile behind the one before, and
// finds its flag raised.
// TURNS: one warpgroup's scores are made while the other makes slopes. AHEAD: dq's product is under way while slopes are made.
// ORDERED: else blocks add as they come, to zeros, and runs differ in the last bits.
//
// q, do, dq: [B, NH, S, D], k, v, dk, dv: [B, NH / group, S, D], by maps of four dimensions; of_row: heads x length, from
// attention_rows. sums: of each tile of rows of each head GROUPS parts, as registers have them. flags: one for each tile, zero
// before the first launch, and again after attention_round_queries. A grid of heads / group tiles blocks.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/order.cuh"
#include "warpgroups.cuh"

using namespace lab;

constexpr int ASK_REGISTERS = 24, MULTIPLY_REGISTERS = 240;

// Warpgroups of a block, threads that hand dq on, and numbers of a row of `sums`.
constexpr int GROUPS = 2, ADDERS = 3, LINE = 256;

// Named barriers: of both warpgroups, and where each waits for its turn. Those before are store_rows'.
constexpr int BOTH = 1 + GROUPS, OWN_TURN = BOTH + 1;

// A warpgroup's part of dqᵀ of a tile of L rows: 64 columns of COUNT rows.
template <int ROOM, int L> struct PartOfQueries {
    static_assert(ROOM == PANEL || ROOM == GROUPS * PANEL, "a panel for each warpgroup, or one for both");
    static constexpr int COUNT = ROOM == PANEL ? L / GROUPS : L, LINES = COUNT * PANEL / LINE;
    static __device__ constexpr int panel(int g) { return ROOM == PANEL ? 0 : g; }
    static __device__ constexpr int row(int g) { return ROOM == PANEL ? g * COUNT : 0; }

    float4 x[COUNT / 8][128];  // four numbers of each thread
};

template <class T, int ROOM, int L, int PLACES, int SLOPES> struct HandedTiles {
    Panels<T, ROOM, ROWS> k[GROUPS], v[GROUPS];  // and dk, dv, at the end
    Panels<T, ROOM, L> q[PLACES], grad[PLACES];
    T slopes[SLOPES][GROUPS][ROWS * L];  // dSᵀ
    PartOfQueries<ROOM, L> sums[GROUPS];
    float2 of_row[PLACES][L];
};

template <class T, int ROOM, int L, int PLACES, int SLOPES, int TURNS, int AHEAD, int ORDERED>
constexpr int attention_keys_handed_shared = sizeof(HandedTiles<T, ROOM, L, PLACES, SLOPES>);

template <class T, int ROOM, int L, int PLACES, int SLOPES, int TURNS, int AHEAD, int ORDERED>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    attention_keys_handed(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                          const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap grad,
                          const __grid_constant__ TensorMap dk, const __grid_constant__ TensorMap dv,
                          const __grid_constant__ TensorMap sums, const float2* __restrict__ of_row, unsigned* flags,
                          unsigned* ticket, int heads, int tiles, int row_tiles, int together, int NH, int group,
                          int length, int S, float scale, float log2_scale, bool causal) {
    static_assert(L == ROWS, "a tile of rows is as long as a warpgroup's positions: one is its diagonal");
    using Part = PartOfQueries<ROOM, L>;
    DYNAMIC_TILES(unsigned char, memory);
    auto& shared = *reinterpret_cast<HandedTiles<T, ROOM, L, PLACES, SLOPES>*>(memory);
    __shared__ Ring<PLACES> rows;
    __shared__ Ring<SLOPES> slopes;
    __shared__ Ring<1> own;
    __shared__ Mbarrier full_sums[ADDERS], empty_sums;
    __shared__ unsigned number;
    if (threadIdx.x == 0) {
        number = atomicInc(ticket, gridDim.x - 1);  // 0 again for the next launch
        for (int a = 0; a < ADDERS; ++a) mbarrier_init(&full_sums[a], GROUPS * 4);
        mbarrier_init(&empty_sums, 1);
        rows.init(GROUPS * 4), own.init(GROUPS), slopes.init(GROUPS, GROUPS * 4);
    }
    __syncthreads();  // nobody waits at a barrier that is not there; all read the number

    auto own_tile = Order{heads, tiles, together}.at(number);
    int head = own_tile.head, tile = tiles - 1 - own_tile.tile, kv0 = tile * GROUPS * ROWS;
    int of_sequence = head % NH, sequence = head / NH;
    int first = causal ? kv0 / L : 0, in_head = row_tiles - first, all = group * in_head;
    auto head_of = [&](int n) { return head * group + n / in_head; };
    auto row_of = [&](int n) { return (row_tiles - 1 - n % in_head) * L; };
    Turn<PLACES> turn;
    if (threadIdx.x >= GROUPS * 128) {
        registers_decrease<ASK_REGISTERS>();
        int warp = threadIdx.x / 32 - GROUPS * 4;
        if (threadIdx.x % 32 || warp > ADDERS) return;
        if (warp > 0) {
            // ANCHOR: hand_on
            // ADDERS threads, for a tile each in turn: adds its dq when the blocks before have added theirs, then says so.
            bool adds = tile > 0 || !ORDERED;
            for (int n = warp - 1; n < all; n += ADDERS) {
                int part = head_of(n) * row_tiles + row_of(n) / L;
                if constexpr (ORDERED) {
                    while (load_acquire(flags + part) != unsigned(tile)) {}
                    fence_proxy_async();  // what their copies have written comes before this one
                }
                mbarrier_wait(&full_sums[n % ADDERS], n / ADDERS % 2);
                if (adds) tensor_add(sums, {0, part * GROUPS * Part::LINES}, shared.sums);
                else tensor_store(sums, {0, part * GROUPS * Part::LINES}, shared.sums);
                bulk_commit();
                bulk_wait_read<0>();
                mbarrier_arrive(&empty_sums);
                bulk_wait<0>();
                if constexpr (ORDERED) store_release(flags + part, unsigned(tile + 1));
            }
            // ANCHOR_END: hand_on
            return;
        }
        mbarrier_arrive_expect(&own.full[0], 2 * GROUPS * shared.k[0].BYTES);
        for (int g = 0; g < GROUPS; ++g) {
            shared.k[g].load(k, kv0 + g * ROWS, of_sequence, sequence, &own.full[0]);
            shared.v[g].load(v, kv0 + g * ROWS, of_sequence, sequence, &own.full[0]);
        }
        for (int n = 0; n < all; ++n, turn.advance()) {
            int from = head_of(n), q0 = row_of(n);
            Mbarrier* full = &rows.full[turn.place];
            rows.wait_empty(turn);
            mbarrier_arrive_expect(full, 2 * shared.q[0].BYTES + sizeof(shared.of_row[0]));
            shared.q[turn.place].load(q, q0, from % (NH * group), sequence, full);
            shared.grad[turn.place].load(grad, q0, from % (NH * group), sequence, full);
            bulk_load(shared.of_row[turn.place], of_row + 1ll * from * length + q0, sizeof(shared.of_row[0]), full);
        }
        return;
    }

    registers_increase<MULTIPLY_REGISTERS>();
    int g = threadIdx.x / 128, row0 = kv0 + g * ROWS, lane = threadIdx.x % 32, in_tile = own_row() % ROWS;
    bool speaks = threadIdx.x % 128 == 0;
    // ANCHOR: keys
    float dv_j[ROOM / 2], dk_j[ROOM / 2], dq_i[Part::COUNT / 2], score[L / 2], product[L / 2];
    unsigned weights[L / 16][4], slope[L / 16][4];
    Turn<SLOPES> made, used;
    auto ask_scores = [&] {
        rows.wait_full(turn);
        if constexpr (TURNS) named_barrier_sync(OWN_TURN + g, GROUPS * 128);
        wgmma_fence();
        multiply_scores<T, ROOM, L>(score, shared.k[g], shared.q[turn.place]);
        multiply_scores<T, ROOM, L>(product, shared.v[g], shared.grad[turn.place]);
        wgmma_commit();
    };
    // Weights and slopes of the n-th tile, in registers; slopes in shared memory, too.
    auto make_slopes = [&](int n) {
        if constexpr (TURNS)
            if (n + g < all) named_barrier_arrive(OWN_TURN + 1 - g, GROUPS * 128);
        int behind = row_of(n) - row0;  // of the first row that comes past
        const float2* of_rows = shared.of_row[turn.place];
        if (causal && behind <= 0) slopes_of_columns<true>(score, product, of_rows, log2_scale, in_tile - behind);
        else slopes_of_columns<false>(score, product, of_rows, log2_scale, in_tile);
        // Not ∞ · 0: a position behind the end has a score of 0, which may have any weight, and K of 0.
        if (!causal && row0 + ROWS > S) hide_rows(product, S - row0 - in_tile);
        round_pairs<T>(weights, score), round_pairs<T>(slope, product);
        slopes.wait_empty(made);
        T* place = shared.slopes[made.place][g];
#pragma unroll
        for (int c = 0; c < L / 16; ++c)
            store_matrices(cell(place, threadIdx.x / 32 % 4 * 16 + lane % 16, c * 16 + lane / 16 * 8), slope[c]);
        fence_proxy_async_shared();  // wgmma reads what was written by plain stores
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&slopes.full[made.place]);
        made.advance();
    };
    auto ask_keys = [&](bool adds) {
        wgmma_fence();
        multiply_values<T, ROOM, L>(dv_j, weights, shared.grad[turn.place], adds);
        multiply_values<T, ROOM, L>(dk_j, slope, shared.q[turn.place], adds);
        wgmma_commit();
    };
    // This warpgroup's part of dqᵀ of the n-th tile.
    auto ask_queries = [&](int n) {
        mbarrier_wait(&empty_sums, (n + 1) % 2);
        slopes.wait_full(used);
        wgmma_fence();
#pragma unroll
        for (int of = 0; of < GROUPS; ++of) {
            auto columns = mn_major<SPAN>(shared.k[of].x[Part::panel(g)], ROWS * SPAN, 8 * SPAN);
            auto of_slopes = mn_major<SPAN>(shared.slopes[used.place][of] + Part::row(g), ROWS * SPAN, 8 * SPAN);
#pragma unroll
            for (int j = 0; j < ROWS * SPAN; j += 16 * SPAN)
                wgmma<T, Part::COUNT, true, true>(dq_i, advance(columns, j), advance(of_slopes, j), of > 0 || j > 0);
        }
        wgmma_commit();
    };
    auto give_queries = [&](int n) {
#pragma unroll
        for (int c = 0; c < Part::COUNT / 8; ++c)
            shared.sums[g].x[c][threadIdx.x % 128] =
                make_float4(dq_i[4 * c], dq_i[4 * c + 1], dq_i[4 * c + 2], dq_i[4 * c + 3]);
        fence_proxy_async_shared();  // TMA reads what was written by plain stores
        if (speaks) slopes.leave(used);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&full_sums[n % ADDERS]);
        used.advance();
    };
    auto leave_rows = [&] {
        __syncwarp();  // a warp at a time: each thread has read of_row
        if (lane == 0) rows.leave(turn);
        turn.advance();
    };
    own.wait_full({});
    if constexpr (TURNS)
        if (g == 1) named_barrier_arrive(OWN_TURN, GROUPS * 128);
    ask_scores();
    wgmma_wait<0>();
    make_slopes(0);
    ask_keys(false);
    wgmma_wait<0>();
    leave_rows();
    for (int n = 1; n < all; ++n) {
        ask_scores();
        if constexpr (AHEAD) {
            ask_queries(n - 1);
            wgmma_wait<1>();
            make_slopes(n);  // while dq is made
            ask_keys(true);
            wgmma_wait<1>();
        } else {
            wgmma_wait<0>();
            make_slopes(n);
            ask_queries(n - 1);
            ask_keys(true);
            wgmma_wait<1>();
        }
        give_queries(n - 1);  // while dv and dk are made
        wgmma_wait<0>();
        leave_rows();
    }
    ask_queries(all - 1);
    wgmma_wait<0>();
    give_queries(all - 1);
    // ANCHOR_END: keys
    store_rows<false>(dv, shared.v[g], dv_j, {1, 1}, row0, of_sequence, sequence, 1 + g);
    named_barrier_sync(BOTH, GROUPS * 128);  // the other's part of dq has been made of this one's K
    store_rows<false>(dk, shared.k[g], dk_j, {scale, scale}, row0, of_sequence, sequence, 1 + g);
    if (speaks) bulk_wait_read<0>();
}

template <class T, int ROOM, int L> struct alignas(1024) PlaceOfQueries { Panels<T, ROOM, L> panels; };

// dq of a tile of L rows of a head, from the sums. For the next launch: flags, and where the order was any, zeros. A grid of
// heads row_tiles blocks.
template <class T, int ROOM, int L>
__global__ void __launch_bounds__(GROUPS * 128)
    attention_round_queries(const __grid_constant__ TensorMap dq, float* sums, unsigned* flags, int row_tiles, int NH,
                            int group, float scale, bool any_order) {
    using Part = PartOfQueries<ROOM, L>;
    __shared__ PlaceOfQueries<T, ROOM, L> place;
    int head = blockIdx.x / row_tiles, g = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    auto& part = reinterpret_cast<Part*>(sums)[1ll * blockIdx.x * GROUPS + g];
    float4 four[Part::COUNT / 8];
#pragma unroll
    for (int n = 0; n < Part::COUNT / 8; ++n) four[n] = part.x[n][threadIdx.x % 128];
#pragma unroll
    for (int n = 0; n < Part::COUNT / 16; ++n) {
        auto two = [&](float x, float y) { return two_halves<T>(x * scale, y * scale); };
        float4 a = four[2 * n], b = four[2 * n + 1];
        unsigned words[4] = {two(a.x, a.y), two(a.z, a.w), two(b.x, b.y), two(b.z, b.w)};
        int row = Part::row(g) + n * 16 + lane / 16 * 8 + lane % 8, column = warp * 16 + lane / 8 % 2 * 8;
        store_matrices_transposed(cell(place.panels.x[Part::panel(g)], row, column), words);
    }
    if (any_order) {
#pragma unroll
        for (int n = 0; n < Part::COUNT / 8; ++n) part.x[n][threadIdx.x % 128] = make_float4(0, 0, 0, 0);
    }
    fence_proxy_async_shared();  // TMA reads what was written by plain stores
    __syncthreads();
    if (threadIdx.x) return;
    flags[blockIdx.x] = 0;
    int row = int(blockIdx.x) % row_tiles * L;
    for (int p = 0; p < ROOM / PANEL; ++p)
        tensor_store(dq, {p * PANEL, row, head % (NH * group), head / (NH * group)}, place.panels.x[p]);
    bulk_commit();
    bulk_wait_read<0>();
}
