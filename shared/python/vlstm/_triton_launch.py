"""A kernel that Triton has compiled, launched on the emulator: a run of `lab check` on its PTX."""

import json
import os
import pathlib
import re
import tempfile

from vlstm import _kernels
from vlstm._triton_memory import (
    Region,
    base,
    is_array,
    is_descriptor,
    is_memory,
    memory_of,
    parameters,
    shared_memory,
    tensor_map,
)

# What `lab check` takes by these names; a kernel's own arguments come first.
CHECKS = ("order", "seed", "timeout", "memory", "strict")
# Names that a parameter may have in Python and not in C++.
KEYWORDS = frozenset(
    "alignas alignof and_eq asm auto bitand bitor bool case catch char compl concept const constexpr decltype default delete do "
    "double dynamic_cast enum explicit export extern false float friend goto inline int long mutable namespace new noexcept "
    "not_eq nullptr operator or_eq private protected public register requires short signed sizeof static struct switch "
    "template this throw true typedef typeid typename union unsigned using virtual void volatile xor xor_eq".split()
)

# Bytes of memory that is looked through for addresses, and what is too small to be one.
LARGEST_TABLE, FIRST_ADDRESS = 1 << 15, 1 << 32


def launched(title, compiled, sizes, passed, options, pointed=None):
    """Launches `compiled` on a grid of these `sizes`; `passed` has its arguments by their names, without what is compiled in.

    Whole numbers of 64 bits in memory may be addresses: `pointed` takes a set of them, and gives back by address the memory
    that each is in, if it is in any.

    Returns what `lab check` reports, what it says, and by names what the kernel has left, memory as it lies and `Out` as
    arrays; then the memory by these names.
    """
    from safetensors.numpy import load_file, save_file

    passed = {cpp_name(name): value for name, value in passed.items()}
    own_names = [own for name, value in passed.items() for own in parameters(name, value)]
    entry, ptx = named(compiled.asm["ptx"], own_names)
    memories = {name: memory_of(base(value)) for name, value in passed.items() if is_memory(value)}
    tables = tables_of_addresses(memories, pointed) if pointed else {}
    for name, table in tables.items():
        for number, memory in enumerate(memory for memory in table.values() if memory):
            if all(memory.address != other.address or memory.size > other.size for other in memories.values()):
                memories[f"{name}_to_{number}"] = memory
    regions = shared_memory({name: memory for name, memory in memories.items() if memory.size and name not in tables})
    among = {own for region in regions.values() for own in region.offsets}
    for name in memories:
        if name not in passed and name not in among:
            regions[f"{name}_memory"] = Region(memories[name].elements(), {name: 0})
    for name, value in passed.items():
        if is_descriptor(value) and not any(name in region.offsets for region in regions.values()):
            regions[f"{name}_memory"] = Region(memories[name].elements(), {name: 0})
    with tempfile.TemporaryDirectory(prefix="vlstm-") as directory:
        given, left = pathlib.Path(directory, "given.safetensors"), pathlib.Path(directory, "left.safetensors")
        module = pathlib.Path(directory, f"{title}.ptx")
        module.write_text(ptx)
        arrays, command, maps = {}, [], iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        for own, region in regions.items():
            command += ["--let", f"{own}=" + _kernels.described(own, region.bytes, arrays, given)]
        for name, table in tables.items():
            each = [within_region(address, memory, memories, regions) for address, memory in table.items()]
            numbers = dict(zip(table, each))
            own = ", ".join(numbers[int(address)] for address in memories[name].elements())
            kind = f"std::array<uint64_t, {memories[name].size // 8}>"
            command += ["--let", f"{name}_table=inout:{kind}[1]={{{own}}}"]
        for name, value in passed.items():
            within = [f"{own} + {region.offsets[name]}" for own, region in regions.items() if name in region.offsets]
            if is_descriptor(value):
                texts = tensor_map(name, value, within[0], next(maps, None))
            elif name in tables:
                texts = [f"(void*){name}_table"]
            elif within:
                texts = [f"(void*)((char*)({own}))" for own in within]
            elif name in memories and not memories[name].size:
                texts = ["nullptr"]
            else:
                value = memories[name].elements() if is_array(value) else value
                texts = [_kernels.described(name, value, arrays, given)]
            for own, text in zip(parameters(name, value), texts):
                command += ["--arg", f"{own}={text}"]
        command += added(compiled, ptx, sizes, len(own_names))
        if arrays:
            save_file(arrays, given)
        command += ["--kernel", entry, "--grid", _kernels.sizes(sizes), "--shared", str(compiled.metadata.shared)]
        if compiled.metadata.num_ctas > 1:
            command += ["--cluster", str(compiled.metadata.num_ctas)]
        if getattr(compiled.metadata, "launch_cooperative_grid", False):
            command += ["--cooperative"]
        for name in ("order", "seed", "timeout", "memory"):
            command += [f"--{name}", str(options[name])] if options.get(name) is not None else []
        command += ["--strict"] if options.get("strict") else []
        report, said = _kernels.run(["check", os.fspath(module), *command, "--output", str(left), "--json"])
        # A module of the directory that is gone afterwards.
        report, said = json.loads(json.dumps(report).replace(f"{directory}/", "")), said.replace(f"{directory}/", "")
        results = load_file(left) if left.exists() else {}
    for own, region in regions.items():
        if own in results:
            # Its bytes, whatever they are elements of.
            left_of = results.pop(own).view("uint8")
            for name, offset in region.offsets.items():
                results[name] = left_of[offset : offset + memories[name].size]
    # A table has other addresses there, which mean nothing here.
    results = {name: result for name, result in results.items() if name.removesuffix("_table") not in tables}
    return report, said, spelled_back(results), spelled_back(memories)


def cpp_name(name):
    """A name of Python as one that C++ takes, too: what reports call it."""
    return f"{name}_" if name in KEYWORDS else name


def spelled_back(named_values):
    return {key[:-1] if key[:-1] in KEYWORDS else key: value for key, value in named_values.items()}


def tables_of_addresses(memories, pointed):
    """By names the numbers of memory that has addresses among them, and the memory that each is in."""
    tables = {}
    for name, memory in memories.items():
        if memory.dtype.kind in "iu" and memory.dtype.itemsize == 8 and memory.size <= LARGEST_TABLE:
            numbers = dict.fromkeys(map(int, memory.elements()))
            found = pointed({number for number in numbers if number > FIRST_ADDRESS})
            if found:
                tables[name] = {number: found.get(number) for number in numbers}
    return tables


def within_region(address, memory, memories, regions):
    """An address of this machine as the emulator's, in C++; a number that is none as itself."""
    if memory is None:
        return f"{address % 2**64}ull"
    for own, region in regions.items():
        for name, offset in region.offsets.items():
            if memories[name].address <= address < memories[name].address + memories[name].size:
                return f"uint64_t((char*)({own})) + {offset + address - memories[name].address}"
    raise ValueError(f"expected memory of an argument at {address:#x}, got none")


def named(ptx, names):
    """A module's kernel, and the module with the parameters' names as the Python file has them."""
    entry = re.search(r"\.entry\s+([\w$]+)", ptx)[1]
    for index, name in reversed(list(enumerate(names))):
        ptx = re.sub(rf"\b{re.escape(entry)}_param_{index}\b", name, ptx)
    return entry, ptx


def added(compiled, ptx, sizes, count):
    """What Triton's launcher adds to the kernel's `count` parameters: memory for the whole grid, if it is needed."""
    size = (getattr(compiled.metadata, "global_scratch_size", 0) or 0) * compiled.metadata.num_ctas
    for axis in sizes if isinstance(sizes, (tuple, list)) else [sizes]:
        size *= int(axis)
    names = re.findall(r"\.param [^,)]*?([\w$]+)\s*[,)]", re.search(r"\.entry[^(]*\((.*?\))", ptx, re.S)[1])
    command = []
    for index, name in enumerate(names[count:]):
        command += ["--arg", f"{name}=" + (f"inout:u8[{size}]=0" if size and index == 0 else "nullptr")]
    return command
