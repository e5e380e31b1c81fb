"""Mixed precision with a gradient scaler: the scale and its growth go on where they were."""

import pytest
import torch

from tests.integrations import scaler
from tests.integrations.accelerate.kit import EPOCH, EXACT, build, evaluate, everything, resume, train


def scaled(folder, **given):
    """A training whose first steps overflow."""
    return build(folder, mixed_precision="fp16", **given)


def state(bench):
    """All of a run, scale and growth tracker included."""
    return everything(bench) | {"scaler": bench.accelerator.scaler.state_dict()}


def resumed(folder):
    """Another run that goes on from the checkpoint and has saved nothing itself."""
    again = resume(scaled(folder, seed=7, options=EXACT))
    assert again.done == again.ours.step < EPOCH, "a step that the scaler skips is none"
    again.done = EPOCH
    return train(again, 2 * EPOCH)


def test_scale_and_growth_of_a_resumed_run_are_those_of_the_uninterrupted_one(tmp_path):
    whole = train(scaled(tmp_path / "whole", ours=False), 2 * EPOCH)
    train(scaled(tmp_path / "cut", options=EXACT), EPOCH, save_every=EPOCH).ours.wait()
    file = tmp_path / "cut" / "checkpoints" / "checkpoint_0" / "scaler.pt"
    stored = torch.load(file, weights_only=True)
    assert (stored["scale"] < scaler.fresh()["scale"], stored["_growth_tracker"] > 0) == (True, True)
    assert state(resumed(tmp_path / "cut")) == state(whole)
    torch.save(scaler.fresh(), file)
    assert state(resumed(tmp_path / "cut"))["scaler"] != state(whole)["scaler"], "a lost scaler would be seen"
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"scaler\.pt"):
        resumed(tmp_path / "cut")


def test_a_search_leaves_the_scaler_alone(tmp_path):
    whole = train(scaled(tmp_path / "whole", ours=False), 2 * EPOCH)
    ours = train(scaled(tmp_path / "ours", options={"evaluate": evaluate}), 2 * EPOCH, save_every=EPOCH)
    assert ours.ours.wait().met
    assert state(ours) == state(whole)
