"""What a signal's handler raises, as torch does where a loader's worker is lost: it passes through."""

import logging
import signal

import pytest
import torch
from torch import nn

import dynaquant_core as dq
from dynaquant_core.format.index import as_damage
from dynaquant_core.handlers import by_handler
from dynaquant_core.training.guard import insist
from tests.training.models import build, net_loss, one_step


class TooLongError(RuntimeError):
    """Somebody's own."""


@pytest.fixture(autouse=True)
def alarm():
    """A handler that raises."""

    def handle(number, frame):
        raise TooLongError

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


def raised():
    with pytest.raises(TooLongError) as caught:
        signal.raise_signal(signal.SIGUSR1)
    return caught.value


def test_whose_error_it_is():
    assert by_handler(raised())
    of_it = ValueError()
    of_it.__cause__ = raised()
    assert by_handler(of_it)
    with pytest.raises(TooLongError) as caught:
        raise TooLongError
    assert not by_handler(caught.value)
    circle = ValueError()
    circle.__cause__ = circle
    assert not by_handler(circle)


def test_a_file_that_was_being_read_is_not_called_damaged():
    with pytest.raises(TooLongError), as_damage("a file"):
        signal.raise_signal(signal.SIGUSR1)


def test_weights_are_put_back_whole_first():
    ran = []

    def action():
        ran.append("begun")
        if len(ran) == 1:
            signal.raise_signal(signal.SIGUSR1)
        ran.append("done")

    with pytest.raises(TooLongError):
        insist(action)
    assert ran == ["begun", "begun", "done"]


class Interrupted(nn.Module):
    """Its state is asked for when a signal comes, so many times."""

    def __init__(self, times=10):
        super().__init__()
        self.times = times

    def state_dict(self):
        self.times -= 1
        if self.times >= 0:
            signal.raise_signal(signal.SIGUSR1)
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("on_error", ["warn", "raise"])
@pytest.mark.parametrize("where", ["state", "evaluate"])
def test_it_is_not_logged_as_a_save_that_failed(tmp_path, caplog, on_error, where):
    model, optimizer = build()
    given = {"evaluate": lambda *_: signal.raise_signal(signal.SIGUSR1)} if where == "evaluate" else {}
    more = {"extra": {"own": Interrupted()}} if where == "state" else {}
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, every=10**6, on_error=on_error, **given, **more)
    before = [p.clone() for p in model.parameters()]
    with caplog.at_level(logging.WARNING), pytest.raises(TooLongError):
        checkpoints.save()
    assert "training goes on" not in caplog.text
    assert all(map(torch.equal, before, model.parameters()))
    checkpoints.close()
    one_step(model, optimizer, net_loss)


def test_the_last_save_is_tried_again(tmp_path):
    """Where a group is terminated each loader that has lost its workers raises, whatever runs."""
    model, optimizer = build()
    own = Interrupted(0)
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, save_on="SIGUSR2", extra={"own": own})

    def body():
        one_step(model, optimizer, net_loss)
        checkpoints.step()
        own.times = 2
        signal.raise_signal(signal.SIGUSR2)
        signal.raise_signal(signal.SIGUSR1)

    with pytest.raises(TooLongError), checkpoints:
        body()
    assert checkpoints.requested_by == "SIGUSR2"
    assert checkpoints.store.steps() == [1]
