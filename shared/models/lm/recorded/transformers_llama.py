"""Records a tiny random Llama of transformers: the directory that it writes, and its logits in f32.

    pip install torch transformers safetensors
    python transformers_llama.py

writes transformers_llama/{config.json, model.safetensors, logits.safetensors} beside this file. Made with torch 2.15.0 and
transformers 5.24.0. The other way, a directory that `lab lm convert` wrote, goes by transformers_xlstm.py, which loads any model.
"""

import pathlib

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(9)


def logits_of(model, ids):
    """In f32, on the CPU, all positions at once."""
    with torch.no_grad():
        return model(input_ids=ids.long(), use_cache=False).logits


directory = pathlib.Path(__file__).parent / "transformers_llama"
# Nothing is as it mostly is: a head is wider than the stream over the heads, heads share keys, positions turn slowly.
config = LlamaConfig(
    vocab_size=37, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    head_dim=32, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 500.0},
)
model = LlamaForCausalLM(config).eval()
# No parameter may be as nothing to the logits: scores that are not all alike, norms that are not all ones.
with torch.no_grad():
    for name, p in model.named_parameters():
        if p.ndim == 2:
            p.normal_(0, 0.3 if "self_attn" in name else 0.18)
        else:
            p.normal_(1, 0.2)
ids = torch.randint(0, config.vocab_size, (2, 70), dtype=torch.int32)
model.save_pretrained(directory)
(directory / "generation_config.json").unlink(missing_ok=True)
save_file({"ids": ids, "logits": logits_of(model, ids)}, directory / "logits.safetensors")
double = logits_of(model.double(), ids)
print(f"f32 is {(double - load_file(directory / 'logits.safetensors')['logits']).abs().max():.2g} from f64")
