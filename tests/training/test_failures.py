import math
import re
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch
from torch import nn

import dynaquant_core as dq
from dynaquant_core.training.capture import capture
from dynaquant_core.training.subject import Subject
from tests.training.models import (
    EXACT,
    bits,
    build,
    train,
)


def test_restore_of_a_missing_or_empty_folder_is_0_and_touches_nothing(tmp_path):
    model, optimizer = build()
    before = bits(capture(Subject(model, optimizer), 0))
    for folder in (tmp_path / "missing", tmp_path):
        with dq.Checkpointer(folder, model, optimizer) as checkpoints:
            assert checkpoints.restore() == 0
            assert checkpoints.completed == 0
    assert bits(capture(Subject(model, optimizer), 0)) == before
    assert list(tmp_path.iterdir()) == []


def test_restore_after_a_kill_in_the_very_first_save_is_0(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        checkpoints.save()
        checkpoints.wait()
    for path in tmp_path.glob("*.dq"):
        path.unlink()  # what a save leaves that never came to its rename: a lock file at most
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        assert checkpoints.restore() == 0


def test_an_explicit_step_that_is_not_there_is_an_error(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path / "run", model, optimizer, every=2, **EXACT) as checkpoints:
        with pytest.raises(dq.CheckpointNotFoundError):
            checkpoints.restore(4)
        checkpoints.restore()
        train(model, optimizer, checkpoints, 2)
        checkpoints.wait()
        before = bits(capture(Subject(model, optimizer), 0))
        with pytest.raises(dq.CheckpointNotFoundError):
            checkpoints.restore(4)
        assert bits(capture(Subject(model, optimizer), 0)) == before


def test_a_damaged_newest_falls_back_and_only_damaged_ones_are_an_error(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, max_chain=0, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 4)
    older, newer = sorted(tmp_path.glob("*.dq"))
    newer.write_bytes(newer.read_bytes()[:-100])
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        assert checkpoints.restore() == 2
    older.write_bytes(b"nothing")
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints, pytest.raises(dq.EmptyStoreError):
        checkpoints.restore()


def test_foreign_paths_are_named(tmp_path):
    model, optimizer = build()
    (tmp_path / "file").write_text("notes")
    with pytest.raises(dq.NotAStoreError):
        dq.Checkpointer(tmp_path / "file", model, optimizer)
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints, pytest.raises(dq.NotAStoreError):
        checkpoints.restore()


def test_a_first_save_among_other_files_is_refused_and_said_before_the_training(tmp_path, caplog):
    model, optimizer = build()
    (tmp_path / "train.log").write_text("notes")
    with dq.Checkpointer(tmp_path, model, optimizer, every=2) as checkpoints:
        assert "the first save into it will be refused" in caplog.text
        with pytest.raises(dq.NotAStoreError, match="holds other files but no checkpoint"):
            train(model, optimizer, checkpoints, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["train.log"]


def test_a_changed_model_is_an_error_and_its_folder_is_left_alone(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2) as checkpoints:
        train(model, optimizer, checkpoints, 2)
    files = {path: path.read_bytes() for path in tmp_path.glob("*.dq")}
    other, again = build(width=64)
    before = bits(capture(Subject(other, again), 0))
    with dq.Checkpointer(tmp_path, other, again) as checkpoints:
        with pytest.raises(dq.StateMismatchError, match=r"body\.4\.weight"):
            checkpoints.restore()
        assert bits(capture(Subject(other, again), 0)) == before
        with pytest.raises(dq.StoreNotEmptyError):
            checkpoints.save()
    assert {path: path.read_bytes() for path in tmp_path.glob("*.dq")} == files


def test_another_runs_folder_is_refused_without_a_restore(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        checkpoints.save()
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints, pytest.raises(dq.StoreNotEmptyError):
        checkpoints.save()


def test_a_store_of_something_else_is_not_restored(tmp_path):
    model, _ = build()
    with dq.CheckpointStore(tmp_path) as store:
        store.save(1, {"model": model.state_dict()})
    with (
        dq.Checkpointer(tmp_path, model) as checkpoints,
        pytest.raises(dq.StateMismatchError, match="'step'"),
    ):
        checkpoints.restore()


def test_a_failure_in_the_background_surfaces_at_the_next_call_and_at_close(tmp_path):
    model, optimizer = build()
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, every=2, keep_within=100)
    checkpoints.save()
    checkpoints._worker._await()
    with pytest.raises(dq.SaveError) as caught:
        train(model, optimizer, checkpoints, 1)
    assert isinstance(caught.value.__cause__, dq.BudgetError)
    train(model, optimizer, checkpoints, 1)  # told once; the save that is due now is tried
    with pytest.raises(dq.SaveError):
        checkpoints.wait()
    with pytest.raises(dq.SaveError):
        checkpoints.close()
    assert checkpoints.store.steps() == []


def test_a_failure_in_the_background_may_be_a_warning(tmp_path, caplog):
    model, optimizer = build()
    options = {"every": 2, "keep_within": 100, "on_error": "warn"}
    with dq.Checkpointer(tmp_path, model, optimizer, **options) as checkpoints:
        train(model, optimizer, checkpoints, 5)
        assert checkpoints.wait() is None
    assert "keep_within" in caplog.text


def test_a_failure_on_this_thread_leaves_the_run_untouched(tmp_path):
    class Odd:
        def state_dict(self):
            return {"handle": object()}

        def load_state_dict(self, state):
            pass

    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, extra={"odd": Odd()}) as checkpoints:
        before = bits(capture(Subject(model, optimizer), 0))
        with pytest.raises(dq.UnsupportedStateError, match=r"extra\.odd\.handle"):
            checkpoints.save()
        assert bits(capture(Subject(model, optimizer), 0)) == before


def test_an_error_of_the_loop_is_not_hidden_by_a_failed_save(tmp_path):
    model, optimizer = build()

    def loop():
        with dq.Checkpointer(tmp_path, model, optimizer, keep_within=100) as checkpoints:
            checkpoints.save()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()


def test_non_finite_weights_are_kept_exact(tmp_path):
    model, optimizer = build()
    with torch.no_grad():
        model.head.weight.zero_()
        model.body[4].weight[3, 3] = math.nan
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        checkpoints.save()
        info = checkpoints.wait()
        assert "model.body.4.weight" in info.exact
        assert bits(checkpoints.store.load()["model"]["body.4.weight"]) == bits(model.body[4].weight)


CHILD = """
import os, signal, sys, threading, torch
import dynaquant_core as dq
holding, done = threading.Event(), threading.Event()
checkpoints = dq.Checkpointer(sys.argv[1], torch.nn.Linear(2, 2), exact="*")
checkpoints.save()
checkpoints.wait()

def write():
    with checkpoints.store._session.writing():
        holding.set()
        done.wait()

checkpoints._worker.submit(write)  # as a save that takes long
holding.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    with checkpoints:  # as where a worker leaves the run's block by sys.exit
        pass
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
done.set()
checkpoints.save()
checkpoints.close()
"""


def test_a_forked_child_closes_nothing_and_waits_for_nothing(tmp_path):
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], check=True, timeout=120)
    assert dq.CheckpointStore(tmp_path).verify() == []


@pytest.mark.parametrize("result", [10**400, torch.empty((), device="meta"), torch.eye(2).to_sparse()])
def test_what_evaluate_may_not_return_is_an_error_after_an_exact_checkpoint(tmp_path, result):
    model, optimizer = build()
    before = bits(model.state_dict())
    with dq.Checkpointer(tmp_path, model, optimizer, evaluate=lambda: result) as checkpoints:
        with pytest.raises(dq.EvaluationError, match="evaluate returned"):
            checkpoints.save()
        assert checkpoints.store.steps() == [0]
    assert bits(dq.CheckpointStore(tmp_path).load()["model"]) == before


@pytest.mark.parametrize(("shared", "said"), [(0, "no parameter of the model"), (1, "1 of 2 tensors")])
def test_an_optimizer_of_another_model_is_told_before_anything_is_lost(tmp_path, caplog, shared, said):
    """A model that was made again after its optimizer: what is trained would be in no checkpoint."""
    model, other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    trained = [*other.parameters(), *list(model.parameters())[:shared]]
    dq.Checkpointer(tmp_path, model, torch.optim.SGD(trained, lr=0.1)).close()
    assert said in caplog.text
    caplog.clear()
    dq.Checkpointer(tmp_path, {"a": model, "b": other}, torch.optim.SGD(trained, lr=0.1)).close()
    assert not caplog.records


def test_where_every_bit_is_kept_no_configuration_is_named(tmp_path, caplog):
    with dq.Checkpointer(tmp_path, nn.Linear(32, 32), exact=("*",), moments="exact") as checkpoints:
        checkpoints.save()
    assert "fixed configuration" not in caplog.text


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_a_restore_that_a_signal_ended_gives_no_right_to_save(tmp_path, end):
    """Half of one run and half of another would be the newest checkpoint of both."""

    def interrupt(*_):
        raise end  # as handlers do

    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 5)
        checkpoints.save()
    model, optimizer = build()
    handle = optimizer.register_load_state_dict_pre_hook(interrupt)
    with dq.Checkpointer(tmp_path, model, optimizer, **EXACT) as checkpoints:
        with pytest.raises(end):
            checkpoints.restore()
        with pytest.raises(dq.StoreNotEmptyError, match="call restore"):
            checkpoints.save()
        assert checkpoints.store.newest().step == 5
        handle.remove()
        assert checkpoints.restore() == 5
        train(model, optimizer, checkpoints, 1)
        checkpoints.save()
        checkpoints.wait()
        assert checkpoints.store.newest().step == 6


class Told:
    """Something of a user's in ``extra``."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state() if callable(self.state) else self.state

    def load_state_dict(self, state):
        self.state = state


def gone():
    raise RuntimeError("a worker of the loader is gone")


def held_by_itself():
    state = {"deeper": {}}
    state["deeper"]["again"] = state
    return state


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (gone, r"extra\.loader could not tell its state.*worker of the loader"),
        (held_by_itself, "nested too deep"),
    ],
)
def test_what_an_object_of_the_user_does_is_a_failed_save(tmp_path, caplog, state, words):
    extra = {"loader": Told(state)}
    checkpoints = dq.Checkpointer(tmp_path / "a", nn.Linear(4, 4), extra=extra)
    with checkpoints, pytest.raises(dq.DynaQuantError, match=words):
        checkpoints.save()
    with dq.Checkpointer(
        tmp_path / "b", nn.Linear(4, 4), every=1, on_error="warn", extra=extra
    ) as checkpoints:
        checkpoints.step()
        assert re.search(words, caplog.text)
        extra["loader"].state = {}
        checkpoints.step()
        checkpoints.wait()
        assert checkpoints.store.steps() == [2]


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_full_memory_is_a_failed_save(tmp_path, caplog, error):
    def full():
        raise error

    class Full(nn.Linear):
        state_dict = property(lambda _: full)

    with dq.Checkpointer(tmp_path, Full(4, 4), every=1, on_error="warn") as checkpoints:
        checkpoints.step()
    assert "training goes on after a failed save" in caplog.text


def test_an_ordered_dictionary_comes_back_as_one(tmp_path):
    """A cache that moves what was used to the end lives by it."""
    cache = Told(OrderedDict(a=1, b=[OrderedDict(c=2)]))
    for _ in range(2):
        with dq.Checkpointer(tmp_path, nn.Linear(2, 2), extra={"cache": cache}) as checkpoints:
            checkpoints.restore(fresh="extra.cache")
            checkpoints.save()
    assert type(cache.state) is OrderedDict
    assert type(cache.state["b"][0]) is OrderedDict


def test_a_run_that_may_not_go_back_goes_on_saving_into_its_own_folder(tmp_path):
    """It has grown since; nothing was touched, so its folder is as much its own as before."""
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    extra = {"loader": Told({})}

    def steps(checkpoints, count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            checkpoints.step()

    with dq.Checkpointer(tmp_path, model, optimizer, extra=extra, every=1, **EXACT) as checkpoints:
        steps(checkpoints, 1)
        model.append(grown := nn.Linear(4, 4))
        optimizer.add_param_group({"params": grown.parameters()})
        steps(checkpoints, 1)
        with pytest.raises(dq.StateMismatchError, match="othing was restored"):
            checkpoints.restore(1)
        steps(checkpoints, 1)
        weights = bits(model.state_dict())
        checkpoints.wait()
        assert checkpoints.store.steps() == [1, 2, 3]
        assert bits(dq.CheckpointStore(tmp_path).load(3)["model"]) == weights
        extra["loader"].load_state_dict = None
        with pytest.raises(dq.StateMismatchError, match="in part only") as caught:
            checkpoints.restore(2)
        assert caught.value.in_part
        with pytest.raises(dq.StoreNotEmptyError, match="not to the end"):
            steps(checkpoints, 1)
