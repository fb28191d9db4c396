// The gated delta rule in one launch. While warpgroups walk a chunk, others solve the next ones: neither inverse nor pairs go through
// device memory, and Q and K are read once.
//
// Work split: a block has a head, for 64 GROUPS columns of V. Of its three warpgroups GROUPS walk 64 columns each (walker.cuh); the
// others solve the chunks, in turn (solver.cuh). A place in shared memory is a chunk's: Q and K by TMA, then what a solver makes of
// them, until the last walker has left it. V has places of its own, in which h leaves. A solver asks for
// chunks, each as soon as its place is empty, and scans their gates. So no walker waits for another.
//
// q, k: heads / group x S x dhqk, v, h: heads x S x dhhv, g, beta: heads x S, C0, CN: heads x dhqk x dhhv. A grid of heads slices
// blocks, slices = ceil(dhhv / (64 GROUPS)).
//
// Of sequences that are PACKED (lab/vlstm/sequence.cuh) a block walks one of a head: states are sequences x heads x dhqk x dhhv, and a
// tile ends where its sequence ends.
#include "lab/vlstm/sequence.cuh"
#include "walker.cuh"

using namespace lab;

constexpr int FUSED_THREADS = 384;

// Chunks that a block has room for. Of V: one is read, one comes, and h leaves from one.
template <int KEY> constexpr int ROOM = KEY > 64 ? 3 : 4;

// Registers of a thread: those of the three warpgroups together are 504 at most.
template <int GROUPS> struct Registers {
    static constexpr int WALK = 192, SOLVE = GROUPS == 2 ? 120 : 152;
};

template <class T, int KEY, int GROUPS> struct Shared {
    Solved<T, KEY> places[ROOM<KEY>];
    Panels<T, PANEL, CHUNK> v[GROUPS][ROOM<KEY>];
    SolverRoom room[3 - GROUPS];
};

template <class T, int KEY, int GROUPS, bool PACKED = false>
constexpr int gdn_fw_fused_shared = sizeof(Shared<T, KEY, GROUPS>);

template <int PLACES, int GROUPS> struct Barriers {
    Ring<PLACES> places;
    Mbarrier solved[PLACES], values[GROUPS][PLACES];
};

// All positions of a head, and where its boxes are: maps of three dimensions take less than those that end anywhere.
struct WholeHead {
    struct Corner { int at[3]; };
    int head;
    __device__ __forceinline__ explicit WholeHead(const Sequence& of) : head(of.head) {}
    __device__ __forceinline__ Corner box(int column, int first) const { return {{column, first, head}}; }
};
template <bool PACKED> struct OwnOf { using type = WholeHead; };
template <> struct OwnOf<true> { using type = Sequence; };

// What all roles know: of what heads `of_keys` and `own` are, S the positions of the sequence.
template <class T, int KEY, int GROUPS, class Own> struct Block {
    static constexpr int PLACES = ROOM<KEY>, SOLVERS = 3 - GROUPS;
    Shared<T, KEY, GROUPS>& shared;
    Barriers<PLACES, GROUPS>& barriers;
    Own own, of_keys;
    int value, chunks, S;

    // One thread, before a barrier.
    __device__ __forceinline__ void init() const {
        barriers.places.init(4 * GROUPS);
        for (auto& solved : barriers.solved) mbarrier_init(&solved, 4);
        for (auto& of_group : barriers.values)
            for (auto& full : of_group) mbarrier_init(&full, 1);
        mbarrier_fence_init();
    }

    // All threads, before the same barrier: above the diagonal nobody writes.
    __device__ __forceinline__ void clear() const {
        for (auto& place : shared.places)
            for (int at = threadIdx.x; at < CHUNK * PANEL; at += FUSED_THREADS)
                place.inverse.panel[0][at] = place.pairs.panel[0][at] = from_math<T>(0);
        fence_proxy_async_shared();
    }

    // ANCHOR: roles
    // A warpgroup: every chunk's inverse and pairs, or every second one's.
    __device__ __forceinline__ void solve(const TensorMap& q, const TensorMap& k, const float* g, const float* beta,
                                          float scale) const {
        constexpr int AHEAD = (PLACES - 1) / SOLVERS * SOLVERS;
        int solver = threadIdx.x / 128 - GROUPS, warp = threadIdx.x / 32 % 4, number = 1 + GROUPS + solver;
        auto& room = shared.room[solver];
        auto after = [](Turn<PLACES>& turn) {
            for (int n = 0; n < SOLVERS; ++n) turn.advance();
        };
        Turn<PLACES> turn, next;
        AskedGates gates;
        // The warp with most blocks to weigh has least of the inverse's columns behind them, and the first warp least to weigh.
        auto bring = [&](int chunk) {
            if (chunk >= chunks || warp != BLOCKS - 1) return;
            auto& place = shared.places[next.place];
            auto* full = &barriers.places.full[next.place];
            barriers.places.wait_empty(next);
            if (threadIdx.x % 32 == 0) {
                mbarrier_arrive_expect(full, 2 * place.q.BYTES);
                place.k.load(k, 0, chunk, of_keys, full);
                place.q.load(q, 0, chunk, of_keys, full);
            }
            after(next);
        };
        auto scan = [&](int chunk, Turn<PLACES> turn) {
            if (chunk >= chunks || warp > 0) return;
            auto& place = shared.places[turn.place];
            barriers.places.wait_empty(turn);
            gates.scan(place.gates, place.decays);
            gates.ask(g, beta, (chunk + SOLVERS) * CHUNK, S);
        };
        float kk[CHUNK / 2], qk[CHUNK / 2];
        auto begin = [&](Turn<PLACES> turn) {
            barriers.places.wait_full(turn);
            wgmma_fence();
            multiply_scores<T, KEY>(kk, shared.places[turn.place].k, shared.places[turn.place].k, 0);
            wgmma_commit();
        };
        if (solver >= chunks) return;
        if (solver > 0) turn.advance(), next.advance();
        gates.ask(g, beta, solver * CHUNK, S);
        for (int chunk = solver; chunk < AHEAD; chunk += SOLVERS) bring(chunk);
        scan(solver, turn);
        begin(turn);
        for (int chunk = solver; chunk < chunks; chunk += SOLVERS) {
            auto& place = shared.places[turn.place];
            auto own = turn;
            after(turn);
            named_barrier_sync(number, 128);  // gates are scanned, and nobody reads what the last chunk left in the room
            Kept kept(place.gates);  // while the product is made
            wgmma_wait<0>();
            wgmma_fence();
            multiply_scores<T, KEY>(qk, place.q, place.k, 0);
            wgmma_commit();
            store_a(room, kept, place.gates, place.decays.beta, kk);
            wgmma_wait<0>();
            store_pairs(place.pairs.panel[0], kept, place.gates, qk, scale);
            __syncwarp();  // a warp's block on the diagonal is its own
            invert(room.diagonal[warp], room.at(warp, warp));
            if (AHEAD > SOLVERS) scan(chunk + SOLVERS, turn);  // its place was empty long since
            named_barrier_sync(number, 128);  // a warp reads A of all rows, and X on the diagonal of all warps
            solve_column(room, place.inverse.panel[0]);
            fence_proxy_async_shared();  // wgmma reads what was written by plain stores
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(&barriers.solved[own.place]);
            bring(chunk + AHEAD);
            if (AHEAD == SOLVERS) scan(chunk + SOLVERS, turn);
            begin(chunk + SOLVERS < chunks ? turn : own);  // behind the last chunk nobody wants them
        }
        wgmma_wait<0>();
    }

    // A warpgroup: h of 64 columns of V, and their state.
    __device__ __forceinline__ void walk(Walker<T, KEY>& walker, const TensorMap& v, const TensorMap& h, float scale) const {
        Turn<PLACES> turn;
        auto bring = [&](int chunk, int place) {
            int group = threadIdx.x / 128;
            if (chunk >= chunks) return;
            auto* full = &barriers.values[group][place];
            mbarrier_arrive_expect(full, CHUNK * SPAN);
            shared.v[group][place].load(v, value + group * PANEL, chunk, own, full);
        };
        // h of a chunk, by way of the place where its V was.
        auto send = [&](int chunk, int place) {
            int thread = computed_here(threadIdx.x), group = thread / 128;
            T* panel = shared.v[group][place].panel[0];
            walker.store(panel);
            fence_proxy_async_shared();  // TMA reads what was written by plain stores
            named_barrier_sync(1 + group, 128);  // all of the panel is written
            if (thread % 128 == 0) {
                tensor_store(h, own.box(value + group * PANEL, chunk * CHUNK).at, panel);
                bulk_commit();
            }
        };
        if (threadIdx.x % 128 == 0) bring(0, 0), bring(1, 1);
        for (int chunk = 0; chunk < chunks; ++chunk, turn.advance()) {
            auto& place = shared.places[turn.place];
            typename Walker<T, KEY>::Sums sums;
            barriers.places.wait_full(turn);
            walker.read_keys(sums, place);
            if (chunk > 0) send(chunk - 1, turn.place > 0 ? turn.place - 1 : PLACES - 1);  // while that product is made
            walker.read_queries(sums, place);
            int thread = computed_here(threadIdx.x), group = thread / 128;
            mbarrier_wait(&barriers.values[group][turn.place], turn.parity);
            mbarrier_wait(&barriers.solved[turn.place], turn.parity);
            walker.solve(sums, place, shared.v[group][turn.place].panel[0], scale);
            walker.update(sums, place);
            leave(barriers.places, turn);
            if (thread % 128 == 0) {
                bulk_wait_read<0>();  // h of the chunk before has left, long since
                bring(chunk + 2, (turn.place + 2) % PLACES);
            }
        }
        if (chunks > 0) send(chunks - 1, (chunks - 1) % PLACES);
        if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // TMA has read the panels before the block ends
    }
    // ANCHOR_END: roles
};

template <class T, int KEY, int GROUPS, bool PACKED = false>
__global__ void __launch_bounds__(FUSED_THREADS, 1)
    gdn_fw_fused(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                 const __grid_constant__ TensorMap h, const float* __restrict__ g, const float* __restrict__ beta,
                 const float* __restrict__ C0, float* __restrict__ CN, int chunks, int S, int dhqk, int dhhv, int group,
                 int slices, bool given, bool wanted, float scale, const int* __restrict__ cu_seqlens, int heads) {
    DYNAMIC_TILES(unsigned char, memory);
    __shared__ Barriers<ROOM<KEY>, GROUPS> barriers;
    int value = blockIdx.x % slices * GROUPS * PANEL;
    Sequence sequence(blockIdx.x / slices, S, PACKED ? cu_seqlens : nullptr, heads);
    if (PACKED) chunks = sequence.parts(CHUNK), S = sequence.length;
    using Own = typename OwnOf<PACKED>::type;
    Own own(sequence), of_keys(sequence);
    of_keys.head /= group;
    Block<T, KEY, GROUPS, Own> block{*reinterpret_cast<Shared<T, KEY, GROUPS>*>(memory), barriers, own, of_keys, value, chunks, S};
    if (threadIdx.x == 0) block.init();
    block.clear();
    __syncthreads();  // nobody waits at a barrier that is not there, or writes weights where zeros are to come

    long long row = sequence.row();
    // Of the head's state; computed twice, for the walk has no register to keep it.
    auto cells = [&] { return 1ll * (computed_here(blockIdx.x) / slices) * dhqk * dhhv; };
    if (threadIdx.x < GROUPS * 128) {
        registers_increase<Registers<GROUPS>::WALK>();
        Walker<T, KEY> walker;
        walker.begin(given ? C0 + cells() : nullptr, value, dhqk, dhhv);
        block.walk(walker, v, h, scale);
        if (wanted) walker.end(CN + cells(), value, dhqk, dhhv);
    } else {
        registers_decrease<Registers<GROUPS>::SOLVE>();
        block.solve(q, k, g + row, beta + row, scale);
    }
}
