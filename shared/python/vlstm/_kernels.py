"""Kernels of any `.cu` file, checked with numpy arrays: what a test of such a kernel calls."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from vlstm._native import KernelError

# numpy's names of types, and ours.
TYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "bool": "bool",
    **{f"{sign}int{bits}": f"{letter}{bits}" for sign, letter in (("", "i"), ("u", "u")) for bits in (8, 16, 32, 64)},
}  # fmt: skip

# Exit codes of the tool.
USAGE, FINDINGS = 2, 3


@dataclasses.dataclass(frozen=True)
class Out:
    """Memory that a kernel must write: each element that gets no value is a finding.

    `dtype` is numpy's (`"float32"`), or a type of the `.cu` file (`"float4"`); `shape` a size or several, each a number
    or C++ that names other arguments.
    """

    dtype: object
    shape: object


def check_kernel(
    file,
    kernel,
    arguments,
    *,
    grid,
    block,
    shared=None,
    cluster=None,
    cooperative=False,
    include=(),
    define=(),
    std=None,
    arch=None,
    order=None,
    seed=None,
    timeout=None,
    memory=None,
    lets=None,
    strict=False,
):
    """Launches a kernel of a `.cu` file on the emulator, looks at every access, and gives back its arrays.

    `file` is taken as it is, host code and all; it is compiled by the C++ compiler of this machine and runs natively, in
    a process of its own. `kernel` is `name`, `name<float, 4>` or `ns::name`. `arguments` has the kernel's arguments by
    their names, or in their order:

    - an array (numpy's, or what numpy takes for one) is memory with these values, which the kernel reads and writes: of a
      copy, the array stays as it is;
    - `Out(dtype, shape)` is memory that the kernel must write;
    - a number is that number, and a text is what `lab check --arg` takes: an expression of C++ or `in:f32[n]=random`.

    `grid` and `block` are 1 to 3 sizes, `shared` bytes of dynamic shared memory, each a number or C++ that names
    arguments. The rest are the options of `lab check`: `lets` are further values by name, `arch` such as "sm_90a", `order`
    the order of threads, `timeout` in seconds, `memory` such as "8GiB"; with `strict`, what is wrong by the letter alone,
    and right on GPUs, is an error as well.

    Returns a dict of numpy arrays by the arguments' names, as the kernel has left them.

    Raises `KernelError` where the checks find something: its text is the report, its `findings` are dicts. Raises
    `ValueError` for what is refused (a wrong argument, a file that does not compile), `TimeoutError` at the time limit.
    Needs the packages `numpy` and `safetensors`.
    """
    from safetensors.numpy import load_file, save_file

    named = arguments.items() if hasattr(arguments, "items") else ((None, value) for value in arguments)
    with tempfile.TemporaryDirectory(prefix="vlstm-") as directory:
        given, left = pathlib.Path(directory, "given.safetensors"), pathlib.Path(directory, "left.safetensors")
        arrays, options = {}, []
        for position, (name, value) in enumerate(named):
            options += ["--arg", (f"{name}=" if name else "") + described(name or str(position), value, arrays, given)]
        for name, value in (lets or {}).items():
            options += ["--let", f"{name}=" + described(name, value, arrays, given)]
        if arrays:
            save_file(arrays, given)
        options += [f"--kernel={kernel}", f"--grid={sizes(grid)}", f"--block={sizes(block)}"]
        single = {"--shared": shared, "--cluster": cluster, "--std": std, "--arch": arch, "--order": order, "--seed": seed,
                  "--timeout": timeout, "--memory": memory}  # fmt: skip
        for option, value in single.items():
            options += [] if value is None else [f"{option}={value}"]
        options += (["--cooperative"] if cooperative else []) + (["--strict"] if strict else [])
        for option, values in (("-I", include), ("-D", define)):
            for value in [values] if isinstance(values, (str, os.PathLike)) else values:
                options += [option, str(value)]
        report, text = run(["check", os.fspath(file), *options, "--output", str(left), "--json"])
        refuse_failures(report, text)
        return load_file(left) if left.exists() else {}


def refuse_failures(report, text):
    """Raises what a run of `lab check` ended with, if that is not success."""
    __tracebackhide__ = True  # of pytest
    code = report["exit"]
    if code == FINDINGS:
        raise with_findings(report)
    if code != 0:
        said = report.get("error", text)
        raised = ValueError if code == USAGE else TimeoutError if "--timeout" in said else RuntimeError
        # What is an option of the tool is an argument here.
        said = re.sub(r"--(?:arg|let) (?=\w)", "argument ", said)
        raise raised(re.sub(r"--(?=[a-z]+: expected)", "", said))


def described(name, value, arrays, file):
    """A value as the tool takes it; an array goes into `arrays`, which will stand in `file`."""
    import numpy

    if isinstance(value, Out):
        dtype = TYPES.get(str(numpy.dtype(value.dtype)) if not isinstance(value.dtype, str) else value.dtype, value.dtype)
        return f"out:{dtype}[{sizes(value.shape)}]"
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, numpy.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (int, numpy.integer)):
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"{name}: expected a whole number of 64 bits, got {value}")
        return str(int(value)) + ("u" if value >= 2**63 else "")
    if isinstance(value, (float, numpy.floating)):
        return {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(repr(float(value)), repr(float(value)))
    try:
        array = numpy.ascontiguousarray(value)
    except TypeError:  # PyTorch has bfloat16, and numpy none
        got = f"{type(value).__name__} of {getattr(value, 'dtype', 'no type')}"
        raise ValueError(f"{name}: expected an array of {', '.join(TYPES)}, got {got}, which numpy cannot take") from None
    dtype = TYPES.get(str(array.dtype))
    if dtype is None or array.ndim == 0:
        raise ValueError(f"{name}: expected an array of {', '.join(TYPES)}, got {array.dtype} with shape {array.shape}")
    arrays[name] = array
    return f"inout:{dtype}[{sizes(array.shape)}]=@{file}[{name}]"


def sizes(value):
    """1 to 3 sizes, or the shape of an array, as the tool takes them."""
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def run(arguments):
    """A process of the tool: the object that it prints, and what it says beside it."""
    # This package is found there wherever it was found here.
    package = str(pathlib.Path(__file__).parent.parent)
    found = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "vlstm.lab", *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": found}
    )
    lines = done.stdout.strip().splitlines()
    if not lines:
        return {"exit": USAGE if done.returncode == USAGE else 1, "error": done.stderr.strip()}, done.stderr
    return json.loads(lines[-1]), done.stderr


def with_findings(report):
    """The error that has what was found."""
    findings = report.get("findings", [])
    lines = [report.get("error", "")] if not findings else [f"{report['kernel']} at {report['place']}:"]
    for finding in findings:
        lines.append(f"{finding['check']}: {finding['message']}")
        for access in finding["accesses"]:
            block, thread = ("(" + ",".join(map(str, access[who])) + ")" for who in ("block", "thread"))
            lines.append(f"  {access['what']} at {access['place']} by block {block}, thread {thread}")
        # Of a deadlock: what is missing, and where threads stand.
        lines += [f"  {line}" for detail in finding["details"] for line in detail.splitlines()]
        if finding["fix"]:
            lines.append(f"  fix: {finding['fix']}")
    error = KernelError("\n".join(lines))
    error.findings = findings
    return error
