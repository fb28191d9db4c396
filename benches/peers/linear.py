"""y = gelu(x Wᵀ + b) + r in PyTorch, on the problems of matmul:linear; and what else a linear layer has: weight_gradient,
linear_swiglu and its way back, few_rows.

    lab bench linear --peers         # or as problems.py says

`torch`: F.linear, whose bias is added in cuBLASLt's epilogue, then a GELU and an addition, a launch each; `compiled`,
the same through torch.compile, which joins the two; `product`, x Wᵀ alone, without all that. The error is that of y
against f64, on some rows.

Family `weight_gradient`: `torch`, by cuBLAS, into f32; `halves`, into the type of dy and x, as autograd has it. The error is that of
some rows of dW.

Families `linear_swiglu`, `linear_swiglu_back`: `torch`, cuBLAS' product and then the pass of SwiGLU as one writes it; `compiled`, the
same through torch.compile, which joins the pass.

Families `few_rows`, `few_rows_int8`: `torch`, cuBLAS with the residual in its epilogue; of int8 weights, `compiled`, which widens
and scales them on the way into the product, as far as torch.compile joins that.
"""

import torch
import torch.nn.functional as F

from passes import swiglu, swiglu_back
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


def forward_swiglu(x, weight):
    gate_up = F.linear(x, weight)
    return gate_up, swiglu(gate_up)


def back_swiglu(dy, weight, gate_up):
    return swiglu_back(gate_up, dy @ weight)


def held_against(function, exact, inputs):
    """The error is the largest of all results, on some rows: every family here treats them alike, and has them first."""
    some, rest = slice(0, 64), [x.double() for x in inputs[1:2]]
    of = [inputs[0][some].double(), *rest, *(x[some].double() for x in inputs[2:])]
    pairs = zip(function(*inputs), exact(*of), strict=True)
    return Peer(lambda: function(*inputs), {"relative_error": max(relative_error(x[some], y) for x, y in pairs)})


def with_swiglu(asked, normal):
    m, h, k = (asked["shape"][name] for name in ("M", "H", "K"))
    is_back = asked["family"].endswith("back")
    function = back_swiglu if is_back else forward_swiglu
    weight = normal(k, h) / h**0.5 if is_back else normal(2 * h, k) / k**0.5
    inputs = (normal(m, k), weight, normal(m, 2 * h)) if is_back else (normal(m, k), weight)
    yield "torch", lambda: held_against(function, function, inputs)
    yield "compiled", lambda: held_against(torch.compile(function, dynamic=False), function, inputs)


def few_rows(asked, normal):
    r, k, n = (asked["shape"][name] for name in ("R", "K", "N"))
    x, residual = normal(r, k), normal(r, n)
    if asked["family"] == "few_rows":
        function = lambda x, weight, residual: (torch.addmm(residual, x, weight.T),)
        weight = normal(n, k) / k**0.5
        yield "torch", lambda: held_against(function, function, (x, weight, residual))
        return
    weight = torch.randint(-127, 128, (n, k), dtype=torch.int8, device="cuda")
    scale = torch.rand(n, device="cuda") / 64 / k**0.5

    def scaled(x, weight, residual):
        wide = torch.promote_types(x.dtype, torch.float32)
        return ((F.linear(x, weight.to(x.dtype)).to(wide) * scale.to(wide)).to(x.dtype) + residual,)

    compiled = torch.compile(scaled, dynamic=False)
    yield "compiled", lambda: held_against(compiled, scaled, (x, weight, residual))


def lines(asked):
    if asked["dtype"] not in DTYPES:
        return
    normal = lambda *shape: torch.randn(*shape, device="cuda").to(DTYPES[asked["dtype"]])
    others = {
        "weight_gradient": lambda: weight_gradient(asked),
        "linear_swiglu": lambda: with_swiglu(asked, normal),
        "linear_swiglu_back": lambda: with_swiglu(asked, normal),
        "few_rows": lambda: few_rows(asked, normal),
        "few_rows_int8": lambda: few_rows(asked, normal),
    }
    if asked["family"] in others:
        yield from others[asked["family"]]()
        return
    g, m, n, k = (asked["shape"][name] for name in ("G", "M", "N", "K"))
    inputs = normal(g * m, k), normal(n, k) / k**0.5, normal(n), normal(g * m, n)
    yield "torch", lambda: prepare(layer, layer, inputs)
    yield "compiled", lambda: prepare(torch.compile(layer), layer, inputs)
    yield "product", lambda: prepare(product, product, inputs, computes="x Wᵀ alone")


if __name__ == "__main__":
    torch.manual_seed(0)
    answer([f"PyTorch {torch.__version__}"], lines)
