#!/usr/bin/env python3
"""Drives `lab lm serve` with the published `openai` package, on the emulator, with a tiny model that is trained first.

    client.py [DIRECTORY OF lab AND lab-serve]

Many streams at once give what each gets alone; a client that goes away frees its slot; a thousand requests that are none are all
refused, while others are served; a server that is stopped ends what runs.
"""

import concurrent.futures
import http.client
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import openai

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAMS = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/debug").resolve()
SLOTS, QUEUE, LENGTH, BODY = 4, 6, 2000, 20000
PATIENCE = 60  # seconds


def start(directory):
    """The process of a server, and its address."""
    model = directory / "tiny.safetensors"
    lab = PROGRAMS / "lab"
    sizes = "--width 32 --heads 1 --blocks 1 --window 32 --batch 2 --steps 20".split()
    train = [lab, "--device", "emulator", "lm", "train", ROOT / "README.md", *sizes, "--out", model]
    subprocess.run(train, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limits = f"--port 0 --slots {SLOTS} --queue {QUEUE} --length {LENGTH} --body {BODY}".split()
    serve = [lab, "--device", "emulator", "lm", "serve", model, *limits]
    process = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def metrics(address):
    """The samples of /metrics by their names and labels."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def wait_for(address, name, value):
    """Waits until a sample has a value."""
    end = time.monotonic() + PATIENCE
    while (found := metrics(address)[name]) != value:
        assert time.monotonic() < end, f"{name} is {found}, not {value}"
        time.sleep(0.02)


def text_of(client, asked, stream):
    """The text of a completion, whole or in pieces."""
    completion = client.completions.create(model="tiny", stream=stream, **asked)
    if not stream:
        return completion.choices[0].text
    return "".join(event.choices[0].text for event in completion if event.choices)


def streams_are_as_alone(client, address):
    text = "What a text begins with"
    asked = [
        dict(prompt=text[: 3 + n], max_tokens=8 + 7 * (n % 4), temperature=[0, 0.7, 1.3][n % 3], seed=n)
        for n in range(SLOTS + QUEUE)
    ]
    alone = [text_of(client, one, stream=False) for one in asked]
    assert all(alone) and len(set(alone)) > len(alone) / 2
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda one: text_of(client, one, stream=True), asked))
    assert together == alone, "a text depends on what is beside it"
    steps = metrics(address)
    buckets = sorted(int(n) for n in re.findall(r'lab_steps_total{bucket="(\d+)"}', "\n".join(steps)))
    assert buckets[-1] == SLOTS, buckets
    print(f"{len(asked)} streams at once, each as alone, in steps of {buckets} sequences")


def answers_are_complete(client):
    asked = dict(model="tiny", prompt="The ", max_tokens=9, temperature=0)
    one = client.completions.create(**asked)
    assert (one.usage.prompt_tokens, one.usage.completion_tokens, one.usage.total_tokens) == (4, 9, 13)
    assert (one.choices[0].finish_reason, one.model, one.object) == ("length", "tiny", "text_completion")
    assert client.completions.create(**asked | {"prompt": list(b"The ")}).choices[0].text == one.choices[0].text
    assert client.completions.create(**asked, echo=True).choices[0].text == "The " + one.choices[0].text
    likeliest = client.completions.create(**asked | {"temperature": 1}, seed=3, extra_body={"top_k": 1})
    assert likeliest.choices[0].text == one.choices[0].text
    events = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert events[-1].usage.total_tokens == 13 and events[-2].choices[0].finish_reason == "length"
    assert [model.id for model in client.models.list()] == ["tiny"]
    for error, wrong in [
        (openai.NotFoundError, {"model": "other"}),
        (openai.BadRequestError, {"n": 2}),
        (openai.BadRequestError, {"logprobs": 3}),
        (openai.BadRequestError, {"max_tokens": LENGTH}),
    ]:
        try:
            client.completions.create(**asked | wrong)
        except error as refused:
            (name,) = wrong
            assert refused.param == name and name in refused.message, refused
        else:
            raise AssertionError(f"{wrong} was not refused")
    print("answers are complete, errors are named")


def who_goes_frees_a_slot(client, address):
    before = metrics(address)['lab_sequences_total{end="gone"}']
    asked = dict(model="tiny", prompt="The ", max_tokens=1900, stream=True)
    streams = [client.completions.create(**asked) for _ in range(SLOTS)]
    for stream in streams:
        next(iter(stream))
    assert metrics(address)["lab_sequences_running"] == SLOTS
    for stream in streams:
        stream.close()
    wait_for(address, "lab_sequences_running", 0)
    gone = metrics(address)['lab_sequences_total{end="gone"}'] - before
    assert gone == SLOTS, f"{gone} of {SLOTS}"
    print(f"{SLOTS} clients went, {SLOTS} slots are free")


def bodies(count):
    """Requests none of which is right."""
    draw = random.Random(1)
    right = json.dumps({"prompt": "The ", "max_tokens": 4})
    wrong = [0, -1, 1e9, "x", [], {}, True, None, [[]], "\u0000", 2**70, ["a", "b"], [-1], [256], {"a": {}}]
    fields = {"prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream", "n", "logprobs", "logit_bias", "x"}
    fine = {
        "prompt": ["x", "\u0000"], "max_tokens": [None], "temperature": [0, True, None], "top_p": [None], "top_k": [0, None],
        "seed": [0, -1, None], "stop": ["x", [], ["a", "b"], "\u0000", None], "stream": [True, None], "n": [None],
        "logprobs": [None], "logit_bias": [{}, None], "x": [],
    }
    for n in range(count):
        kind = n % 4
        if kind == 0:
            yield right[: draw.randrange(len(right))].encode()
        elif kind == 1:
            yield bytes(draw.randrange(256) for _ in range(draw.randrange(1, 200)))
        elif kind == 2:
            yield b"[" * draw.randrange(1, 9000)
        else:
            name = draw.choice(sorted(fields))
            value = draw.choice([v for v in wrong if not any(v == f and type(v) is type(f) for f in fine[name])])
            yield json.dumps({"prompt": "The ", "max_tokens": 4, name: value}).encode()


def bad_requests_lose_nothing(client, address, count=1000):
    host = address.removeprefix("http://")
    headers = {"content-type": "application/json"}
    asked = dict(prompt="The ", max_tokens=24, temperature=1, seed=8)
    alone = text_of(client, asked, stream=False)
    before = metrics(address)
    statuses = {}

    def refused(body):
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        error = json.loads(answer.read())["error"]
        assert 400 <= answer.status < 500 and {"message", "type", "param", "code"} == set(error), (answer.status, body, error)
        statuses[answer.status] = statuses.get(answer.status, 0) + 1

    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        beside = [pool.submit(text_of, client, asked, stream=n % 2 == 1) for n in range(9)]
        for body in bodies(count):
            refused(body)
        assert {one.result() for one in beside} == {alone}
    # A body beyond the limit. A client that sends all of it may see first that the server hangs up: one that asks before it sends is
    # told. By a connection of its own: the server closes one on which nothing has come for a while, as during the texts above.
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    connection.putrequest("POST", "/v1/completions")
    for name, value in {**headers, "Content-Length": str(BODY + 1), "Expect": "100-continue"}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413, (answer.status, answer.read())
    wait_for(address, "lab_sequences_running", 0)
    after = metrics(address)
    ended = {name: after[name] - before[name] for name in after if name.startswith("lab_sequences_total") and after[name] != before[name]}
    assert ended == {'lab_sequences_total{end="length"}': 9}, ended
    assert after["lab_sequences_waiting"] == 0
    print(f"{count} bad requests, answered {statuses}; the 9 good ones beside them got their texts")


def a_full_queue_says_so(client, address):
    long = dict(model="tiny", prompt="The ", max_tokens=1900, stream=True)
    short = dict(prompt="The ", max_tokens=2, seed=1)
    with concurrent.futures.ThreadPoolExecutor(QUEUE) as pool:
        running = [client.completions.create(**long) for _ in range(SLOTS)]
        waiting = [pool.submit(text_of, client, short, stream=False) for _ in range(QUEUE)]
        wait_for(address, "lab_sequences_waiting", QUEUE)
        try:
            client.completions.create(model="tiny", prompt="x")
        except openai.InternalServerError as refused:
            assert refused.status_code == 503 and refused.code == "queue_full", refused
            assert refused.response.headers["retry-after"] == "1"
        else:
            raise AssertionError("a full queue took one more")
        for stream in running:
            stream.close()
        assert len({one.result() for one in waiting}) == 1
    wait_for(address, "lab_sequences_running", 0)
    print("a full queue says so, and empties")


def a_stop_ends_what_runs(client, process):
    asked = dict(prompt="The ", max_tokens=40, seed=5)
    alone = text_of(client, asked, stream=False)
    stream = iter(client.completions.create(model="tiny", stream=True, **asked))
    text = next(stream).choices[0].text
    process.send_signal(signal.SIGTERM)
    text += "".join(event.choices[0].text for event in stream)
    assert text == alone
    assert process.wait(PATIENCE) == 0
    print("stopped: what ran has ended, exit code 0")


def main():
    with tempfile.TemporaryDirectory() as directory:
        process, address = start(pathlib.Path(directory))
        try:
            client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
            answers_are_complete(client)
            streams_are_as_alone(client, address)
            who_goes_frees_a_slot(client, address)
            bad_requests_lose_nothing(client, address)
            a_full_queue_says_so(client, address)
            a_stop_ends_what_runs(client, process)
        finally:
            process.kill()
            process.wait()


main()
