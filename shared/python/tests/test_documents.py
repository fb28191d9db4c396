"""Several documents in one sequence: behind forget gates that are shut, or packed by `cu_seqlens`, as each by itself."""

import math

import pytest
import torch
from conftest import draw, draw_state, equations, relative_error

import vlstm

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
HALVES = [torch.float16, torch.bfloat16]
# What stands for the beginning of another document.
SHUT = [-1e5, -1e9, -1e15, torch.finfo(torch.bfloat16).min, torch.finfo(torch.float32).min, -math.inf]


def by_themselves(tensors, ends, states=None, exact=False):
    """h of each document in float64, one behind the other, and the states behind each, (N, …)."""
    all_of_them, last = [], []
    for n, (start, end) in enumerate(zip(ends, ends[1:])):
        state = () if states is None else [s[n : n + 1] for s in states]
        if start == end:
            last.append(state)
            continue
        h, of_end = equations(*(t[:, :, start:end] for t in tensors), *state, exact=exact)
        all_of_them.append(h)
        last.append(of_end)
    return torch.cat(all_of_them, 2), last


# ---- gates that are shut -------------------------------------------------------------------------


def shut_at(f, places, value):
    """The same gates, shut at these places."""
    f = f.detach().clone()
    f[:, :, list(places)] = value
    return f


def versions_of(pass_name, dtype, device):
    names = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
    on_hopper = device == "cpu" or torch.cuda.get_device_capability() >= (9, 0)
    return ["auto"] + [name for name, _, types in vlstm.versions()[pass_name] if names[dtype] in types and on_hopper]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("value", SHUT)
def test_a_shut_gate_starts_anew(value, dtype, device):
    ends = [0, 20, 21, 64, 100]
    q, k, v, i, f = draw((1, 2, 100, 32, 48), dtype, device)
    f = shut_at(f, ends[1:-1], value)
    expected, _ = by_themselves((q, k, v, i, f.clamp(min=-1e5)), ends)
    for version in versions_of("forward", dtype, device):
        h = vlstm.mlstm(q, k, v, i, f, version=version)
        assert relative_error(h, expected) <= BOUNDS[dtype], version
    f[:, :, 0] = value
    assert relative_error(vlstm.mlstm(q, k, v, i, f), expected) <= BOUNDS[dtype]


LEAST = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    "dtype, value",
    [
        (torch.float32, -math.inf),
        (torch.float16, -math.inf),
        (torch.float16, LEAST),
        (torch.bfloat16, -math.inf),
        (torch.bfloat16, LEAST),
        (torch.bfloat16, -1e9),
    ],
    ids=str,
)
def test_gradients_behind_a_shut_gate(dtype, value, device):
    ends = [0, 20, 21, 64, 100]
    q, k, v, i, f = draw((1, 2, 100, 32, 48), dtype, device, grad=True)
    f = shut_at(f, ends[1:-1], value).requires_grad_()
    inputs = [q, k, v, i, f]
    copies = [t.detach().double().clamp(min=-1e5).requires_grad_() for t in inputs]
    expected_h, _ = by_themselves(copies, ends)
    outer = torch.randn(expected_h.shape, generator=torch.Generator().manual_seed(3)).to(device=device, dtype=dtype)
    expected = torch.autograd.grad(expected_h, copies, outer.double())
    for version in versions_of("gradients", dtype, device):
        got = torch.autograd.grad(vlstm.mlstm(*inputs, version=version), inputs, outer)
        for name, g, e in zip("qkvif", got, expected):
            assert relative_error(g, e) <= max(BOUNDS[dtype], 5e-5), (version, name)
        assert torch.all(got[4][:, :, ends[1:-1]] == 0), version


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_states_and_a_shut_gate(dtype, device):
    shape = 1, 2, 40, 16, 32
    q, k, v, i, f = draw(shape, dtype, device)
    state = draw_state(shape, device)
    for place in (0, 25):
        gates = shut_at(f, [place], -math.inf)
        h, last = vlstm.mlstm(q, k, v, i, gates, *state, return_last_states=True)
        ends = [place, 40]
        behind, (expected,) = by_themselves((q, k, v, i, gates.clamp(min=-1e5)), ends)
        assert relative_error(h[:, :, place:], behind) <= BOUNDS[dtype]
        for got, wanted in zip(last, expected):
            assert relative_error(got, wanted) <= BOUNDS[dtype]
    # One position.
    row = [t[:, :, 0] for t in (q, k, v, i)]
    for value in SHUT:
        h, _ = vlstm.mlstm_step(*row, torch.full_like(row[3], value), *state)
        expected = equations(*(t[:, :, :1] for t in (q, k, v, i, i)))[0][:, :, 0]
        assert relative_error(h, expected) <= BOUNDS[dtype]


def behind_a_state(tensors, places, state):
    """h in float64 and the state behind the last position, of a sequence with these gates shut, behind a state."""
    ends = [0, *places, tensors[0].shape[2]]
    h, last = equations(*(t[:, :, : places[0]] for t in tensors), *state, exact=True)
    parts = [h]
    for start, end in zip(ends[1:], ends[2:]):
        h, last = equations(*(t[:, :, start:end] for t in tensors), exact=True)
        parts.append(h)
    return torch.cat(parts, 2), last


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("value", [-math.inf, LEAST])
def test_several_shut_gates_behind_a_state(value, dtype, device):
    """By every version that takes states, with the gradients of the state, too: what is behind a shut gate has none."""
    shape, places = (1, 2, 140, 32, 48), [9, 10, 64, 127]
    inputs = [*draw(shape, dtype, device, grad=True), *draw_state(shape, device, grad=True)]
    inputs[4] = shut_at(inputs[4], places, value).requires_grad_()
    copies = [t.detach().double().requires_grad_(n < 7) for n, t in enumerate(inputs)]
    open_gates = copies[4].clamp(min=-1e5)
    expected_h, of_last = behind_a_state([*copies[:4], open_gates], places, copies[5:])
    generator = torch.Generator().manual_seed(3)
    outer = [torch.randn(t.shape, generator=generator).to(device) for t in (expected_h, *of_last[:2])]
    expected = torch.autograd.grad((expected_h, *of_last[:2]), copies[:7], [t.double() for t in outer])
    taken, versions = set(), versions_of("forward", dtype, device) + versions_of("gradients", dtype, device)[1:]
    for version in versions:
        try:
            h, last = vlstm.mlstm(*inputs, return_last_states=True, version=version, normalizer_grad="exact")
        except ValueError as error:
            assert "expected" in str(error) and version != "auto"
            continue
        assert relative_error(h, expected_h) <= BOUNDS[dtype], version
        for got, wanted in zip(last, of_last):
            assert relative_error(got, wanted) <= BOUNDS[dtype], version
        try:
            gradients = torch.autograd.grad((h, *last[:2]), inputs[:7], [outer[0].to(dtype), *outer[1:]])
        except ValueError as error:  # a version of the backward pass that takes no gradient of a state
            assert "expected" in str(error) and "fwbw" in version
            continue
        taken.add(version)
        for name, g, e in zip(["q", "k", "v", "i", "f", "c", "n"], gradients, expected):
            assert relative_error(g, e) <= BOUNDS[dtype], (version, name)
        assert torch.all(gradients[4][:, :, places] == 0), version
    assert taken >= {name for name in versions if name.startswith(("auto", "vlstm_fw_v3", "vlstm_fw_v4", "vlstm_fwbw_v4"))}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("value", SHUT)
def test_a_step_of_every_version_behind_a_shut_gate(value, dtype, device):
    shape = 2, 2, 1, 32, 48
    q, k, v, i, f = draw(shape, dtype, device)
    expected, last = equations(q, k, v, i, i)
    for version in versions_of("step", dtype, device):
        # Of several positions each starts anew.
        state = draw_state(shape, device)
        for _ in range(3):
            h, state = vlstm.mlstm_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], i, torch.full_like(i, value), *state, version=version)
            assert relative_error(h, expected[:, :, 0]) <= BOUNDS[dtype], version
            for got, wanted in zip(state, last):
                assert relative_error(got, wanted) <= 2e-6, version


# ---- packed sequences ----------------------------------------------------------------------------

PLACES = [[0, 150], [0, 70, 150], [0, 1, 1, 65, 128, 150], [0, 0, 64, 150, 150]]


@pytest.fixture
def packed_device(device):
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("packed sequences need Hopper")
    return device


def states_of(sequences, shape, device, grad=False):
    _, heads, _, keys, values = shape
    c, n, m = draw_state((sequences, heads, 1, keys, values), device)
    return [c.requires_grad_(grad), n.requires_grad_(grad), m]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("ends", PLACES, ids=str)
def test_packed_sequences(ends, dtype, packed_device):
    shape = 1, 2, 150, 32, 48
    tensors = draw(shape, dtype, packed_device)
    expected, _ = by_themselves(tensors, ends)
    for integer in (torch.int32, torch.int64):
        cu_seqlens = torch.tensor(ends, dtype=integer, device=packed_device)
        h = vlstm.mlstm(*tensors, cu_seqlens=cu_seqlens)
        assert h.shape == expected.shape and relative_error(h, expected) <= BOUNDS[dtype]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("value", [-math.inf, LEAST])
def test_shut_gates_within_packed_sequences(value, dtype, packed_device):
    """At a sequence's first position, at its last, side by side, and in the middle."""
    ends, places = [0, 1, 70, 71, 150], [30, 31, 69, 71, 110]
    q, k, v, i, f = draw((1, 2, 150, 32, 48), dtype, packed_device, grad=True)
    f = shut_at(f, places, value).requires_grad_()
    inputs = [q, k, v, i, f]
    copies = [t.detach().double().clamp(min=-1e5).requires_grad_() for t in inputs]
    expected_h, _ = by_themselves(copies, sorted({*ends, *places}))
    outer = torch.randn(expected_h.shape, generator=torch.Generator().manual_seed(3)).to(device=packed_device, dtype=dtype)
    expected = torch.autograd.grad(expected_h, copies, outer.double())
    h = vlstm.mlstm(*inputs, cu_seqlens=torch.tensor(ends, device=packed_device))
    assert relative_error(h, expected_h) <= BOUNDS[dtype]
    got = torch.autograd.grad(h, inputs, outer)
    for name, g, e in zip("qkvif", got, expected):
        assert relative_error(g, e) <= BOUNDS[dtype], name
    assert torch.all(got[4][:, :, places] == 0)


@pytest.mark.parametrize("exact", [False, True], ids=["constant", "exact"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("ends", PLACES, ids=str)
def test_gradients_and_states_of_packed_sequences(ends, given, exact, packed_device):
    shape, count = (1, 2, 150, 32, 48), len(ends) - 1
    tensors = draw(shape, torch.bfloat16, packed_device, grad=True)
    states = states_of(count, shape, packed_device, grad=True) if given else []
    cu_seqlens = torch.tensor(ends, device=packed_device)
    mode = "exact" if exact else "constant"
    h, (c, n, m) = vlstm.mlstm(*tensors, *states, return_last_states=True, normalizer_grad=mode, cu_seqlens=cu_seqlens)
    assert (c.shape, n.shape, m.shape) == ((count, 2, 32, 48), (count, 2, 32), (count, 2, 1))
    inputs = [*tensors, *states[:2]]
    copies = [t.detach().double().requires_grad_() for t in inputs]
    of_h, last = by_themselves(copies[:5], ends, [*copies[5:], states[2].double()] if given else None, exact)
    assert relative_error(h, of_h) <= 8e-3
    used = [number for number in range(count) if ends[number] < ends[number + 1]]
    for number in used:
        for got, wanted in zip((c, n, m), last[number]):
            assert relative_error(got[number : number + 1], wanted) <= 9e-3
    generator = torch.Generator().manual_seed(3)
    outer = [torch.randn(t.shape, generator=generator).to(t) for t in (h, c, n)]
    got = torch.autograd.grad((h, c, n), inputs, outer)
    loss = (of_h * outer[0].double()).sum()
    for number in used:
        loss = loss + sum((x * o[number : number + 1].double()).sum() for x, o in zip(last[number], outer[1:]))
    expected = torch.autograd.grad(loss, copies)
    for name, g, e in zip(["q", "k", "v", "i", "f", "c", "n"], got, expected):
        if name in "cn":  # what goes through a sequence of no position stays as it is
            g, e = g[used], e[used]
        assert relative_error(g, e) <= 2e-2, name


def test_packed_sequences_as_rows_of_a_batch(packed_device):
    shape = 3, 2, 64, 32, 48
    rows = draw(shape, torch.bfloat16, packed_device, grad=True)
    packed = [t.detach().transpose(0, 1).flatten(1, 2)[None].requires_grad_() for t in rows]
    cu_seqlens = torch.arange(4, device=packed_device) * 64
    h, expected = vlstm.mlstm(*packed, cu_seqlens=cu_seqlens), vlstm.mlstm(*rows)
    assert relative_error(h[0].unflatten(1, (3, 64)).transpose(0, 1), expected) <= 4e-3
    got = torch.autograd.grad(h.float().square().sum(), packed)
    for g, e in zip(got, torch.autograd.grad(expected.float().square().sum(), rows)):
        assert relative_error(g[0].unflatten(1, (3, 64)).transpose(0, 1), e) <= 1.2e-2


def test_packed_sequences_compiled(packed_device):
    def loss(cu_seqlens, *tensors):
        return vlstm.mlstm(*tensors, cu_seqlens=cu_seqlens).float().square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for ends in ([0, 20, 64], [0, 10, 80], [0, 30, 31, 100]):
        tensors = draw((1, 2, ends[-1], 32, 48), torch.bfloat16, packed_device, grad=True)
        cu_seqlens = torch.tensor(ends, device=packed_device)
        got, expected = compiled(cu_seqlens, *tensors), loss(cu_seqlens, *tensors)
        assert torch.allclose(got, expected, rtol=1e-3)
        for g, e in zip(torch.autograd.grad(got, tensors), torch.autograd.grad(expected, tensors)):
            assert relative_error(g, e) <= 2e-2


def test_a_check_of_packed_sequences():
    tensors = draw((1, 1, 40, 16, 32), torch.bfloat16, "cpu")
    cu_seqlens = torch.tensor([0, 15, 40])
    h = vlstm.check(*tensors, cu_seqlens=cu_seqlens, grad_h=torch.ones_like(tensors[2]))
    assert relative_error(h, by_themselves(tensors, [0, 15, 40])[0]) <= 8e-3


def test_what_is_refused_of_packed_sequences(packed_device):
    tensors = draw((1, 2, 40, 32, 48), torch.bfloat16, packed_device)
    places = torch.tensor([0, 10, 40], device=packed_device)
    two = [torch.cat([t, t]) for t in tensors]
    floats = draw((1, 2, 40, 32, 48), torch.float32, packed_device)
    wide = draw((1, 2, 40, 144, 48), torch.bfloat16, packed_device)
    states = states_of(1, (1, 2, 40, 32, 48), packed_device)
    for kind, arguments, cu_seqlens, message in [
        (TypeError, tensors, [0, 40], "cu_seqlens: expected a torch.Tensor, got list"),
        (TypeError, tensors, places.float(), "cu_seqlens: expected torch.int32 or torch.int64, got torch.float32"),
        (ValueError, tensors, places[None], r"cu_seqlens: expected shape \(N \+ 1,\), got \(1, 3\)"),
        (ValueError, tensors, places[:1], r"cu_seqlens: expected shape \(N \+ 1,\), got \(1,\)"),
        (ValueError, two, places, r"q: expected shape \(1, NH, S, DHQK\) with cu_seqlens, got \(2, 2, 40, 32\)"),
        (TypeError, floats, places, "q: expected torch.float16 or torch.bfloat16 with cu_seqlens, got torch.float32"),
        (ValueError, wide, places, "expected dimension DHQK"),
        (ValueError, [*tensors, *states], places, r"c_initial: expected shape \(2, 2, 32, 48\), got \(1, 2, 32, 48\)"),
    ]:
        with pytest.raises(kind, match=message):
            vlstm.mlstm(*arguments, cu_seqlens=cu_seqlens)
    if packed_device == "cpu":
        for wrong in ([0, 10, 39], [1, 10, 40], [0, 30, 20, 40], [0, -1, 40], [0, 2**32 + 10, 40]):
            with pytest.raises(ValueError, match="cu_seqlens: expected numbers that rise from 0 to 40, or stay the same, got"):
                vlstm.mlstm(*tensors, cu_seqlens=torch.tensor(wrong))


# ---- packed sequences of the vLSTM's relatives -----------------------------------------------------


def packed_call(cell, tensors, state, cu_seqlens):
    q, k, v, kept, written = tensors
    if cell == "delta":
        return vlstm.gated_delta_rule(q, k, v, kept, written, None, state, True, cu_seqlens=cu_seqlens, head_first=True)
    if cell == "linear":
        given = {"w": written, "cu_seqlens": cu_seqlens, "head_first": True}
        return vlstm.linear_attention(q, k, v, kept, None, None, state, True, **given)
    return vlstm.mlstm_sig(q, k, v, written, kept, state, return_last_states=True, normalize=False, cu_seqlens=cu_seqlens)


def draw_relatives(positions, dtype, device):
    """Of two heads that share one of keys: q, k of length one, v, a decay and a weight."""
    generator = torch.Generator().manual_seed(0)
    heads = {"q": (1, 32), "k": (1, 32), "v": (2, 48)}
    q, k, v = (torch.randn(1, h, positions, columns, generator=generator) for h, columns in heads.values())
    kept, written = (torch.rand(1, 2, positions, generator=generator) for _ in range(2))
    k = torch.nn.functional.normalize(k, dim=-1)
    of_gate = torch.float64 if dtype == torch.float64 else torch.float32
    tensors = [t.to(device, dtype) for t in (q, k, v)] + [t.to(device, of_gate) for t in (-kept, written)]
    return [t.requires_grad_() for t in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", ["delta", "linear", "sigmoid"])
def test_packed_sequences_of_relatives(cell, dtype, packed_device):
    """As each by itself in float64, with a state of its own and gradients through the last one."""
    ends = [0, 1, 1, 65, 130]
    tensors, count = draw_relatives(ends[-1], dtype, packed_device), len(ends) - 1
    state = torch.randn(count, 2, 32, 48, generator=torch.Generator().manual_seed(1)).to(packed_device).requires_grad_()
    cu_seqlens = torch.tensor(ends, device=packed_device)
    o, last = packed_call(cell, tensors, state, cu_seqlens)
    assert o.shape == tensors[2].shape and o.dtype == dtype and last.shape == state.shape
    outer, of_last = torch.randn_like(o), torch.randn_like(last)
    got = torch.autograd.grad((o, last), [*tensors, state], (outer, of_last))
    exact = [t.detach().double().requires_grad_() for t in (*tensors, state)]
    parts = []
    for number, (first, end) in enumerate(zip(ends, ends[1:])):
        own = [t[:, :, first:end] for t in exact[:5]]
        parts.append(packed_call(cell, own, exact[5][number : number + 1], None))
    expected_o, expected_last = torch.cat([p[0] for p in parts], 2), torch.cat([p[1] for p in parts])
    bound = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert relative_error(o, expected_o) <= bound and relative_error(last, expected_last) <= bound
    expected = torch.autograd.grad((expected_o, expected_last), exact, (outer.double(), of_last.double()))
    for name, g, e in zip(("q", "k", "v", "kept", "written", "state"), got, expected):
        assert relative_error(g, e) <= bound, name
    double, _ = packed_call(cell, exact[:5], exact[5], cu_seqlens)
    assert relative_error(double, expected_o) <= 1e-12


@pytest.mark.parametrize("cell", ["delta", "linear"])
def test_packed_sequences_of_relatives_compiled(cell, packed_device):
    def loss(cu_seqlens, *tensors):
        return packed_call(cell, tensors, None, cu_seqlens)[0].float().square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for ends in ([0, 20, 64], [0, 30, 31, 100]):
        tensors = draw_relatives(ends[-1], torch.bfloat16, packed_device)
        cu_seqlens = torch.tensor(ends, device=packed_device)
        got, expected = compiled(cu_seqlens, *tensors), loss(cu_seqlens, *tensors)
        assert torch.allclose(got, expected, rtol=1e-3)
        for g, e in zip(torch.autograd.grad(got, tensors), torch.autograd.grad(expected, tensors)):
            assert relative_error(g, e) <= 2e-2
