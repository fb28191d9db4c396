"""flash-linear-attention's gated delta rule, where it is installed, on the problems of gdn_fw, gdn_fwbw and gdn_step, and its
simple GLA on those of linear_step and sigmoid_step.

    lab bench gdn_fw --peers                    # or as problems.py says
    pip install flash-linear-attention==0.6.0

`fla_chunk` is its kernels over chunks of 64 positions, `fla_step` one position of each sequence. Both take tensors as that
package has them, [B, T, H, D], and keys that have length one already. The error is that of h against the recurrence in f64;
for gdn_fwbw the largest of h and all gradients, each against autograd through that recurrence.

A step of theirs reads a state of f32 and writes another of f32 beside it, whatever q, k and v are: of bf16 the lab's is half as
wide. Simple GLA has a key for each head of v and no weights (`w` of linear_step; sigmoids of the gates are taken before).
"""

import functools
import importlib.metadata

import torch

from problems import Peer, answer, relative_error


class Problem:
    """q, k [B, T, NKV, DHQK], v, dh [B, T, NH, DHHV], g, beta f32 [B, T, NH], C0 f32 [B, NH, DHQK, DHHV] or None.

    Where it `erases` nothing, it is simple GLA.
    """

    def __init__(self, dtype, b, nh, nkv, s, dhqk, dhhv, state=False, erases=True):
        normal = lambda *shape: torch.randn(*shape, device="cuda")
        unit = lambda *shape: torch.nn.functional.normalize(normal(*shape), dim=-1).to(dtype)
        self.q, self.k = normal(b, s, nkv, dhqk).to(dtype), unit(b, s, nkv, dhqk)
        self.v, self.dh = normal(b, s, nh, dhhv).to(dtype), normal(b, s, nh, dhhv).to(dtype)
        self.g = torch.nn.functional.logsigmoid(normal(b, s, nh) + 3)
        self.beta = torch.sigmoid(normal(b, s, nh))
        self.c0, self.erases = normal(b, nh, dhqk, dhhv) if state else None, erases
        self.inputs = [x.requires_grad_() for x in (self.q, self.k, self.v, self.g, self.beta)]

    def first(self, heads=2, positions=512):
        """A part of the problem that f64 can follow from position to position."""
        part = object.__new__(Problem)
        part.erases = self.erases
        group = self.v.shape[2] // self.q.shape[2]
        cut = lambda x, n: x[:1, :positions, :n].detach().contiguous()
        part.q, part.k = (cut(x, heads) for x in (self.q, self.k))
        part.v, part.dh, part.g, part.beta = (cut(x, heads * group) for x in (self.v, self.dh, self.g, self.beta))
        part.c0 = None if self.c0 is None else self.c0[:1, : heads * group].contiguous()
        part.inputs = [x.requires_grad_() for x in (part.q, part.k, part.v, part.g, part.beta)]
        return part


def exact(q, k, v, g, beta, c0=None, erases=True):
    """h in f64, from position to position."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    group = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(group, 2) for x in (q, k))
    c = v.new_zeros(v.shape[0], v.shape[2], q.shape[3], v.shape[3]) if c0 is None else c0.double()
    hs = []
    for t in range(v.shape[1]):
        c = g[:, t].exp()[..., None, None] * c
        written = v[:, t]
        if erases:
            written = beta[:, t, :, None] * (written - torch.einsum("bhkv,bhk->bhv", c, k[:, t]))
        c = c + torch.einsum("bhk,bhv->bhkv", k[:, t], written)
        hs.append(torch.einsum("bhkv,bhk->bhv", c, q[:, t]) * q.shape[3] ** -0.5)
    return torch.stack(hs, 1)


def function_of(peer, erases=True):
    from fla.ops import gated_delta_rule, simple_gla

    if not erases:
        return simple_gla.fused_recurrent_simple_gla
    return {
        "fla_chunk": gated_delta_rule.chunk_gated_delta_rule,
        "fla_step": gated_delta_rule.fused_recurrent_gated_delta_rule,
    }[peer]


def prepare(peer, problem, family):
    function = function_of(peer, problem.erases)

    def forward(problem):
        keeps = {"initial_state": problem.c0, "output_final_state": True} if problem.c0 is not None else {}
        q, k, v, g, beta = problem.inputs
        if problem.erases:
            keeps["beta"] = beta
        return function(q, k, v, g=g, **keeps)[0]

    def alone(problem):
        with torch.no_grad():
            return forward(problem)

    def both(problem):
        return torch.autograd.grad(forward(problem), problem.inputs, problem.dh)

    part = problem.first()
    h = exact(*part.inputs, part.c0, part.erases)
    errors = [relative_error(alone(part), h.detach())]
    if family == "gdn_fwbw":
        of = torch.autograd.grad(h, part.inputs, part.dh.double())
        errors += [relative_error(found, right.double()) for found, right in zip(both(part), of)]
    if not max(errors) < 0.1:
        raise ValueError(f"a result is wrong: relative errors of {errors}")
    run = functools.partial(both if family == "gdn_fwbw" else alone, problem)
    other = {"computes": STEP_OF_F32} if problem.c0 is not None and problem.q.dtype != torch.float32 else {}
    return Peer(run, other | {"relative_error": max(errors)})


STEP_OF_F32 = "the same behind a state of f32"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def lines(asked):
    family, dtype = asked["family"], DTYPES.get(asked["dtype"])
    step = family.endswith("_step")
    if dtype is None or dtype == torch.float32 and not step:
        return  # its kernels over chunks take no f32
    sizes = asked["shape"]
    b, nh, nkv, s, dhqk, dhhv = (sizes.get(name, 1) for name in ("B", "NH", "NKV", "S", "DHQK", "DHHV"))
    erases = family.startswith("gdn")
    problem = Problem(dtype, b, nh, nkv if erases else nh, s, dhqk, dhhv, state=step, erases=erases)
    peer = "fla_step" if step else "fla_chunk"
    yield peer, functools.partial(prepare, peer, problem, family)


def libraries():
    try:
        return [f"flash-linear-attention {importlib.metadata.version('fla-core')}", f"torch {torch.__version__}"]
    except importlib.metadata.PackageNotFoundError:
        return [f"torch {torch.__version__}"]


if __name__ == "__main__":
    answer(libraries(), lines)
