"""The operations as PyTorch knows them: `torch.ops.vlstm.*`, with gradients and with fake kernels.

They take what `vlstm._api` has checked and made uniform: gates and states in float32, states all there or none.

    mlstm           the forward pass where no gradient is wanted
    mlstm_saving    the same where one is: it leaves to the backward pass what that needs
    mlstm_backward  the backward pass
    mlstm_step      one position, the state updated where it lies
"""

import functools

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map

from vlstm import _launch

_library = torch.library.Library("vlstm", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)

_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c, Tensor? n, Tensor? m, Tensor? cu_seqlens"
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


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_transforms = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: True)


def is_traced():
    """Whether `torch.jit.trace` records what is called."""
    return not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None




def _has_no_level():
    """Whether no level of forward-mode differentiation is entered."""
    return getattr(forward_ad, "_current_level", 0) < 0


def is_under_transform():
    """Whether a transform of torch.func is at work, or what uses one, as gradients that are batched."""
    return _transforms() is not None


_is_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda t: False)


def is_batched(outer):
    """Whether gradients that come in are several, as `torch.autograd.grad` has them with `is_grads_batched`."""
    return any([t is not None and _is_batched(t) for t in outer])


def is_transformed(outer):
    """Whether a backward pass is to be differentiated in turn, or is under a transform, or of several gradients."""
    return torch.is_grad_enabled() or _transforms() is not None or is_batched(outer)


def nobody_looks_on():
    """Whether there is no compiler, no tracer, no mode and no transform."""
    if torch.compiler.is_compiling() or _dispatch_modes() or _transforms() is not None:
        return False
    return _has_no_level() and torch._C._get_tracing_state() is None


def is_plain(tensors):
    """Whether nobody looks on, and each tensor is one that has memory, and no more than that."""
    return nobody_looks_on() and all(t is None or type(t) in _PLAIN and not t.is_meta for t in tensors)


@functools.lru_cache(maxsize=None)
def version_names(version):
    """The forward and the backward version that `version` names, separated by a comma: `auto` where it names none."""
    names = [name.strip() for name in version.split(",") if name.strip() != "auto"]
    known = {name: n for n, kind in enumerate(("forward", "gradients")) for name in _launch.names_of(kind, f"packed_{kind}")}
    chosen = ["auto", "auto"]
    for name in names:
        if name not in known:
            raise ValueError(f"version: expected auto or of {', '.join(known)} one or two, got {name!r}")
        chosen[known[name]] = name
    return tuple(chosen)


def named_inputs(q, k, v, i, f, c, n, m, cu_seqlens):
    """The tensors by the names of the kernels."""
    return {"q": q, "k": k, "v": v, "i": i, "f": f, "C0": c, "n0": n, "m0": m, "cu_seqlens": cu_seqlens}


def _contiguous(tensors):
    """The same tensors, row-major and without gaps: copies of those that are not. None stays None."""
    return {name: t if t is None or t.is_contiguous() else t.contiguous() for name, t in tensors.items()}


def _nothing(like, dtype=torch.float32):
    return like.new_empty(0, dtype=dtype)


def sequences_of(q, cu_seqlens):
    """How many sequences there are: side by side, or packed one behind the other."""
    return q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _shapes_of_state(q, v, cu_seqlens):
    batch, (_, heads, _, keys) = sequences_of(q, cu_seqlens), q.shape
    return (batch, heads, keys, v.shape[-1]), (batch, heads, keys), (batch, heads)


# ---- forward -------------------------------------------------------------------------------------


def forward_options(eps, last_states):
    """The options of a forward pass, as the kernels' versions take them."""
    return (f"eps={eps!r}", "last_state=yes") if last_states else (f"eps={eps!r}",)


def _run_forward(tensors, last_states, eps, exact, version, on=None):
    """The outputs by the names of the kernels: h, and with `last_states` CN, nN and mN."""
    q, named = tensors[0], _contiguous(named_inputs(*tensors))
    options = forward_options(eps, last_states)
    version = version_names(version)[0]
    return _launch.run(_launch.plan_for(on or _launch.device_name(q), "forward", named, options, version), named)


def _all_of(out, q, names):
    """Tensors without elements for those that are not there: an operation returns tensors."""
    return tuple(out[name] if name in out else _nothing(q) for name in names)


def forward(q, k, v, i, f, c, n, m, cu_seqlens, *settings, on=None):
    """h, and with `last_states` the state behind the last position, else tensors without elements.

    `on` is `checked` to run on the checking emulator, with tensors on the CPU.
    """
    tensors = q, k, v, i, f, c, n, m, cu_seqlens
    return _all_of(_run_forward(tensors, *settings, on=on), q, ("h", "CN", "nN", "mN"))


_implement("mlstm", forward)


@torch.library.register_fake("vlstm::mlstm", lib=_library)
def _fake_forward(q, k, v, i, f, c, n, m, cu_seqlens, last_states, eps, exact, version):
    h = q.new_empty(v.shape)
    if not last_states:
        return h, _nothing(q), _nothing(q), _nothing(q)
    return (h, *(q.new_empty(shape, dtype=torch.float32) for shape in _shapes_of_state(q, v, cu_seqlens)))


# ---- forward, for a backward pass ----------------------------------------------------------------


def gradient_options(eps, exact, state, last_states=False):
    """The options of a backward pass; `state` says whether one went in, whose gradient is then wanted."""
    options = (f"eps={eps!r}", f"normalizer_grad={'exact' if exact else 'constant'}")
    options = (*options, "state_grad=yes") if state else options
    return (*options, "last_state=yes") if last_states else options


def _types_of_parts(q, v, given, last_states, packed):
    """Of the tensors of a forward and a backward pass (name, type, sizes), for so many sequences and positions."""

    def types(sequences, positions):
        _, heads, _, keys = q.shape
        rows, values, gate = (1 if packed else sequences, heads, positions), v.shape[-1], torch.float32
        all_of_them = [("q", q.dtype, (*rows, keys)), ("k", q.dtype, (*rows, keys)), ("v", v.dtype, (*rows, values))]
        all_of_them += [("i", gate, rows), ("f", gate, rows), ("dh", v.dtype, (*rows, values))]
        states = (sequences, heads, keys, values), (sequences, heads, keys), (sequences, heads)
        if packed:
            all_of_them.append(("cu_seqlens", torch.int32, (sequences + 1,)))
        if given:
            all_of_them += [(name, gate, shape) for name, shape in zip(("C0", "n0", "m0"), states)]
        if last_states:
            all_of_them += [(name, gate, shape) for name, shape in zip(("dCN", "dnN"), states)]
        return tuple(all_of_them)

    return types


def parts(q, k, v, i, f, c, n, m, cu_seqlens, last_states, eps, exact, version):
    """The plans of a forward and of its backward pass; None where the forward pass leaves nothing."""
    of_forward, of_backward = version_names(version)
    if of_forward != "auto":
        return None
    options = gradient_options(eps, exact, c is not None, last_states)
    types = _types_of_parts(q, v, c is not None, last_states, cu_seqlens is not None)
    types = types(sequences_of(q, cu_seqlens), q.shape[2])
    return _launch.parts_for(_launch.device_name(q), types, options, of_backward)


def aligned(size):
    """So many bytes, that of several pieces side by side each begins where kernels take it."""
    return (size + 255) // 256 * 256


class Room:
    """How much memory an operation returns in which a forward pass may leave something, for any B, or N, and S: what the
    plans of some of these want says how much it is a position and a sequence. And which results are kept for the backward
    pass beside it.

    It is the same for real tensors and for those of a compiler, whose sizes may be symbols.
    """

    # Just behind multiples of what any version divides positions into.
    _SHORT, _LONG, _MANY = 2**13 + 1, 2**14 + 1, 9
    # Each piece of what is left begins at a multiple of 256 bytes.
    _BETWEEN_PIECES = 2**13

    def __init__(self, plans_of, packed):
        """`plans_of` gives the plans of so many sequences and positions, and raises where there are none."""
        short, long = plans_of(1, self._SHORT), plans_of(1, self._LONG)
        left = [first.left_bytes for first, _ in (short, long)]
        self._packed = packed
        self._of_position = -((left[0] - left[1]) // (self._LONG - self._SHORT))
        self._first = max(left[1] - self._of_position * self._LONG, 0)
        self._of_sequence = 0
        if packed:
            more = plans_of(self._MANY, self._LONG)[0].left_bytes - left[1]
            self._of_sequence = max(-(-more // (self._MANY - 1)), 0)
        self.reads = long[1].inputs

    def bytes(self, sequences, positions):
        of_positions = self._of_position * positions + self._first
        all_of_them = of_positions + self._of_sequence * sequences if self._packed else sequences * of_positions
        return aligned(all_of_them + self._BETWEEN_PIECES)


class _NothingIsLeft(Exception):
    pass


@functools.lru_cache(maxsize=1024)
def _room(on, dtype, heads, keys, values, given, packed, last_states, eps, exact, version):
    q = torch.empty((1, heads, 1, keys), dtype=dtype, device="meta")
    v = torch.empty((1, heads, 1, values), dtype=dtype, device="meta")
    of_forward, of_backward = version_names(version)
    if of_forward != "auto":
        return None
    options = gradient_options(eps, exact, given, last_states)
    types = _types_of_parts(q, v, given, last_states, packed)

    def plans_of(sequences, positions):
        cut = _launch.parts_for(on, types(sequences, positions), options, of_backward)
        if cut is None:
            raise _NothingIsLeft
        return cut

    try:
        return Room(plans_of, packed)
    except _NothingIsLeft:
        return None


def room(q, v, c, cu_seqlens, settings):
    """The `Room` of a call; None where nothing is left whatever B and S are."""
    heads, keys, values = int(q.shape[1]), int(q.shape[3]), int(v.shape[3])
    given, packed = c is not None, cu_seqlens is not None
    return _room(_launch.device_name(q), q.dtype, heads, keys, values, given, packed, *settings)


def _run_saving(tensors, settings, cut, left):
    """As `_run_forward`; of the plans `cut` it is the first, which leaves something in `left`."""
    return _launch.run(cut[0], _contiguous(named_inputs(*tensors)), left)


def new_left(size, device):
    """Memory in which a forward pass leaves something. What no kernel writes none reads; on the CPU it is the same in every
    run, as opcheck wants it."""
    new = torch.zeros if device.type == "cpu" else torch.empty
    return new(size, dtype=torch.uint8, device=device)


def saving(q, k, v, i, f, c, n, m, cu_seqlens, *settings):
    """As `mlstm`, and what the backward pass needs beside: two numbers of each row, and bytes."""
    tensors, kept = (q, k, v, i, f, c, n, m, cu_seqlens), room(q, v, c, cu_seqlens, settings)
    if kept is None:
        out, left = _run_forward(tensors, *settings), _nothing(q, torch.uint8)
        return (*_all_of(out, q, ("h", "CN", "nN", "mN", "m", "n")), left)
    left = new_left(kept.bytes(sequences_of(q, cu_seqlens), q.shape[2]), q.device)
    cut = parts(*tensors, *settings)
    if cut is None or cut[0].left_bytes > left.numel():
        out = _run_forward(tensors, *settings)
    else:
        out = _run_saving(tensors, settings, cut, left)
    rows = (out[name] if name in out else torch.zeros_like(i) for name in ("m", "n"))
    return (*_all_of(out, q, ("h", "CN", "nN", "mN")), *rows, left)


_implement("mlstm_saving", saving)


@torch.library.register_fake("vlstm::mlstm_saving", lib=_library)
def _fake_saving(q, k, v, i, f, c, n, m, cu_seqlens, last_states, eps, exact, version):
    settings = last_states, eps, exact, version
    results = _fake_forward(q, k, v, i, f, c, n, m, cu_seqlens, *settings)
    kept = room(q, v, c, cu_seqlens, settings)
    if kept is None:
        return (*results, _nothing(q), _nothing(q), _nothing(q, torch.uint8))
    rows = (i.new_empty(i.shape) for _ in range(2))
    size = kept.bytes(sequences_of(q, cu_seqlens), q.shape[2])
    return (*results, *rows, q.new_empty(size, dtype=torch.uint8))


# ---- backward ------------------------------------------------------------------------------------


def backward(
    dh, dc, dn, q, k, v, i, f, c, n, m, cu_seqlens, h, last_c, last_n, last_m, rows_m, rows_n, left, *settings, on=None
):
    """dq, dk, dv, di, df, and of a state that went in dC and dn, else tensors without elements.

    Without `left`, or where that has no room for what this problem leaves, the forward pass is made once more.
    """
    last_states, eps, exact, version = settings
    inputs = q, k, v, i, f, c, n, m, cu_seqlens
    tensors = _contiguous(named_inputs(*inputs))
    tensors["dh"] = torch.zeros_like(tensors["v"]) if dh is None else dh.contiguous()
    cut = None if left is None else parts(*inputs, *settings)
    left = left if cut is not None and cut[1].left_bytes <= left.numel() else None
    if dc is not None or dn is not None or (last_states and left is not None):
        for name, given, shape in zip(("dCN", "dnN"), (dc, dn), _shapes_of_state(q, v, cu_seqlens)):
            zeros = given is None
            tensors[name] = q.new_zeros(shape, dtype=torch.float32) if zeros else given.contiguous()
    if left is None:
        on = on or _launch.device_name(q)
        options = gradient_options(eps, exact, c is not None)
        planned = _launch.plan_for(on, "gradients", tensors, options, version_names(version)[1])
    else:
        planned = cut[1]
        tensors |= {"h": h, "CN": last_c, "nN": last_n, "mN": last_m, "m": rows_m, "n": rows_n}
    out = _launch.run(planned, tensors, None if left is None else left.contiguous())
    of_state = (out["dC0"], out["dn0"]) if c is not None else (_nothing(q), _nothing(q))
    return (*(out[name] for name in ("dq", "dk", "dv", "di", "df")), *of_state)


_implement("mlstm_backward", backward)


@torch.library.register_fake("vlstm::mlstm_backward", lib=_library)
def _fake_backward(dh, dc, dn, q, k, v, i, f, c, n, *_):
    of_inputs = (t.new_empty(t.shape) for t in (q, k, v, i, f))
    of_state = (_nothing(q) if t is None else t.new_empty(t.shape) for t in (c, n))
    return (*of_inputs, *of_state)


_LEFT = ("h", "CN", "nN", "mN", "m", "n")


def _remember(ctx, tensors, settings, out, left, reads):
    """Saves what the backward pass reads: of `out`, by the names of the kernels, what is among `reads`. What it does not read
    may be changed, as by an operation in place on h."""
    ctx.settings = settings
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *(out[name] if name in reads else None for name in _LEFT), left)


def _save(ctx, inputs, output):
    *tensors, last_states, eps, exact, version = inputs
    settings = last_states, eps, exact, version
    h, *last, rows_m, rows_n, left = output
    # The state stands for the same at any exponent m, which is a constant of the pass.
    ctx.mark_non_differentiable(*(last[2:] if last_states else last), rows_m, rows_n, left)
    q, _, v, _, _, c, _, _, cu_seqlens = tensors
    kept = room(q, v, c, cu_seqlens, settings)
    out, reads = dict(zip(_LEFT, output)), () if kept is None else kept.reads
    _remember(ctx, tensors, settings, out, None if kept is None else left, reads)


def gradients(ctx, dh, dc, dn, *_):
    if dh is None and dc is None and dn is None:
        return (None,) * 13
    if is_batched((dh, dc, dn)):
        return each_of_batch(lambda *outer: gradients(ctx, *outer), (dh, dc, dn))
    saved = ctx.saved_tensors
    call = torch.ops.vlstm.mlstm_backward if not is_under_transform() else _TransformedBackward.apply
    *of_inputs, of_c, of_n = call(dh, dc, dn, *saved, *ctx.settings)
    of_state = (None, None) if saved[5] is None else (of_c, of_n)
    return (*of_inputs, *of_state, *[None] * 6)


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


# ---- under the transforms of torch.func ----------------------------------------------------------


def one_after_the_other(operation):
    """Lets `vmap` make one call of an operation after the other. The kernels have a batch of their own, which is quicker; but
    not every argument has one."""

    def of_batch(info, in_dims, *arguments):
        def call(n):
            return operation(*tree_map(lambda a, dim: a if dim is None else a.select(dim, n), arguments, in_dims))

        results = [torch.stack(of_one) for of_one in zip(*map(call, range(info.batch_size)))]
        returns_list = len(operation._schema.returns) == 1
        return (results, [0] * len(results)) if returns_list else (tuple(results), (0,) * len(results))

    torch.library.register_vmap(operation.name(), of_batch, lib=_library)


def _level_of(batched):
    """The innermost level of a tensor of several. A thread does not know it: gradients of CUDA tensors are made in one of
    autograd's own, which has entered no level."""
    levels = range(_MOST_LEVELS, 0, -1)
    # Where a tensor has no such level, it is repeated as often as asked.
    return next(n for n in levels if len({torch._remove_batch_dim(batched, n, size, 0).shape[0] for size in (2, 3)}) == 1)


_MOST_LEVELS = 64


def each_of_batch(function, outer):
    """The results of a function of gradients that are several, as `is_batched` says: one call after the other."""
    levels = [_level_of(t) if t is not None and _is_batched(t) else 0 for t in outer]
    level = max(levels)
    # One that is several by an outer level alone is the same in each call.
    dense = [torch._remove_batch_dim(t, level, 1, 0) if n == level else t for t, n in zip(outer, levels)]
    size = next(d.shape[0] for d, n in zip(dense, levels) if n == level)

    def call(at):
        return function(*(d[at] if n == level else d for d, n in zip(dense, levels)))

    calls = [call(at) for at in range(size)]

    def together(first, *more):
        return first if first is None else torch._add_batch_dim(torch.stack([first, *more]), 0, level)

    return tree_map(together, *calls)


for _name in ("mlstm", "mlstm_saving", "mlstm_backward"):
    one_after_the_other(getattr(torch.ops.vlstm, _name).default)


class _Transformed(torch.autograd.Function):
    """What `mlstm_saving` is, for `grad` and `vmap`, which take functions that have their context apart."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs):
        return torch.ops.vlstm.mlstm_saving(*inputs)

    setup_context = staticmethod(_save)
    backward = staticmethod(gradients)
    jvp = staticmethod(lambda ctx, *_: has_no_tangents("mlstm"))


class _TransformedBackward(torch.autograd.Function):
    """What `mlstm_backward` is, likewise."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs):
        return torch.ops.vlstm.mlstm_backward(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = staticmethod(_refuse_double_backward)
    jvp = staticmethod(lambda ctx, *_: has_no_tangents("mlstm"))


def has_no_tangents(name):
    raise NotImplementedError(
        f"vlstm.{name}: expected tensors without tangents, got forward-mode differentiation (jvp, jacfwd, hessian, dual tensors), "
        "which it does not have: use torch.func.vjp, torch.func.jacrev or autograd"
    )


def refuse_tangents(name, tensors):
    """Forward-mode differentiation: no kernel makes tangents."""
    if _has_no_level() or torch.compiler.is_compiling():
        return
    if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        has_no_tangents(name)


def refuse_batched(name, tensors):
    """`vmap` of what updates tensors where they lie."""
    if _transforms() is not None and any(torch._C._functorch.is_batchedtensor(t) for t in tensors):
        raise NotImplementedError(f"vlstm.{name}: expected tensors with their batch in B, got torch.vmap, which it does not have")


# ---- at once -------------------------------------------------------------------------------------


class _Differentiable(torch.autograd.Function):
    """What `mlstm_saving` is, without PyTorch's dispatcher between."""

    @staticmethod
    def forward(ctx, *inputs):
        tensors, settings = inputs[:9], inputs[9:]
        cut = parts(*tensors, *settings)
        if cut is None:
            out, left, reads = _run_forward(tensors, *settings), None, ()
        else:
            left = new_left(cut[0].left_bytes, tensors[0].device)
            out, reads = _run_saving(tensors, settings, cut, left), cut[1].inputs
        _remember(ctx, tensors, settings, out, left, reads)
        if not settings[0]:
            return out["h"]
        ctx.mark_non_differentiable(out["mN"])
        return out["h"], out["CN"], out["nN"], out["mN"]

    @staticmethod
    def backward(ctx, dh, dc=None, dn=None, *_):
        if dh is None and dc is None and dn is None or is_transformed((dh, dc, dn)):
            return gradients(ctx, dh, dc, dn)
        saved = ctx.saved_tensors
        *of_inputs, of_c, of_n = backward(dh, dc, dn, *saved, *ctx.settings)
        of_state = (None, None) if saved[5] is None else (of_c, of_n)
        return (*of_inputs, *of_state, *[None] * 6)


def mlstm(tensors, settings):
    """h of (q, k, v, i, f, c, n, m, cu_seqlens), and where it is asked for the state behind the last position: (c, n, m), else None.

    The dispatcher, through which compilers and modes see an operation, takes longer on the host than all else. Where
    there are none the kernels are called at once.
    """
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if not is_plain(tensors):
        refuse_tangents("mlstm", tensors)
        # A trace is taken once, and run with gradients and without.
        differentiable = differentiable or is_traced()
        operation = torch.ops.vlstm.mlstm_saving if differentiable else torch.ops.vlstm.mlstm
        if differentiable and not torch.compiler.is_compiling() and is_under_transform():
            operation = _Transformed.apply
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
    tensors = q, k, v, i, f, c, n, m
    if not is_plain(tensors):
        if not torch.compiler.is_compiling():
            refuse_tangents("mlstm_step", tensors)
            refuse_batched("mlstm_step", tensors)
        return torch.ops.vlstm.mlstm_step(q, k, v, i, f, c, n, m, eps, version)
    note_changes(c, n, m)
    return step(q, k, v, i, f, c, n, m, eps, version)
