"""`vlstm.linear_attention` against the recurrence in float64, written in plain PyTorch."""

import pytest
import torch
from conftest import relative_error
from torch.nn.functional import logsigmoid

import vlstm
from vlstm import _linear

# B, T, H, HV, K, V: one position of several heads; heads that share keys, more than a chunk; three chunks, unlike widths.
SHAPES = [(2, 1, 2, 4, 32, 48), (2, 70, 2, 4, 32, 16), (1, 130, 1, 2, 16, 48)]
# Of o and states, of gradients.
BOUNDS = {torch.float32: (2e-6, 8e-6), torch.float16: (1e-3, 1.2e-3), torch.bfloat16: (8e-3, 1.2e-2)}
HALVES = [torch.float16, torch.bfloat16]
NAMES = "q", "k", "v", "g"


@pytest.fixture(autouse=True)
def the_same_gradients_from_above():
    torch.manual_seed(0)


def draw(shape, dtype, device, seed=0, grad=False):
    """q, k, v and g, gates that keep about 95 %."""
    batch, positions, heads, value_heads, keys, values = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        return torch.randn(batch, positions, *sizes, generator=generator)

    q, k, v, g = normal(heads, keys), normal(heads, keys), normal(value_heads, values), logsigmoid(3 + normal(value_heads))
    tensors = [t.to(device, dtype) for t in (q, k, v)] + [g.to(device, torch.float64 if dtype == torch.float64 else torch.float32)]
    return [t.requires_grad_(grad) for t in tensors]


def draw_state(shape, device, grad=False):
    batch, _, _, value_heads, keys, values = shape
    state = torch.randn(batch, value_heads, keys, values, generator=torch.Generator().manual_seed(1))
    return state.to(device).requires_grad_(grad)


def recurrence(q, k, v, g, w=None, state=None, scale=None):
    """o and the last state in float64, of the documentation's equations, from position to position."""
    q, k, v, g = (t.double() for t in (q, k, v, g))
    group = v.shape[2] // q.shape[2]
    q, k = (t.repeat_interleave(group, 2) for t in (q, k))
    v = v if w is None else v * w.double()[..., None]
    c = q.new_zeros(q.shape[0], v.shape[2], q.shape[3], v.shape[3]) if state is None else state.double()
    rows = []
    for t in range(q.shape[1]):
        c = g[:, t, :, None, None].exp() * c + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        rows.append(torch.einsum("bhkv,bhk->bhv", c, q[:, t]) * (scale or q.shape[3] ** -0.5))
    return torch.stack(rows, 1), c


def exact_copies(tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


def assert_gradients(tensors, exact, bound, names=NAMES):
    """Where all are nearly 0, as of the first gate, the largest gradient says how large an error is."""
    most = max(float(t.grad.norm()) for t in exact)
    for name, got, wanted in zip(names, tensors, exact):
        assert got.grad.dtype == got.dtype and got.grad.shape == got.shape, name
        wrong = got.grad.double() - wanted.grad
        assert wrong.norm() <= bound * wanted.grad.norm() + 1e-7 * most, name
        assert wrong.abs().max() <= 4 * bound * wanted.grad.abs().max() + 1e-7 * most, name


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_gradients(shape, dtype, device):
    tensors = draw(shape, dtype, device, grad=True)
    o, last = vlstm.linear_attention(*tensors)
    assert last is None and o.dtype == dtype and o.is_contiguous()
    exact = exact_copies(tensors)
    expected, _ = recurrence(*exact)
    of_o, of_gradients = BOUNDS[dtype]
    assert relative_error(o, expected) <= of_o
    upstream = torch.randn_like(o)
    o.backward(upstream)
    expected.backward(upstream.double())
    assert_gradients(tensors, exact, of_gradients)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_states_and_their_gradients(dtype, device):
    shape = SHAPES[1]
    tensors, state = draw(shape, dtype, device, grad=True), draw_state(shape, device, grad=True)
    o, last = vlstm.linear_attention(*tensors, None, 0.3, state, True)
    *exact, exact_state = exact_copies([*tensors, state])
    expected, exact_last = recurrence(*exact, None, exact_state, 0.3)
    of_o, of_gradients = BOUNDS[dtype]
    assert last.dtype == torch.float32
    assert relative_error(o, expected) <= of_o and relative_error(last, exact_last) <= of_o
    upstream, of_last = torch.randn_like(o), torch.randn_like(last)
    torch.autograd.backward([o, last], [upstream, of_last])
    torch.autograd.backward([expected, exact_last], [upstream.double(), of_last.double()])
    assert_gradients([*tensors, state], [*exact, exact_state], of_gradients, (*NAMES, "state"))


def test_weights_gates_and_other_orders(device):
    """As Mamba-2, RetNet and the layers of flash-linear-attention ask for them."""
    shape = 2, 70, 1, 2, 32, 16
    q, k, v, g = draw(shape, torch.bfloat16, device)
    w = torch.rand(g.shape, generator=torch.Generator().manual_seed(2)).to(device).requires_grad_()
    state = draw_state(shape, device)
    o, last = vlstm.linear_attention(q, k, v, g, None, 1.0, state.mT.contiguous(), True, w=w, state_v_first=True)
    exact_w = w.detach().double().requires_grad_()
    expected, exact_last = recurrence(q, k, v, g, exact_w, state, 1.0)
    assert relative_error(o, expected) <= 8e-3 and relative_error(last.mT, exact_last) <= 8e-3
    upstream = torch.randn_like(o)
    o.backward(upstream)
    expected.backward(upstream.double())
    assert relative_error(w.grad, exact_w.grad) <= 1.2e-2
    *turned, turned_w = (t.transpose(1, 2) for t in (q, k, v, g, w))
    again, _ = vlstm.linear_attention(*turned, None, 1.0, state, w=turned_w, head_first=True)
    assert torch.equal(again.transpose(1, 2), o)
    gamma = torch.tensor([-0.1, -0.01], device=device)
    of_head, _ = vlstm.linear_attention(q, k, v, None, gamma)
    assert torch.equal(of_head, vlstm.linear_attention(q, k, v, gamma.expand(2, 70, 2))[0])
    assert torch.equal(vlstm.linear_attention(q, k, v)[0], vlstm.linear_attention(q, k, v, torch.zeros_like(g))[0])
    assert torch.equal(vlstm.linear_attention(q, k, v, g, None, -0.5)[0], -vlstm.linear_attention(q, k, v, g, None, 0.5)[0])


def test_float64_and_its_gradients():
    shape = 1, 70, 1, 2, 5, 3
    tensors, state = draw(shape, torch.float64, "cpu"), draw_state(shape, "cpu").double()
    tensors[3] = tensors[3].clone()
    tensors[3][0, 40] = -torch.inf
    o, last = vlstm.linear_attention(*tensors, initial_state=state, output_final_state=True)
    expected, exact_last = recurrence(*tensors, None, state)
    assert relative_error(o, expected) <= 1e-13 and relative_error(last, exact_last) <= 1e-13
    inputs = exact_copies([*draw((1, 6, 1, 2, 5, 3), torch.float64, "cpu"), state])
    w = torch.rand(1, 6, 2, dtype=torch.float64, requires_grad=True)
    given = [*inputs[:4], w, inputs[4]]
    assert torch.autograd.gradcheck(lambda *t: vlstm.linear_attention(*t[:4], None, None, t[5], True, w=t[4]), given)


def test_one_compiled_graph_for_all_lengths(device):
    torch._dynamo.reset()
    count = 0

    def backend(module, inputs):
        nonlocal count
        count += 1
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    def loss(*tensors):
        o, last = vlstm.linear_attention(*tensors, output_final_state=True)
        return o.float().square().sum() + last.sum()

    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    for positions in (20, 21, 30):
        tensors = draw((1, positions, 1, 2, 16, 16), torch.bfloat16, device, grad=True)
        got, expected = (torch.autograd.grad(f(*tensors), tensors) for f in (compiled, loss))
        assert all(relative_error(a, b) <= 2e-2 for a, b in zip(got, expected))
    assert count == 2


def test_no_sequence_and_no_position(device):
    for shape in ((0, 5, 1, 2, 16, 16), (2, 0, 1, 2, 16, 16)):
        tensors = draw(shape, torch.bfloat16, device, grad=True)
        o, last = vlstm.linear_attention(*tensors, output_final_state=True)
        assert o.shape == tensors[2].shape and last.shape == (shape[0], 2, 16, 16) and not last.any()
        o.sum().backward()
        assert all(t.grad.shape == t.shape for t in tensors)


WRONG = [
    (TypeError, {"q": [1.0]}, "q: expected a torch.Tensor, got list"),
    (ValueError, {"v": lambda t: t[:, :, :3]}, "v: expected a multiple of H = 2 heads, got HV = 3"),
    (ValueError, {"g": lambda t: t[..., :2]}, r"g: expected shape \(1, 20, 4\), got \(1, 20, 2\)"),
    (ValueError, {"w": torch.ones(1, 20, 3)}, r"w: expected shape \(1, 20, 4\), got \(1, 20, 3\)"),
    (ValueError, {"g_gamma": torch.zeros(4)}, "g_gamma: expected None with g, got both"),
    (ValueError, {"g": None, "g_gamma": torch.zeros(3)}, r"g_gamma: expected shape \(4,\), got \(3,\)"),
    (ValueError, {"scale": 0.0}, "scale: expected a finite number other than 0, got 0.0"),
    (TypeError, {"cu_seqlens": torch.tensor([0.0, 20])}, "cu_seqlens: expected torch.int32 or torch.int64, got torch.float32"),
    (ValueError, {"cu_seqlens": torch.tensor([0, 15, 12, 20])}, "cu_seqlens: expected numbers that rise from 0 to 20"),
    (ValueError, {"version": "v9"}, "version: expected auto or of vlstm_fw_v4:v5_decay, .* got 'v9'"),
]


@pytest.mark.parametrize("kind, changed, message", WRONG, ids=lambda w: next(iter(w)) if isinstance(w, dict) else "")
def test_what_is_refused(kind, changed, message):
    given = dict(zip(NAMES, draw((1, 20, 2, 4, 16, 32), torch.bfloat16, "cpu")))
    for name, change in changed.items():
        given[name] = change(given[name]) if callable(change) else change
    with pytest.raises(kind, match=message):
        vlstm.linear_attention(**given)


def call_linear(q, k, v, g):
    return vlstm.linear_attention(q, k, v, g, head_first=True)[0]


def call_sigmoid(q, k, v, f):
    return vlstm.mlstm_sig(q, k, v, f, f, normalize=False)


@pytest.mark.parametrize("function, name", [(call_linear, "linear_attention"), (call_sigmoid, "mlstm_sig")])
def test_what_has_no_derivative_is_refused_by_the_name_of_the_function(function, name, device):
    tensors = [t.transpose(1, 2) for t in draw((1, 20, 2, 2, 16, 16), torch.bfloat16, device)]
    tangents = f"vlstm.{name}: expected tensors without tangents"
    with pytest.raises(NotImplementedError, match=tangents):
        torch.func.jvp(function, tuple(tensors), tuple(tensors))

    def loss(*given):
        return function(*given).float().square().sum()

    with pytest.raises(NotImplementedError, match=tangents):
        torch.func.hessian(loss)(*tensors)
    twice = f"vlstm.{name}: expected to be differentiated once"
    inputs = [t.clone().requires_grad_() for t in tensors]
    (first,) = torch.autograd.grad(loss(*inputs), inputs[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match=twice):
        first.sum().backward()
    with pytest.raises(NotImplementedError, match=twice):
        torch.func.grad(lambda *given: torch.func.grad(loss)(*given).float().sum())(*tensors)


def test_the_plain_form_is_the_recurrence():
    tensors = draw((2, 150, 2, 4, 8, 6), torch.float64, "cpu")
    own, last = _linear.plain(*(t.transpose(1, 2) for t in tensors), None, None, None)
    expected, exact_last = recurrence(*tensors)
    assert relative_error(own.transpose(1, 2), expected) <= 1e-13 and relative_error(last, exact_last) <= 1e-13


def test_gates_behind_shut_ones_in_float32(device):
    """Sums of shut gates are large: the gates between them must not be rounded to their last digit."""
    tensors = draw((1, 70, 2, 2, 16, 16), torch.float32, device, grad=True)
    with torch.no_grad():
        tensors[3][:, 3:60:6] = -torch.inf
    exact = exact_copies(tensors)
    (o, last), (expected, exact_last) = (vlstm.linear_attention(*t, output_final_state=True) for t in (tensors, exact))
    assert relative_error(o, expected) <= 1e-6 and relative_error(last, exact_last) <= 1e-6
    rows = [tensors[i].detach().transpose(1, 2) for i in (0, 1, 2, 3, 3)]
    h, wanted = (vlstm.mlstm_sig(*given, normalize=False) for given in (rows, [t.double() for t in rows]))
    assert relative_error(h, wanted) <= 1e-6
    upstream = torch.randn_like(o)
    o.backward(upstream)
    expected.backward(upstream.double())
    assert_gradients(tensors, exact, 4e-6)
    assert not tensors[3].grad[:, 3:60:6].any()


def test_sigmoid_gates_without_a_normaliser(device):
    """mLSTMsig as `mlstm_sig` has it."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, 70, d, generator=generator).to(device, torch.bfloat16).requires_grad_() for d in (16, 16, 32))
    i, f = (torch.randn(1, 2, 70, generator=generator).to(device).requires_grad_() for _ in range(2))
    state = draw_state((1, 70, 2, 2, 16, 32), device)
    h, c = vlstm.mlstm_sig(q, k, v, i, f, state, return_last_states=True, normalize=False)
    exact = exact_copies([q, k, v, i, f])
    rows = [t.transpose(1, 2) for t in (*exact[:3], logsigmoid(exact[4]), exact[3].sigmoid())]
    expected, last = recurrence(*rows, state)
    assert relative_error(h.transpose(1, 2), expected) <= 8e-3 and relative_error(c, last) <= 8e-3
    upstream = torch.randn_like(h)
    h.backward(upstream)
    expected.backward(upstream.transpose(1, 2).double())
    assert_gradients([q, k, v, i, f], exact, 1.2e-2, ("q", "k", "v", "i", "f"))
    with pytest.raises(ValueError, match="n_initial: expected None with normalize=False, got Tensor"):
        vlstm.mlstm_sig(q, k, v, i, f, state, state[..., 0], normalize=False)


# ---- one position ---------------------------------------------------------------------------------


# The type of q, that of a state which is updated where it lies; of o behind a prompt by the kernels over chunks.
STEPS = [(torch.float32, torch.float32), *((dtype, torch.float32) for dtype in HALVES), (torch.bfloat16, torch.bfloat16)]


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("dtype, of_state", STEPS, ids=str)
def test_a_prompt_and_steps_are_the_sequence(dtype, of_state, weighed, device):
    """And a step is the last row of the sequence up to it."""
    shape, prompt = (2, 70, 2, 4, 32, 48), 64
    tensors, state = draw(shape, dtype, device), draw_state(shape, device)
    w = torch.rand(tensors[3].shape, generator=torch.Generator().manual_seed(2)).to(device) if weighed else None
    of = lambda at: ([t[:, at] for t in tensors], None if w is None else w[:, at])
    whole, last = vlstm.linear_attention(*tensors, None, 0.3, state, True, w=w)
    expected, exact_last = recurrence(*tensors, w, state, 0.3)
    rows, own_w = of(slice(0, prompt))
    o, kept = vlstm.linear_attention(*rows, None, 0.3, state, True, w=own_w)
    kept, before = kept.to(of_state), kept.clone()
    bound = BOUNDS[dtype][0] if of_state != torch.bfloat16 else 1.6e-2
    for t in range(prompt, shape[1]):
        rows, own_w = of(slice(t, t + 1))
        own, after = vlstm.linear_attention_step(*rows, None, 0.3, kept, True, w=own_w, inplace=True)
        assert after is kept and own.dtype == dtype and own.shape == rows[2].shape
        for other in (expected, whole):
            assert relative_error(own, other[:, t : t + 1]) <= 1.5 * bound, t
        if t == prompt:
            fresh, new = vlstm.linear_attention_step(*rows, None, 0.3, before, True, w=own_w)
            assert new.dtype == torch.float32 and not torch.equal(new, before)
            assert of_state == torch.bfloat16 or torch.equal(fresh, own) and torch.equal(new, kept)
    assert relative_error(kept, exact_last) <= bound and relative_error(last, exact_last) <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_step_as_retnet_and_mamba_have_it(dtype, device):
    """Decays of heads, no decay, a state of columns before rows, none; a scale below 0."""
    shape = 2, 1, 1, 2, 32, 16
    q, k, v, g = draw(shape, dtype, device)
    state, decays = draw_state(shape, device), torch.tensor([-0.1, -0.3], device=device)
    bound = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float64: 1e-14}[dtype]
    for given, gate in (({"g_gamma": decays}, decays.expand(2, 1, 2)), ({}, torch.zeros(2, 1, 2, device=device))):
        o, last = vlstm.linear_attention_step(
            q, k, v, **given, scale=-0.5, initial_state=state.mT.contiguous(), output_final_state=True, state_v_first=True
        )
        expected, exact_last = recurrence(q, k, v, gate, None, state, -0.5)
        assert relative_error(o, expected) <= bound and relative_error(last.mT, exact_last) <= max(bound, 2e-7)
    o, last = vlstm.linear_attention_step(q, k, v, g)
    assert last is None and relative_error(o, recurrence(q, k, v, g)[0]) <= bound
    with torch.autocast(device, torch.float16):
        o, _ = vlstm.linear_attention_step(q, k, v, g)
    assert o.dtype == (dtype if dtype == torch.float64 else torch.float16)


@pytest.mark.parametrize("dtype, of_state", STEPS, ids=str)
def test_steps_with_sigmoid_gates(dtype, of_state, device):
    shape, prompt = (2, 70, 2, 2, 32, 48), 64
    q, k, v, f = (t.transpose(1, 2) for t in draw(shape, dtype, device))
    f = 3 + f
    i = torch.randn(f.shape, generator=torch.Generator().manual_seed(2)).to(device)
    tensors = q, k, v, i, f
    expected, exact_last = recurrence(*(t.transpose(1, 2) for t in (q, k, v, logsigmoid(f), i.sigmoid())))
    whole, (_, c) = vlstm.mlstm_sig(*tensors, normalize=False), vlstm.mlstm_sig(
        *(t[:, :, :prompt] for t in tensors), return_last_states=True, normalize=False
    )
    c = c.to(of_state)
    bound = BOUNDS[dtype][0] if of_state != torch.bfloat16 else 1.6e-2
    for t in range(prompt, shape[1]):
        rows = [x[:, :, t] for x in tensors]
        gates = [gate[..., None] for gate in rows[3:]] if t % 2 else rows[3:]
        h, c = vlstm.mlstm_sig_step(*rows[:3], *gates, c, dtype_state=of_state, normalize=False, inplace=t % 3 == 0)
        assert h.dtype == dtype and c.dtype == of_state
        for other in (expected[:, t], whole[:, :, t]):
            assert relative_error(h, other) <= 1.5 * bound, t
    assert relative_error(c, exact_last) <= bound


def test_steps_in_a_compiled_graph_and_on_nothing(device):
    torch._dynamo.reset()
    shape = 2, 1, 1, 2, 16, 16
    tensors, states = draw(shape, torch.float32, device), [draw_state(shape, device) for _ in range(2)]

    def step(*t):
        return vlstm.linear_attention_step(*t[:4], None, None, t[4], True, inplace=True)[0]

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*tensors, states[0]), step(*tensors, states[1])) and torch.equal(*states)
    o, last = vlstm.linear_attention_step(*draw((0, 1, 1, 2, 16, 16), torch.float32, device), output_final_state=True)
    assert o.shape == (0, 1, 2, 16) and last.shape == (0, 2, 16, 16)


def test_what_a_step_refuses():
    shape = 1, 1, 2, 4, 16, 32
    tensors, state = draw(shape, torch.float32, "cpu"), draw_state(shape, "cpu")
    with pytest.raises(ValueError, match=r"q: expected shape \(B, 1, H, K\), of one position, got \(1, 2, 2, 16\): call linear"):
        vlstm.linear_attention_step(*draw((1, 2, 2, 4, 16, 32), torch.float32, "cpu"))
    with pytest.raises(ValueError, match="linear_attention_step: expected tensors that need no gradient"):
        vlstm.linear_attention_step(*tensors, w=tensors[3].exp().requires_grad_())
    with pytest.raises(ValueError, match=r"w: expected shape \(1, 1, 4\), got \(1, 1, 3\)"):
        vlstm.linear_attention_step(*tensors, w=tensors[3][..., 1:])
    with pytest.raises(ValueError, match="initial_state: expected torch.float32 without gaps, to be updated in place"):
        vlstm.linear_attention_step(*tensors, initial_state=state.bfloat16(), inplace=True)
    with pytest.raises(NotImplementedError, match="cu_seqlens: expected None"):
        vlstm.linear_attention_step(*tensors, cu_seqlens=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="a step: expected what a version takes.*\n.*dimension K: expected a multiple of 16"):
        vlstm.linear_attention_step(*draw((1, 1, 1, 1, 24, 16), torch.float32, "cpu"))
    q, k, v, f = (t[:, 0] for t in draw((1, 1, 2, 2, 16, 32), torch.float32, "cpu"))
    c = draw_state((1, 1, 2, 2, 16, 32), "cpu")
    for changed, kind, message in [
        ({"n": f}, ValueError, "n: expected None with normalize=False, got Tensor"),
        ({"i": f[..., :1]}, ValueError, r"i: expected shape \(1, 2\) or \(1, 2, 1\), got \(1, 1\)"),
        ({"v": v[0]}, ValueError, r"v: expected shape \(B, NH, DHHV\), got \(2, 32\)"),
        ({"k": k[:, :1]}, ValueError, r"k: expected shape \(1, 2, 16\), got \(1, 1, 16\)"),
        ({"c": c.mT}, ValueError, r"c: expected shape \(1, 2, 16, 32\), got \(1, 2, 32, 16\)"),
        ({"c": None}, TypeError, "c: expected a torch.Tensor, got NoneType"),
        ({"dtype_state": torch.bfloat16}, TypeError, "dtype_state: expected torch.float32 with q in torch.float32"),
        ({"c": c.double(), "inplace": True}, ValueError, "c: expected torch.float32 without gaps, to be updated in place"),
        ({"f": f.clone().requires_grad_()}, ValueError, "mlstm_sig_step: expected tensors that need no gradient"),
        ({"version": "v9"}, ValueError, "version: expected auto or one of vlstm_step:v5_sigmoid, got 'v9'"),
    ]:
        with pytest.raises(kind, match=message):
            vlstm.mlstm_sig_step(**{"q": q, "k": k, "v": v, "i": f, "f": f, "c": c, **changed}, normalize=False)


WRONG_SIGMOID = [
    (ValueError, {"q": lambda t: t[0]}, r"q: expected shape \(B, NH, S, DHQK\), got \(2, 20, 16\)"),
    (ValueError, {"v": lambda t: t[..., 0]}, r"v: expected shape \(B, NH, S, DHHV\), got \(1, 2, 20\)"),
    (ValueError, {"i": lambda t: t[..., 1:]}, r"i: expected shape \(1, 2, 20\), got \(1, 2, 19\)"),
    (ValueError, {"c_initial": lambda t: t.mT}, r"c_initial: expected shape \(1, 2, 16, 32\), got \(1, 2, 32, 16\)"),
    (TypeError, {"c_initial": 0.0}, "c_initial: expected a torch.Tensor, got float"),
    (ValueError, {"m_initial": torch.zeros(1, 2)}, "m_initial: expected None with normalize=False, got Tensor"),
    (TypeError, {"eps": "0"}, "eps: expected a number, got str"),
    (ValueError, {"eps": -3}, "eps: expected a number that is not negative, and finite, got -3"),
    (ValueError, {"chunk_size": "x"}, "chunk_size: expected None or a positive int, got 'x'"),
    (ValueError, {"normalizer_grad": "nonsense"}, "normalizer_grad: expected 'constant' or 'exact', got 'nonsense'"),
    (TypeError, {"autocast_kernel_dtype": torch.int8}, "autocast_kernel_dtype: expected None, torch.float32 .* got torch.int8"),
    (TypeError, {"dtype_state": torch.bfloat16}, "dtype_state: expected torch.float32 with normalize=False, got torch.bfloat16"),
    (TypeError, {"version": None}, "version: expected a str, got NoneType"),
    (ValueError, {"cu_seqlens": torch.tensor([0])}, r"cu_seqlens: expected shape \(N \+ 1,\), got \(1,\)"),
]


@pytest.mark.parametrize("kind, changed, message", WRONG_SIGMOID, ids=lambda w: next(iter(w)) if isinstance(w, dict) else "")
def test_what_sigmoid_gates_without_a_normaliser_refuse(kind, changed, message):
    q, k, v, f = (t.transpose(1, 2) for t in draw((1, 20, 2, 2, 16, 32), torch.bfloat16, "cpu"))
    given = {"q": q, "k": k, "v": v, "i": f, "f": f, "c_initial": draw_state((1, 20, 2, 2, 16, 32), "cpu")}
    for name, change in changed.items():
        given[name] = change(given[name]) if callable(change) else change
    with pytest.raises(kind, match=message):
        vlstm.mlstm_sig(**given, normalize=False)


def test_the_type_under_an_autocast_without_a_normaliser(device):
    q, k, v, f = (t.transpose(1, 2) for t in draw((1, 20, 2, 2, 16, 16), torch.float32, device))
    with torch.autocast(device, torch.bfloat16):
        own, named = (vlstm.mlstm_sig(q, k, v, f, f, autocast_kernel_dtype=d, normalize=False) for d in (None, torch.float16))
    assert own.dtype == torch.bfloat16 and named.dtype == torch.float16
