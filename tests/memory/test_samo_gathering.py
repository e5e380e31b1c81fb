"""Gradients that wait for one kernel: whatever happens to a backward pass, what layers get one by one.

Without a device Triton's interpreter runs the kernel on the processor's memory.
"""

import gc
import importlib
import threading
import weakref
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dynaquant_core import device_jit
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.memory import samo
from tests.memory.samo_nets import OPTIMIZERS, conv, gpt, loss_of
from tests.memory.storages import Storages
from tests.triton_here import interpret

KERNELS = "dynaquant_core.memory.samo.device_kernels"
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """How many layers each launch compressed."""
    interpret(monkeypatch)
    kernels, found = importlib.import_module(KERNELS), []
    true = kernels.gather
    monkeypatch.setattr(
        kernels, "gather", lambda layers, *rest: found.append(len(layers)) or true(layers, *rest)
    )
    return found


def both(monkeypatch, life):
    """What ``life`` gives with kernels and without."""
    found = [life()]
    monkeypatch.setattr(device_jit, "compiles", lambda device: False)
    return [*found, life()]


def wrapped(model, dtype=torch.bfloat16, **options):
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    return optimizer, samo.wrap(model, optimizer, sparsity=0.7, dtype=dtype, **options)


def grads(handle):
    """Copies of what the optimizer sees."""
    return [None if one.grad is None else one.grad.clone() for one in handle.parameters()]


def same(one, other):
    """The same bits, and the same ones missing."""
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or (mine.dtype == theirs.dtype and torch.equal(mine, theirs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("build", [gpt, conv])
def test_an_accumulated_clipped_and_scaled_training_ends_in_the_same_bits(
    monkeypatch, launches, build, dtype
):
    def life():
        model = build()
        optimizer, handle = wrapped(model, dtype, loss_scale=256.0)
        for step in range(4):
            for part in range(3):
                handle.scale(loss_of(model, 3 * step + part, rows=2)).backward()
            torch.nn.utils.clip_grad_norm_(handle.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        return list(model.state_dict().values())

    one, other = both(monkeypatch, life)
    same(one, other)
    layers = len(list(build().parameters()))
    assert sum(launches) == 12 * layers, "every gradient went through the kernel"
    assert len(launches) < 12 * layers / 2


def test_a_gradient_scaler_skips_and_steps_as_without_kernels(monkeypatch):
    def life():
        model = gpt()
        optimizer, _ = wrapped(model, torch.float16)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**32, growth_interval=3)
        for _ in range(20):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, 0, rows=2)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert 1 < scaler.get_scale() < 2.0**30
        return list(model.state_dict().values())

    same(*both(monkeypatch, life))


class Breaks(torch.autograd.Function):
    """Passes values on; the way back ends here while it is told to."""

    broken = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Breaks.broken:
            raise ArithmeticError("broken off")
        return gradient


class Between(nn.Module):
    def forward(self, x):
        return Breaks.apply(x)


def breaking():
    """The way back makes the small layers' gradients, which wait for the large one's, and then breaks off."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), Between(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_backward_that_breaks_off_has_made_goes_with_it(dtype, launches):
    """No memory of it is left, and no later pass counts it, whoever keeps the error."""
    model, dense = breaking(), []
    for one in model.parameters():  # before ours, so that it sees what ours takes
        one.register_post_accumulate_grad_hook(lambda param: dense.append(weakref.ref(param.grad)))
    optimizer, handle = wrapped(model, dtype, loss_scale=4.0)  # so that all layers have vectors apart
    x = torch.randn(4, 64)
    Breaks.broken = True
    with pytest.raises(ArithmeticError) as kept:
        handle.scale(model(x).square().sum()).backward()
    Breaks.broken = False
    assert len(dense) == 4
    assert all(one() is None for one in dense)
    assert not launches
    assert grads(handle) == [None] * 6
    other = breaking()
    _, fresh = wrapped(other, dtype, loss_scale=4.0)
    for one in (model, other):
        handle.scale(one(x).square().sum()).backward()
    same(grads(handle), grads(fresh))
    optimizer.step()
    assert kept.value.args == ("broken off",)


@pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_that_was_cast_is_refused_in_backward(cast):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    wrapped(model, torch.float32)
    model.to(cast)
    with pytest.raises(StateMismatchError, match=rf"was torch.float32 on cpu when wrapped and is {cast}"):
        model(torch.randn(4, 64, dtype=cast)).sum().backward()


class Shared(nn.Module):
    """One layer used inside of a checkpointed part twice, and outside of it: before, or after."""

    def __init__(self, reentrant, early):
        super().__init__()
        self.early = early
        torch.manual_seed(0)
        self.wide, self.layer, self.head = nn.Linear(16, 64), nn.Linear(16, 16), nn.Linear(16, 4)
        self.reentrant = reentrant

    def inner(self, x):
        return torch.tanh(self.layer(x))

    def forward(self, x):
        x = torch.relu(self.wide(x)[:, :16]) * (self.layer(x) if self.early else 1)
        for _ in range(2):
            x = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return self.head(x if self.early else self.inner(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_backward_inside_of_backward_counts_everything_in_order(monkeypatch, reentrant, early, dtype):
    def life():
        model = Shared(reentrant, early)
        optimizer, handle = wrapped(model, dtype)
        for step in range(3):
            for part in range(2):
                x = torch.randn(4, 16, generator=torch.Generator().manual_seed(2 * step + part))
                model(x.requires_grad_()).float().square().mean().backward()
            found = grads(handle)
            optimizer.step()
            optimizer.zero_grad()
        return [*found, *model.parameters()]

    same(*both(monkeypatch, life))


class Inside(torch.autograd.Function):
    """A backward pass of its own within one, which may break off."""

    @staticmethod
    def forward(ctx, x, body):
        ctx.save_for_backward(x)
        ctx.body = body
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            loss = ctx.body(x.detach().requires_grad_()).square().sum()
        with suppress(ArithmeticError):
            loss.backward()
        return gradient, None


@pytest.mark.parametrize("broken", [True, False])
def test_an_inner_pass_that_breaks_off_takes_nothing_of_the_outer_one(monkeypatch, broken):
    """That one goes on; of the inner one, what waited is gone."""
    monkeypatch.setattr(Breaks, "broken", broken)
    model = nn.ModuleDict({"inner": breaking(), "first": nn.Linear(64, 64), "last": nn.Linear(64, 8)})
    _, handle = wrapped(model, torch.float32, loss_scale=1.0)
    hidden = model["first"](torch.randn(4, 64)).relu()
    model["last"](Inside.apply(hidden, model["inner"])).sum().backward()
    found = handle.engine.pending()
    names = {name.split(".")[0] for name in found}
    assert names == ({"first", "last"} if broken else {"first", "last", "inner"})
    expected = hidden.detach().sum(0).expand(8, 64) * handle.masks()["last.weight"]
    assert torch.allclose(found["last.weight"], expected, rtol=1e-5)


def transposed(gradient):
    return gradient.t().contiguous().t()


def negative(gradient):
    """Memory holds the opposite, and a flag of the tensor says so."""
    return torch._neg_view(gradient.neg())


def part(gradient):
    whole = torch.zeros(3, *gradient.shape, dtype=gradient.dtype)
    whole[1] = gradient
    return whole[1]


def nothing(gradient):
    return torch._efficientzerotensor(gradient.shape, dtype=gradient.dtype)


def sparse(gradient):
    return gradient.to_sparse()


class Odd(torch.autograd.Function):
    """A weight, whose gradient comes in another guise."""

    @staticmethod
    def forward(ctx, weight, guise):
        ctx.guise = guise
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.guise(gradient), None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("guise", [transposed, negative, part, nothing, sparse])
def test_a_gradient_in_another_guise_is_what_it_is(monkeypatch, guise, dtype):
    def life():
        torch.manual_seed(0)
        model = nn.ParameterDict({"pruned": torch.randn(24, 16), "whole": torch.randn(24, 16)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mask = torch.rand(24, 16) > 0.5
        handle = samo.wrap(model, optimizer, {"pruned": mask}, dtype=dtype, loss_scale=4.0)
        x = torch.randn(5, 16, dtype=dtype)
        for _ in range(2):
            found = sum((x @ Odd.apply(one, guise).t()).square().sum() for one in model.values())
            found.backward()
        return grads(handle)

    one, other = both(monkeypatch, life)
    same(one, other)
    assert any(found.any() for found in one) == (guise is not nothing)


def test_sparse_embeddings_and_numbers_without_dimensions(monkeypatch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(20, 8, sparse=True)
            self.scale, self.head = nn.Parameter(torch.tensor(2.0)), nn.Linear(8, 4)

        def forward(self, tokens):
            return self.head(self.table(tokens) * self.scale)

    def life():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.bfloat16, embeddings=True)
        for step in range(3):
            for _ in range(2):
                model(torch.tensor([1, 5, 5, step])).square().sum().backward()
            found = grads(handle)
            optimizer.step()
            optimizer.zero_grad()
        return [*found, *model.parameters()]

    same(*both(monkeypatch, life))


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_layers_whose_memory_runs_in_another_order_than_their_vectors(monkeypatch, dtype):
    def life():
        model = conv().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mask = {"head.weight": torch.rand(5, 16, generator=torch.Generator().manual_seed(0)) > 0.5}
        handle = samo.wrap(model, optimizer, mask, dtype=dtype, loss_scale=2.0)
        for step in range(2):
            handle.scale(loss_of(model, step)).backward()
        return grads(handle)

    same(*both(monkeypatch, life))


@pytest.mark.parametrize("write", ["strided", "negative"])
def test_a_gradient_that_somebody_wrote_is_added_to_as_it_is(monkeypatch, write):
    def life():
        torch.manual_seed(0)
        model = nn.Linear(16, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.bfloat16)
        for one in handle.parameters():
            values = torch.arange(2.0 * one.numel())[::2].view(one.shape)
            one.grad = negative(values) if write == "negative" else values
        model(torch.ones(2, 16)).sum().backward()
        return grads(handle)

    same(*both(monkeypatch, life))


@pytest.mark.parametrize("way", ["pending", "parameters"])
def test_whoever_looks_in_the_middle_of_a_backward_sees_all_that_it_has_made(monkeypatch, way):
    def life():
        model, seen, made = gpt(), [], set()
        _, handle = wrapped(model)
        names = {slot.master: slot.name for slot in handle.engine.slots}
        for name, one in model.named_parameters():
            one.register_post_accumulate_grad_hook(lambda _, name=name: made.add(name))

        def look(_):
            if way == "pending":
                found = handle.engine.pending()
            else:
                found = {names[one]: one.grad for one in handle.parameters() if one.grad is not None}
            assert set(found) == made
            seen.extend(one.clone() for one in found.values())

        for one in model.parameters():
            one.register_hook(look)
        loss_of(model, 0).backward()
        return [*seen, *grads(handle)]

    same(*both(monkeypatch, life))


def test_a_step_that_backward_itself_takes_uses_all_that_was_made(monkeypatch):
    """As an optimizer in backward does, by a hook of the parameter whose gradient comes last."""

    def life():
        model = gpt()
        optimizer, handle = wrapped(model)
        last = []
        for one in model.parameters():
            one.register_post_accumulate_grad_hook(last.append)
        loss_of(model, 0).backward()
        optimizer.zero_grad()
        final = last[-1]

        def step(_):
            optimizer.step()
            optimizer.zero_grad()

        final.register_post_accumulate_grad_hook(step)
        for seed in range(3):
            loss_of(model, seed).backward()
        assert grads(handle) == [None] * len(list(model.parameters()))
        return list(model.parameters())

    same(*both(monkeypatch, life))


def test_a_graph_of_the_gradients_changes_none_of_them(monkeypatch):
    def life():
        model = conv()
        optimizer, handle = wrapped(model, torch.float32, loss_scale=1.0)
        loss_of(model, 0).backward(create_graph=True)
        assert not any(one.grad.requires_grad for one in handle.parameters())
        found = grads(handle)
        optimizer.step()
        return [*found, *model.parameters()]

    with pytest.warns(UserWarning, match="create_graph"):
        same(*both(monkeypatch, life))
    gc.collect()


@pytest.mark.filterwarnings("default")  # of what Dynamo imports
@pytest.mark.parametrize("compiler", [torch.compile(backend="eager"), lambda graph: graph])
def test_compiled_autograd_has_layers_compressed_one_by_one(monkeypatch, launches, compiler):
    from torch._dynamo import compiled_autograd

    def life():
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer, handle = wrapped(model)
        x = torch.randn(4, 16)
        for _ in range(2):
            with compiled_autograd._enable(compiler):
                model(x).square().sum().backward()
            found = grads(handle)
            optimizer.step()
        return [*found, *model.parameters()]

    same(*both(monkeypatch, life))
    assert not launches


def test_a_gradient_that_comes_outside_of_backward_is_compressed_at_once(launches):
    model = nn.Linear(16, 8)
    _, handle = wrapped(model, torch.float32)
    slot = next(one for one in handle.engine.slots if one.name == "weight")
    for _ in range(2):
        model.weight.grad = torch.ones(8, 16)
        handle.engine.produced(slot)
    assert torch.equal(slot.master.grad, torch.full_like(slot.master, 2.0))
    assert not launches


@pytest.mark.parametrize("guise", [torch.Tensor.clone, sparse])
def test_a_layer_that_comes_often_in_one_pass_is_added_up_in_order(guise):
    """In this order the first one is lost beside the second."""
    model = breaking()
    _, handle = wrapped(model, torch.float32)
    engine = handle.engine
    slot = next(one for one in engine.slots if one.param is model[2].weight)

    def more(_):
        with torch.no_grad():
            for value in (1.0, 1e8, -1e8):
                gradient = torch.full((8, 64), value)
                slot.param.grad = gradient if value == 1 else guise(gradient)
                engine.produced(slot)

    model[4].bias.register_hook(more)
    model[1].register_full_backward_pre_hook(lambda *_: seen.update(engine.pending()))
    seen, weight = {}, model[2].weight.detach().clone()
    model(torch.zeros(4, 64)).sum().backward()
    assert torch.equal(weight, model[2].weight)
    plain = breaking()
    plain.load_state_dict(model.state_dict())
    plain(torch.zeros(4, 64)).sum().backward()
    mask = handle.masks()["2.weight"]
    assert torch.equal(seen["2.weight"], plain[2].weight.grad * mask)


def test_passes_of_two_threads_add_up(launches):
    """Both make gradients of the same layers; which comes first does not matter to a sum of two."""
    model = gpt()
    _, handle = wrapped(model)
    expected = []
    for seeds in ([0], [1], [0, 1]):
        losses = [loss_of(model, seed, rows=2) for seed in seeds]
        together = [threading.Thread(target=loss.backward) for loss in losses]
        for one in together:
            one.start()
        for one in together:
            one.join()
        expected.append(grads(handle))
        for one in handle.parameters():
            one.grad = None
    same([one + other for one, other in zip(*expected[:2], strict=True)], expected[2])
    assert max(launches) > 1


def test_the_peak_of_a_backward_rises_by_less_than_the_limit(monkeypatch):
    def peak():
        with Storages() as storages:
            torch.manual_seed(0)
            model = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(40)))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            samo.wrap(model, optimizer, sparsity=0.9, dtype=torch.float32)
            for _ in range(2):
                optimizer.zero_grad()
                gc.collect()
                storages.peak = storages.live
                model(torch.randn(2, 128)).sum().backward()
            return storages.peak

    held, before = both(monkeypatch, peak)
    layer = 128 * 128 * 4
    assert before < held <= before + 40 * layer / 16 + 16 * 1024
