"""The published models of xlstm and transformers, tiny and random, on the kernels that `vlstm.register` enters; Qwen3-Next on the gated
delta rule.

Each is compared with the same model on plain PyTorch (of mlstm_kernels, or its own): logits, the gradient of every parameter, and what it
generates. Skips itself where a package is not installed: `pip install xlstm mlstm_kernels transformers`.
"""

import contextlib
import importlib
import inspect
import logging

import pytest
import torch
from conftest import relative_error

import vlstm

NATIVE = {"chunkwise_kernel": "chunkwise--native_autograd", "sequence_kernel": "native_sequence__native", "step_kernel": "native"}
LETTERS = 37
# The native chunkwise kernel takes multiples of its chunk alone.
TOKENS = torch.arange(96).mul(7).remainder(LETTERS).view(2, 48)


@contextlib.contextmanager
def registered(package):
    """The names by which a config of this package asks for the kernels; the registries are as before afterwards."""
    chunkwise = pytest.importorskip("mlstm_kernels.torch.chunkwise")
    recurrent = importlib.import_module("mlstm_kernels.torch.recurrent")
    registries = chunkwise.registry, recurrent.registry_sequence, recurrent.registry_step
    before = [dict(registry) for registry in registries]
    try:
        yield vlstm.register(native=package == "transformers")
    finally:
        for registry, entries in zip(registries, before):
            registry.clear()
            registry.update(entries)


def model_of_xlstm(mode, dtype, chosen):
    large = pytest.importorskip("xlstm.xlstm_large.model")
    sizes = {"embedding_dim": 128, "num_heads": 2, "num_blocks": 2, "vocab_size": LETTERS, "chunk_size": 16}
    return large.xLSTMLarge(
        large.xLSTMLargeConfig(**sizes, autocast_kernel_dtype=dtype, return_last_states=True, mode=mode, **chosen)
    )


def model_of_transformers(mode, dtype, chosen):
    pytest.importorskip("xlstm", reason="without xlstm transformers has mLSTM code of its own, which knows no kernels")
    logging.disable(logging.ERROR)  # of transformers' own docstrings
    try:
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_size": 128, "num_heads": 2, "num_hidden_layers": 2, "vocab_size": LETTERS, "chunk_size": 16}
        settings = {"autocast_kernel_dtype": dtype, "mode": mode, "use_cache": mode == "inference"}
        return transformers.xLSTMForCausalLM(transformers.xLSTMConfig(**sizes, **settings, **chosen))
    finally:
        logging.disable(logging.NOTSET)


MODELS = {"xlstm": model_of_xlstm, "transformers": model_of_transformers}


@pytest.fixture(params=list(MODELS))
def package(request):
    return request.param


def pair(package, mode, dtype="float32"):
    """The same model twice: on plain PyTorch of mlstm_kernels, and on the kernels here."""
    models = []
    for names in (contextlib.nullcontext(NATIVE), registered(package)):
        with names as chosen:
            torch.manual_seed(0)
            models.append(MODELS[package](mode, dtype, chosen))
            for parameter in models[-1].parameters():
                if parameter.dim() > 1:  # some of transformers' begin as zeros
                    torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    native, own = ([m for m in model.modules() if type(m).__name__ == "mLSTMBackend"] for model in models)
    assert len(native) == len(own) == 2
    for a, b in zip(native, own):
        assert b.chunkwise_kernel_fn is vlstm.mlstm and a.chunkwise_kernel_fn is not vlstm.mlstm
        assert b.step_kernel_fn is vlstm.mlstm_step and a.step_kernel_fn is not vlstm.mlstm_step
    return models


def logits_of(model, tokens):
    out = model(tokens)
    return out.logits if hasattr(out, "logits") else out[0]


def trained(model, halves):
    """The logits, and the gradients of a loss by layer.

    A bias has no error of its own: that of the input gates has hardly a gradient, for the head's norm forgets what all gates share.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=halves):
        logits = logits_of(model.train(), TOKENS).float()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS.roll(-1, 1).flatten()).backward()
    layers = {}
    for name, parameter in model.named_parameters():
        layers.setdefault(name.rsplit(".", 1)[0], []).append(parameter.grad.flatten())
    return {"logits": logits, **{name: torch.cat(parts) for name, parts in layers.items()}}


def test_logits_and_gradients(package):
    expected, got = (trained(model, False) for model in pair(package, "train"))
    assert len(got) > 25
    for name, wanted in expected.items():
        assert wanted.norm() > 0 and relative_error(got[name], wanted) <= 2e-5, name


def test_logits_and_gradients_in_bfloat16(package):
    """As near to the model in float32 as plain PyTorch in bfloat16 is, within a factor of two."""
    exact = trained(pair(package, "train")[0], False)
    theirs, got = (trained(model, True) for model in pair(package, "train", "bfloat16"))
    for name, wanted in exact.items():
        assert relative_error(got[name], wanted) <= 2 * relative_error(theirs[name], wanted), name


def test_generation(package):
    """Sequences that are no multiple of a chunk: by chunks, then by the kernel of a sequence; then one position after the other."""
    models = [model.eval() for model in pair(package, "inference")]
    with torch.no_grad():
        expected, got = (logits_of(model, TOKENS[:, :29]) for model in models)
        assert relative_error(got, expected) <= 5e-6
        if package == "xlstm":
            written = [model.generate(prefill_tokens=TOKENS[:, :9], max_length=12)[0] for model in models]
        else:
            written = [model.generate(TOKENS[:, :9], max_new_tokens=12, do_sample=False)[:, 9:] for model in models]
    assert written[0].shape == (2, 12) and written[0].unique().numel() > 8
    assert torch.equal(*written)


# ---- Qwen3-Next of transformers ------------------------------------------------------------------


def taking(function):
    """Without the options of a model that the function does not have, as the README says it."""
    names = inspect.signature(function).parameters
    return lambda *tensors, **given: function(*tensors, **{name: given[name] for name in given if name in names})


def qwen3_next():
    """Three blocks with the gated delta rule, whose value heads share keys, and one with attention."""
    transformers = pytest.importorskip("transformers")
    logging.disable(logging.ERROR)
    try:
        linear = {"num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 32, "value_head_dim": 16}
        sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 32}
        config = transformers.Qwen3NextConfig(
            vocab_size=LETTERS, num_key_value_heads=1, mlp_only_layers=[0, 1, 2, 3], **sizes,
            **{f"linear_{name}": size for name, size in linear.items()},
        )  # fmt: skip
        torch.manual_seed(0)
        model = transformers.Qwen3NextForCausalLM(config)
    finally:
        logging.disable(logging.NOTSET)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):  # as made, gates are shut
            torch.nn.init.constant_(parameter, -3.0)
    return model


def test_qwen3_next(monkeypatch):
    model = qwen3_next()
    modeling = importlib.import_module(type(model).__module__)
    steps = []

    def step(*tensors, **given):
        steps.append(given["initial_state"])
        return taking(vlstm.gated_delta_step)(*tensors, **given)

    results = []
    for own in (False, True):
        if own:
            monkeypatch.setattr(modeling, "torch_chunk_gated_delta_rule", taking(vlstm.gated_delta_rule))
            monkeypatch.setattr(modeling, "torch_recurrent_gated_delta_rule", step)
        model.zero_grad()
        layers = trained(model, False)
        with torch.no_grad():
            written = model.eval().generate(TOKENS[:, :9], max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
        results.append((layers, written[:, 9:]))
    (expected, theirs), (got, ours) = results
    assert len(steps) == 3 * 11 and all(state is not None for state in steps)
    assert torch.equal(theirs, ours)
    for name, wanted in expected.items():
        assert wanted.norm() > 0 and relative_error(got[name], wanted) <= 4e-6, name
