"""`vlstm.mamba_chunk_scan_combined` against Mamba-2's recurrence in float64."""

import pytest
import torch
from conftest import relative_error
from torch.nn.functional import silu, softplus

import vlstm

SHAPE = 2, 70, 4, 32, 2, 48  # B, T, H, P, G, N
NAMES = "x", "dt", "A", "B", "C", "D", "z", "dt_bias"
# Of y, of gradients.
BOUNDS = {torch.float32: (3e-6, 1e-5), torch.bfloat16: (1e-2, 2e-2), torch.float64: (1e-13, 1e-12)}


def draw(dtype, device, grad=False, shape=SHAPE):
    batch, positions, heads, columns, groups, states = shape
    generator = torch.Generator().manual_seed(0)

    def normal(*sizes, dtype=dtype):
        return torch.randn(*sizes, generator=generator).to(device, dtype)

    exact = torch.float64 if dtype == torch.float64 else torch.float32
    x, z = (normal(batch, positions, heads, columns) for _ in range(2))
    b, c = (normal(batch, positions, groups, states) for _ in range(2))
    dt, a = normal(batch, positions, heads, dtype=exact) - 2, -normal(heads, dtype=exact).exp()
    skip, bias = normal(heads, columns), normal(heads, dtype=exact)
    return [t.requires_grad_(grad) for t in (x, dt, a, b, c, skip, z, bias)]


def recurrence(x, dt, a, b, c, skip, z, bias, state=None):
    """y and the last state, from position to position."""
    x, dt, a, b, c, skip, z, bias = (t.double() for t in (x, dt, a, b, c, skip, z, bias))
    width = softplus(dt + bias)
    b, c = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (b, c))
    s = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[3]) if state is None else state.double()
    rows = []
    for t in range(x.shape[1]):
        kept, written = (width[:, t] * a).exp()[..., None, None], width[:, t, :, None] * x[:, t]
        s = kept * s + written[..., None] * b[:, t, :, None]
        rows.append((s * c[:, t, :, None]).sum(-1))
    return (torch.stack(rows, 1) + skip * x) * silu(z), s


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forward_states_and_gradients(dtype, device):
    tensors = draw(dtype, device, grad=True)
    state = torch.randn(2, 4, 32, 48, generator=torch.Generator().manual_seed(1)).to(device)
    given = dict(zip(NAMES, tensors))
    y, last = vlstm.mamba_chunk_scan_combined(
        **given, chunk_size=256, initial_states=state, dt_softplus=True, return_final_states=True
    )
    exact = [t.detach().double().requires_grad_() for t in tensors]
    expected, exact_last = recurrence(*exact, state)
    of_y, of_gradients = BOUNDS[dtype]
    assert y.dtype == dtype and last.shape == (2, 4, 32, 48)
    assert relative_error(y, expected) <= of_y and relative_error(last, exact_last) <= of_y
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    y.backward(upstream)
    expected.backward(upstream.double())
    for name, got, wanted in zip(NAMES, tensors, exact):
        assert relative_error(got.grad, wanted.grad) <= of_gradients, name


def test_float64_and_what_is_left_out():
    tensors = draw(torch.float64, "cpu", shape=(1, 9, 2, 3, 1, 5))
    given = dict(zip(NAMES, tensors))
    y = vlstm.mamba_chunk_scan_combined(**given, dt_softplus=True)
    assert relative_error(y, recurrence(*tensors)[0]) <= 1e-13
    x, dt, a, b, c, skip, z, bias = tensors
    zeros = torch.zeros_like
    plain = vlstm.mamba_chunk_scan_combined(x, softplus(dt), a, b, c)
    expected, _ = recurrence(x, dt, a, b, c, zeros(skip), zeros(z), zeros(bias))
    # silu(0) is 0, so what is left out there is divided out here.
    ones = torch.full_like(z, 50.0)
    expected = recurrence(x, dt, a, b, c, zeros(skip), ones, zeros(bias))[0] / silu(ones)
    assert relative_error(plain, expected) <= 1e-12
    of_head = vlstm.mamba_chunk_scan_combined(x, softplus(dt), a, b, c, D=skip[:, 0])
    assert relative_error(of_head, expected + skip[:, :1] * x) <= 1e-12
    held = vlstm.mamba_chunk_scan_combined(x, dt, a, b, c, dt_limit=(0.1, 0.2))
    assert torch.equal(held, vlstm.mamba_chunk_scan_combined(x, dt.clamp(0.1, 0.2), a, b, c))


WRONG = [
    (ValueError, {"dt": lambda t: t[..., 1:]}, r"dt: expected shape \(2, 70, 4\), got \(2, 70, 3\)"),
    (ValueError, {"C": lambda t: t[..., 1:]}, r"C: expected shape \(2, 70, 2, 48\), got \(2, 70, 2, 47\)"),
    (ValueError, {"D": lambda t: t.mT}, r"D: expected shape \(4,\) or \(4, 32\), got \(32, 4\)"),
    (TypeError, {"A": None}, "A: expected a torch.Tensor, got NoneType"),
    (TypeError, {"B": None}, "B: expected a torch.Tensor, got NoneType"),
    (ValueError, {"chunk_size": 0}, "chunk_size: expected None or a positive int, got 0"),
    (NotImplementedError, {"seq_idx": torch.zeros(2, 70)}, "seq_idx: expected None"),
    (NotImplementedError, {"return_varlen_states": True}, "return_varlen_states: expected False"),
    (ValueError, {"initial_states": torch.zeros(2, 4, 48, 32)}, r"initial_state: expected shape \(2, 4, 32, 48\)"),
]


@pytest.mark.parametrize("kind, changed, message", WRONG, ids=lambda w: next(iter(w)) if isinstance(w, dict) else "")
def test_what_is_refused(kind, changed, message):
    given = dict(zip(NAMES, draw(torch.bfloat16, "cpu")))
    for name, change in changed.items():
        given[name] = change(given[name]) if callable(change) else change
    with pytest.raises(kind, match=message):
        vlstm.mamba_chunk_scan_combined(**given)
