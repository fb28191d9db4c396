"""`vlstm.gated_delta_rule` and its step against the recurrence in float64, written in plain PyTorch."""

import pytest
import torch
from conftest import DTYPES, relative_error
from torch.nn.functional import normalize, softplus

import vlstm
from vlstm import _gdn

# B, T, H, HV, K, V: one position, of several heads, for in one alone gradients may nearly cancel; heads that share keys, more than a
# chunk, unlike widths; three chunks.
SHAPES = [(2, 1, 2, 4, 32, 48), (2, 70, 2, 4, 32, 16), (1, 130, 1, 2, 16, 48)]
# Of o and states, of gradients. In float32 those of the stages; in halves what is rounded once, and what goes through tensor cores.
BOUNDS = {torch.float32: (2e-6, 8e-6), torch.float16: (1e-3, 1.2e-3), torch.bfloat16: (8e-3, 1.2e-2)}
NAMES = "q", "k", "v", "g", "beta"


@pytest.fixture(autouse=True)
def the_same_gradients_from_above():
    torch.manual_seed(0)


def draw(shape, dtype, device, seed=0, grad=False):
    """q, k, v, g, beta: keys of length one, gates that keep about 95 %."""
    batch, positions, heads, value_heads, keys, values = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        return torch.randn(batch, positions, *sizes, generator=generator)

    q, k, v = normal(heads, keys), normalize(normal(heads, keys), dim=-1), normal(value_heads, values)
    g, beta = -softplus(-3 - normal(value_heads)), torch.sigmoid(normal(value_heads))
    tensors = [t.to(device, dtype) for t in (q, k, v)] + [g.to(device), beta.to(device)]
    return [t.requires_grad_(grad) for t in tensors]


def draw_state(shape, device, grad=False):
    batch, _, _, value_heads, keys, values = shape
    state = torch.randn(batch, value_heads, keys, values, generator=torch.Generator().manual_seed(1)) / keys**0.5
    return state.to(device).requires_grad_(grad)


def recurrence(q, k, v, g, beta, state=None, scale=None):
    """o and the last state in float64, of the documentation's equations, a matrix product for each."""
    q, k, v, g, beta = (t.double() for t in (q, k, v, g, beta))
    group = v.shape[2] // q.shape[2]
    q, k = (t.repeat_interleave(group, 2) for t in (q, k))
    c = q.new_zeros(q.shape[0], v.shape[2], q.shape[3], v.shape[3]) if state is None else state.double()
    rows = []
    for t in range(q.shape[1]):
        d = g[:, t, :, None, None].exp() * c
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", d, k[:, t]))
        c = d + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_gradients(shape, dtype, device):
    tensors = draw(shape, dtype, device, grad=True)
    o, last = vlstm.gated_delta_rule(*tensors)
    assert last is None and o.dtype == dtype and o.is_contiguous()
    exact = exact_copies(tensors)
    expected, _ = recurrence(*exact)
    of_o, of_gradients = BOUNDS[dtype]
    assert relative_error(o, expected) <= of_o
    upstream = torch.randn_like(o)
    o.backward(upstream)
    expected.backward(upstream.double())
    assert_gradients(tensors, exact, of_gradients)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_states_and_their_gradients(dtype, device):
    shape = SHAPES[1]
    tensors, state = draw(shape, dtype, device, grad=True), draw_state(shape, device, grad=True)
    o, last = vlstm.gated_delta_rule(*tensors, 0.3, state, True)
    *exact, exact_state = exact_copies([*tensors, state])
    expected, exact_last = recurrence(*exact, exact_state, 0.3)
    of_o, of_gradients = BOUNDS[dtype]
    assert last.dtype == torch.float32
    assert relative_error(o, expected) <= of_o and relative_error(last, exact_last) <= of_o
    upstream, of_last = torch.randn_like(o), torch.randn_like(last)
    torch.autograd.backward([o, last], [upstream, of_last])
    torch.autograd.backward([expected, exact_last], [upstream.double(), of_last.double()])
    assert_gradients([*tensors, state], [*exact, exact_state], of_gradients, (*NAMES, "state"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_and_steps_are_the_whole(dtype, device):
    tensors = draw((2, 70, 2, 4, 32, 16), dtype, device)
    expected, last = recurrence(*tensors)
    bound, state, parts = BOUNDS[dtype][0], None, []
    for at in (slice(0, 50), slice(50, 66)):
        o, state = vlstm.gated_delta_rule(*(t[:, at] for t in tensors), initial_state=state, output_final_state=True)
        parts.append(o)
    for t in range(66, 70):
        inplace, before = t % 2 == 0, state
        one = (tensor[:, t : t + 1] for tensor in tensors)
        o, state = vlstm.gated_delta_step(*one, initial_state=state, output_final_state=True, inplace=inplace)
        assert (state is before) == inplace and state.dtype == torch.float32
        parts.append(o)
    assert relative_error(torch.cat(parts, 1), expected) <= bound
    assert relative_error(state, last) <= bound


def test_gradients_go_through_parts(device):
    """What the second part's loss says of the first part's tensors comes through the state alone."""
    tensors = draw((1, 40, 1, 2, 16, 16), torch.float32, device, grad=True)
    first, second = ([t[:, at] for t in tensors] for at in (slice(0, 25), slice(25, 40)))
    _, state = vlstm.gated_delta_rule(*first, output_final_state=True)
    vlstm.gated_delta_rule(*second, initial_state=state)[0].square().sum().backward()
    exact = exact_copies(tensors)
    recurrence(*exact)[0][:, 25:].square().sum().backward()
    assert_gradients(tensors, exact, BOUNDS[torch.float32][1])


def test_a_step_without_a_state_and_in_half_the_width(device):
    tensors = draw((2, 1, 1, 2, 16, 32), torch.bfloat16, device)
    o, last = vlstm.gated_delta_step(*tensors)
    expected, exact_last = recurrence(*tensors)
    assert last is None and relative_error(o, expected) <= 4e-3
    half = draw_state((2, 1, 1, 2, 16, 32), device).bfloat16()
    expected, exact_last = recurrence(*tensors, half)
    o, last = vlstm.gated_delta_step(*tensors, None, half, True, inplace=True)
    assert last is half and relative_error(o, expected) <= 8e-3 and relative_error(last, exact_last) <= 4e-3


def test_activations_lengths_and_other_orders(device):
    """As the layers of flash-linear-attention ask for them."""
    shape = 2, 20, 1, 2, 32, 16
    q, k, v, g, beta = draw(shape, torch.float32, device)
    k, state = 3 * k, draw_state(shape, device).mT.contiguous()
    a_log, bias = torch.tensor([0.1, -0.5], device=device), torch.tensor([0.2, 0.3], device=device)
    given = dict(
        use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=a_log, dt_bias=bias, use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=True,
    )  # fmt: skip
    o, last = vlstm.gated_delta_rule(
        q, k, v, g, beta, initial_state=state, output_final_state=True, state_v_first=True, **given
    )
    gates = -a_log.exp() * softplus(g + bias), 2 * torch.sigmoid(beta)
    lengths = normalize(q.double(), dim=-1), normalize(k.double(), dim=-1)
    expected, exact_last = recurrence(*lengths, v, *gates, state.mT)
    assert relative_error(o, expected) <= 2e-6 and relative_error(last.mT, exact_last) <= 2e-6
    turned = [t.transpose(1, 2) for t in (q, k, v, g, beta)]
    again, _ = vlstm.gated_delta_rule(*turned, initial_state=state.mT, head_first=True, **given)
    assert torch.equal(again.transpose(1, 2), o)
    one = [t[:, :1] for t in (q, k, v, g, beta)]
    step, after = vlstm.gated_delta_step(
        *one, initial_state=state, output_final_state=True, cu_seqlens=None, state_v_first=True, **given
    )
    assert relative_error(step, expected[:, :1]) <= 2e-6
    _, exact_after = recurrence(*(t[:, :1] for t in (*lengths, v, *gates)), state.mT)
    assert relative_error(after.mT, exact_after) <= 2e-6


def test_float64_and_its_gradients():
    shape = 1, 6, 1, 2, 5, 3
    tensors, state = draw(shape, torch.float64, "cpu"), draw_state(shape, "cpu")
    o, last = vlstm.gated_delta_rule(*tensors, initial_state=state, output_final_state=True)
    expected, exact_last = recurrence(*tensors, state)
    assert (o.dtype, last.dtype) == (torch.float64, torch.float64)
    assert relative_error(o, expected) <= 1e-14 and relative_error(last, exact_last) <= 1e-14
    inputs = exact_copies([*tensors, state])
    assert torch.autograd.gradcheck(lambda *t: vlstm.gated_delta_rule(*t[:5], None, t[5], True), inputs)
    step, after = vlstm.gated_delta_step(*(t[:, :1] for t in tensors), None, state, True)
    assert relative_error(step, expected[:, :1]) <= 1e-14 and after.dtype == torch.float64


def test_under_an_autocast(device):
    tensors = draw((1, 20, 1, 2, 16, 16), torch.float32, device)
    with torch.autocast(device, torch.bfloat16):
        o, _ = vlstm.gated_delta_rule(*tensors)
        step, _ = vlstm.gated_delta_step(*(t[:, :1] for t in tensors))
    halves = [*(t.bfloat16() for t in tensors[:3]), *tensors[3:]]
    assert torch.equal(o, vlstm.gated_delta_rule(*halves)[0]) and step.dtype == torch.bfloat16


def test_one_compiled_graph_for_all_lengths(device):
    torch._dynamo.reset()
    count = 0

    def backend(module, inputs):
        nonlocal count
        count += 1
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    def loss(*tensors):
        o, last = vlstm.gated_delta_rule(*tensors, output_final_state=True, use_qk_l2norm_in_kernel=True)
        return o.square().sum() + last.sum()

    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    for positions in (20, 21, 30):
        tensors = draw((1, positions, 1, 2, 16, 16), torch.float32, device, grad=True)
        got, expected = (torch.autograd.grad(f(*tensors), tensors) for f in (compiled, loss))
        assert all(relative_error(a, b) <= 1e-5 for a, b in zip(got, expected))
    assert count == 2
    shape = 2, 1, 1, 2, 16, 16
    tensors, states = draw(shape, torch.float32, device), [draw_state(shape, device) for _ in range(2)]
    step = torch.compile(lambda *t: vlstm.gated_delta_step(*t[:5], None, t[5], inplace=True)[0], backend=backend, fullgraph=True)
    assert torch.equal(step(*tensors, states[0]), vlstm.gated_delta_step(*tensors, None, states[1], inplace=True)[0])
    assert torch.equal(*states)


def test_transforms_of_functions(device):
    tensors = draw((3, 20, 1, 2, 16, 16), torch.float32, device)

    def loss(*t):
        return vlstm.gated_delta_rule(*t)[0].square().sum()

    inputs = [t.clone().requires_grad_() for t in tensors]
    expected = torch.autograd.grad(loss(*inputs), inputs)
    for got, wanted in zip(torch.func.grad(loss, argnums=(0, 1, 2, 3, 4))(*tensors), expected):
        assert torch.equal(got, wanted)
    o, _ = vlstm.gated_delta_rule(*inputs)
    several = torch.randn(2, *o.shape, device=device)
    (of_both,) = torch.autograd.grad(o, inputs[:1], several, is_grads_batched=True, retain_graph=True)
    assert torch.equal(of_both[1], torch.autograd.grad(o, inputs[:1], several[1])[0])
    batched = torch.func.vmap(lambda *t: vlstm.gated_delta_rule(*(x[None] for x in t))[0][0])(*tensors)
    assert torch.equal(batched, vlstm.gated_delta_rule(*tensors)[0])
    with pytest.raises(NotImplementedError, match="vlstm.gated_delta_rule: expected tensors without tangents"):
        torch.func.jvp(loss, tuple(tensors), tuple(tensors))
    with pytest.raises(NotImplementedError, match="expected to be differentiated once"):
        o, _ = vlstm.gated_delta_rule(*inputs)
        (first,) = torch.autograd.grad(o.square().sum(), inputs[:1], create_graph=True)
        first.sum().backward()


def test_no_sequence_and_no_position(device):
    for shape in ((0, 5, 1, 2, 16, 16), (2, 0, 1, 2, 16, 16)):
        tensors = draw(shape, torch.float32, device, grad=True)
        o, last = vlstm.gated_delta_rule(*tensors, output_final_state=True)
        assert o.shape == tensors[2].shape and last.shape == (shape[0], 2, 16, 16) and not last.any()
        o.sum().backward()
        assert all(t.grad.shape == t.shape for t in tensors)
    step, last = vlstm.gated_delta_step(*draw((0, 1, 1, 2, 16, 16), torch.float32, device), output_final_state=True)
    assert step.shape == (0, 1, 2, 16) and last.shape == (0, 2, 16, 16)


@pytest.mark.parametrize("name, kind", [(name, kind) for kind in ("delta", "delta_gradients") for name, *_ in vlstm.versions()[kind]])
def test_every_version_by_its_name(name, kind, device):
    (types,) = (types for own, _, types in vlstm.versions()[kind] if own == name)
    dtype = torch.float32 if "f32" in types else torch.bfloat16
    tensors = draw((1, 70, 1, 2, 32, 16), dtype, device, grad=True)
    o, _ = vlstm.gated_delta_rule(*tensors, version=name)
    exact = exact_copies(tensors)
    expected, _ = recurrence(*exact)
    assert relative_error(o, expected) <= BOUNDS[dtype][0]
    o.sum().backward()
    expected.sum().backward()
    assert_gradients(tensors, exact, BOUNDS[dtype][1])


WRONG = [
    (TypeError, {"q": [1.0]}, "q: expected a torch.Tensor, got list"),
    (TypeError, {"k": lambda t: t.float()}, "k: expected torch.bfloat16, as q, got torch.float32"),
    (TypeError, {"g": lambda t: t.long()}, "g: expected torch.float32 or .* got torch.int64"),
    (ValueError, {"q": lambda t: t[0]}, r"q: expected shape \(B, T, H, K\), got \(20, 2, 16\)"),
    (ValueError, {"k": lambda t: t[:, 1:]}, r"k: expected shape \(1, 20, 2, 16\), got \(1, 19, 2, 16\)"),
    (ValueError, {"v": lambda t: t[:, :, :3]}, "v: expected a multiple of H = 2 heads, got HV = 3"),
    (ValueError, {"beta": lambda t: t[..., :2]}, r"beta: expected shape \(1, 20, 4\), got \(1, 20, 2\)"),
    (ValueError, {"initial_state": lambda t: t.mT}, r"initial_state: expected shape \(1, 4, 16, 32\), got \(1, 4, 32, 16\)"),
    (TypeError, {"scale": "1"}, "scale: expected None or a number, got str"),
    (ValueError, {"scale": 0.0}, "scale: expected a finite number other than 0, got 0.0"),
    (TypeError, {"cu_seqlens": [0, 20]}, "cu_seqlens: expected a torch.Tensor, got list"),
    (ValueError, {"cu_seqlens": torch.tensor([0, 5, 20])}, r"initial_state: expected shape \(2, 4, 16, 32\), got \(1, 4, 16, 32\)"),
    (ValueError, {"cu_seqlens": torch.tensor([0, 19])}, "cu_seqlens: expected numbers that rise from 0 to 20, .* got \\[0, 19\\]"),
    (TypeError, {"use_gate_in_kernel": True}, "A_log: expected a torch.Tensor, got NoneType"),
    (ValueError, {"allow_neg_eigval": True}, "allow_neg_eigval: expected use_beta_sigmoid_in_kernel=True"),
    (ValueError, {"version": "v9"}, "version: expected auto or of gdn_fw:v4_fused, .* got 'v9'"),
]


@pytest.mark.parametrize("kind, changed, message", WRONG, ids=lambda w: next(iter(w)) if isinstance(w, dict) else "")
def test_what_is_refused(kind, changed, message):
    shape = 1, 20, 2, 4, 16, 32
    given = dict(zip(NAMES, draw(shape, torch.bfloat16, "cpu")), initial_state=draw_state(shape, "cpu"))
    for name, change in changed.items():
        given[name] = change(given[name]) if callable(change) else change
    with pytest.raises(kind, match=message):
        vlstm.gated_delta_rule(**given)


def test_what_a_step_refuses():
    shape = 1, 1, 2, 4, 16, 32
    tensors, state = draw(shape, torch.float32, "cpu"), draw_state(shape, "cpu")
    two = draw((1, 2, 2, 4, 16, 32), torch.float32, "cpu")
    with pytest.raises(ValueError, match=r"q: expected shape \(B, 1, H, K\), of one position, got \(1, 2, 2, 16\)"):
        vlstm.gated_delta_step(*two)
    with pytest.raises(ValueError, match="gated_delta_step: expected tensors that need no gradient"):
        vlstm.gated_delta_step(*tensors[:4], tensors[4].requires_grad_())
    with torch.no_grad(), pytest.raises(ValueError, match="initial_state: expected torch.float32 without gaps, to be updated"):
        vlstm.gated_delta_step(*tensors, None, state.bfloat16(), inplace=True)
    with torch.no_grad(), pytest.raises(ValueError, match="initial_state: expected a tensor, to be updated in place, got None"):
        vlstm.gated_delta_step(*tensors, inplace=True)
    with torch.no_grad(), pytest.raises(ValueError, match="inplace: expected False with state_v_first, got True"):
        vlstm.gated_delta_step(*tensors, None, state.mT, inplace=True, state_v_first=True)
    with pytest.raises(NotImplementedError, match="cu_seqlens: expected None"):
        vlstm.gated_delta_step(*tensors, cu_seqlens=torch.tensor([0, 1]))


def test_many_keys_alone_and_packed(device):
    """Of 144 keys, on tensor cores in both passes; packed sequences are what each is alone."""
    shape, places = (1, 90, 1, 2, 144, 16), [0, 70, 70, 90]
    tensors = draw(shape, torch.bfloat16, device, grad=True)
    version = "gdn_fw:v3_resident, gdn_fwbw:v1_tensor"
    o, _ = vlstm.gated_delta_rule(*tensors, version=version)
    exact = exact_copies(tensors)
    expected, _ = recurrence(*exact)
    assert relative_error(o, expected) <= BOUNDS[torch.bfloat16][0]
    o.float().square().sum().backward()
    expected.square().sum().backward()
    assert_gradients(tensors, exact, 1.5 * BOUNDS[torch.bfloat16][1])
    alone = [t.detach().requires_grad_() for t in tensors]
    parts = [[t[:, first:end] for t in alone] for first, end in ((0, 70), (70, 90))]
    rows = torch.cat([vlstm.gated_delta_rule(*part, version=version)[0] for part in parts], 1)
    packed = [t.detach().requires_grad_() for t in tensors]
    cu_seqlens = torch.tensor(places, dtype=torch.int32, device=device)
    o, last = vlstm.gated_delta_rule(*packed, output_final_state=True, cu_seqlens=cu_seqlens, version="gdn_fw:v6_packed_resident")
    assert torch.equal(o, rows) and not last[1].any()
    for result, inputs in ((rows, alone), (o, packed)):
        result.float().square().sum().backward()
    for one, other in zip(alone, packed):
        assert relative_error(one.grad, other.grad) <= 1e-5


def test_sizes_that_no_version_takes():
    with pytest.raises(ValueError, match="q: expected dimension K: expected a multiple of 16 from 16 to 256, got 24"):
        vlstm.gated_delta_rule(*draw((1, 5, 1, 1, 24, 16), torch.float32, "cpu"))


def test_the_form_in_float64_is_the_recurrence():
    """What float64 takes is written once more above, in other operations."""
    tensors = [t.double() for t in draw((2, 9, 2, 4, 8, 6), torch.float32, "cpu")]
    own, last = _gdn.recurrence(*(t.transpose(1, 2) for t in tensors), None, None)
    expected, exact_last = recurrence(*tensors)
    assert relative_error(own.transpose(1, 2), expected) <= 1e-14 and relative_error(last, exact_last) <= 1e-14
