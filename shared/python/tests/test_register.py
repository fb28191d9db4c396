"""`vlstm.register`, with registries that stand for those of mlstm_kernels. `test_models.py` has the published models."""

import sys
import types

import pytest
import torch
from conftest import draw, equations, relative_error

import vlstm

NAMES = {"chunkwise_kernel": "chunkwise--vlstm", "sequence_kernel": "vlstm", "step_kernel": "vlstm"}
NATIVE = {
    "chunkwise_kernel": "chunkwise--native_autograd",
    "sequence_kernel": "native_sequence__native",
    "step_kernel": "native",
}


@pytest.fixture
def registries(monkeypatch):
    chunkwise, recurrent = (types.ModuleType(name) for name in ("chunkwise", "recurrent"))
    chunkwise.registry = {"native_autograd": None}
    recurrent.registry_sequence, recurrent.registry_step = {"native_sequence__native": None}, {"native": None}
    of_torch = types.ModuleType("torch")
    of_torch.chunkwise, of_torch.recurrent = chunkwise, recurrent
    for name, module in (("", types.ModuleType("mlstm_kernels")), (".torch", of_torch)):
        monkeypatch.setitem(sys.modules, f"mlstm_kernels{name}", module)
    return chunkwise.registry, recurrent.registry_sequence, recurrent.registry_step


def test_a_name_in_three_registries(registries):
    assert vlstm.register() == NAMES
    chunkwise, sequence, step = registries
    assert chunkwise == {"native_autograd": None, "vlstm": vlstm.mlstm}
    # As the modules of mlstm_kernels call them.
    tensors = draw((1, 2, 20, 16, 16), torch.float32, "cpu")
    named = dict(zip(("q", "k", "v", "i", "f"), tensors))
    settings = {"autocast_kernel_dtype": torch.float32, "eps": 1e-6, "chunk_size": 16}
    state = {"c_initial": None, "n_initial": None, "m_initial": None}
    expected, last = equations(*tensors)
    h, of_last = chunkwise["vlstm"](**named, **state, **settings, return_last_states=True)
    assert relative_error(h, expected) <= 1e-6 and of_last[2].shape == (1, 2, 1)
    h, of_last = sequence["vlstm"](**named, **state, eps=1e-6, return_last_states=True, dtype_state=torch.float32)
    assert relative_error(h, expected) <= 1e-6 and relative_error(of_last[0], last[0]) <= 1e-6
    rows = {name: t[:, :, -1] for name, t in named.items()}
    h, _ = step["vlstm"](**rows, c=of_last[0], n=of_last[1], m=of_last[2], eps=1e-6, dtype_state=torch.float32)
    assert h.shape == (1, 2, 16)


def test_in_the_place_of_the_native_ones(registries):
    assert vlstm.register("own", native=True) == NATIVE
    chunkwise, sequence, step = registries
    assert chunkwise == dict.fromkeys(("native_autograd", "own"), vlstm.mlstm)
    assert step == dict.fromkeys(("native", "own"), vlstm.mlstm_step)
    assert sequence["native_sequence__native"] is sequence["own"]


def test_what_is_refused(monkeypatch, registries):
    for name in ("", "a--b", 3):
        with pytest.raises(ValueError, match="name: expected a name without '--', got"):
            vlstm.register(name)
    assert all("" not in registry for registry in registries)
    monkeypatch.setitem(sys.modules, "mlstm_kernels", None)
    monkeypatch.setitem(sys.modules, "mlstm_kernels.torch", None)
    with pytest.raises(ImportError, match="pip install mlstm_kernels"):
        vlstm.register()
