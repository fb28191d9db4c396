"""States in float32, which no version of the kernels takes: by more positions before, and plain PyTorch behind.

A state is the sum of what positions have written: C = sum of k vT, n = sum of k, all with the weight exp(m). Any state is that of
two positions for each key: one writes its row of C, the other makes up what n lacks.
"""

import torch
from torch.nn.functional import logsigmoid

# A forget gate of at most this starts anew, as in the kernels: see `lab/gates.cuh`.
_SHUT = -1e5

# Of a forget gate that is open: logsigmoid(100) is 0 in float32, and so is its gradient.
_OPEN = 100.0


def as_positions(q, k, v, i, f, c, n, m):
    """q, k, v, i, f with 2 DHQK positions before, which leave the state c, n, m."""
    batch, heads, _, keys = q.shape
    # About as large as n, so that n is left with no more error than its own rounding.
    size = n.detach().abs().amax(-1, keepdim=True)
    size = torch.where((size > 0) & size.isfinite(), size, 1.0)
    writing = torch.diag_embed(size.expand_as(n))
    first_k = torch.cat([writing, torch.diag_embed(n - size)], 2)
    first_v = torch.cat([c / size[..., None], torch.zeros_like(c)], 2)
    rows = batch, heads, 2 * keys
    first_i = m.detach()[..., None].expand(rows)
    return (
        torch.cat([q.new_zeros(*rows, keys), q], 2),
        torch.cat([first_k, k], 2),
        torch.cat([first_v, v], 2),
        torch.cat([first_i, i], 2),
        torch.cat([f.new_full(rows, _OPEN), f], 2),
    )


def last_state(k, v, i, f):
    """c, n, m behind the last position; no gradient goes through m."""
    kept = logsigmoid(f.clamp(min=_SHUT)).double()
    behind = kept.flip(-1).cumsum(-1).flip(-1) - kept
    exponents = behind + i
    m = exponents.detach().amax(-1)
    weights = (exponents - torch.where(m.isfinite(), m, 0.0)[..., None]).exp().float()
    weighted = weights[..., None] * k
    return weighted.transpose(-1, -2) @ v, weighted.sum(-2), m.float()
