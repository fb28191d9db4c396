"""How far the stage `attention` and plain PyTorch in the same precision are from f64.

    python3 benches/peers/attention_error.py LAB [OUT.json]

LAB is the `lab` tool. Both get the same tensors, rounded to the run's type. Plain is causal attention as one would write it
down: whole matrices of scores, products in the run's type, the softmax in f32, gradients by autograd. The error is
|out - exact| / |exact| over all elements; one shape has scores eight times as large. Ends with 1 where an error here is more than
twice plain's and more than a rounding of the type.
"""

import json
import math
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from vlstm_error import DTYPES, ROUNDING, error, read, write

# B, NH, NKV, S, D, and what q is multiplied by
SHAPES = [(1, 4, 4, 512, 64, 1), (2, 4, 2, 1000, 128, 1), (1, 2, 2, 2048, 128, 8), (1, 2, 1, 700, 256, 1), (1, 2, 2, 300, 80, 1)]
VERSIONS = {
    "v0_scores": ["f32", "f16", "bf16"],
    "v1_online": ["f32", "f16", "bf16"],
    "v2_mma": ["f16", "bf16"],
    "v5_wgmma": ["f16", "bf16"],
    "v6_turns": ["f16", "bf16"],
    "v3_scores_back": ["f32", "f16", "bf16"],
    "v4_mma_back": ["f16", "bf16"],
    "v7_wgmma_back": ["f16", "bf16"],
}


def causal(q, k, v, sums):
    """o and lse: both products in the type of q, k and v, the softmax in `sums`."""
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    s = q.shape[2]
    scores = (q @ k.mT).to(sums) / math.sqrt(q.shape[3])
    scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1), -math.inf)
    return scores.softmax(-1).to(v.dtype) @ v, scores.logsumexp(-1)


def run(tensors, dtype, sums):
    t = {n: x.to(dtype).detach().requires_grad_(n != "do") for n, x in tensors.items()}
    o, lse = causal(t["q"], t["k"], t["v"], sums)
    o.backward(t["do"])
    return {"o": o, "lse": lse, **{"d" + n: t[n].grad for n in "qkv"}}


def double(outputs):
    return {n: x.detach().double().cpu() for n, x in outputs.items()}


def errors(lab, version, tensors, exact, folder):
    """Of each output of a version."""
    given, out = folder / f"{version}.in.safetensors", folder / f"{version}.out.safetensors"
    write(given, {n: x for n, x in tensors.items() if version.endswith("_back") or n != "do"})
    command = [lab, "run", f"attention:{version}", "--input", given, "--output", out, "--no-check"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return {n: error(x, exact[n]) for n, x in read(out).items() if n in exact}


def main():
    lab = str(Path(sys.argv[1]).resolve())
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, bad = [], 0
    for b, nh, nkv, s, d, larger in SHAPES:
        shape = {"B": b, "NH": nh, "NKV": nkv, "S": s, "D": d}
        normal = lambda heads: torch.randn(b, heads, s, d, device=device)
        drawn = {"q": larger * normal(nh), "k": normal(nkv), "v": normal(nkv), "do": normal(nh)}
        for kind, dtype in DTYPES.items():
            tensors = {n: x.to(dtype) for n, x in drawn.items()}
            exact = double(run(tensors, torch.float64, torch.float64))
            plain = {n: error(x, exact[n]) for n, x in double(run(tensors, dtype, torch.float32)).items()}
            row = {"shape": shape, "q_times": larger, "dtype": kind, "plain": plain}
            # Those by warps have registers for 128 columns.
            of_kind = [v for v, kinds in VERSIONS.items() if kind in kinds and (d <= 128 or "mma" not in v or "wgmma" in v)]
            with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
                row |= dict(zip(of_kind, pool.map(lambda v: errors(lab, v, tensors, exact, Path(folder)), of_kind)))
            for version in of_kind:
                for n, e in row[version].items():
                    # lse is f32 in every run.
                    floor = ROUNDING["f32" if n == "lse" else kind]
                    if not e <= 2 * plain[n] + floor:
                        bad += 1
                        print(f"{version} {shape} {kind} {n}: {e:.2e}, plain {plain[n]:.2e}")
            rows.append(row)
            best = row["v3_scores_back" if kind == "f32" else "v7_wgmma_back"]
            print(shape, larger, kind, {n: f"{best[n]:.1e} / {plain[n]:.1e}" for n in exact})
    if len(sys.argv) > 2:
        where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        record = {"device": where, "versions": {"torch": torch.__version__}, "results": rows}
        Path(sys.argv[2]).write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
