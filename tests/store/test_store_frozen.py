"""What nobody trains beside what somebody does: only trained vectors may be rounded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import dynaquant_core as dq
from dynaquant_core.methods.qd import QdConfig
from dynaquant_core.plugins import PluginOptions, PluginRun


class Normalised(nn.Module):
    """Buffers of the length of the first norm, which come before it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(80) * 5)
        self.register_buffer("std", torch.rand(80) * 3 + 0.1)
        self.norm, self.fc = nn.LayerNorm(80), nn.Linear(80, 80)

    def forward(self, x):
        return self.fc(self.norm((x - self.mean) / self.std))


class Probe(nn.Module):
    """A head of the shapes of the frozen layers before it."""

    def __init__(self):
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(80, 80), nn.LayerNorm(80)) for _ in range(4)]
        self.backbone, self.head = nn.Sequential(*blocks[:2]), nn.Sequential(*blocks[2:])
        self.backbone.requires_grad_(False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter += 0.05 * torch.randn_like(parameter)

    def forward(self, x):
        return self.head(self.backbone(x))


def spectral():
    layers = (spectral_norm(nn.Linear(80, 80)) for _ in range(3))
    return nn.Sequential(*layers)


def in_one_buffer():
    """As cuDNN lays the weights of an LSTM, and distributed optimizers those of a model."""
    model, at = Probe(), 0
    buffer = torch.empty(sum(one.numel() for one in model.parameters()))
    for one in model.parameters():
        place = buffer[at : at + one.numel()].view_as(one)
        one.data, at = place.copy_(one.detach()), at + one.numel()
    return model


def trained(model):
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 80)).square().mean().backward()
        optimizer.step()
    return optimizer


def held(model):
    """Vectors that no gradient reaches, by name."""
    own = {name for name, one in model.named_parameters() if one.requires_grad}
    return {
        name: one.clone() for name, one in model.state_dict().items() if one.dim() == 1 and name not in own
    }


@pytest.mark.parametrize("build", [Normalised, Probe, spectral, in_one_buffer])
@pytest.mark.parametrize("given", [False, True])
def test_vectors_that_nobody_trains_come_back_bit_for_bit(tmp_path: Path, build, given: bool) -> None:
    """Torch's state numbers parameters, and says of none which it is."""
    model = build()
    state = {"model": model.state_dict(), "optimizer": trained(model).state_dict()}
    dq.save_file(state, tmp_path / "x.dq", model=model if given else None)
    found = dq.load_file(tmp_path / "x.dq")["model"]
    apart = held(model)
    assert apart
    assert all(torch.equal(found[name], value) for name, value in apart.items())
    vectors = [name for name, one in model.named_parameters() if one.dim() == 1 and name not in apart]
    changed = [not torch.equal(found[name], model.state_dict()[name]) for name in vectors]
    assert all(changed) or not given  # with the model it is known which are trained


@pytest.mark.parametrize("build", [Normalised, Probe, spectral])
def test_a_plugin_knows_whose_the_numbers_are(tmp_path: Path, build) -> None:
    model = build()
    optimizer = trained(model)
    run = PluginRun(PluginOptions(), framework="none")
    run.watch(model, [optimizer])
    run.save(tmp_path / "a", 5, {"model": model.state_dict(), "optimizers": [optimizer.state_dict()]})
    run.wait()
    found = run.load(tmp_path / "a")["model"]
    run.close()
    assert all(torch.equal(found[name], value) for name, value in held(model).items())
    own = {name: one for name, one in model.named_parameters() if one.dim() == 1 and one.requires_grad}
    assert own
    assert not any(torch.equal(found[name], one) for name, one in own.items())


def test_excp_prunes_moments_by_their_own_weights(tmp_path: Path) -> None:
    """A frozen weight has not changed, and by its change no moment would be kept."""
    model = Probe()
    optimizer = trained(model)
    run = PluginRun(PluginOptions(method="excp"), framework="none")
    run.watch(model, [optimizer])
    for step in (1, 2):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 80)).square().mean().backward()
            optimizer.step()
        run.save(
            tmp_path / str(step), step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        )
    run.wait()
    found = run.load(tmp_path / "2")["optimizer"]["state"]
    run.close()
    matrices = [held["exp_avg_sq"] for held in found.values() if held["exp_avg_sq"].dim() > 1]
    assert len(matrices) == 2
    assert all((square != 0).float().mean() > 0.01 for square in matrices)


METHODS = ["gobo", "cnr", "qd", "lc", "scar", "topn", "dynaquant", "lattice"]


@pytest.mark.parametrize(
    ("method", "point"), [*((each, None) for each in METHODS), ("qd", QdConfig(maximum=256, minimum=8))]
)
def test_frozen_layers_take_noise_once_whatever_the_method(tmp_path, method, point):
    """Through restores, beside a layer that is trained, and over several keys."""
    drawn = torch.Generator().manual_seed(0)
    state = {name: 0.02 * torch.randn(250, 240, generator=drawn) for name in ("frozen", "half", "trained")}
    state["half"] = state["half"][:70, :80].bfloat16()
    dq.CheckpointStore(tmp_path, method=method, max_chain=2).save(0, state, config=point)
    first = dq.CheckpointStore(tmp_path).load()
    for step in range(1, 5):
        store = dq.CheckpointStore(tmp_path, max_chain=2)
        state = store.load()
        state["trained"] += 1e-3 * torch.randn(250, 240, generator=drawn)
        store.save(step, state, config=point)
    last = dq.CheckpointStore(tmp_path).load()
    assert all(torch.equal(last[name], first[name]) for name in ("frozen", "half"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("change", ["shape", "exact", "not finite", "name", "option"])
def test_frozen_layers_take_noise_once_whatever_becomes_of_another(tmp_path, method, change):
    """Where the list of a method's tensors is another, a key is due, and no base fits.

    `dynaquant` draws codes after a restore: once, one of its centres may come to be another.
    """
    drawn = torch.Generator().manual_seed(0)
    state = {
        "frozen": torch.randn(128, 120, generator=drawn),
        "trained": torch.randn(64, 70, generator=drawn),
    }
    given = state["frozen"].clone()
    options = {"gobo": {"coder": "huffman"}, "cnr": {"coder": "huffman"}, "scar": {"order": "turn"}}
    options |= {"dynaquant": {"coder": "paper"}, "lattice": {"keep_norm": False}}
    errors, first = [], given
    for life in range(13):
        odd = life % 2
        asked = options.get(method, {}) if change == "option" and odd else {}
        exact = ("other*",) if change == "exact" and odd else ()
        with dq.CheckpointStore(tmp_path, method={"name": method, **asked}, exact=exact) as store:
            if life:
                state = store.resume()
                first = state["frozen"] if life == 1 else first
                errors.append((state["frozen"] - given).square().mean().sqrt())
            state["trained"] += 0.01 * torch.randn(64, 70, generator=drawn)
            state = {name: tensor for name, tensor in state.items() if not name.startswith("other")}
            rows, name = 40 + life * (change == "shape"), f"other{life * (change == 'name')}"
            state[name] = torch.randn(rows, 40, generator=drawn)
            if change == "not finite" and odd:
                state[name][0, 0] = torch.nan
            store.save(life, state)
    assert errors[-1] <= 1.02 * errors[0]
    assert method == "dynaquant" or torch.equal(state["frozen"], first)
