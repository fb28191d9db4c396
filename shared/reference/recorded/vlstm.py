"""Outputs and gradients of another implementation, for the reference to be held against.

    pip install mlstm_kernels==2.0.6 safetensors && python3 vlstm.py OUT.safetensors

Plain PyTorch in f64 on the CPU: `parallel/native` of mlstm_kernels. Its own backward pass holds the
normaliser constant; PyTorch's autograd, through the forward pass, does not. That is taken at eps = 0,
where h does not depend on m.
"""

import sys

import torch
from mlstm_kernels.torch.parallel.native.bw import mlstm_parallel_bw
from mlstm_kernels.torch.parallel.native.fw import mlstm_parallel_fw
from safetensors.torch import save_file

# B, NH, S, DHQK, DHHV; the spread of the gates.
CASES = {"small": ((1, 2, 5, 4, 3), 1.0), "ragged": ((2, 1, 19, 8, 16), 3.0), "wide": ((1, 1, 33, 16, 8), 8.0)}


def main(path):
    torch.manual_seed(0)
    tensors = {}
    for name, ((b, nh, s, dhqk, dhhv), spread) in CASES.items():
        normal = lambda *shape: torch.randn(b, nh, *shape, dtype=torch.float64)
        q, k, v, dh = normal(s, dhqk), normal(s, dhqk), normal(s, dhhv), normal(s, dhhv)
        i, f = spread * normal(s), spread * normal(s)
        inputs = [t.requires_grad_() for t in (q, k, v, i, f)]
        exact = torch.autograd.grad(mlstm_parallel_fw(*inputs, eps=0.0)[0], inputs, dh)
        with torch.no_grad():
            h, n, m = mlstm_parallel_fw(*inputs, eps=1e-6)
            constant = mlstm_parallel_bw(dh, *inputs, n, m, eps=1e-6)
        case = dict(q=q, k=k, v=v, i=i, f=f, dh=dh, h=h, n=n, m=m)
        for gradient, constant, exact in zip("dq dk dv di df".split(), constant, exact):
            case |= {f"constant.{gradient}": constant, f"exact.{gradient}": exact}
        tensors |= {f"{name}.{key}": t.detach().contiguous() for key, t in case.items()}
    save_file(tensors, path, metadata={"torch": torch.__version__, "mlstm_kernels": "2.0.6"})


main(sys.argv[1])
