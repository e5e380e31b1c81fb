"""SmaQ beside what else a training does: penalties on gradients, checkpointing, autocast, SAMO, skips."""

from __future__ import annotations

import copy
import functools
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dynaquant_core.errors import ConfigError, GradientError
from dynaquant_core.memory import samo, smaq
from tests.memory.nets import OFF, mlp, rows, train

SAVED, INLINE, GRADIENTS = (
    OFF | one for one in ({"feature_maps": "saved"}, {"feature_maps": "inline"}, {"gradient_maps": True})
)


def gradients_of(model):
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def error(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


# -- penalties on gradients -----------------------------------------------------------------------


def penalty(form, **switches):
    model, inputs = mlp(act=nn.Tanh), rows()[0].requires_grad_()
    handle = smaq.apply(model, **switches, format=form, smallest=16) if switches else None
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    (slope.norm(dim=1) - 1).square().mean().backward()
    if handle:
        handle.remove()
    return {name: one.grad for name, one in model.named_parameters()}


@pytest.mark.parametrize("switches", [SAVED, INLINE, GRADIENTS])
def test_a_penalty_on_gradients_reaches_the_weights(switches):
    """A coded gradient without a graph would cut the second backward pass, and nobody would be told."""
    wide = {"name": "smaq", "limit": 5.0}  # nothing is clamped, so that only rounding is left
    plain, exact, coded = penalty(None), penalty("fp32", **switches), penalty(wide, **switches)
    for name, wanted in plain.items():
        assert (exact[name] is None) == (coded[name] is None) == (wanted is None)
        if wanted is not None and wanted.count_nonzero():
            assert torch.allclose(exact[name], wanted, rtol=1e-4, atol=1e-7)
            assert error(coded[name], wanted) < 0.2


# -- activation checkpointing ---------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, used):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 4)
        self.body = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.used = used

    def forward(self, inputs):
        hidden = self.first(inputs).tanh()
        hidden = checkpoint(self.body, hidden, use_reentrant=False) if self.used else self.body(hidden)
        return self.last(hidden)


def test_activation_checkpointing_inside_of_the_model():
    """What it computes again is not packed, nor what it computes that from, and training goes on."""
    inputs, labels = rows()
    plain = Checkpointed(False)
    functional.cross_entropy(plain(inputs), labels).backward()
    counts = []
    for used in (False, True):
        model = Checkpointed(used)
        with smaq.apply(model, **SAVED) as handle:
            functional.cross_entropy(model(inputs), labels).backward()
            counts.append(handle.report()["saved"]["tensors"])
            assert error(gradients_of(model), gradients_of(plain)) < 0.25
            assert handle.report()["memory"]["live"] == 0
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            losses = [train(model, optimizer, (inputs, labels)) for _ in range(8)]
        assert losses[-1] < losses[0]
    assert counts[1] < counts[0]


class Experts(nn.Module):
    """Each row goes to one of four, by its values; how many go where is the shape of what is saved."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))

    def forward(self, inputs):
        weights, chosen = self.gate(inputs).softmax(-1).max(-1)
        out = inputs
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(inputs[rows]) * weights[rows, None])
        return out


class Places(nn.Module):
    """Takes rows by numbers that are floats, as those of images in boxes."""

    def forward(self, inputs):
        numbers = inputs[:, 0].detach().argsort().float()  # made inside of the model
        return self.take(inputs, numbers)

    def take(self, inputs, numbers):
        return inputs[numbers.round().long()].tanh()


class Blocks(nn.Module):
    """A layer, a block whose part is computed again, and a layer."""

    def __init__(self, build, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block, self.last = nn.Linear(64, 64), build(), nn.Linear(64, 4)
        part = "take" if build is Places else "forward"
        taken = getattr(self.block, part)
        again = functools.partial(checkpoint, taken, use_reentrant=reentrant)
        setattr(self.block, part, taken if reentrant is None else again)

    def forward(self, inputs):
        return self.last(self.block(self.first(inputs)))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("build", [Experts, Places])
def test_a_checkpointed_block_computes_again_from_what_it_was_given(build, reentrant):
    """From rounded values tokens went to other experts (`CheckpointError`) and places were there none."""
    inputs, labels = rows(count=1536)
    exact, found = Blocks(build, None), Blocks(build, reentrant)
    functional.cross_entropy(exact(inputs), labels).backward()
    with smaq.apply(found, **SAVED):
        functional.cross_entropy(found(inputs), labels).backward()
    wanted, near = (gradients_of(one.block if build is Experts else one.first) for one in (exact, found))
    torch.testing.assert_close(near, wanted)


@pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    reason="this torch does not tell who else takes what is saved; maps are packed then",
)
def test_checkpointing_around_the_whole_model_takes_what_it_saves():
    """It is computed again, so nothing is to be packed: the gradient is the exact one."""
    inputs, found = rows()[0].requires_grad_(), []
    for coded in (False, True):
        model = mlp()
        handle = smaq.apply(model, **SAVED, smallest=16) if coded else None
        out = checkpoint(model, inputs, use_reentrant=False)
        assert not handle or handle.report()["memory"]["live"] == 0
        out.square().sum().backward()
        assert not handle or "saved" not in handle.report()
        found.append(gradients_of(model))
        if handle:
            model(inputs).sum().backward()
            assert handle.report()["saved"]["tensors"] > 0, "called without, it is packed as ever"
            handle.remove()
    assert torch.equal(*found)


# -- dtypes and layouts ---------------------------------------------------------------------------


def test_autocast_in_bfloat16():
    def losses(coded):
        model = mlp()
        optimizer, batch, found = torch.optim.SGD(model.parameters(), lr=0.1), rows(), []
        handle = smaq.apply(model, optimizer, **OFF | coded) if coded else None
        for _ in range(6):
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.cross_entropy(model(batch[0]).float(), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        assert all(one.dtype == torch.float32 for one in model.parameters())
        return found, gradients_of(model), handle and handle.report()

    plain, exact, _ = losses({})
    coded, near, report = losses({"feature_maps": "saved", "gradient_maps": True})
    assert report["saved"]["benefit"] > 2.2, "of bfloat16, so half of what it is of float32"
    assert coded[0] == plain[0], "the forward pass is exact"
    assert coded[-1] < coded[0]
    assert error(near, exact) < 0.3


@pytest.mark.parametrize("layout", ["rows", "columns", "channels last"])
def test_casts_of_weights_by_autocast_are_exact_and_not_held(layout):
    """The gradient of a linear chain's input is made of weights alone."""
    torch.manual_seed(0)
    if layout == "channels last":
        model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Conv2d(32, 16, 3)).to(
            memory_format=torch.channels_last
        )
        inputs = torch.randn(2, 16, 8, 8)
    else:
        model, inputs = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 64)), torch.randn(20, 64)
    if layout == "columns":
        model[0].weight = nn.Parameter(torch.randn(64, 96).t())
    inputs.requires_grad_()

    def gradient():
        with torch.autocast("cpu", torch.bfloat16):
            output = model(inputs)
        return torch.autograd.grad(output.float().sum(), inputs)[0]

    exact = gradient()
    with smaq.apply(model, **OFF | {"feature_maps": "saved"}) as handle:
        assert torch.equal(gradient(), exact)
        assert handle.report()["saved"]["tensors"] == 2, (
            "the map between the layers, and the cast of the batch"
        )
        with torch.autocast("cpu", torch.bfloat16):
            output = model(inputs)
        with torch.no_grad():
            model[0].weight.mul_(2)
        with pytest.raises(GradientError, match="written to in place"):
            output.float().sum().backward()


def test_equal_weights_under_autocast_are_not_mistaken_for_each_other():
    """One that was stepped in the middle of backward is another one than its copy."""

    class Copies(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(64, 64, bias=False)
            self.first = copy.deepcopy(self.last)

        def forward(self, x):
            return self.last(self.first(x))

    def step(parameter):
        parameter.detach().sub_(0.01 * parameter.grad)
        parameter.grad = None

    def trained(*, packed):
        torch.manual_seed(0)
        model, inputs = Copies(), torch.randn(256, 64, requires_grad=True)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        with smaq.apply(model, **OFF | {"feature_maps": "saved"}) if packed else nullcontext():
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(inputs).float().square().mean()
            loss.backward()
        return inputs.grad

    exact = trained(packed=False)
    assert error(trained(packed=True), exact) < 0.1


def test_a_buffer_that_is_filled_again_before_backward_is_packed_under_autocast():
    model, buffer = mlp(), torch.randn(64, 64)
    with smaq.apply(model, **OFF | {"feature_maps": "saved"}):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(buffer).float().mean()
        buffer.zero_()
        loss.backward()
    with torch.inference_mode():
        held = torch.randn(64, 64)
    with smaq.apply(model, **OFF | {"feature_maps": "saved"}), torch.autocast("cpu", torch.bfloat16):
        model(held)


@pytest.mark.parametrize("switches", [SAVED, INLINE | {"gradient_maps": True}])
def test_nested_tensors_are_left_as_they_are(switches):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    rows_of = [torch.randn(20, 64), torch.randn(30, 64)]
    with smaq.apply(model, **switches) as handle:
        out = model(torch.nested.nested_tensor(rows_of, layout=torch.jagged))
        sum(one.sum() for one in out.unbind()).backward()
    assert not set(handle.report()) & {"map", "gradient map"}
    assert torch.allclose(model[2].bias.grad, torch.full((64,), 50.0))


# -- statistics that are used again ---------------------------------------------------------------


class Skipping(nn.Module):
    """Layers of very different scale, of which one may be skipped."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.skip = nn.ModuleList(nn.Linear(64, 64) for _ in range(4)), False

    def forward(self, inputs):
        for place, layer in enumerate(self.layers):
            if not (self.skip and place == 1):
                inputs = layer(inputs) * 10.0**place
        return inputs.square().mean()


@pytest.mark.parametrize("switches", [SAVED, INLINE])
def test_a_layer_that_is_skipped_passes_no_statistics_on_to_the_next(switches):
    found = []
    for reuse in (0, 3):
        model, inputs = Skipping(), rows()[0]
        with smaq.apply(model, **switches, reuse=reuse, format={"name": "smaq", "limit": 6.0}) as handle:
            model(inputs).backward()
            model.zero_grad()
            model.skip = True
            model(inputs).backward()
            assert len(handle.state_dict()["statistics"]) == (0 if not reuse else 4)
        found.append(gradients_of(model))
    assert error(found[1], found[0]) < 0.15


class Shared(nn.Module):
    """One rectifier for two maps of very different scale."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.act = nn.Linear(64, 64), nn.Linear(64, 64), nn.Tanh()

    def forward(self, inputs):
        hidden = self.act(self.one(inputs) * 1e-3)
        return self.act(self.other(hidden * 1e3))


@pytest.mark.parametrize("switches", [SAVED, INLINE])
def test_a_layer_that_serves_twice_has_statistics_for_each_place(switches):
    model = Shared()
    with smaq.apply(model, **switches, reuse=3) as handle:
        for _ in range(2):
            model(rows()[0]).sum().backward()
        known = {place: one for place, one in handle.state_dict()["statistics"].items() if "act" in place}
    spreads = sorted(std for _, std, _ in known.values())
    assert len(spreads) == 2
    assert spreads[0] < 0.01 < spreads[1]


# -- other handles --------------------------------------------------------------------------------


@pytest.mark.parametrize("inner_first", [True, False])
def test_a_part_and_the_whole_are_not_both_coded(inner_first):
    model = nn.Sequential(mlp(), nn.Linear(4, 4))
    first, second = (model[0], model) if inner_first else (model, model[0])
    with smaq.apply(first, **SAVED), pytest.raises(ConfigError, match="one inside of the other"):
        smaq.apply(second, **SAVED)
    smaq.apply(second, **SAVED).remove()
    with smaq.apply(model[0], **SAVED), smaq.apply(model[1], **SAVED):
        pass


def test_weights_of_a_model_under_samo_are_coded_if_smaq_comes_first_and_refused_if_it_comes_second():
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    handle = samo.wrap(model, optimizer, sparsity=0.2, dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"under samo.wrap.*call smaq.apply before samo.wrap"):
        smaq.apply(model, optimizer)
    smaq.apply(model, optimizer, weights=False).remove()
    handle.unwrap()
    with smaq.apply(model, optimizer):
        handle = samo.wrap(model, optimizer, sparsity=0.2, dtype=torch.float32)
        train(model, optimizer, rows())
        assert model[0].weight.unique().numel() <= 32 + 128 + 1, "what the model computes with is coded"
        assert torch.equal(model[0].weight != 0, handle.masks()["0.weight"])


def test_a_cast_that_is_written_to_is_not_made_again():
    """As straight-through estimators do: signs of weights forward, gradients as if those were whole."""

    class Signs(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Linear(64, 64)
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, inputs):
            weight = self.weight.to(torch.bfloat16)
            with torch.no_grad():
                weight.sign_()
            return (self.first(inputs).to(torch.bfloat16) @ weight.t()).float()

    found = []
    for coded in (False, True):
        model = Signs()
        handle = smaq.apply(model, **SAVED, smallest=16) if coded else None
        model(rows()[0]).square().mean().backward()
        found.append(model.first.weight.grad)
        if handle:
            handle.remove()
    exact, near = found
    assert float((near - exact).norm() / exact.norm()) < 0.1
