"""No step is wider than its tensor's own spread, so that restored weights do not grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from dynaquant_core.config import LatticeConfig
from dynaquant_core.files import load_file, save_file
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.methods.lattice.bound import Bound
from dynaquant_core.store import CheckpointStore
from dynaquant_core.training import Checkpointer
from tests.methods.conftest import layers, trained
from tests.methods.streams import store

LATTICE = Lattice()
MAKE = Lattice.__init__


@pytest.mark.parametrize("restored", [False, True])
def test_what_is_restored_is_hardly_larger_than_what_was_saved(restored):
    """Weights behind a normalisation that grew would learn more slowly, at every restore a little more."""
    first = state = layers()
    ref = store(LATTICE, state, None, LatticeConfig(scale=8.0))[2 if restored else 1]
    for seed in range(3):
        state = trained(state, seed=seed)
        _, held, read, _ = store(LATTICE, state, ref, LatticeConfig(scale=8.0 if seed % 2 else 6.0))
        for name, tensor in read.state().items():
            if tensor.numel() > 4000:
                grown = tensor.double().square().sum() / state[name].double().square().sum()
                most = 2.1 / 48 if name == "wte.weight" else 1.6 / 12  # and five deviations of the sum
                assert 1.01 < grown < 1 + most, name
        ref = read if restored else held
    free = Lattice(max_step=None).draft(first, None, LatticeConfig(scale=8.0), Hints())
    grown = dict(free.decoded)["conv.weight"].square().sum() / first["conv.weight"].square().sum()
    assert grown > 2, "without the bound the scale decides"


def grown(method, state, hints):
    """Energy of what a reader gets of each large tensor over the tensor's own, at the boldest scale."""
    decoded = dict(method.draft(state, None, LatticeConfig(scale=8.0), hints).decoded)
    return {
        name: float(decoded[name].double().square().sum() / tensor.double().square().sum())
        for name, tensor in state.items()
        if tensor.numel() > 4000
    }


def test_matrices_under_adam_are_free_and_convolutions_and_embeddings_have_half_the_step():
    """Noise of those costs a run more under Adam than without second moments; of other matrices, nothing."""
    state = layers()
    every = Hints(fisher=dict.fromkeys(state, 1e-6))
    bounded, free = grown(LATTICE, state, Hints()), grown(LATTICE, state, every)
    assert all(1.01 < energy < 1.14 for energy in bounded.values())
    for name, energy in free.items():
        half = state[name].dim() > 2 or name == "wte.weight"
        assert energy < 1 + 2.1 / 48 if half else energy > 1.14, name
    assert all(energy < 1.14 for energy in grown(Lattice(max_step_of="all"), state, every).values())
    told = Hints(fisher=every.fisher, layer_types=dict.fromkeys(state, "convolution"))
    assert all(energy < 1.14 for energy in grown(LATTICE, state, told).values())


@pytest.mark.parametrize("name", ["users", "weight"])
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD])
def test_parameters_that_are_not_called_weights_of_a_layer_are_tables(tmp_path, make, name):
    """Factors that no `nn.Embedding` holds: their rows see few gradients, whatever trains them."""
    torch.manual_seed(0)
    model = nn.Module()
    model.register_parameter(name, nn.Parameter(torch.randn(200, 64)))
    optimizer = make(model.parameters(), 1e-3)
    (table,) = model.parameters()
    table[torch.arange(8)].square().sum().backward()
    optimizer.step()
    before = table.detach().clone()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    save_file(state, tmp_path / "it.dq", model=model, config=LatticeConfig(scale=8.0))
    noise = load_file(tmp_path / "it.dq")["model"][name] - before
    assert (float(noise.square().mean()) < 1.2 / 48) == (name == "users")


@pytest.mark.parametrize("names", [("one",), ("one", "two"), ("one", "average")])
def test_of_several_models_evaluate_may_see_but_one_so_none_is_free(tmp_path, names):
    """An average, which no optimizer trains, makes no second one."""
    torch.manual_seed(0)
    models = {name: nn.Linear(64, 64) for name in names}
    trained = [weight for name in names if name != "average" for weight in models[name].parameters()]
    optimizer = torch.optim.AdamW(trained)
    sum(model(torch.randn(32, 64)).square().mean() for model in models.values()).backward()
    optimizer.step()
    state = {name: model.state_dict() for name, model in models.items()}
    save_file(
        state | {"optimizer": optimizer.state_dict()},
        tmp_path / "it.dq",
        model=models,
        config=LatticeConfig(scale=8.0),
    )
    stored = load_file(tmp_path / "it.dq")["one"]["weight"]
    grown = float(stored.square().sum() / state["one"]["weight"].square().sum())
    assert grown < 1 + 1.6 / 12 if "two" in names else grown > 2


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: nn.ModuleDict({"net": model})])
def test_linear_layers_beside_a_batch_norm_are_bounded_under_adam(tmp_path, wrap):
    """Only the direction of their weights counts; a transformer's, before a layer norm, are free."""
    torch.manual_seed(0)
    normed, free = nn.BatchNorm1d(64), nn.LayerNorm(64)
    head, tail = nn.Linear(64, 64), nn.Linear(64, 64)
    model = wrap(nn.Sequential(nn.Sequential(head, normed, nn.ReLU()), nn.Sequential(tail, free)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    nn.Sequential(head, normed, nn.ReLU(), tail, free)(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
    before = [layer.weight.detach().clone() for layer in (head, tail)]
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    save_file(state, tmp_path / "it.dq", config=LatticeConfig(scale=8.0))
    model.load_state_dict(load_file(tmp_path / "it.dq")["model"])
    bounded, unbounded = (
        float(layer.weight.detach().square().sum() / old.square().sum())
        for layer, old in zip((head, tail), before, strict=True)
    )
    assert bounded < 1 + 1.6 / 48 < 2 < unbounded


def test_search_tries_bold_scales_only_where_they_change_something():
    matrices = {name: tensor for name, tensor in layers().items() if tensor.dim() == 2}
    space = LATTICE.space(gradients=False)
    known = Hints(fisher=dict.fromkeys(matrices, 1e-6))
    assert LATTICE.fitted(space, matrices, known) == space
    low = LATTICE.fitted(space, matrices, Hints()).axes["scale"]
    assert low == space.axes["scale"][: len(low)]
    assert low[-1] <= 2 < space.axes["scale"][len(low)]
    kernels = {name: tensor for name, tensor in layers().items() if tensor.dim() == 4}
    under_adam = LATTICE.fitted(space, kernels, Hints(fisher=dict.fromkeys(kernels, 1e-6)))
    assert under_adam.axes["scale"][-1] <= 1 < low[-1], "their bound is half of it"
    narrow = replace(space, axes={"scale": (5.0,)})
    assert LATTICE.fitted(narrow, matrices, Hints()) == narrow, "a scale that was fixed is kept"


def unbound(method, **options):
    """Makes the method as it was: without a bound, and without an option that says so; noise by no cost."""
    MAKE(method, **options)
    method._bound = Bound()
    method.space = lambda gradients: replace(Lattice.space(method, gradients=gradients), max_noise=1000.0)


def live(folder, steps):
    """Trains a small network to a step, restored first if there is anything; its checkpoints."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    inputs, truth = torch.randn(256, 64), torch.randn(256, 10)

    def loss():
        return nn.functional.mse_loss(model(inputs), truth)

    with Checkpointer(
        folder, model, optimizer, every=5, evaluate=lambda: loss().item(), threshold=0.5
    ) as saves:
        for _ in range(saves.restore(), steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            saves.step()
    found = CheckpointStore(folder)
    return [found.info(step) for step in found.steps()]


def test_a_run_from_before_the_bound_goes_on_with_it(tmp_path, monkeypatch):
    """Its scale is not on the axis any more: the search must neither fail nor write a key."""
    with monkeypatch.context() as before:
        before.setattr(Lattice, "__init__", unbound)
        assert live(tmp_path, 10)[-1].config.scale > 2
    later = live(tmp_path, 20)
    assert [info.kind for info in later] == ["key", "delta", "delta", "delta"]
    assert later[-1].config.scale < 2
    assert all(info.met for info in later)


def test_what_has_next_to_no_gradient_does_not_drown_in_its_noise():
    """A second head that is hardly trained has hardly any second moments, which would allow any step."""
    torch.manual_seed(0)
    state = {name: torch.randn(64, 64) * 0.05 for name in ("body", "other", "head")}
    fisher = {"body": 1e-4, "other": 2e-4, "head": 1e-20}
    for scale in (0.1, 0.5):
        decoded = dict(LATTICE.draft(state, None, LatticeConfig(scale=scale), Hints(fisher=fisher)).decoded)
        assert (decoded["head"] - state["head"]).norm() < 0.31 * state["head"].norm(), "at most one spread"
    free = dict(Lattice(max_step=None).draft(state, None, LatticeConfig(), Hints(fisher=fisher)).decoded)
    assert (free["head"] - state["head"]).norm() > 2 * state["head"].norm(), "without any bound"
    bold = dict(LATTICE.draft(state, None, LatticeConfig(scale=4.0), Hints(fisher=fisher)).decoded)
    assert (bold["head"] - state["head"]).norm() > 1.2 * state["head"].norm(), "but it goes with the scale"


def test_a_tensor_that_shrinks_along_a_chain_keeps_the_bound():
    """As under weight decay: its step would otherwise come to three of its spreads."""
    torch.manual_seed(0)
    state = {name: torch.randn(128, 128) * 0.05 for name in ("shrinks", "stays")}
    held, drawn = None, set()
    for _ in range(8):
        _, held, read, _ = store(LATTICE, state, held, LatticeConfig())
        error = (read.state()["shrinks"] - state["shrinks"]).norm() / state["shrinks"].norm()
        assert error < 1.6 / 12**0.5, "half as much again as one spread, and a little chance"
        drawn.add(held.tensors["shrinks"].step)
        assert held.tensors["stays"].step == pytest.approx(0.025, rel=0.02)
        state["shrinks"] = state["shrinks"] * 0.75
    assert 1 < len(drawn) < 5, "drawn anew now and then, not at every checkpoint"


def test_values_that_float32_does_not_tell_apart_are_kept_as_they_are():
    """They have no spread where spreads are measured, so no step would fit them."""
    torch.manual_seed(0)
    flat = 1.0 + 1e-9 * torch.randn(64, 64, dtype=torch.float64)
    state = {"other": torch.randn(64, 64), "fc.weight": flat}
    decoded = dict(Lattice().draft(state, None, LatticeConfig(scale=8.0), Hints()).decoded)
    assert torch.equal(decoded["fc.weight"], flat)
