"""What becomes of the process: Ctrl-C during an emulated call, and children that were forked."""

import multiprocessing
import os
import signal
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
