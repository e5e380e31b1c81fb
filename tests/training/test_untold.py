"""Saves between an optimizer's step and the call that tells of it, in the midst of one, or of none at all."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import dynaquant_core as dq
from dynaquant_core.handlers import in_handler
from tests.training.models import (
    EXACT,
    Interruptible,
    bits,
    build,
    net_loss,
    one_step,
    seed_everything,
    train,
)

UNTOLD = "an optimizer has stepped"


@pytest.fixture
def on_signal():
    """Sets what SIGUSR1 does for one test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


class Run:
    """A loop of a step, a scheduler's step, what comes ``between`` at ``at``, and the word of it."""

    def __init__(self, folder, **options):
        seed_everything()
        self.model, self.optimizer = build()
        self.scheduler = StepLR(self.optimizer, 4)
        options = {"every": 100, "scheduler": self.scheduler, **EXACT, **options}
        self.saves = dq.Checkpointer(folder, self.model, self.optimizer, **options)

    def train(self, upto, at=None, between=None):
        for step in range(self.saves.completed, upto):
            torch.manual_seed(step)
            one_step(self.model, self.optimizer, net_loss)
            if step == at:
                between()
            self.scheduler.step()
            self.saves.step()

    def state(self):
        parts = self.model, self.optimizer, self.scheduler
        return [bits(part.state_dict()) for part in parts]


# -- asked for by a handler --------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["function", "partial", "object"])
def test_what_a_handler_asks_for_between_a_step_and_its_word_is_of_that_step(tmp_path, on_signal, made):
    """The weights of step 7 were stored as step 6: a resumed run took the seventh step twice."""
    run = Run(tmp_path / "run")

    class Asking:
        def __call__(self, *_):
            run.saves.save()

    asking = {
        "function": lambda *_: run.saves.save(),
        "partial": functools.partial(lambda saves, *_: saves.save(), run.saves),
        "object": Asking(),
    }
    on_signal(asking[made])
    run.train(10, at=6, between=lambda: signal.raise_signal(signal.SIGUSR1))
    run.saves.wait()
    assert run.saves.store.steps() == [7]
    again = Run(tmp_path / "run")
    run.saves.close()
    assert again.saves.restore() == 7
    again.train(10)
    again.saves.close()
    assert again.state() == run.state()


def test_where_the_handler_ends_the_process_the_state_is_saved_all_the_same(tmp_path, on_signal, caplog):
    """A validation between the two may take minutes: much would be lost that had been asked for."""
    run = Run(tmp_path)

    def handler(*_):
        run.saves.save()
        raise SystemExit(0)

    on_signal(handler)
    with pytest.raises(SystemExit), run.saves:
        run.train(10, at=6, between=lambda: signal.raise_signal(signal.SIGUSR1))
    assert run.saves.store.steps() == [6]
    assert bits(dq.CheckpointStore(tmp_path).load(6)["model"]) == bits(dict(run.model.state_dict()))
    assert caplog.text.count(f"{UNTOLD} since step() was last called") == 1


def test_a_whole_checkpoint_of_the_step_stays_where_the_process_ends(tmp_path, on_signal):
    run = Run(tmp_path, every=6)

    def handler(*_):
        run.saves.save()
        run.saves.close()
        raise SystemExit(0)

    on_signal(handler)
    run.train(6)
    whole = bits(dict(run.model.state_dict()))
    with pytest.raises(SystemExit):
        run.train(10, at=6, between=lambda: signal.raise_signal(signal.SIGUSR1))
    assert bits(dq.CheckpointStore(tmp_path).load(6)["model"]) == whole


ENDS = """
import signal, sys, torch
import dynaquant_core as dq
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def main():
    saves = dq.Checkpointer(sys.argv[1], model, optimizer, every=100, exact="*")
    def handler(*_):
        saves.save()
        sys.exit(3)
    signal.signal(signal.SIGUSR1, handler)
    for step in range(4):
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        if step == 2:
            signal.raise_signal(signal.SIGUSR1)
        saves.step()
main()
"""


def test_so_it_is_in_a_script_that_closes_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", ENDS, str(tmp_path)], timeout=120, check=False)
    assert done.returncode == 3
    assert dq.CheckpointStore(tmp_path).steps() == [2]


def test_a_handler_that_was_never_told_of_a_step_saves_at_once(tmp_path, on_signal):
    """No word will come that it could wait for."""
    run = Run(tmp_path)
    on_signal(lambda *_: run.saves.save())
    one_step(run.model, run.optimizer, net_loss)
    signal.raise_signal(signal.SIGUSR1)
    run.saves.wait()
    assert run.saves.store.steps() == [0]
    run.saves.close()


def test_who_is_no_handler_is_told_so():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(in_handler()))
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert (seen, in_handler()) == ([True], False)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert not in_handler()
    finally:
        signal.signal(signal.SIGUSR1, before)


# -- asked for by the loop itself --------------------------------------------------------------------


def test_the_loop_itself_gets_its_save_where_it_asks_and_is_told_once(tmp_path, caplog):
    """The last, part accumulation of an epoch: no step() may follow that would make it."""
    run = Run(tmp_path)
    with run.saves:
        run.train(3)
        for _ in range(2):
            one_step(run.model, run.optimizer, net_loss)
            run.saves.save()
        assert run.saves.wait().step == 3
        assert bits(dq.CheckpointStore(tmp_path).load(3)["model"]) == bits(dict(run.model.state_dict()))
    assert caplog.text.count(f"{UNTOLD} since step() was last called") == 1


def test_a_loop_that_only_saves_is_told_that_no_step_is_counted(tmp_path, caplog):
    """Everything was step 0: a resumed run began at the beginning, with trained weights and no word of it."""
    run = Run(tmp_path)
    with run.saves:
        run.saves.save()
        assert UNTOLD not in caplog.text
        for _ in range(3):
            one_step(run.model, run.optimizer, net_loss)
            run.saves.save()
    assert caplog.text.count(f"step 0, at which restore() will begin, but {UNTOLD} and step() was never") == 1


@pytest.mark.parametrize("method", ["after the last", "several", "accumulated", "restored"])
def test_a_loop_that_tells_of_its_steps_hears_nothing(tmp_path, caplog, method):
    run = Run(tmp_path, every=4)
    other = torch.optim.SGD(run.model.parameters(), lr=1e-3)
    if method == "several":
        run.saves.close()
        run.saves = dq.Checkpointer(tmp_path, run.model, {"a": run.optimizer, "b": other}, every=4, **EXACT)
    with run.saves:
        for step in range(12):
            net_loss(run.model).backward()
            if method == "accumulated" and step % 2 == 0:
                continue
            run.optimizer.step()
            if method == "several":
                other.step()
            run.saves.step()
        if method == "restored":
            one_step(run.model, run.optimizer, net_loss)
            run.saves.restore()
        run.saves.save()
    assert not caplog.records


# -- half of a step ----------------------------------------------------------------------------------


def ctrl_c():
    raise KeyboardInterrupt


@pytest.fixture
def broken_off(tmp_path, request):
    """A run whose fourth step ends in Ctrl-C, of which nobody tells."""
    model, _ = build()
    optimizer = Interruptible(model.parameters(), 0.1, ctrl_c)
    options = {"every": 3, **EXACT, **getattr(request, "param", {})}
    with dq.Checkpointer(tmp_path, model, optimizer, **options) as saves:
        train(model, optimizer, saves, 3)
        saves.wait()
        optimizer.armed = True
        with pytest.raises(KeyboardInterrupt):
            one_step(model, optimizer, net_loss)
        yield SimpleNamespace(model=model, optimizer=optimizer, saves=saves)


def test_half_of_a_step_is_not_saved_and_the_checkpoint_before_stays(broken_off):
    saves = broken_off.saves
    with pytest.raises(dq.SaveError, match=r"after step 3 .* call step\(\) first .* \(save_on='SIGINT'"):
        saves.save()
    assert saves.store.newest().step == 3
    assert not torch.equal(saves.store.load(3)["model"]["body.0.weight"], broken_off.model.body[0].weight)


@pytest.mark.parametrize("broken_off", [{"on_error": "warn"}], indirect=True)
def test_nor_where_failed_saves_are_logged(broken_off, caplog):
    broken_off.saves.save()
    assert "half of the weights may have moved" in caplog.text
    assert broken_off.saves.wait().step == 3


@pytest.mark.parametrize("then", ["told", "stepped", "restored"])
def test_after_it_a_run_goes_on_as_it_likes(broken_off, then):
    saves = broken_off.saves
    if then == "told":  # as the message says
        saves.step()
    elif then == "stepped":
        one_step(broken_off.model, broken_off.optimizer, net_loss)
    else:
        assert saves.restore() == 3
    wanted = bits(dict(broken_off.model.state_dict()))
    saves.save()
    saves.wait()
    assert bits(saves.store.load(4 if then == "told" else 3)["model"]) == wanted


# -- an optimizer of which nothing is heard ----------------------------------------------------------


def test_an_optimizer_that_was_made_again_is_said_at_a_save(tmp_path, caplog):
    """Staged unfreezing: the state of the one that no longer stepped was saved to the end, without a word."""
    run = Run(tmp_path, every=6)
    with run.saves:
        run.train(6)
        run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3)
        for _ in range(24):
            one_step(run.model, run.optimizer, net_loss)
            run.saves.step()
    assert caplog.text.count("if the run has made a new optimizer, its state is in no checkpoint") == 1


def test_steps_that_a_scaler_skips_are_not_taken_for_those_of_another(tmp_path, caplog):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, **EXACT) as saves:
        for _ in range(3):
            for _ in range(6):
                saves.step()
            train(model, optimizer, saves, 1)
    assert not caplog.records


def test_a_run_without_an_optimizer_is_not_asked_for_one(tmp_path, caplog):
    with dq.Checkpointer(tmp_path, nn.Linear(4, 4), every=20, **EXACT) as saves:
        for _ in range(20):
            saves.step()
    assert not caplog.records
