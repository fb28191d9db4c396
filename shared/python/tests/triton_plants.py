"""Mistakes planted in kernels of Triton and in their PTX, written down before the first of them ran.

Each is a text that is replaced in a file of shared/ptx/kernels, and the lines of that file at which a report must be: those that
contain one of these texts, as the file has them after the replacement. `RESULT` says that no access is wrong, only numbers.
"""

from collections import namedtuple

# `nth`: which of the places of `old`, from 0; `lines`: texts of lines, of the Python file for PTX, too.
Plant = namedtuple("Plant", "problem old new lines nth", defaults=[0])
RESULT = ()

TRITON = [
    # A mask left out, or wrong.
    Plant("add", "x = tl.load(x_ptr + i, mask=i < n)", "x = tl.load(x_ptr + i)", ["x = tl.load(x_ptr + i)"]),
    Plant("add", "tl.store(sum_ptr + i, x + y, mask=i < n)", "tl.store(sum_ptr + i, x + y)", ["tl.store(sum_ptr + i, x + y)"]),
    Plant("add", "x + y, mask=i < n", "x + y, mask=i <= n", ["mask=i <= n"]),
    Plant("add", "x + y, mask=i < n", "x + y, mask=i < n - 1", ["def add"]),
    Plant("softmax", "mask=c < columns, other", "mask=c < BLOCK, other", ["mask=c < BLOCK, other"]),
    Plant("softmax", 'mask=c < columns, other=-float("inf")', 'mask=c < columns, other=0.0', RESULT),
    Plant("softmax", "tl.sum(e, axis=0), mask=c < columns", "tl.sum(e, axis=0)", ["tl.sum(e, axis=0))"]),
    Plant("layer_norm", "weight = tl.load(weight_ptr + c, mask=c < columns)", "weight = tl.load(weight_ptr + c)", ["weight = tl.load(weight_ptr + c)"]),
    Plant("layer_norm", "bias = tl.load(bias_ptr + c, mask=c < columns)", "bias = tl.load(bias_ptr + c + 1, mask=c < columns)", ["bias = tl.load("]),
    Plant("layer_norm", "distance = tl.where(c < columns, x - mean, 0.0)", "distance = x - mean", RESULT),
    Plant("matmul", "mask=(m[:, None] < M) & (k[None, :] < K)", "mask=k[None, :] < K", ["a = tl.load"]),
    Plant("matmul", "mask=(k[:, None] < K) & (n[None, :] < N)", "mask=n[None, :] < N", ["b = tl.load"]),
    Plant("matmul", "element_ty), mask=(m[:, None] < M) & (n[None, :] < N)", "element_ty), mask=m[:, None] < M", ["tl.store(c, acc"]),
    Plant("attention", "element_ty), mask=i[:, None] < S", "element_ty)", ["tl.store(o_ptr"]),
    Plant("attention", "+ d[:, None], mask=j[None, :] < S, other=0.0", "+ d[:, None]", ["k = tl.load"]),
    Plant("transpose", "x, mask=(m[:, None] < M) & (n[None, :] < N)", "x, mask=m[:, None] < M", ["tl.store(y_ptr + n[None, :] * M"]),
    Plant("gather", "(row >= 0) & (row < rows)", "row < rows", ["x = tl.load(table_ptr"]),
    Plant("gather", "(row >= 0) & (row < rows)", "row >= 0", ["x = tl.load(table_ptr"]),
    Plant("count", "mask=x < BINS", "mask=x <= BINS", ["tl.atomic_add(counts_ptr"]),
    # A wrong stride.
    Plant("matmul", "b_ptr + k[:, None] * N", "b_ptr + k[:, None] * K", ["b = tl.load"]),
    Plant("matmul", "c_ptr + m[:, None] * N", "c_ptr + m[:, None] * M", ["tl.store(c, acc"]),
    Plant("matmul", "a_ptr + m[:, None] * K", "a_ptr + m[:, None] * N", ["a = tl.load"]),
    Plant("softmax", "y_ptr + row * stride + c", "y_ptr + row * BLOCK + c", ["tl.store(y_ptr"]),
    Plant("transpose", "n[None, :] * M + m[:, None], x", "n[None, :] * N + m[:, None], x", ["tl.store(y_ptr"]),
    Plant("layer_norm", "y_ptr += tl.program_id(0) * columns", "y_ptr += tl.program_id(0) * BLOCK", ["tl.store(y_ptr + c"]),
    # The first run had `S * BM` here, which is the same number.
    Plant("attention", "head = tl.program_id(0) * BM, tl.program_id(1) * S * D", "head = tl.program_id(0) * BM, tl.program_id(1) * S * D // 2", ["tl.load(q_ptr", "tl.load(k_ptr", "tl.load(v_ptr", "tl.store(o_ptr"]),
    # A wrong index.
    Plant("add", "i = tl.program_id(0) * BLOCK", "i = tl.program_id(0) * (BLOCK - 1)", ["tl.store(sum_ptr"]),
    Plant("add", "tl.store(sum_ptr + i", "tl.store(sum_ptr + i + 1", ["tl.store(sum_ptr"]),
    Plant("turn", "first + BLOCK - 1 - i)", "first + BLOCK - i)", ["back = tl.load"]),
    Plant("turn", "y_ptr + first + i, back", "y_ptr + i, back", ["tl.store(y_ptr"]),
    Plant("total", "tl.store(parts_ptr + p, ", "tl.store(parts_ptr + p // 2, ", ["tl.store(parts_ptr"]),
    Plant("gather", "y_ptr + i * columns + c", "y_ptr + i * columns + c + 1", ["tl.store(y_ptr"]),
    Plant("matmul", "n = tl.program_id(1) * BN", "n = tl.program_id(0) * BN", ["tl.store(c, acc"]),
    # A barrier, an atomic or a lock left out, or a stage wrong.
    Plant("turn", "    tl.debug_barrier()\n", "", ["tl.store(scratch_ptr", "back = tl.load"]),
    Plant("relay", "        tl.debug_barrier()\n", "", ["tl.store(stage + i", "total += tl.load"]),
    Plant("relay", "step % 2 * BLOCK", "step % 1 * BLOCK", ["tl.store(stage + i", "total += tl.load"]),
    Plant("relay", "tl.load(stage + (i + 1) % BLOCK)", "tl.load(ring_ptr + (step + 1) % 2 * BLOCK + (i + 1) % BLOCK)", ["total += tl.load"]),
    Plant("relay", "step % 2 * BLOCK", "step % 3 * BLOCK", ["tl.store(stage + i"]),
    Plant("count", "tl.atomic_add(counts_ptr + x, 1, mask=x < BINS)", "tl.store(counts_ptr + x, tl.load(counts_ptr + x, mask=x < BINS) + 1, mask=x < BINS)", ["tl.store(counts_ptr"]),
    Plant("total", 'sem="acq_rel"', 'sem="relaxed"', ["tl.store(parts_ptr", "parts = tl.load"]),
    Plant("total", "PROGRAMS - 1", "PROGRAMS - 2", ["tl.store(parts_ptr", "parts = tl.load"]),
    Plant("add_up", "    while tl.atomic_cas(lock_ptr, 0, 1) == 1:\n        pass\n", "", ["sums = tl.load", "tl.store(sums_ptr"]),
    Plant("add_up", "    tl.debug_barrier()\n", "", ["sums = tl.load", "tl.store(sums_ptr"]),
    Plant("total", "    tl.debug_barrier()\n", "", ["tl.store(parts_ptr", "parts = tl.load"]),
    # A sum that begins with what nobody has set, and numbers alone.
    Plant("attention", "decay = tl.exp2(row_max - new_max)", "decay = tl.exp2(new_max - row_max)", RESULT),
    Plant("layer_norm", "tl.sum(squares) / columns", "tl.sum(squares) / BLOCK", RESULT),
]  # fmt: skip

# In PTX: a line that is removed or changed, by its beginning.
PTX = [
    Plant("matmul.sm_90", "bar.sync \t0;", "", ["a = tl.load", "b = tl.load", "tl.dot"], 0),
    Plant("matmul.sm_90", "bar.sync \t0;", "", ["a = tl.load", "b = tl.load", "tl.dot"], 1),
    Plant("matmul.sm_90", "bar.sync \t0;", "", ["tl.store(c, acc"], 3),
    Plant("matmul.sm_90", "cp.async.wait_group \t0;", "", ["a = tl.load", "b = tl.load", "tl.dot"], 0),
    Plant("matmul.sm_90", "fence.proxy.async.shared::cta;", "", ["tl.dot"], 0),
    Plant("matmul.sm_90", "wgmma.fence.sync.aligned;", "", ["tl.dot"], 0),
    Plant("matmul.sm_90", "wgmma.wait_group.sync.aligned 0;", "", ["tl.dot", "acc.to"], 0),
    Plant("matmul.sm_90", "wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;", ["a = tl.load", "b = tl.load", "tl.dot"], 0),
    Plant("matmul.sm_90", "wgmma.commit_group.sync.aligned;", "", ["tl.dot"], 0),
    Plant("matmul.sm_80", "bar.sync \t0;", "", ["a = tl.load", "b = tl.load"], 0),
    Plant("matmul.sm_80", "bar.sync \t0;", "", ["a = tl.load", "b = tl.load"], 2),
    Plant("matmul.sm_80", "cp.async.wait_group \t0;", "", ["a = tl.load", "b = tl.load"], 0),
    Plant("double.sm_90", "fence.proxy.async.shared::cta;", "", ["x.load"], 0),
    Plant("double.sm_90", "fence.proxy.async.shared::cta;", "", ["y.store"], 1),
    Plant("double.sm_90", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r19], 2048;", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r19], 1024;", ["x.load"]),
    Plant("double.sm_90", "@!complete bra.uni waitLoop;", "", ["x.load"]),
    Plant("double.sm_90", "cp.async.bulk.wait_group \t0;", "", ["y.store"]),
    Plant("softmax.sm_90", "bar.sync \t0;", "", ["tl.max", "tl.sum"], 0),
    Plant("softmax.sm_90", "bar.sync \t0;", "", ["tl.max", "tl.sum"], 1),
    Plant("attention.sm_90", "cp.async.wait_group \t0;", "", ["k = tl.load", "v = tl.load", "tl.dot"], 0),
    Plant("attention.sm_90", "wgmma.wait_group.sync.aligned 0;", "", ["tl.dot", "scores"], 0),
]  # fmt: skip
