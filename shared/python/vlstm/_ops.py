"""The operations as PyTorch knows them: `torch.ops.vlstm.*`, with gradients and with fake kernels.

They take what `vlstm._api` has checked and made uniform: gates and states in float32, states all there or none.

    mlstm           the forward pass where no gradient is wanted
    mlstm_saving    the same where one is: it leaves to the backward pass what that needs
    mlstm_backward  the backward pass
    mlstm_step      one position, the state updated where it lies
"""

import functools

import torch

from vlstm import _launch

_library = torch.library.Library("vlstm", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)

_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c, Tensor? n, Tensor? m"
_SETTINGS = "bool last_states, float eps, bool exact, str version"
_library.define(f"mlstm({_INPUTS}, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor)", tags=_TAGS)
_library.define(
    f"mlstm_saving({_INPUTS}, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)", tags=_TAGS
)
_library.define(
    f"mlstm_backward(Tensor? dh, Tensor? dc, Tensor? dn, {_INPUTS}, Tensor? h, Tensor? last_c, Tensor? last_n, "
    f"Tensor? last_m, Tensor? rows_m, Tensor? rows_n, Tensor? left, {_SETTINGS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
_library.define(
    "mlstm_step(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor(a!) c, Tensor(b!) n, Tensor(c!) m, "
    "float eps, str version) -> Tensor",
    tags=_TAGS,
)


def _implement(name, function):
    for device in ("CPU", "CUDA"):
        _library.impl(name, function, device)


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


def named_inputs(q, k, v, i, f, c, n, m):
    """The tensors by the names of the kernels."""
    return {"q": q, "k": k, "v": v, "i": i, "f": f, "C0": c, "n0": n, "m0": m}


def _contiguous(tensors):
    """The same tensors, row-major and without gaps: copies of those that are not. None stays None."""
    return {name: t if t is None or t.is_contiguous() else t.contiguous() for name, t in tensors.items()}


def _nothing(like, dtype=torch.float32):
    return like.new_empty(0, dtype=dtype)


def _shapes_of_state(q, v):
    batch, heads, _, keys = q.shape
    return (batch, heads, keys, v.shape[-1]), (batch, heads, keys), (batch, heads)


# ---- forward -------------------------------------------------------------------------------------


def forward_options(eps, last_states):
    """The options of a forward pass, as the kernels' versions take them."""
    return (f"eps={eps!r}", "last_state=yes") if last_states else (f"eps={eps!r}",)


def _run_forward(tensors, last_states, eps, exact, version, on=None):
    """The outputs by the names of the kernels: h, and with `last_states` CN, nN and mN."""
    q, k, v, i, f, c, n, m = tensors
    named = _contiguous(named_inputs(q, k, v, i, f, c, n, m))
    options = forward_options(eps, last_states)
    version = version_names(version)[0]
    return _launch.run(_launch.plan_for(on or _launch.device_name(q), "forward", named, options, version), named)


def _all_of(out, q, names):
    """Tensors without elements for those that are not there: an operation returns tensors."""
    return tuple(out[name] if name in out else _nothing(q) for name in names)


def forward(q, k, v, i, f, c, n, m, *settings, on=None):
    """h, and with `last_states` the state behind the last position, else tensors without elements.

    `on` is `checked` to run on the checking emulator, with tensors on the CPU.
    """
    return _all_of(_run_forward((q, k, v, i, f, c, n, m), *settings, on=on), q, ("h", "CN", "nN", "mN"))


_implement("mlstm", forward)


@torch.library.register_fake("vlstm::mlstm", lib=_library)
def _fake_forward(q, k, v, i, f, c, n, m, last_states, eps, exact, version):
    h = q.new_empty(v.shape)
    if not last_states:
        return h, _nothing(q), _nothing(q), _nothing(q)
    return (h, *(q.new_empty(shape, dtype=torch.float32) for shape in _shapes_of_state(q, v)))


# ---- forward, for a backward pass ----------------------------------------------------------------


def gradient_options(eps, exact, state, last_states=False):
    """The options of a backward pass; `state` says whether one went in, whose gradient is then wanted."""
    options = (f"eps={eps!r}", f"normalizer_grad={'exact' if exact else 'constant'}")
    options = (*options, "state_grad=yes") if state else options
    return (*options, "last_state=yes") if last_states else options


def parts(q, k, v, i, f, c, n, m, last_states, eps, exact, version):
    """The plans of a forward and of its backward pass; None where the forward pass leaves nothing."""
    of_forward, of_backward = version_names(version)
    if of_forward != "auto":
        return None
    tensors = {**named_inputs(q, k, v, i, f, c, n, m), "dh": v}
    if last_states:
        # Their shapes and type; the tensors themselves are not looked at.
        for name, like, shape in zip(("dCN", "dnN"), (i, i), _shapes_of_state(q, v)):
            tensors[name] = like.new_empty(shape, device="meta")
    options = gradient_options(eps, exact, c is not None, last_states)
    return _launch.parts_for(_launch.device_name(q), tensors, options, of_backward)


def _run_saving(tensors, *settings):
    """As `_run_forward`; beside the outputs what is left to the backward pass, or None."""
    cut = parts(*tensors, *settings)
    if cut is None:
        return _run_forward(tensors, *settings), None
    q, k, v, i, f, c, n, m = tensors
    # What no kernel writes none reads. On the CPU it is the same in every run, as opcheck wants it.
    new = torch.zeros if q.device.type == "cpu" else torch.empty
    left = new(cut[0].left_bytes, dtype=torch.uint8, device=q.device)
    return _launch.run(cut[0], _contiguous(named_inputs(q, k, v, i, f, c, n, m)), left), left


def saving(q, k, v, i, f, c, n, m, *settings):
    """As `mlstm`, and what the backward pass needs beside: two numbers of each row, and bytes."""
    out, left = _run_saving((q, k, v, i, f, c, n, m), *settings)
    left = _nothing(q, torch.uint8) if left is None else left
    return (*_all_of(out, q, ("h", "CN", "nN", "mN", "m", "n")), left)


_implement("mlstm_saving", saving)


@torch.library.register_fake("vlstm::mlstm_saving", lib=_library)
def _fake_saving(q, k, v, i, f, c, n, m, last_states, eps, exact, version):
    settings = last_states, eps, exact, version
    results = _fake_forward(q, k, v, i, f, c, n, m, *settings)
    cut = parts(q, k, v, i, f, c, n, m, *settings)
    if cut is None:
        return (*results, _nothing(q), _nothing(q), _nothing(q, torch.uint8))
    rows = (i.new_empty(i.shape) if name in cut[1].inputs else _nothing(q) for name in ("m", "n"))
    return (*results, *rows, q.new_empty(cut[0].left_bytes, dtype=torch.uint8))


# ---- backward ------------------------------------------------------------------------------------


def backward(dh, dc, dn, q, k, v, i, f, c, n, m, h, last_c, last_n, last_m, rows_m, rows_n, left, *settings, on=None):
    """dq, dk, dv, di, df, and of a state that went in dC and dn, else tensors without elements.

    Without `left` the forward pass is made once more.
    """
    last_states, eps, exact, version = settings
    tensors = _contiguous(named_inputs(q, k, v, i, f, c, n, m))
    tensors["dh"] = torch.zeros_like(tensors["v"]) if dh is None else dh.contiguous()
    if dc is not None or dn is not None or (last_states and left is not None):
        for name, given, shape in zip(("dCN", "dnN"), (dc, dn), _shapes_of_state(q, v)):
            zeros = given is None
            tensors[name] = q.new_zeros(shape, dtype=torch.float32) if zeros else given.contiguous()
    if left is None:
        on = on or _launch.device_name(q)
        options = gradient_options(eps, exact, c is not None)
        planned = _launch.plan_for(on, "gradients", tensors, options, version_names(version)[1])
    else:
        _, planned = parts(q, k, v, i, f, c, n, m, *settings)
        tensors |= {"h": h, "CN": last_c, "nN": last_n, "mN": last_m, "m": rows_m, "n": rows_n}
    out = _launch.run(planned, tensors, left)
    of_state = (out["dC0"], out["dn0"]) if c is not None else (_nothing(q), _nothing(q))
    return (*(out[name] for name in ("dq", "dk", "dv", "di", "df")), *of_state)


_implement("mlstm_backward", backward)


@torch.library.register_fake("vlstm::mlstm_backward", lib=_library)
def _fake_backward(dh, dc, dn, q, k, v, i, f, c, n, *_):
    of_inputs = (t.new_empty(t.shape) for t in (q, k, v, i, f))
    of_state = (_nothing(q) if t is None else t.new_empty(t.shape) for t in (c, n))
    return (*of_inputs, *of_state)


def _remember(ctx, tensors, settings, out, left):
    """Saves what the backward pass reads: `out` by the names of the kernels."""
    ctx.settings = settings
    ctx.set_materialize_grads(False)
    cut = parts(*tensors, *settings)
    if cut is None:
        ctx.save_for_backward(*tensors, *([None] * 7))
        return
    # What the backward pass does not read may be changed, as by an operation in place on h.
    names = ("h", "CN", "nN", "mN", "m", "n")
    of_out = (out[name] if name in cut[1].inputs else None for name in names)
    ctx.save_for_backward(*tensors, *of_out, left)


def _save(ctx, inputs, output):
    *tensors, last_states, eps, exact, version = inputs
    h, *last, rows_m, rows_n, left = output
    # The state stands for the same at any exponent m, which is a constant of the pass.
    ctx.mark_non_differentiable(*(last[2:] if last_states else last), rows_m, rows_n, left)
    out = dict(zip(("h", "CN", "nN", "mN", "m", "n"), output))
    _remember(ctx, tensors, (last_states, eps, exact, version), out, left)


def gradients(ctx, dh, dc, dn, *_):
    if dh is None and dc is None and dn is None:
        return (None,) * 12
    saved = ctx.saved_tensors
    *of_inputs, of_c, of_n = torch.ops.vlstm.mlstm_backward(dh, dc, dn, *saved, *ctx.settings)
    of_state = (None, None) if saved[5] is None else (of_c, of_n)
    return (*of_inputs, *of_state, None, None, None, None, None)


torch.library.register_autograd("vlstm::mlstm_saving", gradients, setup_context=_save, lib=_library)


def _refuse_double_backward(ctx, *_):
    raise NotImplementedError(
        "vlstm.mlstm: expected to be differentiated once, got a gradient of its gradient (double backward), which it "
        "does not have"
    )


torch.library.register_autograd("vlstm::mlstm_backward", _refuse_double_backward, lib=_library)


def _refuse_backward(ctx, *_):
    raise NotImplementedError("torch.ops.vlstm.mlstm has no gradient: expected a call of vlstm.mlstm, got one of the operation")


torch.library.register_autograd("vlstm::mlstm", _refuse_backward, lib=_library)


# ---- step ----------------------------------------------------------------------------------------


def step(q, k, v, i, f, c, n, m, eps, version):
    """h of one position; the state is updated where it lies, and must have no gaps."""
    tensors = _contiguous({"q": q, "k": k, "v": v, "i": i, "f": f})
    tensors |= {"C0": c, "n0": n, "m0": m}
    return _launch.run(step_plan(tensors, eps, version), tensors)["h"]


def step_plan(tensors, eps, version):
    """The plan of a step on tensors of the kernels' names."""
    return _launch.plan_for(_launch.device_name(tensors["q"]), "step", tensors, (f"eps={eps!r}",), version)


_implement("mlstm_step", step)


@torch.library.register_fake("vlstm::mlstm_step", lib=_library)
def _fake_step(q, k, v, i, f, c, n, m, eps, version):
    return q.new_empty(v.shape)


# ---- at once -------------------------------------------------------------------------------------


class _Differentiable(torch.autograd.Function):
    """What `mlstm_saving` is, without PyTorch's dispatcher between."""

    @staticmethod
    def forward(ctx, *inputs):
        tensors, settings = inputs[:8], inputs[8:]
        out, left = _run_saving(tensors, *settings)
        _remember(ctx, tensors, settings, out, left)
        if not settings[0]:
            return out["h"]
        ctx.mark_non_differentiable(out["mN"])
        return out["h"], out["CN"], out["nN"], out["mN"]

    @staticmethod
    def backward(ctx, dh, dc=None, dn=None, *_):
        if dh is None and dc is None and dn is None or torch.is_grad_enabled():
            return gradients(ctx, dh, dc, dn)
        saved = ctx.saved_tensors
        *of_inputs, of_c, of_n = backward(dh, dc, dn, *saved, *ctx.settings)
        of_state = (None, None) if saved[5] is None else (of_c, of_n)
        return (*of_inputs, *of_state, None, None, None, None, None)


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_transforms = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: True)


def nobody_looks_on():
    """Whether there is no compiler, no mode and no transform."""
    return not (torch.compiler.is_compiling() or _dispatch_modes() or _transforms() is not None)


def is_plain(tensors):
    """Whether nobody looks on, and no tensor is more than one."""
    return nobody_looks_on() and all(t is None or type(t) in _PLAIN for t in tensors)


def mlstm(tensors, settings):
    """h, and where it is asked for the state behind the last position: (c, n, m), else None.

    The dispatcher, through which compilers and modes see an operation, takes longer on the host than all else. Where
    there are none the kernels are called at once.
    """
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if not is_plain(tensors):
        operation = torch.ops.vlstm.mlstm_saving if differentiable else torch.ops.vlstm.mlstm
        h, *more = operation(*tensors, *settings)
    elif differentiable:
        results = _Differentiable.apply(*tensors, *settings)
        h, *more = results if settings[0] else (results,)
    else:
        out = _run_forward(tensors, *settings)
        h, more = out["h"], [out[name] for name in ("CN", "nN", "mN") if settings[0]]
    return h, tuple(more[:3]) if settings[0] else None


def note_changes(*states):
    """Tells autograd that these are written; those of an inference mode it leaves out itself."""
    torch.autograd.graph.increment_version(states)


def mlstm_step(q, k, v, i, f, c, n, m, eps, version):
    """The operation `mlstm_step`, likewise."""
    if not is_plain((q, k, v, i, f, c, n, m)):
        return torch.ops.vlstm.mlstm_step(q, k, v, i, f, c, n, m, eps, version)
    note_changes(c, n, m)
    return step(q, k, v, i, f, c, n, m, eps, version)
