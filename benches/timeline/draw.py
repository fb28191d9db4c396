"""Draws a training step of one GPU over time from what `trace.cpp` has written, and says what its collectives cost.

    python3 draw.py step.json --out step.svg [--alone other.json] [--device 0] [--from 0.5 --to 1]

A step begins with `gather_tokens`. The last whole step is drawn: above the kernels, below the collectives, and between them, in
colour, each kernel that ran beside a collective and took longer than it does alone. Alone is its median (of the same kernel, grid and
block) over all steps of the trace, where no collective was under way; a kernel that never ran alone is not counted.

Kernels of one grid may do unlike work: those of persistent blocks have one block a multiprocessor, whatever they multiply. With `--alone`,
the trace of a training whose sums are not beside kernels (`--sum-piece all`), alone is the median of the kernel at the same place of a step:
the n-th of this name, grid and block.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict

BEGINS, OPTIMIZER, COLLECTIVES = "gather_tokens", "arena_squares", ("nccl", "copy_engine")
WIDTH, LEFT, RIGHT = 740, 86, 8
# A page has other figures of class `fig`, whose styles hold for the whole page.
STYLE = """<style>
.fig.timeline { --ink: var(--fg, #1f2328); --hot: var(--links, #20609f); font-family: sans-serif; font-size: 13px; }
@media (prefers-color-scheme: dark) { .fig.timeline { --ink: var(--fg, #d1d7e0); --hot: var(--links, #5aa0d8); } }
.fig.timeline text { fill: var(--ink); text-anchor: middle; }
.fig.timeline .small { font-size: 11px; opacity: 0.8; }
.fig.timeline .left { text-anchor: start; }
.fig.timeline .right { text-anchor: end; }
.fig.timeline .box { fill: var(--ink); fill-opacity: 0.35; stroke: none; }
.fig.timeline .hot { fill: var(--hot); fill-opacity: 1; stroke: none; }
.fig.timeline .slow { fill: #d9730d; }
.fig.timeline .line { fill: none; stroke: var(--ink); stroke-opacity: 0.4; }
</style>"""


def read(path, device):
    """Kernels of a device, in the order of their starts."""
    with open(path) as file:
        kernels = [kernel for kernel in json.load(file) if kernel["device"] == device]
    return sorted(kernels, key=lambda kernel: kernel["start"])


def is_collective(kernel):
    return any(name in kernel["name"] for name in COLLECTIVES)


def join(spans):
    """Spans of time, those that touch or overlap as one."""
    joined = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return joined


def overlap(kernel, spans):
    """Nanoseconds of a kernel during these spans."""
    return sum(max(0, min(kernel["end"], end) - max(kernel["start"], start)) for start, end in spans)


def step_of(kernels):
    """The last whole step, as its start and end: a step lasts from its first kernel to that of the next."""
    starts = [kernel["start"] for kernel in kernels if BEGINS in kernel["name"]]
    if len(starts) < 3:
        sys.exit(f"kernels named {BEGINS}: expected at least 3, one a step, got {len(starts)}")
    return starts[-2], starts[-1]


def key_of(kernel):
    return kernel["name"], kernel["blocks"], kernel["threads"]


def places(kernels):
    """Of each kernel that is no collective, which one of its key it is in its step."""
    count, of_kernels = defaultdict(int), []
    for kernel in kernels:
        if is_collective(kernel):
            continue
        if BEGINS in kernel["name"]:
            count.clear()
        key = key_of(kernel)
        of_kernels.append((kernel, (key, count[key])))
        count[key] += 1
    return of_kernels


def times_alone(kernels, by_place):
    """Medians, in nanoseconds, of kernels that ran beside no collective: of each key, or of each place of a step."""
    collectives = join((k["start"], k["end"]) for k in kernels if is_collective(k))
    times = defaultdict(list)
    for kernel, place in places(kernels):
        if not overlap(kernel, collectives):
            times[place if by_place else place[0]].append(kernel["end"] - kernel["start"])
    return {key: statistics.median(all_times) for key, all_times in times.items()}


def excess(kernels, collectives, other):
    """Each kernel beside a collective, with how many nanoseconds more it took than alone; and how many have no time alone."""
    alone = times_alone(other or kernels, other is not None)
    longer, unknown = [], 0
    for kernel, place in places(kernels):
        key = place if other else place[0]
        if not overlap(kernel, collectives):
            continue
        if key not in alone:
            unknown += 1
            continue
        longer.append((kernel, kernel["end"] - kernel["start"] - alone[key]))
    return longer, unknown


def summarize(kernels, step, other=None):
    """What the collectives of a step cost, in milliseconds; `other`: the trace that says how long kernels take alone."""
    start, end = step
    sums = join((k["start"], k["end"]) for k in kernels if is_collective(k))
    longer, unknown = excess(kernels, sums, other)
    own = [k for k in kernels if not is_collective(k)]
    inside = lambda k: start <= k["start"] < end
    busy = join((k["start"], k["end"]) for k in own if inside(k))
    of_step = [k for k in kernels if is_collective(k) and inside(k)]
    spans = join((k["start"], k["end"]) for k in of_step)
    hidden = sum(overlap({"start": s, "end": e}, spans) for s, e in busy)
    total = sum(e - s for s, e in spans)
    ms = lambda ns: round(ns / 1e6, 3)
    return {
        "step_ms": ms(end - start),
        "kernels_ms": ms(sum(e - s for s, e in busy)),
        "collectives": len(of_step),
        "collectives_ms": ms(total),
        "alone_ms": ms(total - hidden),
        "beside": sum(1 for k, _ in longer if inside(k)),
        "longer_ms": ms(sum(by for k, by in longer if inside(k) and by > 0)),
        "without_a_time_alone": unknown,
    }, [k for k, by in longer if inside(k) and by > 0.2 * (k["end"] - k["start"] - by)]


def boxes(spans, at, top, height, style):
    """Rectangles, those less than a third of a pixel apart as one."""
    joined = []
    for start, end in sorted((at(start), at(end)) for start, end in spans):
        if joined and start - joined[-1][1] < 0.3:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    path = "".join(f"M{x0:.1f} {top}H{max(x1, x0 + 0.4):.1f}V{top + height}H{x0:.1f}z" for x0, x1 in joined)
    return f'<path class="{style}" d="{path}"/>' if path else ""


def draw(kernels, step, slow, figures, share):
    """The SVG of this share of a step."""
    length = step[1] - step[0]
    begin, end = (step[0] + part * length for part in share)
    at = lambda ns: LEFT + (WIDTH - LEFT - RIGHT) * (min(max(ns, begin), end) - begin) / (end - begin)
    seen = [k for k in kernels if k["end"] > begin and k["start"] < end]
    spans = lambda of: [(k["start"], k["end"]) for k in of]
    own, sums = [k for k in seen if not is_collective(k)], [k for k in seen if is_collective(k)]
    optimizer = [k["start"] for k in own if OPTIMIZER in k["name"] and k["start"] >= step[0]]
    label = (
        f"A training step of one GPU of several, {figures['step_ms']} ms: its kernels, its collectives, and the "
        f"{len(slow)} kernels that took at least a fifth longer beside a collective than alone"
    )
    lines = [
        f'<svg class="fig timeline" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 142" role="img" aria-label="{label}">',
        STYLE,
        '<text class="small left" x="4" y="30">kernels</text>',
        boxes(spans(own), at, 14, 26, "box"),
        '<text class="small left" x="4" y="59">slowed</text>',
        boxes(spans(k for k in slow if k in seen), at, 46, 18, "slow"),
        '<text class="small left" x="4" y="87">collectives</text>',
        boxes(spans(sums), at, 70, 26, "hot"),
        f'<path class="line" d="M{LEFT} 104H{WIDTH - RIGHT}"/>',
    ]
    first, last = (begin - step[0]) / 1e6, (end - step[0]) / 1e6
    every = next(n for n in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1e9) if (last - first) / n <= 12)
    tick = -(-first // every) * every
    while tick <= last:
        x = at(step[0] + tick * 1e6)
        lines.append(f'<path class="line" d="M{x:.1f} 104v5"/><text class="small" x="{x:.1f}" y="121">{tick:g}</text>')
        tick += every
    lines.append('<text class="small left" x="4" y="121">ms</text>')
    if optimizer and begin <= optimizer[0] <= end:
        x = at(optimizer[0])
        lines.append(f'<path class="line" d="M{x:.1f} 8V104"/><text class="small right" x="{min(x + 26, WIDTH - 2):.1f}" y="136">optimizer</text>')
    return "\n".join(line for line in lines if line) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--out", help="the SVG")
    parser.add_argument("--from", dest="first", type=float, default=0.0, help="of the step, 0 to 1")
    parser.add_argument("--to", dest="last", type=float, default=1.0)
    parser.add_argument("--alone", help="the trace that says how long kernels take alone")
    arguments = parser.parse_args()
    if not 0 <= arguments.first < arguments.last <= 1:
        parser.error("--from and --to: expected 0 <= from < to <= 1")
    kernels = read(arguments.trace, arguments.device)
    step = step_of(kernels)
    figures, slow = summarize(kernels, step, arguments.alone and read(arguments.alone, arguments.device))
    print(json.dumps(figures))
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write(draw(kernels, step, slow, figures, (arguments.first, arguments.last)))


if __name__ == "__main__":
    main()
