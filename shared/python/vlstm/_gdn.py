"""The gated delta rule (Gated DeltaNet, Qwen3-Next), with the arguments of flash-linear-attention's functions."""

import math
import numbers

import torch

from vlstm import _api, _gdn_ops, _ops

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    head_first=False,
    *,
    use_gate_in_kernel=False,
    A_log=None,
    dt_bias=None,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    state_v_first=False,
    version="auto",
):
    """The gated delta rule over a sequence. Names and meanings are those of flash-linear-attention's `chunk_gated_delta_rule`.

    With B sequences of T positions, for position t of each head, from a state C (K, V), zeros where none is given:

        D_t = exp(g_t) C_(t-1)
        u_t = beta_t (v_t - D_t^T k_t)
        C_t = D_t + k_t u_t^T
        o_t = scale C_t^T q_t

    Source: Yang et al. 2024, arXiv 2412.06464.

    The kernels have heads before positions: inputs and outputs are copied from one order to the other, unless `head_first` is
    given. The backward pass makes the forward pass once more. In float32 both run on CUDA cores, much slower. Only q, k, v,
    g, beta and the state are kept for it.

    Args:
        q, k: queries and keys (B, T, H, K), in float32, float16 or bfloat16, K a multiple of 16 up to 256. Keys have length one,
            or `use_qk_l2norm_in_kernel` makes them so. Under `torch.autocast` q, k and v are cast to its type. In float64 no
            kernel runs: PyTorch's own operations go from position to position, of any K and V, for `torch.autograd.gradcheck`.
        v: values (B, T, HV, V), of the same type, V a multiple of 16 up to 1024. HV is a multiple of H: head a of v reads head
            a // (HV // H) of q and k.
        g: the logarithm of what a position keeps of the state, (B, T, HV), not above 0. The kernels take g and beta in float32;
            other types are converted.
        beta: how much of a key's old value is replaced, (B, T, HV).
        scale: the factor of q, by default 1 / sqrt(K).
        initial_state: the state before the first position, (B, HV, K, V). Kept in float32, of q in float64 in float64.
        output_final_state: whether the state behind the last position is returned, too.
        use_qk_l2norm_in_kernel: whether q and k are first divided by their lengths, sqrt(sum of squares + 1e-6). PyTorch does it.
        cu_seqlens: where sequences of unlike lengths begin that are packed one behind the other, int32 or int64 (N + 1,),
            from 0, not falling, to T: sequence n has the positions from `cu_seqlens[n]` to `cu_seqlens[n + 1]`, and may have none. B
            is 1 then, and states have N in its place. On the CPU a wrong one is a ValueError; on CUDA the
            host does not wait, and a check on the device ends the program by a device-side assertion. The GPU
            is one of compute capability 8.0 (A100) or later. In float32 and float64 each sequence is a call of its own: the host first waits
            for the device to read the lengths, and torch.compile cannot trace that.
        head_first: whether tensors have heads before positions, (B, H, T, K), (B, HV, T, V) and (B, HV, T).
        use_gate_in_kernel, A_log, dt_bias: whether g is -exp(A_log) softplus(g + dt_bias), of vectors (HV,); a bias of None is 0.
            PyTorch does it, and what the next two lines say.
        use_beta_sigmoid_in_kernel, allow_neg_eigval: whether beta is sigmoid(beta), and whether twice that.
        state_v_first: whether states are (B, HV, V, K).
        version: `auto`, or the names of a forward version, of a backward version, or of both with a comma between, of those that
            `versions` lists under `delta` and `delta_gradients`.

    Returns:
        o, of the shape and type of v, and the state behind the last position, in float32 (float64 for q in float64), or None.

    Raises:
        TypeError: an argument is of a wrong type; ValueError: of a wrong shape, on another device, or of a size that no version
        takes; NotImplementedError: if it is differentiated twice.
    """
    _check(q, k, v, g, beta, initial_state, cu_seqlens, head_first, state_v_first)
    scale = _checked_scale(scale, version)
    g, beta = _gates(q, g, beta, head_first, use_gate_in_kernel, A_log, dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    q, k, v = _prepared(q, k, v, use_qk_l2norm_in_kernel)
    state = initial_state.mT if initial_state is not None and state_v_first else initial_state
    if not head_first:
        q, k, v, g, beta = (t.transpose(1, 2) for t in (q, k, v, g, beta))
    settings = bool(output_final_state), scale, "delta", version
    alone = {
        torch.float64: lambda *own: recurrence(*own, scale),
        torch.float32: lambda *own: _gdn_ops.gated_delta([*own, None], settings),
    }
    o, last = _over_positions((q, k, v, g, beta, state), cu_seqlens, settings, alone)
    return _in_order(o, last, head_first, output_final_state, state_v_first)


def gated_delta_step(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    *,
    use_gate_in_kernel=False,
    A_log=None,
    dt_bias=None,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    state_v_first=False,
    inplace=False,
    version="auto",
):
    """One position of the gated delta rule behind a state, for decoding: as flash-linear-attention's
    `fused_recurrent_gated_delta_rule` with T = 1. It has no gradient.

    Args:
        q, k: (B, 1, H, K); v: (B, 1, HV, V); g, beta: (B, 1, HV).
        initial_state: the state before the position, (B, HV, K, V); None stands for zeros.
        inplace: whether the state is updated where it lies, which saves a copy of it. It is (B, HV, K, V) then, without gaps,
            in float32; with q in bfloat16 in float32 or bfloat16; with q in float64 in float64.
        version: `auto`, or a name of those that `versions` lists under `delta_step`.
        All others: as of `gated_delta_rule`.

    Returns:
        o (B, 1, HV, V) of the type of v, and the state behind the position, or None. In place it is `initial_state`; else it is new,
        in float32 (float64 for q in float64).

    Raises:
        TypeError, ValueError: as `gated_delta_rule`; also where a gradient would be needed.
    """
    if cu_seqlens is not None:
        raise NotImplementedError(f"cu_seqlens: expected None, as a step has one position of each row, got {type(cu_seqlens).__name__}")
    _check(q, k, v, g, beta, initial_state, None, False, state_v_first)
    scale = _checked_scale(scale, version)
    given = q, k, v, g, beta, initial_state, A_log, dt_bias
    _check_step(given, "gated_delta_step", "gated_delta_rule")
    g, beta = _gates(q, g, beta, False, use_gate_in_kernel, A_log, dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    q, k, v = _prepared(q, k, v, use_qk_l2norm_in_kernel)
    state = _state_of_step(initial_state, q, v, state_v_first, inplace)
    o, state = _step((q, k, v, g, beta), state, scale, "delta", version, recurrence)
    return _in_order(o, state, True, output_final_state, state_v_first)


def _check_step(given, name, whole):
    """That there is one position, and that nothing needs a gradient; `whole` is the function of a sequence."""
    if given[0].shape[1] != 1:
        raise ValueError(f"q: expected shape (B, 1, H, K), of one position, got {tuple(given[0].shape)}: call {whole}")
    refuse_gradients(given, name, whole)


def refuse_gradients(given, name, whole):
    """A step has none."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in given if isinstance(t, torch.Tensor)):
        raise ValueError(
            f"{name}: expected tensors that need no gradient, got some that do; it has none: call it under "
            f"torch.no_grad(), or call {whole} with one position"
        )


def _state_of_step(initial_state, q, v, state_v_first, inplace):
    """The state that a step updates where it lies: the one that is given, or a new one."""
    of_state = torch.float64 if q.dtype == torch.float64 else torch.float32
    if inplace:
        return _in_place(initial_state, q, state_v_first)
    if initial_state is None:
        return q.new_zeros((q.shape[0], v.shape[2], q.shape[3], v.shape[3]), dtype=of_state)
    given = initial_state.mT if state_v_first else initial_state
    return given.to(of_state, copy=True, memory_format=torch.contiguous_format)


def _step(tensors, state, scale, cell, version, plain):
    """o (B, 1, HV, V) of q, k, v, g and beta (B, 1, …), and the state, which is updated where it lies. In float64 `plain` makes both, of
    tensors with heads before positions."""
    q, k, v, g, beta = (None if t is None else t[:, 0] for t in tensors)
    of_gates = torch.float64 if q.dtype == torch.float64 else torch.float32
    g, beta = (None if t is None else t.to(of_gates) for t in (g, beta))
    if q.dtype == torch.float64:
        o, last = plain(*(None if t is None else t.unsqueeze(2) for t in (q, k, v, g, beta)), state, scale)
        o = o.squeeze(2)
        state.copy_(last)
    elif q.shape[0] == 0:
        o = torch.empty_like(v)  # no kernel is launched
    else:
        o = _gdn_ops.step(q, k, v, g, beta, state, scale, cell, version)
    return o.unsqueeze(1), state


def recurrence(q, k, v, g, beta, state, scale):
    """o and the last state, heads before positions, position by position in plain PyTorch: what float64 takes."""
    group = v.shape[1] // q.shape[1]
    q, k = (t.repeat_interleave(group, 1) for t in (q, k))
    state = q.new_zeros((*v.shape[:2], q.shape[3], v.shape[3])) if state is None else state
    rows = []
    for t in range(q.shape[2]):
        kept = g[:, :, t, None, None].exp() * state
        read = (kept * k[:, :, t, :, None]).sum(-2)
        written = beta[:, :, t, None] * (v[:, :, t] - read)
        state = kept + k[:, :, t, :, None] * written[..., None, :]
        rows.append((state * q[:, :, t, :, None]).sum(-2))
    return torch.stack(rows, 2) * (q.shape[3] ** -0.5 if scale is None else scale), state


def _places(cu_seqlens, q):
    """Where packed sequences begin, as the kernels take it; q has heads before positions. None stays None."""
    if cu_seqlens is None:
        return None
    _api._check_places(cu_seqlens, q.shape[2])
    return cu_seqlens.int()


def _over_positions(tensors, cu_seqlens, settings, alone):
    """o and the last states of q, k, v, two gates and a state, heads before positions. `alone` has, for the types of which packed
    sequences are a call each, that call."""
    q, k, v, *of_state = tensors
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    tensors = [q, k, v, *(None if t is None else t.to(dtype) for t in of_state)]
    cu_seqlens = _places(cu_seqlens, q)
    if q.shape[0] == 0 or q.shape[2] == 0:
        return _of_nothing(*tensors, cu_seqlens)
    if q.dtype in alone:
        return _each_alone(alone[q.dtype], tensors, cu_seqlens)
    return _gdn_ops.gated_delta([*tensors, cu_seqlens], settings)


def _in_order(o, last, head_first, output_final_state, state_v_first):
    """o and the last state, or None, with the axes that the caller wants."""
    o = o if head_first else o.transpose(1, 2).contiguous()
    if not output_final_state:
        return o, None
    return o, last.mT.contiguous() if state_v_first else last


def _each_alone(call, tensors, cu_seqlens):
    """o and the last states of packed sequences, by a call for each: `call` takes tensors with heads before positions, and a state."""
    if cu_seqlens is None:
        return call(*tensors)
    *rows, states = tensors
    places, outputs, lasts = cu_seqlens.tolist(), [], []
    for n, (first, end) in enumerate(zip(places, places[1:])):
        own = [None if t is None else t[:, :, first:end] for t in rows] + [None if states is None else states[n : n + 1]]
        o, last = _of_nothing(*own) if first == end else call(*own)
        outputs.append(o)
        lasts.append(last)
    return torch.cat(outputs, 2), None if any(last is None for last in lasts) else torch.cat(lasts)


def _of_nothing(q, k, v, g, beta, state, cu_seqlens=None):
    """o and the state of no sequence, or of no position: no kernel is launched. All inputs have a gradient, zeros."""
    o = v + sum(t.sum() for t in (q, k, g, beta) if t is not None).to(v.dtype)
    sizes = _ops.sequences_of(q, cu_seqlens), v.shape[1], q.shape[3], v.shape[3]
    return o, g.new_zeros(sizes) if state is None else state


def _length_one(x):
    """Rows divided by their lengths, in float32 at least."""
    exact = x if x.dtype == torch.float64 else x.float()
    return (exact * (exact.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def _prepared(q, k, v, use_qk_l2norm, cast=None):
    """q, k and v as the kernels take them: of one type, under an autocast `cast` or the autocast's, and of length one where that is
    asked for."""
    kind = q.device.type
    if q.dtype != torch.float64 and not q.is_meta and torch.is_autocast_enabled(kind):
        q, k, v = (t.to(cast or torch.get_autocast_dtype(kind)) for t in (q, k, v))
    _api._check_same_type(q, k, v)
    return (_length_one(q), _length_one(k), v) if use_qk_l2norm else (q, k, v)


def _gates(q, g, beta, head_first, use_gate, a_log, dt_bias, use_beta_sigmoid, allow_neg_eigval):
    """g and beta, as they are given or by their activations."""
    if allow_neg_eigval and not use_beta_sigmoid:
        raise ValueError("allow_neg_eigval: expected use_beta_sigmoid_in_kernel=True with it, got False")
    if use_gate:
        g = g if g.dtype == torch.float64 else g.float()
        for name, vector in (("A_log", a_log), ("dt_bias", dt_bias)):
            if vector is None and name == "dt_bias":
                continue
            _api._check_tensor(name, vector, q, _FLOATS)
            _api._check_shape(name, vector, (g.shape[1 if head_first else 2],))
        wide = [t if t is None else t.to(g.dtype).unsqueeze(-1) if head_first else t.to(g.dtype) for t in (a_log, dt_bias)]
        g = -wide[0].exp() * torch.nn.functional.softplus(g if dt_bias is None else g + wide[1])
    if use_beta_sigmoid:
        beta = torch.sigmoid(beta if beta.dtype == torch.float64 else beta.float()) * (2 if allow_neg_eigval else 1)
    return g, beta


def _in_place(state, q, state_v_first):
    """The state, which can be updated where it lies."""
    if state_v_first:
        raise ValueError("inplace: expected False with state_v_first, got True: the kernels have K before V")
    if state is None:
        raise ValueError("initial_state: expected a tensor, to be updated in place, got None")
    kept = types_of_state(q.dtype)
    if state.dtype not in kept or not state.is_contiguous():
        expected, got = _api._either(kept), f"{state.dtype}, strides {tuple(state.stride())}"
        raise ValueError(f"initial_state: expected {expected} without gaps, to be updated in place, got {got}")
    return state


def types_of_state(dtype):
    """Those in which a state may be kept where q is of this type."""
    return {torch.bfloat16: (torch.float32, torch.bfloat16), torch.float64: (torch.float64,)}.get(dtype, (torch.float32,))


def _check(*arguments):
    """Once for all calls of the same shapes, types and devices."""
    key = None
    if not torch.compiler.is_compiling():
        *tensors, head_first, state_v_first = arguments[:9]
        try:
            key = ("gated delta", *[_api._facts(t) for t in tensors], bool(head_first), bool(state_v_first), *arguments[9:])
        except AttributeError:  # no tensor
            key = None
    if key is None or not _api._is_known(key):
        _check_all(*arguments)
        _api._note(key)


# The axes of q and of v: as flash-linear-attention names them, and with heads first.
_AXES = ("B, T, H, K", "B, T, HV, V"), ("B, H, T, K", "B, HV, T, V")


def _check_all(q, k, v, g, beta, state, cu_seqlens, head_first, state_v_first, names=("g", "beta", "initial_state"), axes=None):
    """`names` are those of the decay, of the weight and of the state."""
    name_of_decay, name_of_weight, name_of_state = names
    named = {"q": q, "k": k, "v": v, name_of_decay: g, name_of_weight: beta, name_of_state: state}
    for name, tensor in named.items():
        if name != name_of_state or tensor is not None:
            _api._check_tensor(name, tensor, q, _FLOATS)
    axes = axes or _AXES[1 if head_first else 0]  # a bool is no index for the compiler of PyTorch 2.11
    of_q, of_v = _api._shape_of("q", q, axes[0]), _api._shape_of("v", v, axes[1])
    heads, positions = (1, 2) if head_first else (2, 1)
    _api._check_shape("k", k, of_q)
    expected = list(of_q[:3]) + [of_v[3]]
    expected[heads] = of_v[heads]
    _api._check_shape("v", v, tuple(expected))
    if of_q[heads] == 0 or of_v[heads] % of_q[heads]:
        of_heads = [each.split(", ")[heads] for each in axes]
        raise ValueError(f"v: expected a multiple of {of_heads[0]} = {of_q[heads]} heads, got {of_heads[1]} = {of_v[heads]}")
    for name, gate in ((name_of_decay, g), (name_of_weight, beta)):
        _api._check_shape(name, gate, tuple(expected[:3]))
    if cu_seqlens is not None:
        _api.check_packed(cu_seqlens, q, axes[0].partition(", ")[2])
    if state is not None:
        columns = (of_v[3], of_q[3]) if state_v_first else (of_q[3], of_v[3])
        _api._check_shape(name_of_state, state, (_ops.sequences_of(q, cu_seqlens), of_v[heads], *columns))


def _checked_scale(scale, version):
    """The scale as a float, or None."""
    if scale is not None:
        # Of numpy's scalars some are Python's floats, and all are real numbers.
        if isinstance(scale, bool) or not (isinstance(scale, (int, float)) or isinstance(scale, numbers.Real)):
            raise TypeError(f"scale: expected None or a number, got {type(scale).__name__}")
        if scale == 0 or not math.isfinite(scale):
            raise ValueError(f"scale: expected a finite number other than 0, got {scale}")
    if not isinstance(version, str):
        raise TypeError(f"version: expected a str, got {type(version).__name__}")
    return scale if scale is None else float(scale)
