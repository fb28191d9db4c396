"""How the peers are timed: by device events, eagerly and as a replayed CUDA graph."""

import torch


def elapsed_us(run):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end)


def eager(run, runs):
    for _ in range(5):
        run()
    times = sorted(elapsed_us(run) for _ in range(runs))
    at = lambda share: times[min(int(share * runs), runs - 1)]
    return {"median_us": at(0.5), "p10_us": at(0.1), "p90_us": at(0.9), "runs": runs}


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

    def row(replays):
        times = [elapsed_us(lambda: [graph.replay() for _ in range(replays)]) for _ in range(runs)]
        return sorted(times)[runs // 2]

    row(20)
    return (row(40) - row(20)) / 20
