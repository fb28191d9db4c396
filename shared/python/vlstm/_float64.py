"""The mLSTM in float64, by PyTorch's own operations, all pairs of positions at once: what gradients are checked against."""

import torch

# An f of this and less starts anew, as the kernels have it.
ANEW = -1e5


def mlstm(q, k, v, i, f, state, eps, exact):
    """h and (c, n, m) behind the last position, m (B, NH); all in float64, each a function that autograd knows."""
    positions = q.shape[2]
    scale = q.shape[-1] ** -0.5
    starts = f <= ANEW
    # A sum over a start would be a difference of numbers that large, or NaN: each stretch between starts has sums of its own.
    kept = torch.nn.functional.logsigmoid(f.masked_fill(starts, 0.0)).masked_fill(starts, 0.0)
    total, stretch = kept.cumsum(-1), starts.cumsum(-1)
    pairs = total[..., :, None] - total[..., None, :] + i[..., None, :]
    counts = torch.ones(positions, positions, dtype=torch.bool, device=q.device).tril()
    counts = counts & (stretch[..., :, None] == stretch[..., None, :])
    pairs = pairs.masked_fill(~counts, -torch.inf)
    if state is None:
        batch, heads = q.shape[:2]
        c, n = q.new_zeros(batch, heads, q.shape[3], v.shape[3]), q.new_zeros(batch, heads, q.shape[3])
        m = q.new_full((batch, heads, 1), -torch.inf)
    else:
        c, n, m = state
        m = m.detach()[..., None]  # c and n carry its factor; no gradient goes through it
    of_state = (total + m).masked_fill(stretch > 0, -torch.inf)
    largest = torch.maximum(pairs.amax(-1), of_state).detach()
    weights = scale * (q @ k.transpose(-1, -2)) * _power(pairs - _finite(largest)[..., None])
    read = scale * _power(of_state - _finite(largest))
    length = weights.sum(-1) + read * (q * n[:, :, None]).sum(-1)
    normaliser = torch.maximum(length.abs(), (-largest).exp())
    h = (weights @ v + read[..., None] * (q @ c)) / ((normaliser if exact else normaliser.detach()) + eps)[..., None]
    # What is behind the last position.
    of_last = (total[..., -1:] - total + i).masked_fill(stretch != stretch[..., -1:], -torch.inf)
    last = torch.maximum(of_last.amax(-1, keepdim=True), of_state[..., -1:]).detach()
    written, left = _power(of_last - _finite(last)), _power(of_state[..., -1:] - _finite(last))
    c = left[..., None] * c + (written[..., None] * k).transpose(-1, -2) @ v
    n = left * n + (written[..., None] * k).sum(-2)
    return h, (c, n, last[..., 0])


def packed(q, k, v, i, f, state, eps, exact, cu_seqlens):
    """The same of sequences one behind the other; states are (N, …)."""
    hs, states = [], []
    places = cu_seqlens.tolist()
    for number, (first, end) in enumerate(zip(places, places[1:])):
        own = None if state is None else [t[number : number + 1] for t in state]
        if first == end:
            sizes = (1, q.shape[1])
            nothing = q.new_zeros(*sizes, q.shape[3], v.shape[3]), q.new_zeros(*sizes, q.shape[3]), q.new_full(sizes, -torch.inf)
            states.append(own or nothing)
            continue
        h, last = mlstm(*(t[:, :, first:end] for t in (q, k, v, i, f)), own, eps, exact)
        hs.append(h)
        states.append(last)
    return torch.cat(hs, 2), tuple(torch.cat(parts) for parts in zip(*states))


def _power(x):
    """exp(x), and a gradient of zero, not of NaN, where x is -inf."""
    nothing = x == -torch.inf
    return x.masked_fill(nothing, 0.0).exp().masked_fill(nothing, 0.0)


def _finite(m):
    """m, or 0 where nothing has been written: then no weight is there to be divided by it."""
    return m.masked_fill(m == -torch.inf, 0.0)
