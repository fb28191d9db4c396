"""Models of others that choose their mLSTM by a name: the registries of mlstm_kernels."""

from vlstm._api import mlstm, mlstm_step

# The names by which a config chooses plain PyTorch, the only ones that some configs take.
_NATIVE = {"chunkwise": "native_autograd", "sequence": "native_sequence__native", "step": "native"}


def _sequence(*arguments, dtype_state=None, **options):
    """As mlstm_kernels' functions of a sequence: with a state behind it, which may be asked for in another type."""
    options.pop("chunk_size", None)
    if dtype_state is not None:
        options["dtype_state"] = dtype_state
    return mlstm(*arguments, **options)


def register(name="vlstm", *, native=False):
    """Enters `mlstm` and `mlstm_step` into the three registries of mlstm_kernels, which xlstm and transformers' xLSTM read.

    A model whose config has these names then runs on the kernels of this package, in training and in generation:

        chunkwise_kernel="chunkwise--vlstm", sequence_kernel="vlstm", step_kernel="vlstm"

    Args:
        name: the name to enter them under, `vlstm` unless something else is said.
        native: whether they also take the place of mlstm_kernels' plain PyTorch, under whose names
            (`chunkwise--native_autograd`, `native_sequence__native`, `native`) alone transformers' config can ask for a
            kernel. Models that are made before keep what they have.

    Returns:
        The names for a config, as a dict: `xLSTMLargeConfig(..., **vlstm.register())`.

    Raises:
        ImportError: mlstm_kernels is not installed.
    """
    try:
        from mlstm_kernels.torch import chunkwise, recurrent
    except ImportError as error:
        raise ImportError("register: expected the package mlstm_kernels (pip install mlstm_kernels), got none") from error

    if not isinstance(name, str) or not name or "--" in name:
        raise ValueError(f"name: expected a name without '--', got {name!r}")
    registries = {
        "chunkwise": (chunkwise.registry, mlstm),
        "sequence": (recurrent.registry_sequence, _sequence),
        "step": (recurrent.registry_step, mlstm_step),
    }
    for of_kind, (registry, function) in registries.items():
        registry[name] = function
        if native:
            registry[_NATIVE[of_kind]] = function
    names = _NATIVE if native else dict.fromkeys(_NATIVE, name)
    return {
        "chunkwise_kernel": f"chunkwise--{names['chunkwise']}",
        "sequence_kernel": names["sequence"],
        "step_kernel": names["step"],
    }
