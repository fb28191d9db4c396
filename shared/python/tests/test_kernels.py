"""`vlstm.check_kernel` and the tool `lab` of the package, on files that know nothing of either."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import vlstm

SUM = pathlib.Path(__file__).parents[2] / "app" / "programs" / "sum.cu"
X = np.random.default_rng(0).random(1000, dtype=np.float32)
LAUNCH = {"grid": 8, "block": 128, "shared": 512}

AXPY = """
#include <cuda_fp16.h>
struct Scale { float factor; };
__global__ void axpy(__half* y, const double* x, Scale scale, int n, bool twice) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __half(float(y[i]) + scale.factor * float(x[i]) * (twice ? 2 : 1));
}
__global__ void forgets(float* y) { if (threadIdx.x < 3) y[threadIdx.x] = 1; }
__global__ void spins(volatile int* flag) { while (*flag == 0); }
"""


@pytest.fixture(scope="module")
def axpy(tmp_path_factory):
    file = tmp_path_factory.mktemp("kernels") / "axpy.cu"
    file.write_text(AXPY)
    return file


def test_a_kernel_computes_on_arrays():
    left = vlstm.check_kernel(SUM, "sum_blocks", {"x": X, "sums": vlstm.Out("float32", 8), "n": 1000}, **LAUNCH)
    np.testing.assert_allclose(left["sums"], np.pad(X, (0, 24)).reshape(8, 128).sum(1), rtol=1e-6)
    assert left["sums"].dtype == np.float32
    np.testing.assert_array_equal(left["x"], X)


def test_a_missing_barrier_is_told_with_both_lines():
    arguments = [X, vlstm.Out("float32", "(n + 127) / 128"), len(X)]
    with pytest.raises(vlstm.KernelError, match=r"(?s)race.*sum\.cu:15.*sum\.cu:15.*fix: .*__syncthreads") as raised:
        vlstm.check_kernel(SUM, "sum_blocks", arguments, define="FORGETFUL", **LAUNCH)
    (finding,) = raised.value.findings
    assert finding["check"] == "racecheck" and finding["count"] > 1


def test_types_and_values_of_arguments(axpy):
    y, x = np.arange(6, dtype=np.float16).reshape(2, 3), np.ones((3, 2))
    arguments = {"y": y, "x": x, "scale": "Scale{0.5f}", "n": np.int64(6), "twice": True}
    left = vlstm.check_kernel(axpy, "axpy", arguments, grid="(n + 3) / 4", block=(4, 1), order="random", seed=3)
    assert left["y"].dtype == np.float16 and left["y"].shape == (2, 3)
    np.testing.assert_array_equal(left["y"], y + 1)
    np.testing.assert_array_equal(y, np.arange(6).reshape(2, 3))


def test_an_output_that_is_not_written_is_a_finding(axpy):
    with pytest.raises(vlstm.KernelError, match=r"1 of 4 elements of out 'y' never got a value .* the first: y\[3\]"):
        vlstm.check_kernel(axpy, "forgets", [vlstm.Out(np.float32, 4)], grid=1, block=32)


@pytest.mark.parametrize(
    ("kernel", "arguments", "options", "error", "message"),
    [
        ("none", [], {}, ValueError, "^kernel: expected one of axpy, forgets, spins, got 'none'"),
        ("forgets", [np.ones(2, complex)], {}, ValueError, "0: expected an array of float64, .*, got complex128"),
        ("forgets", {"z": 1}, {}, ValueError, "argument z: expected one of y"),
        ("forgets", [np.ones(4, np.float32)], {"order": "none"}, ValueError, "order: expected"),
        ("forgets", ["nonsense("], {}, ValueError, "argument y: expected C\\+\\+ that compiles"),
        ("spins", [np.zeros(1, np.int32)], {"timeout": 2, "block": 1}, TimeoutError, "^timeout: expected an end within 2 s"),
    ],
)
def test_what_is_refused(axpy, kernel, arguments, options, error, message):
    with pytest.raises(error, match=message):
        vlstm.check_kernel(axpy, kernel, arguments, **{"grid": 1, "block": 32, **options})


NUMBERS = """
#include <cuda_fp16.h>
__global__ void second(float2* to, __half x) { to[threadIdx.x].y = __half2float(x); }
__global__ void add(long long* a, const unsigned long long* __restrict__ b) { a[threadIdx.x] += (long long)b[threadIdx.x]; }
__global__ void shout(char* to, const char* __restrict__ from) { to[threadIdx.x] = from[threadIdx.x] - 32; }
__global__ void store(int* to, int n, unsigned mask, float x) { to[0] = n, to[1] = (int)mask, to[2] = (int)x; }
"""


def test_numbers_of_64_bits_and_numbers_that_do_not_fit(tmp_path):
    file = tmp_path / "numbers.cu"
    file.write_text(NUMBERS)
    arrays = {"a": np.arange(4, dtype=np.int64) - 2, "b": np.arange(4, dtype=np.uint64) + 2**40}
    left = vlstm.check_kernel(file, "add", arrays, grid=1, block=4)
    assert np.array_equal(left["a"], arrays["a"] + arrays["b"].astype(np.int64))

    for kind in (np.int8, np.uint8):
        arrays = {"to": np.zeros(4, kind), "from": np.frombuffer(b"race", kind)}
        assert vlstm.check_kernel(file, "shout", arrays, grid=1, block=4)["to"].tobytes() == b"RACE"

    pairs = vlstm.check_kernel(file, "second", {"to": np.zeros((4, 2), np.float32), "x": 1e3}, grid=1, block=4)["to"]
    assert pairs.tolist() == 4 * [[0, 1000]]
    with pytest.raises(ValueError, match="argument x: expected a number that __half holds, got"):
        vlstm.check_kernel(file, "second", {"to": np.zeros((4, 2), np.float32), "x": 1e6}, grid=1, block=4)

    def store(n, mask=1, x=1.5):
        arguments = [vlstm.Out(np.int32, 3), n, mask, x]
        return vlstm.check_kernel(file, "store", arguments, grid=1, block=1)["to"].tolist()

    assert store(-7, 2**32 - 1, 3.5) == [-7, -1, 3] and store(2**32 - 1, -1) == [-1, -1, 1]
    for wrong, got in ((2**32 + 2, "4294967298"), (2.9, "2.9"), (-(2**31) - 1, "-2147483649")):
        with pytest.raises(ValueError, match=f"argument n: expected a number that int holds, got {got}"):
            store(wrong)
    with pytest.raises(ValueError, match="argument mask: expected a number that unsigned holds, got 0.5"):
        store(1, 0.5)
    with pytest.raises(ValueError, match="argument x: expected a number that float holds, got 1e300"):
        store(1, 1, 1e300)
    assert store(1, 1, 3.3)[2] == 3
    with pytest.raises(ValueError, match="1: expected a whole number of 64 bits, got 18446744073709551616"):
        store(2**64)


def test_no_pytorch_is_needed():
    program = "import sys, vlstm; vlstm.check_kernel; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def lab(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "vlstm.lab", *map(str, arguments)], capture_output=True, text=True, **options)


def test_the_tool_is_a_command_of_the_package():
    listed = lab("check", SUM)
    assert listed.returncode == 0 and "sum_blocks" in listed.stdout, listed.stderr
    ran = lab("app", SUM)
    assert ran.returncode == 0 and "1000 ones: 1000" in ran.stdout, ran.stderr
    refused = lab("check", "--nonsense")
    assert refused.returncode == 2 and "--nonsense" in refused.stderr


SIZES = "--kernel sum_blocks --grid 8 --block 128 --shared 512 --arg x=in:f32[n] --arg sums=out:f32[8] --arg n=1000".split()


@pytest.mark.skipif(shutil.which("gdb") is None, reason="wants gdb")
def test_a_debugger_opens_at_a_thread():
    wanted = ["--thread", "3,0,0", "--blk", "1,0,0", "--batch", "--ex", "next 2", "--ex", "print i", "--ex", "lab-where"]
    opened = lab("debug", SUM, *SIZES, *wanted)
    if "Couldn't write extended state status" in opened.stderr:
        pytest.skip("this gdb cannot set the registers of this processor")
    assert "= 131\n" in opened.stdout and "thread (3,0,0) of block (1,0,0)" in opened.stdout, opened.stdout + opened.stderr


@pytest.mark.skipif("VLSTM_SARIF_SCHEMA" not in os.environ, reason="wants the schema of SARIF")
@pytest.mark.parametrize("define", [[], ["-D", "FORGETFUL"]])
def test_sarif_is_as_its_schema_says(define, tmp_path):
    from jsonschema import Draft7Validator

    schema = json.loads(pathlib.Path(os.environ["VLSTM_SARIF_SCHEMA"]).read_text())
    assert "sarif" in schema["$id" if "$id" in schema else "id"]
    file = tmp_path / "found.sarif"
    sizes = ["--grid", 8, "--block", 128, "--shared", 512]
    arguments = ["--arg", "x=in:f32[n]", "--arg", "sums=out:f32[8]", "--arg", "n=1000"]
    lab("check", SUM, "--kernel", "sum_blocks", *sizes, *arguments, *define, "--sarif", file)
    log = json.loads(file.read_text())
    assert [error.message for error in Draft7Validator(schema).iter_errors(log)] == []
    assert len(log["runs"][0]["results"]) == len(define) // 2
