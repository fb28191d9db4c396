"""The operations as PyTorch sees them: opcheck, compiled code, fake tensors, threads."""

import threading

import pytest
import torch
from conftest import draw, draw_state, equations, relative_error

import vlstm

SHAPE = 1, 2, 40, 32, 48


def with_state(dtype, device, grad=False):
    c, n, m = draw_state(SHAPE, device, grad=grad)
    return [*draw(SHAPE, dtype, device, grad=grad), c, n, m.reshape(m.shape[:2])]


def samples(device):
    """Arguments of `torch.ops.vlstm.mlstm`."""
    none = [None, None, None, None]
    yield [*draw(SHAPE, torch.float32, device), *none, False, 1e-6, False, "auto"]
    yield [*draw(SHAPE, torch.float32, device, grad=True), *none, False, 1e-6, True, "auto"]
    yield [*with_state(torch.bfloat16, device), None, True, 1e-6, False, "auto"]
    yield [*with_state(torch.float16, device, grad=True), None, True, 0.0, False, "auto"]


@pytest.mark.parametrize("sample", range(4))
def test_opcheck(sample, device):
    arguments = list(samples(device))[sample]
    # The last compares all outputs: on a GPU the bytes that are left hold gaps that nobody writes.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    tests = tests if device == "cpu" else tests[:3]
    torch.library.opcheck(torch.ops.vlstm.mlstm_saving.default, arguments, test_utils=tests)
    arguments = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments]
    torch.library.opcheck(torch.ops.vlstm.mlstm.default, arguments)


def test_opcheck_of_the_backward_pass(device):
    q, k, v, i, f = draw(SHAPE, torch.float32, device)
    arguments = [v, None, None, q, k, v, i, f, *[None] * 11, False, 1e-6, False, "auto"]
    torch.library.opcheck(torch.ops.vlstm.mlstm_backward.default, arguments)
    tensors = with_state(torch.bfloat16, device)
    arguments = [tensors[2], tensors[5], None, *tensors, *[None] * 8, True, 1e-6, True, "auto"]
    torch.library.opcheck(torch.ops.vlstm.mlstm_backward.default, arguments)


def test_opcheck_of_the_step(device):
    q, k, v, i, f, *state = with_state(torch.float32, device)
    row = [t[:, :, 0].contiguous() for t in (q, k, v, i, f)]
    torch.library.opcheck(torch.ops.vlstm.mlstm_step.default, [*row, *state, 1e-6, "auto"])


def test_compiled_as_one_graph(device):
    def loss(q, k, v, i, f):
        h = vlstm.mlstm(q * 2, k, v, i, f)
        return (h.float() ** 2).sum()

    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    for shape in (SHAPE, (2, 1, 50, 16, 16)):
        tensors = draw(shape, torch.float32, device, grad=True)
        expected = loss(*tensors)
        got = compiled(*tensors)
        assert torch.allclose(got, expected, rtol=1e-4)
        wanted = torch.autograd.grad(expected, tensors)
        for g, w in zip(torch.autograd.grad(got, tensors), wanted):
            assert relative_error(g, w) <= 1e-4


def test_compiled_with_states(device):
    def walk(*tensors):
        h, (c, n, m) = vlstm.mlstm(*tensors, return_last_states=True)
        return h * 2, c, n, m

    tensors = [t.detach() for t in with_state(torch.bfloat16, device)]
    backend = "inductor" if device == "cuda" else "aot_eager"
    for got, expected in zip(torch.compile(walk, fullgraph=True, backend=backend)(*tensors), walk(*tensors)):
        assert torch.equal(got, expected)


def test_compiled_step(device):
    def step(*tensors):
        h, state = vlstm.mlstm_step(*tensors)
        return h + 1, *state

    q, k, v, i, f, *state = with_state(torch.float32, device)
    arguments = [*(t[:, :, 0] for t in (q, k, v, i, f)), *state]
    before = [t.clone() for t in arguments]
    backend = "inductor" if device == "cuda" else "aot_eager"
    got = torch.compile(step, fullgraph=True, backend=backend)(*arguments)
    for g, expected in zip(got, step(*arguments)):
        assert torch.equal(g, expected)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before))


def test_double_backward_is_refused(device):
    tensors = draw(SHAPE, torch.float32, device, grad=True)
    (dq,) = torch.autograd.grad(vlstm.mlstm(*tensors).sum(), tensors[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="vlstm.mlstm: expected to be differentiated once"):
        torch.autograd.grad(dq.sum(), tensors[1])


def test_backward_twice_of_one_forward(device):
    tensors = draw(SHAPE, torch.bfloat16, device, grad=True)
    h = vlstm.mlstm(*tensors)
    first = torch.autograd.grad(h.sum(), tensors, retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(h.sum(), tensors)):
        assert torch.equal(a, b)


def test_inputs_changed_in_place_are_noticed(device):
    tensors = draw(SHAPE, torch.float32, device, grad=True)
    v = tensors[2] * 1
    h = vlstm.mlstm(*tensors[:2], v, *tensors[3:])
    v.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


def test_fake_tensors_have_the_shapes_and_types(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = with_state(torch.bfloat16, device)
    expected = vlstm.mlstm(*real, return_last_states=True)
    with FakeTensorMode() as mode:
        h, state = vlstm.mlstm(*(mode.from_tensor(t) for t in real), return_last_states=True)
    for fake, tensor in zip((h, *state), (expected[0], *expected[1])):
        assert (fake.shape, fake.dtype, fake.device) == (tensor.shape, tensor.dtype, tensor.device)
        assert fake.stride() == tensor.stride()


def test_two_threads(device):
    failures = []

    def work(seed):
        try:
            for turn in range(4):
                tensors = draw(SHAPE, torch.float32, device, seed=seed + turn, grad=True)
                h = vlstm.mlstm(*tensors)
                assert relative_error(h, equations(*tensors)[0]) <= 1e-5
                got = torch.autograd.grad(h.sum(), tensors)
                copies = [t.detach().double().requires_grad_() for t in tensors]
                wanted = torch.autograd.grad(equations(*copies)[0].sum(), copies)
                assert all(relative_error(g, w) <= 5e-5 for g, w in zip(got, wanted))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_tensors_without_memory(grad, dtype, device):
    tensors = draw(SHAPE, dtype, device, grad=grad)
    # Calls that were made before are remembered by what their tensors are.
    expected = [vlstm.mlstm(*tensors) for _ in range(2)][0]
    meta = [t.detach().to("meta").requires_grad_(grad) for t in tensors]
    h, (c, n, m) = vlstm.mlstm(*meta, return_last_states=True)
    assert all(t.is_meta for t in (h, c, n, m)) and vlstm.mlstm(*meta).shape == expected.shape
    assert (h.dtype, c.shape, m.shape) == (dtype, (1, 2, 32, 48), (1, 2, 1))
    if grad:
        gradients = torch.autograd.grad(vlstm.mlstm(*meta).sum(), meta)
        assert [g.shape for g in gradients] == [t.shape for t in tensors]
    row, state = [t[:, :, 0].detach() for t in tensors], [torch.zeros_like(t, device=device) for t in (c, n, m)]
    vlstm.mlstm_step(*row, *state, inplace=True), vlstm.mlstm_step(*row, *state, inplace=True)
    h, _ = vlstm.mlstm_step(*(t.to("meta") for t in row), *(t.to("meta") for t in state), inplace=True)
    assert h.is_meta and h.shape == (1, 2, 48)
    with pytest.raises(ValueError, match="k: expected a tensor on .*, as q, got one on meta"):
        vlstm.mlstm(tensors[0], meta[1], *tensors[2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(0, 2, 40, 32, 48), (3, 2, 0, 32, 48)], ids=str)
def test_no_sequence_and_no_position(shape, dtype, device):
    tensors = draw(shape, dtype, device, grad=True)
    h, (c, n, m) = vlstm.mlstm(*tensors, return_last_states=True)
    assert h.shape == tensors[2].shape and h.dtype == dtype
    assert c.shape == (shape[0], 2, 32, 48) and (c == 0).all() and (n == 0).all() and (m == -torch.inf).all()
    assert all((g == 0).all() for g in torch.autograd.grad(h.sum(), tensors))
    state = draw_state(shape, device)
    for got, expected in zip(vlstm.mlstm(*tensors, *state, return_last_states=True)[1], state):
        assert torch.equal(got, expected)
