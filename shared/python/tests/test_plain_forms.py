"""Every mLSTM in plain Python of this tree against recorded values in float64, gradients of the gates included.

The values are those of mlstm_kernels' parallel form (`shared/reference/recorded/vlstm.py`): its own backward pass, which holds the
normaliser constant, and autograd through its forward pass, which does not. So each form shows that it has the gradient that it
claims. What is compared with the kernels, in tests and in benches, is one of these.
"""

import importlib.util
import pathlib
import sys

import pytest
import torch
from conftest import equations, relative_error
from safetensors.torch import load_file

from vlstm import _float64

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
RECORDED = load_file(REPOSITORY / "shared/reference/recorded/vlstm.safetensors")
CASES = sorted({name.split(".")[0] for name in RECORDED})
INPUTS, GRADIENTS = "qkvif", ["dq", "dk", "dv", "di", "df"]


def module(path):
    """A script of the tree as a module, beside which it finds its own."""
    path = REPOSITORY / path
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded
    finally:
        sys.path.remove(str(path.parent))


TRAIN = module("shared/python/examples/train.py")
PEERS, ERRORS = module("benches/peers/vlstm.py"), module("benches/peers/vlstm_error.py")


def over_heads(function, *tensors):
    """A function of one head, of each."""
    batch, heads = tensors[0].shape[:2]
    rows = [torch.stack([function(*(t[b, n] for t in tensors)) for n in range(heads)]) for b in range(batch)]
    return torch.stack(rows)


def position_after_position(*tensors):
    """h by the recurrence of one position, from no state."""
    (_, keys), values = tensors[0].shape, tensors[2].shape[-1]
    state = tensors[0].new_zeros(keys, values), tensors[0].new_zeros(keys), tensors[0].new_full((1,), -torch.inf)
    rows = []
    for q, k, v, i, f in zip(*tensors):
        h, state = PEERS.recurrent(q, k, v, i[None], f[None], *state)
        rows.append(h)
    return torch.stack(rows)


# Of each form its name, h of (q, k, v, i, f), and the gradient that it claims; those of h itself are without an ε.
FORMS = [
    ("the tests' equations", lambda *t: equations(*t)[0], "constant"),
    ("the tests' equations, exact", lambda *t: equations(*t, eps=0, exact=True)[0], "exact"),
    ("vlstm.mlstm in float64", lambda *t: _float64.mlstm(*t, None, 1e-6, False)[0], "constant"),
    ("vlstm.mlstm in float64, exact", lambda *t: _float64.mlstm(*t, None, 0.0, True)[0], "exact"),
    ("the example's", TRAIN.plain, "constant"),
    ("vlstm_error.py", ERRORS.parallel, "constant"),
    ("peers' parallel form", lambda *t: over_heads(PEERS.parallel, *t), "exact"),
    ("peers' recurrence", lambda *t: over_heads(position_after_position, *t), None),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name, form, gradient", FORMS, ids=[name for name, *_ in FORMS])
def test_a_plain_form(name, form, gradient, case):
    recorded = {key.removeprefix(f"{case}."): t for key, t in RECORDED.items() if key.startswith(f"{case}.")}
    inputs = [recorded[key].clone().requires_grad_() for key in INPUTS]
    h = form(*inputs)
    # Recorded is h with an ε of 1e-6, and the normaliser that it is added to.
    left_out = 1e-6 / recorded["n"][..., None] if gradient == "exact" else 0
    assert relative_error(h, recorded["h"] * (1 + left_out)) <= 1e-12
    if gradient is None:
        return
    got = torch.autograd.grad(h, inputs, recorded["dh"])
    other = {"constant": "exact", "exact": "constant"}[gradient]
    for key, g in zip(GRADIENTS, got):
        assert relative_error(g, recorded[f"{gradient}.{key}"]) <= 1e-12, key
        # The two differ by 4 % and more, but for dv, in which they differ by ε alone.
        assert key == "dv" or relative_error(g, recorded[f"{other}.{key}"]) > 0.03, key


def test_no_form_is_left_out():
    """Who writes another one into the tree holds it here, too: all need the logarithm of the forget gate."""
    tracked = [path for folder in ("benches", "shared", "stages", "book") for path in (REPOSITORY / folder).rglob("*.py")]
    found = {str(path.relative_to(REPOSITORY)) for path in tracked if "logsigmoid" in path.read_text()}
    held = {f"benches/peers/{name}.py" for name in ("vlstm", "vlstm_error")} | {"shared/python/examples/train.py"}
    held |= {"shared/python/tests/conftest.py", "shared/python/vlstm/_float64.py"}
    # States in float32, which `test_mlstm.py` holds; the logarithm of an input gate; equations in a text.
    others = {f"shared/python/vlstm/{name}.py" for name in ("_float32", "_sig", "_api")}
    # The sLSTM, and the gated delta rule; linear attention, which has no normaliser.
    others |= {f"benches/peers/{name}.py" for name in ("slstm", "gdn")}
    others |= {"shared/python/vlstm/_linear.py", "shared/python/tests/test_linear.py"}
    assert found - others - {str(pathlib.Path(__file__).relative_to(REPOSITORY))} == held
