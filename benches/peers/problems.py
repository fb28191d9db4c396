"""How a script of this folder talks with `lab bench --peers`: problems in, times out, a line of JSON each.

In, on standard input: {"family": "lstm_fw", "shape": {"B": 1, "T": 20, "I": 1, "H": 32}, "dtype": "f32"}.
Out: first {"libraries": [...]}, what is measured and its versions; then for each problem a line a peer, and
{"end": true}. A peer's line has its `version` and either `failed`, why there is no time, or what a line of
benches/history has: `median_us`, `p10_us`, `p90_us` and `runs` by device events, each run with a cold
second-level cache; `replay_us`, the same captured in a CUDA graph, in the steady state: what 40 replays
take more than 20, over 20; `relative_error`; and, where they say something, `products`, what the operands of
products are rounded to (`tf32` or `halves`), `peak_bytes`, the most device memory that was taken beyond the
inputs, and `computes`, where that is another function.

LAB_PEERS=xl_chunk,jax measures these alone: some take minutes to compile for each shape.

By hand:

    echo '{"family": "vlstm_fw", "shape": {"B": 1, "NH": 4, "S": 512, "DHQK": 64, "DHHV": 64},
           "dtype": "bf16"}' | tr -d '\\n' | python3 benches/peers/vlstm.py
"""

import functools
import json
import os
import sys

import torch


def answer(libraries, measure):
    """`measure(problem)` yields for each peer its name and a function that returns the rest of its line."""
    # Libraries print what they like: to standard error with that.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"libraries": libraries}), file=out)
    for line in sys.stdin:
        for name, run in measure(json.loads(line)):
            if not wanted(name):
                continue
            try:
                row = run()
            except Exception as error:  # what does not fit says so, and the rest is measured
                row = {"failed": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps({"version": name} | row), file=out)
            del run
            torch.cuda.empty_cache()  # the memory is not this process's alone
        print('{"end": true}', file=out)


def wanted(name):
    """LAB_PEERS names those that are to be measured, with commas between; all where it is not set."""
    names = os.environ.get("LAB_PEERS")
    return not names or name in names.split(",")


def relative_error(found, exact):
    """|found - exact| / |exact| over all elements, as in benches/history."""
    return ((found.double() - exact).norm() / exact.norm()).item()


@functools.cache
def sweep():
    """More than any second-level cache holds. It is read, not written: written lines would stay to be written
    back while the next kernel runs."""
    return torch.ones(64 << 20, device="cuda")


def elapsed_us(run):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end)


def launched(run, runs):
    def cold():
        sweep().sum()
        return elapsed_us(run)

    return quantiles([cold() for _ in range(runs + 3)][3:])


def quantiles(times):
    times = sorted(times)
    at = lambda share: times[min(int(share * len(times)), len(times) - 1)]
    return {"median_us": at(0.5), "p10_us": at(0.1), "p90_us": at(0.9), "runs": len(times)}


def replay_us(run, runs):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return steady_us(graph.replay, runs)


def steady_us(run, runs):
    """What 40 runs one after the other take more than 20, over 20."""

    def row(count):
        times = [elapsed_us(lambda: [run() for _ in range(count)]) for _ in range(runs)]
        return sorted(times)[runs // 2]

    row(20)
    return (row(40) - row(20)) / 20
