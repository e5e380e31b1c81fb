"""What an error advises where a checkpoint does not fit the model."""

import pytest
import torch
from torch import nn

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.training.capture import capture
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject
from tests.training.models import Net, bits, stored


def refusal(model, tree):
    with pytest.raises(StateMismatchError) as caught:
        put_back(Subject(model), tree)
    return str(caught.value)


def saved_of(model):
    return stored(capture(Subject(model), 1))


def test_a_wrapped_model_is_told_to_give_what_is_in_it():
    plain, wrapped = Net(), nn.DataParallel(Net())
    said = refusal(wrapped, saved_of(plain))
    assert "model.module" in said
    assert "Build the model" not in said
    assert "head.weight" not in said  # forty names would hide it
    put_back(Subject(wrapped.module), saved_of(plain))


def test_a_checkpoint_of_a_wrapped_model_is_told_to_be_one():
    plain, wrapped = Net(), nn.DataParallel(Net())
    said = refusal(plain, saved_of(wrapped))
    assert "model.module" in said
    assert "give nn.DataParallel(model)" in said
    assert "Build the model" not in said
    put_back(Subject(nn.DataParallel(plain)), saved_of(wrapped))
    assert bits(plain.state_dict()) == bits(wrapped.module.state_dict())


def test_what_differs_beside_the_wrapping_is_said_too():
    said = refusal(nn.DataParallel(Net(width=16)), saved_of(Net()))
    assert "model.module" in said
    assert "body.0.weight is (32, 16) float32 in the checkpoint and (16, 16) float32 in the model" in said
    assert "Build the model as it was built" in said


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (lambda: Net().to("meta"), "Materialise the model first"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "Run one forward pass first"),
    ],
)
def test_a_model_without_memory_or_shapes_gets_the_advice_that_fits_once(model, advice):
    tree = saved_of(Net() if "Mat" in advice else nn.Sequential(nn.Linear(2, 3)))
    said = refusal(model(), tree)
    assert said.count(advice) == 1
    assert "Build the model" not in said


def test_both_are_advised_where_both_are_needed():
    model = Net()
    model.head = nn.Linear(32, 4, device="meta")
    model.more = nn.Linear(2, 2)
    said = refusal(model, saved_of(Net()))
    assert "more.weight is not in the checkpoint" in said
    assert "Build the model" in said
    assert "Materialise the model first" in said


def test_several_models_are_named():
    models = {"a": Net(), "b": nn.DataParallel(Net())}
    tree = stored(capture(Subject({"a": Net(), "b": Net()}), 1))
    with pytest.raises(StateMismatchError, match=r"begin with b\.module\."):
        put_back(Subject(models), tree)
    tree["model"]["a"] = [torch.ones(1)]
    with pytest.raises(StateMismatchError, match="a is list in the checkpoint"):
        put_back(Subject(models), tree)
