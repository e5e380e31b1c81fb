import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from dynaquant_core.plugins import MARKER, describe, find_checkpoints, is_checkpoint, read_tree
from dynaquant_core.plugins.folder import PENDING
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, Digits, bits, everything, fit, loaders, saves, trainer


def names(folder):
    return sorted(path.name for path in folder.glob("*.ckpt"))


def steps(**options):
    """A ModelCheckpoint that saves every five steps."""
    return {"every_n_epochs": None, "every_n_train_steps": 5} | options


@pytest.mark.parametrize("wanted", [1, 2])
def test_top_k_leaves_the_best_and_the_last(tmp_path, wanted):
    keeper = saves(tmp_path, **steps(save_top_k=wanted, monitor="step", mode="max"))
    fit(tmp_path, keeper, DynaQuantCallback(**EXACT), epochs=2)
    best = ["step=40.ckpt"] if wanted == 1 else ["step=35.ckpt", "step=40.ckpt"]
    assert names(tmp_path) == ["last.ckpt", *best]
    assert sorted(keeper.best_k_models) == [str(tmp_path / name) for name in best]
    assert describe(tmp_path / "last.ckpt").step == 40


def test_each_folder_can_be_read_when_all_others_are_gone(tmp_path):
    keeper = saves(tmp_path, **steps(save_last=False))
    fit(tmp_path, keeper, DynaQuantCallback(max_chain=3), epochs=2)
    wanted = {name: bits(read_tree(tmp_path / name)) for name in names(tmp_path)}
    assert len(wanted) == 8
    for name, tree in wanted.items():
        shutil.copytree(
            tmp_path, tmp_path / "alone", copy_function=os.link, ignore=shutil.ignore_patterns("alone")
        )
        for other in set(wanted) - {name}:
            shutil.rmtree(tmp_path / "alone" / other)
        assert bits(read_tree(tmp_path / "alone" / name)) == tree
        Digits.load_from_checkpoint(tmp_path / "alone" / name)
        shutil.rmtree(tmp_path / "alone")


def test_folders_share_their_files(tmp_path):
    fit(tmp_path, saves(tmp_path, **steps()), DynaQuantCallback(**EXACT), epochs=2)
    links = {file.name: file.stat().st_nlink for file in (tmp_path / "last.ckpt").glob("*.dq")}
    assert max(links.values()) == 9  # eight checkpoints and the last
    assert min(links.values()) == 2  # the newest, and its second name


def test_what_was_removed_in_mid_run_is_not_missed(tmp_path):
    class Removes(Digits):
        def on_train_batch_end(self, *_):
            if self.global_step in {13, 28}:
                self.trainer.strategy.checkpoint_io.wait()
                for path in find_checkpoints(tmp_path):
                    shutil.rmtree(path)

    fit(tmp_path, saves(tmp_path, **steps()), DynaQuantCallback(**EXACT), model=Removes, epochs=2)
    whole = [read_tree(path)["global_step"] for path in find_checkpoints(tmp_path)]
    assert sorted(whole) == [30, 35, 40, 40]


def test_last_is_the_same_moment_under_another_name_and_says_so(tmp_path):
    def last_state(folder, *callbacks):
        keeper = saves(folder, save_top_k=1, monitor="val_loss")
        fit(folder, keeper, *callbacks)
        read = callbacks[0].io.load_checkpoint if callbacks else torch.load
        loaded = read(folder / "last.ckpt", weights_only=False)
        (found,) = (state for key, state in loaded["callbacks"].items() if key.startswith("ModelCheckpoint"))
        return {key: str(value).replace(str(folder), "") for key, value in found.items()}

    native = last_state(tmp_path / "native")
    assert last_state(tmp_path / "ours", DynaQuantCallback(**EXACT)) == native


def test_last_shares_its_files_whatever_the_folder_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keeper = ModelCheckpoint(save_last=True)
    fit("./runs", keeper, DynaQuantCallback(**EXACT), epochs=1)
    best = Path(keeper.best_model_path)
    (file,) = best.glob("*.dq")
    assert best.parent != tmp_path
    assert file.samefile(best.with_name("last.ckpt") / file.name)


def test_a_resumed_run_keeps_one_last_and_the_same_best(tmp_path):
    def names_of(folder, *callbacks):
        for epochs in (2, 4):
            keeper = saves(folder, save_top_k=2, monitor="val_loss")
            fit(folder, keeper, *callbacks, epochs=epochs, ckpt_path="last" if epochs == 4 else None)
        return names(folder)

    assert names_of(tmp_path / "ours", DynaQuantCallback(**EXACT)) == names_of(tmp_path / "native")


def test_a_last_that_is_a_link(tmp_path):
    fit(tmp_path, saves(tmp_path, save_top_k=1, save_last="link"), DynaQuantCallback(**EXACT), epochs=2)
    assert (tmp_path / "last.ckpt").is_symlink()
    resumed = fit(
        tmp_path, saves(tmp_path, save_last="link"), DynaQuantCallback(**EXACT), epochs=3, ckpt_path="last"
    )
    assert resumed.global_step == 60


def test_names_on_their_way_are_not_given_twice(tmp_path, monkeypatch):
    """With a slow disk the second of the best two must not take the first one's name."""
    from dynaquant_core.plugins.line import Line

    hold, put = threading.Event(), Line.put
    monkeypatch.setattr(
        Line, "put", lambda self, what, job, *ended: put(self, what, lambda: (hold.wait(0.3), job()), *ended)
    )
    keeper = saves(
        tmp_path, **steps(filename="best", save_top_k=2, monitor="step", mode="max", save_last=False)
    )
    fit(tmp_path, keeper, DynaQuantCallback(**EXACT), epochs=1, limit_train_batches=10)
    assert len(set(keeper.best_k_models)) == 2
    assert sorted(describe(path).step for path in find_checkpoints(tmp_path)) == [5, 10]


def test_what_a_killed_first_save_left_is_no_checkpoint(tmp_path):
    (tmp_path / "last.ckpt").mkdir()
    (tmp_path / "last.ckpt" / PENDING).touch()
    with pytest.warns(UserWarning, match="no last checkpoint available"):
        run = fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), epochs=1, ckpt_path="last")
    assert run.global_step == 20
    assert names(tmp_path) == ["last.ckpt", "step=20.ckpt"]
    assert is_checkpoint(tmp_path / "last.ckpt")


def test_a_native_last_gives_way_to_ours_and_ours_to_a_native_one(tmp_path):
    fit(tmp_path, saves(tmp_path, save_top_k=1), epochs=1)
    assert (tmp_path / "last.ckpt").is_file()
    ours = fit(
        tmp_path, saves(tmp_path, save_top_k=1), DynaQuantCallback(**EXACT), epochs=2, ckpt_path="last"
    )
    assert (tmp_path / "last.ckpt" / MARKER).is_file()
    assert everything(ours) == everything(fit(tmp_path / "whole", epochs=2))


def test_two_checkpoint_callbacks_and_weights_alone(tmp_path):
    best = saves(tmp_path / "best", **steps(save_top_k=2, monitor="step", mode="max", save_weights_only=True))
    keeper = saves(tmp_path / "all", **steps())
    fit(tmp_path, best, keeper, DynaQuantCallback(max_chain=20), epochs=2)
    assert len(names(tmp_path / "best")) == 3
    assert "optimizer_states" not in read_tree(tmp_path / "best" / "last.ckpt")
    kinds = [describe(path).kind for path in find_checkpoints(tmp_path)]
    assert kinds.count("delta") > kinds.count("key")  # neither kind breaks the other's chain


def test_on_exception_checkpoint_is_removed_after_a_good_run(tmp_path):
    fit(tmp_path, OnExceptionCheckpoint(tmp_path), DynaQuantCallback(**EXACT), epochs=1)
    assert names(tmp_path) == []

    class Breaks(Digits):
        def on_train_batch_start(self, batch, batch_idx):
            if self.global_step == 7:
                raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fit(tmp_path, OnExceptionCheckpoint(tmp_path), DynaQuantCallback(**EXACT), model=Breaks, epochs=1)
    assert describe(tmp_path / "on_exception.ckpt").step == 7


def test_the_learning_rate_finder_leaves_no_trace(tmp_path):
    from lightning.pytorch.tuner import Tuner

    model = Digits()
    before = bits(model.state_dict())
    run = trainer(tmp_path, DynaQuantCallback())
    Tuner(run).lr_find(model, *loaders(), num_training=20, update_attr=False)
    assert bits(model.state_dict()) == before
    assert list(tmp_path.iterdir()) == []
