"""`vlstm.check`: the same call on the emulator that looks at every access."""

import os
import subprocess
import sys

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


def test_states_in_float32():
    tensors, state = draw(SHAPE, torch.float32, "cpu"), draw_state(SHAPE, "cpu")
    h, last = vlstm.check(*tensors, *state, return_last_states=True, grad_h=tensors[2])
    expected_h, expected = vlstm.mlstm(*tensors, *state, return_last_states=True)
    for got, wanted in zip((h, *last), (expected_h, *expected)):
        assert torch.equal(got, wanted)


def test_a_gradient_of_another_shape_is_refused():
    tensors = draw(SHAPE, torch.bfloat16, "cpu")
    with pytest.raises(ValueError, match=r"grad_h: expected shape \(1, 1, 40, 32\), got \(1, 1, 40, 16\)"):
        vlstm.check(*tensors, grad_h=tensors[0])


BROKEN = """
import torch, vlstm
q, i = torch.randn(1, 1, 80, 16), torch.randn(1, 1, 80)
vlstm.mlstm(q, q, q, i, i)
try:
    vlstm.check(q, q, q, i, i)
except vlstm.KernelError as error:
    print(type(error).__module__, error)
"""


@pytest.mark.skipif("VLSTM_BROKEN_KERNELS" not in os.environ, reason="wants what `--example broken_kernel` writes")
def test_a_missing_barrier_is_found():
    objects = {**os.environ, "LAB_KERNEL_OBJECTS": os.environ["VLSTM_BROKEN_KERNELS"]}
    run = subprocess.run([sys.executable, "-c", BROKEN], env=objects, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("vlstm vlstm_fw<float, 64, 64, 64>: race on byte "), run.stdout
    assert "online.cu:" in run.stdout and "fix: __syncthreads() between the two" in run.stdout
