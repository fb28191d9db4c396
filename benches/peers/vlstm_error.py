"""How far the vLSTM stages and a plain PyTorch implementation in the same precision are from f64.

    python3 benches/peers/vlstm_error.py LAB [OUT.json]

LAB is the `lab` tool. Both get the same tensors, rounded to the run's type, gates in f32. Plain is the
parallel form as one would write it down: whole matrices, products in the run's type, gates, exponents and
normaliser in f32, gradients by autograd with the normaliser held constant. The error is
|out - exact| / |exact| over all elements. Ends with 1 where a stage's error is more than twice plain's and
more than a rounding of the type.
"""

import json
import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

# B, NH, S, DHQK, DHHV
SHAPES = [(1, 4, 512, 64, 64), (2, 2, 1000, 128, 128), (1, 2, 4096, 64, 64), (1, 2, 700, 256, 176)]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NAMES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
ROUNDING = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
STAGES = ["vlstm_fw_v1", "vlstm_fwbw_v0:flags", "vlstm_fwbw_v1"]
OUTPUTS = ["h", "dq", "dk", "dv", "di", "df"]


def write(path, tensors):
    header, blobs, at = {}, [], 0
    for name, t in tensors.items():
        kind = next(k for k, d in DTYPES.items() if d == t.dtype)
        blob = t.contiguous().cpu().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": NAMES[kind], "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    kinds = {NAMES[k]: d for k, d in DTYPES.items()}
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + o for o in entry["data_offsets"])
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=kinds[entry["dtype"]])
        out[name] = flat.reshape(entry["shape"]).double()
    return out


def parallel(q, k, v, i, f):
    """h of the parallel form: q k^T and the product with v in the inputs' type, the rest in the gates'."""
    s = q.shape[-2]
    sums = torch.nn.functional.logsigmoid(f).cumsum(-1)
    exponent = sums[..., :, None] - sums[..., None, :] + i[..., None, :]
    later = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
    exponent = exponent.masked_fill(later, -math.inf)
    m = exponent.max(-1, keepdim=True).values.detach()
    scores = (q @ k.transpose(-1, -2)).to(i.dtype) / math.sqrt(q.shape[-1])
    weights = scores * (exponent - m).exp()
    n = torch.maximum(weights.sum(-1, keepdim=True).abs(), (-m).exp()).detach() + 1e-6
    return (weights / n).to(v.dtype) @ v


def run(tensors, dtype, gates):
    t = {n: x.to(gates if n in "if" else dtype).detach().requires_grad_(n != "dh") for n, x in tensors.items()}
    h = parallel(t["q"], t["k"], t["v"], t["i"], t["f"])
    h.backward(t["dh"])
    return {"h": h.detach().double().cpu(), **{"d" + n: t[n].grad.double().cpu() for n in "qkvif"}}


def error(got, exact):
    return ((got - exact).norm() / exact.norm()).item()


def main():
    lab = str(Path(sys.argv[1]).resolve())
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, bad = [], 0
    for shape in SHAPES:
        b, nh, s, dhqk, dhhv = shape
        normal = lambda *last: torch.randn(b, nh, s, *last, device=device)
        drawn = {"q": normal(dhqk), "k": normal(dhqk), "v": normal(dhhv), "i": normal(), "f": 3 + normal()}
        drawn["dh"] = normal(dhhv)
        for kind, dtype in DTYPES.items():
            tensors = {n: x if n in "if" else x.to(dtype) for n, x in drawn.items()}
            exact = run(tensors, torch.float64, torch.float64)
            plain = {n: error(x, exact[n]) for n, x in run(tensors, dtype, torch.float32).items()}
            row = {"shape": dict(zip(["B", "NH", "S", "DHQK", "DHHV"], shape)), "dtype": kind, "plain": plain}
            with tempfile.TemporaryDirectory() as folder:
                given, out = Path(folder) / "in.safetensors", Path(folder) / "out.safetensors"
                write(given, tensors)
                for stage in STAGES:
                    command = [lab, "run", stage, "--input", given, "--output", out, "--no-check"]
                    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                    found = {n: error(x, exact[n]) for n, x in read(out).items() if n in OUTPUTS}
                    row[stage] = found
                    for n, e in found.items():
                        # di and df are f32 in every run.
                        floor = ROUNDING["f32" if n in ("di", "df") else kind]
                        if not e <= 2 * plain[n] + floor:
                            bad += 1
                            print(f"{stage} {shape} {kind} {n}: {e:.2e}, plain {plain[n]:.2e}")
            rows.append(row)
            print(shape, kind, {n: f"{row['vlstm_fwbw_v1'][n]:.1e} / {plain[n]:.1e}" for n in OUTPUTS})
    if len(sys.argv) > 2:
        versions = {"torch": torch.__version__}
        where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        text = json.dumps({"device": where, "versions": versions, "results": rows}, indent=1)
        Path(sys.argv[2]).write_text(text + "\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
