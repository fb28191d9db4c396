"""A GPU that is not there, for Triton: what it asks its driver, and launches, which go to the emulator."""

import collections
import functools
import gc
import re
import types

from vlstm import _kernels
from vlstm._triton_launch import launched
from vlstm._triton_memory import is_descriptor, memory_of

# What an H100 has.
MULTIPROCESSORS = 132
PROPERTIES = {
    "max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": MULTIPROCESSORS, "warpSize": 32,
    "sm_clock_rate": 1980000, "mem_clock_rate": 2619000, "mem_bus_width": 5120, "max_threads_per_sm": 2048,
}  # fmt: skip


class Refused(Exception):
    """A launch that the emulator does not run: its reason."""


class Gpu:
    """While it is entered, launches of Triton's kernels run on the emulator, with tensors on the CPU.

    `refuse` is called with the reason of each launch that does not run, and raises. A finding raises `KernelError`.
    """

    def __init__(self, arch="sm_90", timeout=None, refuse=None, strict=False):
        number = re.fullmatch(r"sm_(\d+)a?", arch)
        if not number:
            raise ValueError(f"arch: expected one such as sm_90, got '{arch}'")
        self.number, self.refuse = int(number[1]), refuse or self.raise_refused
        self.options = {"timeout": timeout, "strict": strict}
        # By kernels: launches that ran; of findings and refusals (kernel, text).
        self.ran, self.found, self.refused = collections.Counter(), [], []
        self.compiles_alone = False
        self.restored = []

    @property
    def capability(self):
        return divmod(self.number, 10)

    @staticmethod
    def raise_refused(kernel, reason):
        raise Refused(f"{kernel}: {reason}")

    def __enter__(self):
        from triton.compiler.compiler import CompiledKernel
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.driver import driver

        self.driver, self.before = driver, (driver._default, driver._active)
        driver._default = driver._active = Driver(self)
        self.replace(CompiledKernel, "_init_handles", lambda own: self.load(own))
        run = Autotuner.run

        def run_first(tuner, *args, **kwargs):
            tuner.has_one = False
            return run(tuner, *args, **kwargs)

        self.replace(Autotuner, "run", run_first)
        self.replace(Autotuner, "_bench", lambda tuner, *args, **meta: self.choose(tuner, *args, **meta))
        return self

    def __exit__(self, *_):
        self.driver._default, self.driver._active = self.before
        while self.restored:
            setattr(*self.restored.pop())

    def replace(self, owner, name, value):
        self.restored.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    def choose(self, tuner, *args, config, **meta):
        """In place of measured times: the first configuration that compiles and fits."""
        from triton.compiler.errors import CompileTimeAssertionFailure
        from triton.runtime.errors import OutOfResources, PTXASError

        never = [float("inf")] * 3
        if tuner.has_one:
            return never
        if conflicts := meta.keys() & config.kwargs.keys():
            raise ValueError(f"Conflicting meta-parameters: {', '.join(conflicts)}.")
        values = {**meta, **config.all_kwargs()}
        self.compiles_alone = True
        try:
            if config.pre_hook:
                config.pre_hook({**tuner.nargs, **values})
            tuner.fn.run(*args, **values)
        except (OutOfResources, CompileTimeAssertionFailure, PTXASError):
            return never
        finally:
            self.compiles_alone = False
        tuner.has_one = True
        return [1.0] * 3

    def load(self, compiled):
        """In place of loading machine code."""
        if compiled.module is None:
            from triton.runtime.errors import OutOfResources

            if compiled.metadata.shared > PROPERTIES["max_shared_mem"]:
                raise OutOfResources(compiled.metadata.shared, PROPERTIES["max_shared_mem"], "shared memory")
            compiled.module, compiled.function, compiled._module_pid = compiled.hash, 0, None
            compiled.n_regs, compiled.n_spills, compiled.n_max_threads = 32, 0, 1024
            compiled._run = functools.partial(self.launch, compiled)

    def launch(self, compiled, grid_x, grid_y, grid_z, stream, function, packed, metadata, enter, leave, *args):
        __tracebackhide__ = True  # of pytest
        if self.compiles_alone:
            return
        import torch

        kernel = compiled.src.fn.__name__
        # What stands for CUDA asks tensors for their devices: here they are what they are.
        with torch._C.DisableTorchFunction():
            passed = dict(flattened(compiled.src.signature.items(), args))
            sizes = (grid_x, grid_y, grid_z)
            try:
                report, said, results, memories = launched(kernel, compiled, sizes, passed, self.options, memory_at)
                _kernels.refuse_failures(report, said)
            except _kernels.KernelError as error:
                self.ran[kernel] += 1
                self.found.append((kernel, str(error)))
                raise
            except (ValueError, TimeoutError, RuntimeError) as error:
                reason = str(error).strip()
                self.refused.append((kernel, reason))
                self.refuse(kernel, reason)
                return
            self.ran[kernel] += 1
            for name, memory in memories.items():
                if name in results:
                    memory.take(results[name])


def flattened(signature, args, prefix=""):
    """(name, value) of each argument that is not compiled in; those of a tuple one by one."""
    for (name, kind), value in zip(signature, args):
        own = f"{prefix}{name}"
        if isinstance(kind, tuple):
            yield from flattened(enumerate(kind), value, f"{own}_")
        elif kind != "constexpr":
            # A tensor that is looked at as one of another type.
            is_wrapped = not is_descriptor(value) and hasattr(value, "base") and hasattr(value, "data_ptr")
            yield own, value.base if is_wrapped and not isinstance(value, memory_types()) else value


def memory_at(addresses):
    """By address the memory of the tensor that it is in; a tensor is looked for among all that there are."""
    import torch

    found = {}
    if addresses:
        for tensor in gc.get_objects():
            if issubclass(type(tensor), torch.Tensor) and tensor.device.type == "cpu" and tensor.layout == torch.strided:
                memory = memory_of(tensor)
                for address in addresses:
                    if memory.address <= address < memory.address + memory.size:
                        if address not in found or found[address].size < memory.size:
                            found[address] = memory
    return found


def memory_types():
    import torch

    return (torch.Tensor,)


class Driver:
    """What Triton's runtime asks of a driver."""

    def __init__(self, gpu):
        from triton.backends.compiler import GPUTarget

        self.gpu, self.target = gpu, GPUTarget("cuda", gpu.number, 32)
        self.utils = types.SimpleNamespace(
            get_device_properties=lambda device: dict(PROPERTIES), unload_module=lambda module: None
        )

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device=None):
        return 0

    def get_device_capability(self, device=0):
        return self.gpu.capability

    def get_active_torch_device(self):
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self):
        import torch

        return torch.cuda

    def get_empty_cache_for_benchmark(self):
        import torch

        return torch.empty(1, dtype=torch.int)

    def clear_cache(self, cache):
        pass

    def map_python_to_cpp_type(self, kind):
        return kind

    def get_benchmarker(self):
        """Runs what is measured once: times of the emulator mean nothing."""

        def run_once(call, quantiles=None, **_):
            call()
            return [1.0] * len(quantiles) if quantiles else 1.0

        return run_once
