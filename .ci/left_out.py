"""Fails where a crate has tests that cargo is told not to look for: `test = false`, `doctest = false`.

    left_out.py
"""

import pathlib
import re
import subprocess
import sys
import tomllib

UNIT = re.compile(r"#\[(cfg\(test\b|test\])")
FENCE = re.compile(r"^\s*//[/!] *```(.*)$")
# What rustdoc takes for Rust.
RUST = re.compile(r"(rust|no_run|should_panic|compile_fail|edition\d+|,|\s)*")


def has_doctest(text):
    """Whether a fence in a doc comment begins a block of Rust."""
    inside = False
    for line in text.split("\n"):
        if fence := FENCE.match(line):
            inside = not inside
            if inside and RUST.fullmatch(fence[1]):
                return True
    return False


left_out = []
tracked = subprocess.run(["git", "ls-files", "*Cargo.toml"], capture_output=True, text=True, check=True).stdout
for manifest in map(pathlib.Path, tracked.split()):
    library = tomllib.loads(manifest.read_text()).get("lib", {})
    for path in sorted(manifest.parent.glob("src/**/*.rs")):
        text = path.read_text()
        if library.get("test") is False and UNIT.search(text):
            left_out.append(f"{path}: a test, and {manifest} says test = false")
        if library.get("doctest") is False and has_doctest(text):
            left_out.append(f"{path}: an example, and {manifest} says doctest = false")
if left_out:
    sys.exit("\n".join(left_out))
