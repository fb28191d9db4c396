"""The vLSTM (the mLSTM of xLSTM) as operations of PyTorch, forward and backward.

`mlstm` takes a whole sequence, `mlstm_step` one position of it; `check` makes a call on the emulator that looks at
every access of the kernels. `LSTM` takes the place of `torch.nn.LSTM`. Names, order and layouts of the arguments of the former are those of the public functions of
mlstm_kernels. On CUDA tensors kernels run that are compiled on the first call; on CPU tensors an emulator of a GPU
runs the same kernels: right, and slow.
"""

from vlstm._api import check, mlstm, mlstm_step, versions
from vlstm._lstm import LSTM
from vlstm._native import KernelError, __version__

__all__ = ["LSTM", "KernelError", "__version__", "check", "mlstm", "mlstm_step", "versions"]
