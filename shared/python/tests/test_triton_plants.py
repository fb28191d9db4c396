"""Mistakes planted in kernels of Triton (`triton_plants.py`): each is found, and told at its line.

`python3 test_triton_plants.py` runs all of them and counts; the test runs some of each kind.
"""

import importlib.util
import pathlib
import re
import sys

import numpy as np
import pytest

import vlstm

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from triton_plants import PTX, RESULT, TRITON  # noqa: E402

# What is compiled here by Triton 3.9 is what was planted in.
pytest.importorskip("triton", minversion="3.9", reason="Triton 3.9 is not installed: no kernel can be compiled")
KERNELS = pathlib.Path(__file__).parents[2] / "ptx" / "kernels"
FILES = {"add": "elements", "softmax": "rows", "layer_norm": "rows", "matmul": "matmul", "attention": "attention", "double": "boxes"}
Out = vlstm.Out


def problems():
    """By names a grid, arguments, and what must come of them, by the arguments' names; then options."""
    random = np.random.default_rng(0)
    x, y = random.random((2, 1000), dtype=np.float32)
    rows = random.random((3, 100), dtype=np.float32)
    e = np.exp(rows - rows.max(1, keepdims=True))
    weight, bias = random.random((2, 100), dtype=np.float32)
    normal = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    a, b = random.standard_normal((70, 48)).astype(np.float16), random.standard_normal((48, 80)).astype(np.float16)
    q, k, v = random.standard_normal((3, 2, 90, 64)).astype(np.float16)
    p = np.tril(np.exp(q.astype(float) @ k.astype(float).transpose(0, 2, 1) / 8))
    steps, letters = random.random((4, 256), dtype=np.float32), random.integers(0, 10, 1000, dtype=np.int32)
    index = np.array([2, -1, 9, 0], np.int32)
    tile = random.random((40, 50), dtype=np.float32)
    counts = np.bincount(letters, minlength=10)
    gathered = np.where((index >= 0)[:, None] & (index < 3)[:, None], rows[np.clip(index, 0, 2)], 0)
    backwards = np.concatenate([np.append(x, np.zeros(24, np.float32))[n : n + 256][::-1] for n in range(0, 1024, 256)])[:1000]
    return {
        "add": ((4,), [x, y, Out("float32", 1000), 1000], {"BLOCK": 256}, {"sum_ptr": x + y}),
        "softmax": ((3,), [rows, Out("float32", 300), 100, 100], {"BLOCK": 128}, {"y_ptr": (e / e.sum(1, keepdims=True)).ravel()}),
        "layer_norm": ((3,), [rows, weight, bias, Out("float32", 300), 100, 1e-5], {"BLOCK": 64}, {"y_ptr": (normal * weight + bias).ravel()}),
        "matmul": ((2, 2), [a, b, Out("float16", (70, 80)), 70, 80, 48], {"BM": 64, "BN": 64, "BK": 32}, {"c_ptr": a.astype(float) @ b.astype(float)}),
        "attention": ((2, 2), [q, k, v, Out("float16", q.shape), 90, 0.125], {"D": 64, "BM": 64, "BN": 64}, {"o_ptr": p / p.sum(-1, keepdims=True) @ v.astype(float)}),
        "turn": ((4,), [x, Out("float32", 1024), Out("float32", 1000), 1000], {"BLOCK": 256}, {"y_ptr": backwards}),
        "relay": ((1,), [steps, Out("float32", 512), Out("float32", 256), 4], {"BLOCK": 256}, {"y_ptr": np.roll(steps, -1, 1).sum(0)}),
        "count": ((4,), [letters, np.zeros(10, np.int32), 1000], {"BINS": 10, "BLOCK": 256}, {"counts_ptr": counts}),
        "total": ((4,), [x, Out("float32", 4), np.zeros(1, np.int32), Out("float32", 1), 1000], {"PROGRAMS": 4, "BLOCK": 256}, {"sum_ptr": x.sum(keepdims=True)}),
        "add_up": ((4,), [steps, np.zeros(1, np.int32), np.zeros(256, np.float32)], {"BLOCK": 256}, {"sums_ptr": steps.sum(0)}),
        "transpose": ((2, 2), [tile, Out("float32", 2000), 40, 50], {"B": 32}, {"y_ptr": tile.T.ravel()}),
        "gather": ((4,), [rows, index, Out("float32", 400), 3, 100], {"BLOCK": 128}, {"y_ptr": gathered.ravel()}),
    }  # fmt: skip


PROBLEMS = problems()


def ptx_problem(name):
    """Of a module: its kernel's arguments, and what must come of them."""
    grid, arguments, constants, expected = PROBLEMS.get(name, ((1,), [], {}, {}))
    if name == "double":
        x = np.random.default_rng(1).random((16, 32), dtype=np.float32)
        arguments, values = [x, Out("float32", (16, 32)), 16, 32, "inout:u8[1024]=0"], 2 * x
    else:
        (values,) = expected.values()
    out = next(n for n, argument in enumerate(arguments) if isinstance(argument, Out))
    return grid, arguments, {f"{name}_param_{out}": values}


def planted(text, plant):
    """The text with its mistake."""
    places = [found.start() for found in re.finditer(re.escape(plant.old), text)]
    place = places[plant.nth]
    return text[:place] + plant.new + text[place + len(plant.old) :]


def lines_with(text, parts):
    return {number for number, line in enumerate(text.splitlines(), 1) for part in parts if part in line}


def run_triton(plant, directory):
    """What comes of a plant of Triton, and the lines where it may be told; without a plant the kernel as it is."""
    kernel = getattr(plant, "problem", plant)
    file = FILES.get(kernel, "steps")
    text = (KERNELS / f"{file}.py").read_text()
    if kernel != plant:
        start = text.index(f"def {kernel}(")
        text = text[:start] + planted(text[start:], plant)
    path = directory / f"{file}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"planted_{file}_{len(sys.modules)}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    grid, arguments, constants, expected = PROBLEMS[kernel]
    own = text.index(f"def {kernel}(")
    end = text.find("\n\n\n", own)
    first = text[:own].count("\n")
    lines = {line + first for line in lines_with(text[own : None if end < 0 else end], getattr(plant, "lines", ()))}
    return judged(lambda: vlstm.check_triton(getattr(module, kernel), grid, *arguments, **constants, timeout=60), expected, path.name, lines)


def run_ptx(plant, directory):
    """The same of a plant in PTX."""
    title = getattr(plant, "problem", plant)
    kernel = title.partition(".")[0]
    text = (KERNELS / f"{title}.ptx").read_text()
    path = directory / f"{title}.ptx"
    path.write_text(text if title == plant else planted(text, plant))
    grid, arguments, expected = ptx_problem(kernel)
    source = KERNELS / f"{FILES[kernel]}.py"
    lines = lines_with(source.read_text(), getattr(plant, "lines", ()))
    # The launcher says how much there is of shared memory: more than any of them has.
    call = lambda: vlstm.check_kernel(path, kernel, arguments, grid=grid, block=128, shared=65536, timeout=60)  # noqa: E731
    return judged(call, expected, source.name, lines)


def judged(call, expected, file, lines):
    """`clean`, `line`, `beside`, `result`, or `refused: why`; with what was told."""
    try:
        left = call()
    except vlstm.KernelError as error:
        finding = error.findings[0] if error.findings else None
        places = [access["place"] for access in finding["accesses"]] if finding else []
        told = {int(found[1]) for place in [*places, str(error)] for found in re.finditer(rf"{file}:(\d+)", place)}
        return ("line" if told & lines else "beside"), str(error)
    except (ValueError, TimeoutError, RuntimeError) as error:
        return f"refused: {error}", str(error)
    for name, values in expected.items():
        got = left[name].astype(float).reshape(values.shape)
        if not np.abs(got - values).max() <= 1e-2 * np.abs(values).max():
            return "result", f"{name} is wrong"
    return "clean", ""


@pytest.mark.parametrize("kernel", ["total", "relay"])
def test_a_kernel_without_a_mistake_is_clean(kernel, tmp_path):
    assert run_triton(kernel, tmp_path) == ("clean", "")


# Some of each kind; all of them take minutes.
@pytest.mark.parametrize("number", [0, 2, 20, 29, 32, 34, 36, 39, 41])
def test_a_mistake_in_triton_is_told_at_its_line(number, tmp_path):
    verdict, text = run_triton(TRITON[number], tmp_path)
    assert verdict == ("line" if TRITON[number].lines != RESULT else "result"), text


@pytest.mark.parametrize("number", [13, 14, 15, 17])
def test_a_mistake_in_ptx_is_told_at_its_line(number, tmp_path):
    verdict, text = run_ptx(PTX[number], tmp_path)
    assert verdict == "line", text


if __name__ == "__main__":
    import collections
    import tempfile

    counted = collections.Counter()
    for run, name, plants in ((run_triton, "Triton", [*PROBLEMS, *TRITON]), (run_ptx, "PTX", [*sorted({p.problem for p in PTX}), *PTX])):
        for plant in plants:
            with tempfile.TemporaryDirectory() as directory:
                verdict, text = run(plant, pathlib.Path(directory))
            if not isinstance(plant, str):
                counted[name, verdict.partition(":")[0]] += 1
            print(f"{name} {plant}\n  {verdict.splitlines()[0]}: {' | '.join(text.splitlines()[1:5])[:400]}", flush=True)
    print(dict(counted))
