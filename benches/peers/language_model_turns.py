"""A training step of `lab lm train` and of PyTorch in turns, on one GPU: the same sizes, types, batch and window.

    language_model_turns.py LAB [vlstm|attention|products] [--turns 3 --out RECORD.json] SIZES

With `products` LAB's mixer is the vLSTM, and the peer has only cuBLAS' products of that step. LAB is the tool; SIZES go to both:
--width --heads --blocks --vocabulary --window --batch. PyTorch compiles first, and waits while LAB trains; each turn of LAB is a training of its own, told by its second look (10 steps, the first 10 not counted), and ended there. Both
models are in the GPU's memory while LAB runs. Prints one JSON object: of both the tokens a second of each turn, and their median.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

LOOK = re.compile(r"step 20/\d+ .* (\d+) tokens/s")
PEER = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "language_model.py")]


def train(lab, mixer, sizes, directory):
    """Tokens a second of steps 11 to 20 of a training of LAB, and the line that says what came before the first."""
    text = os.path.join(directory, "text")
    if not os.path.exists(text):
        with open(text, "wb") as file:
            file.write(os.urandom(8 << 20))
    command = [lab, "lm", "train", text, "--mixer", mixer, *sizes, "--steps", "1000", "--look-every", "10", "--held-out", "0",
               "--warm-up", "0", "--lr", "3e-4", "--out", os.path.join(directory, "model.safetensors")]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = []
    try:
        for line in run.stderr:
            said.append(line)
            if found := LOOK.search(line):
                start = next((line.strip() for line in said if line.startswith("first step after")), None)
                return float(found[1]), start
    finally:
        run.kill()
        run.wait()
    raise SystemExit("LAB ended before its second look: " + "".join(said[-5:]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lab")
    parser.add_argument("mixer", nargs="?", choices=["vlstm", "attention", "products"], default="vlstm")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out")
    a, sizes = parser.parse_known_args()
    begun = time.time()
    peer = subprocess.Popen([*PEER, a.mixer, *sizes, "--turns", "--steps", "30" if a.mixer == "products" else "10"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first = peer.stdout.readline()
    if not first:
        raise SystemExit("the peer ended before its first turn")
    record = {"sizes": sizes, "mixer": a.mixer, "seconds_of_compilation": time.time() - begun, "lab": [], "lab_start": [], "peer": []}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(a.turns):
            speed, start = train(a.lab, a.mixer.replace("products", "vlstm"), sizes, directory)
            record["lab"].append(speed)
            record["lab_start"].append(start)
            peer.stdin.write("turn\n")
            peer.stdin.flush()
            record["peer"].append(json.loads(peer.stdout.readline()))
    peer.stdin.close()
    peer.wait()
    record["tokens_per_second"] = [statistics.median(record["lab"]),
                                   statistics.median(turn["tokens_per_second"] for turn in record["peer"])]
    text = json.dumps(record, indent=1)
    print(text)
    if a.out:
        with open(a.out, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
