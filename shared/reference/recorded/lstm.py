"""Outputs and gradients of PyTorch, for the references of LSTM, GRU and training to be held against.

    pip install torch==2.15.0 numpy safetensors && python3 lstm.py OUT.safetensors

All in f64 on the CPU, counts too. The networks are torch.nn.LSTM and torch.nn.GRU. Peepholes and
layer norm, which those do not have, are a loop over the steps in plain PyTorch, with its layer norm
and its autograd.
"""

import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

STEPS, BATCH, INPUTS, HIDDEN = 6, 4, 3, 4
LENGTHS = [4, 6, 1, 3]
NETWORKS = {
    "plain": {},
    "no_bias": dict(bias=False),
    "stack": dict(num_layers=2, bidirectional=True),
    "packed": dict(bidirectional=True, lengths=LENGTHS),
    "packed_stack": dict(num_layers=2, lengths=LENGTHS),
    "dropout": dict(num_layers=3, dropout=0.4),
}
EPS = 1e-5
CELLS = {"peephole": (True, False), "layer_norm": (False, True), "both": (True, True)}


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def gradients(inputs, outputs):
    """Inputs, outputs, random gradients by the outputs, and those by the inputs."""
    d = {f"d{name}": normal(*value.shape) for name, value in outputs.items()}
    got = torch.autograd.grad(list(outputs.values()), list(inputs.values()), list(d.values()))
    return inputs | outputs | d | {f"d{name}": value for name, value in zip(inputs, got)}


def states(kind, count):
    names = ["h0", "c0"] if kind == "lstm" else ["h0"]
    return {name: normal(count, BATCH, HIDDEN) for name in names}


def network(kind, lengths=None, **options):
    layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind]
    layer = layer(INPUTS, HIDDEN, dtype=torch.float64, **options)
    count = layer.num_layers * (1 + layer.bidirectional)
    inputs = {"x": normal(STEPS, BATCH, INPUTS)} | states(kind, count)
    for value in inputs.values():
        value.requires_grad_()
    inputs |= dict(layer.named_parameters())
    known, x = {}, inputs["x"]
    if lengths:
        known["lengths"] = torch.tensor(lengths, dtype=torch.float64)
        x = pack_padded_sequence(x, lengths, enforce_sorted=False)
    if layer.dropout:
        # The masks are the only random numbers that the layers draw, one after the other.
        torch.manual_seed(1)
        ones = torch.ones(STEPS, BATCH, HIDDEN * (1 + layer.bidirectional), dtype=torch.float64)
        masks = [functional.dropout(ones, layer.dropout) for _ in range(layer.num_layers - 1)]
        known["dropout"] = torch.stack(masks)
        torch.manual_seed(1)
    if kind == "lstm":
        y, (hn, cn) = layer(x, (inputs["h0"], inputs["c0"]))
        last = dict(hn=hn, cn=cn)
    else:
        y, hn = layer(x, inputs["h0"])
        last = dict(hn=hn)
    if lengths:
        y, _ = pad_packed_sequence(y, total_length=STEPS)
    return known | gradients(inputs, dict(y=y) | last)


def cell(peephole, layer_norm):
    rows = 4 * HIDDEN
    shapes = dict(weight_ih=(rows, INPUTS), weight_hh=(rows, HIDDEN), bias_ih=(rows,), bias_hh=(rows,))
    if peephole:
        shapes |= {f"peephole_{gate}": (HIDDEN,) for gate in "ifo"}
    if layer_norm:
        shapes |= dict(ln_weight=(rows,), ln_bias=(rows,), ln_c_weight=(HIDDEN,), ln_c_bias=(HIDDEN,))
    p = {f"{name}_l0": normal(*shape) for name, shape in shapes.items()}
    inputs = {"x": normal(STEPS, BATCH, INPUTS)} | states("lstm", 1) | p
    for value in inputs.values():
        value.requires_grad_()

    def norm(a, gate):
        if not layer_norm:
            return a
        part = slice(gate * HIDDEN, (gate + 1) * HIDDEN)
        return functional.layer_norm(a, (HIDDEN,), p["ln_weight_l0"][part], p["ln_bias_l0"][part], EPS)

    def peep(a, gate, c):
        return a + p[f"peephole_{gate}_l0"] * c if peephole else a

    h, c, y = inputs["h0"][0], inputs["c0"][0], []
    for x in inputs["x"]:
        a = functional.linear(x, p["weight_ih_l0"], p["bias_ih_l0"])
        i, f, g, o = (a + functional.linear(h, p["weight_hh_l0"], p["bias_hh_l0"])).chunk(4, 1)
        i = torch.sigmoid(norm(peep(i, "i", c), 0))
        f = torch.sigmoid(norm(peep(f, "f", c), 1))
        c = f * c + i * torch.tanh(norm(g, 2))
        o = torch.sigmoid(norm(peep(o, "o", c), 3))
        u = functional.layer_norm(c, (HIDDEN,), p["ln_c_weight_l0"], p["ln_c_bias_l0"], EPS) if layer_norm else c
        h = o * torch.tanh(u)
        y.append(h)
    return gradients(inputs, dict(y=torch.stack(y), hn=h[None], cn=c[None]))


def losses():
    logits, y, target = normal(6, 5), normal(4, 3), normal(4, 3)
    logits[1] *= 300
    targets = torch.tensor([0, 4, 2, 2, 1, 3])
    case = dict(logits=logits, targets=targets.double(), y=y, target=target)
    for name, x, loss in [
        ("cross_entropy", logits, lambda x: functional.cross_entropy(x, targets)),
        ("mse", y, lambda x: functional.mse_loss(x, target)),
    ]:
        x.requires_grad_()
        case[name] = loss(x)
        case[f"{name}.d"] = torch.autograd.grad(case[name], x)[0]
    return case


def optimizers(steps=30):
    """p after each step of descent on Σ a (p − b)² / 2."""
    a, b, p0 = normal(5).abs(), normal(5), normal(5)
    optim = torch.optim
    case = dict(a=a, b=b, p0=p0)
    for name, optimizer in {
        "sgd": lambda p: optim.SGD(p, lr=0.1),
        "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.03),
        "adam": lambda p: optim.Adam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-3),
        "adam_decay": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.03),
        "adamw": lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.3),
    }.items():
        p = p0.clone().requires_grad_()
        optimizer, all = optimizer([p]), []
        for _ in range(steps):
            optimizer.zero_grad()
            (a * (p - b) ** 2 / 2).sum().backward()
            optimizer.step()
            all.append(p.detach().clone())
        case[name] = torch.stack(all)
    return case


def clipping():
    case = {}
    for name, max_norm in dict(small=0.5, large=100.0).items():
        all = [torch.nn.Parameter(normal(n)) for n in (3, 4)]
        for k, p in enumerate(all):
            p.grad = normal(*p.shape)
            case[f"{name}.g{k}"] = p.grad.clone()
        case[f"{name}.norm"] = torch.nn.utils.clip_grad_norm_(all, max_norm)
        case |= {f"{name}.clipped{k}": p.grad for k, p in enumerate(all)}
    return case


def schedules(steps=25):
    schedules, case = torch.optim.lr_scheduler, {}
    for name, schedule in {
        "step": lambda o: schedules.StepLR(o, step_size=7, gamma=0.3),
        "cosine": lambda o: schedules.CosineAnnealingLR(o, T_max=steps - 1, eta_min=0.01),
        "warm_up": lambda o: schedules.LinearLR(o, start_factor=0.1, total_iters=10),
    }.items():
        optimizer = torch.optim.SGD([torch.nn.Parameter(normal(1))], lr=0.4)
        schedule, all = schedule(optimizer), []
        for _ in range(steps):
            all.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        case[name] = torch.tensor(all, dtype=torch.float64)
    return case


def main(path):
    torch.manual_seed(0)
    cases = {f"{kind}.{name}": network(kind, **o) for kind in ("lstm", "gru") for name, o in NETWORKS.items()}
    cases |= {f"lstm.{name}": cell(*options) for name, options in CELLS.items()}
    cases |= dict(loss=losses(), optimizer=optimizers(), clip=clipping(), schedule=schedules())
    tensors = {f"{case}.{name}": t.detach().contiguous() for case, all in cases.items() for name, t in all.items()}
    save_file(tensors, path, metadata={"torch": torch.__version__})


main(sys.argv[1])
