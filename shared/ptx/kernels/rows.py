"""Kernels of one row a block."""

import triton
import triton.language as tl


@triton.jit
def softmax(x_ptr, y_ptr, stride, columns, BLOCK: tl.constexpr):
    """y = e^(x - max x) / sum of these, row by row."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + c, mask=c < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * stride + c, e / tl.sum(e, axis=0), mask=c < columns)


@triton.jit
def normalize(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    """y = x / sqrt(sum x^2), row by row. The compiler lets the lanes' sums differ in their last bits."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + c, mask=c < columns, other=0.0)
    tl.store(y_ptr + row * columns + c, x / tl.sqrt(tl.sum(x * x)), mask=c < columns)


@triton.jit
def layer_norm(x_ptr, weight_ptr, bias_ptr, y_ptr, columns, eps, BLOCK: tl.constexpr):
    """y = (x - mean x) / sqrt(var x + eps) · weight + bias, row by row, a part of the row at a time."""
    x_ptr += tl.program_id(0) * columns
    y_ptr += tl.program_id(0) * columns
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        c = first + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + c, mask=c < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total) / columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        c = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + c, mask=c < columns, other=0.0).to(tl.float32)
        distance = tl.where(c < columns, x - mean, 0.0)
        squares += distance * distance
    scale = 1 / tl.sqrt(tl.sum(squares) / columns + eps)
    for first in range(0, columns, BLOCK):
        c = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + c, mask=c < columns, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + c, mask=c < columns)
        bias = tl.load(bias_ptr + c, mask=c < columns)
        tl.store(y_ptr + c, (x - mean) * scale * weight + bias, mask=c < columns)
