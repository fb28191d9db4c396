"""PyTorch's training step of the MLP for text, on the problems of mlp_fused.

    lab bench mlp --peers            # or as problems.py says

emb, w1, b1, ReLU, w2, b2, cross-entropy, and a step of SGD, of B pairs; a run is N steps. The peers: `torch`,
its operators one by one; `compiled`, the same through torch.compile; `_tf32`: the products of f32 on the
tensor cores; `_bf16`: under autocast, with parameters in f32. The error is that of w2 after 10 steps, its
change, against f64.
"""

import functools

import torch
import torch.nn.functional as F

from problems import Peer, answer, relative_error

LR = 0.1
PRODUCTS = {"f32": None, "tf32": "tf32", "bf16": "halves"}


def parameters(shape, dtype):
    b, v, e, h = shape
    torch.manual_seed(0)
    make = lambda rows, columns: torch.randn(rows, columns, dtype=torch.float64) / columns**0.5
    of = {"emb": make(v, e), "w1": make(h, e), "b1": torch.zeros(h), "w2": make(v, h), "b2": torch.zeros(v)}
    return {name: p.to("cuda", dtype).requires_grad_() for name, p in of.items()}


class Step:
    """One training step; every gradient is written anew."""

    def __init__(self, shape, kind, dtype=torch.float32):
        b, v, _, _ = shape
        self.of = parameters(shape, dtype)
        generator = torch.Generator().manual_seed(1)
        draw = lambda: torch.randint(v, (b,), generator=generator).cuda()
        self.tokens, self.targets = draw(), draw()
        self.kind = kind
        self.optimizer = torch.optim.SGD(self.of.values(), lr=LR, foreach=True)

    def loss(self):
        p = self.of
        with torch.autocast("cuda", torch.bfloat16, enabled=self.kind == "bf16"):
            x = F.embedding(self.tokens, p["emb"])
            h = F.relu(F.linear(x, p["w1"], p["b1"]))
            return F.cross_entropy(F.linear(h, p["w2"], p["b2"]), self.targets)

    def __call__(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.loss().backward()
        self.optimizer.step()


def error(shape, make):
    """Of what w2 has moved by in ten steps."""
    moved = []
    for step in (make(), Step(shape, "f64", torch.float64)):
        before = step.of["w2"].detach().double().clone()
        for _ in range(10):
            step()
        moved.append(step.of["w2"].detach().double() - before)
    return relative_error(*moved)


def prepare(peer, shape, kind, steps):
    def make():
        step = Step(shape, kind)
        if peer == "compiled":
            step.loss = torch.compile(step.loss)
        return step

    def one():
        # Of this peer's runs: others come between.
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        step()

    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    row = {"relative_error": error(shape, make), "products": PRODUCTS[kind]}
    step = make()
    return Peer(lambda: [one() for _ in range(steps)], row, replays=50, captured=one, steps=steps)


def lines(asked):
    if asked["dtype"] != "f32":
        return
    b, v, e, h, steps = (asked["shape"][name] for name in "BVEHN")
    for kind in PRODUCTS:
        for peer in ("torch", "compiled"):
            name = peer if kind == "f32" else f"{peer}_{kind}"
            yield name, functools.partial(prepare, peer, (b, v, e, h), kind, steps)


if __name__ == "__main__":
    answer([f"PyTorch {torch.__version__}"], lines)
