"""Fails where a crate has tests that cargo is told not to look for: `test = false`, `doctest = false`. And where one is ignored that
`cargo test --workspace --tests -- --ignored` does not run: an example in a doc comment, or a test outside the workspace.

    left_out.py
"""

import pathlib
import re
import subprocess
import sys
import tomllib

UNIT = re.compile(r"#\[(cfg\(test\b|test\])")
FENCE = re.compile(r"^\s*//[/!] *```(.*)$")
IGNORED_TEST = re.compile(r"^\s*#\[ignore\b", re.MULTILINE)
IGNORED_EXAMPLE = re.compile(r"^\s*//[/!] *```[\w,]*\bignore\b", re.MULTILINE)
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


def tracked(pattern):
    """The files of this pattern that git knows."""
    listed = subprocess.run(["git", "ls-files", pattern], capture_output=True, text=True, check=True)
    return map(pathlib.Path, listed.stdout.split())


left_out = []
outside = tomllib.loads(pathlib.Path("Cargo.toml").read_text())["workspace"]["exclude"]
for path in tracked("*.rs"):
    text = path.read_text()
    if IGNORED_TEST.search(text) and any(path.is_relative_to(folder) for folder in outside):
        left_out.append(f"{path}: a test that is ignored, outside the workspace")
    if IGNORED_EXAMPLE.search(text):
        left_out.append(f"{path}: an example that is ignored")
for manifest in tracked("*Cargo.toml"):
    library = tomllib.loads(manifest.read_text()).get("lib", {})
    for path in sorted(manifest.parent.glob("src/**/*.rs")):
        text = path.read_text()
        if library.get("test") is False and UNIT.search(text):
            left_out.append(f"{path}: a test, and {manifest} says test = false")
        if library.get("doctest") is False and has_doctest(text):
            left_out.append(f"{path}: an example, and {manifest} says doctest = false")
if left_out:
    sys.exit("\n".join(left_out))
