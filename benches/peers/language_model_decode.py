"""A token of decoding, and the reading of a prompt, of `lab lm bench` and of PyTorch in turns, on one GPU: the same sizes, random weights.

    language_model_decode.py LAB [--sequences 1 8 64 --prompt 16384 --turns 3 --out RECORD.json]
                             [--width 4096 --heads 8 --blocks 32 --vocabulary 50304]

LAB is the tool. The peer is the model of `lab lm` in bf16, compiled, with the kernels of mlstm_kernels (its step, and its
chunkwise kernels `xl_chunk` for the prompt): a CUDA graph a token, and one for the prompt, which ends in the logits of its last
token. The memory is kept in f32. The peer compiles four blocks at a time, as often as there are blocks. Prints one JSON object:
of both the milliseconds of each turn, and their medians.

    pip install mlstm-kernels==2.0.6
"""

import argparse
import importlib.metadata
import json
import re
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

EPS, GATE_CAP, GROUP = 1e-6, 15.0, 4


class Model:
    """Weights of `blocks` blocks, in bf16: q, k, v and output gate as one matrix, gates, output; gate and up as one, down."""

    def __init__(self, width, heads, blocks, vocabulary):
        self.width, self.heads, self.vocabulary = width, heads, vocabulary
        self.hidden = -(-width * 8 // 3 // 64) * 64
        normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02
        shapes = [(3 * width, width), (2 * heads, width), (width, width), (2 * self.hidden, width), (width, self.hidden)]
        self.blocks = [[normal(*shape) for shape in shapes] for _ in range(blocks)]
        self.embedding, self.head = normal(vocabulary, width), normal(vocabulary, width)

    def block(self, x, weights, mix):
        """x [rows, width] behind one block; mix(q, k, v, i, f) is its mixer, of [rows, heads, columns]."""
        qkvo, gates, out, up, down = weights
        width, rows = self.width, x.shape[0]
        y = F.rms_norm(x, (width,), eps=EPS)
        q, k, v, o = F.linear(y, qkvo).split([width // 2, width // 2, width, width], -1)
        i, f = (GATE_CAP * torch.tanh(F.linear(y, gates).float() / GATE_CAP)).chunk(2, -1)
        h = mix(*(t.reshape(rows, self.heads, -1) for t in (q, k, v)), i, f).float()
        h = F.layer_norm(h, h.shape[-1:], eps=EPS).to(x.dtype).reshape(rows, width)
        x = x + F.linear(torch.sigmoid(o) * h, out)
        a, b = F.linear(F.rms_norm(x, (width,), eps=EPS), up).chunk(2, -1)
        return x + F.linear(F.silu(a) * b, down)

    def logits(self, x):
        return F.linear(F.rms_norm(x, (self.width,), eps=EPS), self.head)


def in_a_graph(run):
    """run() captured once; a function that gives the milliseconds of `times` replays, each."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def time_of(times, kept=run):  # a replay reads what run() holds
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        first.record()
        for _ in range(times):
            graph.replay()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / times

    return time_of


def token(model, sequences):
    """A token of so many sequences, from tokens to the likeliest next ones."""
    from mlstm_kernels.torch.recurrent.triton_step import mlstm_recurrent_step__triton as step

    heads, keys, values = model.heads, model.width // model.heads // 2, model.width // model.heads
    zeros = lambda *shape: torch.zeros(sequences, heads, *shape, device="cuda")
    states = [[zeros(keys, values), zeros(keys), zeros(1)] for _ in model.blocks]

    def some(x, weights, states):
        after = []
        for w, state in zip(weights, states):

            def mix(q, k, v, i, f):
                h, new = step(q=q, k=k, v=v, i=i[..., None], f=f[..., None], c=state[0], n=state[1], m=state[2])
                after.append(new)
                return h

            x = model.block(x, w, mix)
        return x, after

    some, last = torch.compile(some), torch.compile(lambda x: model.logits(x).argmax(-1))
    tokens = torch.zeros(sequences, dtype=torch.long, device="cuda")

    def run():
        x = F.embedding(tokens, model.embedding)
        for n in range(0, len(model.blocks), GROUP):
            x, _ = some(x, model.blocks[n:n + GROUP], states[n:n + GROUP])
        return last(x)

    return run


def prompt(model, positions):
    """A prompt of one sequence, to the logits of its last token."""
    from mlstm_kernels.torch.chunkwise.triton_xl_chunk import mlstm_chunkwise__xl_chunk as chunks

    @torch.compiler.disable  # its kernels are not what a compiler of PyTorch's may compile once more: it crashes
    def mix(q, k, v, i, f):
        q, k, v = (t.transpose(0, 1)[None].contiguous() for t in (q, k, v))
        i, f = (t.T[None].to(q.dtype).contiguous() for t in (i, f))
        h = chunks(q, k, v, i, f, autocast_kernel_dtype=torch.bfloat16)
        return h[0].transpose(0, 1)

    def some(x, weights):
        for w in weights:
            x = model.block(x, w, mix)
        return x

    some, last = torch.compile(some), torch.compile(lambda x: model.logits(x[-1:]))
    tokens = torch.randint(model.vocabulary, (positions,), device="cuda")

    def run():
        x = F.embedding(tokens, model.embedding)
        for n in range(0, len(model.blocks), GROUP):
            x = some(x, model.blocks[n:n + GROUP])
        return last(x)

    return run


def of_lab(lab, sizes, arguments, said):
    """Milliseconds that `lab lm bench` tells."""
    command = [lab, "lm", "bench", *sizes, "--dtype", "bf16", "--runs", "3", "--tokens", "16", *arguments]
    run = subprocess.run(command, capture_output=True, text=True)
    found = re.search(said, run.stdout + run.stderr)
    if run.returncode or not found:
        raise SystemExit(f"{' '.join(command)} ended with {run.returncode}: {run.stderr[-300:]}")
    return float(found[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lab")
    for name, size in [("width", 4096), ("heads", 8), ("blocks", 32), ("vocabulary", 50304), ("prompt", 16384), ("turns", 3)]:
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--sequences", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--out")
    a = parser.parse_args()
    torch.manual_seed(0)
    begun = time.time()
    model = Model(a.width, a.heads, a.blocks, a.vocabulary)
    sizes = [s for n in ("width", "heads", "blocks", "vocabulary") for s in (f"--{n}", str(getattr(a, n)))]
    rows = []
    with torch.no_grad():
        for n in a.sequences:
            rows.append([{"sequences": n}, in_a_graph(token(model, n)), 20, ["--sequences", str(n)], r"([\d.]+) ms a token"])
        if a.prompt:
            said = ["--prompt", str(a.prompt)]
            rows.append([{"prompt": a.prompt}, in_a_graph(prompt(model, a.prompt)), 2, said, r"prompt.*?([\d.]+) ms"])
    package = importlib.metadata.version
    record = {"peer": f"PyTorch {torch.__version__}, compiled, mlstm_kernels {package('mlstm_kernels')}", "sizes": sizes,
              "device": torch.cuda.get_device_name(), "seconds_of_compilation": time.time() - begun, "rows": []}
    for row, time_of, times, arguments, said in rows:
        row |= {"lab": [], "peer": []}
        for _ in range(a.turns):
            row["peer"].append(time_of(times))
            row["lab"].append(of_lab(a.lab, sizes, arguments, said))
        row["ms"] = [statistics.median(row[who]) for who in ("lab", "peer")]
        record["rows"].append(row)
    text = json.dumps(record, indent=1)
    print(text)
    if a.out:
        with open(a.out, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
