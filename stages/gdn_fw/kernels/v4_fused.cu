// The gated delta rule in one launch. While warpgroups walk a chunk, others solve the next two: neither inverse nor pairs go through
// device memory, and Q and K are read once.
//
// Work split: a block has a head, for 64 GROUPS columns of V. Of its three warpgroups GROUPS walk 64 columns each (walker.cuh); the
// others solve the chunks, in turn (solver.cuh). A place in shared memory is a chunk's: Q and K by TMA, then what a solver makes of
// them, until the last walker has left it. The first walker asks for the next chunk's. V has places of its own, in which h leaves.
// The last warp of a solver has least to solve: it scans the gates of the chunk that comes next.
//
// q, k: heads / group x S x dhqk, v, h: heads x S x dhhv, g, beta: heads x S, C0, CN: heads x dhqk x dhhv. A grid of heads slices
// blocks, slices = ceil(dhhv / (64 GROUPS)).
#include "walker.cuh"

using namespace lab;

constexpr int FUSED_THREADS = 384;

// Chunks that a block has room for.
template <int KEY> constexpr int ROOM = KEY > 64 ? 3 : 5;

// Registers of a thread: those of the three warpgroups together are 504 at most.
template <int GROUPS> struct Registers {
    static constexpr int WALK = 192, SOLVE = GROUPS == 2 ? 120 : 152;
};

template <class T, int KEY, int GROUPS> struct Shared {
    Solved<T, KEY> places[ROOM<KEY>];
    Panels<T, PANEL, CHUNK> v[GROUPS][2];
    SolverRoom room[3 - GROUPS];
};

template <class T, int KEY, int GROUPS> constexpr int gdn_fw_fused_shared = sizeof(Shared<T, KEY, GROUPS>);

template <int PLACES, int GROUPS> struct Barriers {
    Ring<PLACES> places;
    Mbarrier solved[PLACES], values[GROUPS][2];
};

// What all roles know.
template <class T, int KEY, int GROUPS> struct Block {
    static constexpr int PLACES = ROOM<KEY>, SOLVERS = 3 - GROUPS;
    Shared<T, KEY, GROUPS>& shared;
    Barriers<PLACES, GROUPS>& barriers;
    int head, key_head, value, chunks, S;  // key_head: of Q and K

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

    // Asks for a chunk, once its place is empty; one thread.
    __device__ __forceinline__ void ask(const TensorMap& q, const TensorMap& k, int chunk, Turn<PLACES> turn) const {
        if (chunk >= chunks) return;
        auto& place = shared.places[turn.place];
        auto* full = &barriers.places.full[turn.place];
        barriers.places.wait_empty(turn);
        mbarrier_arrive_expect(full, 2 * place.q.BYTES);
        place.k.load(k, 0, chunk, key_head, full);
        place.q.load(q, 0, chunk, key_head, full);
    }

    // ANCHOR: roles
    // A warpgroup: every chunk's inverse and pairs, or every second one's.
    __device__ __forceinline__ void solve(const float* g, const float* beta, float scale) const {
        int solver = threadIdx.x / 128 - GROUPS, warp = threadIdx.x / 32 % 4, number = 1 + GROUPS + solver;
        auto& room = shared.room[solver];
        Turn<PLACES> turn;
        if (solver > 0) turn.advance();
        AskedGates gates;
        gates.ask(g, beta, solver * CHUNK, S);
        auto scan = [&](int chunk) {
            if (chunk >= chunks || warp != BLOCKS - 1) return;
            barriers.places.wait_empty(turn);
            gates.scan(room, shared.places[turn.place].decays);
            gates.ask(g, beta, (chunk + SOLVERS) * CHUNK, S);
        };
        scan(solver);
        for (int chunk = solver; chunk < chunks; chunk += SOLVERS) {
            auto& place = shared.places[turn.place];
            float kk[CHUNK / 2], qk[CHUNK / 2];
            barriers.places.wait_full(turn);
            wgmma_fence();
            multiply_scores<T, KEY>(kk, place.k, place.k, 0);
            multiply_scores<T, KEY>(qk, place.q, place.k, 0);
            wgmma_commit();
            named_barrier_sync(number, 128);  // γ is there, and nobody reads what the last chunk left in the room
            wgmma_wait<0>();
            weigh(room, place.pairs.panel[0], kk, qk, place.decays, scale);
            __syncwarp();  // a warp's block on the diagonal is its own
            float x[2][4];
            invert(room.at(warp, warp), x);
            named_barrier_sync(number, 128);  // a warp reads A of all rows, and X on the diagonal of all warps
            solve_column(room, place.inverse.panel[0], x);
            fence_proxy_async_shared();  // wgmma reads what was written by plain stores
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(&barriers.solved[turn.place]);
            for (int n = 0; n < SOLVERS; ++n) turn.advance();
            scan(chunk + SOLVERS);
        }
    }

    // A warpgroup: h of 64 columns of V, and their state.
    __device__ __forceinline__ void walk(Walker<T, KEY>& walker, const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                         const TensorMap& h, float scale) const {
        int group = threadIdx.x / 128, column = value + group * PANEL;
        bool asks = threadIdx.x % 128 == 0;
        Turn<PLACES> turn;
        auto bring = [&](int chunk) {
            auto* full = &barriers.values[group][chunk % 2];
            if (chunk >= chunks) return;
            mbarrier_arrive_expect(full, CHUNK * SPAN);
            shared.v[group][chunk % 2].load(v, column, chunk, head, full);
        };
        if (asks) bring(0), bring(1);
        for (int chunk = 0; chunk < PLACES - 1; ++chunk, turn.advance())
            if (threadIdx.x == 0) ask(q, k, chunk, turn);
        turn = {};
        for (int chunk = 0; chunk < chunks; ++chunk, turn.advance()) {
            auto& place = shared.places[turn.place];
            T* values = shared.v[group][chunk % 2].panel[0];
            barriers.places.wait_full(turn);
            walker.read_state(place);
            if (threadIdx.x == 0) ask(q, k, chunk + PLACES - 1, {turn.place > 0 ? turn.place - 1 : PLACES - 1, turn.parity ^ (turn.place > 0)});
            if (asks && chunk > 0) {
                bulk_wait_read<0>();  // h of the chunk before has left its place
                bring(chunk + 1);
            }
            mbarrier_wait(&barriers.values[group][chunk % 2], chunk / 2 % 2);
            mbarrier_wait(&barriers.solved[turn.place], turn.parity);
            walker.solve(place, values, scale);
            walker.update(place);
            leave(barriers.places, turn);
            walker.store(values);
            fence_proxy_async_shared();  // TMA reads what was written by plain stores
            named_barrier_sync(1 + group, 128);  // all of the panel is written
            if (asks) {
                tensor_store(h, {column, chunk * CHUNK, head}, values);
                bulk_commit();
            }
        }
        if (asks) bulk_wait_read<0>();  // TMA has read the panel before the block ends
    }
    // ANCHOR_END: roles
};

template <class T, int KEY, int GROUPS>
__global__ void __launch_bounds__(FUSED_THREADS, 1)
    gdn_fw_fused(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                 const __grid_constant__ TensorMap h, const float* __restrict__ g, const float* __restrict__ beta,
                 const float* __restrict__ C0, float* __restrict__ CN, int chunks, int S, int dhqk, int dhhv, int group,
                 int slices, bool given, bool wanted, float scale) {
    DYNAMIC_TILES(unsigned char, memory);
    __shared__ Barriers<ROOM<KEY>, GROUPS> barriers;
    int head = blockIdx.x / slices, value = blockIdx.x % slices * GROUPS * PANEL;
    Block<T, KEY, GROUPS> block{*reinterpret_cast<Shared<T, KEY, GROUPS>*>(memory), barriers, head, head / group, value, chunks, S};
    if (threadIdx.x == 0) block.init();
    block.clear();
    __syncthreads();  // nobody waits at a barrier that is not there, or writes weights where zeros are to come

    long long cells = 1ll * head * dhqk * dhhv, row = 1ll * head * S;
    if (threadIdx.x < GROUPS * 128) {
        registers_increase<Registers<GROUPS>::WALK>();
        Walker<T, KEY> walker;
        walker.begin(given ? C0 + cells : nullptr, value, dhqk, dhhv);
        block.walk(walker, q, k, v, h, scale);
        if (wanted) walker.end(CN + cells, value, dhqk, dhhv);
    } else {
        registers_decrease<Registers<GROUPS>::SOLVE>();
        block.solve(g + row, beta + row, scale);
    }
}
