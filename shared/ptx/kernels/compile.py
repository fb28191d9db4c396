"""Writes the modules beside the sources: what Triton makes of each kernel, for sm_80 and sm_90, without a GPU.

python3 compile.py, with the package `triton` installed. Each module names its source without a directory.
"""

import pathlib
import re

import attention
import boxes
import elements
import matmul
import rows
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = pathlib.Path(__file__).parent
FLOATS = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}
HALVES = {name: "*fp16" for name in ("a_ptr", "b_ptr", "c_ptr", "q_ptr", "k_ptr", "v_ptr", "o_ptr")}
PLAIN = {**FLOATS, **HALVES, "columns": "i32", "stride": "i32", "eps": "fp32", "p": "fp32", "seed": "i32", "scale": "fp32",
         **{name: "i32" for name in ("M", "N", "K", "S")}}  # fmt: skip
TILES = {"BM": 64, "BN": 64, "BK": 32}

KERNELS = [
    (elements.add, 80, {"BLOCK": 256}),
    (elements.add_without_mask, 90, {"BLOCK": 256}),
    (elements.add_left, 90, {"BLOCK": 256}),
    (elements.rotate, 90, {"BLOCK": 64}),
    (elements.reverse, 90, {"BLOCK": 256}),
    (elements.copy_twice, 90, {"BLOCK": 256}),
    (rows.softmax, 90, {"BLOCK": 512}),
    (rows.normalize, 90, {"BLOCK": 128}),
    (rows.layer_norm, 90, {"BLOCK": 128}),
    (boxes.double, 90, {"BM": 16, "BN": 32}),
    (matmul.matmul, 80, TILES),
    (matmul.matmul, 90, TILES),
    (matmul.matmul_wrong_stride, 90, TILES),
    (attention.attention, 80, {"D": 64, "BM": 64, "BN": 32}),
    (attention.attention, 90, {"D": 64, "BM": 64, "BN": 64}),
]


def module(kernel, architecture, constants):
    """The text of a kernel's module."""
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else PLAIN.get(name, "*fp32") for name in names}
    # Sizes of matrices are multiples of 8 halves, as copies of 16 bytes want them.
    aligned = [name for name in names if types[name].startswith("*") or name in ("N", "K")]
    source = ASTSource(
        kernel,
        types,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    target = GPUTarget("cuda", architecture, 32)
    text = triton.compile(source, target=target, options={"num_warps": 4, "num_stages": 2}).asm["ptx"]
    text = re.sub(r"[ \t]*// \S+:\d+:\d+$", "", text, flags=re.M)
    text = re.sub(r'(\.file\s+\d+ ")[^"]*/', r"\1", text)
    # Debug information for debuggers: the names of this machine.
    return re.sub(r"\n\t\.section\s+\.debug_.*", "\n", text, flags=re.S)


if __name__ == "__main__":
    for kernel, architecture, constants in KERNELS:
        file = HERE / f"{kernel.__name__}.sm_{architecture}.ptx"
        file.write_text(module(kernel, architecture, constants))
        print(file.name)
