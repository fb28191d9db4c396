"""The programs of the pages run, as they are printed."""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest
import torch
from conftest import draw, equations, relative_error

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example(path):
    subprocess.run([sys.executable, path], check=True, timeout=300)


@pytest.mark.parametrize("mark, name", [("five lines: as examples/first.py", "first"), ("as examples/mlp.py", "mlp")])
def test_the_readme_prints_the_example(mark, name):
    printed = re.search(rf"<!-- {mark} -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    assert printed == (ROOT / f"examples/{name}.py").read_text()


@pytest.fixture(scope="module")
def train():
    spec = importlib.util.spec_from_file_location("train", ROOT / "examples/train.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_plain_form_has_the_gradients_of_a_constant_normaliser(train):
    # Input gates about 0 and queries that are small: exp(-m) is the normaliser of many rows, and its gradient would count.
    tensors = draw((1, 2, 40, 16, 16), torch.float32, "cpu", grad=True)
    copies = [t.detach().double().requires_grad_() for t in tensors]
    outer = torch.randn(1, 2, 40, 16, generator=torch.Generator().manual_seed(2))
    train.plain(*tensors).backward(outer)
    equations(*copies)[0].backward(outer.double())
    for got, wanted in zip(tensors, copies):
        assert relative_error(got.grad, wanted.grad) <= 2e-6


def test_a_record_of_trainings_and_its_table(train, tmp_path, monkeypatch, capsys):
    path = tmp_path / "losses.json"

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["examples/train.py", *arguments])
        train.main()
        return capsys.readouterr().out

    sizes = "--seeds 2 --steps 12 --sequence 16 --width 32 --heads 1"
    assert "last ten steps of 2 seeds" in run(*sizes.split(), "--record", str(path))
    record = json.loads(path.read_text())
    # All sizes, for they depend on where it ran.
    assert record["command"].startswith("train.py --steps 12 --width ") and record["command"].endswith("--seeds 2")
    assert (record["torch"], record["seeds"], record["steps"]) == (torch.__version__, 2, 12)
    assert record["device"] == ("emulator" if not torch.cuda.is_available() else torch.cuda.get_device_name())
    assert {name: [len(of_seed) for of_seed in losses] for name, losses in record["losses"].items()} == {"vlstm": [12] * 2, "plain": [12] * 2}
    # Both begin with the same weights and text; seeds do not.
    first = [[of_seed[0] for of_seed in losses] for losses in record["losses"].values()]
    assert first[0] == pytest.approx(first[1], rel=1e-3) and first[0][0] != first[0][1]
    # Of twelve steps there is one window, the last ten.
    _, _, row, rates, _, said = run("--table", str(path)).splitlines()
    for cell, losses in zip(row.strip("|").split("|")[1:], record["losses"].values()):
        means = torch.tensor(losses, dtype=torch.float64)[:, 2:].mean(1)
        assert cell.strip() == f"{means.mean():.3f} ± {means.std():.3f}"
    assert row.startswith("| 2 to 11 |") and rates.startswith("| letters a second") and record["command"] in said
    with pytest.raises(SystemExit):
        run("--implementations", "other")
    assert "expected some of vlstm, plain, mlstm_kernels, got other" in capsys.readouterr().err


def test_the_table_of_the_readme_is_that_of_its_record(train):
    records = sorted((ROOT.parents[1] / "benches/training").glob("*.json"))
    newest = f"benches/training/{records[-1].name}"
    marked = re.findall(r"<!-- training: (\S+) -->\n\n(.*?)\n\n<!-- end of it -->", (ROOT / "README.md").read_text(), re.S)
    assert marked == [(newest, train.table(json.loads(records[-1].read_text())))]


def test_the_windows_of_a_training(train):
    assert train.windows(200) == [(10, 20), (50, 60), (100, 110), (150, 160), (190, 200)]
    assert train.windows(4) == [(0, 4)]
