"""Kernels whose programs and warps pass values through memory: barriers, atomics, stages by hand."""

import triton
import triton.language as tl


@triton.jit
def turn(x_ptr, scratch_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Each block's part of x backwards, through memory."""
    first = tl.program_id(0) * BLOCK
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + first + i, mask=first + i < n, other=0.0)
    tl.store(scratch_ptr + first + i, x)
    tl.debug_barrier()
    back = tl.load(scratch_ptr + first + BLOCK - 1 - i)
    tl.store(y_ptr + first + i, back, mask=first + i < n)


@triton.jit
def relay(x_ptr, ring_ptr, y_ptr, steps, BLOCK: tl.constexpr):
    """y_i = sum over steps of x of the right neighbour, through a ring of two stages."""
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(0, steps):
        stage = ring_ptr + step % 2 * BLOCK
        x = tl.load(x_ptr + step * BLOCK + i)
        tl.store(stage + i, x)
        tl.debug_barrier()
        total += tl.load(stage + (i + 1) % BLOCK)
    tl.store(y_ptr + i, total)


@triton.jit
def count(x_ptr, counts_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    """How many of x there are of each number."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=BINS)
    tl.atomic_add(counts_ptr + x, 1, mask=x < BINS)


@triton.jit
def total(x_ptr, parts_ptr, done_ptr, sum_ptr, n, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of x: the program that is done last adds up what each has left."""
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(parts_ptr + p, tl.sum(x))
    tl.debug_barrier()
    before = tl.atomic_add(done_ptr, 1, sem="acq_rel")
    if before == PROGRAMS - 1:
        parts = tl.load(parts_ptr + tl.arange(0, PROGRAMS))
        tl.store(sum_ptr, tl.sum(parts))


@triton.jit
def add_up(x_ptr, lock_ptr, sums_ptr, BLOCK: tl.constexpr):
    """Adds a row of x for each program to one row, under a lock."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + i)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    sums = tl.load(sums_ptr + i)
    tl.store(sums_ptr + i, sums + x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def transpose(x_ptr, y_ptr, M, N, B: tl.constexpr):
    """y[n, m] = x[m, n], a tile a program."""
    m = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N))
    tl.store(y_ptr + n[None, :] * M + m[:, None], x, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def gather(table_ptr, index_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    """y_i = row index_i of a table; zeros where there is no such row."""
    i, c = tl.program_id(0), tl.arange(0, BLOCK)
    row = tl.load(index_ptr + i)
    known = (row >= 0) & (row < rows)
    x = tl.load(table_ptr + row * columns + c, mask=(c < columns) & known, other=0.0)
    tl.store(y_ptr + i * columns + c, x, mask=c < columns)
