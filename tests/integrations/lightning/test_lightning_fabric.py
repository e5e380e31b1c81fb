"""Fabric: the user's own loop, the user's own keys."""

import pytest
import torch
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from dynaquant_core.errors import ConfigError
from dynaquant_core.plugins import describe, is_checkpoint, read_tree
from dynaquant_lightning import DynaQuantCheckpointIO
from tests.gloo import a_group_of_one
from tests.integrations.lightning.kit import EXACT, bits, loaders


class Loop:
    """A loop of one epoch a call, with everything that it needs to go on."""

    def __init__(self, seed=0, **options):
        seed_everything(seed, verbose=False)
        self.io = DynaQuantCheckpointIO(**options)
        self.fabric = Fabric(accelerator="cpu", devices=1, plugins=[self.io])
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        self.model, self.optimizer = self.fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
        self.training, self.validation = loaders()
        self.state = {"net": self.model, "optimizer": self.optimizer, "step": 0, "notes": {"best": [0.5]}}

    def epoch(self):
        for images, labels in self.training:
            self.optimizer.zero_grad()
            self.fabric.backward(functional.cross_entropy(self.model(images), labels))
            self.optimizer.step()
            self.state["step"] += 1

    def evaluate(self):
        return [functional.cross_entropy(self.model(images), labels) for images, labels in self.validation]

    def everything(self):
        return bits([self.model.state_dict(), self.optimizer.state_dict(), self.state["step"]])


@pytest.mark.filterwarnings("ignore")  # torch's own, about a group of one without a device
def test_a_model_that_the_user_has_sharded_is_refused_before_it_is_trained(tmp_path):
    loop = Loop()
    with a_group_of_one(tmp_path):
        fully_shard(loop.model.module[2])
        with pytest.raises(ConfigError, match="is sharded"):
            loop.io.watch(loop.model, loop.optimizer)


def test_a_resumed_loop_is_the_uninterrupted_one(tmp_path):
    whole = Loop()
    for _ in range(3):
        whole.epoch()
    first = Loop(**EXACT)
    first.epoch()
    first.fabric.save(tmp_path / "one.ckpt", first.state)
    first.io.wait()
    second = Loop(seed=5, **EXACT)
    second.state["notes"] = None
    assert second.fabric.load(tmp_path / "one.ckpt", second.state) == {}
    assert (second.state["step"], second.state["notes"]) == (20, {"best": [0.5]})
    assert second.everything() == first.everything()
    for _ in range(2):
        second.epoch()
        second.fabric.save(tmp_path / f"{second.state['step']}.ckpt", second.state)
    second.io.wait()
    assert second.everything() == whole.everything()
    assert [describe(tmp_path / f"{step}.ckpt").kind for step in (40, 60)] == ["delta", "delta"]


def test_a_watched_loop_is_searched_and_unchanged(tmp_path):
    plain, ours = Loop(), Loop(window=5)
    ours.io.watch(ours.model, ours.optimizer, evaluate=ours.evaluate)
    for _ in range(2):
        plain.epoch()
        ours.io.look_ahead(5)
        ours.epoch()
        ours.fabric.save(tmp_path / f"{ours.state['step']}.ckpt", ours.state)
    ours.io.wait()
    info = describe(tmp_path / "40.ckpt")
    assert info.met
    assert info.evaluations > 0
    assert info.ratio > 4
    assert ours.everything() == plain.everything()


def test_bare_objects_can_be_watched_too(tmp_path):
    loop = Loop()
    loop.io.watch(loop.model.module, [loop.optimizer.optimizer], evaluate=loop.evaluate)
    loop.epoch()
    loop.fabric.save(tmp_path / "one.ckpt", loop.state)
    loop.io.wait()
    assert describe(tmp_path / "one.ckpt").evaluations > 0


class Pair:
    """Two models, each saved into files of its own, as those of a GAN are."""

    def __init__(self):
        seed_everything(0, verbose=False)
        self.io = DynaQuantCheckpointIO()
        self.fabric = Fabric(accelerator="cpu", devices=1, plugins=[self.io])
        self.first, self.of_first = self.prepared()
        self.second, self.of_second = self.prepared()
        self.inputs = torch.randn(64, 40)

    def prepared(self):
        model = nn.Linear(40, 40)
        return self.fabric.setup(model, torch.optim.AdamW(model.parameters()))

    def evaluate(self):
        return functional.mse_loss(self.first(self.inputs), self.inputs)

    def train(self):
        for model, optimizer in ((self.first, self.of_first), (self.second, self.of_second)):
            self.fabric.backward(functional.mse_loss(model(self.inputs), self.inputs))
            optimizer.step()
            optimizer.zero_grad()


def test_a_model_that_is_not_watched_is_saved_exactly_and_the_loop_goes_on(tmp_path, caplog):
    loop = Pair()
    loop.io.watch(loop.first, loop.of_first, evaluate=loop.evaluate)
    for step in (1, 2):
        loop.train()
        loop.fabric.save(tmp_path / f"first-{step}", {"net": loop.first, "step": step})
        loop.fabric.save(tmp_path / f"second-{step}", {"net": loop.second, "step": step})
    assert describe(tmp_path / "first-2").met
    assert describe(tmp_path / "second-2").met is None
    assert bits(read_tree(tmp_path / "second-2")["net"]) == bits(loop.second.state_dict())
    assert caplog.text.count("nothing in the state to save is of the model") == 1


def test_several_models_are_watched_by_name(tmp_path):
    loop = Pair()
    both = {"first": loop.first, "second": loop.second}
    loop.io.watch(both, [loop.of_first, loop.of_second], evaluate=loop.evaluate)
    loop.train()
    loop.fabric.save(tmp_path / "both", {**both, "step": 1})
    info = describe(tmp_path / "both")
    assert info.met
    assert info.ratio > 4
    loop.fabric.save(tmp_path / "second", {"net": loop.second, "step": 1})
    assert not torch.equal(read_tree(tmp_path / "second")["net"]["weight"], loop.second.module.weight)


def test_without_a_step_saves_are_counted_and_a_filter_is_heeded(tmp_path):
    loop = Loop(**EXACT)
    for name in ("a", "b"):
        loop.fabric.save(tmp_path / name, {"net": loop.model}, filter={"net": lambda key, _: "0." in key})
    loop.io.wait()
    assert describe(tmp_path / "b").step == 2
    assert list(read_tree(tmp_path / "b")["net"]) == ["0.weight", "0.bias"]
    remainder = loop.fabric.load(tmp_path / "b")
    assert list(remainder) == ["net"]


def test_a_load_waits_for_its_save(tmp_path):
    loop = Loop(**EXACT)
    loop.fabric.save(tmp_path / "one.ckpt", loop.state)
    loop.fabric.load(tmp_path / "one.ckpt", loop.state)
    assert is_checkpoint(tmp_path / "one.ckpt")


def test_options_are_judged():
    with pytest.raises(ConfigError, match="threshold"):
        DynaQuantCheckpointIO(threshold=-1)
