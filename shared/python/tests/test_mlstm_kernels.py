"""The same calls, of mlstm_kernels' own plain PyTorch code and of this package. Skipped where it is not installed."""

import pytest
import torch
from conftest import draw, draw_state, relative_error

import vlstm

native = pytest.importorskip("mlstm_kernels.torch.chunkwise.native.fwbw")
native_step = pytest.importorskip("mlstm_kernels.torch.recurrent.native_step")

SHAPE = 2, 2, 128, 32, 48


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 5e-6), (torch.bfloat16, 1.2e-2)], ids=str)
def test_a_sequence(dtype, bound, given, device):
    tensors = draw(SHAPE, dtype, device, grad=True)
    state = draw_state(SHAPE, device) if given else [None] * 3
    # In float32, which is what its plain code is for.
    copies = [t.detach().float().requires_grad_() for t in tensors]
    options = {"return_last_states": True, "eps": 1e-6, "chunk_size": 64}
    expected, (c, n, m) = native.mlstm_chunkwise__native_custbw(*copies, *state, **options)
    h, last = vlstm.mlstm(*tensors, *state, **options)
    assert relative_error(h, expected) <= bound
    assert [t.shape for t in last] == [t.shape for t in (c, n, m)]
    # What a state stands for: c and n carry exp(-m), and without an initial state its m begins at 0.
    factor = (last[2] - m).exp()
    assert relative_error(last[0] * factor[..., None], c) <= bound
    assert relative_error(last[1] * factor, n) <= bound
    outer = torch.randn(h.shape, generator=torch.Generator().manual_seed(1)).to(device)
    wanted = torch.autograd.grad(expected, copies, outer)
    for g, e in zip(torch.autograd.grad(h, tensors, outer.to(dtype)), wanted):
        assert relative_error(g, e) <= bound


def test_a_step(device):
    q, k, v, i, f = (t[:, :, 0] for t in draw(SHAPE, torch.float32, device))
    arguments = q, k, v, i[..., None], f[..., None], *draw_state(SHAPE, device)
    expected, of_expected = native_step.mlstm_recurrent_step__native(*arguments)
    h, state = vlstm.mlstm_step(*arguments)
    for got, wanted in zip((h, *state), (expected, *of_expected)):
        assert got.shape == wanted.shape and relative_error(got, wanted) <= 1e-6
