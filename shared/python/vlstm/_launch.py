"""From tensors to launches: plans by shape, outputs and scratch from PyTorch's allocator, the current stream."""

import functools
import re
import warnings

import torch

from vlstm import _native

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
TYPES = {name: dtype for dtype, name in NAMES.items()}


def names_of(pass_name):
    """The versions of a pass, as `stage:version`, in the order in which a GPU prefers them."""
    return [name for name, *_ in _native.versions()[pass_name]]


@functools.lru_cache(maxsize=None)
def _tell_nvrtc_where_to_look():
    """NVRTC comes with PyTorch's own dependencies: in this Python's packages, whatever `python3` on the path is."""
    try:
        import nvidia
    except ImportError:
        return
    _native.look_for_nvrtc_in(list(nvidia.__path__))


@functools.lru_cache(maxsize=None)
def _say_that_it_is_slow():
    warnings.warn(
        "vlstm: tensors on the CPU run on an emulator of a GPU, which is thousands of times slower than one",
        stacklevel=2,
    )


def _in_the_callers_words(message, pass_name):
    """The kernels' names of tensors become those of the arguments."""
    suffix = "" if pass_name == "step" else "_initial"
    arguments = {"C0": f"c{suffix}", "n0": f"n{suffix}", "m0": f"m{suffix}", "dh": "the gradient of h"}
    arguments |= {"dCN": "the gradient of c", "dnN": "the gradient of n"}
    message = re.sub(r"tensor '(\w+)'", lambda name: arguments.get(name[1], name[1]), message)
    passes = {"forward": "the forward pass", "gradients": "the backward pass", "step": "a step"}
    return message.replace("call: expected what a version takes", f"{passes[pass_name]}: expected what a version takes")


@functools.lru_cache(maxsize=1024)
def _planned(on, pass_name, tensors, options, version):
    """A plan, the names of its slots in order, and its outputs by name."""
    if on.startswith("cuda"):
        _tell_nvrtc_where_to_look()
    named = [(name, NAMES[dtype], list(shape)) for name, dtype, shape in tensors]
    try:
        plan = _native.plan(on, pass_name, named, list(options), None if version == "auto" else version)
    except ValueError as error:
        raise ValueError(_in_the_callers_words(str(error), pass_name)) from None
    slots = plan.slots()
    outputs = {name: (tuple(shape), TYPES[dtype]) for name, kind, dtype, shape in slots if kind == "output"}
    return plan, tuple(name for name, *_ in slots), outputs, plan.scratch_bytes


def plan_for(on, pass_name, tensors, options, version):
    """The plan of a call: `tensors` by the names of the kernels, those that are None left out.

    Raises ValueError where no version takes the call, RuntimeError where its kernels cannot be made.
    """
    key = tuple([(name, t.dtype, t.shape) for name, t in tensors.items() if t is not None])
    return _planned(on, pass_name, key, options, version)


def device_name(tensor):
    """The name of the device that runs a call on this tensor."""
    kind = tensor.device.type
    if kind == "cuda":
        return f"cuda:{tensor.device.index}"
    if kind == "cpu":
        return "emulator"
    raise ValueError(f"q: expected a tensor on the CPU or a CUDA device, got one on {tensor.device}")


def run(pass_name, tensors, options, version, on=None):
    """Runs a pass and returns its outputs by name; what it updates in place it updates in the tensors given.

    All tensors are of one device, row-major and without gaps. On CUDA the launches go to PyTorch's current stream;
    nothing waits for them. `on` is `checked` to run on the checking emulator, of tensors on the CPU.
    """
    first = tensors["q"]
    on = on or device_name(first)
    plan, names, outputs, scratch_bytes = plan_for(on, pass_name, tensors, options, version)
    device = first.device
    made = {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in outputs.items()}
    addresses = [(made[name] if name in made else tensors[name]).data_ptr() for name in names]
    if device.type != "cuda":
        if on == "emulator":
            _say_that_it_is_slow()
        plan.run(addresses, 0, 0)
    elif device.index == torch.cuda.current_device():
        _launch(plan, addresses, scratch_bytes, device)
    else:
        with torch.cuda.device(device):
            _launch(plan, addresses, scratch_bytes, device)
    return made


def _launch(plan, addresses, scratch_bytes, device):
    # Freed when this returns: what the allocator hands it to next on this stream runs behind the launches.
    scratch = torch.empty(scratch_bytes, dtype=torch.uint8, device=device) if scratch_bytes else None
    stream = torch.cuda.current_stream(device).cuda_stream
    plan.run(addresses, scratch.data_ptr() if scratch is not None else 0, stream)
