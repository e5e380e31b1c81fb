"""Gradients that wait for one kernel: whatever happens to a backward pass, what layers get one by one.

Without a device Triton's interpreter runs the kernel on the processor's memory.
"""

import gc
import threading
import weakref
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.memory import samo
from tests.memory.gathered import DTYPES, both, counted, grads, same, wrapped
from tests.memory.samo_nets import conv, gpt, loss_of
from tests.memory.storages import Storages


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    return counted(monkeypatch)


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


@pytest.mark.parametrize("way", ["pending", "parameters"])
def test_whoever_looks_in_the_middle_of_a_backward_sees_all_that_it_has_made(monkeypatch, way):
    def life():
        model, seen, made = gpt(), [], set()
        _, handle = wrapped(model)
        names = {slot.master: slot.name for slot in handle.engine.slots}
        for name, one in model.named_parameters():
            one.register_post_accumulate_grad_hook(lambda _, name=name: made.add(name))

        def look(_):
            with torch.device("meta"):  # whatever the default is
                pending = handle.engine.pending() if way == "pending" else {}
                trained = list(handle.parameters())
            found = pending or {names[one]: one.grad for one in trained if one.grad is not None}
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
def test_compiled_autograd_has_layers_compressed_one_by_one(launches, compiler):
    from torch._dynamo import compiled_autograd

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    _, handle = wrapped(model)
    x = torch.randn(4, 16)
    with compiled_autograd._enable(compiler):
        model(x).square().sum().backward()
    found = grads(handle)
    assert not launches
    for one in handle.parameters():
        one.grad = None
    model(x).square().sum().backward()
    assert launches
    same(found, grads(handle))


def test_a_gradient_that_comes_outside_of_backward_is_compressed_at_once(launches):
    model = nn.Linear(16, 8)
    _, handle = wrapped(model, torch.float32)
    slot = next(one for one in handle.engine.slots if one.name == "weight")
    for _ in range(2):
        model.weight.grad = torch.ones(8, 16)
        handle.engine.produced(slot)
    assert torch.equal(slot.master.grad, torch.full_like(slot.master, 2.0))
    assert not launches


@pytest.mark.parametrize("guise", [torch.Tensor.clone, torch.Tensor.to_sparse])
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


def test_passes_of_two_threads_at_once_keep_out_of_each_others_way(launches):
    """Each trains one of two nets that share an optimizer."""
    model = nn.ModuleList([gpt(0), gpt(1)])
    _, handle = wrapped(model)
    found = []
    for together in (True, False):
        threads = [threading.Thread(target=loss_of(one, 0, rows=2).backward) for one in model]
        for one in threads:
            one.start()
            if not together:
                one.join()
        for one in threads:
            one.join()
        found.append(grads(handle))
        for one in handle.parameters():
            one.grad = None
    same(*found)
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
