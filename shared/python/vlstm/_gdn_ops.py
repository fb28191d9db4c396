"""The gated delta rule as PyTorch knows it: `torch.ops.vlstm.gated_delta*`, with gradients and with fake kernels.

They take what `vlstm._gdn` or `vlstm._linear` has checked, in the order of the kernels: q, k (B, H, T, K), v (B, HV, T, V), g, beta
(B, HV, T) and a state (B, HV, K, V) in float32; where sequences are packed, `cu_seqlens` in int32, and N states. `cell` says what g and beta are: `delta`, those of the gated delta rule; `linear`, the
decay and the weight of linear attention, which may be None; `sigmoid`, the forget and the input gate of mLSTMsig.

    gated_delta           the forward pass
    gated_delta_backward  the backward pass, which makes the forward pass again
    gated_delta_step      one position, the state updated where it lies
"""

import functools

import torch

from vlstm import _launch, _ops

_library = torch.library.Library("vlstm", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)

_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor g, Tensor? beta, Tensor? c, Tensor? cu_seqlens"
_SETTINGS = "bool last_state, float? scale, str cell, str version"
_GATES = {"delta": ("g", "beta"), "linear": ("g", "w"), "sigmoid": ("f", "i")}
_FUNCTIONS = {"delta": "gated_delta_rule", "linear": "linear_attention", "sigmoid": "mlstm_sig"}
_STEPS = {"delta": "gated_delta_step", "linear": "linear_attention_step", "sigmoid": "mlstm_sig_step"}
_library.define(f"gated_delta({_INPUTS}, {_SETTINGS}) -> (Tensor, Tensor)", tags=_TAGS)
_library.define(
    f"gated_delta_backward(Tensor? dh, Tensor? dc, {_INPUTS}, {_SETTINGS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
_library.define(
    "gated_delta_step(Tensor q, Tensor k, Tensor v, Tensor g, Tensor? beta, Tensor(a!) c, float? scale, str cell, str version)"
    " -> Tensor",
    tags=_TAGS,
)


def _implement(name, function):
    for device in ("CPU", "CUDA"):
        _library.impl(name, function, device)


@functools.lru_cache(maxsize=None)
def version_names(version, cell):
    """The forward and the backward version that `version` names, separated by a comma: `auto` where it names none."""
    kinds = cell, f"{cell}_gradients"
    known = {name: n for n, kind in enumerate(kinds) for name in _launch.names_of(kind, f"packed_{kind}")}
    chosen = ["auto", "auto"]
    for name in (name.strip() for name in version.split(",")):
        if name == "auto":
            continue
        if name not in known:
            raise ValueError(f"version: expected auto or of {', '.join(known)} one or two, got {name!r}")
        chosen[known[name]] = name
    return tuple(chosen)


def _named(q, k, v, g, beta, c, cu_seqlens, cell):
    """The tensors that are there by the names of the kernels, row-major and without gaps."""
    kept, written = _GATES[cell]
    named = {"q": q, "k": k, "v": v, kept: g, written: beta, "C0": c, "cu_seqlens": cu_seqlens}
    return {name: t.contiguous() for name, t in named.items() if t is not None}


def _of_scale(scale):
    return () if scale is None else (f"scale={scale!r}",)


# ---- forward -------------------------------------------------------------------------------------


def forward(q, k, v, g, beta, c, cu_seqlens, last_state, scale, cell, version):
    """h, and with `last_state` the state behind the last position, else a tensor without elements."""
    named = _named(q, k, v, g, beta, c, cu_seqlens, cell)
    options = (*_of_scale(scale), "last_state=yes") if last_state else _of_scale(scale)
    planned = _launch.plan_for(_launch.device_name(q), cell, named, options, version_names(version, cell)[0])
    out = _launch.run(planned, named)
    return out["h"], out["CN"] if last_state else _nothing(q)


def _nothing(like):
    return like.new_empty(0, dtype=torch.float32)


_implement("gated_delta", forward)


@torch.library.register_fake("vlstm::gated_delta", lib=_library)
def _fake_forward(q, k, v, g, beta, c, cu_seqlens, last_state, scale, cell, version):
    sizes = _ops.sequences_of(q, cu_seqlens), v.shape[1], q.shape[3], v.shape[3]
    return q.new_empty(v.shape), q.new_empty(sizes, dtype=torch.float32) if last_state else _nothing(q)


# ---- backward ------------------------------------------------------------------------------------


def backward(dh, dc, q, k, v, g, beta, c, cu_seqlens, last_state, scale, cell, version):
    """dq, dk, dv, dg, dbeta and the gradient of the state: of what did not go in a tensor without elements."""
    named = _named(q, k, v, g, beta, c, cu_seqlens, cell)
    named["dh"] = torch.zeros_like(named["v"]) if dh is None else dh.contiguous()
    if dc is not None:
        named["dCN"] = dc.contiguous()
    options = _of_scale(scale) if c is None else (*_of_scale(scale), "state_grad=yes")
    if cell == "linear" and beta is not None:
        options = (*options, "weight_grad=yes")
    planned = _launch.plan_for(_launch.device_name(q), f"{cell}_gradients", named, options, version_names(version, cell)[1])
    out = _launch.run(planned, named)
    names = "dq", "dk", "dv", *(f"d{gate}" for gate in _GATES[cell]), "dC0"
    return tuple(out[name] if name in out else _nothing(q) for name in names)


_implement("gated_delta_backward", backward)


@torch.library.register_fake("vlstm::gated_delta_backward", lib=_library)
def _fake_backward(dh, dc, q, k, v, g, beta, c, *_):
    return tuple(_nothing(q) if t is None else t.new_empty(t.shape) for t in (q, k, v, g, beta, c))


def _save(ctx, inputs, output):
    *tensors, last_state, scale, cell, version = inputs
    ctx.settings = last_state, scale, cell, version
    ctx.set_materialize_grads(False)
    if not last_state:
        ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors)


def _gradients(ctx, dh, dc):
    if dh is None and dc is None:
        return (None,) * 11
    if _ops.is_batched((dh, dc)):
        return _ops.each_of_batch(lambda *outer: _gradients(ctx, *outer), (dh, dc))
    saved = ctx.saved_tensors
    call = _TransformedBackward.apply if _ops.is_under_transform() else torch.ops.vlstm.gated_delta_backward
    return _of_what_went_in(call(dh, dc, *saved, *ctx.settings), saved)


def _of_what_went_in(gradients, saved):
    # cu_seqlens, which is the last of the tensors, and the settings have none.
    return (*(None if t is None else gradient for gradient, t in zip(gradients, saved)), *[None] * 5)


torch.library.register_autograd("vlstm::gated_delta", _gradients, setup_context=_save, lib=_library)


def _save_settings(ctx, inputs, output):
    ctx.settings = inputs[-4:]


def _refuse_double_backward(ctx, *_):
    raise NotImplementedError(
        f"vlstm.{_function_of(ctx)}: expected to be differentiated once, got a gradient of its gradient (double backward), which "
        "it does not have"
    )


def _function_of(ctx):
    _, _, cell, _ = ctx.settings
    return _FUNCTIONS[cell]


torch.library.register_autograd(
    "vlstm::gated_delta_backward", _refuse_double_backward, setup_context=_save_settings, lib=_library
)


# ---- step ----------------------------------------------------------------------------------------


def _step(q, k, v, g, beta, c, scale, cell, version):
    named = {**_named(q, k, v, g, beta, None, None, cell), "C0": c}
    planned = _launch.plan_for(_launch.device_name(q), f"{cell}_step", named, _of_scale(scale), version)
    return _launch.run(planned, named)["h"]


_implement("gated_delta_step", _step)


@torch.library.register_fake("vlstm::gated_delta_step", lib=_library)
def _fake_step(q, k, v, g, beta, c, scale, cell, version):
    return q.new_empty(v.shape)


# ---- under the transforms of torch.func, and at once -----------------------------------------------


for _name in ("gated_delta", "gated_delta_backward"):
    _ops.one_after_the_other(getattr(torch.ops.vlstm, _name).default)


class _Transformed(torch.autograd.Function):
    """What `gated_delta` is, for `grad` and `vmap`, which take functions that have their context apart."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs):
        return torch.ops.vlstm.gated_delta(*inputs)

    setup_context = staticmethod(_save)
    backward = staticmethod(_gradients)
    jvp = staticmethod(lambda ctx, *_: _ops.has_no_tangents(_function_of(ctx)))


class _TransformedBackward(torch.autograd.Function):
    """What `gated_delta_backward` is, likewise."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs):
        return torch.ops.vlstm.gated_delta_backward(*inputs)

    setup_context = staticmethod(_save_settings)
    backward = staticmethod(_refuse_double_backward)
    jvp = staticmethod(lambda ctx, *_: _ops.has_no_tangents(_function_of(ctx)))


class _Differentiable(torch.autograd.Function):
    """What `gated_delta` is, without PyTorch's dispatcher between, which takes longer on the host than all else."""

    @staticmethod
    def forward(ctx, *inputs):
        output = forward(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, dh, dc):
        if dh is None and dc is None or _ops.is_transformed((dh, dc)):
            return _gradients(ctx, dh, dc)
        saved = ctx.saved_tensors
        return _of_what_went_in(backward(dh, dc, *saved, *ctx.settings), saved)


def gated_delta(tensors, settings):
    """h of (q, k, v, g, beta, c, cu_seqlens) under (last_state, scale, cell, version), and where it is asked for the state behind the last position, else None."""
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if _ops.is_plain(tensors):
        h, last = _Differentiable.apply(*tensors, *settings) if differentiable else forward(*tensors, *settings)
    else:
        _ops.refuse_tangents(_FUNCTIONS[settings[2]], tensors)
        transformed = differentiable and not torch.compiler.is_compiling() and _ops.is_under_transform()
        h, last = (_Transformed.apply if transformed else torch.ops.vlstm.gated_delta)(*tensors, *settings)
    return h, last if settings[0] else None


def step(q, k, v, g, beta, c, scale, cell, version):
    """h of one position; the state is updated where it lies, and must have no gaps."""
    tensors = q, k, v, g, beta, c
    if _ops.is_plain(tensors):
        _ops.note_changes(c)
        return _step(*tensors, scale, cell, version)
    if not torch.compiler.is_compiling():
        _ops.refuse_tangents(_STEPS[cell], tensors)
        _ops.refuse_batched(_STEPS[cell], tensors)
    return torch.ops.vlstm.gated_delta_step(*tensors, scale, cell, version)
