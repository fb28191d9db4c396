"""A tensor by boxes: the kernel makes the descriptors, and copies by TMA on sm_90."""

import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BM, BN])
    y = tl.make_tensor_descriptor(y_ptr, [M, N], [N, 1], [BM, BN])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    y.store([m, n], x.load([m, n]) * 2)


@triton.jit
def double_described(x, y, BM: tl.constexpr, BN: tl.constexpr):
    """The same with descriptors that the host makes."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    y.store([m, n], x.load([m, n]) * 2)
