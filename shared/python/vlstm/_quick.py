"""The way of a call whose like was made before.

What `_api` checks and `_ops` plans depends on the types, shapes and device of the tensors and on the settings, not on what
the tensors hold. So a call's plans are kept under these facts, and the next call with the same goes from its tensors to the
launches at once. A call that has a state, copies a tensor, or is looked at by a compiler or a mode, takes the long way.
"""

import torch

from vlstm import _launch, _ops

# A loop makes few kinds of calls; one that makes ever new ones must not keep them all.
_KEPT = 1024
_calls = {}

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LEFT = ("h", "CN", "nN", "mN", "m", "n")


class Call:
    """The plans of a call: the forward pass alone, and the two parts of one that is differentiated.

    Each is made when it is first asked for: to plan is to compile kernels.
    """

    __slots__ = ("_whole", "device", "kind", "last_states", "parts", "settings")

    def __init__(self, device, settings):
        self.device, self.kind = device, device.type
        self.last_states, self.settings = settings[0], settings
        self._whole, self.parts = None, False

    def __call__(self, q, k, v, i, f):
        """h, or with the state behind the last position (h, c, n, m)."""
        if torch.is_grad_enabled() and (
            q.requires_grad or k.requires_grad or v.requires_grad or i.requires_grad or f.requires_grad
        ):
            return _Differentiable.apply(q, k, v, i, f, self)
        named = {"q": q, "k": k, "v": v, "i": i, "f": f}
        out = _launch.run_on(self._whole or self.whole(named), named, None, self.device)
        return (out["h"], out["CN"], out["nN"], out["mN"]) if self.last_states else out["h"]

    def whole(self, named):
        """The plan of the forward pass alone, for tensors of these names."""
        if self._whole is None:
            last_states, eps, _, version = self.settings
            options, of_forward = _ops.forward_options(eps, last_states), _ops.version_names(version)[0]
            on = _launch.device_name(named["q"])
            self._whole = _launch.plan_for(on, "forward", named, options, of_forward)
        return self._whole

    def cut(self, tensors):
        """The plans of the forward and of the backward pass; None where the forward pass leaves nothing."""
        if self.parts is False:
            self.parts = _ops.parts(*tensors, None, None, None, None, *self.settings)
        return self.parts


class _Differentiable(torch.autograd.Function):
    """As `_ops`' own; saved is the same, so that what is rare goes there."""

    @staticmethod
    def forward(ctx, q, k, v, i, f, call):
        tensors = (q, k, v, i, f)
        named = {"q": q, "k": k, "v": v, "i": i, "f": f}
        parts = call.cut(tensors)
        ctx.call, ctx.settings = call, call.settings
        ctx.set_materialize_grads(False)
        if parts is None:
            out = _launch.run_on(call.whole(named), named, None, call.device)
            ctx.save_for_backward(*tensors, *([None] * 11))
        else:
            # What no kernel writes none reads.
            left = torch.empty(parts[0].left_bytes, dtype=torch.uint8, device=call.device)
            out = _launch.run_on(parts[0], named, left, call.device)
            read = parts[1].inputs
            kept = [out[name] if name in read else None for name in _LEFT]
            ctx.save_for_backward(*tensors, *([None] * 4), *kept, left)
        if not call.last_states:
            return out["h"]
        ctx.mark_non_differentiable(out["mN"])
        return out["h"], out["CN"], out["nN"], out["mN"]

    @staticmethod
    def backward(ctx, dh, dc=None, dn=None, *_):
        call = ctx.call
        if dh is None or call.last_states or call.parts is None or _ops.is_transformed((dh,)):
            return (*_ops.gradients(ctx, dh, dc, dn)[:5], None)
        second = call.parts[1]
        saved = ctx.saved_tensors
        named = dict(zip(("q", "k", "v", "i", "f"), saved))
        named["dh"] = dh if dh.is_contiguous() else dh.contiguous()
        for name, tensor in zip(_LEFT, saved[9:15]):
            if tensor is not None:
                named[name] = tensor
        out = _launch.run_on(second, named, saved[15], call.device)
        return out["dq"], out["dk"], out["dv"], out["di"], out["df"], None


def key_of(q, k, v, i, f, last_states, eps, chunk_size, normalizer_grad, version):
    """The facts that decide over a call; None where it takes the long way."""
    if not _ops.nobody_looks_on():
        return None
    try:
        # One without `is_contiguous` is sparse. All in one tuple: this is a third of what a call costs.
        key = (
            q.__class__, q.dtype, q.shape, q.device, q.is_contiguous(),
            k.__class__, k.dtype, k.shape, k.device, k.is_contiguous(),
            v.__class__, v.dtype, v.shape, v.device, v.is_contiguous(),
            i.__class__, i.dtype, i.shape, i.device, i.is_contiguous(),
            f.__class__, f.dtype, f.shape, f.device, f.is_contiguous(),
            last_states, eps, eps.__class__, chunk_size, chunk_size.__class__, normalizer_grad, version,
        )  # fmt: skip
        hash(key)
    except (AttributeError, TypeError, RuntimeError):  # no tensor, or one without these facts
        return None
    return key


def step_key(q, k, v, i, f, c, n, m, eps, dtype_state, version):
    """The facts that decide over a step in place; None where it takes the long way."""
    if not _ops.nobody_looks_on():
        return None
    try:
        key = (
            q.__class__, q.dtype, q.shape, q.device, q.is_contiguous(),
            k.__class__, k.dtype, k.shape, k.device, k.is_contiguous(),
            v.__class__, v.dtype, v.shape, v.device, v.is_contiguous(),
            i.__class__, i.dtype, i.shape, i.device, i.is_contiguous(),
            f.__class__, f.dtype, f.shape, f.device, f.is_contiguous(),
            c.__class__, c.dtype, c.shape, c.device, c.is_contiguous(),
            n.__class__, n.dtype, n.shape, n.device, n.is_contiguous(),
            m.__class__, m.dtype, m.shape, m.device, m.is_contiguous(),
            eps, eps.__class__, dtype_state, version,
        )  # fmt: skip
        hash(key)
    except (AttributeError, TypeError, RuntimeError):
        return None
    return key


class Step:
    """The plan of a step in place."""

    __slots__ = ("device", "plan")

    def __init__(self, plan, device):
        self.plan, self.device = plan, device

    def __call__(self, q, k, v, i, f, c, n, m):
        """h, or None where a gradient would be needed."""
        if torch.is_grad_enabled() and any([t.requires_grad for t in (q, k, v, i, f, c, n, m)]):
            return None
        _ops.note_changes(c, n, m)
        # What the kernels are given are addresses: (B, NH, 1) is (B, NH).
        named = {"q": q, "k": k, "v": v, "i": i, "f": f, "C0": c, "n0": n, "m0": m}
        return _launch.run_on(self.plan, named, None, self.device)["h"]


def find_step(key):
    """The step of these facts that was made before, or None."""
    return _calls.get(key)


def remember_step(key, tensors, plan):
    """Keeps the plan of a step that has just been made in place on these tensors."""
    if tensors[0].is_meta:
        return
    if len(_calls) < _KEPT and all(type(t) in _PLAIN and t.layout == torch.strided and t.is_contiguous() for t in tensors):
        if tensors[3].dtype == tensors[4].dtype == torch.float32:
            _calls[key] = Step(plan, tensors[0].device)


def find(key):
    """The call of these facts that was made before, or None; also where an autocast would cast its tensors."""
    call = _calls.get(key)
    return call if call is not None and not torch.is_autocast_enabled(call.kind) else None


def remember(key, tensors, settings):
    """Keeps the plans of a call that has just been made. `tensors` are what the kernels have taken."""
    facts, last_states = [key[5 * n : 5 * n + 5] for n in range(5)], key[25]
    taken = all(kind in _PLAIN and is_contiguous for kind, *_, is_contiguous in facts)
    taken = taken and all(fact[1] == t.dtype and t.layout == torch.strided for fact, t in zip(facts, tensors))
    taken = taken and tensors[0].device.type in ("cpu", "cuda")
    # States in float32 are made in another way, by `_float32`.
    if taken and not (last_states and tensors[0].dtype == torch.float32) and len(_calls) < _KEPT:
        _calls[key] = Call(tensors[0].device, settings)
