"""cuDNN's LSTM through PyTorch, timed on the shapes of lstm_fused.

    python3 benches/peers/lstm.py [OUT.json]

One layer, one direction, biases; the input projection is part of it. `eager`: by device events, median
of 40 calls, of long sequences 10. `graph`: the same captured in a CUDA graph and replayed, in the steady state: what 40
replays take more than 20, over 20, median of 20, or 5. `fwbw` is forward and backward from dy, all gradients
among them.
"""

import json
import sys

import torch

# B, T, I, H
SHAPES = [
    (1, 20, 1, 32),
    (1, 20, 1, 64),
    (1, 20, 1, 128),
    (1, 20, 1, 256),
    (1, 1024, 256, 256),
    (16, 20, 1, 32),
    (16, 1024, 768, 768),
    (64, 512, 512, 512),
    (256, 256, 512, 512),
]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def elapsed_us(run):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end)


def median(values):
    return sorted(values)[len(values) // 2]


def eager_us(run, runs):
    for _ in range(5):
        run()
    return median([elapsed_us(run) for _ in range(runs)])


def graph_us(run, runs):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def row(replays):
        times = []
        for _ in range(runs):
            times.append(elapsed_us(lambda: [graph.replay() for _ in range(replays)]))
        return median(times)

    row(20)
    return (row(40) - row(20)) / 20


def measure(shape, dtype):
    b, t, i, h = shape
    lstm = torch.nn.LSTM(i, h, device="cuda", dtype=dtype)
    x = torch.randn(t, b, i, device="cuda", dtype=dtype, requires_grad=True)
    h0, c0 = (torch.randn(1, b, h, device="cuda", dtype=dtype, requires_grad=True) for _ in "hc")
    dy = torch.randn(t, b, h, device="cuda", dtype=dtype)
    of = [x, h0, c0, *lstm.parameters()]

    def forward():
        with torch.no_grad():
            return lstm(x, (h0, c0))

    def both():
        return torch.autograd.grad(lstm(x, (h0, c0))[0], of, dy)

    long = t * h > 1 << 16
    runs = 5 if long else 20
    row = {"fw_us": eager_us(forward, 2 * runs), "fwbw_us": eager_us(both, 2 * runs)}
    row["fw_graph_us"] = graph_us(forward, runs)
    row["fwbw_graph_us"] = graph_us(both, runs)
    return row


def main(out=None):
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    results = []
    for shape in SHAPES:
        for name, dtype in DTYPES.items():
            row = {"shape": dict(zip("BTIH", shape)), "dtype": name}
            try:
                row |= measure(shape, dtype)
            except Exception as error:  # what cannot be captured says so, and the rest is measured
                row["failed"] = f"{type(error).__name__}: {error}"[:200]
            print(json.dumps(row), flush=True)
            results.append(row)
    if out:
        versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        with open(out, "w") as file:
            gpu = torch.cuda.get_device_name()
            json.dump({"gpu": gpu, "versions": versions, "results": results}, file, indent=1)


main(*sys.argv[1:2])
