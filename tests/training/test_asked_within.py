"""A handler may ask for a save in the middle of another, when the model holds a candidate."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import dynaquant_core as dq
from dynaquant_core.store import commit
from tests.training.models import Interruptible


@pytest.fixture
def on_signal():
    """Sets what SIGUSR1 does for one test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, lambda *_: handler())
    signal.signal(signal.SIGUSR1, before)


class Run:
    """A regression whose evaluate is interrupted at its ``at``-th call."""

    def __init__(self, folder, at, **options):
        torch.manual_seed(0)
        self.inputs = torch.randn(64, 32)
        self.wanted = self.inputs @ torch.randn(32, 32)
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.calls, self.at = 0, at
        self.saves = dq.Checkpointer(
            folder, self.model, self.optimizer, every=10, evaluate=self.evaluate, **options
        )

    def loss(self):
        return functional.mse_loss(self.model(self.inputs), self.wanted)

    def evaluate(self):
        self.calls += 1
        if self.calls == self.at:
            signal.raise_signal(signal.SIGUSR1)
        return self.loss().item()

    def train(self, steps=10):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.loss().backward()
            self.optimizer.step()
            self.saves.step()


def restored_loss(folder):
    run = Run(folder, at=0)
    assert run.saves.restore() == 10
    run.saves.close()
    return run.loss().item()


def leave(run):
    run.saves.save()
    run.saves.wait()
    raise SystemExit(0)


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_handler_that_saves_and_ends_the_process_saves_the_model(tmp_path, on_signal, at):
    run = Run(tmp_path, at)
    on_signal(lambda: leave(run))
    with pytest.raises(SystemExit):
        run.train()
    live = run.loss().item()
    run.saves.close()
    newest = dq.CheckpointStore(tmp_path).newest()
    assert newest.met
    assert newest.quality["reference"] == pytest.approx(live)
    assert restored_loss(tmp_path) <= live * 1.011


def test_so_does_one_that_closes_too(tmp_path, on_signal):
    run = Run(tmp_path, at=2)

    def handler():
        run.saves.save()
        run.saves.close()
        raise SystemExit(0)

    on_signal(handler)
    with pytest.raises(SystemExit), run.saves:
        run.train()
    assert restored_loss(tmp_path) <= run.loss().item() * 1.011
    with pytest.raises(dq.SaveError, match="closed"):
        run.saves.step()


def test_the_same_step_is_not_searched_twice_where_the_run_goes_on(tmp_path, on_signal):
    run = Run(tmp_path, at=2)
    on_signal(run.saves.save)
    run.train()
    run.saves.wait()
    calls = run.calls
    plain = Run(tmp_path / "plain", at=0)
    plain.train()
    plain.saves.wait()
    assert calls == plain.calls
    assert run.saves.last.config == plain.saves.last.config
    run.saves.close()
    plain.saves.close()


def test_an_earlier_save_of_the_same_step_does_not_count(tmp_path, on_signal):
    """The step was saved before a restore went back behind it."""
    run = Run(tmp_path, at=0)
    run.train(20)
    assert run.saves.restore(10) == 10
    run.at = run.calls + 2
    on_signal(lambda: leave(run))
    before = run.saves.store.load(20)
    with pytest.raises(SystemExit):
        run.train()
    run.saves.close()
    after = dq.CheckpointStore(tmp_path).load(20)
    assert any(not torch.equal(after["model"][name], value) for name, value in before["model"].items())


def test_a_tighter_one_that_was_asked_for_follows(tmp_path, on_signal):
    run = Run(tmp_path, at=2, threshold=0.2)
    on_signal(lambda: run.saves.save(threshold=1e-4))
    run.train()
    run.saves.close()
    assert restored_loss(tmp_path) <= run.loss().item() * 1.00011


def test_a_run_that_is_tried_again_goes_on_from_what_the_last_try_is_still_writing(tmp_path, monkeypatch):
    """A retry loop around a function that raised: its save is accepted, and its disk is slow."""
    gate, true = threading.Event(), commit.os.fsync

    def slow(descriptor):
        if threading.current_thread() is not threading.main_thread():
            gate.wait(20)
        true(descriptor)

    monkeypatch.setattr(commit.os, "fsync", slow)
    given_up = Run(tmp_path, at=0)
    given_up.train()
    threading.Timer(0.5, gate.set).start()
    again = Run(tmp_path, at=0)
    assert again.saves.restore() == 10
    again.train()
    again.saves.close()
    assert dq.CheckpointStore(tmp_path).newest().step == 20


class Interrupted:
    """Something in ``extra`` whose load a signal interrupts."""

    def __init__(self, armed):
        self.armed = armed

    def state_dict(self):
        return {"seen": 3}

    def load_state_dict(self, state):
        if self.armed:
            signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("ends", [True, False])
def test_a_handler_that_saves_in_the_middle_of_a_restore_saves_no_half_of_it(tmp_path, on_signal, ends):
    """The weights of one step were stored as step 0, with the random streams of none, as the newest."""
    first = Run(tmp_path, at=0, extra={"part": Interrupted(armed=False)})
    first.train()
    first.saves.close()
    files = sorted(path.name for path in tmp_path.glob("*.dq"))
    again = Run(tmp_path, at=0, extra={"part": Interrupted(armed=True)})
    on_signal(lambda: leave(again) if ends else again.saves.save())
    if ends:
        with pytest.raises(SystemExit):
            again.saves.restore()
        with pytest.raises(dq.StoreNotEmptyError, match="not to the end"):
            again.saves.save()
    else:
        assert again.saves.restore() == 10
    again.saves.close()
    assert sorted(path.name for path in tmp_path.glob("*.dq")) == files
    assert dq.CheckpointStore(tmp_path).newest().step == 10


def test_a_save_in_the_restore_of_an_empty_folder_follows(tmp_path, on_signal, monkeypatch):
    run = Run(tmp_path, at=0)
    on_signal(run.saves.save)
    resume = run.saves.store.resume

    def interrupted(step):
        signal.raise_signal(signal.SIGUSR1)
        assert run.saves.last is None
        return resume(step)

    monkeypatch.setattr(run.saves.store, "resume", interrupted)
    assert run.saves.restore() == 0
    run.saves.close()
    assert run.saves.store.steps() == [0]


def test_a_restore_in_the_middle_of_a_save_is_refused(tmp_path, on_signal):
    """It would be taken out of the model again with the candidate."""
    run = Run(tmp_path, at=0)
    run.train()
    refused = []

    def handler():
        try:
            run.saves.restore()
        except dq.SaveError as error:
            refused.append(str(error))

    run.at = run.calls + 2
    on_signal(handler)
    run.train()
    live = run.loss().item()
    run.saves.close()
    assert "in the middle of a save" in refused[0]
    assert run.saves.store.info(20).quality["reference"] == pytest.approx(live)


def stepped(optimizer, model):
    optimizer.zero_grad()
    model(torch.ones(1, 4)).square().sum().backward()
    optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture
def stepping(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = Interruptible(model.parameters(), 0.1, partial(signal.raise_signal, signal.SIGUSR1))
    with dq.Checkpointer(tmp_path, model, optimizer, every=100, exact="*") as saves:
        yield model, optimizer, saves


def test_a_handler_that_saves_in_the_middle_of_a_step_saves_a_whole_one(stepping, on_signal):
    """Half of the weights were those of this step, half of the one before, and so were the moments."""
    model, optimizer, saves = stepping
    on_signal(saves.save)
    stepped(optimizer, model)
    saves.step()
    optimizer.armed = True
    wanted = stepped(optimizer, model)
    assert saves.store.steps() == []
    saves.step()
    saves.wait()
    assert saves.store.steps() == [2]
    stored = saves.store.load(2)["model"]
    assert all(torch.equal(stored[name], value) for name, value in wanted.items())
    stepped(optimizer, model)
    saves.step()
    saves.save()  # of no step that is under way
    saves.wait()
    assert saves.store.steps() == [2, 3]


def test_one_that_ends_the_process_there_leaves_the_checkpoint_before(stepping, on_signal, caplog):
    model, optimizer, saves = stepping

    def handler():
        saves.save()
        raise SystemExit(0)

    on_signal(handler)
    stepped(optimizer, model)
    saves.step()
    saves.save()
    optimizer.armed = True
    with pytest.raises(SystemExit):
        stepped(optimizer, model)
    saves.close()
    assert saves.store.steps() == [1]
    assert "waited for the end of an optimizer's step was not made" in caplog.text


def test_a_step_that_is_told_from_a_hook_of_the_optimizer_is_complete(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: saves.step())  # before the Checkpointer's own
    with dq.Checkpointer(tmp_path, model, optimizer, every=1, exact="*") as saves:
        for step in (1, 2):
            stepped(optimizer, model)
            saves.wait()
            assert saves.last.step == step


def test_after_a_step_that_raised_a_save_does_not_wait(stepping, on_signal):
    """No end of it will come that it could wait for."""
    model, optimizer, saves = stepping

    def handler():
        raise KeyboardInterrupt

    on_signal(handler)
    optimizer.armed = True
    with pytest.raises(KeyboardInterrupt):
        stepped(optimizer, model)
    with pytest.raises(dq.SaveError, match="half of the weights"):
        saves.save()
    saves.step()
    saves.save()
    saves.wait()
    assert saves.store.steps() == [1]


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_a_handler_that_saves_while_the_run_is_closed_gets_its_save(
    tmp_path, on_signal, monkeypatch, saved, ends
):
    """A run that was through ended in "the Checkpointer is closed"."""
    run, true, closing, asked = Run(tmp_path, at=0), commit.os.fsync, threading.Event(), []

    def slow(descriptor):
        if threading.current_thread() is not threading.main_thread() and not asked:
            asked.append(closing.wait(20))
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.2)
        true(descriptor)

    run.train(10)
    run.saves.wait()
    monkeypatch.setattr(commit.os, "fsync", slow)
    run.train(10 if saved else 5)
    if not saved:
        run.saves.save()
        run.train(2)
    calls = run.calls
    on_signal(lambda: leave(run) if ends else run.saves.save())
    closing.set()
    with pytest.raises(SystemExit) if ends else nullcontext():
        run.saves.close()
    newest = dq.CheckpointStore(tmp_path).newest()
    assert newest.step == (20 if saved else 17)
    assert (run.calls > calls) == (not saved)
    with pytest.raises(dq.SaveError, match="closed"):
        run.saves.save()


def test_one_in_the_last_moment_of_a_close_is_let_be(tmp_path, on_signal, monkeypatch):
    run = Run(tmp_path, at=0)
    run.train()
    close = run.saves.store.close

    def interrupted():
        signal.raise_signal(signal.SIGUSR1)
        close()

    monkeypatch.setattr(run.saves.store, "close", interrupted)
    on_signal(run.saves.save)
    run.saves.close()
    assert dq.CheckpointStore(tmp_path).steps() == [10]
