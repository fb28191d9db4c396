"""`pytest --vlstm-triton`: a suite for a GPU, run on the emulator."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("triton", minversion="3.9", reason="Triton 3.9 is not installed: no kernel can be compiled")
pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).parents[3]
SUITE = pathlib.Path(__file__).with_name("triton_suite.py")


def run_suite(*options):
    # Where the package is installed, pytest finds the plugin itself.
    command = [sys.executable, "-m", "pytest", "-p", "vlstm.pytest_plugin", "-p", "no:cacheprovider", str(SUITE), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SUITE.parent)
    return done.returncode, done.stdout + done.stderr


def line_of(text):
    return next(number for number, line in enumerate(SUITE.read_text().splitlines(), 1) if text in line)


def test_a_suite_runs_without_a_gpu():
    code, said = run_suite("--vlstm-triton", "-rfs")
    assert code == 1 and "2 failed, 4 passed, 1 skipped" in said, said
    assert "tensors asked for on cuda are made on the CPU" in said
    # What is found is told at its line of Python, whether the test catches it or not.
    assert f"triton_suite.py:{line_of('x = tl.load(x_ptr + i)')}:" in said
    assert "race on x_ptr[" in said and f"triton_suite.py:{line_of('tl.store(x_ptr + i, x, mask=i < n)')}:" in said
    # As the book has it.
    assert (ROOT / "book/src/triton_suite.txt").read_text() in said, said


def test_without_the_option_nothing_changes():
    code, said = run_suite("-q")
    assert code == 0 and "7 skipped" in said, said


def test_an_architecture_that_is_none():
    code, said = run_suite("--vlstm-triton", "--vlstm-arch", "H100")
    assert code == 4 and "--vlstm-triton: arch: expected one such as sm_90, got 'H100'" in said, said
