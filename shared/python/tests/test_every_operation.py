"""What holds of every operation that the package registers: opcheck, and the same bits a second time."""

import pytest
import torch
from conftest import draw, draw_state

import vlstm
from vlstm import _launch, _lstm, _mlp, _ops

SHAPE = 1, 2, 40, 32, 48
SETTINGS = True, 1e-6, True, "auto"


def with_state(dtype, device):
    c, n, m = draw_state(SHAPE, device)
    return [*draw(SHAPE, dtype, device), c, n, m.reshape(m.shape[:2])]


def of_mlstm(dtype, device):
    return [*with_state(dtype, device), None, *SETTINGS]


def of_mlstm_backward(dtype, device):
    arguments = of_mlstm(dtype, device)
    h, c, n, m, *left = _ops.saving(*arguments)
    assert left[-1].numel() > 0
    return [torch.ones_like(h), torch.ones_like(c), None, *arguments[:9], h, c, n, m, *left, *SETTINGS]


def of_mlstm_step(dtype, device):
    *tensors, c, n, m = with_state(dtype, device)
    return [*(t[:, :, 0].contiguous() for t in tensors), c, n, m, 1e-6, "auto"]


def of_lstm(dtype, device):
    torch.manual_seed(0)
    layer = vlstm.LSTM(8, 40, 2, bidirectional=True).to(device=device, dtype=dtype)
    x, h0, c0 = (torch.randn(sizes).to(device=device, dtype=dtype) for sizes in ((5, 3, 8), (4, 3, 40), (4, 3, 40)))
    lengths = torch.tensor([5, 2, 4], dtype=torch.int32, device=device)
    return [x, lengths, h0, c0, [p.detach() for p in layer.parameters()], True]


def of_lstm_backward(dtype, device):
    *arguments, bidirectional = of_lstm(dtype, device)
    y, hn, cn, left = _lstm.saving(*arguments, bidirectional)
    assert left.numel() > 0
    return [torch.ones_like(y), torch.ones_like(hn), None, *arguments, y, hn, cn, left, bidirectional]


def of_mlp_step(dtype, device):
    torch.manual_seed(0)
    tokens, targets = torch.randint(50, (2, 3, 16), device=device)
    parameters = [p.detach() for p in vlstm.MLP(50, 16, 32, device=device).parameters()]
    products = "f32" if dtype == torch.float32 else "bf16"
    return [tokens, targets, *parameters, 0.1, products, "auto", True]


def of_gated_delta(dtype, device):
    """Heads before positions, a state, a scale."""
    *rows, g, beta = draw((1, 2, 40, 32, 48), dtype, device)
    c = draw_state((1, 2, 40, 32, 48), device)[0]
    return [rows[0][:, :1], torch.nn.functional.normalize(rows[1][:, :1], dim=-1), rows[2], -g.abs(), beta.sigmoid(), c, None, True, 0.3, "delta", "auto"]


def of_gated_delta_backward(dtype, device):
    arguments = of_gated_delta(dtype, device)
    return [torch.ones_like(arguments[2]), torch.ones_like(arguments[5]), *arguments]


def of_gated_delta_step(dtype, device):
    *tensors, c, _, _, scale, cell, version = of_gated_delta(dtype, device)
    return [*(t[:, :, 0].contiguous() for t in tensors), c, scale, cell, version]


ARGUMENTS = {
    "mlstm": of_mlstm,
    "mlstm_saving": of_mlstm,
    "mlstm_backward": of_mlstm_backward,
    "mlstm_step": of_mlstm_step,
    "lstm": of_lstm,
    "lstm_saving": of_lstm,
    "lstm_backward": of_lstm_backward,
    "mlp_step": of_mlp_step,
    "gated_delta": of_gated_delta,
    "gated_delta_backward": of_gated_delta_backward,
    "gated_delta_step": of_gated_delta_step,
}
CASES = [(name, dtype) for name in ARGUMENTS for dtype in (torch.float32, torch.bfloat16)]
# A state in float32 no version of the sequence takes.
CASES = [case for case in CASES if case not in [(f"mlstm{end}", torch.float32) for end in ("", "_saving", "_backward")]]


def test_no_operation_is_left_out():
    names = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("vlstm::")}
    assert names == set(ARGUMENTS)


@pytest.mark.parametrize("name, dtype", CASES, ids=str)
def test_opcheck(name, dtype, device):
    operation = getattr(torch.ops.vlstm, name).default
    # Under "aot_dispatch" all outputs are compared: on a GPU the bytes that are left hold gaps that nobody writes.
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if device == "cpu" or not name.endswith("saving"):
        tests.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(operation, ARGUMENTS[name](dtype, device), test_utils=tests)


def copied(arguments):
    return [copied(a) if isinstance(a, list) else a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]


def tensors_of(values):
    """All tensors of results or arguments, those of lists one by one."""
    found = []
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if isinstance(value, (list, tuple)):
            found += tensors_of(value)
        elif isinstance(value, torch.Tensor):
            found.append(value)
    return found


@pytest.mark.parametrize("name, dtype", CASES, ids=str)
def test_the_same_bits_again(name, dtype, device):
    """Of the same arguments, and of copies; what the schema does not say is changed stays."""
    operation = getattr(torch.ops.vlstm, name).default
    arguments = ARGUMENTS[name](dtype, device)
    mutates = operation._schema.is_mutable
    runs = []
    for turn in range(3):
        own = copied(arguments) if mutates or turn == 2 else arguments
        before = copied(own)
        results = tensors_of(operation(*own))
        changed = [not torch.equal(a, b) for a, b in zip(tensors_of(own), tensors_of(before))]
        assert mutates or not any(changed)
        # Bytes that are left have gaps.
        runs.append(copied([r for r in results if r.dtype != torch.uint8] + (tensors_of(own) if mutates else [])))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0]))


# ---- one forward pass, several backward passes ---------------------------------------------------


def lstm_loss(dtype, device, hidden, **more):
    torch.manual_seed(0)
    layer = vlstm.LSTM(8, hidden, **more).to(device=device, dtype=dtype)
    x = torch.randn(5, 3, 8).to(device=device, dtype=dtype).requires_grad_()
    return [x, *layer.parameters()], layer(x)[0].float()


def mlstm_loss(dtype, device, state=False, version="auto"):
    tensors = draw(SHAPE, dtype, device, grad=True)
    c, n, m = draw_state(SHAPE, device, grad=True)
    h = vlstm.mlstm(*tensors, *((c, n, m) if state else ()), version=version)
    return tensors + ([c, n] if state else []), h.float()


def check_backward_again(inputs, y):
    weights = torch.linspace(-1, 1, y.numel(), device=y.device).reshape(y.shape)
    losses = (y * weights).sum(), y.square().sum()
    first = [copied(list(torch.autograd.grad(loss, inputs, retain_graph=True))) for loss in losses]
    again = [copied(list(torch.autograd.grad(loss, inputs, retain_graph=True))) for loss in losses]
    for once, twice in zip(first, again):
        assert all(torch.equal(a, b) for a, b in zip(once, twice))
    both = torch.autograd.grad(losses[0] + losses[1], inputs)
    for sum_of_both, one, other in zip(both, *first):
        wrong = sum_of_both.float() - one.float() - other.float()
        assert wrong.norm() <= 2e-2 * (one.float().norm() + other.float().norm())
        assert wrong.abs().max() <= 8e-2 * (one.float().abs().max() + other.float().abs().max())


# Units of a warp, of a block, of a cluster, and more than that has.
UNITS = [(hidden, dtype) for hidden in (1, 40, 128) for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)]
UNITS += [(100, torch.bfloat16), (300, torch.float64), (300, torch.bfloat16), (800, torch.float32)]


@pytest.mark.parametrize("hidden, dtype", UNITS, ids=str)
def test_backward_again_of_an_lstm(hidden, dtype, device):
    check_backward_again(*lstm_loss(dtype, device, hidden))


def test_backward_again_of_an_lstm_of_several_layers(device):
    check_backward_again(*lstm_loss(torch.float32, device, 24, num_layers=2, bidirectional=True))
    check_backward_again(*lstm_loss(torch.float32, device, 24, num_layers=2, dropout=0.5))


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_backward_again_of_an_mlstm(dtype, state, device):
    check_backward_again(*mlstm_loss(dtype, device, state))


@pytest.mark.parametrize("version", [name for name, *_ in vlstm.versions()["gradients"]])
def test_backward_again_of_every_version(version, device):
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("some versions are those of newer GPUs")
    (types,) = (types for name, _, types in vlstm.versions()["gradients"] if name == version)
    dtype = torch.bfloat16 if "bf16" in types else torch.float32
    check_backward_again(*mlstm_loss(dtype, device, version=version))


def test_a_jacobian(device):
    torch.manual_seed(0)
    own, theirs = vlstm.LSTM(5, 7), torch.nn.LSTM(5, 7)
    theirs.load_state_dict(own.state_dict())
    x = torch.randn(6, 3, 5)

    def jacobian(layer, x):
        return torch.autograd.functional.jacobian(lambda a: layer(a)[0].sum((0, 1)), x)

    # On the CPU: cuDNN's sums are of TF32, where nobody says otherwise.
    expected = jacobian(theirs, x)
    assert torch.allclose(jacobian(own.to(device), x.to(device)).cpu(), expected, atol=1e-5)


# ---- memory for what is left, of any length ------------------------------------------------------


@pytest.mark.parametrize("version", [name for name, *_ in vlstm.versions()["gradients"]])
def test_there_is_room_for_what_is_left(version):
    """What the operation returns suffices for every length that leaves anything, and is not much more."""
    (types,) = (types for name, _, types in vlstm.versions()["gradients"] if name == version)
    dtype = _launch.TYPES["bf16" if "bf16" in types else "f32"]
    settings, cuts = (False, 1e-6, False, version), 0
    for batch, positions in ((1, 1), (1, 64), (2, 65), (1, 511), (1, 513), (3, 1000), (1, 4095), (8, 8192), (1, 20001)):
        q, v = (torch.empty(batch, 4, positions, size, dtype=dtype, device="cpu") for size in (64, 64))
        cut = _ops.parts(q, q, v, *[None] * 6, *settings)
        room = _ops.room(q, v, None, None, settings)
        if cut is None or room is None:
            continue
        cuts += positions > 1000
        asked, has = cut[0].left_bytes, room.bytes(batch, positions)
        # A sequence leaves states at some positions: at most those of one position more, of 4 heads, have room.
        assert asked <= has <= 1.01 * asked + 65_536 * batch, (batch, positions)
        assert cut[1].inputs <= room.reads
    assert cuts or version not in ("vlstm_fwbw_v4:v2_segments", "vlstm_fwbw_v4:v1_together")


def test_where_there_is_no_room_the_forward_pass_is_made_again(device):
    name = "vlstm_fwbw_v4:v1_together" if device == "cpu" else "auto"
    arguments = [*draw(SHAPE, torch.bfloat16, device), *[None] * 4, False, 1e-6, False, name]
    h, *more, left = _ops.saving(*arguments)
    expected = _ops.backward(torch.ones_like(h), None, None, *arguments[:9], h, *more, left, *arguments[9:])
    got = _ops.backward(torch.ones_like(h), None, None, *arguments[:9], h, *more, left[:100], *arguments[9:])
    for g, e in zip(got, expected):
        assert torch.equal(g, e)
    *results, left = _lstm.saving(*of_lstm(torch.float32, device))
    *inputs, bidirectional = of_lstm(torch.float32, device)
    outer = torch.ones_like(results[0]), None, None
    expected = _lstm.backward(*outer, *inputs, *results, left, bidirectional)
    for g, e in zip(_lstm.backward(*outer, *inputs, None, None, None, left[:100], bidirectional), expected):
        assert torch.equal(g, e)
