"""A training step of the language model of `lab lm` in PyTorch, compiled: the same sizes, types and optimizer, its mixer
`vlstm.mlstm` or the causal attention of PyTorch, with rotary positions.

    language_model.py [vlstm|attention] [--width 768 --heads 6 --blocks 12 --vocabulary 50304 --window 2048 --batch 16]
    language_model.py [vlstm|attention] SIZES --turns
    language_model.py products SIZES --turns
    language_model.py [vlstm|attention] SIZES --start MODEL --text FILE --steps 2000 --curve LOSSES.json

The second times its steps once for each line that it reads, for `language_model_turns.py`. The third has of the step with the mixer
`vlstm` cuBLAS' products alone, in one CUDA graph: what a step could not be faster than, under the same load. The fourth trains:
from the parameters of a file of `lab lm train`, on the bytes of a text, in windows as they stand in it
(`lab lm train --in-order --schedule constant --held-out 0`), and writes the loss of each step.

Needs torch with CUDA; for the mixer `vlstm` the package of shared/python. Prints one JSON object: the median of the steps behind a
warm-up, by device events. Parameters in f32, products in bf16 (autocast), AdamW in one kernel, gradients clipped.
"""

import argparse
import json
import os
import sys

# Beside this file lies another vlstm.py, which is not the package.
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]

import torch
import torch.nn.functional as F
from torch import nn

EPS, GATE_CAP, LOGIT_CAP, THETA = 1e-6, 15.0, 30.0, 1e4


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight, EPS).to(x.dtype)


def angles(positions, columns):
    """cos and sin of the rotary positions of a head, [positions, columns / 2]: made once, as Llama's code has it."""
    rates = THETA ** (-torch.arange(columns // 2, device="cuda") / (columns // 2))
    angles = torch.arange(positions, device="cuda")[:, None] * rates
    return angles.cos(), angles.sin()


def turned(x, cos, sin):
    """Halves of a head turned against each other."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Mixer(nn.Module):
    """σ(o) ⊙ head norm(vLSTM(q, k, v, gates)), then a linear layer; or attention and that."""

    def __init__(self, width, heads, kind):
        super().__init__()
        self.heads, self.kind = heads, kind
        keys = width if kind == "attention" else width // 2
        self.parts = [keys, keys, width] + ([] if kind == "attention" else [width])
        self.qkvo = nn.Linear(width, sum(self.parts), bias=False)
        self.gates = None if kind == "attention" else nn.Linear(width, 2 * heads)
        self.norm = nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, y, rope):
        batch, positions, width = y.shape
        q, k, v, *gate = self.qkvo(y).split(self.parts, -1)
        q, k, v = (t.view(batch, positions, self.heads, -1).transpose(1, 2).contiguous() for t in (q, k, v))
        if self.kind == "attention":
            h = F.scaled_dot_product_attention(turned(q, *rope), turned(k, *rope), v, is_causal=True)
            return self.out(h.transpose(1, 2).reshape(batch, positions, width))
        import vlstm

        pre = GATE_CAP * torch.tanh(self.gates(y).float() / GATE_CAP)
        i, f = (t.contiguous() for t in pre.view(batch, positions, 2, self.heads).permute(2, 0, 3, 1))
        h = vlstm.mlstm(q, k, v, i, f).transpose(1, 2).float()
        h = F.layer_norm(h, h.shape[-1:], None, None, EPS).reshape(batch, positions, width) * self.norm
        return self.out(torch.sigmoid(gate[0]) * h.to(y.dtype))


class Block(nn.Module):
    def __init__(self, width, heads, kind):
        super().__init__()
        hidden = -(-width * 8 // 3 // 64) * 64
        self.norm_mixer, self.norm_ffn = RmsNorm(width), RmsNorm(width)
        self.mixer = Mixer(width, heads, kind)
        self.up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x, rope):
        x = x + self.mixer(self.norm_mixer(x), rope)
        gate, up = self.up(self.norm_ffn(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, vocabulary, width, heads, blocks, kind):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, kind) for _ in range(blocks))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.capped = kind != "attention"

    def forward(self, tokens, targets, rope):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, rope)
        logits = self.head(self.norm(x)).float()
        if self.capped:
            logits = LOGIT_CAP * torch.tanh(logits / LOGIT_CAP)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def load(model, path):
    """The parameters of a file of `lab lm train`, whose names are those of `xlstm_large`."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        names = set(file.keys())
        of = lambda *all: torch.cat([file.get_tensor(name).float() for name in all])
        state = {"embedding.weight": of("embedding.weight"), "head.weight": of("lm_head.weight"),
                 "norm.weight": of("backbone.out_norm.weight")}
        for n in range(len(model.blocks)):
            block = f"backbone.blocks.{n}"
            layer = "mlstm_layer" if f"{block}.mlstm_layer.q.weight" in names else "attention_layer"
            own, ffn = f"{block}.{layer}", f"{block}.ffn"
            norm = "norm_mlstm" if layer == "mlstm_layer" else "norm_attention"
            parts = ["q", "k", "v"] + (["ogate_preact"] if layer == "mlstm_layer" else [])
            to = {"mixer.qkvo.weight": of(*(f"{own}.{part}.weight" for part in parts)),
                  "mixer.out.weight": of(f"{own}.out_proj.weight"),
                  "norm_mixer.weight": of(f"{block}.{norm}.weight"), "norm_ffn.weight": of(f"{block}.norm_ffn.weight"),
                  "up.weight": of(f"{ffn}.proj_up_gate.weight", f"{ffn}.proj_up.weight"),
                  "down.weight": of(f"{ffn}.proj_down.weight")}
            if layer == "mlstm_layer":
                to["mixer.norm"] = of(f"{own}.multihead_norm.weight")
                for kind in ["weight", "bias"]:
                    to[f"mixer.gates.{kind}"] = of(f"{own}.igate_preact.{kind}", f"{own}.fgate_preact.{kind}")
            state |= {f"blocks.{n}.{name}": tensor for name, tensor in to.items()}
    missing, unknown = model.load_state_dict(state, strict=False)
    assert not unknown and set(missing) <= {f"blocks.{n}.mixer.norm" for n in range(len(model.blocks))}, (missing, unknown)


def train(a, model, compiled, rope):
    """The loss of each step, of windows of a text as they stand in it, the rate constant behind a warm-up."""
    text = torch.frombuffer(bytearray(open(a.text, "rb").read()), dtype=torch.uint8).cuda().long()
    windows = (len(text) - 1) // a.window
    all = list(model.parameters())
    groups = [{"params": [p for p in all if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in all if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), fused=True)
    losses = []
    for step in range(a.steps):
        for group in optimizer.param_groups:
            group["lr"] = a.lr * min(1.0, (step + 1) / (a.warm_up + 1))
        starts = [(step * a.batch + n) % windows * a.window for n in range(a.batch)]
        rows = torch.stack([text[s:s + a.window + 1] for s in starts])
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(rows[:, :-1].contiguous(), rows[:, 1:].contiguous(), rope)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(all, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    with open(a.curve, "w") as file:
        json.dump([loss.item() for loss in losses], file)


def products(model, rows):
    """A CUDA graph of the products of a step: forward, of x's gradient and of the weight's, in f32. Logits are made of half of the
    rows at a time. Operands are random, so that they cost the power of numbers; those of one shape are one tensor."""
    at = {}
    get = lambda m, n, kind, dtype=torch.bfloat16: at.setdefault((m, n, kind), torch.randn(m, n, device="cuda").to(dtype))
    work = []
    for linear in (m for m in model.modules() if isinstance(m, nn.Linear)):
        (n, k), w = linear.weight.shape, linear.weight.detach().bfloat16()
        times = 2 if linear is model.head else 1
        m = rows // times
        x, dy, y, dx, dw = get(m, k, "x"), get(m, n, "dy"), get(m, n, "y"), get(m, k, "dx"), get(n, k, "dw", torch.float32)
        work += [(x, w, dy, y, dx, dw)] * times

    def run():
        for x, w, _, y, _, _ in work:
            torch.mm(x, w.T, out=y)
        for x, w, dy, _, dx, dw in reversed(work):
            torch.mm(dy, w, out=dx)
            torch.mm(dy.T, x, out_dtype=torch.float32, out=dw)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mixer", nargs="?", choices=["vlstm", "attention", "products"], default="vlstm")
    for name, size in [("width", 768), ("heads", 6), ("blocks", 12), ("vocabulary", 50304), ("window", 2048), ("batch", 16)]:
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--warm-up", type=int, default=50)
    parser.add_argument("--turns", action="store_true")
    for name in ["start", "text", "curve"]:
        parser.add_argument(f"--{name}")
    a = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    # Made where it is used: a host takes a minute over the first values of a large model.
    with torch.device("cuda"):
        model = Model(a.vocabulary, a.width, a.heads, a.blocks, a.mixer)
    if a.start:
        load(model, a.start)
    compiled = torch.compile(model)
    rope = angles(a.window, a.width // a.heads) if a.mixer == "attention" else None
    if a.curve:
        return train(a, model, compiled, rope)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens, targets = torch.randint(a.vocabulary, (2, a.batch, a.window), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(tokens, targets, rope)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if a.mixer == "products":
        with torch.no_grad():
            step = products(model, a.batch * a.window)

    def measure():
        times = []
        for _ in range(a.steps):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        ms = sorted(times)[len(times) // 2]
        print(json.dumps({
            "peer": f"PyTorch {torch.__version__}, {'a graph of cuBLAS' if a.mixer == 'products' else 'compiled'}, {a.mixer}",
            "device": torch.cuda.get_device_name(),
            "parameters": sum(p.numel() for p in model.parameters()), "ms": ms,
            "tokens_per_second": a.batch * a.window / ms * 1e3, "peak_bytes": torch.cuda.max_memory_allocated(),
        }), flush=True)

    for _ in range(5):
        step()
    if not a.turns:
        return measure()
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        measure()


if __name__ == "__main__":
    main()
