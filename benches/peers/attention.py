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

from problems import Peer, answer, relative_error

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
}


def attention(backend, q, k, v):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def flash3(inputs):
    """FlashAttention-3, which has positions before heads: they are turned round before, which is not timed."""
    from fa3_fwd_interface import flash_attn_func

    q, k, v = (t.detach().transpose(1, 2).contiguous() for t in inputs)
    run = lambda: flash_attn_func(q, k, v, causal=True)
    o = run()
    o = (o[0] if isinstance(o, tuple) else o).transpose(1, 2)
    exact = attention(SDPBackend.MATH, *(t[:1, :1].detach().double() for t in inputs))
    return Peer(run, {"relative_error": relative_error(o[:1, :1], exact)})


def deterministic(prepared):
    """The same, in PyTorch's mode that refuses what is not the same bits each time."""

    def run():
        torch.use_deterministic_algorithms(True)
        try:
            return prepared.run()
        finally:
            torch.use_deterministic_algorithms(False)

    run()
    return Peer(run, prepared.row, is_replayed=False)


def prepare(backend, backward, inputs, grad):
    exact = attention(SDPBackend.MATH, *(t[:1, :1].detach().double() for t in inputs))

    def run():
        if not backward:
            with torch.no_grad():
                return attention(backend, *inputs)
        o = attention(backend, *inputs)
        return o, torch.autograd.grad(o, inputs, grad)

    o = run()[0] if backward else run()
    row = {"relative_error": relative_error(o[:1, :1].detach(), exact)}
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
    for name in ["math"] if asked["dtype"] == "f32" else ["cudnn", "flash"]:
        yield name, lambda name=name: prepare(BACKENDS[name], backward, inputs, grad)
        if backward and name != "math":
            yield f"{name}_deterministic", lambda name=name: deterministic(prepare(BACKENDS[name], True, inputs, grad))
    if not backward and asked["dtype"] != "f32" and importlib.util.find_spec("fa3_fwd_interface"):
        yield "flash3", lambda: flash3(inputs)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    answer([f"PyTorch {torch.__version__}", f"cuDNN {torch.backends.cudnn.version()}"], lines)
