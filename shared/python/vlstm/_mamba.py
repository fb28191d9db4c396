"""Mamba-2's scan, with the arguments of mamba_ssm: linear attention, and what its layers have around it."""

import torch
from torch.nn.functional import silu, softplus

from vlstm import _api, _gdn, _linear


def mamba_chunk_scan_combined(
    x,
    dt,
    A,
    B,
    C,
    chunk_size=None,
    D=None,
    z=None,
    dt_bias=None,
    initial_states=None,
    seq_idx=None,
    cu_seqlens=None,
    dt_softplus=False,
    dt_limit=(0.0, float("inf")),
    return_final_states=False,
    return_varlen_states=False,
    *,
    version="auto",
):
    """Mamba-2's state space model (SSD) over a sequence. Names and meanings are those of
    `mamba_chunk_scan_combined` of mamba_ssm, but that of `cu_seqlens`, which here says where sequences begin without `seq_idx`.

    With dt' = dt + dt_bias, through a softplus where `dt_softplus` asks for it, and then held within `dt_limit`, for position t of each head,
    from a state S (P, N), zeros where none is given:

        S_t = exp(dt'_t A) S_(t-1) + dt'_t x_t B_t^T
        y_t = S_t C_t + D x_t, times silu(z_t) where z is given

    It is `linear_attention` with q = C, k = B, v = x, g = dt' A, w = dt' and scale = 1; all else is PyTorch's operations. Source: Dao and
    Gu 2024, arXiv 2405.21060.

    Args:
        x: (B, T, H, P), in float16, bfloat16, float32 or float64; P as V of `linear_attention`.
        dt: (B, T, H); A: (H,), not above 0; dt_bias: None or (H,). Computed in float32 at least.
        B, C: (B, T, G, N), of the type of x; H is a multiple of G, N as K of `linear_attention`.
        chunk_size: for programs written for mamba_ssm: any T is taken, in chunks of 64.
        D: None, (H,) or (H, P); z: None or (B, T, H, P).
        initial_states: the state before the first position, (B, H, P, N); None stands for zeros.
        seq_idx, return_varlen_states: refused: `cu_seqlens` says where sequences begin, and `return_final_states` gives the state behind each.
        cu_seqlens, version: as of `linear_attention`. States have N in the place of B.
        return_final_states: whether the state behind the last position is returned, too.

    Returns:
        y, of the shape and type of x, and with `return_final_states` the state behind the last position, (B, H, P, N), in float32
        (float64 for x in float64).

    Raises:
        As `linear_attention`, whose names of arguments it has where a size is wrong that only kernels know.
    """
    _api._check_tensor("x", x, x, _gdn._FLOATS)
    batch, positions, heads, columns = _api._shape_of("x", x, "B, T, H, P")
    rows = batch, positions, heads
    groups = _api._shape_of("B", B, "B, T, G, N")[2:] if isinstance(B, torch.Tensor) else ()
    expected = {"dt": (rows,), "A": ((heads,),), "B": ((*rows[:2], *groups),), "C": ((*rows[:2], *groups),)}
    expected |= {"D": ((heads,), (heads, columns)), "z": ((*rows, columns),), "dt_bias": ((heads,),)}
    given = {"dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    for name, tensor in given.items():
        if tensor is not None or name in ("dt", "A", "B", "C"):
            _api._check_tensor(name, tensor, x, _gdn._FLOATS)
            _api._check_shape(name, tensor, *expected[name])
    if seq_idx is not None:
        raise NotImplementedError(f"seq_idx: expected None, as cu_seqlens says where sequences begin, got {type(seq_idx).__name__}")
    if return_varlen_states:
        raise NotImplementedError(f"return_varlen_states: expected False, as return_final_states gives them, got {return_varlen_states!r}")
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(f"chunk_size: expected None or a positive int, got {chunk_size!r}")
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    width = dt.to(exact) if dt_bias is None else dt.to(exact) + dt_bias.to(exact)
    width = softplus(width) if dt_softplus else width
    if tuple(dt_limit) != (0.0, float("inf")):
        width = width.clamp(*dt_limit)
    y, last = _linear.linear_attention(
        C, B, x, width * A.to(exact), None, 1.0, initial_states, bool(return_final_states), cu_seqlens, w=width,
        state_v_first=True, version=version,
    )  # fmt: skip
    if D is not None:
        y = y + x * (D if D.dim() == 2 else D.unsqueeze(-1)).to(x.dtype)
    if z is not None:
        y = y * silu(z)
    y = y.to(x.dtype)
    return (y, last) if return_final_states else y
