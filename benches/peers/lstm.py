"""cuDNN's LSTM through PyTorch, and FlashRNN's where it is installed, on the problems of lstm_fused.

    lab bench lstm --peers           # or as problems.py says
    pip install flashrnn==1.0.8      # optional: needs nvcc, compiles at its first run, bf16 only

One layer, one direction, biases; the input projection is part of it. Family `lstm_fw`, or `lstm` with the
backward pass from dy, all gradients among its results. f32 is without TF32. The error is that of y against
PyTorch in f64.
"""

import functools
import pathlib
import re
import shutil
import tempfile

import torch

from problems import Peer, answer, relative_error

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

# Of cudaDeviceProp up to CUDA 12. FlashRNN 1.0.8 reads them, and uses none.
GONE = (
    "clockRate deviceOverlap kernelExecTimeoutEnabled computeMode maxTexture1DLinear memoryClockRate "
    "singleToDoublePrecisionPerfRatio cooperativeMultiDeviceLaunch"
).split()


class Problem:
    """x, h0, c0, dy and the parameters of a cuDNN LSTM, and y in f64."""

    def __init__(self, shape, dtype):
        b, t, i, h = shape
        self.lstm = torch.nn.LSTM(i, h, device="cuda", dtype=dtype)
        normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=dtype)
        self.x, self.h0, self.c0 = normal(t, b, i), normal(1, b, h), normal(1, b, h)
        self.inputs = [v.requires_grad_() for v in (self.x, self.h0, self.c0)]
        self.dy = normal(t, b, h)
        exact = torch.nn.LSTM(i, h, device="cuda", dtype=torch.float64)
        exact.load_state_dict({k: v.double() for k, v in self.lstm.state_dict().items()})
        with torch.no_grad():
            self.y = exact(self.x.double(), (self.h0.double(), self.c0.double()))[0]


def cudnn(problem):
    of = [*problem.inputs, *problem.lstm.parameters()]
    return lambda: problem.lstm(problem.x, (problem.h0, problem.c0))[0], of


def flashrnn(problem):
    """Its fused kernel; x is projected by a product of PyTorch."""
    function = flashrnn_or_why()
    if isinstance(function, str):
        raise ModuleNotFoundError(function)
    h, batch = problem.lstm.hidden_size, problem.x.shape[1]
    own = problem.lstm
    # Of one head: gates first, then the head, outputs and inputs. Its gates are in the same order.
    recurrent = own.weight_hh_l0.detach().view(4, 1, h, h).clone().requires_grad_()
    bias = (own.bias_ih_l0 + own.bias_hh_l0).detach().view(4, 1, h).clone().requires_grad_()
    weight = own.weight_ih_l0.detach().clone().requires_grad_()
    states = torch.stack([problem.h0[0], problem.c0[0]]).detach().view(2, batch, 1, 1, h)
    states = states.clone().requires_grad_()

    def forward():
        wx = (problem.x @ weight.t()).transpose(0, 1).reshape(batch, -1, 4, 1, h)
        all_states, _ = function(wx, recurrent, bias, states=states, function="lstm", backend="cuda_fused")
        return all_states[0].reshape(batch, -1, h).transpose(0, 1)

    return forward, [problem.x, states, weight, recurrent, bias]


@functools.cache
def flashrnn_or_why():
    """Its function, or why there is none."""
    try:
        from flashrnn import flashrnn as function
        from flashrnn.flashrnn.gpu_info import gpu_info
    except Exception as error:  # not installed, or not for this PyTorch
        return f"flashrnn: {type(error).__name__}: {error}"
    if int((torch.version.cuda or "0").split(".")[0]) >= 13 and not hasattr(gpu_info, "repaired"):
        # On a copy: what is installed stays as it is.
        root = pathlib.Path(tempfile.mkdtemp(prefix="flashrnn"))
        for folder in (gpu_info.curdir, gpu_info.curdir.parent / "util"):
            shutil.copytree(folder, root / folder.name)
        source = root / gpu_info.curdir.name / "gpu_info.cc"
        text = source.read_text()
        for field in GONE:
            text = re.sub(rf'dict\["{field}"\]\s*=\s*prop\.{field};', "", text)
        source.write_text(text)
        gpu_info.curdir, gpu_info.repaired = source.parent, True
    return function


PEERS = {"cudnn": cudnn, "flashrnn": flashrnn}


def prepare(peer, problem, family, long):
    forward, of = PEERS[peer](problem)

    def alone():
        with torch.no_grad():
            return forward()

    def both():
        return torch.autograd.grad(forward(), of, problem.dy)

    # For inference cuDNN keeps nothing of the forward pass.
    problem.lstm.train(family == "lstm")
    run, runs = (alone if family == "lstm_fw" else both), 5 if long else 20
    error = relative_error(alone(), problem.y)
    if not error < 0.1:
        raise ValueError(f"y is wrong: a relative error of {error:.2g}")
    # FlashRNN's backward pass launches outside of the stream that is recorded; after a capture that fails PyTorch's random
    # numbers are of no use any more.
    is_replayed = not (peer == "flashrnn" and family == "lstm")
    return Peer(run, {"relative_error": error}, runs=2 * runs, replays=runs, is_replayed=is_replayed)


def lines(asked):
    if asked["dtype"] not in DTYPES:
        return
    b, t, i, h = (asked["shape"][name] for name in "BTIH")
    problem = Problem((b, t, i, h), DTYPES[asked["dtype"]])
    for peer in PEERS:
        # FlashRNN compiles for a minute for each shape: only those that it is made for.
        if peer == "cudnn" or (asked["dtype"] == "bf16" and b >= 16 and h >= 512):
            yield peer, functools.partial(prepare, peer, problem, asked["family"], t * h > 1 << 16)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    libraries = [f"PyTorch {torch.__version__}", f"cuDNN {torch.backends.cudnn.version()}"]
    flashrnn_is_there = not isinstance(flashrnn_or_why(), str)
    answer(libraries + ["FlashRNN 1.0.8"] * flashrnn_is_there, lines)
