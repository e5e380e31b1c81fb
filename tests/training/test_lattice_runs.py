"""A run that is saved with the method `lattice`: searched, restored, gone on with; what restores lose."""

from __future__ import annotations

import copy

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.store.catalogue import Catalogue
from dynaquant_core.store.chain import open_chain
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


def epochs(folder):
    """The epoch of the newest lattice at each checkpoint, and what its weights decode to."""
    scan, found = Catalogue(folder).scan(), []
    for entry in scan.current().values():
        with open_chain(scan, entry) as chain:
            reference = chain.hold()["weights"].reference
        found.append((reference.epoch, bits(dict(reference.state()))))
    return found


def run_between(folder, between):
    """A run of three checkpoints; ``between`` is done after the second."""
    seed_everything(6)
    model, optimizer = gpt()
    with checkpointer(folder, model, optimizer, evaluate=None, max_chain=8) as checkpoints:
        assert checkpoints.restore() == 0
        for _ in range(15):
            one_step(model, optimizer, gpt_loss)
            checkpoints.step()
            if checkpoints.completed == 10:
                checkpoints.wait()
                between(checkpoints)
    return epochs(folder)


def test_looking_at_checkpoints_changes_no_later_one(tmp_path):
    def look(checkpoints):
        for step in (5, 10, None):
            checkpoints.store.load(step)
        checkpoints.store.load(names="model.*")

    untouched = run_between(tmp_path / "untouched", lambda _: None)
    assert run_between(tmp_path / "looked", look) == untouched
    assert len({epoch for epoch, _ in untouched}) == 1


@pytest.mark.parametrize("step", [None, 10])
def test_restoring_draws_every_offset_anew(tmp_path, step):
    first, second, third = (
        epoch for epoch, _ in run_between(tmp_path, lambda checkpoints: checkpoints.restore(step))
    )
    assert (second, third) == (first, (first + 1) % 2**32)


@pytest.mark.parametrize("way", ["load", "resume", "load_into", "another object"])
def test_in_doubt_a_load_is_a_restore(tmp_path, way):
    seed_everything(6)
    model, optimizer = gpt()
    store = dq.CheckpointStore(tmp_path, method="lattice")
    for step in range(1, 4):
        one_step(model, optimizer, gpt_loss)
        state = capture(Subject(model, optimizer), step)
        if step == 3 and way == "load_into":
            store.load_into(copy.deepcopy(state))
        elif step == 3 and way == "another object":
            store.close()
            store = dq.CheckpointStore(tmp_path, method="lattice")
            store.load()
        elif step == 3:
            getattr(store, way)()
        store.save(step, state)
    first, second, third = (epoch for epoch, _ in epochs(tmp_path))
    assert (second, third) == (first, (first + 1) % 2**32)


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
