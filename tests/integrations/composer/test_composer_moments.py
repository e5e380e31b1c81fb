"""A checkpoint may be asked for at any moment: by a signal during a search, after an exception."""

import signal
import time

import pytest
import torch
from composer.core import Callback
from torch.nn import functional

from dynaquant_composer.pointer import folder_of
from dynaquant_core.plugins import describe
from dynaquant_core.plugins.line import Line
from tests.integrations.composer.kit import EXACT, bits, digits, names, ours, trainer


@pytest.fixture
def on_signal():
    """Sets what SIGUSR1 does for one test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, lambda *_: handler())
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("then", ["goes on", "ends"])
def test_a_signal_during_a_search_saves_the_model_and_no_candidate(tmp_path, on_signal, then):
    seen, asked = [], []
    images, labels = digits()[1].tensors

    def evaluate(model):
        seen.append(bits(model.state_dict()))
        if len(seen) == 2:
            signal.raise_signal(signal.SIGUSR1)
        return functional.cross_entropy(model.module(images), labels)

    def handler():
        asked.append(1)
        run.save_checkpoint_to_save_folder()
        if then == "ends":
            raise SystemExit(3)  # a cluster's warning: what was saved is all that remains

    on_signal(handler)
    callback = ours(tmp_path, evaluate=evaluate, threshold=0.5, moments="exact")
    run = trainer(callback, duration="3ba", width=256)
    try:
        run.fit()
    except SystemExit:
        assert then == "ends"
    run.close()  # as at the end of every process
    assert asked
    assert seen[1] != seen[0]
    with torch.no_grad():
        true = functional.cross_entropy(run.state.model.eval().module(images), labels)
    stored = describe(folder_of(tmp_path / "ep0-ba3-rank0.pt"))
    assert stored.quality["reference"] == pytest.approx(float(true))
    assert (tmp_path / "latest-rank0.pt").readlink().name == "ep0-ba3-rank0.pt"


def slowly(monkeypatch):
    put = Line.put
    monkeypatch.setattr(
        Line, "put", lambda self, what, job, *ended: put(self, what, lambda: (time.sleep(0.3), job()), *ended)
    )


class Interrupted(Callback):
    """As Ctrl-C, at the end of a batch."""

    def batch_end(self, state, logger):
        if int(state.timestamp.batch) == 2:
            raise KeyboardInterrupt


class Asks(Callback):
    """Saves out of turn and looks for what it saved."""

    def batch_end(self, state, logger):
        if int(state.timestamp.batch) == 2:
            self.run.save_checkpoint_to_save_folder()
            self.found = names(self.folder)


def test_a_save_after_an_exception_is_there_when_it_returns(tmp_path, monkeypatch):
    slowly(monkeypatch)
    run = trainer(ours(tmp_path, **EXACT), Interrupted())
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    run.save_checkpoint_to_save_folder()
    assert names(tmp_path) == ["ep0-ba2-rank0.pt", "ep0-ba2-rank0.pt.dynaquant", "latest-rank0.pt"]


def test_a_save_that_a_callback_asks_for_is_there_when_it_returns(tmp_path, monkeypatch):
    slowly(monkeypatch)
    asks = Asks()
    asks.run, asks.folder = trainer(ours(tmp_path, **EXACT), asks, duration="3ba"), tmp_path
    asks.run.fit()
    assert asks.found == ["ep0-ba2-rank0.pt", "ep0-ba2-rank0.pt.dynaquant", "latest-rank0.pt"]
