"""A small xLSTM language model on letters, trained by several implementations of the mLSTM from the same start.

    python train.py                                              # a few steps of a tiny one; on a GPU, 200 of a larger one
    python train.py --implementations vlstm,plain,mlstm_kernels  # the last by `pip install mlstm_kernels`
    python train.py --seeds 6 --record losses.json               # mean and spread of six trainings each, and all losses
    python train.py --table losses.json                          # the table of such a record, as the README has it

`vlstm` and `mlstm_kernels` multiply bfloat16, `plain` is the parallel form in float32, in PyTorch. Prints the losses of
all beside each other, and letters a second. The text is a file of PyTorch's own source.
"""

import argparse
import datetime
import inspect
import json
import pathlib
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

import vlstm

CUDA = torch.cuda.is_available()


def plain(q, k, v, i, f):
    """The parallel form, with all pairs of positions."""
    sums = F.logsigmoid(f).cumsum(-1)
    gates = (sums[..., :, None] - sums[..., None, :] + i[..., None, :]).masked_fill(
        torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1), -torch.inf
    )
    # A constant of the pass, as n: so are the gradients of the gates those of `normalizer_grad="constant"`.
    m = gates.amax(-1, keepdim=True).detach()
    weights = q @ k.mT * q.shape[-1] ** -0.5 * (gates - m).exp()
    n = torch.maximum(weights.sum(-1, keepdim=True).abs(), (-m).exp()).detach()
    return weights @ v / (n + 1e-6)


def in_bfloat16(function):
    return lambda q, k, v, i, f: function(*(t.bfloat16() for t in (q, k, v)), i, f).float()


def implementation(name):
    if name == "plain":
        return plain
    if name == "vlstm":
        return in_bfloat16(vlstm.mlstm)
    from mlstm_kernels.torch.chunkwise.triton_xl_chunk import mlstm_chunkwise__xl_chunk

    return in_bfloat16(lambda *t: mlstm_chunkwise__xl_chunk(*t, autocast_kernel_dtype=torch.bfloat16))


class Block(nn.Module):
    def __init__(self, width, heads, mlstm):
        super().__init__()
        self.heads, self.mlstm = heads, mlstm
        self.norm = nn.LayerNorm(width)
        self.q, self.k = (nn.Linear(width, width // 2) for _ in range(2))
        self.v, self.gate, self.down = (nn.Linear(width, width) for _ in range(3))
        self.gates = nn.Linear(width, 2 * heads)
        self.head_norm = nn.GroupNorm(heads, width)
        with torch.no_grad():
            self.gates.weight.mul_(0.1)
            self.gates.bias.copy_(torch.cat([torch.full((heads,), -3.0), torch.linspace(3, 6, heads)]))

    def forward(self, x):
        y = self.norm(x)
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # to (B, NH, S, DH)
        i, f = self.gates(y).transpose(1, 2).chunk(2, 1)
        h = self.mlstm(split(self.q(y)), split(self.k(y)), split(self.v(y)), i.contiguous(), f.contiguous())
        h = self.head_norm(h.transpose(1, 2).flatten(0, 1).flatten(1)).view_as(x)
        return x + self.down(h * F.silu(self.gate(y)))


class Model(nn.Module):
    def __init__(self, letters, options, mlstm):
        super().__init__()
        self.letters = nn.Embedding(letters, options.width)
        self.blocks = nn.Sequential(*(Block(options.width, options.heads, mlstm) for _ in range(options.layers)))
        self.out = nn.Sequential(nn.LayerNorm(options.width), nn.Linear(options.width, letters))

    def forward(self, x):
        return self.out(self.blocks(self.letters(x)))


def train(name, text, letters, options, seed):
    """Losses, and letters a second in the second half of the steps."""
    torch.manual_seed(seed)
    device = "cuda" if CUDA else "cpu"
    model = Model(letters, options, implementation(name)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    losses = []
    for step in range(options.steps):
        if step == options.steps // 2:
            if CUDA:
                torch.cuda.synchronize()
            start = time.perf_counter()
        first = torch.randint(len(text) - options.sequence, (options.batch,))
        pieces = torch.stack([text[s : s + options.sequence + 1] for s in first]).to(device)
        loss = F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses).tolist()
    seen = options.batch * options.sequence * (options.steps - options.steps // 2)
    return losses, seen / (time.perf_counter() - start)


# ---- what is printed -----------------------------------------------------------------------------

# How many losses a mean is over, and where such windows begin beside the last.
WINDOW, STARTS = 10, (10, 50, 100, 150)
COLUMNS = {
    "vlstm": "`vlstm`, bfloat16",
    "plain": "plain PyTorch, float32",
    "mlstm_kernels": "`mlstm_kernels` (`xl_chunk`), bfloat16",
}


def windows(steps):
    """The steps over which losses are averaged: (first, end)."""
    last = max(0, steps - WINDOW)
    return [(start, start + WINDOW) for start in STARTS if start + WINDOW <= last] + [(last, steps)]


def mean_and_deviation(losses, first, end):
    """Over the seeds, of the mean loss of these steps."""
    of_seeds = [statistics.mean(of_one[first:end]) for of_one in losses]
    return statistics.mean(of_seeds), statistics.stdev(of_seeds) if len(of_seeds) > 1 else 0.0


def furthest(of_one, of_other):
    """The largest difference of two losses at the same step and seed, as a share."""
    return max(abs(a - b) / b for one, other in zip(of_one, of_other) for a, b in zip(one, other))


def table(record):
    """The table of a record, in Markdown, and how far single steps are apart."""
    losses, names = record["losses"], list(record["losses"])
    lines = ["| loss, mean of these steps ± its standard deviation over the seeds | " + " | ".join(COLUMNS[n] for n in names) + " |"]
    lines.append("|---|" + "---:|" * len(names))
    for first, end in windows(record["steps"]):
        cells = ["{:.3f} ± {:.3f}".format(*mean_and_deviation(losses[name], first, end)) for name in names]
        lines.append(f"| {first} to {end - 1} | " + " | ".join(cells) + " |")
    if "letters_per_second" in record:  # the first record has none
        rates = [f"{round(statistics.median(record['letters_per_second'][name]), -3):,.0f}" for name in names]
        lines.append("| letters a second, median of the seeds | " + " | ".join(rates) + " |")
    said = f"{record['device']}, PyTorch {record['torch']}, {record['seeds']} seeds, {record['date']}: `{record['command']}`."
    apart = [f"from `{name}` by up to {100 * furthest(losses[names[0]], losses[name]):.2g} %" for name in names[1:]]
    if apart:
        said += f" Single steps of `{names[0]}` differ {', '.join(apart)}."
    return "\n".join([*lines, "", said])


def show(trained, options):
    """Losses of the first seed beside each other; mean and spread of several."""
    results = {name: of_seeds[0] for name, of_seeds in trained.items()}
    names = list(results)
    print("step", *(f"{name:>14}" for name in names))
    for step in range(options.steps):
        if step % max(1, options.steps // 20) == 0 or step == options.steps - 1:
            print(f"{step:4}", *(f"{results[name][0][step]:14.4f}" for name in names))
    print("letters a second", *(f"{name}: {results[name][1]:.0f}" for name in names))
    for name in names[1:]:
        apart = furthest([results[names[0]][0]], [results[name][0]])
        print(f"{names[0]} and {name}: losses at most {100 * apart:.2f} % apart")
    if options.seeds > 1:
        for name, of_seeds in trained.items():
            mean, deviation = mean_and_deviation([losses for losses, _ in of_seeds], *windows(options.steps)[-1])
            print(f"{name}: last ten steps of {options.seeds} seeds {mean:.3f} ± {deviation:.3f}")


def record_of(trained, options):
    """What was run on what, and all losses and rates, by implementation and seed."""
    asked = [f"--{name} {value}" for name, value in vars(options).items() if value is not None and name != "record"]
    facts = {
        "command": " ".join(["train.py", *asked]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if CUDA else "emulator",
        **{name: value for name, value in vars(options).items() if name not in ("record", "table")},
    }
    rates = {name: [round(rate) for _, rate in of_seeds] for name, of_seeds in trained.items()}
    losses = {name: [[round(x, 5) for x in of_one] for of_one, _ in of_seeds] for name, of_seeds in trained.items()}
    return {**facts, "letters_per_second": rates, "losses": losses}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"steps": (200, 4), "width": (1024, 64), "heads": (4, 2), "layers": (2, 1)}
    sizes |= {"sequence": (1024, 70), "batch": (8, 1)}
    for size, (on_gpu, on_cpu) in sizes.items():
        parser.add_argument(f"--{size}", type=int, default=on_gpu if CUDA else on_cpu)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--implementations", default="vlstm,plain", help=f"of {', '.join(COLUMNS)}, with commas between")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each, from other weights on other pieces")
    parser.add_argument("--record", type=pathlib.Path, help="a file for the losses of all steps, implementations and seeds, as JSON")
    parser.add_argument("--table", type=pathlib.Path, help="prints the table of such a file, and trains nothing")
    options = parser.parse_args()
    if options.table:
        return print(table(json.loads(options.table.read_text())))
    names = options.implementations.split(",")
    if not set(names) <= set(COLUMNS):
        parser.error(f"--implementations: expected some of {', '.join(COLUMNS)}, got {options.implementations}")
    source = inspect.getsource(inspect.getmodule(nn.LSTM))
    letters = sorted(set(source))
    text = torch.tensor([letters.index(letter) for letter in source])
    trained = {name: [train(name, text, len(letters), options, seed) for seed in range(options.seeds)] for name in names}
    show(trained, options)
    if options.record:
        options.record.write_text(json.dumps(record_of(trained, options)) + "\n")


if __name__ == "__main__":
    main()
