"""Mixed precision with a gradient scaler: the scale and its growth go on where they were."""

import shutil

import torch

from dynaquant_core.plugins import describe
from dynaquant_transformers import DynaQuantCallback
from tests.integrations import scaler
from tests.integrations.transformers.kit import EXACT, checkpoints, everything, gpt, trainer

#: The step whose checkpoint is resumed: the scale has come down and is about to grow.
CUT = 5


def scaled(folder, *callbacks, **given):
    """A trainer of ten steps, of which the first ones overflow."""
    one = trainer(folder, *callbacks, **({"fp16": True, "max_steps": 10, "save_steps": CUT} | given))
    scaler.put_into(one.accelerator)
    return one


def state(one):
    """All of a training, scale and growth tracker included."""
    return everything(one) | {"scaler": one.accelerator.scaler.state_dict()}


def resumed(folder):
    again = scaled(folder, DynaQuantCallback(**EXACT), model=gpt(seed=9))
    again.train(resume_from_checkpoint=True)
    return again


def test_scale_and_growth_of_a_resumed_run_are_those_of_the_uninterrupted_one(tmp_path):
    whole = scaled(tmp_path / "native")
    whole.train()
    folder = tmp_path / "ours"
    scaled(folder, DynaQuantCallback(**EXACT)).train()
    shutil.rmtree(folder / "checkpoint-10")
    stored = torch.load(folder / "checkpoint-5" / "scaler.pt", weights_only=True)
    assert (stored["scale"] < scaler.fresh()["scale"], stored["_growth_tracker"] > 0) == (True, True)
    assert state(resumed(folder)) == state(whole)
    assert checkpoints(folder) == [5, 10]
    shutil.rmtree(folder / "checkpoint-10")
    (folder / "checkpoint-5" / "scaler.pt").unlink()
    assert state(resumed(folder))["scaler"] != state(whole)["scaler"], "a lost scaler would be seen"


def test_a_search_leaves_the_scaler_alone(tmp_path):
    whole = scaled(tmp_path / "native")
    whole.train()
    one = scaled(tmp_path / "ours", DynaQuantCallback(threshold=0.05))
    one.train()
    assert state(one) == state(whole)
    assert describe(tmp_path / "ours" / "checkpoint-10").met
