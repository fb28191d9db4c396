#!/usr/bin/env python3
"""Tokens a second of a running server, over the number of clients that ask at once.

    load.py ADDRESS [--clients 1,2,4,8] [--tokens 128] [--prompt 16] [--requests 4] [--beside 0]

Each client asks for so many completions, one behind the other. Told are the tokens of all clients a second, the steps of each bucket, and the
mean time to the first token. The server must be idle otherwise.

With --beside N, one more client asks again and again for a text behind a prompt of N tokens, and the others read streams: told are also the
median, the 99th percentile and the longest of the times between two pieces of a stream's text, how many long prompts were read meanwhile, how
long one took on average to its first token, and the longest piece of a prompt since the server began.
"""

import argparse
import concurrent.futures
import json
import re
import threading
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


def stream(address, body):
    """Tokens written, and seconds between two pieces of the text."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    gaps, last, written = [], None, 0
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            now, event = time.monotonic(), json.loads(line[6:])
            written = event.get("usage", {}).get("completion_tokens", written)
            if event["choices"] and event["choices"][0]["text"]:
                gaps += [now - last] if last else []
                last = now
    return written, gaps


def measure(address, clients, arguments):
    """Seconds, tokens written, what the samples of /metrics grew by, gaps of streams, seconds of each long prompt."""
    gaps, long, ended = [], [], threading.Event()

    def client(number):
        written = 0
        for n in range(arguments.requests):
            prompt = [(7 * number + 3 * n + i) % 250 for i in range(arguments.prompt)]
            body = {"prompt": prompt, "max_tokens": arguments.tokens, "seed": number}
            if arguments.beside:
                tokens, between = stream(address, body)
                gaps.extend(between)
            else:
                tokens = post(address, body)["usage"]["completion_tokens"]
            written += tokens
        return written

    def beside():
        while not ended.is_set():
            start = time.monotonic()
            post(address, {"prompt": [(len(long) + 5 * i) % 250 for i in range(arguments.beside)], "max_tokens": 1})
            long.append(time.monotonic() - start)

    before, start = metrics(address), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients + 1) as pool:
        other = pool.submit(beside) if arguments.beside else None
        written = sum(pool.map(client, range(clients)))
        seconds = time.monotonic() - start
        ended.set()
        if other:
            other.result()
    grown = {name: value - before.get(name, 0) for name, value in metrics(address).items()}
    return seconds, written, grown, sorted(gaps), long


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--clients", default="1,2,4,8")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--beside", type=int, default=0)
    arguments = parser.parse_args()
    measure(arguments.address, 1, argparse.Namespace(**vars(arguments) | {"requests": 1}))
    print(f"{'clients':>7} {'tokens/s':>10} {'first token, ms':>16}  steps by bucket")
    for clients in map(int, arguments.clients.split(",")):
        seconds, written, grown, gaps, long = measure(arguments.address, clients, arguments)
        first = grown["lab_first_token_seconds_sum"] / grown["lab_first_token_seconds_count"]
        steps = {int(m[1]): int(n) for name, n in grown.items() if n and (m := re.fullmatch(r'lab_steps_total{bucket="(\d+)"}', name))}
        print(f"{clients:7} {written / seconds:10.1f} {1e3 * first:16.1f}  {steps}")
        if gaps and long:
            at = lambda share: 1e3 * gaps[min(int(share * len(gaps)), len(gaps) - 1)]
            longest = 1e3 * metrics(arguments.address)["lab_prompt_piece_seconds_max"]
            print(
                f"{'':7} between two pieces of a text {at(0.5):.1f} ms, 99 % within {at(0.99):.1f}, longest {at(1):.1f}; "
                f"{len(long)} prompts of {arguments.beside} tokens in {1e3 * sum(long) / len(long):.1f} ms each; longest piece {longest:.1f} ms"
            )


main()
