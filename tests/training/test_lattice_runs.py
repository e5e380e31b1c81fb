"""A run that is saved with the method `lattice`: searched, restored, gone on with; what restores lose."""

from __future__ import annotations

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.training.capture import capture
from dynaquant_core.training.subject import Subject
from tests.training.models import (
    EXACT,
    bits,
    build,
    evaluate_gpt,
    evaluate_net,
    gpt_loss,
    net_loss,
    one_step,
    seed_everything,
    small_gpt,
)


def gpt():
    model = small_gpt(dropout=0.0)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def checkpointer(folder, model, optimizer, **options):
    defaults = {"method": "lattice", "every": 5, "evaluate": evaluate_gpt, "max_chain": 3}
    return dq.Checkpointer(folder, model, optimizer, **(defaults | options))


def lives(folder, count, steps=10, **options):
    """A run in so many lives; yields the info of each checkpoint."""
    for _ in range(count):
        model, optimizer = gpt()
        with checkpointer(folder, model, optimizer, **options) as checkpoints:
            checkpoints.restore()
            for _ in range(steps):
                one_step(model, optimizer, gpt_loss)
                checkpoints.step()
                if checkpoints.completed % 5 == 0:
                    yield checkpoints.wait()


def test_with_everything_exact_a_resumed_run_is_bit_identical(tmp_path):
    def run(folder, stop):
        seed_everything(5)
        model, optimizer = build()
        with checkpointer(folder, model, optimizer, evaluate=evaluate_net, **EXACT) as checkpoints:
            for _ in range(checkpoints.restore(), stop):
                one_step(model, optimizer, net_loss)
                checkpoints.step()
        return bits(capture(Subject(model, optimizer), stop))

    whole = run(tmp_path / "whole", 23)
    for stop in (8, 16):
        run(tmp_path / "cut", stop)
    assert run(tmp_path / "cut", 23) == whole


def test_saving_does_not_touch_the_run(tmp_path):
    def run(saved):
        seed_everything(3)
        model, optimizer = gpt()
        checkpoints = checkpointer(tmp_path, model, optimizer) if saved else None
        for _ in range(12):
            one_step(model, optimizer, gpt_loss)
            if checkpoints is not None:
                checkpoints.step()
        if checkpoints is not None:
            checkpoints.close()
        return bits(capture(Subject(model, optimizer), 12))

    assert run(True) == run(False)


def test_a_run_of_several_lives_keeps_its_promise_and_its_movement(tmp_path):
    seed_everything(1)
    infos = list(lives(tmp_path, 3))
    assert [info.step for info in infos] == list(range(5, 35, 5))
    assert all(info.report["met"] and info.report["degradation"] <= 0.01 for info in infos)
    assert {info.kind for info in infos} == {"key", "delta"}
    for info in infos:
        lost = info.report.get("movement_lost")
        if lost:  # exact ones lose nothing
            weights = 27_000
            assert abs(lost["stale"]) <= 4.4 * (lost["noise"] / weights) ** 0.5 + 1e-6
    assert sum("movement_lost" in info.report for info in infos) >= 3
    store = dq.CheckpointStore(tmp_path)
    assert store.verify(deep=True) == []
    model, _ = gpt()
    model.load_state_dict(store.load()["model"])
    with torch.no_grad():
        assert float(evaluate_gpt(model).mean()) < 3.0  # of log(31) = 3.4 untrained


@pytest.mark.parametrize("moments", ["8bit", "none"])
def test_compaction_in_the_middle_of_a_run(tmp_path, moments):
    seed_everything(4)
    list(lives(tmp_path, 2, moments=moments, keep_last=2))
    model, optimizer = gpt()
    with checkpointer(tmp_path, model, optimizer, moments=moments, keep_last=2, max_chain=1) as checkpoints:
        start = checkpoints.restore()
        before = checkpoints.store.load(start)["model"]
        checkpoints.store.compact()
        assert bits(checkpoints.store.load(start)["model"]) == bits(before)
        for _ in range(5):
            one_step(model, optimizer, gpt_loss)
            checkpoints.step()
        assert checkpoints.wait().step == start + 5
    assert dq.CheckpointStore(tmp_path).verify(deep=True) == []
