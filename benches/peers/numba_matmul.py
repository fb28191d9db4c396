"""The emulator's test kernel in Numba's CUDA simulator, for comparison.

    pip install numba && python3 benches/peers/numba_matmul.py 256

The same kernel here: cargo test -p lab-emulator --release --test speed -- --nocapture
"""

import os
import sys
import time

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np  # noqa: E402
from numba import cuda, float32  # noqa: E402

TILE = 16


@cuda.jit
def matmul(a, b, c):
    # On lines of their own: the simulator tells shared arrays apart by line.
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE + y, cuda.blockIdx.x * TILE + x
    total = float32(0)
    for k0 in range(0, a.shape[0], TILE):
        a_tile[y, x] = a[row, k0 + x]
        b_tile[y, x] = b[k0 + y, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    c[row, column] = total


n = int(sys.argv[1])
rng = np.random.default_rng(0)
a, b = rng.random((2, n, n), dtype=np.float32)
c = np.full((n, n), np.nan, dtype=np.float32)
start = time.perf_counter()
matmul[(n // TILE, n // TILE), (TILE, TILE)](a, b, c)
seconds = time.perf_counter() - start
error = np.linalg.norm(c - a.astype(float) @ b) / np.linalg.norm(a.astype(float) @ b)
assert error <= 1e-6, error
print(f"{n} x {n}, {TILE} x {TILE} tiles: {seconds:.2f} s")
