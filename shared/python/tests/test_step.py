"""`vlstm.mlstm_step`, position by position, against `mlstm` and the equations."""

import pytest
import torch
from conftest import DTYPES, draw, equations, relative_error

import vlstm

SHAPE = 2, 3, 12, 32, 48


def nothing(device, dtype=torch.float32):
    batch, heads, _, keys, values = SHAPE
    sizes = (batch, heads, keys, values), (batch, heads, keys), (batch, heads, 1)
    c, n, m = (torch.zeros(s, device=device) for s in sizes)
    return c.to(dtype), n, m


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_are_the_sequence(dtype, inplace, device):
    tensors = draw(SHAPE, dtype, device)
    state, rows = nothing(device), []
    first = state
    for t in range(SHAPE[2]):
        q, k, v, i, f = (tensor[:, :, t] for tensor in tensors)
        h, state = vlstm.mlstm_step(q, k, v, i[..., None], f[..., None], *state, inplace=inplace)
        assert h.dtype == dtype and state[2].shape == first[2].shape
        rows.append(h)
    assert all((a is b) == inplace for a, b in zip(first, state))
    expected, last = equations(*tensors, *nothing("cpu" if device == "cpu" else device))
    bound = {torch.float32: 8e-7, torch.float16: 4e-4, torch.bfloat16: 4e-3}[dtype]
    assert relative_error(torch.stack(rows, 2), expected) <= bound
    for got, wanted in zip(state, last):
        assert relative_error(got, wanted) <= 2e-6


def test_a_state_of_half_the_width(device):
    q, k, v, i, f = (t[:, :, 0] for t in draw(SHAPE, torch.bfloat16, device))
    c, n, m = nothing(device)
    h, (new_c, new_n, _) = vlstm.mlstm_step(q, k, v, i, f, c, n, m, dtype_state=torch.bfloat16)
    assert (new_c.dtype, new_n.dtype) == (torch.bfloat16, torch.float32)
    whole, (wide_c, *_) = vlstm.mlstm_step(q, k, v, i, f, c, n, m)
    assert relative_error(new_c, wide_c) <= 4e-3 and relative_error(h, whole) <= 8e-3
    assert torch.equal(c, torch.zeros_like(c))


def test_goes_on_where_a_sequence_ends(device):
    tensors = draw((1, 2, 41, 32, 48), torch.bfloat16, device)
    whole = vlstm.mlstm(*tensors)
    _, state = vlstm.mlstm(*(t[:, :, :40] for t in tensors), return_last_states=True)
    h, _ = vlstm.mlstm_step(*(t[:, :, 40] for t in tensors), *state)
    assert relative_error(h, whole[:, :, 40]) <= 8e-3


def test_what_it_refuses():
    q, k, v, i, f = (t[:, :, 0] for t in draw(SHAPE, torch.float16, "cpu"))
    c, n, m = nothing("cpu")
    with pytest.raises(TypeError, match="dtype_state: expected torch.float32 with q in torch.float16"):
        vlstm.mlstm_step(q, k, v, i, f, c, n, m, dtype_state=torch.bfloat16)
    with pytest.raises(ValueError, match=r"i: expected shape \(2, 3\) or \(2, 3, 1\), got \(2, 1\)"):
        vlstm.mlstm_step(q, k, v, i[:, :1], f, c, n, m)
    with pytest.raises(ValueError, match="c: expected torch.float32 without gaps, to be updated in place"):
        turned = c.transpose(2, 3).contiguous().transpose(2, 3)
        vlstm.mlstm_step(q, k, v, i, f, turned, n, m, inplace=True)
    with pytest.raises(ValueError, match="mlstm_step: expected tensors that need no gradient"):
        vlstm.mlstm_step(q.detach().requires_grad_(), k, v, i, f, c, n, m)


def test_autograd_notices_that_a_state_was_updated_in_place():
    q, k, v, i, f = (t[:, :, 0] for t in draw(SHAPE, torch.float32, "cpu"))
    c, n, m = nothing("cpu")
    weight = torch.ones_like(c, requires_grad=True)
    outer = (weight * c).sum()
    with torch.no_grad():
        vlstm.mlstm_step(q, k, v, i, f, c, n, m, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outer.backward()
    with torch.inference_mode():
        state = [t.clone() for t in (c, n, m)]
        vlstm.mlstm_step(q, k, v, i, f, *state, inplace=True)


def test_under_an_autocast(device):
    q, k, v, i, f = (t[:, :, 0] for t in draw(SHAPE, torch.float32, device))
    state = nothing(device)
    with torch.autocast(device, torch.bfloat16):
        h, (c, n, m) = vlstm.mlstm_step(q, k, v, i, f, *state)
    assert (h.dtype, c.dtype, n.dtype, m.dtype) == (torch.bfloat16, *[torch.float32] * 3)
    halves = (t.bfloat16() for t in (q, k, v))
    assert torch.equal(h, vlstm.mlstm_step(*halves, i, f, *state)[0])


@pytest.mark.parametrize("inplace", [False, True])
def test_no_sequence(inplace, device):
    rows = [torch.zeros(0, 2, 16, device=device)] * 3 + [torch.zeros(0, 2, 1, device=device)] * 2
    state = [torch.zeros(sizes, device=device) for sizes in ((0, 2, 16, 16), (0, 2, 16), (0, 2, 1))]
    h, after = vlstm.mlstm_step(*rows, *state, inplace=inplace)
    assert h.shape == (0, 2, 16) and [t.shape for t in after] == [t.shape for t in state]


def test_views_may_begin_anywhere(device, monkeypatch):
    """Kernels load 16 bytes at once: a view that begins elsewhere is handed on as a copy, and a state in one is written back."""
    tensors = [t[:, :, 0].contiguous() for t in draw(SHAPE, torch.float16, device)]
    state = [t + 0.5 for t in nothing(device)]

    def elsewhere(tensor):
        room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
        view = room[1:].view(tensor.shape).copy_(tensor)
        assert view.is_contiguous() and view.data_ptr() % 16
        return view

    seen = []
    launched = vlstm._launch.Planned.__init__

    def watched(self, *arguments):
        launched(self, *arguments)
        run = self.run
        self.run = lambda addresses, *rest: (seen.extend(addresses), run(addresses, *rest))

    monkeypatch.setattr(vlstm._launch.Planned, "__init__", watched)
    vlstm._launch._planned.cache_clear()
    whole = vlstm.mlstm_step(*tensors, *(t.clone() for t in state))
    views = [elsewhere(t) for t in state]
    h, _ = vlstm.mlstm_step(*(elsewhere(t) for t in tensors), *views, inplace=True)
    vlstm._launch._planned.cache_clear()
    assert torch.equal(h, whole[0])
    for got, wanted in zip(views, whole[1]):
        assert torch.equal(got, wanted.view_as(got))
    assert seen and not any(address % 16 for address in seen)
