"""`vlstm.mlstm` against the equations in float64, and against the lab's own reference, within the versions' bounds."""

import pytest
import torch
from conftest import DTYPES, draw, draw_state, equations, relative_error

import vlstm
from vlstm import _launch, _ops

# One position; a tile and ragged; heads of unlike widths; several tiles.
SHAPES = [(1, 1, 1, 16, 16), (2, 1, 64, 32, 32), (1, 2, 100, 48, 16), (1, 2, 200, 64, 80)]
HALVES = [torch.float16, torch.bfloat16]
NAMES = ["dq", "dk", "dv", "di", "df"]


def plan_of(pass_name, tensors, exact=False, state=(), last_states=False):
    """The plan that a call on these tensors runs."""
    named = dict(zip(("q", "k", "v", "i", "f"), tensors))
    if state:
        named |= {"C0": state[0], "n0": state[1], "m0": state[2].reshape(state[2].shape[:2])}
    if pass_name == "gradients":
        named["dh"] = named["v"]
        options = _ops.gradient_options(1e-6, exact, bool(state))
    else:
        options = ("eps=1e-06", "last_state=yes") if last_states else ("eps=1e-06",)
    on = _launch.device_name(tensors[0])
    return _launch.plan_for(on, pass_name, named, options, "auto")


def bounds_of_gradients(tensors, exact, state=()):
    """Of each output, by name. The exact gradient reads an h that is rounded to the type of the run."""
    rounding = {torch.float32: 0, torch.float16: 1e-3, torch.bfloat16: 8e-3}[tensors[0].dtype]
    all_of_them = plan_of("gradients", tensors, exact, state).bounds()
    return {name: max(bound, rounding if exact else 0) for name, bound in all_of_them.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(shape, dtype, device):
    tensors = draw(shape, dtype, device)
    h = vlstm.mlstm(*tensors)
    assert h.dtype == dtype and h.device == tensors[0].device and h.is_contiguous()
    bound = plan_of("forward", tensors).bounds()["h"]
    assert relative_error(h, equations(*tensors)[0]) <= bound


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_states(shape, given, dtype, device):
    tensors = draw(shape, dtype, device)
    state = draw_state(shape, device) if given else []
    h, last = vlstm.mlstm(*tensors, *state, return_last_states=True)
    expected_h, expected = equations(*tensors, *state)
    bounds = plan_of("forward", tensors, state=state, last_states=True).bounds()
    assert relative_error(h, expected_h) <= bounds["h"]
    for name, got, wanted in zip(("CN", "nN", "mN"), last, expected):
        assert got.dtype == torch.float32 and got.shape == wanted.shape
        assert relative_error(got, wanted) <= bounds[name], name


def test_a_sequence_in_two_parts(device):
    shape = 1, 2, 150, 32, 48
    tensors = draw(shape, torch.bfloat16, device)
    whole, last = vlstm.mlstm(*tensors, return_last_states=True)
    first, state = vlstm.mlstm(*(t[:, :, :70] for t in tensors), return_last_states=True)
    second, end = vlstm.mlstm(*(t[:, :, 70:] for t in tensors), *state, return_last_states=True)
    assert relative_error(torch.cat([first, second], 2), whole) <= 8e-3
    for got, expected in zip(end, last):
        assert relative_error(got, expected) <= 9e-3


@pytest.mark.parametrize("exact", [False, True], ids=["constant", "exact"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(shape, dtype, exact, device):
    tensors = draw(shape, dtype, device, grad=True)
    mode = "exact" if exact else "constant"
    h = vlstm.mlstm(*tensors, normalizer_grad=mode)
    dh = torch.randn(h.shape, generator=torch.Generator().manual_seed(2)).to(h)
    got = torch.autograd.grad(h, tensors, dh)
    copies = [t.detach().double().requires_grad_() for t in tensors]
    expected = torch.autograd.grad(equations(*copies, exact=exact)[0], copies, dh.double())
    bounds = bounds_of_gradients(tensors, exact)
    for name, of_tensor, g, e in zip(NAMES, tensors, got, expected):
        assert g.dtype == of_tensor.dtype
        # The first forget gate is never used; of one position no gradient comes through the gates but its own.
        if e.norm() < 1e-9:
            assert g.abs().max() <= 1e-3, name
        else:
            assert relative_error(g, e) <= bounds[name], name


@pytest.mark.parametrize("exact", [False, True], ids=["constant", "exact"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_wide_heads(dtype, exact, device):
    test_gradients((1, 1, 300, 144, 272), dtype, exact, device)


def test_what_is_too_wide_is_refused(device):
    shape = 1, 1, 20, 272, 64
    with pytest.raises(ValueError, match="DHQK"):
        vlstm.mlstm(*draw(shape, torch.bfloat16, device, grad=True))


@pytest.mark.parametrize("exact", [False, True], ids=["constant", "exact"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2, 100, 32, 48), (1, 1, 270, 144, 48)], ids=str)
def test_gradients_of_states(shape, dtype, exact, device):
    tensors = draw(shape, dtype, device, grad=True)
    state = draw_state(shape, device, grad=True)
    mode = "exact" if exact else "constant"
    h, last = vlstm.mlstm(*tensors, *state, return_last_states=True, normalizer_grad=mode)
    assert not last[2].requires_grad
    generator = torch.Generator().manual_seed(3)
    outer = [torch.randn(t.shape, generator=generator).to(t) for t in (h, *last[:2])]
    inputs = [*tensors, *state[:2]]
    got = torch.autograd.grad((h, *last[:2]), inputs, outer)
    copies = [t.detach().double().requires_grad_() for t in inputs]
    of_h, of_last = equations(*copies, state[2].double(), exact=exact)
    expected = torch.autograd.grad((of_h, *of_last[:2]), copies, [t.double() for t in outer])
    bounds = bounds_of_gradients(tensors, exact, state)
    for name, g, e in zip([*NAMES, "dC0", "dn0"], got, expected):
        assert relative_error(g, e) <= bounds[name], name


@pytest.mark.parametrize("exact", [False, True], ids=["constant", "exact"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_states_in_float32(shape, given, exact, device):
    tensors = draw(shape, torch.float32, device, grad=True)
    state = draw_state(shape, device, grad=True) if given else []
    mode = "exact" if exact else "constant"
    h, last = vlstm.mlstm(*tensors, *state, return_last_states=True, normalizer_grad=mode)
    inputs = [*tensors, *state[:2]]
    copies = [t.detach().double().requires_grad_() for t in inputs]
    of_h, of_last = equations(*copies, *(t.double() for t in state[2:]), exact=exact)
    for got, expected in zip((h, *last), (of_h, *of_last)):
        assert got.dtype == torch.float32 and relative_error(got, expected) <= 1e-5
    generator = torch.Generator().manual_seed(3)
    outer = [torch.randn(t.shape, generator=generator).to(t) for t in (h, *last[:2])]
    gradients = torch.autograd.grad((h, *last[:2]), inputs, outer)
    wanted = torch.autograd.grad((of_h, *of_last[:2]), copies, [t.double() for t in outer])
    for g, e in zip(gradients, wanted):
        if e.norm() < 1e-9:
            assert g.abs().max() <= 1e-4
        else:
            assert relative_error(g, e) <= 5e-5


def test_a_state_in_float32_whose_n_is_small_or_nothing(device):
    shape = 1, 2, 20, 16, 32
    tensors = draw(shape, torch.float32, device)
    for size, m in ((1e-6, 20.0), (0.0, 0.0), (1.0, float("-inf"))):
        c, n, exponent = draw_state(shape, device)
        state = [c * size, n * size, torch.full_like(exponent, m)]
        h, last = vlstm.mlstm(*tensors, *state, return_last_states=True)
        expected, of_last = equations(*tensors, *(state if m > float("-inf") else []))
        for got, wanted in zip((h, *last), (expected, *of_last)):
            assert relative_error(got, wanted) <= 1e-5


def test_a_loss_of_the_state_alone(device):
    shape = 1, 1, 70, 16, 32
    tensors = draw(shape, torch.float16, device, grad=True)
    _, (c, n, _) = vlstm.mlstm(*tensors, return_last_states=True)
    got = torch.autograd.grad(c.sum(), tensors[1:], allow_unused=True)
    copies = [t.detach().double().requires_grad_() for t in tensors]
    expected = torch.autograd.grad(equations(*copies)[1][0].sum(), copies[1:])
    for g, e in zip(got, expected):
        assert relative_error(g, e) <= 2e-3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_labs_reference_says_the_same(dtype):
    tensors = draw((1, 2, 70, 32, 48), dtype, "cpu", grad=True)
    plan = plan_of("gradients", tensors, exact=True)
    dh = torch.randn(tensors[2].shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    by_name = dict(zip(("q", "k", "v", "i", "f"), tensors)) | {"dh": dh}
    addresses = [by_name[name].data_ptr() if name in by_name else 0 for name in plan.names]
    reference = {name: torch.tensor(values) for name, values in plan.reference(addresses).items()}
    h = vlstm.mlstm(*tensors, normalizer_grad="exact")
    got = torch.autograd.grad(h, tensors, dh)
    bounds = bounds_of_gradients(tensors, exact=True)
    copies = [t.detach().double().requires_grad_() for t in tensors]
    expected = torch.autograd.grad(equations(*copies, exact=True)[0], copies, dh.double())
    assert relative_error(h.flatten(), reference["h"]) <= bounds["h"]
    for name, g, e in zip(NAMES, got, expected):
        assert relative_error(e.flatten(), reference[name]) <= 1e-6, name
        assert relative_error(g.flatten(), reference[name]) <= bounds[name], name


def test_inputs_with_gaps(device):
    shape = 1, 2, 40, 32, 48
    tensors = draw(shape, torch.bfloat16, device, grad=True)
    # As a model has them: (B, S, NH, D), seen as (B, NH, S, D).
    gaps = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in tensors]
    assert not gaps[0].is_contiguous()
    h, expected = vlstm.mlstm(*gaps), vlstm.mlstm(*tensors)
    assert torch.equal(h, expected)
    dh = torch.ones_like(h)
    for got, wanted in zip(torch.autograd.grad(h, gaps, dh), torch.autograd.grad(expected, tensors, dh)):
        assert torch.equal(got, wanted)


def test_one_tensor_for_several_arguments(device):
    q, _, _, i, _ = draw((1, 2, 40, 32, 32), torch.float32, device, grad=True)
    h = vlstm.mlstm(q, q, q, i, i)
    assert relative_error(h, equations(q, q, q, i, i)[0]) <= 1e-5
    (got,) = torch.autograd.grad(h.sum(), [q])
    copy = q.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(equations(copy, copy, copy, i, i)[0].sum(), [copy])
    assert relative_error(got, expected) <= 5e-5


def test_gates_in_halves(device):
    q, k, v, i, f = draw((1, 2, 40, 32, 32), torch.bfloat16, device)
    i, f = i.bfloat16().requires_grad_(), f.bfloat16().requires_grad_()
    h = vlstm.mlstm(q, k, v, i, f)
    assert torch.equal(h, vlstm.mlstm(q, k, v, i.float(), f.float()))
    assert [g.dtype for g in torch.autograd.grad(h.sum(), [i, f])] == [torch.bfloat16] * 2


def test_gates_in_float64_and_a_scalar_of_numpy(device):
    numpy = pytest.importorskip("numpy")
    q, k, v, i, f = draw((1, 2, 40, 32, 32), torch.bfloat16, device)
    expected = vlstm.mlstm(q, k, v, i, f, eps=float(numpy.float32(1e-3)))
    i, f = i.double().requires_grad_(), f.double().requires_grad_()
    for eps in (numpy.float32(1e-3), numpy.float64(numpy.float32(1e-3))):
        h = vlstm.mlstm(q, k, v, i, f, eps=eps)
        assert torch.equal(h, expected)
        assert [g.dtype for g in torch.autograd.grad(h.sum(), [i, f])] == [torch.float64] * 2


@pytest.mark.parametrize("asked, expected", [(None, torch.bfloat16), (torch.float16, torch.float16)])
def test_autocast(asked, expected, device):
    tensors = draw((1, 1, 40, 32, 32), torch.float32, device, grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        h = vlstm.mlstm(*tensors, autocast_kernel_dtype=asked)
    assert h.dtype == expected
    halves = [t.detach().to(expected) for t in tensors[:3]]
    assert torch.equal(h, vlstm.mlstm(*halves, *(t.detach() for t in tensors[3:])))
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(h.float().sum(), tensors))


def test_versions_by_name(device):
    tensors = draw((1, 2, 70, 32, 48), torch.bfloat16, device, grad=True)
    expected = equations(*tensors)[0]
    for name, _, dtypes in vlstm.versions()["forward"]:
        if "bf16" in dtypes and (device == "cpu" or torch.cuda.get_device_capability() >= (9, 0)):
            assert relative_error(vlstm.mlstm(*tensors, version=name), expected) <= 8e-3, name
    both = vlstm.mlstm(*tensors, version="vlstm_fw_v1:online, vlstm_fwbw_v1:ahead")
    (got,) = torch.autograd.grad(both.sum(), tensors[:1])
    (wanted,) = torch.autograd.grad(expected.sum(), tensors[:1])
    assert relative_error(got, wanted) <= 8e-3


@pytest.mark.parametrize("exact", [False, True], ids=["constant", "exact"])
@pytest.mark.parametrize("given", [False, True])
def test_what_the_forward_pass_leaves_is_as_good_as_making_it_again(given, exact, device):
    shape = 1, 2, 330, 32, 48
    tensors = draw(shape, torch.bfloat16, device)
    state = draw_state(shape, device) if given else None
    state = [*state[:2], state[2].reshape(1, 2), None] if given else [None] * 4
    settings = True, 1e-6, exact, "vlstm_fwbw_v4:v1_together" if device == "cpu" else "auto"
    *results, rows_m, rows_n, left = _ops.saving(*tensors, *state, *settings)
    assert left.numel() > 0
    dh, dc, dn = (torch.ones_like(t) for t in results[:3])
    nothing = [None] * 7
    again = _ops.backward(dh, dc, dn, *tensors, *state, *nothing, *settings)
    for _ in range(2):
        got = _ops.backward(dh, dc, dn, *tensors, *state, *results, rows_m, rows_n, left, *settings)
        for g, expected in zip(got, again):
            assert torch.equal(g, expected)


def test_the_result_may_be_changed_where_the_backward_pass_does_not_read_it(device):
    tensors = draw((1, 2, 70, 32, 48), torch.bfloat16, device, grad=True)
    version = "vlstm_fwbw_v4:v1_together" if device == "cpu" else "auto"
    expected = torch.autograd.grad((vlstm.mlstm(*tensors, version=version) * 2).sum(), tensors)
    got = torch.autograd.grad(vlstm.mlstm(*tensors, version=version).mul_(2).sum(), tensors)
    for g, e in zip(got, expected):
        assert torch.equal(g, e)
    h = vlstm.mlstm(*tensors, version=version, normalizer_grad="exact").mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(h.sum(), tensors)
