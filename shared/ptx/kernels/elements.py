"""Kernels of one element a lane, and what goes wrong in such ones."""

import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, sum_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(sum_ptr + i, x + y, mask=i < n)


@triton.jit
def add_without_mask(x_ptr, y_ptr, sum_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(sum_ptr + i, x + y, mask=i < n)


@triton.jit
def drop(x_ptr, kept_ptr, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    is_kept = tl.rand(seed, i) > p
    tl.store(kept_ptr + i, tl.where(is_kept, x / (1 - p), 0.0), mask=i < n)


# ANCHOR: add_left
@triton.jit
def add_left(x_ptr, n, BLOCK: tl.constexpr):
    """x_i = x_i + x_(i-1), in place: each element reads what its neighbour writes."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x_ptr + i - 1, mask=(i > 0) & (i < n), other=0.0)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(x_ptr + i, x + left, mask=i < n)
# ANCHOR_END: add_left


@triton.jit
def rotate(x_ptr, BLOCK: tl.constexpr):
    """In place, of fewer elements than the block has threads: several threads load each, and one stores it."""
    i = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + i), tl.load(x_ptr + BLOCK + i)
    tl.store(x_ptr + i, x - y)
    tl.store(x_ptr + BLOCK + i, x + y)


@triton.jit
def reverse(x_ptr, scratch_ptr, reversed_ptr, BLOCK: tl.constexpr):
    """What other warps of the block write is read without a barrier."""
    i = tl.arange(0, BLOCK)
    tl.store(scratch_ptr + i, tl.load(x_ptr + i))
    tl.store(reversed_ptr + i, tl.load(scratch_ptr + BLOCK - 1 - i))


@triton.jit
def copy_twice(x_ptr, scratch_ptr, copy_ptr, n, BLOCK: tl.constexpr):
    """The last element of the scratch is not written, and read."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(scratch_ptr + i, x, mask=i < n - 1)
    tl.debug_barrier()
    again = tl.load(scratch_ptr + i, mask=i < n)
    tl.store(copy_ptr + i, again, mask=i < n)


@triton.jit
def scale(x_ptr, new, n, do, BLOCK: tl.constexpr):
    """Parameters with names that C++ keeps for itself."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(new + i, do * tl.load(x_ptr + i, mask=i < n), mask=i < n)
