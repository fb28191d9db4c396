"""FlashRNN's sLSTM, where it is installed, on the problems of slstm_fused.

    lab bench slstm --peers          # or as problems.py says
    pip install flashrnn==1.0.8      # cuda_fused needs nvcc, and compiles at its first run

wx goes in, as in slstm_fused: the product of x is not part of it. Family `slstm_fw`, or `slstm` with the
backward pass from dy. No state goes in, and no gradient of one comes out. The error is that of y against
PyTorch in f64.
"""

import functools

import torch

from lstm import flashrnn_or_why
from problems import Peer, answer, relative_error

BACKENDS = {"flashrnn": "cuda_fused", "flashrnn_triton": "triton_fused"}


class Problem:
    """wx [B, T, 4, NH, DH], R [4, NH, DH, DH], b [4, NH, DH], dy [B, T, NH, DH], and y in f64."""

    def __init__(self, b, t, nh, dh):
        normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        self.of = [normal(b, t, 4, nh, dh), normal(4, nh, dh, dh) * dh**-0.5, normal(4, nh, dh)]
        self.of = [of.detach().requires_grad_() for of in self.of]
        self.dy = normal(b, t, nh, dh)
        with torch.no_grad():
            self.y = exact(*(of.double() for of in self.of))


def exact(wx, r, b):
    h = c = n = torch.zeros_like(wx[:, 0, 0])
    m = torch.full_like(c, -torch.inf)
    ys = []
    for t in range(wx.shape[1]):
        i, f, z, o = (wx[:, t] + torch.einsum("gnij,bnj->bgni", r, h) + b).unbind(1)
        kept = torch.nn.functional.logsigmoid(f) + m
        m = torch.maximum(i, kept)
        i, f = torch.exp(i - m), torch.exp(kept - m)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        ys.append(h)
    return torch.stack(ys, 1)


def prepare(peer, problem, family):
    function = flashrnn_or_why()
    if isinstance(function, str):
        raise ModuleNotFoundError(function)

    def forward():
        states, _ = function(*problem.of, function="slstm", backend=BACKENDS[peer])
        return states[0].reshape(problem.dy.shape)

    def alone():
        with torch.no_grad():
            return forward()

    def both():
        return torch.autograd.grad(forward(), problem.of, problem.dy)

    run = alone if family == "slstm_fw" else both
    error = relative_error(alone(), problem.y)
    if not error < 0.1:
        raise ValueError(f"y is wrong: a relative error of {error:.2g}")
    # cuda_fused launches outside of the stream that is recorded (lstm.py).
    is_replayed = not (peer == "flashrnn" and family == "slstm")
    return Peer(run, {"relative_error": error}, is_replayed=is_replayed)


def lines(asked):
    if asked["dtype"] != "bf16":
        return  # it compiles for a minute for each shape and type
    problem = Problem(*(asked["shape"][name] for name in ("B", "T", "NH", "DH")))
    for peer in BACKENDS:
        yield peer, functools.partial(prepare, peer, problem, asked["family"])


if __name__ == "__main__":
    torch.manual_seed(0)
    there = not isinstance(flashrnn_or_why(), str)
    answer([f"PyTorch {torch.__version__}"] + ["FlashRNN 1.0.8"] * there, lines)
