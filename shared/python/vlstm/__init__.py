"""The vLSTM (the mLSTM of xLSTM) as operations of PyTorch, forward and backward, and the checks of its lab.

`mlstm` takes a whole sequence, `mlstm_step` one position of it; `check` makes a call on the emulator that looks at
every access of the kernels. Names, order and layouts of their arguments are those of the public functions of
mlstm_kernels. `gated_delta_rule` and `gated_delta_step` are the cell of Gated DeltaNet, with the arguments of
flash-linear-attention, as those of `linear_attention` and `linear_attention_step` are: RetNet, simple GLA, Mamba-2's SSD. `LSTM` takes the place of `torch.nn.LSTM`. `MLP` is a language model of one word; its training step, `mlp_step`,
is forward, backward and update in one call. On CUDA tensors kernels run that are compiled on the first call; on CPU
tensors an emulator of a GPU runs the same kernels: right, and slow.

`check_kernel` checks a kernel of any `.cu` file with numpy arrays, and needs no PyTorch; `check_triton` does the same with a
kernel of Triton, compiled for a GPU that need not be there.
"""

import importlib
import sys

from vlstm._native import KernelError, __version__

# Where each name stands: what needs PyTorch imports it when it is first used.
_PLACES = {
    **dict.fromkeys(("check", "mlstm", "mlstm_step", "versions"), "_api"),
    **dict.fromkeys(("mlstm_sig", "mlstm_sig_step"), "_sig"),
    **dict.fromkeys(("gated_delta_rule", "gated_delta_step"), "_gdn"),
    **dict.fromkeys(("linear_attention", "linear_attention_step"), "_linear"),
    "mamba_chunk_scan_combined": "_mamba",
    "LSTM": "_lstm",
    "register": "_register",
    **dict.fromkeys(("MLP", "mlp_step"), "_mlp"),
    **dict.fromkeys(("Out", "check_kernel"), "_kernels"),
    "check_triton": "_triton",
}

__all__ = ["KernelError", "__version__", *_PLACES]


def __getattr__(name):
    if name not in _PLACES:
        raise AttributeError(f"module 'vlstm' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"vlstm.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_PLACES})


# Who has PyTorch already finds the operations registered: `torch.ops.vlstm`.
if "torch" in sys.modules:
    for _name, _place in _PLACES.items():
        if _place in ("_api", "_gdn", "_lstm", "_mlp"):
            __getattr__(_name)
