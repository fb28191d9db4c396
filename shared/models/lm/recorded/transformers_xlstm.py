"""Records a tiny random xLSTM of transformers: the directory that it writes, and its logits in f32.

    pip install torch transformers safetensors
    python transformers_xlstm.py

writes transformers_xlstm/{config.json, model.safetensors, logits.safetensors} beside this file, with transformers'
own PyTorch code of the mLSTM (a package `xlstm`, which it would call, must not be installed). Made with torch 2.15.0 and transformers 5.24.0.

    python transformers_xlstm.py MODEL IDS LOGITS

goes the other way: it loads a directory that `lab lm convert` wrote, and compares its logits of the tokens in IDS with
those in LOGITS, as `lab lm logits` writes them.
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, xLSTMConfig, xLSTMForCausalLM

torch.manual_seed(9)


def logits_of(model, ids):
    """In f32, on the CPU, all positions at once."""
    with torch.no_grad():
        return model(input_ids=ids.long(), use_cache=False).logits


def compare(directory, ids, logits):
    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    left = {key: names for key, names in info.items() if names}
    assert not left, f"expected the model's own tensors, got {left}"
    expected = logits_of(model.eval(), load_file(ids)["ids"])
    error = (load_file(logits)["logits"] - expected).abs().max() / expected.abs().max()
    print(f"largest difference, of the largest logit: {error:.2g}")
    sys.exit(0 if error <= 1e-5 else 1)


def record(directory):
    config = xLSTMConfig(
        vocab_size=37, hidden_size=32, num_hidden_layers=2, num_heads=2, qk_dim_factor=1.0, ffn_round_up_to_multiple_of=8
    )
    model = xLSTMForCausalLM(config).eval()
    # No parameter may be as nothing to the logits: gates that depend on what they read, norms that are not all ones.
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("gate_preact.weight"):
                p.normal_(0, 0.3)
            elif name.endswith("igate_preact.bias"):
                p.normal_(0, 1)
            elif name.endswith("norm.weight") or "norm_" in name:
                p.normal_(1, 0.2)
            elif p.ndim == 2:
                p.normal_(0, 0.18)
    # Positions of a whole chunk, and some behind it.
    ids = torch.randint(0, config.vocab_size, (2, 70), dtype=torch.int32)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    save_file({"ids": ids, "logits": logits_of(model, ids)}, directory / "logits.safetensors")
    double = logits_of(model.double(), ids)
    print(f"f32 is {(double - load_file(directory / 'logits.safetensors')['logits']).abs().max():.2g} from f64")


if len(sys.argv) == 4:
    compare(*sys.argv[1:])
else:
    record(pathlib.Path(__file__).parent / "transformers_xlstm")
