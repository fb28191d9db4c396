"""PyTorch's training step of the MLP for text, timed on the shapes of mlp_fused.

    python3 benches/peers/mlp.py [OUT.json]

emb, w1, b1, ReLU, w2, b2, cross-entropy, and a step of SGD, of B pairs. A line a peer, shape and type, with
the fields of a line of benches/history: `median_us`, `p10_us`, `p90_us` by device events; `replay_us` the
same captured in a CUDA graph, in the steady state: what 40 replays take more than 20, over 20. The peers:
`torch`, its operators one by one; `compiled`, the same through torch.compile. `relative_error` is that of
w2 after 10 steps, its change, against f64. tf32: the products of f32 on the tensor cores; bf16: under
autocast, with parameters in f32. What cannot run says so under `failed`, and the rest is measured.
"""

import json
import sys

import torch
import torch.nn.functional as F

from timing import eager, replay_us

# B, V, E, H
SHAPES = [(1, 1000, 64, 128), (256, 5000, 128, 256), (1024, 10000, 256, 512)]
TYPES = ["f32", "tf32", "bf16"]
LR = 0.1


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
    return ((moved[0] - moved[1]).norm() / moved[1].norm()).item()


def measure(peer, shape, kind):
    def make():
        step = Step(shape, kind)
        if peer == "compiled":
            step.loss = torch.compile(step.loss)
        return step

    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    runs = 50
    found = {"relative_error": error(shape, make)}
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    step = make()
    return {**found, **eager(step, runs), "replay_us": replay_us(step, runs)}


def main():
    device, results = torch.cuda.get_device_name(), []
    for shape in SHAPES:
        for kind in TYPES:
            for peer in ("torch", "compiled"):
                b, v, e, h = shape
                line = {"version": peer, "of": "library", "family": "mlp", "dtype": kind,
                        "shape": f"B={b},E={e},H={h},N=1,V={v}"}
                try:
                    line |= measure(peer, shape, kind)
                    print({k: round(v, 6) if isinstance(v, float) else v for k, v in line.items()})
                except Exception as failure:
                    line["failed"] = f"{type(failure).__name__}: {failure}"[:200]
                    print(line)
                results.append(line)
    versions = {"gpu": device, "torch": torch.__version__, "cuda": torch.version.cuda}
    record = {"device": versions, "results": results}
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
