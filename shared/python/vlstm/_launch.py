"""From tensors to launches: plans by shape, outputs and scratch from PyTorch's allocator, the current stream."""

import functools
import math
import operator
import pathlib
import re
import sys
import warnings

import torch

from vlstm import _native

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64", torch.int32: "i32"}
TYPES = {name: dtype for dtype, name in NAMES.items()}


def names_of(*pass_names):
    """The versions of passes, as `stage:version`, in the order in which a GPU prefers them."""
    all_of_them = _native.versions()
    return [name for of_pass in pass_names for name, *_ in all_of_them[of_pass]]


@functools.lru_cache(maxsize=None)
def _tell_where_to_look():
    """NVRTC comes with PyTorch's own dependencies: in this Python's packages, whatever `python3` on the path is.

    A wheel brings compiled kernels along, for which it is not needed.
    """
    _native.look_for_images_in(pathlib.Path(__file__).parent / "images")
    try:
        import nvidia
    except ImportError:
        return
    _native.look_for_nvrtc_in(list(nvidia.__path__))


@functools.lru_cache(maxsize=None)
def _say_that_it_is_slow():
    warnings.warn(
        "vlstm: tensors on the CPU run on an emulator of a GPU, which is thousands of times slower than one",
        stacklevel=_levels_of_libraries(),
    )


def _levels_of_libraries():
    """How many calls stand between the caller's own code and what the function that asks does: those of this package and of torch."""
    own = (str(pathlib.Path(__file__).parent), str(pathlib.Path(torch.__file__).parent))
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        level, frame = level + 1, frame.f_back
    return level


# The passes of the gated delta rule and of linear attention have the letters of flash-linear-attention.
_DELTA_PASSES = {"delta": "the forward pass", "delta_gradients": "the backward pass", "delta_step": "a step"}
_DELTA_PASSES |= {"linear": "the forward pass", "linear_gradients": "the backward pass"}
_DELTA_PASSES |= {"sigmoid": "the forward pass", "sigmoid_gradients": "the backward pass"}
_DELTA_PASSES |= {"linear_step": "a step", "sigmoid_step": "a step"}
_DELTA_LETTERS = {"DHQK": "K", "DHHV": "V", "NKV": "H", "NH": "HV", "S": "T"}
_DELTA_TENSORS = {"C0": "initial_state", "dh": "the gradient of o", "dCN": "the gradient of the final state"}


def _in_the_callers_words(message, pass_name):
    """The kernels' names of tensors become those of the arguments."""
    if pass_name in _DELTA_PASSES:
        message = re.sub(r"tensor '(\w+)'", lambda name: _DELTA_TENSORS.get(name[1], name[1]), message)
        message = re.sub(r"\b(DHQK|DHHV|NKV|NH|S)\b", lambda letter: _DELTA_LETTERS[letter[1]], message)
        return message.replace("call: expected what a version", f"{_DELTA_PASSES[pass_name]}: expected what a version")
    suffix = "" if pass_name == "step" else "_initial"
    arguments = {"C0": f"c{suffix}", "n0": f"n{suffix}", "m0": f"m{suffix}", "dh": "the gradient of h"}
    arguments |= {"dCN": "the gradient of c", "dnN": "the gradient of n"}
    message = re.sub(r"tensor '(\w+)'", lambda name: arguments.get(name[1], name[1]), message)
    passes = {"forward": "the forward pass", "gradients": "the backward pass", "step": "a step"}
    return message.replace("call: expected what a version takes", f"{passes[pass_name]}: expected what a version takes")


# Where a piece begins in memory that holds several: a multiple of this, in bytes.
_ALIGNMENT = 256

# Kernels load so many bytes at once: what they are given begins at a multiple of that.
_LOADED_AT_ONCE = 16

# Outputs that no caller of a pass wants, and states that none keeps: they are made in the scratch memory.
_UNWANTED = {"forward": {"m", "n"}, "gradients": {"h", "m", "n", "CN", "nN", "mN"}, "step": set()}
_UNWANTED |= {"delta": set(), "delta_gradients": {"h"}, "delta_step": set(), "linear": set(), "linear_gradients": {"h"}}
_UNWANTED |= {"sigmoid": set(), "sigmoid_gradients": {"h"}, "linear_step": set(), "sigmoid_step": set()}


class Planned:
    """A plan of the native module, and what is asked of it again and again."""

    def __init__(self, plan, unwanted):
        self.run, self.version = plan.run, plan.version
        self.bounds, self.reference, self.slots = plan.bounds, plan.reference, plan.slots()
        self.scratch_bytes, self.left_bytes = plan.scratch_bytes, plan.left_bytes
        self.names = tuple(name for name, *_ in self.slots)
        self.inputs = frozenset(name for name, kind, *_ in self.slots if kind != "output")
        self.written = frozenset(name for name, kind, *_ in self.slots if kind != "input")
        # The outputs as tensors are made, each with an input of its type and shape if there is one, which is quicker; and of
        # each slot where it begins in the scratch memory, or -1.
        self.outputs, self.given, places = [], [], []
        alike = {(dtype, tuple(shape)): name for name, kind, dtype, shape in self.slots if kind == "input"}
        self.room_bytes = -(-self.scratch_bytes // _ALIGNMENT) * _ALIGNMENT
        for name, kind, dtype, shape in self.slots:
            at = -1
            if kind != "input" and name in unwanted:
                at = self.room_bytes
                size = math.prod(shape) * TYPES[dtype].itemsize
                self.room_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
            elif kind == "output":
                self.outputs.append((name, tuple(shape), TYPES[dtype], alike.get((dtype, tuple(shape)))))
            places.append(at)
            if at < 0:
                self.given.append(name)
        plan.place(places)


def prepare(on):
    """What a device of this name needs before anything is planned for it."""
    if on.startswith("cuda"):
        _tell_where_to_look()


native_plan_lstm = _native.plan_lstm


@functools.lru_cache(maxsize=1024)
def _planned(on, pass_name, tensors, options, version, cut):
    prepare(on)
    named = [(name, NAMES[dtype], [int(size) for size in shape]) for name, dtype, shape in tensors]
    version = None if version == "auto" else version
    try:
        if cut:
            parts = _native.plan_in_two_parts(on, named, list(options), version)
            if parts is None:
                return None
            second = Planned(parts[1], set())
            return Planned(parts[0], _UNWANTED["forward"] - second.inputs), second
        return Planned(_native.plan(on, pass_name, named, list(options), version), _UNWANTED[pass_name])
    except ValueError as error:
        raise ValueError(_in_the_callers_words(str(error), pass_name)) from None


def _key(tensors):
    return tuple([(name, t.dtype, t.shape) for name, t in tensors.items() if t is not None])


def plan_for(on, pass_name, tensors, options, version):
    """The plan of a call: `tensors` by the names of the kernels, those that are None left out.

    Raises ValueError where no version takes the call, RuntimeError where its kernels cannot be made.
    """
    return _planned(on, pass_name, _key(tensors), options, version, False)


def parts_for(on, types, options, version):
    """The plans of a forward and of its backward pass, of which the first leaves to the second what that needs, for tensors
    of these (name, type, sizes); None where a version makes both at once. Raises as `plan_for`."""
    return _planned(on, "gradients", types, options, version, True)


def device_name(tensor):
    """The name of the device that runs a call on this tensor."""
    return device_name_of(tensor.device)


def device_name_of(device):
    """The name that the native module has for a device of PyTorch's."""
    if device.type == "cuda":
        return f"cuda:{device.index}"
    # What has no memory is only asked how large its results are.
    if device.type in ("cpu", "meta"):
        return "emulator"
    raise ValueError(f"q: expected a tensor on the CPU or a CUDA device, got one on {device}")


def run(planned, tensors, left=None):
    """Runs a plan and returns its outputs by name; what it updates in place it updates in the tensors given.

    All tensors are of one device, row-major and without gaps. On CUDA the launches go to PyTorch's current stream;
    nothing waits for them. An output that is among the tensors given is written there. `left` is the memory that one part of a call leaves to the other.
    """
    return run_on(planned, tensors, left, next(iter(tensors.values())).device)


def run_on(planned, tensors, left, device):
    """As `run`, on the device that the tensors are on."""
    if device.type != "cuda":
        _say_that_it_is_slow()
        return _launch(planned, tensors, left, device, 0)
    index = device.index
    if index == _current_device():
        return _launch(planned, tensors, left, device, _current_stream(index))
    with torch.cuda.device(device):
        return _launch(planned, tensors, left, device, _current_stream(index))


# What Triton and Inductor ask, too: numbers, where the public functions make objects of them or look at more.
_current_device = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda index: torch.cuda.current_stream(index).cuda_stream
)


def current_stream(device):
    """The number of PyTorch's current stream of a CUDA device."""
    return _current_stream(device.index)


def _launch(planned, tensors, left, device, stream):
    made = {
        name: torch.empty_like(tensors[like]) if like else torch.empty(shape, dtype=dtype, device=device)
        for name, shape, dtype, like in planned.outputs
        if name not in tensors
    }
    base, room = 0, None
    if planned.room_bytes:
        # Freed when this returns: what the allocator hands it to next on this stream runs behind the launches.
        room = torch.empty(planned.room_bytes, dtype=torch.uint8, device=device)
        base = room.data_ptr()
    of_all = {**tensors, **made}
    addresses = [of_all[name].data_ptr() for name in planned.given]
    # A view may begin anywhere in its memory.
    if functools.reduce(operator.or_, addresses) % _LOADED_AT_ONCE:
        copies = {name: of_all[name].clone() for name in planned.given if of_all[name].data_ptr() % _LOADED_AT_ONCE}
        addresses = [copies.get(name, of_all[name]).data_ptr() for name in planned.given]
    else:
        copies = {}
    planned.run(addresses, 0 if left is None else left.data_ptr(), base, stream)
    for name in planned.written & copies.keys():
        of_all[name].copy_(copies[name])
    return made
