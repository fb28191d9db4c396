"""`vlstm.LSTM`: `torch.nn.LSTM` by the kernels of the lab."""

import functools

import torch
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from vlstm import _launch, _ops

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_library = torch.library.Library("vlstm", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)

# Parameters in the order of the layers, of each those of its directions: weight_ih, weight_hh, bias_ih, bias_hh.
_INPUTS = "Tensor x, Tensor lengths, Tensor h0, Tensor c0, Tensor[] parameters"
_library.define(f"lstm({_INPUTS}, bool bidirectional) -> (Tensor, Tensor, Tensor)", tags=_TAGS)
_library.define(f"lstm_saving({_INPUTS}, bool bidirectional) -> (Tensor, Tensor, Tensor, Tensor)", tags=_TAGS)
_library.define(
    f"lstm_backward(Tensor? dy, Tensor? dhn, Tensor? dcn, {_INPUTS}, Tensor? y, Tensor? hn, Tensor? cn, Tensor left, "
    "bool bidirectional) -> Tensor[]",
    tags=_TAGS,
)


def _implement(name, function):
    for device in ("CPU", "CUDA"):
        _library.impl(name, function, device)


@functools.lru_cache(maxsize=None)
def _names(count, bidirectional):
    """The names of so many parameters in their order, as in PyTorch's state dict."""
    directions = ("", "_reverse") if bidirectional else ("",)
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    layers = count // (4 * len(directions))
    return tuple(f"{kind}_l{layer}{d}" for layer in range(layers) for d in directions for kind in kinds)


def _named(x, lengths, h0, c0, parameters, bidirectional):
    named = {"x": x, "lengths": lengths, "h0": h0, "c0": c0}
    named |= zip(_names(len(parameters), bidirectional), parameters)
    return {name: t if t.is_contiguous() else t.contiguous() for name, t in named.items()}


@functools.lru_cache(maxsize=256)
def _planned(on, dtype, sizes, bidirectional, training):
    """The plans of a forward pass, or of a forward and its backward pass, for (T, B, I, H, layers)."""
    steps, batch, inputs, hidden, layers = sizes
    _launch.prepare(on)
    directions = 2 if bidirectional else 1
    state = [layers * directions, batch, hidden]
    y = [steps, batch, hidden * directions]
    shapes = {"x": [steps, batch, inputs], "h0": state, "c0": state}
    for name in _names(4 * layers * directions, bidirectional):
        columns = hidden if "hh" in name else inputs if "_l0" in name else hidden * directions
        shapes[name] = [4 * hidden, columns] if name.startswith("weight") else [4 * hidden]
    if training:
        shapes |= {"dy": y, "dhn": state, "dcn": state}
    named = [(name, _launch.NAMES[dtype], shape) for name, shape in shapes.items()]
    named.append(("lengths", "i64", [batch]))
    plans = _launch.native_plan_lstm(on, named, [inputs, hidden, layers], [bidirectional, True, training])
    return [_launch.Planned(plan, set()) for plan in plans]


def _plans(x, h0, parameters, bidirectional, training):
    layers = len(parameters) // (8 if bidirectional else 4)
    sizes = tuple(int(size) for size in (*x.shape, h0.shape[-1], layers))
    return _planned(_launch.device_name(x), x.dtype, sizes, bidirectional, training)


class _Room:
    """How much memory `lstm_saving` returns for what it leaves, for any T: what the plans of two lengths want says how much it
    is a step. And which results are kept for the backward pass beside it. T may be a symbol of a compiler."""

    _SHORT, _LONG = 33, 65
    # Each piece of what is left begins at a multiple of 256 bytes; a direction of a layer leaves some.
    _BETWEEN_PIECES = 2**12

    def __init__(self, x, h0, parameters, bidirectional):
        layers = len(parameters) // (8 if bidirectional else 4)
        sizes = tuple(int(size) for size in (*x.shape[1:], h0.shape[-1], layers))
        on = _launch.device_name(x)
        cuts = [_planned(on, x.dtype, (steps, *sizes), bidirectional, True) for steps in (self._SHORT, self._LONG)]
        short, long = (first.left_bytes for first, _ in cuts)
        self._each = -((short - long) // (self._LONG - self._SHORT))
        self._first = max(long - self._each * self._LONG, 0) + self._BETWEEN_PIECES * (len(parameters) // 4)
        self.reads = cuts[1][1].inputs

    def bytes(self, steps):
        return _ops.aligned(self._each * steps + self._first)


def forward(x, lengths, h0, c0, parameters, bidirectional):
    """y, hn and cn."""
    (planned,) = _plans(x, h0, parameters, bidirectional, False)
    out = _launch.run(planned, _named(x, lengths, h0, c0, parameters, bidirectional))
    return out["y"], out["hn"], out["cn"]


_implement("lstm", forward)


def _fake(x, h0, bidirectional):
    steps, batch, _ = x.shape
    y = x.new_empty((steps, batch, h0.shape[-1] * (2 if bidirectional else 1)))
    return y, x.new_empty(h0.shape), x.new_empty(h0.shape)


@torch.library.register_fake("vlstm::lstm", lib=_library)
def _fake_forward(x, lengths, h0, c0, parameters, bidirectional):
    return _fake(x, h0, bidirectional)


def _run_saving(x, lengths, h0, c0, parameters, bidirectional, size=None):
    """y, hn, cn, and memory of this many bytes, or as many as are needed, with what the backward pass needs; of less than that
    nothing in it is of use."""
    first, _ = _plans(x, h0, parameters, bidirectional, True)
    left = _ops.new_left(first.left_bytes if size is None else size, x.device)
    if first.left_bytes > left.numel():
        return *forward(x, lengths, h0, c0, parameters, bidirectional), left
    out = _launch.run(first, _named(x, lengths, h0, c0, parameters, bidirectional), left)
    return out["y"], out["hn"], out["cn"], left


def saving(x, lengths, h0, c0, parameters, bidirectional):
    """y, hn, cn, and what the backward pass needs beside them."""
    size = _Room(x, h0, parameters, bidirectional).bytes(x.shape[0])
    return _run_saving(x, lengths, h0, c0, parameters, bidirectional, size)


_implement("lstm_saving", saving)


@torch.library.register_fake("vlstm::lstm_saving", lib=_library)
def _fake_saving(x, lengths, h0, c0, parameters, bidirectional):
    size = _Room(x, h0, parameters, bidirectional).bytes(x.shape[0])
    return (*_fake(x, h0, bidirectional), x.new_empty(size, dtype=torch.uint8))


def backward(dy, dhn, dcn, x, lengths, h0, c0, parameters, y, hn, cn, left, bidirectional):
    """dx, dh0, dc0, and the gradient of each parameter. Where `left` has no room for what this problem leaves, the forward pass
    is made once more."""
    _, second = _plans(x, h0, parameters, bidirectional, True)
    if second.left_bytes > left.numel():
        y, hn, cn, left = _run_saving(x, lengths, h0, c0, parameters, bidirectional)
    named = _named(x, lengths, h0, c0, parameters, bidirectional)
    shape_of_y = _fake(x, h0, bidirectional)[0].shape if dy is None else None
    named["dy"] = x.new_zeros(shape_of_y) if dy is None else dy.contiguous()
    named["dhn"] = torch.zeros_like(h0) if dhn is None else dhn.contiguous()
    named["dcn"] = torch.zeros_like(c0) if dcn is None else dcn.contiguous()
    named |= {name: t for name, t in (("y", y), ("hn", hn), ("cn", cn)) if t is not None}
    out = _launch.run(second, named, left.contiguous())
    names = _names(len(parameters), bidirectional)
    return [out["dx"], out["dh0"], out["dc0"], *(out[f"d{name}"] for name in names)]


_implement("lstm_backward", backward)


@torch.library.register_fake("vlstm::lstm_backward", lib=_library)
def _fake_backward(dy, dhn, dcn, x, lengths, h0, c0, parameters, *_):
    return [t.new_empty(t.shape) for t in (x, h0, c0, *parameters)]


def _remember(ctx, inputs, output, reads):
    """Saves what the backward pass reads: of the results what is among `reads`."""
    x, lengths, h0, c0, parameters, ctx.bidirectional = inputs
    y, hn, cn, left = output
    ctx.mark_non_differentiable(left)
    ctx.set_materialize_grads(False)
    of_output = (t if name in reads else None for name, t in (("y", y), ("hn", hn), ("cn", cn)))
    ctx.save_for_backward(x, lengths, h0, c0, *of_output, left, *parameters)


def _save(ctx, inputs, output):
    x, _, h0, _, parameters, bidirectional = inputs
    _remember(ctx, inputs, output, _Room(x, h0, parameters, bidirectional).reads)


def _gradients(ctx, dy, dhn, dcn, _):
    x, lengths, h0, c0, y, hn, cn, left, *parameters = ctx.saved_tensors
    if dy is None and dhn is None and dcn is None:
        return None, None, None, None, [None] * len(parameters), None
    if _ops.is_batched((dy, dhn, dcn)):
        return _ops.each_of_batch(lambda *outer: _gradients(ctx, *outer, None), (dy, dhn, dcn))
    if _ops.is_under_transform():
        call = _TransformedBackward.apply
        dx, dh0, dc0, *of_parameters = call(
            ctx.bidirectional, dy, dhn, dcn, x, lengths, h0, c0, y, hn, cn, left, *parameters
        )
    else:
        dx, dh0, dc0, *of_parameters = torch.ops.vlstm.lstm_backward(
            dy, dhn, dcn, x, lengths, h0, c0, parameters, y, hn, cn, left, ctx.bidirectional
        )
    return dx, None, dh0, dc0, of_parameters, None


torch.library.register_autograd("vlstm::lstm_saving", _gradients, setup_context=_save, lib=_library)


def _refuse_double_backward(ctx, *_):
    raise NotImplementedError(
        "vlstm.LSTM: expected to be differentiated once, got a gradient of its gradient (double backward), which it "
        "does not have"
    )


torch.library.register_autograd("vlstm::lstm_backward", _refuse_double_backward, lib=_library)


class _Differentiable(torch.autograd.Function):
    """What `lstm_saving` is, without PyTorch's dispatcher between."""

    @staticmethod
    def forward(ctx, bidirectional, x, lengths, h0, c0, *parameters):
        output = _run_saving(x, lengths, h0, c0, parameters, bidirectional)
        _, second = _plans(x, h0, parameters, bidirectional, True)
        _remember(ctx, (x, lengths, h0, c0, parameters, bidirectional), output, second.inputs)
        return output

    @staticmethod
    def backward(ctx, dy, dhn, dcn, _):
        if _ops.is_transformed((dy, dhn, dcn)) or (dy is None and dhn is None and dcn is None):
            dx, _, dh0, dc0, of_parameters, _ = _gradients(ctx, dy, dhn, dcn, None)
        else:
            x, lengths, h0, c0, y, hn, cn, left, *parameters = ctx.saved_tensors
            dx, dh0, dc0, *of_parameters = backward(
                dy, dhn, dcn, x, lengths, h0, c0, parameters, y, hn, cn, left, ctx.bidirectional
            )
        return None, dx, None, dh0, dc0, *of_parameters


for _name in ("lstm", "lstm_saving", "lstm_backward"):
    _ops.one_after_the_other(getattr(torch.ops.vlstm, _name).default)


class _Transformed(torch.autograd.Function):
    """What `lstm_saving` is, for `grad` and `vmap` of torch.func: see `_ops._Transformed`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(bidirectional, x, lengths, h0, c0, *parameters):
        return torch.ops.vlstm.lstm_saving(x, lengths, h0, c0, parameters, bidirectional)

    @staticmethod
    def setup_context(ctx, inputs, output):
        bidirectional, x, lengths, h0, c0, *parameters = inputs
        _save(ctx, (x, lengths, h0, c0, parameters, bidirectional), output)

    @staticmethod
    def backward(ctx, dy, dhn, dcn, _):
        dx, _, dh0, dc0, of_parameters, _ = _gradients(ctx, dy, dhn, dcn, None)
        return None, dx, None, dh0, dc0, *of_parameters

    jvp = staticmethod(lambda ctx, *_: _ops.has_no_tangents("LSTM"))


class _TransformedBackward(torch.autograd.Function):
    """What `lstm_backward` is, likewise."""

    generate_vmap_rule = True

    @staticmethod
    def forward(bidirectional, dy, dhn, dcn, x, lengths, h0, c0, y, hn, cn, left, *parameters):
        return tuple(
            torch.ops.vlstm.lstm_backward(
                dy, dhn, dcn, x, lengths, h0, c0, parameters, y, hn, cn, left, bidirectional
            )
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = staticmethod(_refuse_double_backward)
    jvp = staticmethod(lambda ctx, *_: _ops.has_no_tangents("LSTM"))


class LSTM(torch.nn.LSTM):
    """`torch.nn.LSTM` by the kernels of the lab: the same constructor, parameters, state dict, arguments and results.

    Takes several layers, two directions, `batch_first`, dropout between layers, `PackedSequence`, inputs without a
    batch, and initial states; float32, float64, float16 and bfloat16. All steps of a layer go in one launch up to 768
    units; on CUDA, in the current stream. Under `torch.autocast` everything is cast to its type. `torch.compile` leaves its graph at
    each `torch.nn.LSTM`, which this is one of; with `torch._dynamo.config.allow_rnn = True` it takes it into the graph.

    Raises:
        NotImplementedError: at construction, `proj_size`; on the way back, a gradient of a gradient.
        ValueError: sizes that the kernels do not take; a device that is neither the CPU nor a CUDA device.
        Others as `torch.nn.LSTM`: RuntimeError for sizes that do not fit each other, ValueError for a type of the input.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.proj_size:
            raise NotImplementedError(f"proj_size: expected 0, which is all that vlstm.LSTM has, got {self.proj_size}")

    def forward(self, input, hx=None):
        packed = input if isinstance(input, PackedSequence) else None
        if packed is not None:
            # In the order in which it is packed: the longest first.
            x, on_host = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes))
        else:
            if not isinstance(input, torch.Tensor):
                raise TypeError(f"input: expected a torch.Tensor or a PackedSequence, got {type(input).__name__}")
            if input.dim() not in (2, 3):
                raise ValueError(f"input: expected 2 or 3 dimensions, got shape {tuple(input.shape)}")
            x = input if input.dim() == 3 else input.unsqueeze(0 if self.batch_first else 1)
            x = x.transpose(0, 1) if self.batch_first else x
        self._check(x)
        if x.is_meta or 0 in x.shape[:2]:
            # No kernel has anything to do.
            return super().forward(input, hx)
        alone = packed is None and input.dim() == 2
        h0, c0 = self._states(x, hx, alone, packed)
        if packed is None:
            lengths = torch.full((x.shape[1],), x.shape[0], dtype=torch.int32, device=x.device)
        else:
            lengths = on_host.to(device=x.device, dtype=torch.int32)
        y, hn, cn = self._run(x, lengths, h0, c0)
        if packed is not None:
            rows = torch.nn.utils.rnn.pack_padded_sequence(y, on_host, enforce_sorted=True).data
            y = PackedSequence(rows, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
            if packed.unsorted_indices is not None:
                hn, cn = (t.index_select(1, packed.unsorted_indices) for t in (hn, cn))
            return y, (hn, cn)
        y = y.transpose(0, 1) if self.batch_first else y
        if alone:
            return y.squeeze(0 if self.batch_first else 1), (hn.squeeze(1), cn.squeeze(1))
        return y, (hn, cn)

    def _check(self, x):
        weight = self.weight_ih_l0
        if x.shape[-1] != self.input_size:
            raise RuntimeError(f"input: expected {self.input_size} features, got {x.shape[-1]}")
        if x.device != weight.device:
            raise RuntimeError(f"input: expected a tensor on {weight.device}, as the parameters, got one on {x.device}")
        if x.device.type not in ("cpu", "cuda", "meta"):
            raise ValueError(f"input: expected a tensor on the CPU or a CUDA device, got one on {x.device}")
        if weight.dtype not in _FLOATS:
            raise TypeError(f"parameters: expected one of {_FLOATS}, got {weight.dtype}")
        if x.dtype != weight.dtype and (x.is_meta or not torch.is_autocast_enabled(x.device.type)):
            raise ValueError(f"input: expected {weight.dtype}, as the parameters, got {x.dtype}")

    def _states(self, x, hx, alone, packed):
        directions = 2 if self.bidirectional else 1
        shape = self.num_layers * directions, x.shape[1], self.hidden_size
        if hx is None:
            zeros = x.new_zeros(shape)
            return zeros, zeros
        if not isinstance(hx, (tuple, list)) or len(hx) != 2:
            raise TypeError(f"hx: expected a tuple (h_0, c_0), got {type(hx).__name__}")
        states = []
        for name, state in zip(("h_0", "c_0"), hx):
            if not isinstance(state, torch.Tensor):
                raise TypeError(f"{name}: expected a torch.Tensor, got {type(state).__name__}")
            expected = (shape[0], shape[2]) if alone else shape
            if tuple(state.shape) != expected:
                raise RuntimeError(f"{name}: expected shape {expected}, got {tuple(state.shape)}")
            state = state.unsqueeze(1) if alone else state
            if state.device != x.device:
                raise RuntimeError(f"{name}: expected a tensor on {x.device}, as input, got one on {state.device}")
            if state.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
                raise RuntimeError(f"{name}: expected {x.dtype}, as input, got {state.dtype}")
            sorted_rows = packed is not None and packed.sorted_indices is not None
            states.append(state.index_select(1, packed.sorted_indices) if sorted_rows else state)
        return states

    def _run(self, x, lengths, h0, c0):
        per_layer = 2 if self.bidirectional else 1
        parameters = []
        for of_direction in self.all_weights:
            parameters += of_direction
            if not self.bias:
                zeros = of_direction[0].new_zeros(4 * self.hidden_size)
                parameters += [zeros, zeros]
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            cast = torch.get_autocast_dtype(kind)
            x, h0, c0, *parameters = (t.to(cast) for t in (x, h0, c0, *parameters))
        if not (self.dropout and self.training and self.num_layers > 1):
            return _call(x, lengths, h0, c0, parameters, self.bidirectional)
        # A layer at a time, what lies between them dropped out.
        last = []
        for layer in range(self.num_layers):
            states = slice(layer * per_layer, (layer + 1) * per_layer)
            own = parameters[4 * states.start : 4 * states.stop]
            x = torch.nn.functional.dropout(x, self.dropout) if layer else x
            x, hn, cn = _call(x, lengths, h0[states], c0[states], own, self.bidirectional)
            last.append((hn, cn))
        return x, *(torch.cat(states) for states in zip(*last))


def _call(x, lengths, h0, c0, parameters, bidirectional):
    tensors = (x, h0, c0, *parameters)
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if _ops.is_plain(tensors):
        if differentiable:
            return _Differentiable.apply(bidirectional, x, lengths, h0, c0, *parameters)[:3]
        return forward(x, lengths, h0, c0, parameters, bidirectional)
    _ops.refuse_tangents("LSTM", tensors)
    if not (differentiable or _ops.is_traced()):
        return torch.ops.vlstm.lstm(x, lengths, h0, c0, parameters, bidirectional)
    if not torch.compiler.is_compiling() and _ops.is_under_transform():
        return _Transformed.apply(bidirectional, x, lengths, h0, c0, *parameters)[:3]
    return torch.ops.vlstm.lstm_saving(x, lengths, h0, c0, parameters, bidirectional)[:3]
