"""Modules that migrate what an older version of their class wrote, and must not migrate it twice."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import dynaquant_core as dq
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.training.capture import capture
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject
from dynaquant_core.training.versions import as_state_dict, versions_of
from tests.training.models import EXACT, bits


class FirstScale(nn.Module):
    """Holds the logarithm of its scale."""

    def __init__(self, value=3.0):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), value))

    def forward(self, x):
        return x * self.scale.exp()


class Scale(FirstScale):
    """Holds its scale, and takes what has no version for what `FirstScale` wrote."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        if local_metadata.get("version", 1) < 2:
            state_dict[prefix + "scale"] = state_dict[prefix + "scale"].exp()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def forward(self, x):
        return x * self.scale


class Strict(Scale):
    """Insists on a version, as MNASNet of torchvision does, and on a word of its own beside it."""

    def __init__(self, value=3.0):
        super().__init__(value)
        self.seen = None
        self._register_state_dict_hook(say)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        if local_metadata.get("version") not in (1, 2):
            raise ValueError(f"version should be 1 or 2, not {local_metadata.get('version')}")
        self.seen = local_metadata.get("layout")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def say(module, state_dict, prefix, local_metadata):
    local_metadata |= {"layout": "rows", "kind": type(module)}


def net(middle=Scale, value=3.0):
    torch.manual_seed(0)
    uncounted = nn.BatchNorm1d(4, track_running_stats=False)  # version 2, and has no counter to tell it by
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), middle(value), uncounted, nn.Linear(4, 2))


def run_of(model):
    return Subject(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def trained(run, steps=3):
    for step in range(steps):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        run.optimizer.zero_grad()
        run.model(inputs).square().mean().backward()
        run.optimizer.step()
    return run


def wrapped(model):
    model[1], model[2] = checkpoint_wrapper(model[1]), checkpoint_wrapper(model[2])
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("middle", [Scale, Strict])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, middle):
    """As with torch's own ``state_dict``: batch norm's counter, a module that migrates, one that insists."""
    run = trained(run_of(net(middle)))
    with dq.Checkpointer(tmp_path, run.model, run.optimizer, **EXACT) as checkpoints:
        checkpoints.save()
    resumed = run_of(net(middle, value=7.0))
    with dq.Checkpointer(tmp_path, resumed.model, resumed.optimizer, **EXACT) as checkpoints:
        checkpoints.restore()
    assert resumed.model[1].num_batches_tracked == 3
    assert bits(resumed.model.state_dict()) == bits(run.model.state_dict())
    assert resumed.model.state_dict()._metadata == run.model.state_dict()._metadata
    trained(run), trained(resumed)
    assert bits(capture(resumed, 6)) == bits(capture(run, 6))


def test_what_an_older_class_wrote_is_migrated_once(tmp_path):
    """The class has become another one since the checkpoint was saved."""
    old, now = net(FirstScale, value=1.0), net(Scale)
    with dq.Checkpointer(tmp_path, old, **EXACT) as checkpoints:
        checkpoints.save()
    for _ in range(2):
        with dq.Checkpointer(tmp_path, now, **EXACT) as checkpoints:
            checkpoints.restore()
            assert torch.equal(now[2].scale, torch.full((4,), 1.0).exp())
            checkpoints.save()


def test_all_that_a_module_said_comes_back_but_what_no_checkpoint_can_hold():
    run = run_of(net(Strict))
    assert capture(run, 0)["versions"] == {"2": {"version": 2, "layout": "rows"}, "3": 2}
    tree = capture(run, 0)
    tree["versions"]["2"]["layout"] = "columns"
    put_back(run, tree)
    assert run.model[2].seen == "columns"


@pytest.mark.parametrize("before", [lambda model: model, wrapped], ids=["plain", "wrapped"])
@pytest.mark.parametrize("after", [lambda model: model, wrapped], ids=["plain", "wrapped"])
def test_wrapped_and_plain_models_take_each_others_versions(before, after):
    run, resumed = Subject(before(net())), Subject(after(net(value=7.0)))
    put_back(resumed, copy.deepcopy(capture(run, 0)))
    assert bits(capture(resumed, 0)["model"]) == bits(capture(run, 0)["model"])
    metadata = as_state_dict(
        resumed.model, *[capture(run, 0)[part] for part in ("model", "versions")]
    )._metadata
    assert metadata == resumed.model.state_dict()._metadata


def test_several_models_have_their_own():
    models = {"old": net(FirstScale), "new": net(Scale), "none": nn.Linear(2, 2)}
    versions = capture(Subject(models), 0)["versions"]
    assert versions == {"old": {"3": 2}, "new": {"2": 2, "3": 2}, "none": {}}
    others = {"old": net(FirstScale, 7.0), "new": net(Scale, 7.0), "none": nn.Linear(2, 2)}
    put_back(Subject(others), copy.deepcopy(capture(Subject(models), 0)))
    assert bits(capture(Subject(others), 0)) == bits(capture(Subject(models), 0))


def test_a_checkpoint_from_before_is_taken_for_one_of_the_classes_of_now():
    run, tree = run_of(net(Strict, 7.0)), capture(run_of(net(Strict)), 0)
    del tree["versions"]
    put_back(run, tree)
    assert torch.equal(run.model[2].scale, torch.full((4,), 3.0))


def test_most_models_cost_nothing_and_one_that_says_nothing_is_given_nothing():
    class Silent(nn.Linear):
        def state_dict(self, *args, **kwargs):
            return dict(super().state_dict(*args, **kwargs))

        def load_state_dict(self, state_dict, *args, **kwargs):
            assert not hasattr(state_dict, "_metadata")
            return super().load_state_dict(state_dict, *args, **kwargs)

    plain = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.LayerNorm(4), nn.TransformerEncoderLayer(4, 2)
    )
    assert versions_of(plain, plain.state_dict()) == {}
    silent = Silent(2, 2)
    put_back(Subject(silent), capture(Subject(silent), 0))


def test_a_module_that_refuses_an_older_version_still_says_so():
    run = run_of(net(Strict))
    tree = capture(run, 0)
    tree["versions"]["2"] = 0
    with pytest.raises(StateMismatchError, match="version should be 1 or 2, not 0"):
        put_back(run, tree)


@pytest.mark.parametrize("middle", [Scale, Strict])
@pytest.mark.parametrize("wrap", [lambda model: model, torch.optim.swa_utils.AveragedModel, wrapped])
def test_a_module_in_extra_is_migrated_no_more_often(tmp_path, middle, wrap):
    """An average of the weights, of which a state dictionary says as much as of the model."""
    average = wrap(net(middle))
    with dq.Checkpointer(tmp_path, nn.Linear(1, 1), extra={"ema": average}, **EXACT) as checkpoints:
        checkpoints.save()
    again = wrap(net(middle, value=7.0))
    with dq.Checkpointer(tmp_path, nn.Linear(1, 1), extra={"ema": again}, **EXACT) as checkpoints:
        checkpoints.restore()
    assert bits(again.state_dict()) == bits(average.state_dict())
    assert again.state_dict()._metadata == average.state_dict()._metadata


def test_modules_in_extra_of_older_checkpoints_are_taken_to_be_of_today():
    average, again = net(), net(value=7.0)
    tree = capture(Subject(nn.Linear(1, 1), extra={"ema": average}), 0)
    del tree["extra_versions"]
    put_back(Subject(nn.Linear(1, 1), extra={"ema": again}), tree)
    assert torch.equal(again[2].scale, average[2].scale)
