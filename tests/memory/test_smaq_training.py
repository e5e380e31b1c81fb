"""SmaQ around a training: what is coded when, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dynaquant_core.errors import ConfigError
from dynaquant_core.memory import smaq
from tests.memory.nets import OFF, bits, conv_net, images, mlp, rows, train


def levels_of(tensor):
    return tensor.unique().numel()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def test_weights_and_moments_lie_on_levels_after_a_step_and_gradients_before_it():
    model = mlp()
    optimizer, seen = adamw(model), []
    hooks = optimizer.register_step_pre_hook
    with smaq.apply(model, optimizer):
        hooks(lambda *_: seen.append(levels_of(model[0].weight.grad)))
        train(model, optimizer, rows())
    state = optimizer.state[model[0].weight]
    assert seen[0] <= 32 + 128 + 1
    for tensor in (model[0].weight, state["exp_avg"], state["exp_avg_sq"]):
        assert levels_of(tensor) <= 32 + 128 + 1
    assert (state["exp_avg_sq"] >= 0).all()
    assert levels_of(model[0].bias) > 32, "small tensors are left alone"


@pytest.mark.parametrize("by", ["place", "keyword"])
def test_gradients_that_a_closure_makes_are_coded(by):
    """As those of LBFGS, and of Lightning, which makes them inside of ``step``."""
    model, (inputs, labels) = mlp(), rows()
    optimizer, counts = torch.optim.SGD(model.parameters(), lr=0.1), []

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        counts.append(levels_of(model[0].weight.grad))
        return loss

    with smaq.apply(model, optimizer, **OFF | {"gradients": True}) as handle:
        for _ in range(2):
            loss = optimizer.step(closure) if by == "place" else optimizer.step(closure=closure)
            assert loss.item() > 0
            assert levels_of(model[0].weight.grad) <= 32 + 2 * 64 < counts[-1]
    assert handle.report()["gradient"]["tensors"] == 2 * 2, "of both wide layers, once a step"


@pytest.mark.parametrize(
    ("switch", "role"),
    [
        ("gradient_maps", "gradient map"),
        ("gradients", "gradient"),
        ("weights", "weight"),
        ("optimizer_state", "state"),
    ],
)
def test_each_switch_codes_its_own_and_nothing_else(switch, role):
    model = mlp()
    optimizer = adamw(model)
    with smaq.apply(model, optimizer, **OFF | {switch: True}) as handle:
        train(model, optimizer, rows())
    assert set(handle.report()) == {role}
    assert handle.report()[role]["benefit"] > 3


def test_inline_lets_the_next_layer_see_the_decoded_map():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8), nn.Identity())
    seen = []
    with smaq.apply(model, **OFF | {"feature_maps": "inline"}, smallest=64):
        model[1].register_forward_pre_hook(lambda module, args: seen.append(levels_of(args[0])))
        model[2].register_forward_pre_hook(lambda module, args: seen.append(levels_of(args[0])))
        model(torch.randn(100, 64)).sum().backward()
    assert max(seen) <= 32 + 128
    assert model[0].weight.grad.norm() > 0, "the gradient passes"


def test_a_gradient_map_is_what_the_next_backward_sees():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    seen = []
    with smaq.apply(model, **OFF | {"gradient_maps": True}, smallest=64):
        hidden = model[0](torch.randn(100, 64))
        out = model[1](hidden)
        out.register_hook(lambda gradient: seen.append(levels_of(gradient)))
        model[2](out).square().sum().backward()
    assert seen == [pytest.approx(160, abs=60)]


@pytest.mark.parametrize("feature_maps", ["saved", "inline"])
def test_models_with_in_place_layers_and_shared_maps_train(feature_maps):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1800, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with smaq.apply(model, optimizer, feature_maps=feature_maps):
        losses = [train(model, optimizer, images()) for _ in range(8)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("form", smaq.FORMATS)
def test_a_conv_net_learns_in_every_format(form):
    model = conv_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    with smaq.apply(model, optimizer, **OFF | {"feature_maps": "saved"}, format=form):
        losses = [train(model, optimizer, images()) for _ in range(6)]
    assert losses[-1] < 0.9 * losses[0]


def test_the_adam_step_stays_bounded_because_second_moments_do():
    """Coded as values, small second moments would become anything and steps divide by their root."""
    model = mlp()
    optimizer = adamw(model)
    with smaq.apply(model, optimizer, **OFF | {"optimizer_state": True}):
        before = bits(model.parameters())
        for step in range(20):
            train(model, optimizer, rows(step))
    moved = max((new - old).abs().max().item() for new, old in zip(model.parameters(), before, strict=True))
    assert moved < 20 * 1e-3 * 3, "a step of Adam moves a weight by about its learning rate"


@pytest.mark.parametrize(("size", "unused", "padded"), [(500, 1, True), (2000, 10, False)])
def test_rows_of_an_embedding_that_nothing_used_stay_and_the_others_steps_are_bounded(size, unused, padded):
    """Moments of zero: a first one that came back as a little more would be divided by next to nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(size, 32, padding_idx=0 if padded else None), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    before, draw = bits(model.parameters())[0], torch.Generator().manual_seed(1)
    with smaq.apply(model, optimizer, **OFF | {"optimizer_state": True}):
        for _ in range(40):
            tokens = torch.randint(unused, size, (32, 16), generator=draw)
            tokens[:, 12:] = 0 if padded else tokens[:, 12:]
            loss = nn.functional.cross_entropy(model(tokens).mean(1), tokens[:, 0] % 8)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    after, moment = model[0].weight.detach(), optimizer.state[model[0].weight]["exp_avg"]
    assert torch.equal(after[:unused], before[:unused])
    assert not moment[:unused].any()
    assert (after - before).abs().max() < 40 * 1e-3 * 3, "a step of Adam moves a weight by its learning rate"


def test_the_trainings_own_random_stream_is_untouched():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    torch.set_rng_state(before)
    with smaq.apply(model, adamw(model)):
        model(torch.ones(64, 64)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_frozen_weights_do_not_wander():
    model = mlp()
    model[0].weight.requires_grad_(False)
    optimizer, held = adamw(model), model[0].weight.clone()
    with smaq.apply(model, optimizer):
        for step in range(3):
            train(model, optimizer, rows(step))
    assert torch.equal(model[0].weight, held)


def test_a_gradient_that_is_not_finite_reaches_the_optimizer_as_it_is():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with smaq.apply(model, optimizer, **OFF | {"gradients": True}) as handle:
        train(model, optimizer, rows())
        model[0].weight.grad[0, 0] = float("inf")
        optimizer.step()
    assert handle.report()["gradient"]["not_finite"] == 1
    assert model[0].weight[0, 0].isinf()


def test_sparse_gradients_are_left_alone():
    model = nn.Embedding(200, 32, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with smaq.apply(model, optimizer, **OFF | {"gradients": True}) as handle:
        model(torch.arange(50)).sum().backward()
        optimizer.step()
    assert handle.report() == {}


def test_statistics_are_used_again_as_often_as_asked():
    model, measured = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with smaq.apply(model, optimizer, **OFF | {"weights": True}, reuse=2) as handle:
        for step in range(6):
            train(model, optimizer, rows(step))
            known = handle.state_dict()["statistics"]
            measured.append(known.get("weight/0.0/(96, 64)", [None])[0])
    first, again, gone, anew, *_ = measured
    assert first == again
    assert gone is None, "its uses were up"
    assert anew not in {None, first}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"feature_maps": "packed"}, "feature_maps must be one of"),
        ({"weights": 2}, "weights must be one of"),
        ({"format": "smaqq"}, "did you mean 'smaq'"),
        ({"reuse": -1}, "reuse must be a whole number from 0"),
        ({"smallest": 0}, "smallest must be a whole number from 1"),
        ({"generator": 3}, "expected a torch.Generator"),
        ({"optimizer": None}, "take the optimizer"),
        ({"optimizer": 3}, "is no torch.optim.Optimizer"),
        ({"optimizer": [3]}, "is no torch.optim.Optimizer"),
        ({"model": "net"}, "model must be a module"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_hooked(given, told):
    model = mlp()
    words = {"model": model, "optimizer": adamw(model)} | given
    with pytest.raises(ConfigError, match=told):
        smaq.apply(words.pop("model"), words.pop("optimizer"), **words)
    assert not model._forward_pre_hooks
    assert not any(module._forward_hooks for module in model.modules())
    smaq.apply(model, adamw(model)).remove()


def test_a_second_one_is_refused():
    model = mlp()
    optimizer = adamw(model)
    with smaq.apply(model, optimizer):
        with pytest.raises(ConfigError, match="Sequential is coded already"):
            smaq.apply(model, adamw(model))
        with pytest.raises(ConfigError, match="AdamW is coded already"):
            smaq.apply(mlp(), optimizer)
    smaq.apply(model, optimizer).remove()


def test_several_optimizers():
    model = mlp()
    both = {"body": adamw(model[0]), "head": torch.optim.SGD(model[2].parameters(), lr=0.1)}
    with smaq.apply(model, both, **OFF | {"gradients": True}) as handle:
        model(rows()[0]).sum().backward()
        for optimizer in both.values():
            optimizer.step()
    assert handle.report()["gradient"]["tensors"] == 2


def test_what_a_ranks_own_maps_draw_does_not_change_its_weights():
    """Under data parallelism gradients agree and maps do not: weights must be rounded alike all the same."""

    def weights(forwards):
        model = mlp()
        optimizer = adamw(model)
        with smaq.apply(model, optimizer, **OFF | {"feature_maps": "saved", "weights": True}):
            for step in range(forwards):
                model(rows(step)[0])
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.1)
            optimizer.step()
        return bits(model.parameters())

    assert all(torch.equal(*pair) for pair in zip(weights(1), weights(3), strict=True))


def test_a_centred_step_stays_finite():
    """It takes the root of a mean of squares less a squared mean: rounded apart, of less than nothing."""
    model = mlp(act=nn.Tanh)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, centered=True)
    with smaq.apply(model, optimizer) as handle:
        losses = [train(model, optimizer, rows()) for _ in range(60)]
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert losses[-1] < losses[0]
    assert "state" not in handle.report(), "neither of the two is rounded"


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_rounds_nothing(fused):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(factor):
        optimizer.zero_grad()
        scaler.scale(model(rows()[0]).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    def held():
        moments = [optimizer.state[one]["exp_avg"] for one in model.parameters()]
        return [one.detach().clone() for one in (*model.parameters(), *moments)]

    with smaq.apply(model, optimizer):
        step(1.0)
        before = held()
        step(math.inf)
        assert all(torch.equal(one, other) for one, other in zip(before, held(), strict=True))
        step(1.0)
        assert not torch.equal(before[0], held()[0])
