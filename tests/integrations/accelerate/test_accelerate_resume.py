"""save_state and load_state with DynaQuant: what is stored, what comes back, and what is left alone."""

import shutil

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn

from dynaquant_accelerate import install, newest
from dynaquant_core.plugins import describe, is_checkpoint, read_tree
from tests.integrations.accelerate.kit import (
    EPOCH,
    EXACT,
    Net,
    bits,
    build,
    evaluate,
    everything,
    names,
    resume,
    train,
)
from tests.training.mapped_life import mapped


def test_resumed_is_bit_identical_to_uninterrupted_with_everything_exact(tmp_path):
    whole = train(build(tmp_path / "whole", options=EXACT), 4 * EPOCH, save_every=EPOCH)
    train(build(tmp_path / "cut", options=EXACT), 2 * EPOCH, save_every=EPOCH).ours.wait()
    second = resume(build(tmp_path / "cut", seed=7, options=EXACT))
    assert second.done == 2 * EPOCH
    assert everything(train(second, 4 * EPOCH, save_every=EPOCH)) == everything(whole)
    assert names(tmp_path / "cut" / "checkpoints") == [f"checkpoint_{number}" for number in range(4)]


def test_saving_and_searching_leave_training_bit_identical(tmp_path):
    plain = train(build(tmp_path / "plain", ours=False), 3 * EPOCH)
    ours = train(build(tmp_path / "ours", options={"evaluate": evaluate}), 3 * EPOCH, save_every=EPOCH)
    assert everything(ours) == everything(plain)
    info = ours.ours.wait()
    assert info.evaluations > 0
    assert info.met


def test_a_frozen_table_in_a_file_that_is_mapped_for_reading_comes_back(tmp_path):
    """To write there, a candidate or the same values, ends the process."""
    np.save(tmp_path / "table.npy", np.ones((64, 64), np.float32))

    class Mapped(Net):
        def __init__(self, width):
            super().__init__(width)
            self.table = nn.Parameter(mapped(tmp_path / "table.npy"), requires_grad=False)

        def forward(self, x):
            return super().forward(x @ self.table)

    train(build(tmp_path, make=Mapped, options={"evaluate": evaluate}), EPOCH, save_every=EPOCH).ours.wait()
    again = resume(build(tmp_path, make=Mapped, seed=1))
    assert again.done == EPOCH
    assert again.model.table.eq(1).all()


def test_the_checkpoint_is_small_and_keeps_its_promise(tmp_path):
    bench = train(build(tmp_path, width=512, options={"evaluate": evaluate}), 3 * EPOCH, save_every=EPOCH)
    info = bench.ours.wait()
    assert info.kind == "delta"
    assert info.degradation <= 0.01
    folder = tmp_path / "checkpoints" / "checkpoint_2"
    written = sum(path.stat().st_size for path in folder.iterdir() if path.stat().st_nlink == 1)
    raw = sum(3 * p.nbytes for p in bench.model.parameters())
    assert written < raw / 4
    assert not list(folder.glob("model*.safetensors"))
    before = {name: value.clone() for name, value in bench.model.state_dict().items()}
    again = resume(build(tmp_path, width=512))
    for name, value in again.model.state_dict().items():
        noise = (value - before[name]).abs().max()
        exact = name in dict(again.model.named_buffers())
        # A scale is a mean step, in mean spreads; half a step is what may be off.
        assert noise <= (0 if exact else info.config.scale * before[name].std()), name
    assert again.optimizer.state_dict()["state"][0]["step"] == 3 * EPOCH


def test_gradients_are_averaged_before_a_save_that_can_be_foreseen(tmp_path):
    options = {"evaluate": evaluate, "method": "dynaquant"}  # its search asks for gradients
    bench = build(tmp_path, options=options | {"window": 2})
    train(bench, EPOCH, save_every=EPOCH)
    assert bench.ours.wait().seconds["collector"] > 0
    blind = build(tmp_path / "blind", options=options | {"every": None})
    train(blind, EPOCH, save_every=EPOCH)
    assert blind.ours.wait().seconds["collector"] == 0


def test_rotation_keeps_what_total_limit_says_and_every_folder_stands_alone(tmp_path):
    bench = train(build(tmp_path, total_limit=2, options=EXACT), 5 * EPOCH, save_every=EPOCH)
    bench.ours.wait()
    folder = tmp_path / "checkpoints"
    assert names(folder) == ["checkpoint_3", "checkpoint_4"]
    assert describe(folder / "checkpoint_4").kind == "delta"
    shutil.rmtree(folder / "checkpoint_3")
    want = bits(bench.model.state_dict())
    assert bits(resume(build(tmp_path, options=EXACT)).model.state_dict()) == want


def test_a_single_kept_checkpoint_goes_only_when_the_next_one_is_whole(tmp_path):
    bench = train(build(tmp_path, total_limit=1, options=EXACT), EPOCH, save_every=EPOCH)
    bench.ours.wait()
    seen = []
    inner = bench.ours._save
    bench.ours._save = lambda *a, **k: (seen.append(names(tmp_path / "checkpoints")), inner(*a, **k))[1]
    train(bench, 2 * EPOCH, save_every=EPOCH)
    bench.ours.wait()
    assert seen == [["checkpoint_0"]]
    assert names(tmp_path / "checkpoints") == ["checkpoint_1"]


def test_folders_of_ones_own_choice(tmp_path):
    bench = train(build(tmp_path, options=EXACT), EPOCH)
    bench.accelerator.project_configuration.automatic_checkpoint_naming = False
    bench.accelerator.save_state(str(tmp_path / "mine"))
    bench.ours.wait()
    assert resume(build(tmp_path, options=EXACT), str(tmp_path / "mine")).done == EPOCH


def test_two_accelerators_one_without_us(tmp_path):
    ours = build(tmp_path / "ours", options=EXACT)
    plain = build(tmp_path / "plain", ours=False)
    for bench in (ours, plain):
        train(bench, EPOCH, save_every=EPOCH)
    ours.ours.wait()
    native = names(tmp_path / "plain" / "checkpoints" / "checkpoint_0")
    assert {"model.safetensors", "optimizer.bin"} <= set(native)
    assert "dynaquant.json" not in native
    assert is_checkpoint(tmp_path / "ours" / "checkpoints" / "checkpoint_0")
    ours.ours.close()
    ours.accelerator.save_state()
    assert (tmp_path / "ours" / "checkpoints" / "checkpoint_1" / "model.safetensors").is_file()


def test_installing_again_replaces_the_options(tmp_path):
    bench = build(tmp_path, options={"every": 3})
    first = bench.ours
    second = install(bench.accelerator, **EXACT)
    train(bench, EPOCH, save_every=EPOCH)
    assert first.last is None
    assert second.wait().step == EPOCH
    second.close()
    assert "save_state" not in vars(bench.accelerator)


def test_several_models_an_average_and_objects_of_ones_own(tmp_path):
    def several(folder):
        bench = build(folder, ours=False)
        other = Net(16)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
        other, optimizer = bench.accelerator.prepare(other, optimizer)
        average = torch.optim.swa_utils.AveragedModel(bench.accelerator.unwrap_model(bench.model))
        counter = Counter()
        bench.accelerator.register_for_checkpointing(counter, average)
        bench.ours = install(bench.accelerator, **EXACT)
        return bench, other, optimizer, average, counter

    bench, other, optimizer, average, counter = several(tmp_path)
    train(bench, EPOCH)
    other(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    average.update_parameters(bench.model)
    counter.seen = 12
    bench.accelerator.save_state()
    bench.ours.wait()
    folder = tmp_path / "checkpoints" / "checkpoint_0"
    assert set(read_tree(folder)["model"]) == {"model_0", "model_1", "average_0"}
    assert (folder / "custom_checkpoint_1.pkl").stat().st_size < 4096
    again, *rest = several(tmp_path)
    again.accelerator.load_state()
    for found, want in zip(rest, (other, optimizer, average, counter), strict=True):
        assert bits(found.state_dict()) == bits(want.state_dict())


class Counter:
    def __init__(self):
        self.seen = 0

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_tied_compiled_and_accumulated(tmp_path):
    class Tied(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.into = nn.Linear(64, 64, bias=False)
            self.back = nn.Linear(64, 64, bias=False)
            self.back.weight = self.into.weight
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            return self.head(self.back(self.into(x).relu()).relu())

    def compiled(width):
        return torch.compile(Tied(width), backend="eager")

    options = EXACT | {"every": 2}
    bench = build(tmp_path, make=compiled, options=options, gradient_accumulation_steps=2)
    for images, labels in bench.loader:
        with bench.accelerator.accumulate(bench.model):
            loss = nn.functional.cross_entropy(bench.model(images), labels)
            bench.accelerator.backward(loss)
            bench.optimizer.step()
            bench.optimizer.zero_grad()
    assert bench.ours.step == EPOCH // 2
    bench.accelerator.save_state()
    bench.ours.wait()
    assert set(read_tree(newest(tmp_path / "checkpoints"))["model"]) == {
        "into.weight",
        "back.weight",
        "head.weight",
        "head.bias",
    }
    again = resume(build(tmp_path, make=compiled, options=options))
    assert bits(again.model.state_dict()) == bits(bench.model.state_dict())
    assert again.model.back.weight is again.model.into.weight


def test_a_hook_of_the_users_that_keeps_the_weights_to_itself(tmp_path):
    bench = build(tmp_path, options=EXACT)

    def own(models, weights, folder):
        torch.save(weights.pop(), f"{folder}/own.pt")

    def give(models, folder):
        models.pop().load_state_dict(torch.load(f"{folder}/own.pt"))

    bench.accelerator.register_save_state_pre_hook(own)
    train(bench, EPOCH, save_every=EPOCH).ours.wait()
    tree = read_tree(tmp_path / "checkpoints" / "checkpoint_0")
    assert not tree["model"]
    again = build(tmp_path, options=EXACT)
    again.accelerator.register_load_state_pre_hook(give)
    assert everything(resume(again))["model"] == everything(bench)["model"]
    assert bits(again.optimizer.state_dict()) == bits(bench.optimizer.state_dict())


@pytest.mark.parametrize("precision", ["bf16"])
def test_mixed_precision(tmp_path, precision):
    bench = train(
        build(tmp_path, options=EXACT | {"evaluate": evaluate}, mixed_precision=precision),
        EPOCH,
        save_every=EPOCH,
    )
    bench.ours.wait()
    again = resume(build(tmp_path, options=EXACT, mixed_precision=precision))
    assert everything(again)["model"] == everything(bench)["model"]


def test_steps_are_counted_on_whatever_is_prepared_now(tmp_path):
    """After `free_memory` a script may prepare another model, with another optimizer."""
    bench = train(build(tmp_path, options=EXACT), 2)
    bench.accelerator.free_memory()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    bench.model, bench.optimizer = bench.accelerator.prepare(model, optimizer)
    stranger = torch.optim.SGD(Net().parameters(), lr=0.1)
    for _ in range(3):
        bench.accelerator.backward(bench.model(torch.randn(8, 64)).square().mean())
        bench.optimizer.step()
        stranger.step()
    assert bench.ours.step == bench.done + 3
    bench.accelerator.save_state()
    assert bench.ours.wait().step == bench.done + 3


def test_steps_begin_anew_after_close_and_go_on_without(tmp_path):
    bench = train(build(tmp_path, options=EXACT), 2)
    bench.accelerator.free_memory()
    model = Net()
    bench.accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    again = install(bench.accelerator, **EXACT)
    assert again.step == bench.ours.step > 0
    again.close()
    assert install(bench.accelerator, **EXACT).step == 0


def test_an_optimizer_that_never_steps_does_not_stop_the_count(tmp_path):
    """Two optimizers, of which the first is not used yet; then the second one steps less often than it."""
    accelerator = Accelerator(
        cpu=True, project_config=ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True)
    )
    still, busy = Net(), Net()
    first, second = torch.optim.SGD(still.parameters(), lr=0.1), torch.optim.SGD(busy.parameters(), lr=0.1)
    still, busy, first, second = accelerator.prepare(still, busy, first, second)
    ours = install(accelerator, **EXACT)
    for _ in range(4):
        second.step()
    assert ours.step == 4
    for _ in range(3):
        first.step()
    second.step()
    assert ours.step == 5
    accelerator.save_state()
    assert ours.wait().step == 5
    accelerator.load_state()
    first.step()
    assert ours.step == 6


def probe(width):
    """A head of the shapes of the frozen layers before it."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(3)]
    model = nn.Sequential(*blocks, nn.Linear(width, 10))
    model[:2].requires_grad_(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def test_frozen_vectors_come_back_bit_for_bit_and_trained_ones_are_compressed(tmp_path):
    bench = train(build(tmp_path, width=64, make=probe), EPOCH, save_every=EPOCH)
    bench.ours.wait()
    found = read_tree(newest(tmp_path / "checkpoints"))["model"]
    live = dict(bench.accelerator.unwrap_model(bench.model).named_parameters())
    same = {name: torch.equal(found[name], one) for name, one in live.items() if one.numel() == 64}
    assert same == {name: not live[name].requires_grad for name in same}
    assert len(same) == 9
