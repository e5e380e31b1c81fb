"""What a power loss can take of a checkpoint: nothing, once an older one has gone because of it."""

import os
import shutil
from contextlib import contextmanager

import pytest

from dynaquant_transformers import DynaQuantCallback
from tests.integrations.transformers.kit import EXACT, checkpoints, names, trainer


@contextmanager
def watched(monkeypatch, output, gone):
    """Calls ``gone(step, durable, named)`` when the folder of a step is removed.

    ``durable`` are the inodes that were made durable so far, ``named`` what the output folder held when it
    was, last.
    """
    fsync, rmtree, durable, named = os.fsync, shutil.rmtree, set(), []

    def syncs(descriptor):
        fsync(descriptor)
        inode = os.fstat(descriptor).st_ino
        durable.add(inode)
        if inode == output.stat().st_ino:
            named.append(names(output))

    def removes(path, *rest, **more):
        if str(path).startswith(str(output / "checkpoint-")):
            gone(int(str(path).rpartition("-")[2]), durable, named[-1] if named else set())
        return rmtree(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", syncs)
        patch.setattr(shutil, "rmtree", removes)
        yield


def test_an_older_checkpoint_goes_only_once_the_newer_one_survives_a_power_loss(tmp_path, monkeypatch):
    said = []

    def gone(step, durable, named):
        newest = tmp_path / f"checkpoint-{step + 2}"
        left = [path.name for path in newest.rglob("*") if path.stat().st_ino not in durable]
        said.append((step, left, newest.name in named, newest.stat().st_ino in durable))

    with watched(monkeypatch, tmp_path, gone):
        trainer(tmp_path, DynaQuantCallback(**EXACT), save_total_limit=1).train()
    assert checkpoints(tmp_path) == [8]
    assert said == [(step, [], True, True) for step in (2, 4, 6)]


@pytest.mark.parametrize("damage", [b"", b"PK\3\4 half"])
@pytest.mark.parametrize("name", ["trainer_state.json", "scheduler.pt", "rng_state.pth"])
def test_a_small_file_that_a_power_loss_has_taken_is_damage_too(tmp_path, caplog, name, damage):
    trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=4).train()
    (tmp_path / "checkpoint-4" / name).write_bytes(damage)
    one = trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=6)
    one.train(resume_from_checkpoint=True)
    assert one._initial_global_step == 2
    assert name in caplog.text
    assert checkpoints(tmp_path) == [2, 4, 6]


def test_a_damaged_scale_of_gradients_is_passed_over(tmp_path, caplog):
    def life(steps):
        return trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=steps, fp16=True)

    life(4).train()
    (tmp_path / "checkpoint-4" / "scaler.pt").write_bytes(b"")
    one = life(6)
    one.train(resume_from_checkpoint=True)
    assert one._initial_global_step == 2
    assert "scaler.pt" in caplog.text


def test_random_streams_of_another_rank_are_looked_at_before_all_resume(tmp_path, caplog):
    trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=4).train()
    (tmp_path / "checkpoint-4" / "rng_state_1.pth").write_bytes(b"")
    one = trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=6)
    one.train(resume_from_checkpoint=True)
    assert one._initial_global_step == 2
    assert "rng_state_1.pth" in caplog.text


def test_without_random_streams_a_checkpoint_is_whole(tmp_path):
    """As natively: somebody has taken them away, and the Trainer goes on without them."""
    trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=4).train()
    (tmp_path / "checkpoint-4" / "rng_state.pth").unlink()
    one = trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=6)
    one.train(resume_from_checkpoint=True)
    assert one._initial_global_step == 4
