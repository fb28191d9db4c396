"""What only a GPU shows: streams, graphs, memory, several devices, the time that a call takes on the host."""

import copy
import subprocess
import sys
import threading
import time

import pytest
import torch
from conftest import draw, draw_state, equations, relative_error

import vlstm
from vlstm import _mlp, _ops

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")

SHAPE = 2, 4, 256, 64, 128


def on_hopper():
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def plan_for(pass_name, tensors, version="auto"):
    from test_mlstm import plan_of

    return plan_of(pass_name, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_version_that_suits_the_gpu(dtype):
    tensors = draw(SHAPE, dtype, "cuda")
    names = [plan_for(p, tensors).version.split(":")[0] for p in ("forward", "gradients")]
    if dtype == torch.float32:
        assert names == ["vlstm_fw_v1", "vlstm_fwbw_v1"]
    elif on_hopper():
        assert names == ["vlstm_fw_v4", "vlstm_fwbw_v4"]
    elif torch.cuda.get_device_capability() >= (8, 0):
        assert names == ["vlstm_fw_v3", "vlstm_fwbw_v3"]


@pytest.mark.parametrize("name", ["vlstm_fw_v3:v1_long", "vlstm_fwbw_v3:v3_carried", "vlstm_fw_v1:online"])
def test_versions_of_older_gpus(name):
    tensors = draw(SHAPE, torch.bfloat16, "cuda", grad=True)
    h = vlstm.mlstm(*tensors, version=name)
    assert relative_error(h, equations(*tensors)[0]) <= 8e-3
    got = torch.autograd.grad(h.float().sum(), tensors)
    copies = [t.detach().double().requires_grad_() for t in tensors]
    for g, e in zip(got, torch.autograd.grad(equations(*copies)[0].sum(), copies)):
        assert relative_error(g, e) <= 1.2e-2


def test_the_current_stream_is_taken():
    """A long wait in the stream before the call: what is computed must be computed behind it."""
    tensors = draw(SHAPE, torch.bfloat16, "cuda")
    expected = vlstm.mlstm(*tensors)
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.current_stream()):
        with torch.cuda.stream(stream):
            late = torch.zeros_like(tensors[0])
            torch.cuda._sleep(50_000_000)
            late.copy_(tensors[0])
            begun = time.perf_counter()
            h = vlstm.mlstm(late, *tensors[1:])
            asked = time.perf_counter() - begun
            done = stream.query()
            assert torch.equal(h, expected)
        assert not done, "the call waited for the device"
        assert asked < 0.02


def test_two_streams_at_once():
    streams = [torch.cuda.Stream() for _ in range(2)]
    problems = [draw(SHAPE, torch.bfloat16, "cuda", seed=seed, grad=True) for seed in range(2)]
    expected = [vlstm.mlstm(*tensors) for tensors in problems]
    torch.cuda.synchronize()
    results = [[], []]
    for _ in range(20):
        for stream, tensors, out in zip(streams, problems, results):
            with torch.cuda.stream(stream):
                h = vlstm.mlstm(*tensors)
                out.append((h.detach(), torch.autograd.grad(h.float().sum(), tensors)))
    torch.cuda.synchronize()
    for wanted, out in zip(expected, results):
        for h, gradients in out:
            assert torch.equal(h, wanted)
            for g, first in zip(gradients, out[0][1]):
                assert torch.equal(g, first)


def test_two_threads_on_two_streams():
    failures = []

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                tensors = draw(SHAPE, torch.bfloat16, "cuda", seed=seed, grad=True)
                expected = equations(*tensors)[0].detach()
                for _ in range(20):
                    h = vlstm.mlstm(*tensors)
                    torch.autograd.grad(h.float().sum(), tensors)
                    assert relative_error(h, expected) <= 8e-3
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_a_graph(dtype):
    tensors = draw(SHAPE, dtype, "cuda", grad=True)

    def work():
        h = vlstm.mlstm(*tensors)
        return h, torch.autograd.grad(h.float().sum(), tensors)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        h, gradients = work()
    for seed in (5, 6):
        with torch.no_grad():
            for own, other in zip(tensors, draw(SHAPE, dtype, "cuda", seed=seed)):
                own.copy_(other)
        graph.replay()
        got = [t.clone() for t in (h, *gradients)]
        again_h, again = work()
        for g, expected in zip(got, (again_h, *again)):
            assert torch.equal(g, expected)


def test_a_step_in_a_graph():
    shape = 2, 4, 3, 64, 128
    rows = draw(shape, torch.bfloat16, "cuda")
    static = [t[:, :, 0].clone() for t in rows]
    state = [t.cuda() for t in draw_state(shape, "cpu")]
    first = [t.clone() for t in state]
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(2):
            vlstm.mlstm_step(*static, *state, inplace=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        h, _ = vlstm.mlstm_step(*static, *state, inplace=True)
    for own, t in zip(state, first):
        own.copy_(t)
    expected = first
    for position in range(3):
        for own, of_all in zip(static, rows):
            own.copy_(of_all[:, :, position])
        graph.replay()
        wanted, expected = vlstm.mlstm_step(*(t[:, :, position] for t in rows), *expected)
        assert torch.equal(h, wanted)
        assert all(torch.equal(a, b) for a, b in zip(state, expected))


MLP_SIZES = 1000, 64, 128


def mlp_of(batch, seed=0, steps=4):
    """A model, and tokens and targets (N, B)."""
    torch.manual_seed(seed)
    own = vlstm.MLP(*MLP_SIZES, device="cuda")
    return own, *torch.randint(MLP_SIZES[0], (2, steps, batch), device="cuda")


@pytest.mark.parametrize("batch, products", [(1, "f32"), (256, "f32"), (256, "bf16")])
def test_the_version_of_a_training_step(batch, products):
    version = _mlp.plan_for("cuda:0", (4, batch, *MLP_SIZES), products, "auto", 0.1).version
    halves = "v3_wgmma" if on_hopper() else "v1_tensor"
    expected = halves if products == "bf16" else "v2_resident" if batch == 1 else "v1_batch"
    assert version == f"mlp_fused:{expected}"


@pytest.mark.parametrize("batch", [1, 256])
def test_a_training_step_takes_the_current_stream(batch):
    """A long wait in the stream before the call: neither ids nor parameters are there before it ends."""
    own, tokens, targets = mlp_of(batch)
    expected = copy.deepcopy(own).training_step(tokens, targets, 0.1)
    start = [p.detach().clone() for p in own.parameters()]
    torch.cuda.synchronize()
    with torch.no_grad():
        for stream in (torch.cuda.Stream(), torch.cuda.current_stream()):
            with torch.cuda.stream(stream):
                late = torch.zeros_like(tokens)
                for p in own.parameters():
                    p.zero_()
                torch.cuda._sleep(50_000_000)
                late.copy_(tokens)
                for p, first in zip(own.parameters(), start):
                    p.copy_(first)
                losses = own.training_step(late, targets, 0.1)
                done = stream.query()
                assert torch.equal(losses, expected)
            assert not done, "the call waited for the device"


@pytest.mark.parametrize("batch, product_dtype", [(1, None), (256, None), (256, torch.bfloat16)], ids=str)
def test_a_training_step_in_a_graph(batch, product_dtype):
    own, tokens, targets = mlp_of(batch)
    other = copy.deepcopy(own)
    first = copy.deepcopy(own.state_dict())

    def work(model, x, y):
        return model.training_step(x, y, 0.1, product_dtype=product_dtype)

    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(2):
            work(own, tokens, targets)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        losses = work(own, tokens, targets)
    own.load_state_dict(first)
    for seed in (5, 6, 7):
        _, new_tokens, new_targets = mlp_of(batch, seed)
        tokens.copy_(new_tokens)
        targets.copy_(new_targets)
        graph.replay()
        assert torch.equal(losses, work(other, new_tokens, new_targets))
        for a, b in zip(own.parameters(), other.parameters()):
            assert torch.equal(a, b)


def test_memory_of_training_steps_is_given_back():
    own, tokens, targets = mlp_of(256)
    # Of the last learning rates each is kept on the device: some bytes a step.
    for n in range(20):
        own.training_step(tokens, targets, 0.2 + n / 1000)
    torch.cuda.synchronize()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for n in range(20):
        own.training_step(tokens, targets, 0.1 + n / 1000)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.mem_get_info()[0] >= free - (2 << 20)


def test_parameters_that_are_not_aligned():
    own, tokens, targets = mlp_of(4)
    tensors = [p.detach() for p in own.parameters()]
    tensors[3] = torch.zeros(tensors[3].numel() + 1, device="cuda")[1:].view(tensors[3].shape)
    with pytest.raises(ValueError, match="w2: expected memory at a multiple of 16 bytes, got an address 0x"):
        vlstm.mlp_step(tokens, targets, *tensors, 0.1)


@pytest.mark.parametrize(
    "name, wrong, dtype",
    [
        ("tokens", 50, "int64"),
        ("targets", -1, "int64"),
        ("targets", 2**32 + 3, "int64"),
        ("tokens", 50, "int32"),
        ("targets", -1, "int32"),
    ],
)
def test_a_wrong_id_ends_in_an_assertion_on_the_device(name, wrong, dtype):
    """In a process of its own, for it can no longer use the device."""
    program = f"""
import torch, vlstm
ids = {{name: torch.zeros(2, 8, dtype=torch.{dtype}, device="cuda") for name in ("tokens", "targets")}}
model = vlstm.MLP(50, 8, 16, device="cuda")
model.training_step(**ids, lr=0.1)
torch.cuda.synchronize()
ids["{name}"][1, 3] = {wrong}
model.training_step(**ids, lr=0.1)
print("asked")
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print("device-side assert" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["asked", "True"], done.stderr


def test_memory_is_pytorchs_and_given_back():
    tensors = draw((4, 8, 2048, 64, 128), torch.bfloat16, "cuda", grad=True)
    for _ in range(3):
        h = vlstm.mlstm(*tensors)
        torch.autograd.grad(h.float().sum(), tensors)
    del h
    torch.cuda.synchronize()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(10):
        h = vlstm.mlstm(*tensors)
        torch.autograd.grad(h.float().sum(), tensors)
        del h
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.mem_get_info()[0] >= free - (2 << 20)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_a_device_that_is_not_the_current_one():
    tensors = draw(SHAPE, torch.bfloat16, "cuda:1", grad=True)
    assert torch.cuda.current_device() == 0
    h = vlstm.mlstm(*tensors)
    torch.autograd.grad(h.float().sum(), tensors)
    assert torch.cuda.current_device() == 0
    assert relative_error(h, equations(*tensors)[0]) <= 8e-3


def test_check_takes_what_the_gpu_would_run():
    tensors = draw((1, 1, 70, 16, 16), torch.bfloat16, "cuda")
    h = vlstm.check(*tensors, grad_h=tensors[2])
    assert h.device.type == "cpu"
    assert relative_error(h, equations(*tensors)[0]) <= 8e-3


def host_time(call, calls=300):
    """Microseconds on the host of one call of many, of which the device is not waited for."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    took = time.perf_counter() - begun
    torch.cuda.synchronize()
    return 1e6 * took / calls


def test_what_a_call_takes_on_the_host(capsys):
    """Printed for the book; the bound only catches what has gone wrong by a multiple."""
    tensors = draw((1, 2, 64, 64, 64), torch.bfloat16, "cuda")
    trained = [t.clone().requires_grad_() for t in tensors]
    arguments = [*tensors, *[None] * 4, False, 1e-6, False, "auto"]
    row = [t[:, :, 0].contiguous() for t in tensors]
    state = [t.cuda() for t in draw_state((1, 2, 1, 64, 64), "cpu")]
    plan = plan_for("forward", tensors)
    made = {name: torch.empty(shape, dtype=torch.float32, device="cuda") for name, _, _, shape in plan.slots}
    made |= dict(zip(("q", "k", "v", "i", "f"), tensors))
    # Outputs that nobody wants are in the scratch memory, too.
    addresses = [made[name].data_ptr() for name in plan.given]
    scratch = torch.empty(plan.room_bytes + 1, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    own, *ids = mlp_of(256, steps=1)
    narrow = [t.int() for t in ids]
    times = {
        "launches alone": host_time(lambda: plan.run(addresses, 0, scratch.data_ptr(), stream)),
        "vlstm._ops.forward": host_time(lambda: _ops.forward(*arguments)),
        "torch.ops.vlstm.mlstm": host_time(lambda: torch.ops.vlstm.mlstm(*arguments)),
        "vlstm.mlstm": host_time(lambda: vlstm.mlstm(*tensors)),
        "vlstm.mlstm, with a graph for gradients": host_time(lambda: vlstm.mlstm(*trained)),
        "vlstm.mlstm_step, in place": host_time(lambda: vlstm.mlstm_step(*row, *state, inplace=True)),
        "vlstm.MLP.training_step": host_time(lambda: own.training_step(*ids, 0.1)),
        "vlstm.MLP.training_step, ids in int32 and not checked": host_time(
            lambda: own.training_step(*narrow, 0.1, check_ids=False)
        ),
    }
    with capsys.disabled():
        for name, microseconds in times.items():
            print(f"\n{microseconds:8.1f} us  {name}", end="")
    assert times["vlstm.mlstm"] <= 500
