"""What each stage costs: seconds of two processors for its kernels, and of its tests.

    cargo test --workspace --no-run --message-format=json | budget.py LOG KERNELS

LOG is what `cargo test` printed, first plain and then with `--ignored`; KERNELS is the directory where the build leaves
`STAGE.seconds`, and beside each object that was compiled at its first use `OBJECT.seconds`, with the program that has waited
for it. Says which stage is above its budget, and fails where one is above twice of it: machines for hire are at
times half as fast as at others. So ten more stages will still fit into one run.
"""

import json
import pathlib
import re
import sys

BUDGET = 60
# The two applications: many kernels of many types, and all options of a network. And two backward passes: five versions that
# take all pairs, and kernels that are built with n and without.
LARGE = {"lstm_fused": 200, "mlp_fused": 90, "vlstm_fwbw_v2": 75, "vlstm_fwbw_v4": 90}

log, kernels = map(pathlib.Path, sys.argv[1:])
of_program = {}
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        name = re.split(r"[/#@]", message["package_id"].split("#")[0].rstrip("/"))[-1]
        of_program[pathlib.Path(message["executable"]).name] = name

tests = {}
stage = None
for line in log.read_text().splitlines():
    if running := re.match(r"\s+Running .*\(.*/(\S+)\)", line):
        stage = of_program[running[1]]
    elif finished := re.match(r"test result: .* finished in ([\d.]+)s", line):
        tests[stage] = tests.get(stage, 0) + float(finished[1])
    elif re.match(r"\s+Doc-tests", line):
        stage = "doc-tests"

over, far_over = [], []
print(f"{'kernels':>8} {'tests':>7} {'budget':>7}  stage")
for path in sorted(pathlib.Path("stages").iterdir()):
    name = path.name
    note = kernels / f"{name}.seconds"
    # Of all processors; two of them work.
    compiled = float(note.read_text()) / 2 if note.exists() else 0
    for note in kernels.glob(f"{name}-*.seconds"):
        worked, program = note.read_text().split()
        # What a test of the stage has waited for is in the time of its tests.
        if of_program.get(program) != name:
            compiled += float(worked) / 2
    budget = LARGE.get(name, BUDGET)
    print(f"{compiled:8.1f} {tests.get(name, 0):7.1f} {budget:7}  {name}")
    if name not in tests:
        sys.exit(f"{name}: no test of it has run")
    seconds = compiled + tests[name]
    if seconds > budget:
        (far_over if seconds > 2 * budget else over).append(name)
if over:
    print(f"above budget: {', '.join(over)}")
if far_over:
    sys.exit(f"above twice the budget: {', '.join(far_over)}")
