import math
import os
import signal

import pytest
import torch
from torch import nn

import dynaquant_core as dq
from dynaquant_core.training.capture import capture
from dynaquant_core.training.subject import Subject
from tests.training.models import (
    EXACT,
    bits,
    build,
    evaluate_net,
    net_loss,
    one_step,
    seed_everything,
    train,
)


def test_saves_when_due_and_restores_the_newest(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path / "run", model, optimizer, every=4, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 10)
        checkpoints.wait()
        assert checkpoints.store.steps() == [4, 8]
        assert checkpoints.last.step == 8
    other, again = build()
    with dq.Checkpointer(tmp_path / "run", other, again, every=4, **EXACT) as checkpoints:
        assert checkpoints.restore() == 8
        assert checkpoints.completed == 8
        train(other, again, checkpoints, 4)
        assert checkpoints.wait().step == 12
        assert checkpoints.last.kind == "delta"


def test_with_everything_exact_a_resumed_run_is_bit_identical(tmp_path):
    def run(folder, steps, stop=None):
        seed_everything(5)
        model, optimizer = build()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)
        options = {"scheduler": scheduler, "every": 3, "evaluate": evaluate_net, **EXACT}
        with dq.Checkpointer(folder, model, optimizer, **options) as checkpoints:
            for _ in range(checkpoints.restore(), stop or steps):
                one_step(model, optimizer, net_loss, scheduler)
                checkpoints.step()
        return bits(capture(Subject(model, optimizer, scheduler), steps))

    whole = run(tmp_path / "whole", 20)
    run(tmp_path / "cut", 20, stop=8)
    run(tmp_path / "cut", 20, stop=16)
    assert run(tmp_path / "cut", 20) == whole


def test_an_explicit_step_goes_back_and_the_run_goes_on_from_there(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 6)
        checkpoints.wait()
        assert checkpoints.restore(2) == 2
        at_two = bits(model.state_dict())
        train(model, optimizer, checkpoints, 2)
        at_four = bits(model.state_dict())
    assert dq.CheckpointStore(tmp_path).newest().step == 4
    other, again = build()
    with dq.Checkpointer(tmp_path, other, again) as checkpoints:
        assert checkpoints.restore() == 4
        assert bits(other.state_dict()) == at_four
        assert checkpoints.restore(2) == 2
        assert bits(other.state_dict()) == at_two


def test_several_models_and_optimizers_a_scaler_and_extra(tmp_path):
    class Counter:
        count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    def make():
        models = {"encoder": nn.Linear(16, 16), "decoder": nn.Linear(16, 16)}
        optimizers = {name: torch.optim.AdamW(model.parameters()) for name, model in models.items()}
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        return models, optimizers, scaler, Counter()

    def checkpointer(models, optimizers, scaler, counter):
        return dq.Checkpointer(
            tmp_path, models, optimizers, scaler=scaler, extra={"count": counter}, every=2, **EXACT
        )

    models, optimizers, scaler, counter = make()
    with checkpointer(models, optimizers, scaler, counter) as checkpoints:
        for _ in range(2):
            loss = models["decoder"](models["encoder"](torch.randn(4, 16))).square().mean()
            scaler.scale(loss).backward()
            for optimizer in optimizers.values():
                scaler.step(optimizer)
            scaler.update(new_scale=8.0)
            counter.count += 3
            checkpoints.step()
    others = make()
    with checkpointer(*others) as checkpoints:
        assert checkpoints.restore() == 2
    assert bits(others[0]["decoder"].state_dict()) == bits(models["decoder"].state_dict())
    assert bits(others[1]["encoder"].state_dict()) == bits(optimizers["encoder"].state_dict())
    assert others[2].get_scale() == 8.0
    assert others[3].count == 6


def scaled(folder, names, fresh=()):
    """A run with a model, an optimizer and a scaler of each name: its scalers, and the step it began from."""
    models = {name: nn.Linear(4, 4) for name in names}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    scalers = {name: torch.amp.GradScaler("cpu", init_scale=64.0) for name in names}
    with dq.Checkpointer(folder, models, optimizers, scaler=scalers, every=1, **EXACT) as checkpoints:
        start = checkpoints.restore(fresh=fresh)
        for number, (name, scaler) in enumerate(scalers.items()) if not start else ():
            scaler.scale(models[name](torch.randn(2, 4)).sum()).backward()
            scaler.step(optimizers[name])
            scaler.update(new_scale=2.0 + number)
        if not start:
            checkpoints.step()
    return scalers, start


def test_several_scalers_by_name_come_back(tmp_path):
    scaled(tmp_path, ["g", "d"])
    scalers, start = scaled(tmp_path, ["d", "g"])
    assert start == 1
    assert {name: scaler.get_scale() for name, scaler in scalers.items()} == {"g": 2.0, "d": 3.0}


def test_a_scaler_that_the_checkpoint_lacks_is_named(tmp_path):
    models = {name: nn.Linear(4, 4) for name in ("g", "d")}
    off = torch.amp.GradScaler("cpu", enabled=False)  # nothing to give back, and held by its name
    with dq.Checkpointer(tmp_path, models, scaler={"g": off}) as checkpoints:
        checkpoints.save()
    scalers = {name: torch.amp.GradScaler("cpu", init_scale=8.0) for name in models}
    with dq.Checkpointer(tmp_path, models, scaler=scalers) as checkpoints:
        with pytest.raises(dq.StateMismatchError, match=r"no scaler\.d .*fresh=\(\"scaler\.d\",\)"):
            checkpoints.restore()
        assert checkpoints.restore(fresh="scaler.d") == 0
    assert [scaler.get_scale() for scaler in scalers.values()] == [8.0, 8.0]


def test_what_is_stored_is_the_state_when_save_returned(tmp_path):
    model, optimizer = build(width=256)
    with dq.Checkpointer(tmp_path, model, optimizer, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 3)
        before = bits(model.state_dict()), bits(optimizer.state_dict()["state"])
        checkpoints.save()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(-7.0)
                for value in optimizer.state[parameter].values():
                    value.fill_(-7.0)
        checkpoints.wait()
        checkpoints.restore()
    assert (bits(model.state_dict()), bits(optimizer.state_dict()["state"])) == before


def test_the_same_holds_for_compressed_parts(tmp_path):
    model, optimizer = build(width=64)
    folders = [tmp_path / "still", tmp_path / "moving"]
    train_for = dq.Checkpointer(tmp_path / "unused", model, optimizer)
    train(model, optimizer, train_for, 3)
    train_for.close()
    for folder in folders:
        with dq.Checkpointer(folder, model, optimizer) as checkpoints:
            checkpoints.save()
            if folder.name == "still":
                checkpoints.wait()
            with torch.no_grad():
                kept = [parameter.clone() for parameter in model.parameters()]
                for parameter in model.parameters():
                    parameter.fill_(3.0)
            checkpoints.wait()
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), kept, strict=True):
                    parameter.copy_(value)
    still, moving = (dq.CheckpointStore(folder).load() for folder in folders)
    assert bits(still["model"]) == bits(moving["model"])
    assert bits(still["optimizer"]) == bits(moving["optimizer"])


def test_sigterm_saves_after_the_next_step(tmp_path):
    model, optimizer = build()
    before = signal.getsignal(signal.SIGTERM)
    with dq.Checkpointer(tmp_path, model, optimizer, every=100, save_on=("SIGTERM",)) as checkpoints:
        train(model, optimizer, checkpoints, 3)
        os.kill(os.getpid(), signal.SIGTERM)
        assert checkpoints.requested_by is None
        train(model, optimizer, checkpoints, 1)
        assert checkpoints.requested_by == "SIGTERM"
        assert checkpoints.store.steps() == [4]  # committed, not only begun
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("value", ["", "0", "false", "No", "off"])
def test_dynaquant_disable_may_say_no(tmp_path, monkeypatch, value):
    monkeypatch.setenv("DYNAQUANT_DISABLE", value)
    with dq.Checkpointer(tmp_path, *build()) as checkpoints:
        checkpoints.save()
    assert list(tmp_path.glob("*.dq"))


def test_a_word_of_dynaquant_disable_that_says_neither_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAQUANT_DISABLE", "flase")
    with pytest.raises(dq.ConfigError, match=r"DYNAQUANT_DISABLE must be 1.*'flase'"):
        dq.Checkpointer(tmp_path, *build())


@pytest.mark.parametrize("value", ["1", "true"])
def test_dynaquant_disable_turns_saving_off_but_not_restoring(tmp_path, monkeypatch, value):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 2)
    files = sorted(tmp_path.iterdir())
    monkeypatch.setenv("DYNAQUANT_DISABLE", value)
    handler = signal.getsignal(signal.SIGTERM)
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, save_on=("SIGTERM",)) as checkpoints:
        assert signal.getsignal(signal.SIGTERM) is handler
        assert checkpoints.restore() == 2
        train(model, optimizer, checkpoints, 4)
        checkpoints.save()
        assert checkpoints.completed == 6
        assert checkpoints.wait() is None
    assert sorted(tmp_path.iterdir()) == files


def test_close_takes_everything_off_and_lets_another_go_on(tmp_path):
    model, optimizer = build()
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, every=1, **EXACT)
    train(model, optimizer, checkpoints, 1)
    checkpoints.close()
    checkpoints.close()
    assert not optimizer._optimizer_step_post_hooks
    with pytest.raises(dq.SaveError, match="closed"):
        checkpoints.step()
    with dq.Checkpointer(tmp_path, model, optimizer, every=1, **EXACT) as another:
        assert another.restore() == 1
        train(model, optimizer, another, 1)
    assert dq.CheckpointStore(tmp_path).steps() == [1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"every": 0},
        {"every": "soon"},
        {"threshold": -1.0, "evaluate": evaluate_net},
        {"mode": "up", "evaluate": evaluate_net},
        {"threshold": math.nan},
        {"window": -1},
        {"on_error": "ignore"},
        {"moments": "4bit"},
        {"method": "zip"},
        {"keep_last": 0},
        {"save_on": ("SIGNONE",)},
        {"evaluate": 3},
        {"evaluate": False},  # as of "flag and function"
        {"evaluate": []},
    ],
)
def test_bad_arguments_are_refused_at_once(tmp_path, options):
    model, optimizer = build()
    with pytest.raises(dq.ConfigError):
        dq.Checkpointer(tmp_path / "run", model, optimizer, **options)
    assert not (tmp_path / "run").exists()


class Batches(list):
    """An `evaluate` that is an object, and false as long as it has no batches."""

    def __call__(self, model):
        return float(model.head.weight.square().sum())


def test_an_evaluate_that_is_an_empty_object_is_used(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, evaluate=Batches()) as checkpoints:
        checkpoints.save()
        assert checkpoints.wait().met


def test_after_a_step_that_is_not_there_a_new_run_may_begin(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, **EXACT) as checkpoints:
        with pytest.raises(dq.CheckpointNotFoundError):
            checkpoints.restore(7)
        checkpoints.save()
        assert checkpoints.wait().step == 0
