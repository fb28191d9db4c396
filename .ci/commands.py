"""Runs every command that the READMEs and the book print in a block of sh, bash or console, as it
is printed, once: what is printed twice runs once, where it comes first. The commands of a page run in their order,
two pages at a time. Without CI_ALL=1 a run of .ci/run has the README's and every third page's, the next commit others.

    commands.py [--list] [--only TEXT]

Commands write their files into a directory of the page's in target/commands, where a copy of what they read lies. One that is
not run must be told: by `<!-- gpu -->` above its block or `--device cuda` in it, by being what
another step of .ci/run runs, word for word, or by a rule below that names the step which does the
same and more. `mdbook serve` is started, asked for a page, and stopped.

Cargo picks the features of a package by what is built with it, so `-p` builds half of the workspace
once more. An example is therefore run as `cargo test --workspace` has left it; without that, or
with CI_ALL=1, as it is printed. Without CI_ALL=1 a training has one epoch and the beginning of the README for a text, or a tenth of
the tokens of an example. The tests of a stage in an order of their own are its quick suite in that order, and a check of a stage
in one has one type.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRATCH = ROOT / "target" / "commands"
PAGES = ["README.md", "stages/*/README.md", "book/src/*.md"]
LIMIT = 60  # seconds: what takes longer belongs into a step of its own
AT_ONCE = 2  # pages: most commands keep one processor busy
# A page whose commands run behind those of another one: both write the tree's own exercises.
BEHIND = {"book/src/exercises.md": "README.md"}
TEXT = 6000  # characters of the README that a model is trained on without CI_ALL=1

# Printed, the step that does the same and more (its words must be in .ci/run, or in a block of the README
# that .ci/run takes), and why it is the same.
COVERED = [
    (r"cargo test (--release )?-p [\w-]+( --release)?( --test \w+)?( \w+)?( -- .*)?", "cargo test --workspace",
     "one of its packages"),
    (r"cargo run -- bug (--all|[\w-]+)", "bug --all --broken",
     "each made again, a part of them without CI_ALL=1; as they are, the suites run in another"),
    (r"cargo run -- check matmul:v5_warps", "cargo test --workspace", "its suite, checked; `lab check` has steps of its own"),
    (r"cargo run -- compile matmul --arch sm_90a", "cargo test --workspace --tests -- --ignored", "a test of the tool"),
    (r"cargo run -- dev mutate corpus --file named_barrier.cuh --operator instruction",
     "cargo test --workspace --tests -- --ignored", "a test of the tool"),
    (r"pip install nvidia-cuda-.*", 'python3 -m pip install --quiet "${PYTHON_PACKAGES[@]}"', "its packages"),
    (r"cd shared/candle && cargo run --example train( -- lstm)?", "bash .ci/candle", "its last two commands"),
    (r"pytest --vlstm-triton tests/", "bash .ci/python", "a suite of the package's own tests"),
    (r"cargo build -p lab-serve", "cargo test --workspace", "the server is built for its tests"),
    (r"cargo run -- lm serve .*|curl .*:8000/.*", "python3 shared/serve/tests/client.py", "the server started, and asked for more"),
    (r"cargo install mdbook", "cargo install mdbook", "pinned there"),
    (r"python3 \.ci/release\.py --dry-run", "python3 .ci/release.py --dry-run", "the same"),
]

# A command that must fail, with its exit code.
FAILS = {
    "cargo run -p lab-emulator --example own_kernel": 1,  # its kernel forgets a barrier
    "cargo run -- run qkv_v0": 1,  # wrong on purpose
    "cargo run -- app -D FORGETFUL shared/app/programs/sum.cu": 3,  # lacks a barrier
    "lab app shared/app/programs/tile.cu -D FORGETFUL": 3,  # does not wait for its copies
    "lab check shared/app/programs/sum.cu -D FORGETFUL --kernel sum_blocks --grid 8 --block 128 --shared 512 --arg 'x=in:f32[n]' --arg 'sums=out:f32[8]' --arg n=1000": 3,  # likewise
    "lab check shared/ptx/kernels/add_left.sm_90.ptx --grid 4 --arg 'inout:f32[1000]' --arg 1000": 3,  # a race
    "cargo run -- dev corpus tile_without_barrier": 3,  # a planted bug, found
    "cargo run -- dev corpus bulk_expect_too_large": 3,  # likewise
    "cargo run -- dev corpus counter_set_back_early": 3,  # likewise
    "cargo run -- dev corpus volatile_scan": 3,  # likewise
}


def normal(command):
    """Without its comment, spaces joined: what makes two printed commands the same."""
    return " ".join(re.sub(r"(^|\s)#\s.*", "", command).split())


def commands_of(path):
    """(line, command, on a GPU, another step's) of every command printed in a file."""
    marks, inside, found, heredoc = [], False, [], None
    for number, line in enumerate(path.read_text().split("\n"), 1):
        text = line.strip()
        if not inside:
            fence = re.fullmatch(r"```+(\w*).*", text)
            if fence:
                inside, gpu = fence[1], "<!-- gpu -->" in marks
                ci = next((m for m in marks if m.startswith("<!-- ci: ")), None)
            marks = marks + [text] if text.startswith("<!--") else marks if not text else []
            continue
        if re.fullmatch(r"```+", text):
            inside, marks = False, []
            continue
        if inside not in ("sh", "bash", "console"):
            continue
        if heredoc:
            found[-1][1] += "\n" + line
            heredoc = None if line == heredoc else heredoc
            continue
        if inside == "console":
            if not text.startswith("$ "):
                continue
            text = text[2:]
        if found and found[-1][1].endswith("\\"):
            found[-1][1] += "\n" + line
        elif normal(text):
            found.append([number, text, gpu or "--device cuda" in text, ci])
        started = re.search(r"<<-?\s*'?(\w+)'?", text)
        heredoc = started[1] if started else None
    return found


def steps():
    """What .ci/run runs, as it would be printed: the command, and the line of .ci/run."""
    text = (ROOT / ".ci/run").read_text()
    # `lab` is what `cargo run --` runs.
    text_of_cargo = re.sub(r"(?<!['\"])\b(target/debug/)?lab (?=[a-z])", "cargo run -- ", re.sub(r"\\\n\s*", "", text))
    lines = text_of_cargo.split("\n")
    found = {}
    for line in lines:
        for command in re.findall(r"(?<!-)\bcargo (?:run|test|bench|doc|fmt|clippy)\b[^|;)]*", line):
            found.setdefault(normal(command.replace(" --quiet", "")), line.strip())
    return text, found


def elsewhere(command, ci, text, exact, readme):
    """The step of .ci/run that runs a command, or None."""
    if ci:
        name = ci.removeprefix("<!-- ci: ").removesuffix(" -->")
        if f"readme_block {name}" not in text:
            sys.exit(f"no step of .ci/run takes the block {ci}")
        return f"block '{name}'"
    if command in exact:
        return exact[command]
    for pattern, step, why in COVERED:
        if re.fullmatch(pattern, command):
            if step not in text and step not in readme:
                sys.exit(f".ci/run: no step '{step}', which was to run '{command}'")
            parts = [p in text for p in re.findall(r"nvidia-\S+", command)]
            parts += [has_package(p, command) for p in re.findall(r"cargo test .*-p ([\w-]+)", command)]
            parts += [has_bug(b) for b in re.findall(r"-- bug (\w[\w-]*)", command)]
            if not all(parts):
                sys.exit(f"'{command}' is no part of '{step}'")
            return f"{step} ({why})"
    return None


def has_package(name, command):
    """Whether there is such a package, with that file of tests."""
    globs = ("shared/*", "shared/models/*", "stages/*")
    for manifest in [m for g in globs for m in ROOT.glob(f"{g}/Cargo.toml")]:
        if f'name = "{name}"' in manifest.read_text():
            test = re.search(r"--test (\w+)", command)
            return not test or (manifest.parent / "tests" / f"{test[1]}.rs").exists()
    return False


def has_bug(name):
    return any(f'name = "{name}"' in p.read_text() for p in ROOT.glob("stages/*/bugs.toml"))


def environment():
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    return os.environ | {"PATH": f"{target}/debug:{os.environ['PATH']}"}


def built(command):
    """An example that `cargo test --workspace` has built, or the tool, for the command that builds and runs it."""
    if os.environ.get("CI_ALL"):
        return None
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    if "cargo run -- " in command and (target / "debug/lab").exists():
        return command.replace("cargo run -- ", "lab ")
    example = re.fullmatch(r"cargo run -p [\w-]+ --example (\w+)( \d+)?", command)
    if not example:
        return None
    binary = target / "debug/examples" / example[1]
    return f"{binary}{example[2] or ''}" if binary.exists() else None


def shortened(command):
    """A training of one epoch or four steps for one of many, fewer tokens, one type for a stage's check, its quick suite for its tests."""
    if os.environ.get("CI_ALL"):
        return None
    if re.search(r"-- (lstm|mlp) train ", command) and "--epochs" not in command:
        return f"{command} --epochs 1"
    if " lm train " in command:
        return re.sub(r"--steps \d+", "--steps 4", command)
    if command.endswith("--example emulated"):
        return f"{command} 1000"
    if re.fullmatch(r"LAB_\w+=\w+ cargo run -- check \w+", command):
        return f"{command} --dtype bf16"
    tests = re.fullmatch(r"((?:LAB_EMULATOR_\w+=\w+ )+)cargo test -p (\w+)", command)
    return tests and f"{tests[1]}cargo run -- selftest {tests[2]} --quick"


def run(command, scratch):
    """Seconds, exit code and output; the command has a shell and the scratch directory of its page."""
    start = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=scratch, env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=10 * LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return time.monotonic() - start, process.returncode, output


def serve(command):
    """Starts a server on a free port, and asks it for its first page."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", f"{command} --port {port} --dest-dir {SCRATCH / 'book'}"], cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )
    code, said = 1, "no answer"
    while process.poll() is None and time.monotonic() - start < 2 * LIMIT:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                code, said = int(b"<title>" not in answer.read()), f"status {answer.status}"
            break
        except OSError:
            time.sleep(0.2)
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()
    return time.monotonic() - start, code, said


def prepare(scratch):
    """What the commands of a page read, in a directory of its own."""
    (scratch / "shared/app").mkdir(parents=True)
    text = (ROOT / "README.md").read_text()
    (scratch / "README.md").write_text(text if os.environ.get("CI_ALL") else text[:TEXT])
    shutil.copy(ROOT / "CHANGELOG.md", scratch)
    (scratch / "benches").symlink_to(ROOT / "benches")
    (scratch / "book").mkdir()
    (scratch / "book/src").symlink_to(ROOT / "book/src")
    (scratch / "shared/app/programs").symlink_to(ROOT / "shared/app/programs")
    (scratch / "shared/ptx").symlink_to(ROOT / "shared/ptx")
    (scratch / "shared/corpus").symlink_to(ROOT / "shared/corpus")
    # FILE.csv and NAME stand for the reader's own.
    rows = "".join(f"{i},{(i % 24) / 24:.4f}\n" for i in range(400))
    (scratch / "FILE.csv").write_text("time,NAME\n" + rows)


def run_page(page, plan):
    """Runs the commands of a page that no other step runs: those that failed, how many ran, and their seconds."""
    scratch = SCRATCH / page.relative_to(ROOT).as_posix().replace("/", "-")
    failed, ran, took = [], 0, 0.0
    for place, command, key, by in plan:
        if by:
            print(f"{place}: {key.splitlines()[0]}: {by}\n", end="", flush=True)
            continue
        if not scratch.exists():
            prepare(scratch)
        server = key.startswith("mdbook serve")
        ready = shortened(key) or key
        ready = built(ready) or ready
        seconds, code, output = serve(command) if server else run(command if ready == key else ready, scratch)
        ran, took = ran + 1, took + seconds
        note = f", as {ready}" if ready != key else ""
        said = f"{place}: {key}: {seconds:.1f} s, exit {code}{note}"
        if code != FAILS.get(key, 0):
            failed.append(place)
            said += f"\nexpected exit {FAILS.get(key, 0)}; it ended in\n{output[-2000:]}"
        elif seconds > LIMIT:
            said += f"\nnote: more than {LIMIT} s"
        print(said + "\n", end="", flush=True)
    return failed, ran, took


def left_to_other_turns(plans):
    """Pages whose commands another commit's run has: two of three but the README, as LAB_TEST_TURN says (.ci/run)."""
    turn = os.environ.get("LAB_TEST_TURN")
    if turn is None or os.environ.get("CI_ALL"):
        return []
    pages = [page for page in plans if page != ROOT / "README.md"]
    return [page for n, page in enumerate(pages) if n % 3 != int(turn) % 3]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--list", action="store_true", help="tell what would become of each, run none")
    arguments.add_argument("--only", default="", metavar="TEXT", help="leave out what does not have it")
    arguments = arguments.parse_args()
    text, exact = steps()
    readme = (ROOT / "README.md").read_text()
    plans, known = {}, {}
    for page in [p for pattern in PAGES for p in sorted(ROOT.glob(pattern))]:
        for line, command, gpu, ci in commands_of(page):
            key = normal(command)
            place = f"{page.relative_to(ROOT)}:{line}"
            if key in known or arguments.only not in command:
                continue
            by = "a GPU's" if gpu else elsewhere(key, ci, text, exact, readme)
            known[key] = by
            row = ROOT / BEHIND.get(page.relative_to(ROOT).as_posix(), page)
            plans.setdefault(row, []).append((place, command, key, by))
    if arguments.list:
        for place, _, key, by in sum(plans.values(), []):
            print(f"{place}: {key.splitlines()[0]}: {by or 'runs'}")
        return
    others_turn = left_to_other_turns(plans)
    plans = {page: plan for page, plan in plans.items() if page not in others_turn}
    shutil.rmtree(SCRATCH, ignore_errors=True)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(run_page, plans.keys(), plans.values()))
    failed = [place for places, _, _ in results for place in places]
    ran, took = sum(r for _, r, _ in results), sum(t for *_, t in results)
    gpu = sum(by == "a GPU's" for by in known.values())
    others = len(known) - gpu - sum(by is None for by in known.values())
    later = f"; those of {len(others_turn)} pages run at other commits" if others_turn else ""
    print(f"{len(known)} commands: {ran} run in {took:.0f} s, {gpu} a GPU's, {others} run by other steps{later}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
