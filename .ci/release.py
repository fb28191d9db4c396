"""Makes the files of a release: python3 .ci/release.py [--dry-run] [--out DIRECTORY]

    vlstm-VERSION-….whl                  the package for PyTorch
    lab-VERSION-x86_64-linux.tar.gz      the tool, with all kernels inside
    lab-checker-VERSION-….tar.gz         the checks alone, for other people's files
    vlstm-lab-VERSION-book.tar.gz        the book, to read without a network
    NOTES.md, SHA256SUMS                 the version's section of CHANGELOG.md, and a sum of each file

A release has one version in all manifests, a dated section of CHANGELOG.md, a clean tree and no tag yet. With --dry-run the commands
are printed, none runs, and nothing is written; a tree that is not clean and a section without a date are told, not refused.
The packages for Rust (`cargo publish`) and the crate for candle are taken from the source.
"""

import argparse
import datetime
import gzip
import hashlib
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Where the version stands, and how.
VERSIONS = {
    "Cargo.toml": r'^\[workspace\.package\]\nversion = "([^"]+)"',
    "shared/candle/Cargo.toml": r'^version = "([^"]+)"',
    "CITATION.cff": r"^version: (\S+)",
}
LICENCES = ["LICENSE-MIT", "LICENSE-APACHE", "README.md"]
SECTION = r"^## (\S+) \((\d{4}-\d{2}-\d{2}|unreleased)\)\n(.*?)(?=^## |\Z)"


def sections(changelog):
    """(version, date or "unreleased", text) of each version, the newest first."""
    return re.findall(SECTION, changelog, re.MULTILINE | re.DOTALL)


def versions_of(read):
    """The version that each file names; None where it names none. `read` gives a file's text."""
    found = {file: re.search(pattern, read(file), re.MULTILINE) for file, pattern in VERSIONS.items()}
    return {file: match and match[1] for file, match in found.items()}


def problems_of(versions, told, clean, tagged):
    """(what forbids a release, what forbids one but not a dry run)."""
    hard, soft = [], []
    version = versions["Cargo.toml"]
    for file, other in versions.items():
        if other != version or other is None:
            hard.append(f"{file}: expected version {version}, got {other}")
    if not told:
        hard.append("CHANGELOG.md: expected a section '## VERSION (DATE)', got none")
    else:
        newest, date, text = told[0]
        if newest != version:
            hard.append(f"CHANGELOG.md: expected {version} as its first section, got {newest}")
        if not text.strip():
            hard.append(f"CHANGELOG.md: {newest}: expected what has changed, got nothing")
        if date == "unreleased":
            soft.append(f"CHANGELOG.md: {newest}: expected a date, got 'unreleased'")
        elif datetime.date.fromisoformat(date) > datetime.date.today():
            hard.append(f"CHANGELOG.md: {newest}: expected a day that has come, got {date}")
    if not clean:
        soft.append("the tree: expected a clean commit, got changes")
    if tagged:
        soft.append(f"tag v{version}: expected none, it is there")
    return hard, soft


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def packed(archive, folder, files, date):
    """An archive of files, the same bytes each time: {name: path}, all in one folder."""

    def plain(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = date
        entry.mode = 0o755 if entry.mode & 0o100 else 0o644
        return entry

    with archive.open("wb") as raw, gzip.GzipFile("", "wb", mtime=date, fileobj=raw) as zipped:
        with tarfile.open(fileobj=zipped, mode="w") as tar:
            for name, path in sorted(files.items()):
                tar.add(path, f"{folder}/{name}", recursive=False, filter=plain)


def builds(out):
    """The commands that build what is packed."""
    return [
        ["cargo", "build", "--release", "--locked", "-p", "lab", "-p", "lab-checker"],
        ["maturin", "build", "--release", "--locked", "--manifest-path", "shared/python/Cargo.toml", "--out", str(out)],
        ["mdbook", "build", "book", "--dest-dir", str(ROOT / "target/release-book")],
    ]


def archives(version):
    """Of each archive: its name, its folder, and its files, once they are built."""

    def program(name):
        return {name: ROOT / "target/release" / name} | {file: ROOT / file for file in LICENCES}

    def book():
        pages = ROOT / "target/release-book"
        return {p.relative_to(pages).as_posix(): p for p in pages.rglob("*") if p.is_file()}

    return [
        (f"lab-{version}-x86_64-linux.tar.gz", f"lab-{version}", lambda: program("lab")),
        (f"lab-checker-{version}-x86_64-linux.tar.gz", f"lab-checker-{version}", lambda: program("lab-checker")),
        (f"vlstm-lab-{version}-book.tar.gz", f"vlstm-lab-{version}-book", book),
    ]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--dry-run", action="store_true", help="print the commands, run none, write nothing")
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "target/release-files", metavar="DIRECTORY")
    arguments.add_argument("--changelog", type=pathlib.Path, default=ROOT / "CHANGELOG.md", metavar="FILE")
    arguments = arguments.parse_args()
    versions = versions_of(lambda file: (ROOT / file).read_text())
    told = sections(arguments.changelog.read_text())
    version = versions["Cargo.toml"]
    clean, tagged = not git("status", "--porcelain"), bool(git("tag", "--list", f"v{version}"))
    hard, soft = problems_of(versions, told, clean, tagged)
    commands = builds(arguments.out)
    if arguments.out.is_dir() and any(arguments.out.iterdir()):
        soft.append(f"--out: expected an empty directory, got files in {arguments.out.name}")
    soft += [f"{command[0]}: expected it installed" for command in commands if not shutil.which(command[0])]
    for problem in hard + soft:
        print(f"{'not released' if problem in hard or not arguments.dry_run else 'note'}: {problem}", file=sys.stderr)
    if hard or (soft and not arguments.dry_run):
        sys.exit(1)
    for command in commands:
        print(f"$ {shlex.join(command)}", flush=True)
        if not arguments.dry_run:
            subprocess.run(command, cwd=ROOT, check=True)
    if arguments.dry_run:
        for name, _, _ in archives(version):
            print(name)
        print("NOTES.md\nSHA256SUMS")
        print(f"version {version}, {len(told[0][2].split())} words of notes: would be made in {arguments.out.name}/")
        return
    date = int(git("log", "-1", "--format=%ct"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, folder, files in archives(version):
        packed(arguments.out / name, folder, files(), date)
    (arguments.out / "NOTES.md").write_text(told[0][2].strip() + "\n")
    made = sorted(p for p in arguments.out.iterdir() if p.is_file() and p.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in made]
    (arguments.out / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print("\n".join(sums))
    print(f"next: git tag v{version} && git push --tags, and these files beside the tag")


if __name__ == "__main__":
    main()
