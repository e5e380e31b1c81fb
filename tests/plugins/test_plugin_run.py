"""One run whose checkpoints are folders that somebody else names, removes and looks at."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from dynaquant_core.errors import (
    ConfigError,
    EvaluationError,
    SaveError,
    UnsupportedStateError,
)
from dynaquant_core.plugins import PluginOptions, PluginRun, describe, is_checkpoint, read_tree
from dynaquant_core.plugins.folder import replacing
from tests.gloo import a_group_of_one
from tests.methods.toy_method import Rounding
from tests.plugins.kit import checkpoint, clutter, exact_run, is_same, names_in, state
from tests.store.kit import exact_store, small_state
from tests.training.models import build


@pytest.fixture
def run():
    made = exact_run()
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore")  # torch's own, about a group of one without a device
def test_a_model_of_shards_is_refused_when_it_is_watched_not_after_hours(tmp_path, run):
    """A framework knows of those that it shards itself; these are the user's."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    with a_group_of_one(tmp_path):
        fully_shard(model[1])
        with pytest.raises(ConfigError, match=r"is sharded \(1 is .*save this one with"):
            run.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))


# -- what comes back ----------------------------------------------------------------------------------


def test_a_state_comes_back_as_it_was_given(tmp_path, run):
    """Foreign objects, key order, tuples and dtypes included; through a run, and without one."""
    run.save(tmp_path / "1.ckpt", 1, state(1))
    run.save(tmp_path / "2.ckpt", 2, state(2))
    assert run.wait().kind == "delta"
    for step in (1, 2):
        assert is_same(checkpoint(tmp_path / f"{step}.ckpt"), state(step))
        assert is_same(run.load(tmp_path / f"{step}.ckpt", weights_only=False), state(step))
        assert describe(tmp_path / f"{step}.ckpt").step == step
    model = read_tree(tmp_path / "2.ckpt", names="model")
    assert is_same(model, {"model": state(2)["model"]})


def test_a_new_process_goes_on_from_a_folder(tmp_path, run):
    run.save(tmp_path / "1", 1, state(1))
    run.wait()
    fresh, other = exact_run(), exact_run()
    fresh.load(tmp_path / "1", weights_only=False)
    fresh.save(tmp_path / "2", 2, state(2))
    other.save(tmp_path / "3", 3, state(3))
    assert (fresh.wait().kind, other.wait().kind) == ("delta", "key")


def test_a_save_that_is_to_stand_alone_keeps_the_method_and_no_file_of_the_base(tmp_path, run):
    run.save(tmp_path / "whole", 1, state(1))
    run.close()
    later = PluginRun(PluginOptions(), framework="none")
    later.load(tmp_path / "whole", weights_only=False)
    later.stand_alone()
    later.save(tmp_path / "alone", 2, state(2))
    later.save(tmp_path / "next", 3, state(3))
    later.close()
    found = [describe(tmp_path / name) for name in ("alone", "next")]
    assert [(info.kind, info.method) for info in found] == [("key", "exact"), ("delta", "exact")]
    assert [len(list((tmp_path / name).glob("*.dq"))) for name in ("alone", "next")] == [1, 2]


def test_whatever_a_framework_removes_the_rest_can_be_read(tmp_path, run):
    for step in range(1, 6):
        run.save(tmp_path / str(step), step, state(step))
    run.copy(tmp_path / "3", tmp_path / "best")
    run.copy(tmp_path / "5", tmp_path / "last")
    run.wait()
    for step in (1, 2, 3, 4):
        shutil.rmtree(tmp_path / str(step))
    assert is_same(checkpoint(tmp_path / "best"), state(3))
    shutil.rmtree(tmp_path / "5")
    assert is_same(checkpoint(tmp_path / "last"), state(5))
    run.save(tmp_path / "6", 6, state(6))
    shutil.rmtree(tmp_path / "last")
    assert run.wait().kind == "delta"
    assert is_same(checkpoint(tmp_path / "6"), state(6))


def test_the_state_may_change_when_save_returns(tmp_path, run):
    live = state(1)
    run.save(tmp_path / "1", 1, live)
    for tensor in live["model"].values():
        tensor.zero_()
    live["gauges"][0].value = 99
    run.wait()
    assert is_same(checkpoint(tmp_path / "1"), state(1))


# -- folders -------------------------------------------------------------------------------------------


def test_a_checkpoint_is_replaced(tmp_path, run):
    for step in (1, 2, 3):
        run.save(tmp_path / "last", step, state(step))
    run.wait()
    assert is_same(checkpoint(tmp_path / "last"), state(3))
    assert len([name for name in names_in(tmp_path / "last") if name.startswith("rest")]) == 1
    assert clutter(tmp_path / "last") == []
    plain = small_state(4)
    run.save(tmp_path / "last", 4, plain)
    run.wait()
    assert is_same(read_tree(tmp_path / "last"), plain)
    assert not [name for name in names_in(tmp_path / "last") if name.startswith("rest")]


def test_the_old_checkpoint_stays_until_the_new_one_is_there(tmp_path, run):
    run.save(tmp_path / "last", 1, state(1))
    run.wait()

    def fill_half():
        with replacing(tmp_path / "last") as place:
            place.write_rest(b"new")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        fill_half()
    assert is_same(checkpoint(tmp_path / "last"), state(1))
    assert clutter(tmp_path / "last") == []


def test_files_of_the_framework_stay(tmp_path, run):
    folder = tmp_path / "checkpoint-1"
    (folder / "inner").mkdir(parents=True)
    (folder / "trainer_state.json").write_text("{}")
    run.save(folder, 1, state(1))
    run.save(folder, 2, state(2))
    run.wait()
    assert is_same(checkpoint(folder), state(2))
    assert (folder / "trainer_state.json").read_text() == "{}"
    assert (folder / "inner").is_dir()


def test_a_native_file_gives_way(tmp_path, run):
    native = tmp_path / "last.ckpt"
    native.write_bytes(b"native")
    run.save(native, 1, state(1))
    run.wait()
    assert names_in(tmp_path) == ["last.ckpt"]
    assert is_same(checkpoint(native), state(1))
    run.save(tmp_path / "next", 2, state(2))
    assert run.wait().kind == "delta"


def test_a_link_to_another_checkpoint_is_replaced_not_followed(tmp_path, run):
    run.save(tmp_path / "best", 1, state(1))
    run.wait()
    (tmp_path / "last").symlink_to("best")
    run.save(tmp_path / "last", 2, state(2))
    run.wait()
    assert is_same(checkpoint(tmp_path / "best"), state(1))
    assert is_same(checkpoint(tmp_path / "last"), state(2))


def test_somebody_elses_store_is_not_written_into(tmp_path, run):
    with exact_store(tmp_path / "store") as store:
        store.save(5, small_state(5))
    before = names_in(tmp_path / "store")
    run.save(tmp_path / "store", 1, state(1))
    with pytest.raises(SaveError, match="of a store"):
        run.wait()
    assert names_in(tmp_path / "store") == before


def test_what_an_interrupted_removal_left_is_cleared(tmp_path, run):
    run.save(tmp_path / "1", 1, state(1))
    run.wait()
    (tmp_path / "1" / "dynaquant.json").unlink()
    assert not is_checkpoint(tmp_path / "1")
    run.save(tmp_path / "1", 7, state(7))
    run.wait()
    assert is_same(checkpoint(tmp_path / "1"), state(7))
    assert len(list((tmp_path / "1").glob("*.dq"))) == 2


def test_copies_and_removals_wait_for_saves(tmp_path, run):
    run.save(tmp_path / "1", 1, state(1))
    run.copy(tmp_path / "1", tmp_path / "last")
    run.remove(tmp_path / "1")
    run.wait()
    assert names_in(tmp_path) == ["last"]
    run.save(tmp_path / "last", 2, state(2))
    run.wait()
    assert is_same(checkpoint(tmp_path / "last"), state(2))


def test_removing_takes_files_links_and_nothing_else(tmp_path, run):
    (tmp_path / "native.ckpt").write_bytes(b"x")
    run.save(tmp_path / "1", 1, state(1))
    run.wait()
    (tmp_path / "link").symlink_to("1")
    for name in ("native.ckpt", "link", "nowhere"):
        run.remove(tmp_path / name)
    assert names_in(tmp_path) == ["1"]
    assert is_checkpoint(tmp_path / "1")


def test_relative_paths_mean_what_they_meant(tmp_path, run, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    run.save("1", 1, state(1))
    run.copy("1", "2")
    monkeypatch.chdir(tmp_path / "elsewhere")
    run.wait()
    assert names_in(tmp_path) == ["1", "2", "elsewhere"]


def test_remote_paths_are_refused(run):
    for path in ("s3://bucket/1.ckpt", Path("gs://bucket/1.ckpt")):
        with pytest.raises(ConfigError, match="mounted"):
            run.save(path, 1, state(1))


# -- failures ------------------------------------------------------------------------------------------


def test_a_failure_in_the_background_is_told_once_and_removes_nothing(tmp_path, run, caplog):
    run.save(tmp_path / "1", 1, state(1))
    run.wait()
    (tmp_path / "file").write_text("in the way")
    run.save(tmp_path / "file" / "2", 2, state(2))
    run.copy(tmp_path / "file" / "2", tmp_path / "last")
    run.remove(tmp_path / "1")
    with pytest.raises(SaveError, match="in the background"):
        run.wait()
    assert is_same(checkpoint(tmp_path / "1"), state(1))
    assert "not done, as a save before it failed" in caplog.text
    run.save(tmp_path / "3", 3, state(3))
    run.remove(tmp_path / "1")
    assert run.wait().kind == "delta"
    assert names_in(tmp_path) == ["3", "file"]
    assert is_same(checkpoint(tmp_path / "3"), state(3))


def test_warnings_instead_of_errors(tmp_path, caplog):
    run = exact_run(on_error="warn")
    (tmp_path / "file").write_text("in the way")
    run.save(tmp_path / "file" / "1", 1, state(1))
    run.save(tmp_path / "2", 2, state(2))
    run.save(tmp_path / "3", 3, {"bad": lambda: None})
    assert run.wait().step == 2
    run.close()
    assert caplog.text.count("training goes on after a failed save") == 2


class Buggy(Rounding):
    """A method of somebody's with a bug in it, which shows at some saves."""

    name = "buggy"
    well = False

    def draft(self, *args, **kwargs):
        if not self.well:
            raise IndexError("a bug")
        return super().draft(*args, **kwargs)


@pytest.mark.parametrize("together", [False, True])
def test_a_bug_ends_no_training_that_takes_failed_saves_and_is_told_with_its_place(
    tmp_path, caplog, together
):
    method = Buggy()
    model, optimizer = build()
    tree = {"model": model.state_dict()}
    strict = PluginRun(PluginOptions(method=method), framework="none")
    strict.watch(model, [optimizer])
    with pytest.raises(IndexError):
        strict.save(tmp_path / "0", 1, tree)
    run = PluginRun(PluginOptions(method=method, on_error="warn"), framework="none")
    run.watch(model, [optimizer])
    for step in (1, 2):
        if together:
            run.meet(step)
            run.choose(step, tree)
        run.save(tmp_path / str(step), step, tree)
        method.well = True
    assert run.wait().step == 2
    run.close()
    assert names_in(tmp_path) == ["2"]
    assert 'raise IndexError("a bug")' in caplog.text
    assert "a save that failed by a bug" in caplog.text


def test_a_state_that_cannot_be_saved_names_its_place(tmp_path, run):
    with pytest.raises(UnsupportedStateError, match=r"'hooks\.0'"):
        run.save(tmp_path / "1", 1, {"weight": torch.ones(3), "hooks": [lambda: None]})
    assert names_in(tmp_path) == []


def test_a_loading_error_leaves_the_run_usable(tmp_path, run):
    run.save(tmp_path / "1", 1, state(1))
    with pytest.raises(UnsupportedStateError, match="weights_only=False"):
        run.load(tmp_path / "1")
    run.save(tmp_path / "2", 2, state(2))
    assert run.wait().kind == "delta"


def test_an_evaluate_that_fails_gives_an_exact_checkpoint_and_the_error(tmp_path):
    model, optimizer = build()

    def evaluate():
        raise ValueError("no data")

    run = PluginRun(PluginOptions(evaluate=evaluate), framework="none")
    run.watch(model, [optimizer])
    with pytest.raises(EvaluationError, match="no data"):
        run.save(tmp_path / "1", 1, {"model": model.state_dict()})
    assert is_same(dict(read_tree(tmp_path / "1")["model"]), dict(model.state_dict()))
    run.close()


def test_nothing_is_saved_or_removed_where_it_is_turned_off(tmp_path, run, monkeypatch):
    run.save(tmp_path / "1", 1, state(1))
    run.wait()
    monkeypatch.setenv("DYNAQUANT_DISABLE", "1")
    off = exact_run()
    model, optimizer = build()
    off.watch(model, optimizer)
    off.look_ahead(1)
    off.choose(2, state(2))
    off.save(tmp_path / "2", 2, state(2))
    off.copy(tmp_path / "1", tmp_path / "3")
    off.remove(tmp_path / "1")
    assert off.wait() is None
    assert names_in(tmp_path) == ["1"]
    assert is_same(off.load(tmp_path / "1", weights_only=False), state(1))
    assert not optimizer._optimizer_step_post_hooks


# -- threads -------------------------------------------------------------------------------------------


def test_reports_come_on_the_calling_thread(tmp_path):
    threads = []
    run = PluginRun(
        PluginOptions(), framework="none", report=lambda info: threads.append(threading.current_thread())
    )
    for step in (1, 2, 3):
        run.save(tmp_path / str(step), step, {"weight": torch.randn(64, 64)})
        assert len(threads) == step - 1
    run.close()
    assert threads == [threading.main_thread()] * 3


def test_a_closed_run_can_go_on(tmp_path, run):
    run.save(tmp_path / "1", 1, state(1))
    run.close()
    run.save(tmp_path / "2", 2, state(2))
    assert run.wait().kind == "key"
    run.close()


def test_no_file_stays_open(tmp_path):
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("the system does not list open files")

    def opened():
        names = [link.readlink() for link in descriptors.iterdir() if link.is_symlink()]
        return [name for name in names if str(tmp_path) in str(name)]

    run = exact_run(max_chain=2)
    for step in range(1, 9):
        run.save(tmp_path / str(step), step, state(step))
        run.wait()
        assert len(opened()) <= 3
    run.load(tmp_path / "2", weights_only=False)
    assert len(opened()) <= 3
    run.close()
    assert opened() == []


def test_two_runs_do_not_fill_one_folder_at_once(tmp_path, run):
    with replacing(tmp_path / "1"):
        run.save(tmp_path / "1", 1, state(1))
        with pytest.raises(SaveError, match="StoreLockedError"):
            run.wait()
    assert not is_checkpoint(tmp_path / "1")
