"""`vlstm.MLP` and `vlstm.mlp_step` against plain PyTorch: cross-entropy, backward and `torch.optim.SGD`."""

import copy
import pickle

import pytest
import torch
from conftest import relative_error
from torch.nn.functional import cross_entropy

import vlstm
from vlstm import _launch, _mlp

# V, E, H: elements one by one and in packs of four; more than one tile; what v2_resident has room for.
SIZES = [(9, 3, 5), (130, 12, 36)]
NAMES = ["emb", "w1", "b1", "w2", "b2"]
LR = 0.5

# Of the losses, of the parameters, and of what these have moved by: that is a small part of them, and has their roundings.
BOUNDS = {torch.float32: (1e-6, 1e-6, 2e-4), torch.bfloat16: (8e-3, 6e-3, 1.4e-2)}


def model(sizes, device="cpu", seed=0):
    torch.manual_seed(seed)
    return vlstm.MLP(*sizes).to(device)


def draw_ids(sizes, steps, batch, device="cpu", dtype=torch.int64, seed=1):
    """Tokens and targets (N, B); small ids come more often than large ones, and more than once."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(2, steps, batch, generator=generator) ** 2 * sizes[0]
    return list(drawn.to(device=device, dtype=dtype))


def trained_by_torch(own, tokens, targets, lr=LR):
    """The losses of each step, and the model behind them, in float64 on the CPU."""
    theirs = copy.deepcopy(own).cpu().double()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=lr)
    losses = []
    for x, y in zip(tokens.cpu().long(), targets.cpu().long()):
        optimizer.zero_grad()
        loss = cross_entropy(theirs(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), theirs


def check_training(own, tokens, targets, dtype, **settings):
    """Makes the steps in one call, and compares losses, parameters, and what these have moved by."""
    of_loss, of_parameter, of_change = BOUNDS[dtype]
    before = {name: p.detach().cpu().double().clone() for name, p in own.named_parameters()}
    expected, theirs = trained_by_torch(own, tokens, targets)
    losses = own.training_step(tokens, targets, LR, **settings)
    assert losses.shape == tokens.shape[:1] and losses.dtype == torch.float64 and losses.device == own.emb.device
    assert relative_error(losses, expected) <= of_loss
    for name, wanted in theirs.named_parameters():
        got = getattr(own, name).detach().cpu().double()
        assert relative_error(got, wanted) <= of_parameter, name
        assert relative_error(got - before[name], wanted.detach() - before[name]) <= of_change, name


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("product_dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_as_torch(sizes, batch, product_dtype, dtype, device):
    own = model(sizes, device)
    check_training(own, *draw_ids(sizes, 3, batch, device, dtype), product_dtype, product_dtype=product_dtype)


@pytest.mark.parametrize("name", [name for name, *_ in vlstm.versions()["mlp"]])
def test_versions_by_name(name, device):
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dict((n, t) for n, _, (t,) in vlstm.versions()["mlp"])[name]]
    if device == "cuda" and name.endswith("wgmma") and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper")
    batch = 1 if name.split("_")[-1] in ("sample", "resident") else 70
    own = model(SIZES[1], device)
    tokens, targets = draw_ids(SIZES[1], 2, batch, device)
    check_training(own, tokens, targets, dtype, version=name)
    # It is this version that has run.
    sizes = (2, batch, *SIZES[1])
    assert _mlp.plan_for(_launch.device_name(own.emb), sizes, "", name, LR).version == name


def test_one_step_is_a_scalar_and_as_one_of_several(device):
    own, other = (model(SIZES[1], device) for _ in range(2))
    tokens, targets = draw_ids(SIZES[1], 3, 20, device)
    losses = [own.training_step(x, y, LR) for x, y in zip(tokens, targets)]
    assert all(loss.shape == () for loss in losses)
    assert torch.equal(torch.stack(losses), other.training_step(tokens, targets, LR))
    for a, b in zip(own.parameters(), other.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("batch", [1, 5])
def test_each_call_has_its_own_learning_rate(batch, device):
    own = model(SIZES[0], device)
    tokens, targets = draw_ids(SIZES[0], 1, batch, device)
    for lr in (0.5, 0.0, 1e-3):
        before = own.b2.detach().clone()
        _, theirs = trained_by_torch(own, tokens, targets, lr)
        own.training_step(tokens, targets, lr)
        assert relative_error(own.b2, theirs.b2) <= 1e-6
        assert torch.equal(own.b2, before) == (lr == 0)


def test_a_later_call_of_the_same_shapes_is_looked_at_as_the_first(device):
    own = model((9, 4, 8), device)
    tokens, targets = draw_ids((9, 4, 8), 1, 4, device)
    parameters = [p.detach() for p in own.parameters()]
    for _ in range(2):
        vlstm.mlp_step(tokens, targets, *parameters, LR)
    shared = torch.zeros(40, device=device)
    before = [p.clone() for p in parameters]
    overlapping = [*parameters[:2], shared[:8], parameters[3], shared[4:13]]
    with pytest.raises(ValueError, match="expected memory of its own"):
        vlstm.mlp_step(tokens, targets, *overlapping, LR)
    for lr, error in ((-1.0, ValueError), (float("nan"), ValueError), (True, TypeError), ("0.1", TypeError)):
        with pytest.raises(error, match="lr: expected a number"):
            vlstm.mlp_step(tokens, targets, *parameters, lr)
    with pytest.raises(ValueError, match="w1: expected a contiguous tensor"):
        vlstm.mlp_step(tokens, targets, parameters[0], torch.zeros(4, 8, device=device).T, *parameters[2:], LR)
    if device == "cpu":
        with pytest.raises(ValueError, match="targets: expected ids from 0 to 8, got 9 at step 0, pair 2"):
            vlstm.mlp_step(tokens, torch.tensor([[0, 1, 9, 2]]), *parameters, LR)
    for p, first in zip(parameters, before):
        assert torch.equal(p, first)


def test_parameters_are_updated_where_they_lie_without_gradients(device):
    own = model(SIZES[0], device)
    addresses = [p.data_ptr() for p in own.parameters()]
    tokens, targets = draw_ids(SIZES[0], 2, 4, device)
    loss = own.training_step(tokens, targets, LR)
    assert not loss.requires_grad
    assert [p.data_ptr() for p in own.parameters()] == addresses
    assert all(p.grad is None and p.requires_grad and p.is_leaf for p in own.parameters())


def test_autograd_notices_what_was_updated(device):
    own = model(SIZES[0], device)
    tokens, targets = draw_ids(SIZES[0], 1, 4, device)
    loss = cross_entropy(own(tokens[0]), targets[0])
    own.training_step(tokens, targets, LR)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    # And goes its ordinary way afterwards.
    cross_entropy(own(tokens[0]), targets[0]).backward()
    assert all(p.grad.norm() > 0 for p in own.parameters())
    with torch.inference_mode():
        copied = [p.clone() for p in own.parameters()]
        vlstm.mlp_step(tokens, targets, *copied, LR)


def test_it_learns_what_follows_what(device):
    own = model((20, 16, 32), device)
    tokens = torch.arange(20, device=device).repeat(30, 1)
    losses = own.training_step(tokens, (tokens * 7 + 3) % 20, 2.0)
    assert losses[0] > 2.5 and losses[-1] < 0.3
    assert torch.equal(own(tokens[0]).argmax(-1), (tokens[0] * 7 + 3) % 20)


def test_autocast_decides_the_products(device):
    def train(**settings):
        own = model(SIZES[1], device)
        own.training_step(*draw_ids(SIZES[1], 2, 20, device), LR, **settings)
        return own.w2.detach()

    plain, halves = train(), train(product_dtype=torch.bfloat16)
    assert not torch.equal(plain, halves)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(train(), halves)
        assert torch.equal(train(product_dtype=torch.float32), plain)
        assert torch.equal(train(version="mlp_fused:v1_batch"), train(version="mlp_fused:v1_batch", product_dtype=torch.float32))


@pytest.mark.parametrize("version", ["mlp_fused:v1_batch", "mlp_fused:v1_tensor", "mlp_fused:v1_recomputed"])
def test_a_loss_that_is_not_finite_moves_nothing(version, device):
    own = model((9, 4, 8), device)
    with torch.no_grad():
        own.b2[3] = float("nan")
    before = [p.detach().clone() for p in own.parameters()]
    losses = own.training_step(*draw_ids(SIZES[0], 2, 4, device), LR, version=version)
    assert losses.isnan().all()
    for p, first in zip(own.parameters(), before):
        assert torch.equal(p.nan_to_num(), first.nan_to_num())


def test_state_dict_copies_and_pickles(device):
    own = model(SIZES[1], device)
    assert list(own.state_dict()) == NAMES
    assert repr(own) == "MLP(vocabulary=130, embedding=12, hidden=36)"
    tokens, targets = draw_ids(SIZES[1], 2, 20, device)
    other = model(SIZES[1], device, seed=5)
    other.load_state_dict(own.state_dict())
    expected = own.training_step(tokens, targets, LR)
    copies = [other, copy.deepcopy(own), pickle.loads(pickle.dumps(own))]
    assert torch.equal(other.training_step(tokens, targets, LR), expected)
    for one in copies:
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), own.parameters()))
        assert torch.equal(one(tokens), own(tokens))


def test_the_module_is_plain_torch():
    torch.manual_seed(3)
    own = vlstm.MLP(50, 8, 16, dtype=torch.float64)
    assert {p.dtype for p in own.parameters()} == {torch.float64}
    assert vlstm.MLP(50, 8, 16, device="meta").emb.device.type == "meta"
    assert own(torch.zeros(2, 3, 4, dtype=torch.int64)).shape == (2, 3, 4, 50)
    # Drawn as PyTorch's own layers are.
    torch.manual_seed(3)
    layers = torch.nn.Embedding(50, 8, dtype=torch.float64), *(
        torch.nn.Linear(*sizes, dtype=torch.float64) for sizes in ((8, 16), (16, 50))
    )
    for got, wanted in zip(own.parameters(), (p for layer in layers for p in layer.parameters())):
        assert torch.equal(got, wanted)


def test_opcheck(device):
    own = model(SIZES[1], device)
    for batch, products in ((1, "f32"), (20, "f32"), (20, "bf16")):
        tokens, targets = draw_ids(SIZES[1], 2, batch, device)
        parameters = [p.detach() for p in own.parameters()]
        torch.library.opcheck(torch.ops.vlstm.mlp_step.default, [tokens, targets, *parameters, LR, products, "auto", True])
        one = [tokens[0], targets[0], *parameters, LR, products, "auto", False]
        torch.library.opcheck(torch.ops.vlstm.mlp_step.default, one)


def test_compiled_as_one_graph(device):
    tokens, targets = draw_ids(SIZES[1], 3, 20, device)
    own, other = (model(SIZES[1], device) for _ in range(2))

    def train(x, y):
        losses = own.training_step(x, (y + 1) % SIZES[1][0], LR)
        return losses.mean(), own(x).argmax(-1)

    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(train, fullgraph=True, backend=backend)
    addresses = [p.data_ptr() for p in own.parameters()]
    for _ in range(2):
        loss, best = compiled(tokens, targets)
        expected = other.training_step(tokens, (targets + 1) % SIZES[1][0], LR)
        assert torch.allclose(loss, expected.mean(), rtol=1e-12)
        assert torch.equal(best, other(tokens).argmax(-1))
        for a, b in zip(own.parameters(), other.parameters()):
            assert torch.equal(a, b)
    assert [p.data_ptr() for p in own.parameters()] == addresses


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    own = model(SIZES[0])
    tokens, targets = draw_ids(SIZES[0], 2, 4)
    real = [tokens, targets, *(p.detach() for p in own.parameters())]
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in real]
        losses = vlstm.mlp_step(*fake, LR)
        one = vlstm.mlp_step(fake[0][0], fake[1][0], *fake[2:], LR)
    assert (losses.shape, losses.dtype, losses.device.type, one.shape) == ((2,), torch.float64, "cpu", ())


def test_no_pairs_and_no_steps(device):
    """As PyTorch has it: a mean of nothing is no number, and moves nothing."""
    own = model(SIZES[0], device)
    theirs = cross_entropy(own(torch.empty(0, dtype=torch.int64, device=device)), torch.empty(0, dtype=torch.int64, device=device))
    assert theirs.isnan() and all((g == 0).all() for g in torch.autograd.grad(theirs, own.parameters()))
    before = [p.detach().clone() for p in own.parameters()]
    for shape in ((0,), (3, 0), (0, 4), (0, 0)):
        for dtype in (torch.int64, torch.int32):
            ids = torch.empty(shape, dtype=dtype, device=device)
            for settings in ({}, {"product_dtype": torch.bfloat16}, {"version": "mlp_fused:v1_batch"}, {"check_ids": False}):
                for _ in range(2):
                    losses = own.training_step(ids, ids, LR, **settings)
                    assert (losses.shape, losses.dtype, losses.device) == (shape[:-1], torch.float64, own.emb.device)
                    assert losses.isnan().all()
    assert all(torch.equal(p, first) for p, first in zip(own.parameters(), before))
    # A call of the same shapes with pairs in it is as before.
    tokens, targets = draw_ids(SIZES[0], 2, 4, device)
    assert own.training_step(tokens, targets, LR).isfinite().all() and not torch.equal(own.w2, before[3])


def test_no_pairs_compiled_and_checked(device):
    own = model(SIZES[0], device)
    parameters = [p.detach() for p in own.parameters()]
    for shape in ((0,), (3, 0), (0, 4)):
        ids = torch.empty(shape, dtype=torch.int64, device=device)
        # Under "aot_dispatch" results are compared, and NaN is not NaN.
        tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
        tests += ["test_aot_dispatch_dynamic"] if shape[0] == 0 and len(shape) == 2 else []
        torch.library.opcheck(torch.ops.vlstm.mlp_step.default, [ids, ids, *parameters, LR, "f32", "auto", True], test_utils=tests)
    compiled = torch.compile(own.training_step, fullgraph=True, backend="aot_eager")
    for pairs in (4, 0, 5):
        tokens, targets = draw_ids(SIZES[0], 2, pairs, device)
        assert compiled(tokens, targets, LR).isnan().all() == (pairs == 0)


def test_tensors_without_memory():
    own = vlstm.MLP(*SIZES[0], device="meta")
    ids = torch.empty(3, 4, dtype=torch.int64, device="meta")
    for tokens in (ids, ids[0], ids[:, :0], ids.int()):
        for settings in ({}, {"product_dtype": torch.bfloat16}, {"version": "mlp_fused:v1_batch"}):
            losses = own.training_step(tokens, tokens, LR, **settings)
            assert losses.is_meta and (losses.shape, losses.dtype) == (tokens.shape[:-1], torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert own.training_step(ids, ids, LR).is_meta
    assert own(ids).shape == (3, 4, SIZES[0][0])
    with pytest.raises(ValueError, match="tokens: expected a tensor on meta, as emb, got one on cpu"):
        own.training_step(torch.zeros(3, 4, dtype=torch.int64), ids, LR)


@pytest.mark.parametrize("kind", ["tokens", "targets"])
def test_ids_that_are_not_of_the_vocabulary(kind):
    """On CUDA they end a process: `test_cuda.py` has one of its own for that."""
    own = model(SIZES[0])
    before = [p.detach().clone() for p in own.parameters()]
    for wrong in (-1, 9, 2**32):
        ids = dict(zip(("tokens", "targets"), draw_ids(SIZES[0], 2, 4)))
        ids[kind][1, 2] = wrong
        with pytest.raises(ValueError, match=f"{kind}: expected ids from 0 to 8, got {wrong} at step 1, pair 2"):
            own.training_step(**ids, lr=LR)
    ids[kind][1, 2] = -5
    with pytest.raises(ValueError, match=f"{kind}: expected ids from 0 to 8, got -5 at pair 2"):
        own.training_step(ids["tokens"][1], ids["targets"][1], LR)
    assert all(torch.equal(p, first) for p, first in zip(own.parameters(), before))


def test_what_it_refuses():
    own = model(SIZES[0])
    tokens, targets = draw_ids(SIZES[0], 2, 4)
    first = {"tokens": tokens, "targets": targets, **{name: p.detach() for name, p in own.named_parameters()}, "lr": LR}
    turned = first["w2"].t().contiguous().t()
    both = torch.zeros(9, 3)
    for kind, changed, message in [
        (TypeError, {"tokens": [1, 2]}, "tokens: expected a torch.Tensor, got list"),
        (TypeError, {"targets": targets.float()}, "targets: expected torch.int64 or torch.int32, got torch.float32"),
        (TypeError, {"w1": own.w1.double()}, "w1: expected torch.float32, got torch.float64"),
        (TypeError, {"emb": first["emb"].to_sparse()}, "emb: expected a dense tensor, got one of layout torch.sparse_coo"),
        (ValueError, {"tokens": tokens[None]}, r"tokens: expected shape \(B\) or \(N, B\), got \(1, 2, 4\)"),
        (ValueError, {"targets": targets[0]}, r"targets: expected shape \(2, 4\), got \(4,\)"),
        (ValueError, {"emb": own.emb[0]}, r"emb: expected shape \(V, E\), got \(3,\)"),
        (ValueError, {"w1": own.w1[:, :2]}, r"w1: expected shape \(5, 3\), got \(5, 2\)"),
        (ValueError, {"w2": own.w2[:8]}, r"w2: expected shape \(9, 5\), got \(8, 5\)"),
        (ValueError, {"w2": turned}, r"w2: expected a contiguous tensor, to be updated in place, got strides \(1, 9\)"),
        (ValueError, {"b2": own.b2.to("meta")}, "b2: expected a tensor on cpu, as emb, got one on meta"),
        (ValueError, {"tokens": tokens.to("meta")}, "tokens: expected a tensor on cpu, as emb, got one on meta"),
        (ValueError, {"emb": own.emb.to("meta")}, "w1: expected a tensor on meta, as emb, got one on cpu"),
        (ValueError, {"emb": both, "w2": both[:, :3], "w1": torch.zeros(3, 3), "b1": torch.zeros(3)}, "w2: expected memory of its own, got some that is emb's, too"),
        (ValueError, {"tokens": tokens[:, :0]}, r"targets: expected shape \(2, 0\), got \(2, 4\)"),
        (TypeError, {"lr": torch.tensor(0.1)}, "lr: expected a number, got Tensor"),
        (TypeError, {"lr": True}, "lr: expected a number, got bool"),
        (ValueError, {"lr": -0.1}, "lr: expected a number that is not negative, and finite, got -0.1"),
        (ValueError, {"lr": float("nan")}, "lr: expected a number that is not negative, and finite, got nan"),
        (TypeError, {"product_dtype": torch.float16}, "product_dtype: expected torch.float32 or torch.bfloat16, got torch.float16"),
        (TypeError, {"version": None}, "version: expected a str, got NoneType"),
        (ValueError, {"version": "v1_batch"}, "version: expected auto or one of mlp_fused:v0_sample, .* got 'v1_batch'"),
        (ValueError, {"version": "mlp_fused:v1_batch", "product_dtype": torch.bfloat16}, "for products in bf16, got 'mlp_fused:v1_batch'"),
        (ValueError, {"version": "mlp_fused:v0_sample"}, "tokens: expected dimension B"),
    ]:
        with pytest.raises(kind, match=message):
            vlstm.mlp_step(**{**first, **changed})
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(TypeError, match="the type of the autocast: expected"):
        own.training_step(tokens, targets, LR)
    for kind, sizes, message in [
        (TypeError, (9.0, 3, 5), "vocabulary: expected an int, got float"),
        (ValueError, (9, 0, 5), "embedding: expected a positive int, got 0"),
    ]:
        with pytest.raises(kind, match=message):
            vlstm.MLP(*sizes)
