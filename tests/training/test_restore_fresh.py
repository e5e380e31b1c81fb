"""What is new in a run begins as it is, if the user says so; what is left out is said."""

import logging

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import dynaquant_core as dq
from dynaquant_core.errors import ConfigError, StateMismatchError
from tests.training.models import EXACT, bits, build, net_loss, one_step, train


class Position:
    def __init__(self, at=0):
        self.at = at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.fixture
def saved(tmp_path):
    """A folder with the run of a model, an optimizer and one extra, and the model as it was saved."""
    model, optimizer = build()
    extra = {"data": Position(7)}
    with dq.Checkpointer(tmp_path, model, optimizer, extra=extra, every=2, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 2)
    return tmp_path, bits(model.state_dict())


def added(optimizer):
    """Everything that can be new: the extra "data" is not."""
    return {
        "scheduler": lr_scheduler.StepLR(optimizer, 5),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0),
        "extra": {"data": Position(), "ema": Position(3)},
    }


def test_the_refusal_names_the_call_that_goes_on_and_it_does(saved, caplog):
    folder, weights = saved
    model, optimizer = build()
    parts = added(optimizer)
    before = bits(model.state_dict())
    with dq.Checkpointer(folder, model, optimizer, **parts, every=2, **EXACT) as checkpoints:
        with pytest.raises(StateMismatchError, match="nothing was restored") as caught:
            checkpoints.restore()
        assert 'restore(fresh=("scheduler", "scaler", "extra.ema"))' in str(caught.value)
        with pytest.raises(StateMismatchError, match=r"holds no scaler, extra\.ema") as caught:
            checkpoints.restore(fresh="scheduler")
        assert 'restore(fresh=("scheduler", "scaler", "extra.ema"))' in str(caught.value)
        assert bits(model.state_dict()) == before
        with caplog.at_level(logging.WARNING):
            assert checkpoints.restore(fresh=("scheduler", "scaler", "extra.ema")) == 2
        assert "begun as they are: scheduler, scaler, extra.ema" in caplog.text
        assert bits(model.state_dict()) == weights
        assert (parts["extra"]["data"].at, parts["extra"]["ema"].at) == (7, 3)
        assert parts["scaler"].get_scale() == 8.0
        parts["extra"]["ema"].at = 11
        train(model, optimizer, checkpoints, 2)
    again, optimizer = build()
    parts = added(optimizer)
    caplog.clear()
    with dq.Checkpointer(folder, again, optimizer, **parts) as checkpoints, caplog.at_level(logging.WARNING):
        assert checkpoints.restore(fresh=("scheduler", "scaler", "extra.ema")) == 4  # now they are held
    assert parts["extra"]["ema"].at == 11
    assert "begun as they are" not in caplog.text


def test_one_new_part_is_named_as_a_tuple_of_one(saved):
    folder, _ = saved
    model, optimizer = build()
    extra = {"data": Position(), "ema": Position()}
    with dq.Checkpointer(folder, model, optimizer, extra=extra) as checkpoints:
        with pytest.raises(StateMismatchError) as caught:
            checkpoints.restore()
        assert 'restore(fresh=("extra.ema",))' in str(caught.value)
        assert checkpoints.restore(fresh=("extra.ema",)) == 2


@pytest.mark.parametrize("name", ["ema", "extra", "optimizer", "scheduler.", 3])
def test_a_name_that_is_no_part_lists_those_that_are(saved, tmp_path, name):
    folder, _ = saved
    model, optimizer = build()
    for place in (folder, tmp_path / "empty"):
        with (
            dq.Checkpointer(place, model, optimizer, **added(optimizer)) as checkpoints,
            pytest.raises(ConfigError, match=r"the run has scheduler, scaler, extra\.data, extra\.ema"),
        ):
            checkpoints.restore(fresh=("scaler", name))
    with dq.Checkpointer(folder, model, optimizer) as checkpoints:
        with pytest.raises(ConfigError, match="the run has no scheduler, scaler or extra"):
            checkpoints.restore(fresh=("scaler",))
        with pytest.raises(ConfigError, match="fresh is int"):
            checkpoints.restore(fresh=3)


NEW = {
    "warm up": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=4),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "half": lambda o: lr_scheduler.StepLR(o, 1, 0.5),
}


@pytest.mark.parametrize("kind", NEW)
def test_a_new_scheduler_sets_the_learning_rates_that_it_would_in_a_new_run(saved, kind):
    """What it notes in the optimizer when it is made is not overwritten by the old run's settings."""

    def rates(optimizer, scheduler, model):
        found = []
        for _ in range(4):
            one_step(model, optimizer, net_loss, scheduler)
            found.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]))
        return found

    folder, _ = saved
    model, optimizer = build()
    expected = rates(optimizer, NEW[kind](optimizer), model)
    model, optimizer = build()
    scheduler = NEW[kind](optimizer)
    with dq.Checkpointer(folder, model, optimizer, scheduler=scheduler) as checkpoints:
        checkpoints.restore(fresh=("scheduler",))
    assert optimizer.state
    assert rates(optimizer, scheduler, model) == expected


BESIDE = {
    "plateau": (lambda o: lr_scheduler.ReduceLROnPlateau(o), lambda one: one.step(1.0)),
    "one cycle": (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20), lambda one: one.step()),
    "constant": (lambda o: lr_scheduler.ConstantLR(o, 1.0), lambda one: one.step()),
}


@pytest.mark.parametrize("kind", BESIDE)
def test_beside_a_scheduler_that_comes_back_its_learning_rate_does(tmp_path, caplog, kind):
    model, optimizer = build()
    held = {"a": lr_scheduler.StepLR(optimizer, 1, 0.1)}
    with dq.Checkpointer(tmp_path, model, optimizer, scheduler=held, **EXACT) as checkpoints:
        for _ in range(2):
            one_step(model, optimizer, net_loss, held["a"])
        checkpoints.save()
    rate = optimizer.param_groups[0]["lr"]
    model, optimizer = build()
    make, step = BESIDE[kind]
    schedulers = {"a": lr_scheduler.StepLR(optimizer, 1, 0.1), "b": make(optimizer)}
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, scheduler=schedulers)
    with checkpoints, caplog.at_level(logging.WARNING):
        checkpoints.restore(fresh="scheduler.b")
    assert optimizer.param_groups[0]["lr"] == rate
    assert "optimizer goes on at learning rate 0.0001, that of the checkpoint" in caplog.text
    one_step(model, optimizer, net_loss, schedulers["a"])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(rate / 10)
    step(schedulers["b"])  # finds what it has noted when it was made


@pytest.mark.parametrize(("kind", "rate"), [("plateau", 1e-6), ("one cycle", 0.004)])
def test_a_rate_set_by_hand_stays_with_a_new_scheduler_that_sets_none(tmp_path, caplog, kind, rate):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, **EXACT) as checkpoints:
        optimizer.param_groups[0]["lr"] = 1e-6
        checkpoints.save()
    model, optimizer = build()
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, scheduler=BESIDE[kind][0](optimizer))
    with checkpoints, caplog.at_level(logging.WARNING):
        checkpoints.restore(fresh="scheduler")
    assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    assert f"goes on at learning rate {rate:g}" in caplog.text


def several(names):
    models = {name: nn.Linear(4, 4) for name in names}
    optimizers = {
        name: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for name, model in models.items()
    }
    return models, optimizers, {name: lr_scheduler.StepLR(one, 1, 0.5) for name, one in optimizers.items()}


def test_of_several_schedulers_one_may_be_new(tmp_path):
    models, optimizers, schedulers = several("gd")
    held = {"g": schedulers["g"]}
    with dq.Checkpointer(tmp_path, models, optimizers, scheduler=held, **EXACT) as checkpoints:
        for name in "gd":
            optimizers[name].step()
        schedulers["g"].step()
        checkpoints.save()
    models, optimizers, schedulers = several("gd")
    optimizers["d"].param_groups[0]["lr"] = 0.3  # as a scheduler that warms up sets it
    with dq.Checkpointer(tmp_path, models, optimizers, scheduler=schedulers) as checkpoints:
        with pytest.raises(StateMismatchError, match=r'fresh=\("scheduler.d",\)'):
            checkpoints.restore()
        checkpoints.restore(fresh=("scheduler.d",))
    assert (schedulers["g"].last_epoch, schedulers["d"].last_epoch) == (1, 0)
    assert [optimizers[name].param_groups[0]["lr"] for name in "gd"] == [0.05, 0.3]


def test_models_optimizers_and_schedulers_left_out_are_said(tmp_path, caplog):
    models, optimizers, schedulers = several("gd")
    with dq.Checkpointer(tmp_path, models, optimizers, scheduler=schedulers, **EXACT) as checkpoints:
        checkpoints.save()
    kept = [{"g": objects["g"]} for objects in (models, optimizers, schedulers)]
    checkpoints = dq.Checkpointer(tmp_path, kept[0], kept[1], scheduler=kept[2])
    with checkpoints, caplog.at_level(logging.WARNING):
        assert checkpoints.restore() == 0
    assert "for lack of an object: model.d, optimizer.d, scheduler.d" in caplog.text
    caplog.clear()
    checkpoints = dq.Checkpointer(tmp_path, models, optimizers, scheduler=schedulers)
    with checkpoints, caplog.at_level(logging.WARNING):
        checkpoints.restore()
    assert "for lack of an object" not in caplog.text


class Seen(nn.Module):
    """Keeps all that it has seen, as a metric does, and grows as it loads."""

    def __init__(self, count=0):
        super().__init__()
        self.register_buffer("seen", torch.arange(float(count)))

    def _load_from_state_dict(self, state, prefix, *rest):
        self.seen = state[prefix + "seen"]


def test_a_module_in_extra_that_grows_as_it_loads_is_asked_nothing_beforehand(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(
        tmp_path, model, optimizer, extra={"seen": Seen(5)}, every=2, **EXACT
    ) as checkpoints:
        train(model, optimizer, checkpoints, 2)
    empty = Seen()
    model, optimizer = build()
    assert dq.Checkpointer(tmp_path, model, optimizer, extra={"seen": empty}, **EXACT).restore() == 2
    assert empty.seen.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
