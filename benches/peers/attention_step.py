"""One position of softmax attention over a cache, on the problems of the family `attention_step`.

    lab bench attention_step --peers      # or as problems.py says

FlashAttention-3's `flash_attn_with_kvcache` (`flash3`; the package fa3-fwd, for sm_90), which splits a cache over blocks as it sees
fit; and PyTorch's `scaled_dot_product_attention` (`sdpa`), which picks its own way. Halves. The error is that of one sequence
against f64.
"""

import torch
import torch.nn.functional as F

from problems import Peer, answer, peak_bytes, relative_error

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def flash3():
    try:
        from flash_attn_interface import flash_attn_with_kvcache
    except ImportError:
        try:
            from fa3_fwd_interface import flash_attn_with_kvcache
        except ImportError:
            return None
    return flash_attn_with_kvcache


def prepare(run, exact):
    error = relative_error(run()[:1].flatten(), exact.flatten())
    return Peer(run, {"relative_error": error, "peak_bytes": peak_bytes(run)})


def lines(asked):
    if asked["family"] != "attention_step" or asked["dtype"] not in DTYPES:
        return
    b, nh, nkv, t, d = (asked["shape"][name] for name in ("B", "NH", "NKV", "T", "D"))
    normal = lambda *shape: torch.randn(*shape, device="cuda").to(DTYPES[asked["dtype"]])
    q, k, v = normal(b, nh, 1, d), normal(b, nkv, t, d), normal(b, nkv, t, d)
    attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=nh != nkv)
    exact = attend(*(x[:1].double() for x in (q, k, v)))
    yield "sdpa", lambda: prepare(lambda: attend(q, k, v), exact)
    with_cache = flash3()
    if with_cache is None:
        return
    rows, keys, values = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    lengths = torch.full((b,), t, dtype=torch.int32, device="cuda")
    yield "flash3", lambda: prepare(lambda: with_cache(rows, keys, values, cache_seqlens=lengths), exact)


if __name__ == "__main__":
    torch.manual_seed(0)
    answer([f"PyTorch {torch.__version__}"], lines)
