"""`vlstm.check`: the same call on the emulator that looks at every access."""

import pytest
import torch
from conftest import DTYPES, draw, draw_state, equations, relative_error

import vlstm

SHAPE = 1, 1, 40, 16, 32


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_is_found_and_the_result_is_right(dtype):
    tensors = draw(SHAPE, dtype, "cpu", grad=True)
    h = vlstm.check(*tensors, grad_h=torch.ones(tensors[2].shape))
    assert not h.requires_grad
    assert torch.equal(h, vlstm.mlstm(*tensors))


def test_the_versions_of_gpus_with_states():
    tensors, state = draw(SHAPE, torch.bfloat16, "cpu"), draw_state(SHAPE, "cpu")
    version = "vlstm_fw_v4:v2_segments,vlstm_fwbw_v4:v2_segments"
    h, last = vlstm.check(*tensors, *state, return_last_states=True, version=version, grad_h=tensors[2])
    expected_h, expected = equations(*tensors, *state)
    for got, wanted in zip((h, *last), (expected_h, *expected)):
        assert relative_error(got, wanted) <= 9e-3


def test_a_gradient_of_another_shape_is_refused():
    tensors = draw(SHAPE, torch.bfloat16, "cpu")
    with pytest.raises(ValueError, match=r"grad_h: expected shape \(1, 1, 40, 32\), got \(1, 1, 40, 16\)"):
        vlstm.check(*tensors, grad_h=tensors[0])
