"""y = gelu(x Wᵀ + b) + r in PyTorch, on the problems of matmul:linear.

    lab bench linear --peers         # or as problems.py says

`torch`: F.linear, whose bias is added in cuBLASLt's epilogue, then a GELU and an addition, a launch each; `compiled`,
the same through torch.compile, which joins the two; `product`, x Wᵀ alone, without all that. The error is that of y
against f64, on some rows.
"""

import torch
import torch.nn.functional as F

from problems import answer, launched, relative_error, replay_us

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def layer(x, weight, bias, residual):
    return F.gelu(F.linear(x, weight, bias)) + residual


def product(x, weight, bias, residual):
    return F.linear(x, weight)


def measure(function, exact, inputs):
    x, weight, bias, residual = inputs
    run = lambda: function(*inputs)
    some = slice(0, 64)
    expected = exact(x[some].double(), weight.double(), bias.double(), residual[some].double())
    row = {"relative_error": relative_error(run()[some], expected)}
    return row | launched(run, 20) | {"replay_us": replay_us(run, 10)}


def lines(asked):
    if asked["dtype"] not in DTYPES:
        return
    g, m, n, k = (asked["shape"][name] for name in ("G", "M", "N", "K"))
    normal = lambda *shape: torch.randn(*shape, device="cuda").to(DTYPES[asked["dtype"]])
    inputs = normal(g * m, k), normal(n, k) / k**0.5, normal(n), normal(g * m, n)
    yield "torch", lambda: measure(layer, layer, inputs)
    yield "compiled", lambda: measure(torch.compile(layer), layer, inputs)
    yield "product", lambda: measure(product, product, inputs) | {"computes": "x Wᵀ alone"}


if __name__ == "__main__":
    torch.manual_seed(0)
    answer([f"PyTorch {torch.__version__}"], lines)
