"""The passes between the mixers, in PyTorch, on the problems of the stage `passes`.

    lab bench rms_norm_back --peers --in-turns      # or as problems.py says

`torch`: the operation as one writes it, its operators one by one; `compiled`, the same function through torch.compile, which joins
what it can. Families with `_back` have the gradients as well: the forward pass and autograd's way back, as in training. Where
a formula of the way back is short (swiglu_back, cross_entropy_back) it is written out, so that `compiled` makes one pass of it,
as the kernels do. `adamw`: clip_grad_norm_ and torch.optim.AdamW with fused=True, and a copy in the run's type; its `compiled` has
the formula. The error is that of the results against f64: the largest of all tensors of results.

Not here: append_to_cache.
"""

import functools

import torch
import torch.nn.functional as F

from problems import Peer, answer, relative_error

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
EPS = 1e-6
LR, BETAS, ADAM_EPS, DECAY, MAX_NORM = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda").to(dtype)


def wide(x):
    """Arithmetic is in f32, or in f64 where the operands are."""
    return x if x.dtype == torch.float64 else x.float()


def with_gradients(function, differentiated, upstream):
    """`function`'s results, and the gradients of the inputs that `differentiated` names, from `upstream(inputs)` above."""

    def both(*inputs):
        results = function(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        of = [inputs[place] for place in differentiated]
        return *results, *torch.autograd.grad(results, of, upstream(inputs))

    both.differentiated, both.forward, both.upstream = differentiated, function, upstream
    return both


def rms_norm(x, weight, added, *_):
    total = x + added
    return total, F.rms_norm(total, total.shape[-1:], weight, EPS)


def head_norm(h, ogate, weight, *_):
    merged = h.transpose(1, 2)
    normed = F.layer_norm(wide(merged), merged.shape[-1:], None, None, EPS)
    return (torch.sigmoid(wide(ogate)) * normed * wide(weight)).to(h.dtype)


def swiglu(gate_up, *_):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def swiglu_back(gate_up, du):
    """u and the gradients of both halves, in one formula."""
    a, b = (wide(x) for x in gate_up.chunk(2, -1))
    sigmoid, d = torch.sigmoid(a), wide(du)
    silu = a * sigmoid
    gradients = torch.cat([d * b * sigmoid * (1 + a * (1 - sigmoid)), d * silu], -1)
    return (silu * b).to(du.dtype), gradients.to(du.dtype)


def soft_cap_gates(pre, bias, *_):
    capped = 15 * torch.tanh((wide(pre) + wide(bias)) / 15)
    i, f = capped.transpose(1, 2).chunk(2, 1)
    return i.contiguous(), f.contiguous()


def turn(x, cos, sin):
    a, b = (wide(half) for half in x.chunk(2, -1))
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


def rope(x, dout, cos, sin):
    """There and back."""
    return turn(x, cos, sin), turn(dout, cos, -sin)


def angles(positions, width):
    at = torch.arange(positions, dtype=torch.float64, device="cuda")
    rates = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64, device="cuda") / width)
    of = at[:, None, None] * rates
    return of.cos().float(), of.sin().float()


def cross_entropy(logits, targets):
    capped = 30 * torch.tanh(wide(logits) / 30)
    rows = F.cross_entropy(capped, targets, ignore_index=-100, reduction="none")
    return rows.sum() / (targets >= 0).sum(), rows


def cross_entropy_back(logits, targets):
    """The losses and the gradient of their mean, in one formula."""
    slope = torch.tanh(wide(logits) / 30)
    capped = 30 * slope
    lse = torch.logsumexp(capped, -1)
    is_counted = targets >= 0
    place = targets.clamp(min=0)
    rows = torch.where(is_counted, lse - capped.gather(-1, place[:, None])[:, 0], 0.0)
    count = is_counted.sum()
    is_target = torch.arange(logits.shape[-1], device=logits.device) == place[:, None]
    gradient = (torch.exp(capped - lse[:, None]) - is_target.to(capped.dtype)) * (1 - slope * slope)
    gradient = torch.where(is_counted[:, None], gradient / count, 0.0)
    return rows.sum() / count, rows, gradient.to(logits.dtype)


def embedding_back(weight, tokens, dy):
    """The gradient in the type of the weight, as autograd has it."""
    return torch.ops.aten.embedding_dense_backward(dy, tokens, weight.shape[0], 0, False)


def dropout(x, dout):
    """There and back: the mask is kept between the two."""
    out, mask = torch.native_dropout(x, 0.3, True)
    return out, torch.ops.aten.native_dropout_backward(dout, mask, 1 / 0.7)


def adamw(p, copy, g, m, v):
    """The formula, in place: what torch.compile makes of it."""
    factor = (MAX_NORM / (torch.linalg.vector_norm(g) + 1e-6)).clamp(max=1.0)
    scaled = g * factor
    m.lerp_(scaled, 1 - BETAS[0])
    v.mul_(BETAS[1]).addcmul_(scaled, scaled, value=1 - BETAS[1])
    root = (v / (1 - BETAS[1])).sqrt() + ADAM_EPS
    p.sub_(LR * (DECAY * p + m / (1 - BETAS[0]) / root))
    copy.copy_(p)


def inputs_of(family, size, dtype):
    """The operands of a family's problem, random."""
    of = functools.partial(normal, dtype=dtype)
    match family.removesuffix("_back"):
        case "rms_norm":
            r, c = size("R", "C")
            return of(r, c), of(c), of(r, c), of(r, c), of(r, c)
        case "head_norm":
            b, s, nh, d = size("B", "S", "NH", "DHHV")
            return of(b, nh, s, d), of(b, s, nh, d), of(nh, d), of(b, s, nh, d)
        case "swiglu":
            r, c = size("R", "C")
            return of(r, 2 * c), of(r, c)
        case "soft_cap_gates":
            b, s, nh = size("B", "S", "NH")
            return of(b, s, 2 * nh), of(2 * nh), normal(b, nh, s), normal(b, nh, s)
        case "split_heads":
            b, s, nh, d = size("B", "S", "NH", "D")
            return (of(b, s, nh, d),)
        case "merge_heads":
            b, s, nh, d = size("B", "S", "NH", "D")
            return (of(b, nh, s, d),)
        case "rope":
            b, s, nh, d = size("B", "S", "NH", "D")
            return of(b, s, nh, d), of(b, s, nh, d), *angles(s, d)
        case "dropout":
            return of(*size("N")), of(*size("N"))
        case "widen":
            return of(*size("N")), normal(*size("N"))
        case "embedding":
            r, v, e = size("R", "V", "E")
            # As the kernels' problem: a few tokens often, and padding, which is token 0 here and has no gradient.
            tokens = (normal(r).double() ** 4 * v / 16).long() % v
            tokens[18::19] = 0
            return of(v, e), tokens, of(r, e)
        case "cross_entropy":
            r, v = size("R", "V")
            targets = torch.arange(r, device="cuda") * 7919 % v
            targets[4::5] = -100
            return (4 * of(r, v)).to(dtype), targets
    raise ValueError(f"no such family: {family}")


# Rows, then a gradient from above for each result: those of rms_norm are y and the stream.
FUNCTIONS = {
    "rms_norm": rms_norm,
    "rms_norm_back": with_gradients(rms_norm, (0, 1), lambda of: (of[4], of[3])),
    "head_norm": head_norm,
    "head_norm_back": with_gradients(head_norm, (0, 1, 2), lambda of: (of[3],)),
    "swiglu": swiglu,
    "swiglu_back": swiglu_back,
    "soft_cap_gates": soft_cap_gates,
    "soft_cap_gates_back": with_gradients(soft_cap_gates, (0, 1), lambda of: (of[2], of[3])),
    "split_heads": lambda x: x.transpose(1, 2).contiguous(),
    "merge_heads": lambda x: x.transpose(1, 2).contiguous(),
    "rope": rope,
    "dropout": dropout,
    "widen": lambda x, total: total.add_(x),
    "embedding": lambda weight, tokens, _: F.embedding(tokens, weight),
    "embedding_back": embedding_back,
    "cross_entropy": cross_entropy,
    "cross_entropy_back": cross_entropy_back,
}
# Nothing to join, or nothing whose result f64 could be held against.
ALONE = ("split_heads", "merge_heads", "embedding", "dropout")
COMPUTES = {"dropout": "draws of its own", "embedding_back": "in the run's type"}  # and not in f32


def tensors(results):
    return [x for x in (results if isinstance(results, tuple) else (results,)) if x is not None]


def prepare(family, inputs, is_compiled):
    function = FUNCTIONS[family]
    if is_compiled and hasattr(function, "differentiated"):
        forward = torch.compile(function.forward, dynamic=False)
        function = with_gradients(forward, function.differentiated, function.upstream)
    elif is_compiled:
        function = torch.compile(function, dynamic=False)
    differentiated = getattr(function, "differentiated", ())
    # Of its own: it may be written to, and gradients are its own.
    own = [x.clone().requires_grad_() if n in differentiated else x.clone() for n, x in enumerate(inputs)]
    is_other = family in COMPUTES and not (family == "embedding_back" and inputs[0].dtype == torch.float32)
    row = {"computes": COMPUTES[family]} if is_other else {}
    if family != "dropout":
        row["relative_error"] = error(family, function, own)
    return Peer(lambda: function(*own), row)


def error(family, function, inputs):
    """The largest of all results, each against f64."""
    exact = FUNCTIONS[family]
    wider = [x.detach().double() if x.is_floating_point() else x for x in inputs]
    wider = [x.requires_grad_() if n in getattr(exact, "differentiated", ()) else x for n, x in enumerate(wider)]
    expected = [x.detach() for x in tensors(exact(*wider))]
    del wider
    found = [x.detach() for x in tensors(function(*inputs))]
    return max(relative_error(x, y) for x, y in zip(found, expected, strict=True))


def arena(n, dtype):
    """Masters, a working copy, gradients and moments, as they are after some steps."""
    p, g, m = normal(n), 0.02 * normal(n), 0.01 * normal(n)
    return p, p.to(dtype), g, m, (0.02 * normal(n)) ** 2 + 1e-6


def fused_step(p, copy, g, m, v):
    """torch.optim's step with these moments, of a parameter that is in one piece."""
    parameter = torch.nn.Parameter(p)
    parameter.grad = g
    optimizer = torch.optim.AdamW([parameter], lr=LR, betas=BETAS, eps=ADAM_EPS, weight_decay=DECAY, fused=True, capturable=True)
    steps = torch.zeros((), device=p.device)
    optimizer.state[parameter] = {"step": steps, "exp_avg": m, "exp_avg_sq": v}

    def step():
        steps.zero_()
        torch.nn.utils.clip_grad_norm_([parameter], MAX_NORM, foreach=True)
        optimizer.step()
        copy.copy_(parameter.detach())

    return step


def prepare_adamw(own, is_compiled):
    exact = [x.double() for x in own]
    adamw(*exact)
    compiled = torch.compile(adamw, dynamic=False) if is_compiled else None
    of = [x.clone() for x in own]
    run = (lambda: compiled(*of)) if is_compiled else fused_step(*of)
    run()
    places = [0, 3, 4] if of[1].dtype == torch.float32 else [0, 1, 3, 4]
    return Peer(run, {"relative_error": max(relative_error(of[n], exact[n]) for n in places)})


def lines(asked):
    family = asked["family"]
    if asked["dtype"] not in DTYPES or not (family in FUNCTIONS or family == "adamw"):
        return
    dtype, size = DTYPES[asked["dtype"]], lambda *names: [asked["shape"][name] for name in names]
    if family == "adamw":
        own = arena(*size("N"), dtype)
        yield "torch", lambda: prepare_adamw(own, False)
        yield "compiled", lambda: prepare_adamw(own, True)
        return
    inputs = inputs_of(family, size, dtype)
    yield "torch", lambda: prepare(family, inputs, False)
    if family not in ALONE:
        yield "compiled", lambda: prepare(family, inputs, True)


if __name__ == "__main__":
    torch.manual_seed(0)
    answer([f"PyTorch {torch.__version__}"], lines)
