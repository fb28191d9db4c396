"""Wrong arguments: a typed error that names the argument, what was expected and what came."""

import pytest
import torch
from conftest import draw, draw_state

import vlstm

SHAPE = 1, 2, 20, 32, 48
NAMES = ["q", "k", "v", "i", "f", "c_initial", "n_initial", "m_initial"]


def arguments(dtype=torch.bfloat16):
    return dict(zip(NAMES, [*draw(SHAPE, dtype, "cpu"), *draw_state(SHAPE, "cpu")]))


WRONG = [
    (TypeError, {"q": [1.0]}, "q: expected a torch.Tensor, got list"),
    (TypeError, {"v": lambda t: t.double()}, "v: expected torch.float32 or torch.float16 or torch.bfloat16, got"),
    (TypeError, {"k": lambda t: t.float()}, "k: expected torch.bfloat16, as q, got torch.float32"),
    (TypeError, {"i": lambda t: t.long()}, "i: expected torch.float32 or .* got torch.int64"),
    (TypeError, {"f": lambda t: t.to_sparse()}, "f: expected a dense tensor, got one of layout torch.sparse_coo"),
    (ValueError, {"f": lambda t: t.to("meta")}, "f: expected a tensor on cpu, as q, got one on meta"),
    (ValueError, {"q": lambda t: t[0]}, r"q: expected shape \(B, NH, S, DHQK\), got \(2, 20, 32\)"),
    (ValueError, {"k": lambda t: t[:, :, 1:]}, r"k: expected shape \(1, 2, 20, 32\), got \(1, 2, 19, 32\)"),
    (ValueError, {"v": lambda t: t[:, :1]}, r"v: expected shape \(1, 2, 20, 48\), got \(1, 1, 20, 48\)"),
    (ValueError, {"i": lambda t: t[..., None]}, r"i: expected shape \(1, 2, 20\), got \(1, 2, 20, 1\)"),
    (ValueError, {"c_initial": lambda t: t.mT}, r"c_initial: expected shape \(1, 2, 32, 48\), got \(1, 2, 48, 32\)"),
    (ValueError, {"m_initial": lambda t: t[0]}, r"m_initial: expected shape \(1, 2\) or \(1, 2, 1\), got \(2, 1\)"),
    (ValueError, {"n_initial": None}, "n_initial: expected a tensor, as c_initial is given, got None"),
    (TypeError, {"eps": "1e-6"}, "eps: expected a number, got str"),
    (ValueError, {"eps": -1.0}, "eps: expected a number that is not negative, and finite, got -1.0"),
    (ValueError, {"eps": float("nan")}, "eps: expected a number that is not negative, and finite, got nan"),
    (ValueError, {"chunk_size": 0}, "chunk_size: expected None or a positive int, got 0"),
    (ValueError, {"normalizer_grad": "both"}, "normalizer_grad: expected 'constant' or 'exact', got 'both'"),
    (TypeError, {"autocast_kernel_dtype": torch.float64}, "autocast_kernel_dtype: expected None, torch.float32"),
    (ValueError, {"version": "v9"}, "version: expected auto or of vlstm_fw_v4:v2_segments, .* got 'v9'"),
    (TypeError, {"version": None}, "version: expected a str, got NoneType"),
]


@pytest.mark.parametrize("kind, changed, message", WRONG, ids=lambda w: next(iter(w)) if isinstance(w, dict) else "")
@pytest.mark.parametrize("function", [vlstm.mlstm, vlstm.check])
def test_refused(function, kind, changed, message):
    given = arguments()
    for name, change in changed.items():
        given[name] = change(given[name]) if callable(change) else change
    with pytest.raises(kind, match=message):
        function(**given)


def test_sizes_that_no_version_takes():
    for shape, said in [
        ((1, 1, 5, 24, 16), "DHQK: expected a multiple of 16 from 16 to 256, got 24"),
        ((1, 1, 5, 16, 2048), "v: expected dimension DHHV: expected a multiple of 16 from 16 to 256, got 2048"),
        ((1, 0, 5, 16, 16), "NH: expected 1 to 65535, got 0"),
    ]:
        with pytest.raises(ValueError, match=said):
            vlstm.mlstm(*draw(shape, torch.float32, "cpu"))


def test_a_gradient_that_no_version_has_is_refused_before_the_forward_pass():
    shape = 1, 1, 20, 256, 528
    tensors = draw(shape, torch.bfloat16, "cpu", grad=True)
    state = draw_state(shape, "cpu")
    with pytest.raises(ValueError, match=r"(?s)backward pass: .*\n.*DHHV: expected a multiple of 16 from 16 to 512, got 528"):
        vlstm.mlstm(*tensors, *state)
    with torch.no_grad():
        vlstm.mlstm(*tensors, *state)


def test_the_type_of_a_state(device):
    tensors = draw((1, 2, 20, 32, 32), torch.bfloat16, device)
    h, (c, n, m) = vlstm.mlstm(*tensors, return_last_states=True, dtype_state=torch.bfloat16)
    assert (c.dtype, n.dtype, m.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    same, (wide, *_) = vlstm.mlstm(*tensors, return_last_states=True)
    assert wide.dtype == torch.float32 and torch.equal(wide.bfloat16(), c) and torch.equal(same, h)
    with pytest.raises(TypeError, match="dtype_state: expected torch.float32 with q in torch.float32, got torch.float16"):
        vlstm.mlstm(*draw((1, 2, 20, 32, 32), torch.float32, device), dtype_state=torch.float16)


def test_a_step_and_the_checks_in_float64_are_refused_with_their_reason(device):
    tensors = draw((1, 2, 20, 32, 32), torch.float64, device)
    with pytest.raises(TypeError, match="got torch.float64, in which no kernel of the vLSTM computes"):
        vlstm.check(*tensors)
    state = [t.double() for t in draw_state((1, 2, 20, 32, 32), device)]
    with pytest.raises(TypeError, match="got torch.float64, in which no kernel of the vLSTM computes"):
        vlstm.mlstm_step(*(t[:, :, 0] for t in tensors), *state)


def test_float64_is_not_mixed_with_others(device):
    q, k, v, i, f = draw((1, 2, 20, 32, 32), torch.float64, device)
    with pytest.raises(TypeError, match="k: expected torch.float64, got torch.float32"):
        vlstm.mlstm(q, k.float(), v, i, f)
