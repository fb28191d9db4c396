"""A suite of tests for kernels of Triton, as people write theirs for a GPU: test_triton_suite.py runs it on the emulator."""

import pytest
import torch
import triton
import triton.language as tl

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def double_without_mask(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, 2 * x, mask=i < n)


@triton.jit
def shift(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i + 1, mask=i + 1 < n, other=0.0)
    tl.store(x_ptr + i, x, mask=i < n)


@triton.jit
def scale_all(pointers_ptr, sizes_ptr, do, BLOCK: tl.constexpr):
    x_ptr = tl.load(pointers_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    mask = i < tl.load(sizes_ptr + tl.program_id(0))
    tl.store(x_ptr + i, do * tl.load(x_ptr + i, mask=mask), mask=mask)


@triton.jit
def nth_bits(x_ptr, y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    text: tl.constexpr = "fns.b32 $0, $1, $2, 1;"
    x = tl.load(x_ptr + i)
    y = tl.inline_asm_elementwise(text, "=r,r,r", [x, x], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y_ptr + i, y)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.is_cuda and x.device.type == "cuda"
        y = torch.empty_like(x)
        double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
        return y

    @staticmethod
    def backward(ctx, dy):
        return Double.forward(ctx, dy.contiguous())


@pytest.mark.parametrize("n", [100, 1000])
def test_double(n):
    torch.manual_seed(0)
    x = torch.randn(n, device=DEVICE, requires_grad=True)
    y = Double.apply(x)
    torch.testing.assert_close(y, 2 * x)
    y.backward(torch.ones_like(y))
    assert x.grad.cpu().eq(2).all()
    torch.cuda.synchronize()


def test_a_copy_on_the_host_stays():
    host = torch.arange(10.0)
    x = host.to(DEVICE)
    double[(1,)](x, x, 10)
    assert host[9] == 9 and x.cpu()[9] == 18 and x.to(DEVICE) is x


def test_pointers_in_a_tensor():
    x, y = torch.ones(10, device=DEVICE), torch.ones(20, device=DEVICE)
    pointers = torch.tensor([x.data_ptr(), y[5:].data_ptr()], device=DEVICE)
    scale_all[(2,)](pointers, torch.tensor([10, 3], device=DEVICE), 3.0, BLOCK=16)
    assert x.eq(3).all() and y.tolist() == [1] * 5 + [3] * 3 + [1] * 12


def test_a_mask_left_out():
    x = torch.randn(1000, device=DEVICE)
    double_without_mask[(4,)](x, torch.empty_like(x), 1000, BLOCK=256)


def test_a_race_that_is_swallowed():
    x = torch.randn(1000).cuda()
    try:
        shift[(4,)](x, 1000, BLOCK=256)
    except RuntimeError:
        pass


def test_an_instruction_that_the_emulator_does_not_know():
    x = torch.arange(32, dtype=torch.int32, device=DEVICE)
    nth_bits[(1,)](x, torch.empty_like(x), BLOCK=32)
