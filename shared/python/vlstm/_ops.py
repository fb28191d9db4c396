"""The operations as PyTorch knows them: `torch.ops.vlstm.*`, with gradients and with fake kernels.

They take what `vlstm._api` has checked and made uniform: gates and states in float32, states all there or none.
"""

import functools

import torch
from torch import Tensor

from vlstm import _launch

_library = torch.library.Library("vlstm", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)

_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c, Tensor? n, Tensor? m"
_library.define(
    f"mlstm({_INPUTS}, bool last_states, float eps, bool exact, str version) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
_library.define(
    f"mlstm_backward(Tensor? dh, Tensor? dc, Tensor? dn, {_INPUTS}, float eps, bool exact, str version)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
_library.define(
    "mlstm_step(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor(a!) c, Tensor(b!) n, Tensor(c!) m, "
    "float eps, str version) -> Tensor",
    tags=_TAGS,
)


@functools.lru_cache(maxsize=None)
def version_names(version):
    """The forward and the backward version that `version` names, separated by a comma: `auto` where it names none."""
    names = [name.strip() for name in version.split(",") if name.strip() != "auto"]
    known = {name: n for n, kind in enumerate(("forward", "gradients")) for name in _launch.names_of(kind)}
    chosen = ["auto", "auto"]
    for name in names:
        if name not in known:
            raise ValueError(f"version: expected auto or of {', '.join(known)} one or two, got {name!r}")
        chosen[known[name]] = name
    return tuple(chosen)


def _contiguous(tensors):
    """The same tensors, row-major and without gaps: copies of those that are not."""
    return {name: None if t is None else t.contiguous() for name, t in tensors.items()}


def _inputs(q, k, v, i, f, c, n, m):
    return _contiguous({"q": q, "k": k, "v": v, "i": i, "f": f, "C0": c, "n0": n, "m0": m})


def _nothing(like):
    return like.new_empty(0, dtype=torch.float32)


# ---- forward -------------------------------------------------------------------------------------


def forward(q, k, v, i, f, c, n, m, last_states, eps, exact, version, on=None):
    """h, and with `last_states` the state behind the last position, else tensors without elements."""
    options = (f"eps={eps!r}", "last_state=yes") if last_states else (f"eps={eps!r}",)
    out = _launch.run("forward", _inputs(q, k, v, i, f, c, n, m), options, version_names(version)[0], on)
    if last_states:
        return out["h"], out["CN"], out["nN"], out["mN"]
    return out["h"], _nothing(q), _nothing(q), _nothing(q)


_library.impl("mlstm", forward, "CPU")
_library.impl("mlstm", forward, "CUDA")


@torch.library.register_fake("vlstm::mlstm", lib=_library)
def _(q, k, v, i, f, c, n, m, last_states, eps, exact, version):
    batch, heads, _, keys = q.shape
    h = q.new_empty(v.shape)
    if not last_states:
        return h, _nothing(q), _nothing(q), _nothing(q)
    shapes = (batch, heads, keys, v.shape[-1]), (batch, heads, keys), (batch, heads)
    return (h, *(q.new_empty(shape, dtype=torch.float32) for shape in shapes))


# ---- backward ------------------------------------------------------------------------------------


def gradient_options(eps, exact, state):
    """The options of a backward pass; `state` says whether one went in, whose gradient is then wanted."""
    options = (f"eps={eps!r}", f"normalizer_grad={'exact' if exact else 'constant'}")
    return (*options, "state_grad=yes") if state else options


def backward(dh, dc, dn, q, k, v, i, f, c, n, m, eps, exact, version, on=None):
    """dq, dk, dv, di, df, and of a state that went in dC and dn, else tensors without elements."""
    tensors = _inputs(q, k, v, i, f, c, n, m)
    tensors["dh"] = torch.zeros_like(tensors["v"]) if dh is None else dh.contiguous()
    if dc is not None or dn is not None:
        batch, heads, _, keys = q.shape
        shapes = (batch, heads, keys, v.shape[-1]), (batch, heads, keys)
        for name, given, shape in zip(("dCN", "dnN"), (dc, dn), shapes):
            zeros = given is None
            tensors[name] = q.new_zeros(shape, dtype=torch.float32) if zeros else given.contiguous()
    options = gradient_options(eps, exact, c is not None)
    out = _launch.run("gradients", tensors, options, version_names(version)[1], on)
    of_state = (out["dC0"], out["dn0"]) if c is not None else (_nothing(q), _nothing(q))
    return (*(out[name] for name in ("dq", "dk", "dv", "di", "df")), *of_state)


_library.impl("mlstm_backward", backward, "CPU")
_library.impl("mlstm_backward", backward, "CUDA")


@torch.library.register_fake("vlstm::mlstm_backward", lib=_library)
def _(dh, dc, dn, q, k, v, i, f, c, n, m, eps, exact, version):
    of_inputs = (t.new_empty(t.shape) for t in (q, k, v, i, f))
    of_state = (_nothing(q) if t is None else t.new_empty(t.shape) for t in (c, n))
    return (*of_inputs, *of_state)


def _save(ctx, inputs, output):
    *tensors, last_states, eps, exact, version = inputs
    ctx.save_for_backward(*tensors)
    ctx.eps, ctx.exact, ctx.version = eps, exact, version
    # The state stands for the same at any exponent m, which is a constant of the pass.
    ctx.mark_non_differentiable(*(output[3:] if last_states else output[1:]))
    ctx.set_materialize_grads(False)


def _gradients(ctx, dh, dc, dn, _):
    q, k, v, i, f, c, n, m = ctx.saved_tensors
    if dh is None and dc is None and dn is None:
        return (None,) * 12
    *of_inputs, of_c, of_n = torch.ops.vlstm.mlstm_backward(
        dh, dc, dn, q, k, v, i, f, c, n, m, ctx.eps, ctx.exact, ctx.version
    )
    of_state = (None, None) if c is None else (of_c, of_n)
    return (*of_inputs, *of_state, None, None, None, None, None)


torch.library.register_autograd("vlstm::mlstm", _gradients, setup_context=_save, lib=_library)


def _refuse_double_backward(ctx, *_):
    raise NotImplementedError(
        "vlstm.mlstm: expected to be differentiated once, got a gradient of its gradient (double backward), which it "
        "does not have"
    )


torch.library.register_autograd("vlstm::mlstm_backward", _refuse_double_backward, lib=_library)


# ---- step ----------------------------------------------------------------------------------------


def step(q, k, v, i, f, c, n, m, eps, version):
    """h of one position; the state is updated where it lies, and must have no gaps."""
    tensors: dict[str, Tensor] = _contiguous({"q": q, "k": k, "v": v, "i": i, "f": f})
    out = _launch.run("step", {**tensors, "C0": c, "n0": n, "m0": m}, (f"eps={eps!r}",), version)
    return out["h"]


_library.impl("mlstm_step", step, "CPU")
_library.impl("mlstm_step", step, "CUDA")


@torch.library.register_fake("vlstm::mlstm_step", lib=_library)
def _(q, k, v, i, f, c, n, m, eps, version):
    return q.new_empty(v.shape)
