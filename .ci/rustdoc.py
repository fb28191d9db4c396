"""The pages of all libraries of the workspace, which must be without a warning, made from what cargo has built.

    rustdoc.py KEPT OUT

KEPT is the directory where `rustc` has left the arguments of each library. `cargo doc` would check all dependencies first.
"""

import os
import pathlib
import subprocess
import sys

# Of rustc's flags, those with a value in the next argument that rustdoc does not take.
WITH_VALUE = {"--crate-type", "--emit", "--out-dir", "--error-format", "--json", "-C"}

kept, out = map(pathlib.Path, sys.argv[1:])
libraries = sorted(kept.glob("*.arguments"))
if not libraries:
    sys.exit(f"{kept}: no library was compiled")
failed = []
for library in libraries:
    # Arguments, an empty one, and what cargo has set in the environment; each ends in a NUL.
    all_arguments, _, environment = library.read_text().removesuffix("\0").partition("\0\0")
    arguments, rest = [], iter(all_arguments.split("\0"))
    for argument in rest:
        if argument in WITH_VALUE:
            next(rest)
        elif argument.split("=")[0] not in WITH_VALUE:
            arguments.append(argument)
    environment = os.environ | dict(variable.split("=", 1) for variable in environment.split("\0"))
    if subprocess.run(["rustdoc", *arguments, "-D", "warnings", "-A", "unknown_lints", "-o", out], env=environment).returncode:
        failed.append(library.stem)
print(f"{len(libraries)} libraries, {len(failed)} with warnings")
if failed:
    sys.exit(f"warnings in {', '.join(failed)}")
