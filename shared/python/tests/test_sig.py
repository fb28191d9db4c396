"""`vlstm.mlstm_sig` and its step against the recurrence in float64."""

import pytest
import torch
from conftest import DTYPES, draw, relative_error

import vlstm

SHAPES = [(1, 1, 1, 16, 16), (2, 1, 64, 32, 32), (1, 2, 100, 48, 16)]
HALVES = [torch.float16, torch.bfloat16]
# Of h, of its gradients: what the bounds of the mLSTM are in these types.
BOUNDS = {torch.float32: (1e-5, 5e-5), torch.float16: (2e-3, 6e-3), torch.bfloat16: (1.5e-2, 4e-2)}


def recurrence(q, k, v, i, f, state=None, holds_normalizer=False):
    """h and the state (C, n) without a factor, position by position, in float64."""
    q, k, v, i, f = (t.double() for t in (q, k, v, i, f))
    batch, heads, positions, keys = q.shape
    c, n = state or (q.new_zeros(batch, heads, keys, v.shape[3]), q.new_zeros(batch, heads, keys))
    rows = []
    for t in range(positions):
        kept, taken = torch.sigmoid(f[..., t]), torch.sigmoid(i[..., t])
        c = kept[..., None, None] * c + taken[..., None, None] * k[:, :, t, :, None] * v[:, :, t, None, :]
        n = kept[..., None] * n + taken[..., None] * k[:, :, t]
        scaled = q[:, :, t] * keys**-0.5
        normalizer = (n * scaled).sum(-1).abs().clamp(min=1)
        normalizer = normalizer.detach() if holds_normalizer else normalizer
        rows.append((c * scaled[..., None]).sum(2) / normalizer[..., None])
    return torch.stack(rows, 2), (c, n)


def assert_near(got, wanted, bound, floor, name):
    """The error of all together is within the bound, and each within four times as much of the largest."""
    wrong = got.double() - wanted
    assert wrong.norm() <= bound * wanted.norm() + floor, name
    assert wrong.abs().max() <= 4 * bound * wanted.abs().max() + floor, name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_gradients(shape, dtype, device):
    tensors = [t.requires_grad_() for t in draw(shape, dtype, device)]
    h = vlstm.mlstm_sig(*tensors)
    exact = [t.detach().double().requires_grad_() for t in tensors]
    expected, _ = recurrence(*exact)
    of_h, of_gradients = BOUNDS[dtype]
    assert relative_error(h, expected) <= of_h
    upstream = torch.randn_like(h)
    h.backward(upstream)
    expected.backward(upstream.double())
    for name, got, wanted in zip("qkvif", tensors, exact):
        # The first forget gate is never used; the scale of the others says what 0 is.
        floor = 1e-6 * sum(float(t.grad.norm()) for t in exact)
        assert_near(got.grad, wanted.grad, of_gradients, floor, name)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_sequence_in_two_parts_and_in_steps(dtype, device):
    tensors = draw((2, 2, 70, 32, 16), dtype, device)
    expected, (c, n) = recurrence(*tensors)
    first, second = ([t[:, :, at] for t in tensors] for at in (slice(0, 64), slice(64, 70)))
    h, state = vlstm.mlstm_sig(*first, return_last_states=True)
    again, last = vlstm.mlstm_sig(*second, *state, return_last_states=True)
    bound = BOUNDS[dtype][0]
    assert relative_error(torch.cat([h, again], 2), expected) <= bound
    # Without the factor it is what other programs keep, and these begin with m = 0.
    factor = last[2].exp()
    assert relative_error(last[0] * factor[..., None], c) <= bound
    assert relative_error(last[1] * factor, n) <= bound
    plain = state[0] * state[2].exp()[..., None], state[1] * state[2].exp(), torch.zeros_like(state[2])
    assert relative_error(vlstm.mlstm_sig(*second, *plain), expected[:, :, 64:]) <= bound
    for t in range(6):
        row, state = vlstm.mlstm_sig_step(*(part[:, :, t] for part in second), *state)
        assert relative_error(row, expected[:, :, 64 + t]) <= bound


def test_a_state_in_float32(device):
    tensors = draw((1, 2, 40, 16, 16), torch.float32, device)
    first, second = ([t[:, :, at] for t in tensors] for at in (slice(0, 30), slice(30, 40)))
    h, state = vlstm.mlstm_sig(*first, return_last_states=True)
    again = vlstm.mlstm_sig(*second, *state)
    assert relative_error(torch.cat([h, again], 2), recurrence(*tensors)[0]) <= 1e-5


def test_a_normaliser_that_is_held_constant(device):
    tensors = [t.requires_grad_() for t in draw((1, 2, 40, 16, 16), torch.float32, device)]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    upstream = torch.randn_like(tensors[2])
    vlstm.mlstm_sig(*tensors, normalizer_grad="constant").backward(upstream)
    expected, _ = recurrence(*exact, holds_normalizer=True)
    expected.backward(upstream.double())
    floor = 1e-6 * sum(float(t.grad.norm()) for t in exact)
    for name, got, wanted in zip("qkvif", tensors, exact):
        assert_near(got.grad, wanted.grad, 5e-5, floor, name)


def test_shut_and_open_gates(device):
    """sigmoid(i) of 0 leaves a position out, and has no gradient; of 1 takes all of it."""
    q, k, v, i, f = draw((1, 1, 40, 16, 16), torch.float32, device)
    i[..., 5:20], i[..., 25:] = -torch.inf, 1e4
    i.requires_grad_()
    h = vlstm.mlstm_sig(q, k, v, i, f)
    assert relative_error(h, recurrence(q, k, v, i.detach(), f)[0]) <= 1e-5
    h.sum().backward()
    assert torch.isfinite(i.grad).all() and (i.grad[..., 5:20] == 0).all() and (i.grad[..., 25:] == 0).all()


def test_what_is_refused(device):
    tensors = draw((1, 1, 16, 16, 16), torch.float32, device)
    with pytest.raises(TypeError, match="i: expected a torch.Tensor, got str"):
        vlstm.mlstm_sig(*tensors[:3], "i", tensors[4])
    with pytest.raises(ValueError, match="normalizer_grad"):
        vlstm.mlstm_sig(*tensors, normalizer_grad="none")
