"""Kernels of Triton, checked without a GPU: compiled for one, run on the emulator, with findings at Python's lines."""

import re

from vlstm import _kernels
from vlstm._triton_launch import CHECKS, launched
from vlstm._triton_memory import ALIGNMENT, POINTEES, base, is_array, is_descriptor, is_tensor, memory_of, plain

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
    __tracebackhide__ = True  # of pytest
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
    passed = {name: values[name] for name in names if name not in constants}
    report, said, results, _ = launched(function.__name__, compiled, sizes, passed, options)
    _kernels.refuse_failures(report, said)
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
            if isinstance(value, _kernels.Out) or memory_of(value).address % ALIGNMENT == 0:
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


def like(given, array):
    """What the kernel has left of an argument's memory, as what was given for it."""
    import numpy

    if isinstance(given, _kernels.Out):
        return array
    if is_tensor(given):
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
