"""Files of a crate that import each other in a circle: what two files share belongs below both.

    circles.py

Reads the `use` declarations of each crate's sources as text, tests left out. A file that has modules below it (`lib.rs`,
`main.rs`, `mod.rs`) hands on what they have, so whatever its own modules take from it ties no knot. Prints each circle and fails
if there is one.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def sources():
    """The files of each directory of sources, by their paths as modules: () is the crate itself."""
    listed = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True)
    crates = {}
    for name in listed.stdout.split():
        parts = pathlib.PurePath(name).with_suffix("").parts
        if "src" not in parts:
            continue
        at = parts.index("src")
        module = parts[at + 1 :]
        if module[-1] in ("lib", "main", "mod"):
            module = module[:-1]
        crates.setdefault(parts[:at], {})[module] = name
    return crates


def paths(tree, prefix=()):
    """The paths that `a::{b, c::d}` stands for."""
    head, brace, rest = tree.partition("{")
    own = tuple(part.strip() for part in head.split("::") if part.strip())
    if not brace:
        yield prefix + own
        return
    depth, start = 0, 0
    inner = rest[: rest.rindex("}")]
    for index, char in enumerate(inner + ","):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            if part := inner[start:index].strip():
                yield from paths(part, prefix + own)
            start = index + 1


def imports(module, text, modules):
    """The modules that a file takes names from."""
    text = re.split(r"#\[cfg\(test\)\]\s*(?:pub(?:\(\w+\))? )?mod \w+ \{", text)[0]
    text = re.sub(r"//[^\n]*", "", text)
    for tree in re.findall(r"\buse ((?:crate|super|self)::[^;]+);", text):
        for path in paths(tree):
            base = {"crate": (), "self": module, "super": module[:-1]}[path[0]]
            path = path[1:]
            while path and path[0] == "super":
                base, path = base[:-1], path[1:]
            target = base + path
            while target and target not in modules:
                target = target[:-1]
            # Its own ancestors hand names on.
            if target != module and target != module[: len(target)]:
                yield target


def circles(edges):
    """Groups of modules each of which leads to each other."""

    def reach(start):
        seen, todo = set(), [start]
        while todo:
            for target in edges[todo.pop()] - seen:
                seen.add(target)
                todo.append(target)
        return seen

    reached = {module: reach(module) for module in edges}
    found = {frozenset(o for o in reached[m] if m in reached[o]) for m in edges if m in reached[m]}
    return [sorted(group) for group in found if len(group) > 1]


def main():
    count = 0
    for crate, modules in sorted(sources().items()):
        edges = {m: set(imports(m, (ROOT / name).read_text(), modules)) for m, name in modules.items()}
        for circle in circles(edges):
            count += 1
            print("a circle:", ", ".join(modules[module] for module in circle))
            for module in circle:
                for target in sorted(edges[module] & set(circle)):
                    print(f"  {modules[module]} takes from {modules[target]}")
    print(f"{len(sources())} crates, {count} circles of files")
    sys.exit(count > 0)


if __name__ == "__main__":
    main()
