"""`vlstm.MLP` and `vlstm.mlp_step`: training steps of a bigram language model, by the kernels of `mlp_fused`.

A step is forward, backward and update at once: no gradient is kept, and the parameters are updated where they lie. What
PyTorch sees is the operation `torch.ops.vlstm.mlp_step`, which mutates its parameters.
"""

import functools
import math
import re

import torch

from vlstm import _launch, _native, _ops

_library = torch.library.Library("vlstm", "FRAGMENT")
_library.define(
    "mlp_step(Tensor tokens, Tensor targets, Tensor(a!) emb, Tensor(b!) w1, Tensor(c!) b1, Tensor(d!) w2, Tensor(e!) b2, "
    "float lr, str products, str version, bool check_ids) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)

_IDS = (torch.int64, torch.int32)
_PRODUCTS = {torch.float32: "f32", torch.bfloat16: "bf16"}
_NAMES = ("emb", "w1", "b1", "w2", "b2")

# Parameters begin at a multiple of this, in bytes: kernels load so much at a time.
_ALIGNMENT = 16


def mlp_step(
    tokens, targets, emb, w1, b1, w2, b2, lr, *, product_dtype=None, version="auto", check_ids=True
):
    """Training steps of a bigram language model, which predicts the next token from one token: forward, backward and gradient descent, all parameters in place.

    With V tokens, E numbers for each, H hidden units and B pairs of a token and the next one, a step is

        x = emb[token]    h = max(0, w1 x + b1)    z = w2 h + b2
        loss = the mean over the pairs of log(sum over v of exp(z_v)) - z_target
        p <- p - lr dloss/dp    for each of emb, w1, b1, w2, b2

    the same as `torch.nn.functional.cross_entropy`, `backward` and `torch.optim.SGD` without momentum. No gradient is kept,
    `.grad` is neither read nor written, and the call is made as under `torch.no_grad`.

    Args:
        tokens, targets: (B,) for one step, or (N, B) for N steps one after the other, in int64 or int32. The kernels read
            int32: int64 is converted, which is a copy of 4 bytes an id.
        emb: (V, E); w1: (H, E); b1: (H,); w2: (V, H); b2: (V,): float32, contiguous, on CUDA at a multiple of 16 bytes.
            They are read and written where they lie, and nothing of them is copied, except in two cases:
            `mlp_fused:v2_resident` reads a copy, made once a call, and with products in bfloat16 a copy of w2 in that
            type is made once a call.
        lr: the learning rate, a number that is not negative; the same for all N steps. A captured CUDA graph keeps it.
        product_dtype: what the factors of the products by w2 are rounded to, torch.float32 or torch.bfloat16. By default,
            with `version="auto"`, bfloat16 under `torch.autocast` of that type, else float32. Sums and parameters are float32 in any case.
        version: `auto`, or the name of a version that `versions` lists under `mlp`. Without a `product_dtype` the
            version decides what its products are made of.
        check_ids: whether ids are looked at. On the CPU a wrong one is a ValueError. On CUDA nothing waits for the device:
            the kernels that run before the step stop with a device-side assertion, as those of
            `torch.nn.functional.embedding` do, and the next call that waits for the device raises a RuntimeError. The check
            costs some small launches. Without it an id that is not of the vocabulary makes the kernels read and write
            outside of the tensors.

    Returns:
        The loss before the update, in float64 as the kernels sum it: a scalar for (B,), and (N,) for (N, B). With a B of 0 it
        is NaN, as in PyTorch, and the parameters stay as they are; an N of 0 makes no step. Of tensors on the meta device it
        has its shape alone.

    A step whose loss is not finite, and the later steps of the call, whose losses are NaN, leave the parameters as they
    are: this is so in all versions but `v0_sample` and `v2_resident`. A loop over an N of 1 costs the host more than the device: N steps a call, or a CUDA
    graph of the call, cost the host once. A graph can be captured once a call of the same shapes has been made.

    Raises:
        TypeError: an argument is of a wrong type; ValueError: of a wrong shape, on another device, with gaps, overlapping
        another, or of a size that no version takes.
    """
    parameters = (emb, w1, b1, w2, b2)
    key = _key(tokens, targets, emb, w1, b1, w2, b2, product_dtype, version)
    call = _calls.get(key) if key is not None else None
    if call is not None and type(lr) is float and 0 <= lr < math.inf and not torch.is_autocast_enabled(call.kind):
        loss = call(tokens, targets, parameters, lr, check_ids)
        _ops.note_changes(*parameters)
        return loss
    _check(tokens, targets, parameters)
    _check_settings(lr, version)
    products = _products(product_dtype, version, emb)
    if key is not None and 0 not in tokens.shape and _ops.is_plain((tokens, targets, *parameters)):
        call = _call_for(tokens, parameters, float(lr), products, version)
        loss = call(tokens, targets, parameters, float(lr), check_ids)
        _ops.note_changes(*parameters)
        if not torch.is_autocast_enabled(call.kind) and len(_calls) < _KEPT:
            _calls[key] = call
        return loss
    _ops.refuse_tangents("mlp_step", parameters)
    if not torch.compiler.is_compiling():
        _ops.refuse_batched("mlp_step", (tokens, targets, *parameters))
    with torch.no_grad():
        return torch.ops.vlstm.mlp_step(
            tokens, targets, *parameters, float(lr), products, version, bool(check_ids)
        )


class MLP(torch.nn.Module):
    """A bigram language model: token -> embedding -> hidden layer with ReLU -> logits of the next token.

    Parameters, in this order, under the names that the tool `lab` has for them in safetensors files: `emb` (V, E), `w1`
    (H, E), `b1` (H,), `w2` (V, H), `b2` (V,). They are drawn as `torch.nn.Embedding` and `torch.nn.Linear` draw theirs.

    `forward` is plain PyTorch, of any type and on any device, and differentiable. `training_step` is `mlp_step` on the
    parameters, which are then float32, on the CPU or on a CUDA device.
    """

    def __init__(self, vocabulary, embedding, hidden, device=None, dtype=None):
        super().__init__()
        for name, size in (("vocabulary", vocabulary), ("embedding", embedding), ("hidden", hidden)):
            if isinstance(size, bool) or not isinstance(size, int):
                raise TypeError(f"{name}: expected an int, got {type(size).__name__}")
            if size < 1:
                raise ValueError(f"{name}: expected a positive int, got {size}")
        self.vocabulary, self.embedding, self.hidden = vocabulary, embedding, hidden
        shapes = (vocabulary, embedding), (hidden, embedding), (hidden,), (vocabulary, hidden), (vocabulary,)
        for name, shape in zip(_NAMES, shapes):
            setattr(self, name, torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    def reset_parameters(self):
        """Draws all parameters anew."""
        torch.nn.init.normal_(self.emb)
        for weight, bias in ((self.w1, self.b1), (self.w2, self.b2)):
            torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
            bound = 1 / math.sqrt(weight.shape[1])
            torch.nn.init.uniform_(bias, -bound, bound)

    def forward(self, tokens):
        """The logits (..., V) of the token that follows each of `tokens` (...)."""
        functional = torch.nn.functional
        x = functional.embedding(tokens, self.emb)
        h = functional.relu(functional.linear(x, self.w1, self.b1))
        return functional.linear(h, self.w2, self.b2)

    def training_step(self, tokens, targets, lr, *, product_dtype=None, version="auto", check_ids=True):
        """`mlp_step` on the parameters of this module: the loss of each step."""
        # A module looks for an attribute in three places first. What is parametrized is there alone.
        own = self._parameters
        emb, w1, b1, w2, b2 = [own[name] if name in own else getattr(self, name) for name in _NAMES]
        return mlp_step(
            tokens, targets, emb, w1, b1, w2, b2, lr, product_dtype=product_dtype, version=version, check_ids=check_ids
        )

    def extra_repr(self):
        return f"vocabulary={self.vocabulary}, embedding={self.embedding}, hidden={self.hidden}"


# ---- what is checked -----------------------------------------------------------------------------


def _check(tokens, targets, parameters):
    for name, tensor in (("tokens", tokens), ("targets", targets), *zip(_NAMES, parameters)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise TypeError(f"{name}: expected a dense tensor, got one of layout {tensor.layout}")
        types = _IDS if name in ("tokens", "targets") else (torch.float32,)
        if tensor.dtype not in types:
            raise TypeError(f"{name}: expected {' or '.join(map(str, types))}, got {tensor.dtype}")
    emb, w1, *_ = parameters
    if emb.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"emb: expected a tensor on the CPU or a CUDA device, got one on {emb.device}")
    if tokens.dim() not in (1, 2):
        raise ValueError(f"tokens: expected shape (B) or (N, B), got {tuple(tokens.shape)}")
    for name, tensor in (("emb", emb), ("w1", w1)):
        if tensor.dim() != 2:
            axes = "(V, E)" if name == "emb" else "(H, E)"
            raise ValueError(f"{name}: expected shape {axes}, got {tuple(tensor.shape)}")
    (vocabulary, embedding), hidden = emb.shape, w1.shape[0]
    shapes = (vocabulary, embedding), (hidden, embedding), (hidden,), (vocabulary, hidden), (vocabulary,)
    expected = (*zip(_NAMES, parameters, shapes), ("targets", targets, tokens.shape))
    for name, tensor, shape in expected:
        if tensor.shape != shape:
            raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")
        if tensor.device != emb.device:
            raise ValueError(f"{name}: expected a tensor on {emb.device}, as emb, got one on {tensor.device}")
    if tokens.device != emb.device:
        raise ValueError(f"tokens: expected a tensor on {emb.device}, as emb, got one on {tokens.device}")
    for name, tensor in zip(_NAMES, parameters):
        if not tensor.is_contiguous():
            raise ValueError(
                f"{name}: expected a contiguous tensor, to be updated in place, got strides {tuple(tensor.stride())}"
            )


def _check_settings(lr, version):
    if isinstance(lr, bool) or not isinstance(lr, (int, float)):
        raise TypeError(f"lr: expected a number, got {type(lr).__name__}")
    if not 0 <= lr < float("inf"):
        raise ValueError(f"lr: expected a number that is not negative, and finite, got {lr}")
    if not isinstance(version, str):
        raise TypeError(f"version: expected a str, got {type(version).__name__}")


def _products(product_dtype, version, emb):
    """What the products are made of, as the native module has it; an empty text where the version decides."""
    name, kind = "product_dtype", emb.device.type
    # There is no autocast of tensors without memory.
    if product_dtype is None and version == "auto" and not emb.is_meta and torch.is_autocast_enabled(kind):
        name, product_dtype = "the type of the autocast", torch.get_autocast_dtype(kind)
    if product_dtype is None:
        return ""
    if product_dtype not in _PRODUCTS:
        raise TypeError(f"{name}: expected {' or '.join(map(str, _PRODUCTS))}, got {product_dtype}")
    return _PRODUCTS[product_dtype]


def _check_memory(parameters, on_cuda):
    """Each parameter has memory of its own, at addresses that kernels take."""
    spans = []
    for name, tensor in zip(_NAMES, parameters):
        start = tensor.data_ptr()
        if on_cuda and start % _ALIGNMENT:
            raise ValueError(f"{name}: expected memory at a multiple of {_ALIGNMENT} bytes, got an address {start:#x}")
        spans.append((start, start + 4 * tensor.numel(), name))
    spans.sort()
    for (_, end, first), (start, _, second) in zip(spans, spans[1:]):
        if start < end:
            raise ValueError(f"{second}: expected memory of its own, got some that is {first}'s, too")


def _check_on_host(name, ids, vocabulary):
    wrong = (ids < 0) | (ids >= vocabulary)
    if wrong.any():
        at = [int(n) for n in wrong.nonzero()[0]]
        place = f"pair {at[-1]}" if len(at) == 1 else f"step {at[0]}, pair {at[1]}"
        raise ValueError(f"{name}: expected ids from 0 to {vocabulary - 1}, got {int(ids[tuple(at)])} at {place}")


def _ids(tokens, targets, vocabulary, check_ids):
    """The ids as the kernels take them, int32 without gaps: the same tensors where they are that already."""
    if check_ids and tokens.device.type == "cuda":
        # Each id is read at its own place in 0, 1, 2 and so on: what reads it asserts that it is there, and makes an int32
        # of it. The step runs behind this in the stream, so that no wrong id comes to it.
        order = _order(tokens.device, vocabulary)
        return [_read_at(order[:vocabulary], ids.reshape(-1)) for ids in (tokens, targets)]
    if check_ids:
        _check_on_host("tokens", tokens, vocabulary)
        _check_on_host("targets", targets, vocabulary)
    if tokens.dtype == targets.dtype == torch.int32 and tokens.is_contiguous() and targets.is_contiguous():
        return tokens, targets
    return [ids.to(torch.int32).contiguous() for ids in (tokens, targets)]


def _read_at(values, ids):
    # Of an index of 64 bits `index_select` looks at the lower 32 alone; `gather` takes no other.
    return values.gather(0, ids) if ids.dtype == torch.int64 else values.index_select(0, ids)


# ---- the operation -------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _planned(on, sizes, products, version, lr):
    _launch.prepare(on)
    named = None if version == "auto" else version
    try:
        plan = _native.plan_mlp(on, list(sizes), products or None, 1.0 if lr is None else lr, named)
    except ValueError as error:
        message = re.sub(r"tensor '(\w+)'", r"\1", str(error))
        raise ValueError(message.replace("call: expected", "mlp_step: expected")) from None
    # The copy of w2 that the products read is made in each run.
    return _launch.Planned(plan, {"w2_copy"})


def plan_for(on, sizes, products, version, lr):
    """The plan for N, B, V, E, H. The learning rate is part of it in those versions that do not read it from memory."""
    planned = _planned(on, sizes, products, version, None)
    return planned if "rates" in planned.inputs else _planned(on, sizes, products, planned.version, lr)


# Of each device tensors that hold 0, 1, 2 and so on, the longest last. None is ever freed: a captured graph may read it.
_orders = {}


def _order(device, pairs):
    """The places of so many pairs in their order."""
    kept = _orders.setdefault(device, [])
    if not kept or kept[-1].numel() < pairs:
        size = max(pairs, 2 * kept[-1].numel() if kept else 4096)
        # A copy from the host is waited for: so it is there whatever stream reads it.
        kept.append(torch.arange(size, dtype=torch.int32, device="cpu").to(device))
    return kept[-1]


@functools.lru_cache(maxsize=16)
def _rates(device, stream, steps, lr):
    """The learning rate of each step. It is read on the stream on which it was written."""
    return torch.full((steps,), lr, dtype=torch.float64, device=device)


class _Call:
    """The plan of a call, for all tensors and settings of the same facts."""

    __slots__ = ("_asked", "_checked", "_planned", "_sizes", "device", "kind")

    def __init__(self, device, sizes, products, version, lr):
        self.device, self.kind, self._sizes = device, device.type, sizes
        self._asked = _launch.device_name_of(device), sizes, products, version
        self._planned, self._checked = plan_for(*self._asked, lr), None

    def __call__(self, tokens, targets, parameters, lr, check_ids):
        addresses = [p.data_ptr() for p in parameters]
        if addresses != self._checked:
            _check_memory(parameters, self.kind == "cuda")
            self._checked = addresses
        planned, device = self._planned, self.device
        reads_rates = "rates" in planned.inputs
        if not reads_rates:
            planned = plan_for(*self._asked, lr)
        steps, batch, vocabulary, *_ = self._sizes
        named = dict(zip(_NAMES, parameters))
        named["tokens"], named["targets"] = _ids(tokens, targets, vocabulary, check_ids)
        if reads_rates:
            if self.kind == "cuda" and not torch.cuda.is_current_stream_capturing():
                named["rates"] = _rates(device, _launch.current_stream(device), steps, lr)
            else:
                # A graph keeps what it reads.
                named["rates"] = torch.full((steps,), lr, dtype=torch.float64, device=device)
            named["order"] = _order(device, steps * batch)
        shape = tokens.shape[:-1]
        if steps == 1:
            loss = torch.empty(shape, dtype=torch.float64, device=device)
        else:
            # A step that is not finite ends the call: what later ones would have written stays as it is here.
            loss = torch.full(shape, torch.nan, dtype=torch.float64, device=device)
        named["loss"] = loss
        _launch.run_on(planned, named, None, device)
        return loss


# A loop makes few kinds of calls; one that makes ever new ones must not keep them all.
_KEPT = 1024
_calls = {}


def _key(tokens, targets, emb, w1, b1, w2, b2, product_dtype, version):
    """The facts that decide over a call; None where it takes the long way: see `_quick`."""
    if not _ops.nobody_looks_on():
        return None
    try:
        key = (
            tokens.__class__, tokens.dtype, tokens.shape, tokens.device, tokens.is_contiguous(),
            targets.__class__, targets.dtype, targets.shape, targets.device, targets.is_contiguous(),
            emb.__class__, emb.dtype, emb.shape, emb.device, emb.is_contiguous(),
            w1.__class__, w1.dtype, w1.shape, w1.device, w1.is_contiguous(),
            b1.__class__, b1.dtype, b1.shape, b1.device, b1.is_contiguous(),
            w2.__class__, w2.dtype, w2.shape, w2.device, w2.is_contiguous(),
            b2.__class__, b2.dtype, b2.shape, b2.device, b2.is_contiguous(),
            product_dtype, version,
        )  # fmt: skip
        hash(key)
    except (AttributeError, TypeError, RuntimeError):  # no tensor, or one without these facts
        return None
    return key


def _call_for(tokens, parameters, lr, products, version):
    emb, w1, *_ = parameters
    steps, batch = tokens.shape if tokens.dim() == 2 else (1, tokens.shape[0])
    sizes = steps, batch, *emb.shape, w1.shape[0]
    return _Call(emb.device, sizes, products, version, lr)


def step(tokens, targets, emb, w1, b1, w2, b2, lr, products, version, check_ids):
    """The losses; the parameters are updated where they lie."""
    if 0 in tokens.shape:
        # As in PyTorch: the mean of no loss is no number, and its gradients are zeros. No kernel is launched.
        return torch.full(tokens.shape[:-1], torch.nan, dtype=torch.float64, device=emb.device)
    parameters = (emb, w1, b1, w2, b2)
    call = _call_for(tokens, parameters, lr, products, version)
    return call(tokens, targets, parameters, lr, check_ids)


for _device in ("CPU", "CUDA"):
    _library.impl("mlp_step", step, _device)


@torch.library.register_fake("vlstm::mlp_step", lib=_library)
def _fake_step(tokens, targets, emb, w1, b1, w2, b2, lr, products, version, check_ids):
    return emb.new_empty(tokens.shape[:-1], dtype=torch.float64)
