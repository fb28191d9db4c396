"""How a script of this folder talks with `lab bench --peers`: problems in, times out, a line of JSON each.

In, on standard input: {"family": "lstm_fw", "shape": {"B": 1, "T": 20, "I": 1, "H": 32}, "dtype": "f32"}.
Out: first {"libraries": [...]}, what is measured and its versions; then for each problem a line a peer, and
{"end": true}. A peer's line has its `version` and either `failed`, why there is no time, or what a line of
benches/history has: `median_us`, `p10_us`, `p90_us` and `runs` by device events, each run with a cold
second-level cache; `replay_us`, the same captured in a CUDA graph, in the steady state: what 40 replays
take more than 20, over 20; `relative_error`; and, where they say something, `products`, what the operands of
products are rounded to (`tf32` or `halves`), `peak_bytes`, the most device memory that was taken beyond the
inputs, and `computes`, where that is another function.

With "turns": true in the problem the script prepares its peers and times nothing by itself:

    out: {"version": "cudnn", "prepared": true, "replayed": true, "relative_error": 1e-3}   a line a peer, or `failed`
         {"end": true}
    in:  {"turn": "cudnn"}      out: {"us": 12.3}     one run with a cold cache, behind one that does not count
    in:  {"steady": "cudnn"}    out: {"replays": 20, "rows_us": [200.0, 390.0]}   so many replays, and twice as many
    in:  {"release": true}      out: {"end": true}    nothing of the problem is in memory any more

A turn that fails is answered by {"version": "cudnn", "failed": "why"}; that peer has no more turns. Between turns a script
has no work on the GPU. `lab bench --in-turns` asks in this way, between runs of its own versions.

LAB_PEERS=xl_chunk,jax measures these alone: some take minutes to compile for each shape.

By hand:

    echo '{"family": "vlstm_fw", "shape": {"B": 1, "NH": 4, "S": 512, "DHQK": 64, "DHHV": 64},
           "dtype": "bf16"}' | tr -d '\\n' | python3 benches/peers/vlstm.py
"""

import functools
import gc
import json
import os
import sys

import torch


class Peer:
    """A peer that is prepared: `run` computes the problem once, on the current stream; `row` is what its line says beside times.

    By itself it is timed `runs` times. Where `is_replayed`, its steady state is that of `captured` (`run` where none is named) in
    a CUDA graph, of which one run makes `steps`; by itself, the medians of `replays` rows.
    """

    def __init__(self, run, row, runs=20, replays=10, is_replayed=True, captured=None, steps=1):
        self.run, self.row, self.runs, self.replays = run, row, runs, replays
        self.is_replayed, self.captured, self.steps = is_replayed, captured or run, steps

    @functools.cached_property
    def replay(self):
        return capture(self.captured)

    def cold_us(self):
        """One run with a cold second-level cache."""
        sweep().sum()
        return elapsed_us(self.run)

    def turn_us(self):
        """The same behind a run of its own, so that it does not find what another process has left."""
        self.run()
        return self.cold_us()

    def row_us(self, count):
        """So many runs, one replay after the other."""
        return self.steps * elapsed_us(lambda: [self.replay() for _ in range(count)])

    @functools.cached_property
    def replays_of_row(self):
        """20 replays, or as many as take 10 ms, but 3 at least."""
        self.row_us(1)
        return max(3, min(20, int(1e4 * self.steps / max(1, self.row_us(1)))))

    def rows_us(self):
        count = self.replays_of_row
        return {"replays": count, "rows_us": [self.row_us(count), self.row_us(2 * count)]}

    def steady_us(self):
        median = lambda count: sorted(self.row_us(count) for _ in range(self.replays))[self.replays // 2]
        median(20)
        return (median(40) - median(20)) / 20

    def alone(self):
        """Its line, timed by itself. Three runs warm up."""
        row = self.row | quantiles([self.cold_us() for _ in range(self.runs + 3)][3:])
        return row | {"replay_us": self.steady_us()} if self.is_replayed else row


def answer(libraries, lines):
    """`lines(problem)` yields for each peer its name and a function that prepares it, and returns a `Peer`."""
    # Libraries print what they like: to standard error with that.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    tell = lambda line: print(json.dumps(line), file=out)
    tell({"libraries": libraries})
    for line in sys.stdin:
        asked = json.loads(line)
        peers = ((name, prepare) for name, prepare in lines(asked) if wanted(name))
        (take_turns if asked.get("turns") else one_by_one)(peers, tell)
        tell({"end": True})


def one_by_one(peers, tell):
    for name, prepare in peers:
        tell({"version": name} | attempt(lambda: prepare().alone()))
        del prepare
        torch.cuda.empty_cache()  # the memory is not this process's alone


def take_turns(peers, tell):
    """All of them are in memory at once, until they are released."""
    ready = {}

    def prepared(name, prepare):
        ready[name] = prepare()
        return {"prepared": True, "replayed": ready[name].is_replayed} | ready[name].row

    for name, prepare in peers:
        tell({"version": name} | attempt(lambda: prepared(name, prepare)))
        del prepare
        torch.cuda.empty_cache()
    tell({"end": True})
    for line in sys.stdin:
        match json.loads(line):
            case {"turn": name}:
                row = attempt(lambda: {"us": ready[name].turn_us()})
            case {"steady": name}:
                row = attempt(lambda: ready[name].rows_us())
            case _:
                break
        tell({"version": name} | row if "failed" in row else row)
    ready.clear()
    gc.collect()
    torch.cuda.empty_cache()


def attempt(work):
    """What it gives, or why it gives nothing: what does not fit says so, and the rest is measured."""
    try:
        return work()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:300]}


def wanted(name):
    """LAB_PEERS names those that are to be measured, with commas between; all where it is not set."""
    names = os.environ.get("LAB_PEERS")
    return not names or name in names.split(",")


def relative_error(found, exact):
    """|found - exact| / |exact| over all elements, as in benches/history."""
    return ((found.double() - exact).norm() / exact.norm()).item()


def peak_bytes(run):
    """The most device memory that a run takes beyond what is there, behind one that warms up."""
    run()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before


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


def quantiles(times):
    times = sorted(times)
    at = lambda share: times[min(int(share * len(times)), len(times) - 1)]
    return {"median_us": at(0.5), "p10_us": at(0.1), "p90_us": at(0.9), "runs": len(times)}


def capture(run):
    """A CUDA graph's replay of it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
