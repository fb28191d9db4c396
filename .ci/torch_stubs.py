"""Lets PyTorch be imported without CUDA's libraries.

    torch_stubs.py DIRECTORY_OF_TORCH DIRECTORY

PyTorch's wheel for Linux is linked with CUDA's libraries, cuDNN, NCCL and so on: packages of some gigabytes, none of
whose functions is called where there is no GPU. For each of these libraries that is not installed this writes one of
the same name to DIRECTORY, in which every function that PyTorch names ends the process. LD_LIBRARY_PATH=DIRECTORY
then lets PyTorch be loaded. Needs readelf, nm (binutils) and a C compiler.
"""

import collections
import pathlib
import re
import subprocess
import sys

package, out = map(pathlib.Path, sys.argv[1:])
libraries = package / "lib"
out.mkdir(parents=True, exist_ok=True)


def printed(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


installed = {path.name for path in package.parent.glob("nvidia/*/lib/*.so*")}
installed |= {path.name for path in libraries.glob("*.so*")} | {"libcuda.so.1"}
missing = set()
# By library and version of its symbols, as the linker has noted them; those without a version by no library.
wanted = collections.defaultdict(lambda: collections.defaultdict(set))
unversioned = set()
for library in libraries.glob("lib*.so"):
    needed = re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl).*)\]", printed("readelf", "-dW", library))
    own = set(needed) - installed
    if not own:
        continue
    missing |= own
    file_of, file = {}, None
    for line in printed("readelf", "-VW", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            file = found[1]
        elif found := re.search(r"Name: (\S+)", line):
            file_of[found[1]] = file
    for line in printed("nm", "-D", "--undefined-only", "--with-symbol-versions", library).splitlines():
        symbol, _, version = line.split()[-1].partition("@")
        version = version.lstrip("@")
        if file_of.get(version) in own:
            wanted[file_of[version]][version].add(symbol)
        elif not version and re.match(r"p?nccl|cuFile|cusparseLt|cusolver|nvshmem", symbol):
            unversioned.add(symbol)

for number, name in enumerate(sorted(missing)):
    versions = wanted[name]
    symbols = set().union(*versions.values()) | (unversioned if number == 0 else set())
    code = "".join(f"void {symbol}(void) {{ __builtin_trap(); }}\n" for symbol in sorted(symbols))
    script = out / "versions"
    script.write_text(
        "".join(f"{v} {{ global: {' '.join(s + ';' for s in sorted(of))} }};\n" for v, of in versions.items())
    )
    command = ["cc", "-w", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{name}", "-o", out / name]
    if versions:
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, input=code, text=True, check=True)
print(len(missing), "libraries stand in for those of CUDA")
