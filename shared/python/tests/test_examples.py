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


def test_the_readme_prints_the_example():
    printed = re.search(r"<!-- five lines.*?```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    assert printed == (ROOT / "examples/first.py").read_text()
