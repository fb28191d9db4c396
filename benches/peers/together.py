"""Ours and the peers in one go on one GPU: ours, theirs, ours again; what moved between the first and the
last says how far the machine itself drifts.

    python3 benches/peers/together.py mlp|lstm [--lab PATH] [--out OUT.json]

Writes what the peers' script writes, and beside it `ours`, the lines of `lab bench` of both turns, and
`ratios`: of each family, shape and type the best version, the best peer, and how many times longer ours
takes than theirs, by `replay_us` where both have it and by `median_us` else. A run of N steps counts as one.
A version may have another type than the peer: what computes in bf16 from f32 is compared with bf16.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
BENCHES = {"mlp": ["mlp"], "lstm": ["lstm_fw", "lstm"]}


def ours(lab, names):
    lines = []
    for name in names:
        said = subprocess.run([lab, "bench", name, "--json", "--device", "cuda"], check=True, stdout=subprocess.PIPE)
        lines += json.loads(said.stdout)["results"]
    return lines


def theirs(name):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([sys.executable, HERE / f"{name}.py", file.name], check=True, stdout=sys.stderr)
        return json.load(open(file.name))


def place(line):
    """What must agree for a comparison: family, shape of one step, type of the products."""
    dims = dict(part.split("=") for part in line["shape"].split(","))
    dims.pop("N", None)
    dtype = "bf16" if line["version"].endswith("_tensor") else line["dtype"]
    return line["family"], ",".join(f"{k}={dims[k]}" for k in sorted(dims)), dtype


def steps(line):
    return next((int(p[2:]) for p in line["shape"].split(",") if p.startswith("N=")), 1)


def fastest(lines, field):
    """The least time of one step, and who needs it."""
    have = [(line[field] / steps(line), line["version"]) for line in lines if line.get(field)]
    return min(have, default=None)


def ratios(mine, peers):
    found = []
    for at in sorted({place(line) for line in peers} & {place(line) for line in mine}):
        both = [[line for line in lines if place(line) == at] for lines in (mine, peers)]
        for field in ("replay_us", "median_us"):
            own, other = (fastest(lines, field) for lines in both)
            if own and other:
                row = dict(zip(("family", "shape", "dtype"), at), by=field)
                row |= {"version": own[1], "us": own[0], "peer": other[1], "peer_us": other[0]}
                found.append(row | {"ratio": own[0] / other[0]})
                break
    return found


def drift(first, last):
    """The largest change of a median from the first turn to the last, in percent."""
    again = {(l["version"], l["shape"], l["dtype"]): l["median_us"] for l in last}
    moved = [again[k] / l["median_us"] - 1 for l in first if (k := (l["version"], l["shape"], l["dtype"])) in again]
    return max((100 * abs(m) for m in moved), default=0.0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("family", choices=BENCHES)
    parser.add_argument("--lab", default="lab")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    names = BENCHES[arguments.family]
    first = ours(arguments.lab, names)
    record = theirs(arguments.family)
    last = ours(arguments.lab, names)
    record |= {"ours": first + last, "ratios": ratios(first + last, record["results"])}
    record["drift_percent"] = drift(first, last)
    for row in record["ratios"]:
        print("{family} {shape} {dtype}: {version} {us:.1f} µs, {peer} {peer_us:.1f} µs, {ratio:.2f}".format(**row))
    print(f"drift: {record['drift_percent']:.1f} %")
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
