"""What stands for CUDA in PyTorch while a suite of tests runs without a GPU: tensors stay on the CPU."""

import contextlib
import functools
import types

import torch
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode

# Of a tensor that the suite has made on a GPU, or moved there.
MARK = "_vlstm_is_on_cuda"
NOTHING = {
    "synchronize": None, "empty_cache": None, "ipc_collect": None, "reset_peak_memory_stats": None, "set_device": None,
    "reset_max_memory_allocated": None, "init": None, "manual_seed": None, "manual_seed_all": None,
    "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0, "max_memory_reserved": 0,
    "current_device": 0, "device_count": 1, "is_available": True, "is_initialized": True, "is_bf16_supported": True,
    "get_device_name": "NVIDIA H100 (vLSTM emulator)", "mem_get_info": (80 << 30, 80 << 30),
    "is_current_stream_capturing": False,
}  # fmt: skip


class Stream:
    """Work is done in order, when it is asked for."""

    cuda_stream = 0

    def __init__(self, *_, **__):
        self.device = torch.device("cuda", 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_stream(self, *_):
        pass

    record_event = wait_event = synchronize = wait_stream

    def query(self):
        return True


class Event(Stream):
    """It has happened."""

    record = wait = Stream.wait_stream

    def elapsed_time(self, _):
        """Milliseconds; those of an emulator mean nothing."""
        return 1.0


class Device(contextlib.nullcontext):
    def __init__(self, *_):
        super().__init__()


class Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")


def is_cuda(device):
    """Whether it names a GPU: `cuda`, `cuda:0`, a `torch.device`, or a number."""
    if isinstance(device, bool) or device is None:
        return False
    kind = device.type if isinstance(device, torch.device) else str(device) if isinstance(device, (str, int)) else ""
    return kind.partition(":")[0] == "cuda" or kind.isdigit()


def is_cpu(device):
    return isinstance(device, (str, torch.device)) and str(device).partition(":")[0] == "cpu"


class CudaOnCpu(TorchFunctionMode):
    """Makes what is asked for on `cuda` on the CPU. Each tensor says that it is on `cuda:0`."""

    def __init__(self, capability):
        super().__init__()
        self.restored, self.capability = [], capability

    def __enter__(self):
        major, minor = self.capability
        properties = types.SimpleNamespace(
            name=NOTHING["get_device_name"], major=major, minor=minor, multi_processor_count=132, warp_size=32,
            total_memory=80 << 30, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
            shared_memory_per_block=49152, shared_memory_per_block_optin=232448, L2_cache_size=50 << 20,
            shared_memory_per_multiprocessor=233472,
        )  # fmt: skip
        values = {**NOTHING, "get_device_capability": (major, minor), "get_device_properties": properties}
        for name, value in values.items():
            self.replace(torch.cuda, name, lambda *_, value=value, **__: value)
        stream = Stream()
        for name in ("current_stream", "default_stream"):
            self.replace(torch.cuda, name, lambda *_: stream)
        self.replace(torch.cuda, "stream", lambda *_: contextlib.nullcontext())
        for name, value in {"Stream": Stream, "Event": Event, "device": Device, "device_of": Device}.items():
            self.replace(torch.cuda, name, value)
        self.replace(torch, "Generator", Generator)
        self.replace(torch.autograd, "_engine_run_backward", functools.partial(self.run_backward, _engine_run_backward))
        return super().__enter__()

    def run_backward(self, engine, *args, **kwargs):
        """While a function is handled here its mode is off; the passes that this one calls are of the suite."""
        super().__enter__()
        try:
            return engine(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)

    def __exit__(self, *error):
        while self.restored:
            setattr(*self.restored.pop())
        return super().__exit__(*error)

    def replace(self, owner, name, value):
        if hasattr(owner, name):
            self.restored.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function in SAID:
            return SAID[function]
        if function is torch.Tensor.get_device:
            return 0
        if function in (torch.Tensor.cuda, torch.Tensor.cpu):
            return moved(args[0], function is torch.Tensor.cuda)
        if function is torch.Tensor.pin_memory:
            return args[0]
        if function is torch.Tensor.is_pinned:
            return False
        kwargs.pop("pin_memory", None)
        if function is torch.Tensor.to:
            given = [*args[1:], kwargs.get("device")]
            to_cuda, to_cpu = any(map(is_cuda, given)), any(map(is_cpu, given))
            if to_cuda or to_cpu:
                args = [args[0], *(value for value in args[1:] if not is_cuda(value) and not is_cpu(value))]
                kwargs.pop("device", None)
                kwargs.pop("non_blocking", None)
                before = args[0]
                result = before if len(args) == 1 and not kwargs else function(*args, **kwargs)
                return moved(result, to_cuda) if result is before else marked(result, to_cuda)
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
            return marked(function(*args, **kwargs), True)
        return function(*args, **kwargs)


# What tensors say of themselves.
SAID = {
    torch.Tensor.device.__get__: torch.device("cuda", 0),
    torch.Tensor.is_cuda.__get__: True,
    torch.Tensor.is_cpu.__get__: False,
}


def moved(tensor, to_cuda):
    """A copy, as from one memory to another; the tensor itself where it is there already."""
    with torch._C.DisableTorchFunction():
        return tensor if to_cuda and getattr(tensor, MARK, False) else marked(tensor.clone(), to_cuda)


def marked(value, is_on_cuda):
    if isinstance(value, torch.Tensor):
        setattr(value, MARK, is_on_cuda)
    return value
