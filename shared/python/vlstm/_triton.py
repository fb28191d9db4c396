"""Kernels of Triton, checked without a GPU: compiled for one, run on the emulator, with findings at Python's lines."""

import ctypes
import dataclasses
import os
import pathlib
import re
import tempfile

from vlstm import _kernels

# numpy's names of types, and Triton's.
POINTEES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "i1",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
    **{f"{sign}int{bits}": f"{'u' * len(sign)}i{bits}".replace("ui", "u") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
# What `lab check` takes by these names; a kernel's own arguments come first.
CHECKS = ("order", "seed", "timeout", "memory", "strict")
# What Triton's compiler takes, among others.
COMPILER = ("num_stages", "num_ctas", "maxnreg", "enable_fp_fusion")
THREADS = 32  # of a warp


def check_triton(kernel, grid, *args, arch="sm_90", num_warps=4, **keywords):
    """Compiles a kernel of Triton for an architecture, launches it on the emulator, and gives back its arrays.

    `kernel` is a function under `@triton.jit`; `grid` is 1 to 3 numbers, or a function of the keywords that gives them, as
    Triton's own launch takes it. `args` and `keywords` are the kernel's arguments, `tl.constexpr` ones among them:

    - an array (numpy's, or a tensor of PyTorch on the CPU) is memory with these values, of which the kernel gets a copy;
    - a `TensorDescriptor` of Triton is its tensor, likewise;
    - `vlstm.Out(dtype, shape)` is memory that the kernel must write: each element that gets no value is a finding;
    - numbers are numbers. As in a launch of Triton's, a whole number that is 1 or a multiple of 16 is compiled in as that.

    `num_warps` and, by their names, `num_stages`, `num_ctas`, `maxnreg`, `enable_fp_fusion` are Triton's; `order`, `seed`,
    `timeout`, `memory`, `strict` are those of `vlstm.check_kernel`. A name that the kernel has is the kernel's.

    Returns a dict of arrays by the arguments' names, as the kernel has left them: tensors where tensors were given.

    Raises `KernelError` where the checks find something: its text is the report, with the lines of the Python file, and
    its `findings` are dicts. Raises `ValueError` for what is refused. Needs the packages `triton`, `numpy` and
    `safetensors`, and a C++ compiler; no GPU.
    """
    from safetensors.numpy import load_file, save_file

    function = unwrapped(kernel)
    names = list(function.arg_names)
    options = {name: keywords.pop(name) for name in (*CHECKS, *COMPILER) if name in keywords and name not in names}
    # As Triton does it: a kernel may ask for what it is compiled with.
    if "num_warps" in names:
        keywords.setdefault("num_warps", num_warps)
    options.update({name: keywords[name] for name in COMPILER if name in keywords})
    values = bound(function, names, args, keywords)
    types, constants, divisible = specialised(function, names, values)
    compiled = compile_for(function, types, constants, divisible, arch, num_warps, options)
    sizes = grid({name: values[name] for name in names}) if callable(grid) else grid
    with tempfile.TemporaryDirectory(prefix="vlstm-") as directory:
        given, left = pathlib.Path(directory, "given.safetensors"), pathlib.Path(directory, "left.safetensors")
        module = pathlib.Path(directory, f"{function.__name__}.ptx")
        passed = [name for name in names if name not in constants]
        entry, ptx = named(compiled.asm["ptx"], [own for name in passed for own in parameters(name, values[name])])
        module.write_text(ptx)
        regions = shared_memory({name: memory_of(base(values[name])) for name in passed if is_memory(values[name])})
        for name in passed:
            if is_descriptor(values[name]) and not any(name in region.offsets for region in regions.values()):
                regions[f"{name}_memory"] = Region(memory_of(base(values[name])).elements(), {name: 0})
        arrays, command, maps = {}, [], iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        for name, region in regions.items():
            command += ["--let", f"{name}=" + _kernels.described(name, region.bytes, arrays, given)]
        for name in passed:
            within = [f"{own} + {region.offsets[name]}" for own, region in regions.items() if name in region.offsets]
            value = values[name]
            if is_descriptor(value):
                texts = tensor_map(name, value, within[0], next(maps, None))
            elif within:
                texts = [f"(void*)((char*)({own}))" for own in within]
            else:
                value = memory_of(value).elements() if is_array(value) else plain(value)
                texts = [_kernels.described(name, value, arrays, given)]
            for own, text in zip(parameters(name, value), texts):
                command += ["--arg", f"{own}={text}"]
        count = sum(len(parameters(name, values[name])) for name in passed)
        command += added(compiled, ptx, sizes, count)
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
        _kernels.refuse_failures(report, said)
        results = load_file(left) if left.exists() else {}
    for own, region in regions.items():
        # Its bytes, whatever they are elements of.
        left_of = results[own].view("uint8")
        for name, offset in region.offsets.items():
            results[name] = left_of[offset : offset + memory_of(base(values[name])).size]
    return {name: like(base(values[name]), results[name]) for name in names if name in results}


def unwrapped(kernel):
    """The function under decorators such as `triton.autotune`, of which the caller chooses the configuration."""
    from triton.runtime.jit import JITFunction

    function = kernel
    while not isinstance(function, JITFunction):
        if not hasattr(function, "fn"):
            raise ValueError(f"kernel: expected a function under @triton.jit, got {type(kernel).__name__}")
        function = function.fn
    return function


def bound(function, names, args, keywords):
    """The kernel's arguments by their names."""
    if len(args) > len(names):
        raise ValueError(f"args: expected at most {len(names)} ({', '.join(names)}), got {len(args)}")
    values = dict(zip(names, args))
    for name, value in keywords.items():
        if name not in names:
            raise ValueError(f"{name}: expected one of {', '.join([*names, *CHECKS, *COMPILER])}, got '{name}'")
        if name in values:
            raise ValueError(f"{name}: expected one value, got a second")
        values[name] = value
    for parameter in function.params:
        if parameter.name not in values:
            if not parameter.has_default:
                raise ValueError(f"{parameter.name}: expected a value, got none")
            values[parameter.name] = parameter.default
    return values


def specialised(function, names, values):
    """Triton's types of the arguments, the values that are compiled in, and which are multiples of 16."""
    types, constants, divisible = {}, {}, []
    for index, name in enumerate(names):
        value, parameter = plain(values[name]), function.params[index]
        if parameter.is_constexpr or value is None:
            types[name], constants[name] = "constexpr", value
        elif is_descriptor(value):
            types[name] = f"tensordesc<{pointee(name, value.base)}{list(map(int, value.block_shape))}>"
        elif is_array(value) or isinstance(value, _kernels.Out):
            types[name] = "*" + pointee(name, value)
            divisible.append(index)
        elif isinstance(value, bool):
            types[name] = "i1"
        elif isinstance(value, int):
            if value == 1 and not parameter.do_not_specialize:
                types[name], constants[name] = "constexpr", 1
                continue
            types[name] = "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                divisible.append(index)
        elif isinstance(value, float):
            types[name] = "fp32"
        else:
            raise ValueError(f"{name}: expected an array, a number or vlstm.Out, got {type(value).__name__}")
    return types, constants, divisible


def pointee(name, value):
    """Triton's name of an array's type."""
    import numpy

    own = str(value.dtype).removeprefix("torch.")
    # Types have ours and numpy's names, and its classes.
    own = {short: long for long, short in _kernels.TYPES.items()}.get(own, own)
    if own not in POINTEES:
        try:
            own = str(numpy.dtype(value.dtype))
        except TypeError:
            pass
    if own not in POINTEES:
        raise ValueError(f"{name}: expected an array of {', '.join(POINTEES)}, got {own}")
    return POINTEES[own]


def is_array(value):
    """Whether it is memory: an array of numpy, or a tensor."""
    return hasattr(value, "dtype") and getattr(value, "ndim", 0) > 0 and not isinstance(value, _kernels.Out)


def is_descriptor(value):
    """Whether it is a tensor with the boxes that a kernel copies of it: `TensorDescriptor` of Triton."""
    return all(hasattr(value, name) for name in ("base", "shape", "strides", "block_shape"))


def is_memory(value):
    return is_array(value) or is_descriptor(value)


def base(value):
    """The tensor of a descriptor; anything else itself."""
    return value.base if is_descriptor(value) else value


def parameters(name, value):
    """The kernel's parameters that an argument becomes: of a descriptor a map, sizes and strides."""
    if not is_descriptor(value):
        return [name]
    axes = range(len(value.shape))
    return [name, *(f"{name}_size_{axis}" for axis in axes), *(f"{name}_stride_{axis}" for axis in axes)]


def tensor_map(name, value, address, box):
    """A descriptor as C++: the map as the emulator has it (shared/emulator/src/completion/tensor.rs), sizes, strides."""
    if box is None:
        raise ValueError(f"{name}: expected an array where the architecture has no tensor maps, got a descriptor")
    item = memory_of(value.base).dtype.itemsize
    sizes, strides = [list(reversed(list(map(int, numbers)))) for numbers in (value.shape, value.strides)]
    boxes = [int(size) - 1 for size in reversed(box["block_size"])]
    span = 16 << box["swizzle"] if box["swizzle"] else 0
    is_nan = getattr(value, "padding", "zero") == "nan"
    words = ["EMU_TENSOR_MAP", f"uint64_t({address})", is_nan << 32 | span << 16 | item << 8 | len(sizes)] + [0] * 13
    words[3 : 3 + len(sizes)] = sizes
    words[8 : 7 + len(sizes)] = [stride * item for stride in strides[1:]]
    words[12] = sum(size << 8 * axis for axis, size in enumerate(boxes))
    text = ", ".join(word if isinstance(word, str) else f"{word}ull" for word in words)
    text = f"[&]{{ struct alignas(64) Map {{ uint64_t words[16]; }} map = {{{{{text}}}}}; return map; }}()"
    return [text, *map(str, map(int, value.shape)), *map(str, map(int, value.strides))]


def plain(value):
    """Numbers of numpy, and tensors that are one number, as Python's."""
    return value.item() if hasattr(value, "item") and not is_array(value) else value


@dataclasses.dataclass
class Memory:
    """What an array lies in: from its first element to its last, whatever lies between them."""

    address: int
    size: int  # bytes
    dtype: object  # numpy's
    owner: object

    def elements(self):
        """A copy of it."""
        import numpy

        buffer = (ctypes.c_char * self.size).from_address(self.address)
        return numpy.frombuffer(bytes(buffer), self.dtype)


def memory_of(value):
    import numpy

    if type(value).__module__.partition(".")[0] == "torch":
        if value.device.type != "cpu":
            raise ValueError(f"expected tensors on the CPU, got one on {value.device}")
        item, strides, address = value.element_size(), value.stride(), value.data_ptr()
        # numpy has no bfloat16, and no type of 8 bits but whole numbers: the bits are the same.
        own = str(value.dtype).removeprefix("torch.")
        dtype = numpy.dtype(own if own in POINTEES and own != "bfloat16" else f"u{item}")
    else:
        value = numpy.asarray(value)
        item, dtype, address = value.itemsize, value.dtype, value.__array_interface__["data"][0]
        strides = [stride // item for stride in value.strides]
    if any(stride < 0 for stride in strides):
        raise ValueError("expected arrays whose strides are not negative, got one that runs backwards")
    empty = 0 in value.shape
    extent = 0 if empty else 1 + sum((size - 1) * stride for size, stride in zip(value.shape, strides))
    return Memory(address, extent * item, dtype, value)


@dataclasses.dataclass
class Region:
    """Memory that several arguments share, and where each begins."""

    bytes: object
    offsets: dict


def shared_memory(memories):
    """Regions by a name for each: arguments that overlap must overlap in the kernel's memory, too."""
    import numpy

    groups = []
    for name, memory in sorted(memories.items(), key=lambda item: item[1].address):
        if groups and memory.address < groups[-1][1]:
            groups[-1][1] = max(groups[-1][1], memory.address + memory.size)
            groups[-1][2].append(name)
        else:
            groups.append([memory.address, memory.address + memory.size, [name]])
    regions = {}
    for start, end, names in groups:
        if len(names) > 1:
            whole = Memory(start, end - start, numpy.dtype("uint8"), None).elements()
            regions["_and_".join(names)] = Region(whole, {name: memories[name].address - start for name in names})
    return regions


def like(given, array):
    """What the kernel has left of an argument's memory, as what was given for it."""
    import numpy

    if isinstance(given, _kernels.Out):
        return array
    if type(given).__module__.partition(".")[0] == "torch":
        import torch

        flat = torch.from_numpy(array.view(numpy.uint8).copy()).view(given.dtype)
        return torch.as_strided(flat, given.shape, given.stride()).clone()
    given = numpy.asarray(given)
    flat = array.view(numpy.uint8).view(given.dtype)
    return numpy.lib.stride_tricks.as_strided(flat, given.shape, given.strides).copy()


def compile_for(function, types, constants, divisible, arch, num_warps, options):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    number = re.fullmatch(r"sm_(\d+)a?", arch)
    if not number:
        raise ValueError(f"arch: expected one such as sm_90, got '{arch}'")
    names = list(types)
    source = ASTSource(
        function,
        types,
        {(names.index(name),): value for name, value in constants.items()},
        {(index,): [["tt.divisibility", 16]] for index in divisible},
    )
    own = {name: options[name] for name in COMPILER if name in options}
    target = GPUTarget("cuda", int(number[1]), THREADS)
    try:
        return triton.compile(source, target=target, options={"num_warps": num_warps, **own})
    except triton.CompilationError as error:
        raise ValueError(f"{function.__name__}: expected a kernel that Triton compiles: {error}") from error


def named(ptx, names):
    """A module's kernel, and the module with the parameters' names as the Python file has them."""
    entry = re.search(r"\.entry\s+([\w$]+)", ptx)[1]
    for index, name in reversed(list(enumerate(names))):
        ptx = re.sub(rf"\b{re.escape(entry)}_param_{index}\b", name, ptx)
    return entry, ptx


def added(compiled, ptx, sizes, count):
    """What Triton's launcher adds to the kernel's `count` parameters: memory for the whole grid, if it is needed."""
    size = getattr(compiled.metadata, "global_scratch_size", 0) or 0
    for axis in sizes if isinstance(sizes, (tuple, list)) else [sizes]:
        size *= int(axis)
    names = re.findall(r"\.param [^,)]*?([\w$]+)\s*[,)]", re.search(r"\.entry[^(]*\((.*?\))", ptx, re.S)[1])
    command = []
    for index, name in enumerate(names[count:]):
        command += ["--arg", f"{name}=" + (f"inout:u8[{size}]=0" if size and index == 0 else "nullptr")]
    return command
