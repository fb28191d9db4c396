"""y = gelu(x Wᵀ + b) + r in PyTorch, on the problems of matmul:linear; and dW = dyᵀ x on those of matmul:weight_gradient.

    lab bench linear --peers         # or as problems.py says

`torch`: F.linear, whose bias is added in cuBLASLt's epilogue, then a GELU and an addition, a launch each; `compiled`,
the same through torch.compile, which joins the two; `product`, x Wᵀ alone, without all that. The error is that of y
against f64, on some rows.

Family `weight_gradient`: `torch`, by cuBLAS, into f32; `halves`, into the type of dy and x, as autograd has it. The error is that of
some rows of dW.
"""

import torch
import torch.nn.functional as F

from problems import Peer, answer, relative_error

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def layer(x, weight, bias, residual):
    return F.gelu(F.linear(x, weight, bias)) + residual


def product(x, weight, bias, residual):
    return F.linear(x, weight)


def prepare(function, exact, inputs, **row):
    x, weight, bias, residual = inputs
    run = lambda: function(*inputs)
    some = slice(0, 64)
    expected = exact(x[some].double(), weight.double(), bias.double(), residual[some].double())
    return Peer(run, row | {"relative_error": relative_error(run()[some], expected)})


def weight_gradient(asked):
    rows, n, k = (asked["shape"][name] for name in ("R", "N", "K"))
    dy, x = (torch.randn(rows, columns, device="cuda").to(DTYPES[asked["dtype"]]) for columns in (n, k))
    expected = dy[:, :64].double().T @ x.double()
    for name, out in (("torch", torch.float32), ("halves", dy.dtype)):

        def run(out=out):
            return torch.mm(dy.T, x, out_dtype=out)

        yield name, lambda run=run: Peer(run, {"relative_error": relative_error(run()[:64], expected)})


def lines(asked):
    if asked["dtype"] not in DTYPES:
        return
    if asked["family"] == "weight_gradient":
        yield from weight_gradient(asked)
        return
    g, m, n, k = (asked["shape"][name] for name in ("G", "M", "N", "K"))
    normal = lambda *shape: torch.randn(*shape, device="cuda").to(DTYPES[asked["dtype"]])
    inputs = normal(g * m, k), normal(n, k) / k**0.5, normal(n), normal(g * m, n)
    yield "torch", lambda: prepare(layer, layer, inputs)
    yield "compiled", lambda: prepare(torch.compile(layer), layer, inputs)
    yield "product", lambda: prepare(product, product, inputs, computes="x Wᵀ alone")


if __name__ == "__main__":
    torch.manual_seed(0)
    answer([f"PyTorch {torch.__version__}"], lines)
