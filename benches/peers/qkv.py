"""(Q Kᵀ / √DHQK) V in PyTorch, on the problems of qkv_v0 to qkv_v2 and vlstm_fw_v0.

    lab bench qkv --peers            # or as problems.py says

`torch` writes the S x S scores and reads them again; of family `causal_qkv` with those above the diagonal
zeroed. `reassociated`, where nothing is masked, is Q (Kᵀ V): the same in exact arithmetic, with S / DH times
fewer operations, which nothing that comes between the products leaves room for; qkv_v2 is its like. f32 is without TF32. The
error is that of o against f64, on one head.
"""

import functools

import torch

from problems import Peer, answer, relative_error

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def two_products(causal, q, k, v):
    scores = q.shape[-1] ** -0.5 * q @ k.mT
    return (scores.tril_() if causal else scores) @ v


def reassociated(q, k, v):
    return q @ (k.mT @ v * q.shape[-1] ** -0.5)


def prepare(function, inputs):
    head = [t[:1, :1].double() for t in inputs]
    run = lambda: function(*inputs)
    return Peer(run, {"relative_error": relative_error(run()[:1, :1], function(*head))})


def lines(asked):
    if asked["dtype"] not in DTYPES:
        return
    b, nh, s, dhqk, dhhv = (asked["shape"][name] for name in ("B", "NH", "S", "DHQK", "DHHV"))
    normal = lambda d: torch.randn(b, nh, s, d, device="cuda").to(DTYPES[asked["dtype"]])
    inputs, causal = [normal(dhqk), normal(dhqk), normal(dhhv)], asked["family"] == "causal_qkv"
    yield "torch", lambda: prepare(functools.partial(two_products, causal), inputs)
    if not causal:
        yield "reassociated", lambda: prepare(reassociated, inputs)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    answer([f"PyTorch {torch.__version__}"], lines)
