"""What the tests share: devices, inputs, and the equations in plain PyTorch."""

import collections
import os

import pytest
import torch
from torch.nn.functional import logsigmoid

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]


def pytest_collection_modifyitems(config, items):
    """Of a test's many cases every second one, the even or the odd ones as `LAB_TEST_TURN` has it; all where it is not set."""
    turn = os.environ.get("LAB_TEST_TURN")
    if turn is None or os.environ.get("LAB_ALL_CHECKS"):
        return
    cases = collections.defaultdict(list)
    for item in items:
        if not any(mark.args and mark.args[0] for mark in item.iter_markers("skipif")):
            cases[item.nodeid.split("[")[0]].append(item)
    left_out = {item for own in cases.values() if len(own) > 2 for item in own[1 - int(turn) % 2 :: 2]}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def draw(shape, dtype, device, seed=0, grad=False):
    """q, k, v, i, f for (B, NH, S, DHQK, DHHV); forget gates about 3, as trained ones are."""
    batch, heads, positions, keys, values = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes, mean=0.0, dtype=dtype):
        drawn = torch.randn(*sizes, generator=generator) + mean
        return drawn.to(device=device, dtype=dtype).requires_grad_(grad)

    rows = batch, heads, positions
    gates = (normal(*rows, mean=mean, dtype=torch.float32) for mean in (0.0, 3.0))
    return [normal(*rows, keys), normal(*rows, keys), normal(*rows, values), *gates]


def draw_state(shape, device, seed=1, grad=False):
    """c, n, m of what some dozen positions leave."""
    batch, heads, _, keys, values = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = (batch, heads, keys, values), (batch, heads, keys), (batch, heads, 1)
    state = [torch.randn(*s, generator=generator).to(device) for s in sizes]
    return [t.requires_grad_(grad) for t in state[:2]] + [state[2]]


def equations(q, k, v, i, f, c=None, n=None, m=None, eps=1e-6, exact=False):
    """h, c, n, m in float64, by the equations as the documentation of `mlstm` has them, all pairs at once."""
    q, k, v, i, f = (t.double() for t in (q, k, v, i, f))
    scale = q.shape[-1] ** -0.5
    total = logsigmoid(f).cumsum(-1)
    pairs = total[..., :, None] - total[..., None, :] + i[..., None, :]
    causal = torch.ones(pairs.shape[-2:], dtype=torch.bool, device=q.device).tril()
    pairs = pairs.masked_fill(~causal, float("-inf"))
    batch, heads, positions, keys = q.shape
    if c is None:
        c, n = q.new_zeros(batch, heads, keys, v.shape[-1]), q.new_zeros(batch, heads, keys)
        m = q.new_full((batch, heads), float("-inf"))
    c, n, m = c.double(), n.double(), m.double().reshape(batch, heads, 1)
    of_state = total + m
    largest = torch.maximum(pairs.max(-1).values, of_state).detach()
    weights = scale * (q @ k.transpose(-1, -2)) * (pairs - largest[..., None]).exp()
    kept = scale * (of_state - largest).exp()
    length = weights.sum(-1) + kept * (q @ n[..., None])[..., 0]
    normaliser = torch.maximum(length.abs(), (-largest).exp())
    normaliser = normaliser if exact else normaliser.detach()
    h = (weights @ v + kept[..., None] * (q @ c)) / (normaliser + eps)[..., None]
    last = total[..., -1:] - total + i
    new_m = torch.maximum(last.max(-1, keepdim=True).values, of_state[..., -1:]).detach()
    written, left = (last - new_m).exp(), (of_state[..., -1:] - new_m).exp()
    new_c = left[..., None] * c + (written[..., None] * k).transpose(-1, -2) @ v
    new_n = left * n + (written[..., None] * k).sum(-2)
    return h, (new_c, new_n, new_m)


def relative_error(got, expected):
    """‖got − expected‖ / ‖expected‖, or, where that is more, the error of the worst element over four times the largest one: a
    single element that is 0, or another's, does not hide among the others. NaN where there is one.
    """
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    assert got.shape == expected.shape
    of_all = (got - expected).norm() / expected.norm()
    of_worst = (got - expected).abs().max() / (4 * expected.abs().max())
    return torch.maximum(of_all, of_worst).item()
