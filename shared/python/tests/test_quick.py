"""Calls whose like was made before, which skip what the first has checked and planned: they must be as the first."""

import pytest
import torch
from conftest import DTYPES, draw

import vlstm
from vlstm import _launch, _quick

SHAPE = (1, 2, 70, 32, 48)


@pytest.fixture(autouse=True)
def forgotten():
    _quick._calls.clear()


@pytest.fixture
def taken(monkeypatch):
    """How many calls have gone the quick way."""
    calls = []
    find = _quick.find

    def counted(key):
        call = find(key)
        if call is not None:
            calls.append(call)
        return call

    monkeypatch.setattr(_quick, "find", counted)
    return calls


def results(tensors, dh, **settings):
    """h, the last state if it is asked for, and the gradients of a loss that reads h alone."""
    h = vlstm.mlstm(*tensors, **settings)
    h, state = h if settings.get("return_last_states") else (h, ())
    return [h.detach(), *(s.detach() for s in state), *torch.autograd.grad(h, tensors, dh)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("exact", [False, True])
def test_a_second_call_is_as_the_first(exact, dtype, device, taken):
    tensors = draw(SHAPE, dtype, device, grad=True)
    dh = draw(SHAPE, dtype, device, seed=5)[2]
    settings = {"normalizer_grad": "exact" if exact else "constant"}
    first = results(tensors, dh, **settings)
    assert not taken
    second = results(tensors, dh, **settings)
    # A gradient with gaps, as `sum` gives it, and one without.
    ones = torch.ones_like(tensors[2])
    third = torch.autograd.grad(vlstm.mlstm(*tensors, **settings).sum(), tensors)
    fourth = torch.autograd.grad(vlstm.mlstm(*tensors, **settings), tensors, ones)
    with torch.no_grad():
        assert torch.equal(vlstm.mlstm(*tensors, **settings), vlstm.mlstm(*tensors, **settings))
    assert len(taken) == 5
    assert all(map(torch.equal, first, second)) and all(map(torch.equal, third, fourth))


def test_with_the_last_state(device, taken):
    tensors = draw(SHAPE, torch.bfloat16, device, grad=True)
    dh = draw(SHAPE, torch.bfloat16, device, seed=5)[2]
    first, second = (results(tensors, dh, return_last_states=True) for _ in range(2))
    assert len(taken) == 1 and len(first) == 9 and first[3].shape == (1, 2, 1)
    assert all(map(torch.equal, first, second))
    # A loss of the state alone.
    loss = [torch.autograd.grad(vlstm.mlstm(*tensors, return_last_states=True)[1][0].sum(), tensors[1]) for _ in range(2)]
    _quick._calls.clear()
    long = torch.autograd.grad(vlstm.mlstm(*tensors, return_last_states=True)[1][0].sum(), tensors[1])
    assert len(taken) == 3 and all(torch.equal(one[0], long[0]) for one in loss)


def test_other_facts_take_the_long_way(device, taken):
    tensors = draw(SHAPE, torch.bfloat16, device)
    h = vlstm.mlstm(*tensors, eps=1)
    q, k, v, i, f = tensors
    with pytest.raises(TypeError, match="eps: expected a number, got bool"):
        vlstm.mlstm(*tensors, eps=True)
    with pytest.raises(ValueError, match="normalizer_grad"):
        vlstm.mlstm(*tensors, eps=1, normalizer_grad="none")
    with pytest.raises(ValueError, match="expected a tensor, as"):
        vlstm.mlstm(*tensors, None, None, torch.zeros(1, 2, 1, device=q.device), eps=1)
    with pytest.raises(ValueError, match="k: expected shape"):
        vlstm.mlstm(q, k[:, :, :-1], v, i, f, eps=1)
    with pytest.raises(TypeError, match="k: expected torch.bfloat16, as q"):
        vlstm.mlstm(q, k.half(), v, i, f, eps=1)
    gaps = k.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(vlstm.mlstm(q, gaps, v, i, f, eps=1), h)
    with torch.autocast(q.device.type, dtype=torch.float16):
        assert vlstm.mlstm(*tensors, eps=1).dtype == torch.float16
    assert not taken
    assert torch.equal(vlstm.mlstm(*tensors, eps=1), h) and len(taken) == 1


def test_double_backward_is_refused(device, taken):
    tensors = draw(SHAPE, torch.float32, device, grad=True)
    vlstm.mlstm(*tensors)
    (dq,) = torch.autograd.grad(vlstm.mlstm(*tensors).sum(), tensors[:1], create_graph=True)
    assert taken
    with pytest.raises(NotImplementedError, match="vlstm.mlstm: expected to be differentiated once"):
        torch.autograd.grad(dq.sum(), tensors[1])


@pytest.mark.parametrize("gates", [(1, 2), (1, 2, 1)], ids=str)
def test_a_second_step_is_as_the_first(gates, device):
    def step(make=lambda t: t):
        q, k, v, i, f = (t[:, :, 0] for t in draw(SHAPE, torch.bfloat16, device))
        state = [torch.full(s, 0.25, device=device) for s in ((1, 2, 32, 48), (1, 2, 32), gates)]
        tensors = [t.contiguous() for t in (q, k, v, i.reshape(gates), f.reshape(gates), *state)]
        h, after = vlstm.mlstm_step(*map(make, tensors), inplace=True)
        return [h, *after]

    first = step()
    assert len(_quick._calls) == 1
    second = step()
    assert all(map(torch.equal, first, second)) and len(_quick._calls) == 1
    with pytest.raises(ValueError, match="mlstm_step: expected tensors that need no gradient"):
        step(lambda t: t.clone().requires_grad_())
    # One that is written is noticed by autograd.
    q, k, v, i, f = (t[:, :, 0].contiguous() for t in draw(SHAPE, torch.bfloat16, device))
    c, n, m = (torch.zeros(s, device=device) for s in ((1, 2, 32, 48), (1, 2, 32), (1, 2)))
    before = c._version, n._version, m._version
    for _ in range(2):
        vlstm.mlstm_step(q, k, v, i, f, c, n, m, inplace=True)
    assert (c._version, n._version, m._version) == tuple(version + 2 for version in before)


def test_a_training_plans_no_pass_that_it_does_not_run(device, monkeypatch):
    asked = []
    plan_for = _launch.plan_for
    monkeypatch.setattr(_launch, "plan_for", lambda on, kind, *more: asked.append(kind) or plan_for(on, kind, *more))
    tensors = draw(SHAPE, torch.bfloat16, device, grad=True)
    for _ in range(2):
        vlstm.mlstm(*tensors).sum().backward()
    assert asked == []
    with torch.no_grad():
        vlstm.mlstm(*tensors)
    assert asked == ["forward"]


def test_ever_new_calls_do_not_fill_the_memory(device, monkeypatch):
    monkeypatch.setattr(_quick, "_KEPT", 2)
    for positions in range(1, 5):
        vlstm.mlstm(*draw((1, 1, positions, 16, 16), torch.bfloat16, device))
    assert len(_quick._calls) == 2
