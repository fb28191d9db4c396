"""The mLSTM of others, on the problems of the vLSTM stages.

    pip install mlstm_kernels==2.0.6 jax-linear-attention==0.1.0 "jax[cuda13]==0.11.2"
    lab bench vlstm_fw --peers       # or as problems.py says

Of mlstm_kernels, in Triton: `limit_headdim`, the parallel form as here; `limit_chunk` and `xl_chunk`, the
chunkwise form, which needs fewer operations, in bf16. Of jax-linear-attention `jax`, chunkwise, for Hopper, in bf16.
What is not installed is left out. Family `vlstm_fw`, or `vlstm_fwbw` with all gradients from dh. The error is
that of h against the parallel form in f64, on one head. `sdpa` is causal softmax attention on the same
q, k and v, in PyTorch: another function, for scale.

Family `vlstm_step`: of mlstm_kernels `step_triton`, whose source says that it fails in their tests, so look at its error,
and `step_compiled`, their plain PyTorch code by torch.compile. Both write a new state beside the old one. It is of bf16
where the state here is, and then so are their n and m.

JAX's times are the host's, of a run that is waited for; its steady state is what 40 runs take more than 20.
"""

import functools
import importlib.metadata
import os
import time

import torch

from problems import Peer, answer, peak_bytes, relative_error

# Of the halves the one that models are trained in: each kernel compiles anew for each type and shape.
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def parallel(q, k, v, i, f):
    """h of a head, [S, DHHV]: math.md's parallel form, a block of rows at a time."""
    sums = torch.nn.functional.logsigmoid(f).cumsum(0)
    rows, at = [], torch.arange(len(i), device=i.device)
    for block in at.split(1024):
        gates = sums[block, None] - sums[None] + i[None]
        gates = gates.masked_fill(at[None] > block[:, None], -torch.inf)
        m = gates.amax(1, keepdim=True)
        weights = q[block] @ k.t() * q.shape[1] ** -0.5 * (gates - m).exp()
        normaliser = torch.maximum(weights.sum(1, keepdim=True).abs(), (-m).exp())
        rows.append(weights @ v / normaliser)
    return torch.cat(rows)


def recurrent(q, k, v, i, f, c, n, m, eps=1e-6):
    """h of one position of a head, [DHHV], and the state behind it: c [DHQK, DHHV], n [DHQK], m [1]."""
    old = torch.nn.functional.logsigmoid(f) + m
    new = torch.maximum(old, i)
    kept, written = (old - new).exp(), (i - new).exp()
    c, n = kept * c + written * torch.outer(k, v), kept * n + written * k
    q = q * len(q) ** -0.5
    return q @ c / (torch.maximum((q @ n).abs(), (-new).exp()) + eps), (c, n, new)


class Problem:
    def __init__(self, shape, dtype):
        b, nh, s, dhqk, dhhv = (shape[name] for name in ("B", "NH", "S", "DHQK", "DHHV"))
        normal = lambda *last: torch.randn(b, nh, *last, device="cuda")
        q, k, v, dh = (normal(s, d).to(dtype) for d in (dhqk, dhqk, dhhv, dhhv))
        i, f = normal(s), 3 + normal(s)
        self.inputs = [t.requires_grad_() for t in (q, k, v, i, f)]
        self.dh, self.dtype = dh, dtype

    @functools.cached_property
    def exact(self):
        """h of the first head."""
        return parallel(*(t[0, 0].detach().double() for t in self.inputs))


class StepProblem:
    """One position of each head, behind a state."""

    def __init__(self, shape, dtype):
        b, nh, dhqk, dhhv = (shape[name] for name in ("B", "NH", "DHQK", "DHHV"))
        normal = lambda *last: torch.randn(b, nh, *last, device="cuda")
        self.token = [normal(d).to(dtype) for d in (dhqk, dhqk, dhhv)] + [normal(1), 3 + normal(1)]
        self.state = [normal(dhqk, dhhv).to(dtype), normal(dhqk), normal(1)]
        self.dtype = dtype

    @functools.cached_property
    def exact(self):
        """h of the first head."""
        return recurrent(*(t[0, 0].double() for t in self.token + self.state))[0]


def step(name, problem):
    from mlstm_kernels.torch.recurrent.native_step import mlstm_recurrent_step__native
    from mlstm_kernels.torch.recurrent.triton_step import mlstm_recurrent_step__triton

    function = {
        "step_triton": mlstm_recurrent_step__triton,
        "step_compiled": torch.compile(mlstm_recurrent_step__native),
    }[name]

    @torch.no_grad()
    def run():
        return function(*problem.token, *problem.state, eps=1e-6, dtype_state=problem.state[0].dtype)

    return Peer(run, {"relative_error": relative_error(run()[0][0, 0], problem.exact)})


def triton(name, problem):
    if name == "limit_headdim":
        from mlstm_kernels.torch.parallel.triton_limit_headdim import mlstm_parallel__limit_headdim as function
    elif name == "limit_chunk":
        from mlstm_kernels.torch.chunkwise.triton_limit_chunk import mlstm_chunkwise__limit_chunk as function
    else:
        from mlstm_kernels.torch.chunkwise.triton_xl_chunk import mlstm_chunkwise__xl_chunk as function
    return lambda q, k, v, i, f: function(q, k, v, i, f, autocast_kernel_dtype=problem.dtype)


def sdpa(q, k, v, i, f):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def of_torch(function, problem, family, exact, **row):
    inputs, used = problem.inputs, problem.inputs if exact else problem.inputs[:3]

    def alone():
        with torch.no_grad():
            return function(*inputs)

    def both():
        return torch.autograd.grad(function(*inputs), used, problem.dh)

    run = alone if family == "vlstm_fw" else both
    if exact:
        row["relative_error"] = relative_error(alone()[0, 0], problem.exact)
        # Triton's products of f32 are TF32, unless it is told otherwise; the error says so.
        row["products"] = "tf32" if problem.dtype == torch.float32 else None
    row["peak_bytes"] = peak_bytes(run)
    return Peer(run, row)


def jax_function(problem, family):
    import jax
    import jax.numpy as jnp
    from jla.ops.mosaic_gpu.mlstm import mlstm

    def forward(q, k, v, i, f):
        return mlstm(q, k, v, jax.nn.log_sigmoid(f), i)[0]

    def both(q, k, v, i, f, dh):
        return jax.vjp(forward, q, k, v, i, f)[1](dh)

    # [B, S, NH, DH], as it wants them.
    there = lambda t: jax.dlpack.from_dlpack(t.detach().transpose(1, 2).contiguous())
    inputs = [there(t) for t in problem.inputs]
    h = jax.jit(forward)(*inputs)[0, :, 0].astype(jnp.float32)
    error = relative_error(torch.from_dlpack(h), problem.exact)
    if family == "vlstm_fw":
        return jax.jit(forward), inputs, error
    return jax.jit(both), inputs + [there(problem.dh)], error


class JaxPeer(Peer):
    """Timed by the host's clock, from the call until its last result is there."""

    def __init__(self, function, inputs, row):
        super().__init__(lambda: function(*inputs), row, replays=5)

    def row_us(self, count):
        start = time.perf_counter()
        for _ in range(count):
            last = self.run()
        for part in last if isinstance(last, tuple) else [last]:
            part.block_until_ready()
        return 1e6 * (time.perf_counter() - start)

    def cold_us(self):
        return self.row_us(1)

    def turn_us(self):
        self.row_us(1)
        return self.row_us(1)


def of_jax(problem, family):
    if problem.dtype != torch.bfloat16:
        raise ValueError("bf16 only")
    function, inputs, error = jax_function(problem, family)
    memory = function.lower(*inputs).compile().memory_analysis()
    peak = memory.temp_size_in_bytes + memory.output_size_in_bytes
    return JaxPeer(function, inputs, {"relative_error": error, "peak_bytes": peak})


def lines(asked):
    if asked["dtype"] not in DTYPES:
        return
    if asked["family"] == "vlstm_step":
        if "mlstm_kernels" in VERSIONS:
            problem = StepProblem(asked["shape"], DTYPES[asked["dtype"]])
            for name in ("step_triton", "step_compiled"):
                yield name, lambda: step(name, problem)
        return
    problem = Problem(asked["shape"], DTYPES[asked["dtype"]])
    # The inputs are part of no run's memory.
    problem.exact
    family = asked["family"]
    if "mlstm_kernels" in VERSIONS:
        # The chunkwise ones take minutes to compile for f32, which they compute as TF32.
        chunkwise = ("limit_chunk", "xl_chunk") if problem.dtype == torch.bfloat16 else ()
        for name in ("limit_headdim", *chunkwise):
            yield name, lambda: of_torch(triton(name, problem), problem, family, True)
    if "jax-linear-attention" in VERSIONS and problem.dtype == torch.bfloat16:
        yield "jax", lambda: of_jax(problem, family)
    yield "sdpa", lambda: of_torch(sdpa, problem, family, False, computes="causal softmax attention")


def versions(*names):
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


VERSIONS = versions("triton", "mlstm_kernels", "jax", "jax-linear-attention")

if __name__ == "__main__":
    # JAX takes what it needs, when it needs it: others are on this GPU.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    torch.manual_seed(0)
    told = [f"{name} {version}" for name, version in VERSIONS.items()]
    answer([f"PyTorch {torch.__version__}", *told], lines)
