"""Attention without its matrix of scores: rows of Q in tiles of BM, keys in tiles of BN, an online softmax."""

import triton
import triton.language as tl


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, S, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """o_i = sum over j <= i of softmax_j(scale q_i · k_j) v_j; all [heads, S, D]."""
    first, head = tl.program_id(0) * BM, tl.program_id(1) * S * D
    i, d = first + tl.arange(0, BM), tl.arange(0, D)
    rows = head + i[:, None] * D + d[None, :]
    q = tl.load(q_ptr + rows, mask=i[:, None] < S, other=0.0)
    row_max = tl.full((BM,), -float("inf"), tl.float32)
    row_sum = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for j0 in range(0, tl.minimum(first + BM, S), BN):
        j = j0 + tl.arange(0, BN)
        k = tl.load(k_ptr + head + j[None, :] * D + d[:, None], mask=j[None, :] < S, other=0.0)
        # exp(x) = 2^(x log2 e)
        scores = tl.dot(q, k) * (scale * 1.44269504)
        scores = tl.where((j[None, :] < S) & (j[None, :] <= i[:, None]), scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_max[:, None])
        decay = tl.exp2(row_max - new_max)
        row_sum = row_sum * decay + tl.sum(p, axis=1)
        v = tl.load(v_ptr + head + j[:, None] * D + d[None, :], mask=j[:, None] < S, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None])
        row_max = new_max
    tl.store(o_ptr + rows, (acc / row_sum[:, None]).to(v_ptr.dtype.element_ty), mask=i[:, None] < S)
