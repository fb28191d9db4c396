"""200 steps of torch.optim.SGD, for the reference of the MLP and for kernels to be held against.

    pip install torch==2.15.0 numpy safetensors && python3 mlp.py OUT.safetensors

All in f64 on the CPU, ids too: the first parameters, the tokens and targets of each step, the
gradients of the first, the loss of each, the last parameters. Each token has a target that mostly
follows it, so that there is something to learn.
"""

import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional

VOCABULARY, EMBEDDING, HIDDEN = 13, 6, 10
STEPS, BATCH, LR = 200, 8, 0.5


def main(path):
    torch.manual_seed(0)
    random = lambda *shape: torch.nn.Parameter(torch.randn(*shape, dtype=torch.float64) * 0.5)
    p = dict(
        emb=random(VOCABULARY, EMBEDDING),
        w1=random(HIDDEN, EMBEDDING),
        b1=random(HIDDEN),
        w2=random(VOCABULARY, HIDDEN),
        b2=random(VOCABULARY),
    )
    tokens = torch.randint(VOCABULARY, (STEPS, BATCH))
    rare = torch.rand(STEPS, BATCH) < 0.1
    targets = torch.where(rare, torch.randint(VOCABULARY, (STEPS, BATCH)), (tokens * 5 + 3) % VOCABULARY)
    all = {f"first.{name}": value.detach().clone() for name, value in p.items()}
    optimizer = torch.optim.SGD(p.values(), lr=LR)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x = functional.embedding(tokens[step], p["emb"])
        h = functional.relu(functional.linear(x, p["w1"], p["b1"]))
        loss = functional.cross_entropy(functional.linear(h, p["w2"], p["b2"]), targets[step])
        loss.backward()
        if step == 0:
            all |= {f"gradient.{name}": value.grad.clone() for name, value in p.items()}
        optimizer.step()
        losses.append(loss.detach())
    all |= {f"last.{name}": value.detach().clone() for name, value in p.items()}
    all |= dict(tokens=tokens.double(), targets=targets.double(), losses=torch.stack(losses))
    all["lr"] = torch.tensor([LR], dtype=torch.float64)
    save_file(all, path, metadata={"torch": torch.__version__})


main(sys.argv[1])
