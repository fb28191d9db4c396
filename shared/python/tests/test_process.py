"""What becomes of the process: Ctrl-C during an emulated call, children that were forked, memory."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import vlstm

from conftest import draw


@pytest.fixture
def interrupts():
    """Ctrl-C as at a terminal: a shell that begins something in the background has it ignored there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_ends_an_emulated_call_soon():
    lstm, x = vlstm.LSTM(64, 256, 2), torch.randn(60, 16, 64)
    with torch.no_grad():
        lstm(x[:1])
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            lstm(x)  # takes some ten seconds
        assert time.monotonic() - start < 3
        # What was cancelled is that call.
        assert lstm(x[:1])[0].isfinite().all()


def call_all():
    vlstm.mlstm(*draw((1, 2, 40, 16, 16), torch.float32, "cpu", grad=True)).sum().backward()
    vlstm.LSTM(3, 40)(torch.ones(4, 9, 3))[0].sum().backward()


@pytest.mark.filterwarnings("ignore")
def test_a_forked_child_has_threads_of_its_own():
    call_all()
    child = multiprocessing.get_context("fork").Process(target=call_all)
    child.start()
    child.join(60)
    alive = child.is_alive()
    child.kill()
    assert not alive and child.exitcode == 0


MEMORY = """
import ctypes, gc, sys
sys.path.insert(0, sys.argv[1])
import torch, vlstm
from conftest import draw, draw_state

tensors = draw((1, 2, 64, 32, 32), torch.float32, "cpu", grad=True)
row = [t[:, :, 0].detach() for t in draw((1, 4, 1, 64, 64), torch.float32, "cpu")]
state, layer, x = draw_state((1, 4, 1, 64, 64), "cpu"), vlstm.LSTM(16, 32), torch.ones(6, 8, 16)

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return 4096 * int(file.read().split()[1])

# The emulator keeps 16 MB of what is freed, so that it finds who uses it: these many calls fill that.
for name, call, first in [
    ("mlstm", lambda: vlstm.mlstm(*tensors).sum().backward(), 150),
    ("mlstm_step", lambda: vlstm.mlstm_step(*row, *state), 225),
    ("LSTM", lambda: layer(x)[0].sum().backward(), 240),
]:
    for _ in range(first):
        call()
    before = resident()
    # Half a megabyte comes and goes by chance: less than 2 kB a call of so many.
    for _ in range(300):
        call()
    print(name, (resident() - before) // 300)
"""


def test_a_call_leaves_no_memory_behind():
    """Some 10 to 76 kB were left by every call once."""
    run = [sys.executable, "-W", "ignore", "-c", MEMORY, os.path.dirname(__file__)]
    printed = subprocess.run(run, capture_output=True, text=True, check=True, timeout=300).stdout.split()
    assert printed[::2] == ["mlstm", "mlstm_step", "LSTM"]
    for name, left in zip(printed[::2], map(int, printed[1::2])):
        assert left <= 4096, f"{name}: {left} bytes a call"
