"""Tracers, compilers of any length, torch.func, gradients that are batched: as the same call alone, or refused."""

import pytest
import torch
from conftest import draw, relative_error
from torch.autograd import forward_ad

import vlstm

SHAPE = 3, 2, 20, 16, 32


class Mlstm(torch.nn.Module):
    def forward(self, q, k, v, i, f):
        return vlstm.mlstm(q, k, v, i, f)


def lstm(device):
    torch.manual_seed(0)
    return vlstm.LSTM(4, 6, 2, bidirectional=True).to(device), torch.randn(5, 3, 4, device=device)


def loss(*tensors):
    return vlstm.mlstm(*tensors).square().sum()


# ---- torch.jit.trace -----------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
def test_a_trace_has_the_kernels(grad, device):
    traced = torch.jit.trace(Mlstm(), tuple(draw(SHAPE, torch.float32, device, grad=grad)))
    for shape in (SHAPE, (1, 2, 33, 16, 32)):
        tensors = draw(shape, torch.float32, device, seed=5, grad=grad)
        # A trace leaves what a backward pass needs: on a GPU another version does that than the one without gradients.
        assert relative_error(traced(*tensors), vlstm.mlstm(*tensors)) <= (0 if grad or device == "cpu" else 1e-6)
    if grad:
        tensors = draw(SHAPE, torch.float32, device, seed=6, grad=True)
        got, expected = (torch.autograd.grad(h.sum(), tensors) for h in (traced(*tensors), vlstm.mlstm(*tensors)))
        assert all(torch.equal(g, e) for g, e in zip(got, expected))


def test_a_trace_of_an_lstm(device):
    own, x = lstm(device)
    traced = torch.jit.trace(own, (x,), check_trace=False)
    other = torch.randn(7, 2, 4, device=device)
    assert torch.equal(traced(other)[0], own(other)[0])


# ---- compiled for any length ---------------------------------------------------------------------


def graphs_of(function, calls):
    """How many graphs it takes to make all these calls."""
    torch._dynamo.reset()
    count = 0

    def backend(module, inputs):
        nonlocal count
        count += 1
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        for call in calls:
            inputs = call()
            got, expected = compiled(*inputs), function(*inputs)
            assert relative_error(got, expected) <= 1e-5
            wanted = [t for t in inputs if t.requires_grad]
            for g, e in zip(torch.autograd.grad(got.sum(), wanted), torch.autograd.grad(expected.sum(), wanted)):
                assert relative_error(g, e) <= (2e-2 if g.dtype == torch.bfloat16 else 1e-4)
    return count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_graph_for_all_lengths(dtype, device):
    version = "vlstm_fwbw_v4:v2_segments" if dtype == torch.bfloat16 and device == "cpu" else "auto"
    calls = [lambda s=s: draw((1, 2, s, 16, 32), dtype, device, grad=True) for s in (*range(20, 31), 64, 129, 700)]
    # The first is of its own sizes.
    assert graphs_of(lambda *tensors: vlstm.mlstm(*tensors, version=version).float(), calls) == 2


def test_one_graph_for_all_lengths_of_an_lstm(device):
    own, _ = lstm(device)
    calls = [lambda t=t: [torch.randn(t, 3, 4, device=device, requires_grad=True)] for t in (*range(3, 14), 40)]
    assert graphs_of(lambda x: own(x)[0].square(), calls) == 2


# ---- forward-mode differentiation ----------------------------------------------------------------


def test_forward_mode_is_refused(device):
    tensors = draw(SHAPE, torch.float32, device)
    own, x = lstm(device)
    message = "expected tensors without tangents, got forward-mode differentiation"
    with pytest.raises(NotImplementedError, match=f"vlstm.mlstm: {message}"):
        torch.func.jvp(lambda q: loss(q, *tensors[1:]), (tensors[0],), (tensors[0],))
    with pytest.raises(NotImplementedError, match=f"vlstm.mlstm: {message}"):
        torch.func.jacfwd(lambda f: loss(*tensors[:4], f))(tensors[4])
    with pytest.raises(NotImplementedError, match=f"vlstm.LSTM: {message}"):
        torch.func.jvp(lambda a: own(a)[0], (x,), (x,))
    # Forward over reverse.
    with pytest.raises(NotImplementedError, match=f"vlstm.mlstm: {message}"):
        torch.func.hessian(lambda q: loss(q, *tensors[1:]))(tensors[0])
    for again in (torch.func.hessian, lambda f: lambda a: torch.func.jvp(torch.func.grad(f), (a,), (a,))):
        with pytest.raises(NotImplementedError, match=f"vlstm.LSTM: {message}"):
            again(lambda a: own(a)[0].sum())(x)
    row, state = [t[:, :, 0] for t in tensors], [torch.zeros(sizes, device=device) for sizes in ((3, 2, 16, 32), (3, 2, 16), (3, 2))]
    with forward_ad.dual_level():
        for at in range(5):
            duals = [forward_ad.make_dual(t, t) if n == at else t for n, t in enumerate(tensors)]
            with pytest.raises(NotImplementedError, match=f"vlstm.mlstm: {message}"):
                vlstm.mlstm(*duals)
        with pytest.raises(NotImplementedError, match=f"vlstm.LSTM: {message}"):
            own(forward_ad.make_dual(x, x))
        with pytest.raises(NotImplementedError, match=f"vlstm.mlstm_step: {message}"):
            vlstm.mlstm_step(forward_ad.make_dual(row[0], row[0]), *row[1:], *state)
        # A level alone is nothing.
        assert torch.equal(vlstm.mlstm(*tensors), vlstm.mlstm(*[t.clone() for t in tensors]))


# ---- torch.func ----------------------------------------------------------------------------------


def test_func_grad(device):
    tensors = draw(SHAPE, torch.float32, device)
    got = torch.func.grad(loss, argnums=(0, 1, 2, 3, 4))(*tensors)
    leaves = [t.clone().requires_grad_() for t in tensors]
    for g, e in zip(got, torch.autograd.grad(loss(*leaves), leaves)):
        assert torch.equal(g, e)


def test_func_grad_with_states(device):
    tensors = draw(SHAPE, torch.bfloat16, device)
    _, state = vlstm.mlstm(*tensors, return_last_states=True)

    def of_state(c, n):
        h, (last_c, last_n, _) = vlstm.mlstm(*tensors, c, n, state[2], return_last_states=True)
        return h.float().sum() + last_c.square().sum() + last_n.sum()

    got = torch.func.grad(of_state, argnums=(0, 1))(*state[:2])
    leaves = [t.clone().requires_grad_() for t in state[:2]]
    for g, e in zip(got, torch.autograd.grad(of_state(*leaves), leaves)):
        assert torch.equal(g, e)


def test_vmap_and_gradients_of_each_sample(device):
    tensors = draw(SHAPE, torch.float32, device)

    def of_sample(*sample):
        return loss(*(t[None] for t in sample))

    h = torch.func.vmap(lambda *sample: vlstm.mlstm(*(t[None] for t in sample))[0])(*tensors)
    assert torch.equal(h, torch.cat([vlstm.mlstm(*(t[n : n + 1] for t in tensors)) for n in range(3)]))
    got = torch.func.vmap(torch.func.grad(of_sample, argnums=(0, 1, 2, 3, 4)))(*tensors)
    for n in range(3):
        leaves = [t[n].clone().requires_grad_() for t in tensors]
        for g, e in zip(got, torch.autograd.grad(of_sample(*leaves), leaves)):
            assert torch.equal(g[n], e)
    # Another place of the batch, and arguments that have none.
    q = tensors[0].movedim(0, 2)
    h = torch.func.vmap(lambda a: vlstm.mlstm(a[None], *(t[:1] for t in tensors[1:])), in_dims=2, out_dims=1)(q)
    for n in range(3):
        assert torch.equal(h[:, n], vlstm.mlstm(tensors[0][n : n + 1], *(t[:1] for t in tensors[1:])))


def test_func_of_an_lstm(device):
    own, x = lstm(device)
    parameters = {name: p.detach() for name, p in own.named_parameters()}

    def of_module(values, a):
        return torch.func.functional_call(own, values, (a,))[0].square().sum()

    got = torch.func.grad(of_module)(parameters, x)
    expected = torch.autograd.grad(own(x)[0].square().sum(), list(own.parameters()))
    for g, e in zip(got.values(), expected):
        assert torch.equal(g, e)
    of_each = torch.func.vmap(torch.func.grad(lambda values, a: of_module(values, a[:, None])), in_dims=(None, 1))
    for n in range(3):
        expected = torch.autograd.grad(own(x[:, n : n + 1])[0].square().sum(), list(own.parameters()))
        for g, e in zip(of_each(parameters, x).values(), expected):
            assert torch.equal(g[n], e)
    jacobian = torch.func.jacrev(lambda a: own(a)[0].sum((0, 1)))(x)
    assert torch.allclose(jacobian, torch.autograd.functional.jacobian(lambda a: own(a)[0].sum((0, 1)), x), atol=1e-6)


def test_gradients_that_are_batched(device):
    tensors = draw(SHAPE, torch.float32, device, grad=True)
    own, x = lstm(device)
    x.requires_grad_()
    for result, inputs in ((vlstm.mlstm(*tensors), tensors), (own(x)[0], [x, *own.parameters()])):
        outer = torch.randn(2, *result.shape, device=device)
        got = torch.autograd.grad(result, inputs, outer, is_grads_batched=True, retain_graph=True)
        for n in range(2):
            for g, e in zip(got, torch.autograd.grad(result, inputs, outer[n], retain_graph=True)):
                assert torch.equal(g[n], e)


def test_batched_gradients_of_another_thread():
    """Autograd makes those of CUDA tensors in a thread of its own, which has entered no level of the batch."""
    from concurrent.futures import ThreadPoolExecutor

    from vlstm import _ops

    def both(a, b):
        return a.sum() * b, None

    def in_a_thread(x, scale):
        assert _ops.is_batched((x,))
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: _ops.each_of_batch(both, (x, scale))[0]).result()

    x, scale = torch.arange(6.0).reshape(3, 2), torch.tensor([1.0, 10.0])
    got = torch._vmap_internals._vmap(lambda a: in_a_thread(a, scale))(x)
    assert torch.equal(got, x.sum(1, keepdim=True) * scale)
    nested = torch._vmap_internals._vmap(torch._vmap_internals._vmap(lambda a: in_a_thread(a, scale)))(torch.stack([x, 2 * x]))
    assert torch.equal(nested, torch.stack([got, 2 * got]))


def test_what_is_refused_of_torch_func(device):
    tensors = draw(SHAPE, torch.float32, device)
    own, x = lstm(device)
    for function, at, name in ((lambda q: loss(q, *tensors[1:]), tensors[0], "mlstm"), (lambda a: own(a)[0].square().sum(), x, "LSTM")):
        with pytest.raises(NotImplementedError, match=f"vlstm.{name}: expected to be differentiated once"):
            torch.func.grad(lambda a, of=function: torch.func.grad(of)(a).sum())(at)
    row = [t[:, :, 0] for t in tensors]
    state = [torch.zeros(sizes, device=device) for sizes in ((3, 2, 16, 32), (3, 2, 16), (3, 2))]
    with pytest.raises(NotImplementedError, match="vlstm.mlstm_step: expected tensors with their batch in B, got torch.vmap"):
        torch.func.vmap(lambda *a: vlstm.mlstm_step(*(t[None] for t in a))[0])(*row, *state)
    model = vlstm.MLP(20, 8, 16, device=device)
    ids = torch.randint(20, (3, 4), device=device)
    with pytest.raises(NotImplementedError, match="vlstm.mlp_step: expected tensors with their batch in B, got torch.vmap"):
        torch.func.vmap(lambda a: model.training_step(a, a, 0.1))(ids)
