"""The programs of the pages run, as they are printed."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example(path):
    subprocess.run([sys.executable, path], check=True, timeout=300)


@pytest.mark.parametrize("mark, name", [("five lines: as examples/first.py", "first"), ("as examples/mlp.py", "mlp")])
def test_the_readme_prints_the_example(mark, name):
    printed = re.search(rf"<!-- {mark} -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    assert printed == (ROOT / f"examples/{name}.py").read_text()
