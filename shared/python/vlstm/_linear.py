"""Linear attention with a scalar decay: RetNet, simple GLA, Lightning, Mamba-2's SSD; arguments as flash-linear-attention has them."""

import torch

from vlstm import _api, _gdn

# The most that a decay takes away, as in the kernels: sums of larger ones would lose the digits of the gates between.
_SHUT = -1e5

# Positions that the plain form takes at once, and the types of which it takes all.
_CHUNK = 64
_PLAIN = torch.float32, torch.float64


def linear_attention(
    q,
    k,
    v,
    g=None,
    g_gamma=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    cu_seqlens=None,
    head_first=False,
    *,
    w=None,
    state_v_first=False,
    version="auto",
):
    """Linear attention over a sequence. Names and meanings are those of flash-linear-attention's `chunk_simple_gla`.

    With B sequences of T positions, for position t of each head, from a state C (K, V), zeros where none is given:

        C_t = exp(g_t) C_(t-1) + w_t k_t v_t^T
        o_t = scale C_t^T q_t

    Of RetNet (`chunk_retention`) and Lightning g is the same at all positions of a head: `g_gamma`. Mamba-2's SSD has q = C, k = B,
    v = x, w = dt, g = dt A and scale = 1. Source: Yang et al. 2024, arXiv 2312.06635; Dao and Gu 2024, arXiv 2405.21060.

    The kernels have heads before positions: inputs and outputs are copied from one order to the other, unless `head_first` is
    given. In float16 and bfloat16 only q, k, v, g, w and the state are kept for the backward pass, which makes the forward pass once
    more; float32 and float64 keep what PyTorch's operations keep.

    Args:
        q, k: queries and keys (B, T, H, K), in float16 or bfloat16, K a multiple of 16 up to 128. Under `torch.autocast` q, k and v
            are cast to its type. In float32 and float64 no kernel runs: PyTorch's own operations go from chunk to chunk, of any K and
            V.
        v: values (B, T, HV, V), of the same type, V a multiple of 16 up to 1024, where a gradient is needed up to 256. HV is a
            multiple of H: head a of v reads head a // (HV // H) of q and k.
        g: the logarithm of what a position keeps of the state, (B, T, HV), not above 0; None keeps all. The kernels take it in
            float32; other types are converted.
        g_gamma: in place of g, the logarithm of what every position of a head keeps, (HV,).
        scale: the factor of q, by default 1 / sqrt(K).
        initial_state: the state before the first position, (B, HV, K, V). Kept in float32, of q in float64 in float64.
        output_final_state: whether the state behind the last position is returned, too.
        cu_seqlens: where sequences of unlike lengths begin that are packed one behind the other, int32 or int64 (N + 1,): as of
            `gated_delta_rule`. B is 1 then, and states have N in its place.
        head_first: whether tensors have heads before positions, (B, H, T, K), (B, HV, T, V) and (B, HV, T).
        w: the weight of what a position writes, (B, T, HV), above 0; None is 1. It may be 0, but then its gradient comes out as 0.
            Of the type of g.
        state_v_first: whether states are (B, HV, V, K).
        version: `auto`, or the names of a forward version, of a backward version, or of both with a comma between, of those that
            `versions` lists under `linear` and `linear_gradients`.

    Returns:
        o, of the shape and type of v, and the state behind the last position, in float32 (float64 for q in float64), or None.

    Raises:
        TypeError: an argument is of a wrong type; ValueError: of a wrong shape, on another device, or of a size that no version
        takes; NotImplementedError: in float16 and bfloat16, if it is differentiated twice.
    """
    gate = _gate(q, v, g, g_gamma, head_first)
    weight = gate if w is None else w
    _gdn._check(q, k, v, gate, weight, initial_state, cu_seqlens, head_first, state_v_first, ("g", "w", "initial_state"))
    scale = _gdn._checked_scale(scale, version)
    q, k, v = _gdn._prepared(q, k, v, False)
    if scale is not None and scale < 0:
        q, scale = -q, -scale  # the kernels have its logarithm
    state = initial_state.mT if initial_state is not None and state_v_first else initial_state
    if not head_first:
        q, k, v, gate = (t.transpose(1, 2) for t in (q, k, v, gate))
        w = None if w is None else w.transpose(1, 2)
    settings = bool(output_final_state), scale, "linear", version
    alone = dict.fromkeys(_PLAIN, lambda *own: plain(*own, scale))
    o, last = _gdn._over_positions((q, k, v, gate, w, state), cu_seqlens, settings, alone)
    return _gdn._in_order(o, last, head_first, output_final_state, state_v_first)


def linear_attention_step(
    q,
    k,
    v,
    g=None,
    g_gamma=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    reverse=False,
    state_v_first=False,
    cu_seqlens=None,
    *,
    w=None,
    inplace=False,
    version="auto",
):
    """One position of linear attention behind a state, for decoding: as flash-linear-attention's `fused_recurrent_simple_gla`, or
    its `fused_recurrent_retention` with `g_gamma`, with T = 1. It has no gradient.

    Args:
        q, k: (B, 1, H, K), in float32, float16 or bfloat16, K a multiple of 16 up to 512; v: (B, 1, HV, V), V a multiple of 16 up to 1024;
            g, w: (B, 1, HV). In float64 PyTorch's own operations compute it, of any K and V.
        initial_state: the state before the position, (B, HV, K, V); None stands for zeros.
        reverse: of one position both directions are the same.
        inplace: whether the state is updated where it lies, as of `gated_delta_step`.
        version: `auto`, or a name of those that `versions` lists under `linear_step`.
        All others: as of `linear_attention`.

    Returns:
        o (B, 1, HV, V) of the type of v, and the state behind the position, or None. In place it is `initial_state`; else it is new,
        in float32 (float64 for q in float64).

    Raises:
        TypeError, ValueError: as `linear_attention`; also where a gradient would be needed.
    """
    if cu_seqlens is not None:
        raise NotImplementedError(f"cu_seqlens: expected None, as a step has one position of each row, got {type(cu_seqlens).__name__}")
    gate = _gate(q, v, g, g_gamma, False)
    weight = gate if w is None else w
    _gdn._check(q, k, v, gate, weight, initial_state, None, False, state_v_first, ("g", "w", "initial_state"))
    scale = _gdn._checked_scale(scale, version)
    _gdn._check_step((q, k, v, gate, weight, initial_state), "linear_attention_step", "linear_attention")
    q, k, v = _gdn._prepared(q, k, v, False)
    state = _gdn._state_of_step(initial_state, q, v, state_v_first, inplace)
    o, state = _gdn._step((q, k, v, gate, w), state, scale, "linear", version, plain)
    return _gdn._in_order(o, state, True, output_final_state, state_v_first)


def sigmoid_step(q, k, v, i, f, c, dtype_state, inplace, version):
    """h (B, NH, DHHV) and c of one position of `vlstm.mlstm_sig` without a normaliser."""
    for name, tensor in (("q", q), ("k", k), ("v", v), ("i", i), ("f", f), ("c", c)):
        _api._check_tensor(name, tensor, q, _gdn._FLOATS)
    *sizes, keys = _api._shape_of("q", q, "B, NH, DHQK")
    *_, values = _api._shape_of("v", v, "B, NH, DHHV")
    sizes = tuple(sizes)
    for name, tensor, columns in (("k", k, (keys,)), ("v", v, (values,)), ("c", c, (keys, values))):
        _api._check_shape(name, tensor, (*sizes, *columns))
    for name, gate in (("i", i), ("f", f)):
        _api._check_shape(name, gate, sizes, (*sizes, 1))
    i, f = (gate.reshape(sizes) for gate in (i, f))
    rows = [t.unsqueeze(1) for t in (q, k, v, f, i)]
    axes = "B, 1, NH, DHQK", "B, 1, NH, DHHV"
    _gdn._check(*rows, c, None, False, False, ("f", "i", "c"), axes)
    _gdn._checked_scale(None, version)
    _gdn.refuse_gradients((q, k, v, i, f, c), "mlstm_sig_step", "mlstm_sig")
    q, k, v, f, i = (*_gdn._prepared(*rows[:3], False), *rows[3:])
    kept = _gdn.types_of_state(q.dtype)
    if dtype_state not in kept:
        raise TypeError(f"dtype_state: expected {_api._either(kept)} with q in {q.dtype}, got {dtype_state}")
    if inplace and (c.dtype != dtype_state or not c.is_contiguous()):
        got = f"{c.dtype}, strides {tuple(c.stride())}"
        raise ValueError(f"c: expected {dtype_state} without gaps, to be updated in place, got {got}")
    state = c if inplace else c.detach().to(dtype_state, copy=True, memory_format=torch.contiguous_format)
    h, state = _gdn._step((q, k, v, f, i), state, None, "sigmoid", version, _plain_sigmoid)
    return h.squeeze(1), state


def _plain_sigmoid(q, k, v, f, i, state, scale):
    return plain(q, k, v, torch.nn.functional.logsigmoid(f), i.sigmoid(), state, scale)


def sigmoid_attention(q, k, v, i, f, state, output_final_state, cu_seqlens, version, cast):
    """h and the last state, or None, of `vlstm.mlstm_sig` without a normaliser: heads before positions. `cast` is the type under an autocast, or
    None."""
    _gdn._check(q, k, v, f, i, state, cu_seqlens, True, False, ("f", "i", "c_initial"), ("B, NH, S, DHQK", "B, NH, S, DHHV"))
    q, k, v = _gdn._prepared(q, k, v, False, cast)
    settings = bool(output_final_state), None, "sigmoid", version
    alone = dict.fromkeys(_PLAIN, lambda *own: _plain_sigmoid(*own, None))
    h, last = _gdn._over_positions((q, k, v, f, i, state), cu_seqlens, settings, alone)
    return h, last if output_final_state else None


def plain(q, k, v, g, w, state, scale):
    """o and the last state, heads before positions, in plain PyTorch: what float32 and float64 take. By chunks, as the kernels."""
    v = v if w is None else v * w.unsqueeze(-1)
    group = v.shape[1] // q.shape[1]
    q, k = (t.repeat_interleave(group, 1) for t in (q, k))
    q = q * (q.shape[3] ** -0.5 if scale is None else scale)
    state = g.new_zeros((*v.shape[:2], q.shape[3], v.shape[3])) if state is None else state
    rows = []
    for first in range(0, q.shape[2], _CHUNK):
        x, y, z, gate = (t[:, :, first : first + _CHUNK] for t in (q, k, v, g))
        # In float64: in float32 one ulp behind a shut gate would be 0.008.
        kept = gate.clamp(min=_SHUT).double().cumsum(-1)
        later = torch.ones(kept.shape[-1], kept.shape[-1], dtype=torch.bool, device=q.device).triu(1)
        decay = (kept.unsqueeze(-1) - kept.unsqueeze(-2)).masked_fill(later, -torch.inf).to(g.dtype).exp()
        since, left = kept.to(g.dtype).exp(), (kept[..., -1:] - kept).to(g.dtype).exp().unsqueeze(-1)
        rows.append((x @ y.mT * decay) @ z + (x * since.unsqueeze(-1)) @ state)
        state = since[..., -1, None, None] * state + (y * left).mT @ z
    return torch.cat(rows, 2), state


def _gate(q, v, g, g_gamma, head_first):
    """g of each position."""
    if g is not None and g_gamma is not None:
        raise ValueError("g_gamma: expected None with g, got both")
    if g is not None:
        return g
    _api._check_tensor("q", q, q, _gdn._FLOATS)
    _api._check_tensor("v", v, q, _gdn._FLOATS)
    axes = "B, HV, T, V" if head_first else "B, T, HV, V"
    shape = _api._shape_of("v", v, axes)[:3]
    of_gate = torch.float64 if q.dtype == torch.float64 else torch.float32
    if g_gamma is None:
        return q.new_zeros(shape, dtype=of_gate)
    _api._check_tensor("g_gamma", g_gamma, q, _gdn._FLOATS)
    _api._check_shape("g_gamma", g_gamma, (shape[1 if head_first else 2],))
    each = g_gamma.to(of_gate)
    return (each.unsqueeze(-1) if head_first else each).expand(shape)
