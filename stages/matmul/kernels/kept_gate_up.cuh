// The sums of a gated layer on their way to memory, kept in registers while the products of a warpgroup's next tile run.
#pragma once
#include "kept_sums.cuh"
#include "lab/ptx/ldmatrix.cuh"
#include "lab/ptx/mbarrier.cuh"
#include "lab/swiglu.cuh"

namespace lab {

// As floats_of(), for what is kept in registers: the compiler would keep the halves of bfloat16 apart, in twice as many.
template <class T> __device__ __forceinline__ float2 floats_in(unsigned word) {
    if constexpr (is_f16<T>) return floats_of<T>(word);
    else return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

// ANCHOR: kept
// A tile has BN / 2 columns of gate, then the same ones of up. A thread has both of each column that it has, so that u is made
// of what it keeps: gate and up go to the two matrices of C, where they are wanted, and then u to U.
template <class T, int BM, int BN, class Order> struct KeptGateUp : KeptSums<T, BM, BN, Order> {
    using Sums = KeptSums<T, BM, BN, Order>;
    using Store = typename Sums::Store;
    static constexpr bool IN_TURNS = true;
    static constexpr int OF_U = BN / 2 / Store::PANEL, PANELS = 3 * OF_U;
    static_assert(OF_U % 2 == 0, "each tile begins with the first place, and so does u");
    const TensorMap& U;
    bool keeps;  // gate and up

    __device__ __forceinline__ KeptGateUp(const TensorMap& C, const TensorMap& U, const Store& staged, Order order, int row,
                                          bool keeps)
        : Sums(C, staged, order, row), U(U), keeps(keeps) {}

    __device__ __forceinline__ void store(int p) {
        if (this->tile < 0) return;
        if (p == 0) {
            auto [down, along, one] = this->order.at(this->tile);
            this->i = down * BM + this->row, this->j = along * (BN / 2);
        }
        const unsigned(&words)[BN / 4] = this->words;
        int column = this->j + p % OF_U * Store::PANEL;
        if (p >= 2 * OF_U) {
            int first = p % OF_U * Store::PANEL / 4;
            this->staged.store_panel(U, p, this->i, column, 0, [&](int w) {
                float2 gate = floats_in<T>(words[first + w]), up = floats_in<T>(words[first + w + BN / 8]);
                return two_halves<T>(swiglu(gate.x, up.x), swiglu(gate.y, up.y));
            });
        } else if (keeps) {
            this->staged.store_panel(this->C, p, this->i, column, p / OF_U,
                                     [&](int w) { return words[p * Store::PANEL / 4 + w]; });
        }
    }
};
// ANCHOR_END: kept

// Where panels of gate and up come to, and where their gradients and u stand, ready to leave: of a warpgroup. There are two sets of
// places: while one is in use, the other one's results are read and the next panels come. u has OF_U places. Where it has one, a panel
// waits until the one before has left; where it has two, its own set has come only when it is free.
template <class T, int OF_U = 1> struct GatePanels {
    static constexpr int PANEL = 128 / sizeof(T), CELLS = 64 * PANEL, SETS = 2;
    static constexpr int BYTES = (2 * SETS + OF_U) * CELLS * sizeof(T);
    T* places;

    struct Barriers {
        Mbarrier come[SETS];     // gate and up
        Mbarrier written[OF_U];  // the results of a panel stand there; never completes twice before it is waited for
        Mbarrier left;           // and have been read

        // One thread, before a fence of barriers.
        __device__ __forceinline__ void init() {
            for (int set = 0; set < SETS; ++set) mbarrier_init(&come[set], 1);
            for (int place = 0; place < OF_U; ++place) mbarrier_init(&written[place], 128);
            mbarrier_init(&left, 1);
        }
    };
    Barriers& barriers;

    __device__ __forceinline__ T* set(int n) const { return places + n % SETS * 2 * CELLS; }
    __device__ __forceinline__ T* of_u(int n) const { return places + (SETS * 2 + n % OF_U) * CELLS; }

    // By one thread beside the warpgroup. Panel n, of rows i and columns j: gate and up are brought; what was made of them goes to memory.
    __device__ __forceinline__ void bring(const TensorMap& gate_up, int n, int i, int j) const {
        Mbarrier* come = &barriers.come[n % SETS];
        mbarrier_arrive_expect(come, 2 * CELLS * sizeof(T));
        tensor_load(set(n), gate_up, {j, i, 0}, come);
        tensor_load(set(n) + CELLS, gate_up, {j, i, 1}, come);
    }
    __device__ __forceinline__ void send(const TensorMap& d, const TensorMap& u, int n, int i, int j,
                                         bool makes_u) const {
        mbarrier_wait(&barriers.written[n % OF_U], n / OF_U % 2);
        tensor_store(d, {j, i, 0}, set(n));
        tensor_store(d, {j, i, 1}, set(n) + CELLS);
        if (makes_u) tensor_store(u, {j, i, 0}, of_u(n));
        bulk_commit();
        bulk_wait_read<0>();
        mbarrier_arrive(&barriers.left);
    }

    // ANCHOR: exchange
    // By the warpgroup, once panel n's gate and up have come: their gradients take their places. du(w) is word w of its own share of
    // du, as wgmma has it.
    template <class Words> __device__ __forceinline__ void exchange(int n, bool makes_u, Words du) const {
        int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = warp * 16 + lane % 16;
#pragma unroll
        for (int c = 0; c < PANEL; c += 16) {
            int cell = row * PANEL + ((c / 8 + lane / 16) ^ row % 8) * 8;
            T* cells = set(n) + cell;
            unsigned gate[4], up[4], u[4];
            load_matrices(gate, cells);
            load_matrices(up, cells + CELLS);
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                float2 a = floats_in<T>(gate[w]), b = floats_in<T>(up[w]), d = floats_in<T>(du(c / 4 + w));
                auto first = swiglu_gradients(a.x, b.x, d.x), second = swiglu_gradients(a.y, b.y, d.y);
                gate[w] = two_halves<T>(first.gate, second.gate);
                up[w] = two_halves<T>(first.up, second.up);
                u[w] = two_halves<T>(first.u, second.u);
            }
            __syncwarp();  // all lanes have read what others of them write over
            store_matrices(cells, gate);
            store_matrices(cells + CELLS, up);
            if (makes_u) store_matrices(of_u(n) + cell, u);
        }
        fence_proxy_async_shared();  // TMA reads what was written by plain stores
        mbarrier_arrive(&barriers.written[n % OF_U]);  // each lane, for what it has written
    }
    // ANCHOR_END: exchange
};

// ANCHOR: upstream
// du of a tile, rounded; panel by panel it becomes the gradients of gate and up, and u again where that is wanted.
template <class T, int BN> struct KeptUpstream {
    using Panels = GatePanels<T>;
    static constexpr bool IN_TURNS = true;
    static constexpr int PANELS = BN / Panels::PANEL, STEPS = 3;
    static_assert(PANELS % (2 * Panels::SETS) == 0, "each tile begins with the first set, and with the same phases");
    Panels panels;
    bool makes_u, has = false;
    unsigned words[BN / 4];

    __device__ __forceinline__ KeptUpstream(Panels panels, bool makes_u) : panels(panels), makes_u(makes_u) {}

    __device__ __forceinline__ void keep(const float (&sum)[BN / 2], int) {
        has = true;
#pragma unroll
        for (int w = 0; w < BN / 4; ++w) words[w] = two_halves<T>(sum[2 * w], sum[2 * w + 1]);
    }
    __device__ __forceinline__ void store(int p) {
        if (!has) return;
        mbarrier_wait(&panels.barriers.come[p % Panels::SETS], p / Panels::SETS % 2);
        mbarrier_wait(&panels.barriers.left, (p + 1) % 2);  // the panel before, also without u: `written` is not a phase ahead. The first time it returns at once
        panels.exchange(p, makes_u, [&](int w) { return words[p * Panels::PANEL / 4 + w]; });
    }
};
// ANCHOR_END: upstream

}  // namespace lab
