import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress

import pytest
from torch import nn

import dynaquant_core as dq
from dynaquant_core.errors import ConfigError
from dynaquant_core.store import writer
from dynaquant_core.training.signals import SignalFlag
from tests.training.models import EXACT, build, evaluate_net, net_loss, one_step, train


def test_a_signal_is_remembered_once_and_the_old_handler_comes_back():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        flag = SignalFlag(["SIGUSR1"])
        assert flag.take() is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert flag.take() == "SIGUSR1"
        assert flag.take() is None
        assert not seen
        flag.close()
        flag.close()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("name", ["SIGNOTHING", "SIGKILL", "15", 15, ["SIGTERM"]])
def test_what_cannot_be_caught_is_refused_and_leaves_nothing_behind(name):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ConfigError, match="save_on"):
        SignalFlag(["SIGTERM", name])
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_are_told_to_use_the_main_one():
    errors = []

    def run():
        try:
            SignalFlag(["SIGTERM"])
        except ConfigError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]


def test_one_signal_may_be_given_as_it_is():
    before = signal.getsignal(signal.SIGUSR1)
    flag = SignalFlag("SIGUSR1")
    assert signal.getsignal(signal.SIGUSR1) != before
    flag.close()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_none_is_no_signal_and_what_is_no_list_is_refused():
    assert SignalFlag(None).take() is None
    with pytest.raises(ConfigError, match="save_on must be names"):
        SignalFlag(3)


@pytest.mark.parametrize("first", [0, 1])
def test_flags_share_a_signal_and_close_in_any_order(first):
    before = signal.getsignal(signal.SIGUSR1)
    flags = [SignalFlag("SIGUSR1"), SignalFlag(["SIGUSR1", "SIGUSR1"])]
    os.kill(os.getpid(), signal.SIGUSR1)
    assert [flag.take() for flag in flags] == ["SIGUSR1"] * 2
    closed = flags.pop(first)
    closed.close()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (closed.take(), flags[0].take()) == (None, "SIGUSR1")
    flags[0].close()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_handler_over_ours_stays_and_reaches_the_one_before():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("before"))
    try:
        flag = SignalFlag("SIGUSR1")
        ours = signal.getsignal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, lambda *arguments: (seen.append("over"), ours(*arguments)))
        later = SignalFlag("SIGUSR1")
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (flag.take(), later.take(), seen) == ("SIGUSR1", "SIGUSR1", [])
        later.close()
        flag.close()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == ["over", "before"]
    finally:
        signal.signal(signal.SIGUSR1, before)


CHILDREN = """
import multiprocessing, os, signal, time
from dynaquant_core.training.signals import SignalFlag
from tests.training.models import EXACT, build, evaluate_net, train
flag = SignalFlag("SIGTERM")
fork = multiprocessing.get_context("fork")
for pause in (0, 0.2):
    child = fork.Process(target=time.sleep, args=(600,))
    child.start()
    time.sleep(pause)
    child.terminate()
    child.join()
    assert child.exitcode == -signal.SIGTERM, child.exitcode
with fork.Pool(2) as pool:
    pool.map_async(time.sleep, [600] * 2)
assert flag.take() is None
os.kill(os.getpid(), signal.SIGTERM)
assert flag.take() == "SIGTERM"
"""


def test_forked_children_can_be_terminated():
    subprocess.run([sys.executable, "-c", CHILDREN], check=True, timeout=120)


def test_a_checkpointer_that_was_given_up_leaves_signals_alone(tmp_path):
    """Nobody would answer: a process must end when it is asked to."""
    before = signal.getsignal(signal.SIGTERM)
    checkpoints = dq.Checkpointer(tmp_path / "store", nn.Linear(8, 2), save_on=("SIGTERM",))
    assert signal.getsignal(signal.SIGTERM) is not before
    del checkpoints
    gc.collect()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_after_the_last_step_is_answered_at_the_end(tmp_path, caplog):
    model = nn.Linear(8, 2)
    with dq.Checkpointer(tmp_path / "store", model, every=100, save_on=("SIGUSR1",)) as checkpoints:
        checkpoints.step()
        os.kill(os.getpid(), signal.SIGUSR1)
    assert checkpoints.requested_by == "SIGUSR1"
    assert checkpoints.store.steps() == [1]
    other = dq.Checkpointer(tmp_path / "other", model, every=100, save_on=("SIGUSR1",))
    os.kill(os.getpid(), signal.SIGUSR1)
    other.close()
    assert "nothing was saved for it" in caplog.text
    assert other.store.steps() == []


def test_who_never_told_of_a_step_saves_nothing_at_the_end(tmp_path, caplog):
    """Under DDP every rank restores and one saves: another wrote its weights under the step restored."""
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=1, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 2)
    before = sorted(path.name for path in tmp_path.glob("*.dq"))
    caplog.clear()
    other, trained = build()
    with dq.Checkpointer(tmp_path, other, trained, every=1, save_on="SIGUSR1", **EXACT) as checkpoints:
        assert checkpoints.restore() == 2
        one_step(other, trained, net_loss)  # as DDP has it
        os.kill(os.getpid(), signal.SIGUSR1)
    assert checkpoints.requested_by is None
    assert sorted(path.name for path in tmp_path.glob("*.dq")) == before
    assert caplog.text.count("SIGUSR1 is not answered") == 1
    assert "not answered before the end" not in caplog.text
    with dq.Checkpointer(tmp_path, other, trained, every=99, save_on="SIGUSR1", **EXACT) as checkpoints:
        checkpoints.restore()
        train(other, trained, checkpoints, 1)
        checkpoints.restore(1)
        os.kill(os.getpid(), signal.SIGUSR1)  # nothing was trained since
    assert sorted(path.name for path in tmp_path.glob("*.dq")) == before
    with dq.Checkpointer(tmp_path / "own", other, trained, save_on="SIGUSR1", **EXACT) as checkpoints:
        checkpoints.save()
        os.kill(os.getpid(), signal.SIGUSR1)
    assert checkpoints.requested_by == "SIGUSR1"


@pytest.mark.parametrize("where", ["step", "exit"])
def test_a_signal_whose_save_failed_is_not_said_to_be_answered(tmp_path, caplog, where):
    """A loop that ends when it is answered would throw everything since the last checkpoint away."""
    model, optimizer = build()
    checkpoints = dq.Checkpointer(
        tmp_path / "run", model, optimizer, every=100, on_error="warn", save_on="SIGUSR1", **EXACT
    )
    with suppress(dq.SaveError), checkpoints:
        train(model, optimizer, checkpoints, 1)
        checkpoints.save()
        checkpoints.wait()
        if where == "exit":
            train(model, optimizer, checkpoints, 1)
        (tmp_path / "run").rename(tmp_path / "away")
        (tmp_path / "run").write_text("no folder")
        os.kill(os.getpid(), signal.SIGUSR1)
        if where == "step":
            train(model, optimizer, checkpoints, 1)
    assert checkpoints.requested_by is None
    assert "is saved, the process goes on" not in caplog.text
    assert "SIGUSR1 came, but step" in caplog.text


def test_a_signal_in_the_last_save_leaves_the_threshold_of_that_one(tmp_path):
    """The last checkpoint is used from its file: a second one within the run's threshold took its place."""
    model, optimizer = build()

    def evaluate():
        if tight:
            os.kill(os.getpid(), signal.SIGUSR1)
            tight.clear()
        return evaluate_net(model)

    tight = []
    with dq.Checkpointer(
        tmp_path, model, optimizer, every=100, evaluate=evaluate, threshold=0.5, save_on="SIGUSR1"
    ) as checkpoints:
        train(model, optimizer, checkpoints, 3)
        tight.append(1)
        checkpoints.save(threshold=0.001)
    assert checkpoints.requested_by == "SIGUSR1"
    assert checkpoints.store.newest().degradation <= 0.001
    assert len(list(tmp_path.glob("*.dq"))) == 1


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_signal_is_answered_though_the_save_before_failed(tmp_path, monkeypatch, on_error, goes_on):
    """A disk that was late once cost everything since the checkpoint before: SIGTERM was the last chance."""
    gate, true, failing = threading.Event(), writer.write_file, []

    def write(*arguments, **options):
        if failing:
            failing.clear()
            gate.wait(20)
            raise dq.DynaQuantError("the disk is late.")
        return true(*arguments, **options)

    monkeypatch.setattr(writer, "write_file", write)
    model, optimizer = build()
    checkpoints = dq.Checkpointer(
        tmp_path, model, optimizer, every=100, on_error=on_error, save_on="SIGUSR1", **EXACT
    )
    told = []
    with suppress(dq.SaveError), checkpoints:
        train(model, optimizer, checkpoints, 2)
        failing.append(1)
        checkpoints.save()
        if goes_on:
            gate.set()
        else:
            threading.Timer(0.3, gate.set).start()
        os.kill(os.getpid(), signal.SIGUSR1)
        try:
            train(model, optimizer, checkpoints, 1)
        except dq.SaveError as error:
            told.append(str(error))
        assert checkpoints.requested_by == "SIGUSR1"
        assert checkpoints.last.step == 3
    assert checkpoints.store.steps() == [3]
    assert bool(told) == (on_error == "raise")
    if told:
        assert "the disk is late" in told[0]


def test_a_request_whose_save_failed_is_not_forgotten(tmp_path, monkeypatch):
    model, optimizer = build()
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, every=100, save_on="SIGUSR1", **EXACT)
    true, failing = writer.write_file, [1, 1, 1]

    def write(*arguments, **options):
        if failing:
            failing.pop()
            raise dq.DynaQuantError("the disk is late.")
        return true(*arguments, **options)

    monkeypatch.setattr(writer, "write_file", write)
    os.kill(os.getpid(), signal.SIGUSR1)
    failed = []
    for step in range(1, 10):
        try:
            train(model, optimizer, checkpoints, 1)
        except dq.SaveError:
            failed.append(step)
        if checkpoints.requested_by:
            break
    assert failed == [1, 2, 4]
    assert checkpoints.store.steps() == [8]
    failing += [1, 1, 1]
    os.kill(os.getpid(), signal.SIGUSR1)
    for _ in range(4):
        with suppress(dq.SaveError):
            train(model, optimizer, checkpoints, 1)
    assert not failing
    assert checkpoints.restore() == 8
    train(model, optimizer, checkpoints, 1)  # not as far from the last failure as it was to be
    assert checkpoints.store.steps() == [8, 9]
    with pytest.raises(dq.SaveError):
        checkpoints.close()


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_an_exact_checkpoint_in_place_of_a_failed_search_is_an_answer(tmp_path, caplog, on_error):
    """The loop that waits for the answer never ended, though its checkpoint was there."""
    model, optimizer = build()

    def evaluate():
        raise FileNotFoundError("a shard is gone")

    with dq.Checkpointer(
        tmp_path, model, optimizer, every=100, evaluate=evaluate, on_error=on_error, save_on="SIGUSR1"
    ) as checkpoints:
        os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(dq.EvaluationError) if on_error == "raise" else nullcontext():
            train(model, optimizer, checkpoints, 1)
        assert checkpoints.requested_by == "SIGUSR1"
        assert checkpoints.store.steps() == [1]
        train(model, optimizer, checkpoints, 1)
    assert checkpoints.store.steps() == [1]
    assert "could not be saved" not in caplog.text
