"""What a kernel of Triton gets: arguments as `lab check` takes them, and the memory that they point to."""

import ctypes
import dataclasses
import sys

# numpy's names of types, and Triton's.
POINTEES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "i1",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
    **{f"{sign}int{bits}": f"{'u' * len(sign)}i{bits}".replace("ui", "u") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip

# Bytes: what Triton asks an address for.
ALIGNMENT = 16


def is_tensor(value):
    """Whether it is a tensor of PyTorch."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def is_array(value):
    """Whether it is memory: an array of numpy, or a tensor."""
    return hasattr(value, "dtype") and (is_tensor(value) or getattr(value, "ndim", 0) > 0)


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
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


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

    def take(self, elements):
        """Writes what a kernel has left of it to where it lies."""
        elements = elements.view("uint8")
        ctypes.memmove(self.address, elements.ctypes.data, self.size)


def memory_of(value):
    import numpy

    if is_tensor(value):
        if value.device.type != "cpu":
            raise ValueError(f"expected tensors on the CPU, got one on {value.device}")
        item, strides, address = value.element_size(), value.stride(), value.data_ptr()
        # numpy has no bfloat16, and no type of 8 bits but whole numbers: the bits are the same.
        own = str(value.dtype).removeprefix("torch.")
        dtype = numpy.dtype(own if own in POINTEES and not own.startswith(("bfloat", "float8")) else f"u{item}")
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
            start -= start % ALIGNMENT
            whole = Memory(start, end - start, numpy.dtype("uint8"), None).elements()
            regions["_and_".join(names)] = Region(whole, {name: memories[name].address - start for name in names})
    return regions
