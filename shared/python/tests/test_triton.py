"""`vlstm.check_triton`: kernels of Triton, compiled for a GPU that is not there."""

import pathlib
import sys

import numpy as np
import pytest

import vlstm

# Triton 3.4 leaves out a fence between cp.async and wgmma, and the checks say so.
pytest.importorskip("triton", minversion="3.9", reason="Triton 3.9 is not installed: no kernel can be compiled")
KERNELS = pathlib.Path(__file__).parents[2] / "ptx" / "kernels"
sys.path.insert(0, str(KERNELS))

attention = pytest.importorskip("attention")
boxes = pytest.importorskip("boxes")
elements = pytest.importorskip("elements")
matmul = pytest.importorskip("matmul")
rows = pytest.importorskip("rows")

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.random((2, 1000), dtype=np.float32)


def line_of(file, text, nth=0):
    lines = (KERNELS / file).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if text in line][nth]


def test_a_kernel_computes_on_arrays():
    left = vlstm.check_triton(elements.add, (4,), X, Y, vlstm.Out("float32", 1000), 1000, BLOCK=256)
    np.testing.assert_array_equal(left["sum_ptr"], X + Y)
    np.testing.assert_array_equal(left["x_ptr"], X)


def test_the_grid_may_be_a_function():
    def grid(meta):
        return (-(-meta["n"] // meta["BLOCK"]),)

    left = vlstm.check_triton(elements.add, grid, X, Y, vlstm.Out(np.float32, 1000), n=1000, BLOCK=128)
    np.testing.assert_array_equal(left["sum_ptr"], X + Y)


def test_random_numbers():
    left = vlstm.check_triton(elements.drop, (4,), X, vlstm.Out("float32", 1000), 1000, 0.3, seed=7, BLOCK=256)
    kept = left["kept_ptr"] != 0
    np.testing.assert_allclose(left["kept_ptr"][kept], X[kept] / np.float32(0.7), rtol=1e-6)
    assert 0.6 < kept.mean() < 0.8


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_tiles_on_tensor_cores(arch):
    a, b = RANDOM.standard_normal((70, 48)).astype(np.float16), RANDOM.standard_normal((48, 80)).astype(np.float16)
    left = vlstm.check_triton(
        matmul.matmul, (2, 2), a, b, vlstm.Out("float16", (70, 80)), 70, 80, 48, BM=64, BN=64, BK=32, arch=arch
    )
    np.testing.assert_allclose(left["c_ptr"], (a.astype(float) @ b.astype(float)).astype(np.float16), rtol=1e-3, atol=1e-3)


def test_attention():
    q, k, v = RANDOM.standard_normal((3, 2, 90, 64)).astype(np.float16)
    left = vlstm.check_triton(
        attention.attention, (2, 2), q, k, v, vlstm.Out("float16", q.shape), 90, 0.125, D=64, BM=64, BN=64
    )
    p = np.tril(np.exp(q.astype(float) @ k.astype(float).transpose(0, 2, 1) / 8))
    expected = p / p.sum(-1, keepdims=True) @ v.astype(float)
    np.testing.assert_allclose(left["o_ptr"], expected, atol=2e-3)


def test_boxes_of_tensors():
    x = RANDOM.random((40, 48), dtype=np.float32)
    left = vlstm.check_triton(boxes.double, (3, 2), x, vlstm.Out("float32", x.shape), 40, 48, BM=16, BN=32)
    np.testing.assert_array_equal(left["y_ptr"], 2 * x)
    # Rows of 12 bytes more than a multiple of 16.
    with pytest.raises(vlstm.KernelError, match="tensor map: expected strides that are multiples of 16 bytes"):
        vlstm.check_triton(boxes.double, (1, 1), x[:, :47].copy(), vlstm.Out("float32", (40, 47)), 40, 47, BM=16, BN=32)


class Tensor(np.ndarray):
    """As much of a tensor as a descriptor asks for."""

    def data_ptr(self):
        return self.ctypes.data


def test_descriptors_of_the_host():
    from triton.tools.tensor_descriptor import TensorDescriptor

    x = RANDOM.standard_normal((40, 48)).astype(np.float16).view(Tensor)
    y = np.zeros((40, 48), np.float16).view(Tensor)
    of_x, of_y = (TensorDescriptor(tensor, [40, 48], [48, 1], [16, 32]) for tensor in (x, y))
    left = vlstm.check_triton(boxes.double_described, (3, 2), of_x, of_y, BM=16, BN=32)
    np.testing.assert_array_equal(left["y"], 2 * x)
    np.testing.assert_array_equal(left["x"], x)
    in_place = vlstm.check_triton(boxes.double_described, (3, 2), of_x, of_x, BM=16, BN=32)
    np.testing.assert_array_equal(in_place["y"], 2 * x)
    with pytest.raises(ValueError, match="x: expected an array where the architecture has no tensor maps"):
        vlstm.check_triton(boxes.double_described, (3, 2), of_x, of_y, BM=16, BN=32, arch="sm_80")


def test_rows_with_a_stride_and_arguments_that_share_memory():
    wide = RANDOM.random((3, 200), dtype=np.float32)
    left = vlstm.check_triton(rows.softmax, (3,), wide[:, :100], wide[:, 100:], 200, 100, BLOCK=128)
    e = np.exp(wide[:, :100])
    np.testing.assert_allclose(left["y_ptr"], e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(left["x_ptr"], wide[:, :100])


def test_warps_that_have_the_same_elements_may_differ_in_a_sum():
    x = RANDOM.random((3, 50), dtype=np.float32)
    # Two of four warps have the elements of the other two, and each writes its sum to the same place.
    left = vlstm.check_triton(rows.normalize, (3,), x, vlstm.Out("float32", x.shape), 50, BLOCK=64)
    np.testing.assert_allclose(left["y_ptr"], x / np.sqrt((x * x).sum(1, keepdims=True)), rtol=1e-5)


def test_names_that_cpp_keeps_for_itself():
    left = vlstm.check_triton(elements.scale, (1,), X[:100], vlstm.Out("float32", 100), 100, do=3.0, BLOCK=128)
    np.testing.assert_array_equal(left["new"], X[:100] * np.float32(3))


def test_wgmma_of_eight_bits():
    torch = pytest.importorskip("torch")
    a, b = (torch.randn(64, 64).to(torch.float8_e4m3fn) for _ in range(2))
    c = torch.empty(64, 64, dtype=torch.float16)
    left = vlstm.check_triton(matmul.matmul, (1, 1), a, b, c, 64, 64, 64, BM=64, BN=64, BK=64)
    torch.testing.assert_close(left["c_ptr"], (a.float() @ b.float()).half())


@pytest.mark.parametrize(
    ("kernel", "arguments", "check", "text", "nth"),
    [
        ("add_without_mask", [X, Y, vlstm.Out("float32", 1000), 1000], "memcheck", "x = tl.load(x_ptr + i)", 0),
        ("add_left", [X, 1000], "racecheck", "left = tl.load", 0),
        ("copy_twice", [X, vlstm.Out("float32", 1000), vlstm.Out("float32", 1000), 1000], "initcheck", "again = tl.load", 0),
    ],
)
def test_what_is_wrong_is_told_at_its_line(kernel, arguments, check, text, nth):
    with pytest.raises(vlstm.KernelError) as raised:
        vlstm.check_triton(getattr(elements, kernel), (4,), *arguments, BLOCK=256)
    finding = raised.value.findings[0]
    assert finding["check"] == check
    place = f"elements.py:{line_of('elements.py', text, nth)}:"
    assert any(place in access["place"] for access in finding["accesses"])


def test_tensors():
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 100)
    left = vlstm.check_triton(rows.softmax, (3,), x, torch.empty(3, 100), 100, 100, BLOCK=128)
    torch.testing.assert_close(left["y_ptr"], torch.softmax(x, -1))


@pytest.mark.parametrize(
    ("kernel", "arguments", "keywords", "message"),
    [
        (len, [], {}, "kernel: expected a function under @triton.jit, got builtin_function_or_method"),
        (elements.add, [X, Y], {"BLOCK": 256}, "sum_ptr: expected a value, got none"),
        (elements.add, [X, Y, X, 1000], {"BLOCK": 256, "block": 1}, "block: expected one of x_ptr, "),
        (elements.add, ["x", Y, X, 1000], {"BLOCK": 256}, "x_ptr: expected an array, a number or vlstm.Out, got str"),
        (elements.add, [X, Y, X, 1000], {"BLOCK": 256, "arch": "H100"}, "arch: expected one such as sm_90, got 'H100'"),
        (elements.add, [X, Y, X, 1000], {"BLOCK": 100}, "add: expected a kernel that Triton compiles: "),
    ],
)
def test_what_is_refused(kernel, arguments, keywords, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        vlstm.check_triton(kernel, (4,), *arguments, **keywords)
