"""The programs of the pages run, as they are printed."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest
import torch
from conftest import draw, equations, relative_error

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example(path):
    subprocess.run([sys.executable, path], check=True, timeout=300)


@pytest.mark.parametrize("mark, name", [("five lines: as examples/first.py", "first"), ("as examples/mlp.py", "mlp")])
def test_the_readme_prints_the_example(mark, name):
    printed = re.search(rf"<!-- {mark} -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    assert printed == (ROOT / f"examples/{name}.py").read_text()


def test_the_plain_form_has_the_gradients_of_a_constant_normaliser():
    spec = importlib.util.spec_from_file_location("train", ROOT / "examples/train.py")
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    # Input gates about 0 and queries that are small: exp(-m) is the normaliser of many rows, and its gradient would count.
    tensors = draw((1, 2, 40, 16, 16), torch.float32, "cpu", grad=True)
    copies = [t.detach().double().requires_grad_() for t in tensors]
    outer = torch.randn(1, 2, 40, 16, generator=torch.Generator().manual_seed(2))
    train.plain(*tensors).backward(outer)
    equations(*copies)[0].backward(outer.double())
    for got, wanted in zip(tensors, copies):
        assert relative_error(got.grad, wanted.grad) <= 2e-6
