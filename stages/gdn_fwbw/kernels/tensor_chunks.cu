// As chunks.cu, on tensor cores: what a chunk's own gradients are, of all chunks at once. With X = s read ⊙ (dH Cᵀ), Y = read ⊙ (dR Cᵀ)
// and W = write ⊙ (U dC⁺ᵀ),
//
//   dS = s tril(dH Uᵀ) ⊙ E        Z = -tril(dR Uᵀ, -1) ⊙ E        G = diag(beta) Z
//   dq = X + dS K                 dk_r = beta ⊙ (Z K - Y)         dk_w = W + dSᵀ Q + Gᵀ K         dk = dk_r + dk_w
//   dbeta_i = dR_i·v_i + k_i·(Z K - Y)_i
//   dg_t = exp(γ_L) ⟨C, dC⁺⟩ + Σ_j k_j·W_j + Σ_{τ >= t in the chunk} (q·dq + k·dk_r - k·dk_w)
//
// where the first two terms are ⟨C⁺, dC⁺⟩: so the state behind the chunk is not loaded.
//
// Work split: a block has a chunk of a head of q and k, and goes through the heads of v that share it, PART columns of V at a time:
// all gradients are sums over columns, made in one order. A warp has 16 positions and half the keys; of dS and Z, a warp has 16
// rows of one. C and dC⁺ come through two places, ROWS columns of V at a time.
//
// q, k, dq, dk, dq_sum, dk_sum: heads / group x S x dhqk, v, dh: heads x S x dhhv, g, beta, dg, dbeta: heads x S; C, dC: heads x
// chunks x dhhv x dhqk, saved_values (U), dR: heads x chunks x dhhv x CHUNK. A grid of heads / group chunks blocks. Of packed sequences
// (lab/vlstm/sequence.cuh) each begins its own chunk; some are no sequence's.
#include "tensor_chunks.cuh"

using namespace lab;

template <class T, int KEY> constexpr int gdn_fwbw_tensor_chunks_shared = sizeof(Gathered<T, KEY>);

template <class T, int KEY>
__global__ void __launch_bounds__(MAKERS, KEY > 128 ? 1 : 2)
    gdn_fwbw_tensor_chunks(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                           const T* __restrict__ dh, const float* __restrict__ g, const float* __restrict__ beta,
                           const T* __restrict__ saved_values, const T* __restrict__ dR, const T* __restrict__ C,
                           const T* __restrict__ dC, float* dq_sum, float* dk_sum, T* __restrict__ dq, T* __restrict__ dk,
                           float* __restrict__ dg, float* __restrict__ dbeta, const int* __restrict__ cu_seqlens,
                           bool packed, int key_heads, int sequences, int chunks, int S, int dhqk, int dhhv, int group,
                           bool given, float scale) {
    constexpr int OWN = KEY / 4;  // sums of a lane's 16 positions and half the keys
    constexpr int PART = Gathered<T, KEY>::PART;
    DYNAMIC_SHARED(unsigned char, memory);
    auto& shared = *reinterpret_cast<Gathered<T, KEY>*>(memory);
    const auto& decays = shared.decays;
    const auto& own = shared.own;
    Slot slot(blockIdx.x, CHUNK, chunks, S, packed ? cu_seqlens : nullptr, key_heads, sequences);
    if (!slot.is_in_sequence(CHUNK)) return;
    if (threadIdx.x == 0) shared.own.set(slot, chunks);
    __syncthreads();  // all read it
    int parts = (dhhv + PART - 1) / PART, turns = parts * group;
    auto rows = [&](T* to, float* sum) {  // of the block's chunk
        long long from = own.row(S) * dhqk;
        return Rows<T>{to + from, sum + from, dhqk, own.length, (dhhv + PART - 1) / PART * group};
    };
    copy_tile(shared.q, q + own.row(S) * dhqk, 0, own.length, dhqk);
    copy_tile(shared.k, k + own.row(S) * dhqk, 0, own.length, dhqk);

    float inner;  // a thread's share of ⟨C⁺, dC⁺⟩
    for (int turn = 0; turn < turns; ++turn) {
        int head = own.keys * group + turn / parts, c0 = turn % parts * PART, columns = min(PART, dhhv - c0);
        long long gates = 1ll * head * S, values = (gates + own.first) * dhhv, at = (1ll * head * chunks + own.chunk) * dhhv + c0;
        copy_tile(shared.heard.dh, dh + values, c0, own.length, dhhv);
        copy_tile(shared.v, v + values, c0, own.length, dhhv);
        copy_tile(shared.heard.rest, dR + at * CHUNK, 0, columns, CHUNK);
        copy_tile(shared.values, saved_values + at * CHUNK, 0, columns, CHUNK);
        async_commit();
        if (c0 == 0) start_head(shared, inner, g + gates, beta + gates, own.first, own.end);
        async_wait<0>();
        __syncthreads();  // all of it is there; and γ
        unsigned pairs[CHUNK / 16][4];
        make_pairs(pairs, shared, columns, scale);
        __syncthreads();  // V is read: C comes in its place

        // ANCHOR: states
        Stream<T, KEY> stream(shared, C, dC, at * dhqk, columns, dhqk);
        float x[OWN] = {}, y[OWN] = {}, w[OWN] = {};
#pragma unroll 1
        for (int n = 0; n < stream.slices; ++n) {
            uint4 behind[stream.PACKS];
            stream.ask_inner(behind, n);
            stream.wait();
            inner += keep(decays.read[CHUNK - 1], stream.inner(behind, n));
            add_reads(x, y, shared, stream.place(n), n * stream.ROWS);
            stream.next(n);
        }
        store_pairs(pairs, shared);
        __syncthreads();  // a warp reads dS and Z of all rows
        scale_rows(x, decays.read, scale), scale_rows(y, decays.read, -1);
        add_earlier(x, y, shared);
        add_rows(shared.of_gate, dots(x, shared.q, 1)), add_rows(shared.of_beta, dots(y, shared.k, 1));
        rows(dq, dq_sum).store(x, turn);
        scale_rows(y, decays.beta, 1);
        add_rows(shared.of_gate, dots(y, shared.k, 1));
#pragma unroll 1
        for (int n = stream.slices; n < 2 * stream.slices; ++n) {
            stream.wait();
            add_writes(w, shared, stream.place(n), (n - stream.slices) * stream.ROWS);
            stream.next(n);
        }
        scale_rows(w, decays.write, 1);
        float2 of_state = dots(w, shared.k, 1);
        inner += of_state.x + of_state.y;
        add_later(w, shared);
        add_rows(shared.of_gate, dots(w, shared.k, -1));
#pragma unroll
        for (int e = 0; e < OWN; ++e) w[e] += y[e];
        rows(dk, dk_sum).store(w, turn);
        // ANCHOR_END: states
        if ((turn + 1) % parts == 0) {
            // ANCHOR: gates
            inner = block_reduce<MAKERS>(inner, Add(), 0.0f);  // and so all warps' sums of positions are there
            if (int i = threadIdx.x; i < own.length) {
                float sum = inner;
                for (int t = i; t < own.length; ++t) sum += shared.of_gate[0][t] + shared.of_gate[1][t];
                long long t = (1ll * own.keys * group + turn / parts) * S + own.first + i;
                // Nothing was there to keep, or the gate keeps nothing: what is left are roundings.
                dg[t] = (!given && own.begins && i == 0) || expf(g[t]) == 0 ? 0 : sum;
                dbeta[t] = shared.of_beta[0][i] + shared.of_beta[1][i];
            }
            // ANCHOR_END: gates
        }
        __syncthreads();  // all of it is read: the next may come
    }
}
