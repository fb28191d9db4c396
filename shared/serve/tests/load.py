#!/usr/bin/env python3
"""Tokens a second of a running server, over the number of clients that ask at once.

    load.py ADDRESS [--clients 1,2,4,8] [--tokens 128] [--prompt 16] [--requests 4]

Each client asks for so many completions, one behind the other. Told are the tokens of all clients a second, the steps of each bucket, and the
mean time to the first token. The server must be idle otherwise.
"""

import argparse
import concurrent.futures
import json
import re
import time
import urllib.request


def post(address, body):
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def metrics(address):
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def measure(address, clients, arguments):
    """Seconds, tokens written, and what the samples of /metrics grew by."""
    def client(number):
        written = 0
        for n in range(arguments.requests):
            prompt = [(7 * number + 3 * n + i) % 250 for i in range(arguments.prompt)]
            answer = post(address, {"prompt": prompt, "max_tokens": arguments.tokens, "seed": number})
            written += answer["usage"]["completion_tokens"]
        return written

    before, start = metrics(address), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        written = sum(pool.map(client, range(clients)))
    seconds, after = time.monotonic() - start, metrics(address)
    return seconds, written, {name: value - before.get(name, 0) for name, value in after.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--clients", default="1,2,4,8")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--requests", type=int, default=4)
    arguments = parser.parse_args()
    measure(arguments.address, 1, argparse.Namespace(**vars(arguments) | {"requests": 1}))
    print(f"{'clients':>7} {'tokens/s':>10} {'first token, ms':>16}  steps by bucket")
    for clients in map(int, arguments.clients.split(",")):
        seconds, written, grown = measure(arguments.address, clients, arguments)
        first = grown["lab_first_token_seconds_sum"] / grown["lab_first_token_seconds_count"]
        steps = {int(m[1]): int(n) for name, n in grown.items() if n and (m := re.fullmatch(r'lab_steps_total{bucket="(\d+)"}', name))}
        print(f"{clients:7} {written / seconds:10.1f} {1e3 * first:16.1f}  {steps}")


main()
