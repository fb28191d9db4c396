"""The parallel vLSTM of mlstm_kernels in Triton, timed on the shapes of the vLSTM stages.

    pip install mlstm_kernels==2.0.6 && python3 benches/peers/vlstm.py [OUT.json]

`limit_headdim`, forward alone and forward with backward, by device events, the second-level cache
flushed before each run: median of 20. Peak memory is PyTorch's, beyond the inputs and dh. Each shape is
first checked against PyTorch in f64 on one of its heads.
"""

import json
import sys

import torch
from mlstm_kernels.torch.parallel.native.fw import mlstm_parallel_fw as native
from mlstm_kernels.torch.parallel.triton_limit_headdim import mlstm_parallel__limit_headdim as peer

# B, NH, S, DHQK, DHHV
SHAPES = [(8, 16, 2048, 128, 128), (4, 8, 1024, 64, 64), (1, 8, 8192, 64, 64)]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def median_us(run, flush, runs=20):
    times = []
    for _ in range(3):
        run()
    for _ in range(runs):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return sorted(times)[runs // 2]


def measure(shape, dtype, flush):
    b, nh, s, dhqk, dhhv = shape
    normal = lambda *last: torch.randn(b, nh, *last, device="cuda")
    q, k, v, dh = (normal(s, d).to(dtype) for d in (dhqk, dhqk, dhhv, dhhv))
    i, f = normal(s), 3 + normal(s)
    inputs = [t.requires_grad_() for t in (q, k, v, i, f)]
    forward = lambda: peer(*inputs, autocast_kernel_dtype=dtype)

    def both():
        for t in inputs:
            t.grad = None
        forward().backward(dh)

    h = forward()[0, 0].double()
    exact = native(*(t[:1, :1].detach().double() for t in inputs))[0][0, 0]
    error = ((h - exact).norm() / exact.norm()).item()
    with torch.no_grad():
        fw = median_us(forward, flush)
    fwbw = median_us(both, flush)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    both()
    peak = torch.cuda.max_memory_allocated() - before
    return {"fw_us": fw, "fwbw_us": fwbw, "error": error, "peak_bytes": peak}


def main(out=None):
    torch.manual_seed(0)
    flush = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    results = []
    for shape in SHAPES:
        for name, dtype in DTYPES.items():
            row = {"shape": dict(zip(("B", "NH", "S", "DHQK", "DHHV"), shape)), "dtype": name}
            try:
                row |= measure(shape, dtype, flush)
            except Exception as error:  # a kernel that does not fit says so, and the rest is measured
                row["failed"] = f"{type(error).__name__}: {error}"[:200]
            print(json.dumps(row), flush=True)
            results.append(row)
    if out:
        import triton

        gpu = torch.cuda.get_device_name()
        versions = {"torch": torch.__version__, "triton": triton.__version__, "mlstm_kernels": "2.0.6"}
        with open(out, "w") as file:
            json.dump({"gpu": gpu, "versions": versions, "results": results}, file, indent=1)


main(*sys.argv[1:2])
