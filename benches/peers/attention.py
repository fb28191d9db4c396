"""Softmax attention of others, on the problems of the stage `attention`.

    lab bench attention --peers      # or as problems.py says
    pip install fa3-fwd==0.0.3       # optional: FlashAttention-3, the forward pass

PyTorch's `scaled_dot_product_attention` by cuDNN (`cudnn`) and by FlashAttention-2 (`flash`), in halves; `math`, the scores in
memory, in f32 without TF32. Family `attention`, or `attention_fwbw` with all gradients from do; causal. Neither backward pass
is deterministic: dq is summed up by atomics; `flash_deterministic` and `cudnn_deterministic` are asked for the same bits each
time. The error is that of o against f64, on one head.
"""

import importlib.util

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from problems import Peer, answer, peak_bytes, relative_error

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
}


def attention(backend, q, k, v):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def exact_head(inputs):
    """o of the first head in f64, some rows at a time: the scores of a long sequence have no room at once."""
    q, k, v = (t[0, 0].detach().double() for t in inputs)
    rows, at = [], torch.arange(len(q), device=q.device)
    for block in at.split(1024):
        seen = block[-1] + 1
        scores = q[block] @ k[:seen].t() * q.shape[1] ** -0.5
        scores.masked_fill_(at[None, :seen] > block[:, None], -torch.inf)
        rows.append(scores.softmax(1) @ v[:seen])
    return torch.cat(rows)[None, None]


def flash3(inputs, exact):
    """FlashAttention-3, which has positions before heads: they are turned round before, which is not timed."""
    from fa3_fwd_interface import flash_attn_func

    q, k, v = (t.detach().transpose(1, 2).contiguous() for t in inputs)
    run = lambda: flash_attn_func(q, k, v, causal=True)
    o = run()
    o = (o[0] if isinstance(o, tuple) else o).transpose(1, 2)
    return Peer(run, {"relative_error": relative_error(o[:1, :1], exact), "peak_bytes": peak_bytes(run)})


def deterministic(prepared):
    """The same, in PyTorch's mode that refuses what is not the same bits each time."""

    def run():
        torch.use_deterministic_algorithms(True)
        try:
            return prepared.run()
        finally:
            torch.use_deterministic_algorithms(False)

    return Peer(run, prepared.row | {"peak_bytes": peak_bytes(run)}, is_replayed=False)


def prepare(backend, backward, inputs, grad, exact):
    def run():
        if not backward:
            with torch.no_grad():
                return attention(backend, *inputs)
        o = attention(backend, *inputs)
        return o, torch.autograd.grad(o, inputs, grad)

    o = run()[0] if backward else run()
    row = {"relative_error": relative_error(o[:1, :1].detach(), exact)}
    del o
    row["peak_bytes"] = peak_bytes(run)
    # A graph is captured of the forward pass alone: cuDNN's backward pass refuses it here.
    return Peer(run, row, is_replayed=not backward)


def lines(asked):
    backward = asked["family"] == "attention_fwbw"
    if not backward and asked["family"] != "attention":
        return
    b, nh, nkv, s, d = (asked["shape"][name] for name in ("B", "NH", "NKV", "S", "D"))
    normal = lambda heads: torch.randn(b, heads, s, d, device="cuda").to(DTYPES[asked["dtype"]])
    inputs = [normal(heads).requires_grad_(backward) for heads in (nh, nkv, nkv)]
    grad = normal(nh)
    exact = exact_head(inputs)
    for name in ["math"] if asked["dtype"] == "f32" else ["cudnn", "flash"]:
        yield name, lambda name=name: prepare(BACKENDS[name], backward, inputs, grad, exact)
        if backward and name != "math":
            both = lambda name=name: prepare(BACKENDS[name], True, inputs, grad, exact)
            yield f"{name}_deterministic", lambda both=both: deterministic(both())
    if not backward and asked["dtype"] != "f32" and importlib.util.find_spec("fa3_fwd_interface"):
        yield "flash3", lambda: flash3(inputs, exact)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    answer([f"PyTorch {torch.__version__}", f"cuDNN {torch.backends.cudnn.version()}"], lines)
