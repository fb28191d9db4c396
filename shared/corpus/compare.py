"""Holds the emulator's verdicts and counters against compute-sanitizer and Nsight Compute.

    python3 shared/corpus/compare.py LAB OUT [--jobs N] [--only counters|bulk_counters|sanitizers] [--add RECORD]

LAB is the tool, with the corpus inside (`lab dev bundle`); OUT a directory for three records,
sanitizers.json, counters.json, bulk_counters.json (bulk copies, operands of wgmma). Needs a GPU, compute-sanitizer and ncu, no Rust. Each bug runs in
a process of its own, by itself and under each of the four tools, several at a time; the right kernels
run in one process a tool.
"""

import argparse
import collections
import concurrent.futures
import csv
import datetime
import io
import json
import os
import re
import signal
import subprocess
import time

TOOLS = {
    "memcheck": [],
    "initcheck": [],
    "racecheck": ["--racecheck-report", "all"],
    "synccheck": [],
}
SECONDS = 20  # a bug that has not ended by then hangs


def run(command, seconds):
    """Exit code and output; the code is None where the time ran out."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        return process.communicate(timeout=seconds)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], None


def sanitize(lab, tool, arguments, seconds=SECONDS):
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "200", *TOOLS[tool]]
    return run([*command, lab, "dev", "corpus", *arguments, "--device", "cuda"], seconds)


def errors(output):
    """How many errors the tool counts; None where it did not come to its summary."""
    found = re.search(r"ERROR SUMMARY: (\d+) error", output)
    if found:
        return int(found.group(1))
    found = re.search(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) error", output)
    return int(found.group(2)) if found else None


def lines(output, file):
    """Lines of a kernel file that reports name."""
    return sorted({int(n) for n in re.findall(re.escape(os.path.basename(file)) + r":(\d+)", output)})


def kernels(output):
    """Kernels that reports name."""
    return sorted(set(re.findall(r"in (\w+)\(", output)) | set(re.findall(r"at (\w+)\([^)]*\)\+0x", output)))


def judge_bug(case, output, code):
    count, named = errors(output), lines(output, case["file"])
    # The driver's own refusal (a misaligned address, an illegal one) is an error of the API, which
    # the tool counts; only what it says of the kernel has lines.
    if set(named) & set(case["lines"]):
        said = "line"
    elif named or kernels(output):
        said = "elsewhere"
    elif count:
        said = "error"
    else:
        said = "nothing"
    return {"said": said, "lines": named, "errors": count, "ended": code is not None}


def sanitizers(lab, jobs, known):
    """Of all cases; where some are `known`, those alone are run that are not among them."""
    verdicts = json.loads(subprocess.run([lab, "dev", "corpus", "--json"], capture_output=True, text=True).stdout)
    cases = [case for case in verdicts["cases"] if case["name"] not in known]
    bugs = [case for case in cases if case["bug"]]
    # One after the other in one process, or each in its own.
    right_ones = [case["name"] for case in cases if not case["bug"]] if known else ["--right"]
    said = {case["name"]: {} for case in cases}
    alarms = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        # By itself first, so that what NVRTC compiles is in the cache for the rest.
        right = [pool.submit(run, [lab, "dev", "corpus", name, "--device", "cuda"], 300) for name in right_ones]
        alone = lambda case: run([lab, "dev", "corpus", case["name"], "--device", "cuda"], SECONDS)[1]
        codes = dict(zip([case["name"] for case in bugs], pool.map(alone, bugs)))
        plain = {n: "hangs" if code is None else "fails" if code else "ends" for n, code in codes.items()}
        for output, code in [r.result() for r in right]:
            if code != 0:
                raise SystemExit(output[-3000:])
        alarm = {
            tool: [pool.submit(sanitize, lab, tool, [name], 300) for name in right_ones] for tool in TOOLS
        }
        work = {
            pool.submit(sanitize, lab, tool, [case["name"]]): (case, tool)
            for case in bugs
            for tool in TOOLS
        }
        for done in concurrent.futures.as_completed(work):
            case, tool = work[done]
            said[case["name"]][tool] = judge_bug(case, *done.result())
    for tool in TOOLS:
        results = [done.result() for done in alarm[tool]]
        counts = [errors(output) for output, _ in results]
        alarms[tool] = {
            "kernels": sorted({kernel for output, _ in results for kernel in kernels(output)}),
            "errors": None if None in counts else sum(counts),
            "ended": all(code == 0 for _, code in results),
        }
        print(tool, alarms[tool], flush=True)
        for output, code in results:
            if code != 0:
                print(output[-3000:])
    return {
        "cases": [
            {key: case[key] for key in ("name", "file", "lines", "bug", "judgement", "right")}
            | ({"plain": plain[case["name"]], "tools": said[case["name"]]} if case["bug"] else {})
            for case in cases
        ],
        "alarms": alarms,
    }


SAME = ("gpu", "driver", "cuda", "tool")


def join(lab, old, new):
    """`old` with the cases of `new`, each of which says its commit, in the order of the corpus."""
    for key in SAME:
        if old[key] != new[key]:
            raise SystemExit(f"--add: expected {key} {old[key]}, as the record has, got {new[key]}")
    by_name = {case["name"]: case for case in old["cases"]}
    by_name |= {case["name"]: case | {"commit": new["commit"]} for case in new["cases"]}
    listed = json.loads(subprocess.run([lab, "dev", "corpus", "--json"], capture_output=True, text=True).stdout)
    for tool, alarms in old["alarms"].items():
        more = new["alarms"][tool]
        if not more["ended"] or more["errors"] is None:
            raise SystemExit(f"--add: {tool} did not get through the right kernels")
        alarms["kernels"] = sorted({*alarms["kernels"], *more["kernels"]})
        alarms["errors"] += more["errors"]
    return old | {"cases": [by_name[case["name"]] for case in listed["cases"]]}


BULK = {"bulk load", "bulk store", "wgmma operands"}


def counters(lab, bulk):
    counted = json.loads(
        subprocess.run([lab, "dev", "corpus", "--counted", "--json"], capture_output=True, text=True).stdout
    )["counted"]
    counted = [row for row in counted if (row["operation"] in BULK) == bulk]
    # What one operation of ours is may be several of Nsight Compute's: `a + b`.
    parts = lambda names: names.split(" + ")
    metrics = sorted({m for row in counted for names in row["nsight"].values() for m in parts(names)})
    by_kernel = collections.defaultdict(list)
    for row in counted:
        by_kernel[row["kernel"]].append(row)

    def measure(kernel):
        command = ["ncu", "--clock-control", "none", "--csv", "--metrics", ",".join(metrics)]
        output, code = run([*command, lab, "dev", "corpus", kernel, "--device", "cuda"], 120)
        table = output[output.find('"ID"') :]
        rows = csv.DictReader(io.StringIO(table))
        values = {r["Metric Name"]: float(r["Metric Value"].replace(",", "")) for r in rows if r.get("Metric Value")}
        if not values:
            print(kernel, code, output[-2000:], flush=True)
        return values

    for kernel, rows in by_kernel.items():
        values = measure(kernel)
        for row in rows:
            row["measured"] = {
                what: sum(values[m] for m in parts(names)) if values.keys() >= set(parts(names)) else None
                for what, names in row["nsight"].items()
            }
    return {"counted": counted}


def tool_version(command):
    output = subprocess.run(command, capture_output=True, text=True).stdout
    return re.search(r"(\d+\.\d+[.\d]*)", output.split("ersion")[-1]).group(1)


def text_of(record, broken=2, indent=""):
    """JSON in which each case is a line, and so is whatever else is nested as deep."""
    if not broken or not record or not isinstance(record, (dict, list)):
        return json.dumps(record)
    inner = indent + " "
    within = lambda value: text_of(value, broken - 1, inner)
    if isinstance(record, dict):
        members = [f"{json.dumps(key)}: {within(value)}" for key, value in record.items()]
    else:
        members = [within(value) for value in record]
    begin, end = "{}" if isinstance(record, dict) else "[]"
    return begin + ",".join(f"\n{inner}{member}" for member in members) + f"\n{indent}{end}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lab")
    parser.add_argument("out")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--only", choices=["counters", "bulk_counters", "sanitizers"], help="one of the three"
    )
    parser.add_argument("--add", metavar="RECORD", help="a sanitizers.json: runs what it does not have")
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    old = json.load(open(arguments.add)) if arguments.add else None
    known = {case["name"] for case in old["cases"]} if old else set()
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu, driver = subprocess.run(query, capture_output=True, text=True).stdout.strip().split(", ")
    commit = os.path.join(os.path.dirname(os.path.abspath(arguments.lab)), "commit")
    common = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": open(commit).read().strip() if os.path.exists(commit) else None,
        "gpu": gpu,
        "driver": driver,
        "cuda": tool_version(["nvcc", "--version"]),
    }
    for name, work, version in [
        ("counters", lambda lab, _: counters(lab, False), ["ncu", "--version"]),
        ("bulk_counters", lambda lab, _: counters(lab, True), ["ncu", "--version"]),
        ("sanitizers", lambda lab, jobs: sanitizers(lab, jobs, known), ["compute-sanitizer", "--version"]),
    ]:
        if arguments.only not in (None, name) or (old and name != "sanitizers"):
            continue
        start = time.time()
        record = common | {"tool": tool_version(version)} | work(arguments.lab, arguments.jobs)
        if old:
            record = join(arguments.lab, old, record)
        target = os.path.join(arguments.out, name + ".json")
        with open(target + ".part", "w") as file:
            file.write(text_of(record) + "\n")
        os.rename(target + ".part", target)
        print(f"{target}: {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
