"""The mLSTM in float64: against the equations, by differences, and the kernels against it."""

import pytest
import torch
import vlstm
from conftest import draw, draw_state, equations, relative_error

# No multiple of 16.
SHAPE = (2, 2, 9, 3, 5)


def drawn(device, shape=SHAPE, state=False):
    tensors = [t.double().requires_grad_() for t in draw(shape, torch.float64, device)]
    return tensors + ([t.double() for t in draw_state(shape, device)] if state else [])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("state", [False, True])
def test_values_and_states(device, exact, state):
    tensors = drawn(device, state=state)
    h, last = vlstm.mlstm(*tensors, return_last_states=True, normalizer_grad="exact" if exact else "constant")
    expected, of_last = equations(*tensors, exact=exact)
    assert h.dtype == torch.float64 and relative_error(h, expected) < 1e-14
    assert all(t.dtype == torch.float64 and relative_error(t, e) < 1e-14 for t, e in zip(last, of_last))
    gradients = (torch.autograd.grad(of.square().sum(), tensors[:5]) for of in (h, expected))
    assert all(relative_error(own, e) < 1e-12 for own, e in zip(*gradients))


def test_gradcheck(device):
    tensors = drawn(device, state=True)
    c, n = (t.requires_grad_() for t in tensors[5:7])

    def run(q, k, v, i, f, c, n):
        h, (c, n, _) = vlstm.mlstm(
            q, k, v, i, f, c, n, tensors[7], return_last_states=True, eps=0, normalizer_grad="exact"
        )
        return h, c, n

    # m is a constant of the state that is returned: c and n carry its factor, which moves with i and f.
    assert torch.autograd.gradcheck(lambda *all: run(*all)[0], (*tensors[:5], c, n))
    assert torch.autograd.gradcheck(
        lambda q, k, v, c, n: run(q, k, v, *tensors[3:5], c, n), (*tensors[:3], c, n)
    )
    assert torch.autograd.gradgradcheck(lambda q, v: run(q, *tensors[1:2], v, *tensors[3:5], c, n)[0], (tensors[0], tensors[2]))


@pytest.mark.parametrize("start", [-1e5, -1e15, torch.finfo(torch.float64).min, -torch.inf])
def test_forget_gates_that_start_anew(device, start):
    tensors = drawn(device, (1, 2, 20, 4, 4), state=True)
    f = tensors[4].detach().clone()
    f[..., [5, 12]] = start
    h = vlstm.mlstm(*tensors[:4], f.requires_grad_(), *tensors[5:])
    parts = [slice(0, 5), slice(5, 12), slice(12, 20)]
    states = [tensors[5:], [], []]
    alone = [vlstm.mlstm(*(t[:, :, part] for t in (*tensors[:4], f)), *of) for part, of in zip(parts, states)]
    assert relative_error(h, torch.cat(alone, 2)) < 1e-13
    (df,) = torch.autograd.grad(h.sum(), f)
    assert df.isfinite().all() and not df[..., [5, 12]].any()


def test_positions_that_are_left_out(device):
    tensors = drawn(device)
    i = tensors[3].detach().clone()
    i[..., :2] = -torch.inf
    h, (c, _, m) = vlstm.mlstm(*tensors[:3], i.requires_grad_(), tensors[4], return_last_states=True)
    later = [t[:, :, 2:] for t in (*tensors[:3], i, tensors[4])]
    assert not h[:, :, :2].any() and relative_error(h[:, :, 2:], vlstm.mlstm(*later)) < 1e-14
    assert all(g.isfinite().all() for g in torch.autograd.grad(h.sum() + c.sum(), (*tensors[:3], i, tensors[4])))
    assert m.isfinite().all()


def test_packed_sequences(device):
    tensors = drawn(device, (1, 2, 12, 4, 6))
    places = torch.tensor([0, 5, 5, 12], device=device)
    state = [t.double() for t in draw_state((3, 2, 1, 4, 6), device)]
    h, last = vlstm.mlstm(*tensors, *state, return_last_states=True, cu_seqlens=places)
    for n, part in enumerate([slice(0, 5), slice(5, 5), slice(5, 12)]):
        own = [t[n : n + 1] for t in state]
        alone, of_last = vlstm.mlstm(*(t[:, :, part] for t in tensors), *own, return_last_states=True)
        assert torch.equal(h[:, :, part], alone)
        assert all(torch.equal(t[n : n + 1], e) for t, e in zip(last, of_last))


@pytest.mark.parametrize("normalizer_grad", ["constant", "exact"])
def test_kernels_against_it(device, normalizer_grad):
    tensors = [t.requires_grad_() for t in draw((1, 2, 70, 32, 32), torch.float32, device)]
    wide = [t.detach().double().requires_grad_() for t in tensors]
    own, exact = (vlstm.mlstm(*all, normalizer_grad=normalizer_grad) for all in (tensors, wide))
    assert relative_error(own, exact) < 1e-5
    gradients = [torch.autograd.grad(h.square().sum(), all) for h, all in ((own, tensors), (exact, wide))]
    assert all(relative_error(g, e) < 2e-5 for g, e in zip(*gradients))
