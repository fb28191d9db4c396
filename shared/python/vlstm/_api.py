"""The functions of the package: they check what they are given, and call the operations of `vlstm._ops`."""

import numbers

import torch

from vlstm import _float32, _float64, _launch, _native, _ops, _quick

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_GRADIENTS = ("constant", "exact")


def mlstm(
    q,
    k,
    v,
    i,
    f,
    c_initial=None,
    n_initial=None,
    m_initial=None,
    return_last_states=False,
    eps=1e-6,
    chunk_size=None,
    autocast_kernel_dtype=None,
    *,
    normalizer_grad="constant",
    version="auto",
    cu_seqlens=None,
    dtype_state=torch.float32,
):
    """The mLSTM of xLSTM over a sequence.

    With B sequences, NH heads and S positions, for position t of each head, with s = 1 / sqrt(DHQK):

        F_t = sum of logsigmoid(f) over the positions up to t
        m_t = max over j <= t of F_t - F_j + i_j
        w_tj = s (q_t . k_j) exp(F_t - F_j + i_j - m_t)
        h_t = (sum over j <= t of w_tj v_j) / (max(|sum of w_tj|, exp(-m_t)) + eps)

    With a state (c, n, m) before it, F_t + m is among what m_t is the largest of, and with a_t = s exp(F_t + m - m_t) the sums
    begin with a_t c^T q_t and a_t (n . q_t).

    Source: Beck et al. 2024, arXiv 2405.04517.

    Args:
        q, k: queries and keys (B, NH, S, DHQK), in float32, float16 or bfloat16, DHQK a multiple of 16. In float64 no
            kernel runs: PyTorch's own operations take all pairs of positions at once, of any DHQK and DHHV, which is for
            `torch.autograd.gradcheck` and as a reference (`normalizer_grad="exact", eps=0`). Gates and states are float64
            then, `version` and `chunk_size` say nothing, and what is returned is float64.
        v: values (B, NH, S, DHHV), of the same type, DHHV a multiple of 16.
        i, f: pre-activations of the input and the forget gate (B, NH, S). The kernels take them in float32; halves
            and float64 are converted. An f of -1e5 or less, -inf too, starts anew: nothing of what was before is left, and it has no
            gradient. An i of -inf leaves its position out.
        c_initial, n_initial, m_initial: the state before the first position, all three or none: (B, NH, DHQK, DHHV),
            (B, NH, DHQK) and (B, NH, 1) or (B, NH). Kept in float32. In a call in float32 a state costs as much as
            2 DHQK positions more, for no version takes one.
        return_last_states: whether the state behind the last position is returned, too.
        eps: added to the normaliser before the division; not negative.
        chunk_size: for programs written for mlstm_kernels. Each version has a chunk of its own, and any S is taken.
        autocast_kernel_dtype: the type that q, k and v are cast to under `torch.autocast`; without it, that of the
            autocast. Nothing is cast outside of an autocast.
        normalizer_grad: `constant` holds the normaliser constant in the backward pass, as mlstm_kernels does, which is
            exact where a norm over the head follows; `exact` is the gradient of h as it stands.
        version: `auto`, or the names of a forward version, of a backward version, or of both with a comma between, of
            those that `versions` lists.
        cu_seqlens: where sequences of unlike lengths begin that are packed one behind the other, int32 or int64 (N + 1,),
            from 0, not falling, to S: sequence n has the positions from `cu_seqlens[n]` to `cu_seqlens[n + 1]`, and may have
            none. B is 1 then, and states have N in its place. As in flash-linear-attention. On the CPU a wrong one is a
            ValueError; on CUDA nothing waits for the device, where the kernels that run before these stop with a device-side
            assertion. It needs float16 or bfloat16, and a GPU of compute capability 9.0 (H100).
        dtype_state: the type in which c is returned, as `mlstm_step` keeps it: float32, or bfloat16 with q, k and v in
            bfloat16; of float64 it is float64 in any case.

    Returns:
        h (B, NH, S, DHHV) of the type of v. With `return_last_states` also (c, n, m), n and m in float32, of the shapes of
        the initial state, m as (B, NH, 1). c and n carry the factor exp(-m): two states with different m may stand for the
        same. No gradient goes through m.

    Raises:
        TypeError: an argument is of a wrong type; ValueError: of a wrong shape, on another device, or of a size that
        no version takes; NotImplementedError: it is differentiated twice.
    """
    key = None
    is_simple = c_initial is None and n_initial is None and m_initial is None and cu_seqlens is None
    if is_simple and autocast_kernel_dtype is None and dtype_state is torch.float32:
        key = _quick.key_of(q, k, v, i, f, return_last_states, eps, chunk_size, normalizer_grad, version)
        call = None if key is None else _quick.find(key)
        if call is not None:
            return _with_state(*call(q, k, v, i, f)) if call.last_states else call(q, k, v, i, f)
    exact = _one_of("normalizer_grad", normalizer_grad, _GRADIENTS) == "exact"
    _check_scalars(eps, chunk_size, version)
    if isinstance(q, torch.Tensor) and q.dtype == torch.float64:
        state = c_initial, n_initial, m_initial
        return _in_float64(q, k, v, i, f, state, return_last_states, float(eps), exact, cu_seqlens, dtype_state)
    tensors = _checked(q, k, v, i, f, c_initial, n_initial, m_initial, cu_seqlens, autocast_kernel_dtype)
    _check_dtype_state(dtype_state, tensors[0].dtype)
    if tensors[0].shape[0] == 0 or tensors[0].shape[2] == 0:
        h, (c, *last) = _of_nothing(tensors)
        return _with_state(h, c.to(dtype_state), *last) if return_last_states else h
    if tensors[0].dtype == torch.float32 and (return_last_states or c_initial is not None):
        positions = tensors[0].shape[2]
        rows = _rows_in_float32(tensors)
        h = _ops.mlstm([*rows, None, None, None, None], (False, float(eps), exact, version))[0][:, :, -positions:]
        last = _float32.last_state(*rows[1:]) if return_last_states else None
    else:
        settings = bool(return_last_states), float(eps), exact, version
        h, last = _ops.mlstm(tensors, settings)
        if key is not None:
            _quick.remember(key, tensors[:5], settings)
    if last is None:
        return h
    c, n, m = last
    return _with_state(h, c.to(dtype_state), n, m)


def _in_float64(q, k, v, i, f, state, return_last_states, eps, exact, cu_seqlens, dtype_state):
    _check_all(q, k, v, i, f, *state, cu_seqlens, types=(torch.float64,))
    _check_same_type(q, k, v)
    if dtype_state not in (torch.float32, torch.float64):
        raise TypeError(f"dtype_state: expected torch.float32 or torch.float64 with q in {q.dtype}, got {dtype_state}")
    i, f = i.double(), f.double()
    c, n, m = state
    if c is not None:
        c, n, m = c.double(), n.double(), m.reshape(c.shape[:2]).double()
    if q.shape[0] == 0 or q.shape[2] == 0:
        h, last = _of_nothing([q, k, v, i, f, c, n, m, cu_seqlens])
        last = [t.double() for t in last]
    elif cu_seqlens is not None:
        _check_places(cu_seqlens, q.shape[2])
        h, last = _float64.packed(q, k, v, i, f, None if c is None else (c, n, m), eps, exact, cu_seqlens)
    else:
        h, last = _float64.mlstm(q, k, v, i, f, None if c is None else (c, n, m), eps, exact)
    return _with_state(h, *last) if return_last_states else h


def _of_nothing(tensors):
    """h and the state of no sequence, or of no position: no kernel is launched. All inputs have a gradient, zeros."""
    q, k, v, i, f, c, n, m, cu_seqlens = tensors
    h = v + sum(t.sum() for t in (q, k, i, f)).to(v.dtype)
    if c is not None:
        return h, (c, n, m)
    state = _ops.sequences_of(q, cu_seqlens), q.shape[1]
    c, n = (q.new_zeros((*state, *sizes), dtype=torch.float32) for sizes in ((q.shape[3], v.shape[3]), (q.shape[3],)))
    return h, (c, n, torch.full_like(n[..., 0], -torch.inf))


def _with_state(h, c, n, m):
    return h, (c, n, m.unsqueeze(-1))


def mlstm_step(
    q, k, v, i, f, c, n, m, eps=1e-6, dtype_state=torch.float32, *, inplace=False, version="auto"
):
    """One position of the mLSTM behind a state, for decoding. It has no gradient.

    Args:
        q, k: (B, NH, DHQK), in float32, float16 or bfloat16; v: (B, NH, DHHV), of the same type. Under
            `torch.autocast` they are cast to its type, as in `mlstm`; gates and state are not.
        i, f: pre-activations of the gates, (B, NH, 1) or (B, NH).
        c, n, m: the state, (B, NH, DHQK, DHHV), (B, NH, DHQK) and (B, NH, 1) or (B, NH). Zeros, and -inf or 0 in m,
            stand for none.
        eps: added to the normaliser before the division; not negative.
        dtype_state: the type in which c is kept: float32, or bfloat16 with q, k and v in bfloat16. n and m are
            float32.
        inplace: whether the state is updated where it lies, which saves reading and writing it once more: c, n and m
            are then what they are kept as, and without gaps.
        version: `auto`, or a name of those that `versions` lists.

    Returns:
        h (B, NH, DHHV) of the type of v, and the state (c, n, m) behind the position, m of the shape in which it came.

    Raises:
        TypeError, ValueError: as `mlstm`; also where a gradient would be needed.
    """
    if isinstance(q, torch.Tensor) and not q.is_meta and torch.is_autocast_enabled(q.device.type):
        cast = torch.get_autocast_dtype(q.device.type)
        q, k, v = (t.to(cast) if isinstance(t, torch.Tensor) and t.dtype in _FLOATS else t for t in (q, k, v))
    quick = _quick.step_key(q, k, v, i, f, c, n, m, eps, dtype_state, version) if inplace else None
    call = None if quick is None else _quick.find_step(quick)
    h = None if call is None else call(q, k, v, i, f, c, n, m)
    if h is not None:
        return h, (c, n, m)
    key = None
    if not torch.compiler.is_compiling():
        try:
            key = (*[_facts(t) for t in (q, k, v, i, f, c, n, m)], dtype_state, eps, eps.__class__, version)
        except AttributeError:  # no tensor
            key = None
    if key is None or not _is_known(key):
        _check_step(q, k, v, i, f, c, n, m, dtype_state)
        _check_scalars(eps, None, version)
        _note(key)
    batch, heads, _ = q.shape
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, i, f, c, n, m)):
        raise ValueError(
            "mlstm_step: expected tensors that need no gradient, got some that do; it has none: call it under "
            "torch.no_grad(), or call mlstm with one position"
        )
    if inplace:
        for name, state, kept in (("c", c, dtype_state), ("n", n, torch.float32), ("m", m, torch.float32)):
            if state.dtype != kept or not state.is_contiguous():
                got = f"{state.dtype}, strides {tuple(state.stride())}"
                raise ValueError(f"{name}: expected {kept} without gaps, to be updated in place, got {got}")
        of_c, of_n, of_m = c, n, m
    else:
        # A copy in any case: it is written.
        of_c, of_n, of_m = (
            t.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)
            for t, dtype in ((c, dtype_state), (n, torch.float32), (m, torch.float32))
        )
    if batch == 0:
        return torch.empty_like(v), (of_c, of_n, of_m)  # no kernel is launched
    gates = [gate.reshape(batch, heads).float() for gate in (i, f)]
    of_rows = of_m.view(batch, heads)
    h = _ops.mlstm_step(q, k, v, *gates, of_c, of_n, of_rows, float(eps), version)
    if quick is not None:
        named = {"q": q, "k": k, "v": v, "i": gates[0], "f": gates[1], "C0": c, "n0": n, "m0": of_rows}
        _quick.remember_step(quick, (q, k, v, i, f, c, n, m), _ops.step_plan(named, float(eps), version))
    return h, (of_c, of_n, of_m)


def check(
    q,
    k,
    v,
    i,
    f,
    c_initial=None,
    n_initial=None,
    m_initial=None,
    return_last_states=False,
    eps=1e-6,
    chunk_size=None,
    autocast_kernel_dtype=None,
    *,
    normalizer_grad="constant",
    version="auto",
    cu_seqlens=None,
    grad_h=None,
):
    """Makes the call `mlstm` with these arguments on the emulator that looks at every access of the kernels.

    Of CUDA tensors it takes copies, and the version that the GPU would run; it needs no GPU. It takes minutes for what a
    GPU does in a millisecond: give it a small problem.

    Args:
        grad_h: a gradient of h, (B, NH, S, DHHV): where it is given, the backward pass runs, too.
        All others: as of `mlstm`.

    Returns:
        What `mlstm` returns, without a gradient, on the CPU.

    Raises:
        KernelError: a race, an access out of bounds or misaligned, a value that nobody wrote, a barrier that not all
        threads reach: with the line of the kernel. Others as `mlstm`.
    """
    tensors = _checked(q, k, v, i, f, c_initial, n_initial, m_initial, cu_seqlens, autocast_kernel_dtype)
    if q.is_meta:
        raise ValueError(f"q: expected a tensor on the CPU or a CUDA device, got one on {q.device}")
    exact = _one_of("normalizer_grad", normalizer_grad, _GRADIENTS) == "exact"
    _check_scalars(eps, chunk_size, version)
    if grad_h is not None:
        _check_tensor("grad_h", grad_h, q)
        _check_shape("grad_h", grad_h, tuple(v.shape))
    last_states, positions, last = bool(return_last_states), q.shape[2], None
    with torch.no_grad():
        if tensors[0].dtype == torch.float32 and (last_states or c_initial is not None):
            rows = _rows_in_float32(tensors)
            last = [t.cpu() for t in _float32.last_state(*rows[1:])] if last_states else None
            tensors, last_states = [*rows, None, None, None, None], False
            if grad_h is not None:
                before = grad_h.new_zeros(*grad_h.shape[:2], rows[0].shape[2] - positions, grad_h.shape[3])
                grad_h = torch.cat([before, grad_h], 2)
        of_forward, of_backward = _versions_on(tensors, float(eps), last_states, exact, version, grad_h)
        tensors = [t if t is None else t.detach().cpu() for t in tensors]
        settings = last_states, float(eps), exact
        h, *more = _ops.forward(*tensors, *settings, of_forward, on="checked")
        if grad_h is not None:
            dh = grad_h.detach().to(device="cpu", dtype=tensors[2].dtype)
            _ops.backward(dh, None, None, *tensors, *([None] * 7), *settings, of_backward, on="checked")
    c, n, m = last or more
    h = h[:, :, -positions:]
    return (h, (c, n, m.unsqueeze(-1))) if return_last_states else h


def versions():
    """The versions of each pass (`forward`, `gradients`, `step`; of the gated delta rule `delta`, `delta_gradients`, `delta_step`; of
    linear attention `linear`, `linear_gradients`, `linear_step`; of sigmoid gates `sigmoid`, `sigmoid_gradients`, `sigmoid_step`), of each but steps over packed
    sequences (`packed_forward`, …), and of a training step (`mlp`), those first that a GPU prefers.

    Returns:
        A dict of lists of (name, what the version changes, the types that it takes; under `mlp` the type of the products).
    """
    return _native.versions()


# ---- what is checked -----------------------------------------------------------------------------


def _either(all_of_them):
    return " or ".join(str(one) for one in all_of_them)


def _check_tensor(name, tensor, first, floats=_FLOATS):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got one of layout {tensor.layout}")
    # The gates are converted in any case.
    types = (*_FLOATS, torch.float64) if name in ("i", "f") or floats != _FLOATS and "_" in name else floats
    if tensor.dtype not in types:
        reason = ", in which no kernel of the vLSTM computes" if tensor.dtype == torch.float64 else ""
        raise TypeError(f"{name}: expected {_either(types)}, got {tensor.dtype}{reason}")
    if tensor.device != first.device:
        raise ValueError(f"{name}: expected a tensor on {first.device}, as q, got one on {tensor.device}")
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"{name}: expected a tensor on the CPU or a CUDA device, got one on {tensor.device}")


def _shape_of(name, tensor, axes):
    if tensor.dim() != axes.count(",") + 1:
        raise ValueError(f"{name}: expected shape ({axes}), got {tuple(tensor.shape)}")
    return tuple(tensor.shape)


def _check_shape(name, tensor, *expected):
    if tuple(tensor.shape) not in expected:
        raise ValueError(f"{name}: expected shape {_either(expected)}, got {tuple(tensor.shape)}")


def _check_same_type(q, k, v):
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise TypeError(f"{name}: expected {q.dtype}, as q, got {tensor.dtype}")


def _one_of(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name}: expected {_either(repr(c) for c in choices)}, got {value!r}")
    return value


def _check_scalars(eps, chunk_size, version):
    # Of numpy's scalars some are Python's floats, and all are real numbers.
    if isinstance(eps, bool) or not (isinstance(eps, (int, float)) or isinstance(eps, numbers.Real)):
        raise TypeError(f"eps: expected a number, got {type(eps).__name__}")
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps: expected a number that is not negative, and finite, got {eps}")
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(f"chunk_size: expected None or a positive int, got {chunk_size!r}")
    if not isinstance(version, str):
        raise TypeError(f"version: expected a str, got {type(version).__name__}")


def _check_cast(autocast_kernel_dtype):
    if autocast_kernel_dtype is not None and autocast_kernel_dtype not in _FLOATS:
        raise TypeError(f"autocast_kernel_dtype: expected None, {_either(_FLOATS)}, got {autocast_kernel_dtype}")


# What `_checked` has found to be right, by types, shapes and devices: a loop calls with the same again and again.
_known = set()


def _is_known(key):
    try:
        return key in _known
    except TypeError:  # sizes that are symbols
        return False


def _note(key):
    if key is not None and len(_known) < 4096:
        try:
            _known.add(key)
        except TypeError:
            pass


def _facts(t):
    return None if t is None else (t.dtype, t.shape, t.device, t.layout)


def _checked(q, k, v, i, f, c, n, m, cu_seqlens, autocast_kernel_dtype):
    """The tensors of a call as the operations take them: cast under an autocast, gates and states in float32, `cu_seqlens` in
    int32."""
    if torch.compiler.is_compiling():
        _check_all(q, k, v, i, f, c, n, m, cu_seqlens)
    else:
        try:
            key = tuple([_facts(t) for t in (q, k, v, i, f, c, n, m, cu_seqlens)])
        except AttributeError:  # no tensor
            key = None
        if key is None or not _is_known(key):
            _check_all(q, k, v, i, f, c, n, m, cu_seqlens)
            _note(key)
    if c is not None:
        c, n, m = c.float(), n.float(), m.reshape(c.shape[:2]).float()
    _check_cast(autocast_kernel_dtype)
    kind = q.device.type
    if not q.is_meta and torch.is_autocast_enabled(kind):
        cast = autocast_kernel_dtype or torch.get_autocast_dtype(kind)
        q, k, v = q.to(cast), k.to(cast), v.to(cast)
    _check_same_type(q, k, v)
    if cu_seqlens is not None:
        if q.dtype == torch.float32:
            raise TypeError(f"q: expected torch.float16 or torch.bfloat16 with cu_seqlens, got {q.dtype}")
        _check_places(cu_seqlens, q.shape[2])
        cu_seqlens = cu_seqlens.int()
    return [q, k, v, i.float(), f.float(), c, n, m, cu_seqlens]


def _check_places(cu_seqlens, positions):
    """That these rise from 0 to the number of positions."""
    is_right = (cu_seqlens[0] == 0) & (cu_seqlens[-1] == positions) & (cu_seqlens.diff() >= 0).all()
    expected = f"cu_seqlens: expected numbers that rise from 0 to {positions}, or stay the same"
    if cu_seqlens.is_meta:
        return
    if _ops.nobody_looks_on() and cu_seqlens.device.type == "cpu":
        if not is_right:
            raise ValueError(f"{expected}, got {cu_seqlens.tolist()}")
    else:
        torch._assert_async(is_right, expected)


def _rows_in_float32(tensors):
    """q, k, v, i, f of a call in float32, the state that goes in, if one does, as positions before."""
    return tensors[:5] if tensors[5] is None else _float32.as_positions(*tensors[:8])


def _check_all(q, k, v, i, f, c, n, m, cu_seqlens, types=_FLOATS):
    states = {"c_initial": c, "n_initial": n, "m_initial": m}
    given = {name: state for name, state in states.items() if state is not None}
    missing = [name for name in states if name not in given]
    if given and missing:
        raise ValueError(f"{missing[0]}: expected a tensor, as {next(iter(given))} is given, got None")
    for name, tensor in {"q": q, "k": k, "v": v, "i": i, "f": f, **given}.items():
        _check_tensor(name, tensor, q, types)
    batch, heads, positions, keys = _shape_of("q", q, "B, NH, S, DHQK")
    values = _shape_of("v", v, "B, NH, S, DHHV")[3]
    _check_shape("k", k, (batch, heads, positions, keys))
    _check_shape("v", v, (batch, heads, positions, values))
    for name, gate in (("i", i), ("f", f)):
        _check_shape(name, gate, (batch, heads, positions))
    if cu_seqlens is not None:
        check_packed(cu_seqlens, q, "NH, S, DHQK")
        batch = cu_seqlens.shape[0] - 1
    if given:
        _check_shape("c_initial", c, (batch, heads, keys, values))
        _check_shape("n_initial", n, (batch, heads, keys))
        _check_shape("m_initial", m, (batch, heads), (batch, heads, 1))


def check_packed(cu_seqlens, q, axes):
    """That these may say where sequences begin; `axes` are those of q behind the first."""
    if not isinstance(cu_seqlens, torch.Tensor):
        raise TypeError(f"cu_seqlens: expected a torch.Tensor, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens: expected torch.int32 or torch.int64, got {cu_seqlens.dtype}")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(f"cu_seqlens: expected shape (N + 1,), got {tuple(cu_seqlens.shape)}")
    if cu_seqlens.device != q.device:
        raise ValueError(f"cu_seqlens: expected a tensor on {q.device}, as q, got one on {cu_seqlens.device}")
    if q.shape[0] != 1:
        raise ValueError(f"q: expected shape (1, {axes}) with cu_seqlens, got {tuple(q.shape)}")


def _check_step(q, k, v, i, f, c, n, m, dtype_state):
    for name, tensor in (("q", q), ("k", k), ("v", v), ("i", i), ("f", f), ("c", c), ("n", n), ("m", m)):
        _check_tensor(name, tensor, q)
    batch, heads, keys = _shape_of("q", q, "B, NH, DHQK")
    values = _shape_of("v", v, "B, NH, DHHV")[2]
    _check_same_type(q, k, v)
    _check_shape("k", k, (batch, heads, keys))
    _check_shape("v", v, (batch, heads, values))
    for name, gate in (("i", i), ("f", f), ("m", m)):
        _check_shape(name, gate, (batch, heads), (batch, heads, 1))
    _check_shape("c", c, (batch, heads, keys, values))
    _check_shape("n", n, (batch, heads, keys))
    _check_dtype_state(dtype_state, q.dtype)


def _check_dtype_state(dtype_state, dtype):
    allowed = (torch.float32, torch.bfloat16) if dtype == torch.bfloat16 else (torch.float32,)
    if dtype_state not in allowed:
        raise TypeError(f"dtype_state: expected {_either(allowed)} with q in {dtype}, got {dtype_state}")


def _versions_on(tensors, eps, last_states, exact, version, dh):
    """The versions that a device runs of a call: of the forward pass, and where there is a dh of the backward pass."""
    on = _launch.device_name(tensors[0])
    forward, backward = _ops.version_names(version)
    named = _ops.named_inputs(*tensors)
    options = _ops.forward_options(eps, last_states)
    forward = _launch.plan_for(on, "forward", named, options, forward).version
    if dh is None:
        return forward, "auto"
    options = _ops.gradient_options(eps, exact, tensors[5] is not None)
    return forward, _launch.plan_for(on, "gradients", {**named, "dh": tensors[2]}, options, backward).version
