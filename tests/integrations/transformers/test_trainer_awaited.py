"""Who finds a checkpoint there as soon as it was saved: a subclass that copies or uploads it."""

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from transformers import Trainer

from dynaquant_core.plugins import is_checkpoint, read_tree
from dynaquant_transformers import DynaQuantCallback, DynaQuantTrainerMixin
from dynaquant_transformers.awaited import goes_on
from tests.full_disk import files_of_at_most
from tests.integrations.transformers.kit import EXACT, bits, checkpoints, everything, gpt, names, trainer


class Copies(Trainer):
    """Copies each checkpoint, from where it is told that it is or from where it knows that it is."""

    asks = True

    def _copy(self, trial):
        output = self._get_output_dir(trial=trial) if self.asks else self.args.output_dir
        folder = Path(output, f"checkpoint-{self.state.global_step}")
        shutil.copytree(folder, Path(self.args.output_dir, "backup", folder.name))


class Backup(Copies):
    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        self._copy(trial)


class Knowing(Backup):
    asks = False


class Mixed(DynaQuantTrainerMixin, Backup):
    pass


@pytest.mark.parametrize("kind", [Backup, Knowing, Mixed])
def test_what_a_subclass_copies_after_a_save_is_the_whole_checkpoint(tmp_path, kind):
    whole = trainer(tmp_path / "whole")
    whole.train()
    trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), kind=kind).train()
    saved = tmp_path / "ours" / "checkpoint-4"
    copied = tmp_path / "ours" / "backup" / "checkpoint-4"
    assert names(copied) == names(saved)
    assert bits(read_tree(copied)) == bits(read_tree(saved))
    assert json.loads((copied / "trainer_state.json").read_text())["global_step"] == 4
    again = trainer(tmp_path / "again", DynaQuantCallback(**EXACT), model=gpt(seed=9))
    again.train(resume_from_checkpoint=str(copied))
    assert everything(again) == everything(whole)


class Through(Copies):
    """Comes to the Trainer's method through one of its own."""

    def _save_natively(self, model, trial):
        Trainer._save_checkpoint(self, model, trial)

    def _save_checkpoint(self, model, trial):
        self._save_natively(model, trial)
        self._copy(trial)


def plainly_decorated(method):
    def around(self, *args):
        method(self, *args)
        self._copy(None)

    return around


class Decorated(Copies):
    @plainly_decorated
    def _save_checkpoint(self, model, trial):
        Trainer._save_checkpoint(self, model, trial)


@pytest.mark.parametrize("kind", [Through, Decorated])
def test_who_comes_to_the_trainer_another_way_saves_once_and_copies_the_whole_checkpoint(tmp_path, kind):
    one = trainer(tmp_path, DynaQuantCallback(**EXACT), kind=kind, max_steps=4)
    one.train()
    assert [line["dynaquant/step"] for line in one.state.log_history if "dynaquant/step" in line] == [2, 4]
    for step in (2, 4):
        saved, copied = (folder / f"checkpoint-{step}" for folder in (tmp_path, tmp_path / "backup"))
        assert names(copied) == names(saved)
        assert bits(read_tree(copied)) == bits(read_tree(saved))


class Instead(Trainer):
    """Writes a checkpoint by itself, and never comes to the Trainer's method."""

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
        self.model.save_pretrained(folder)
        self.state.save_to_json(str(folder / "trainer_state.json"))


def test_who_never_comes_to_the_trainer_leaves_our_weights_and_no_native_ones(tmp_path):
    trainer(tmp_path, DynaQuantCallback(**EXACT), kind=Instead, max_steps=4).train()
    for step in (2, 4):
        folder = tmp_path / f"checkpoint-{step}"
        assert read_tree(folder)["optimizer"]["state"]
        assert not list(folder.glob("*.safetensors"))
        assert "dynaquant export" in (folder / "model.safetensors.index.json").read_text()


class Seldom(Trainer):
    """Leaves out what is too early to be kept."""

    def _save_checkpoint(self, model, trial):
        if self.state.global_step >= 4:
            super()._save_checkpoint(model, trial)


def test_a_save_that_a_subclass_leaves_out_is_left_out(tmp_path):
    trainer(tmp_path, DynaQuantCallback(**EXACT), kind=Seldom, max_steps=6).train()
    assert checkpoints(tmp_path) == [4, 6]


class Notes(Trainer):
    """Notes in the folder of which it has asked before what it sees there after a save."""

    def _save_checkpoint(self, model, trial):
        self.told = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
        super()._save_checkpoint(model, trial)
        (self.told / "after").mkdir()
        (self.told / "after" / "note.txt").write_text("seen")


class Told(Notes):
    """Does so in the folder that the Trainer has told it."""

    def _save(self, output_dir=None, state_dict=None):
        self.told = Path(output_dir)
        super()._save(output_dir, state_dict)


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("kind", [Notes, Told])
def test_what_a_subclass_puts_where_it_was_sent_before_is_part_of_the_checkpoint(
    tmp_path, monkeypatch, links, kind
):
    def refuses(*_, **__):
        raise PermissionError("Operation not permitted")  # as a file system without hard links does

    if not links:
        monkeypatch.setattr(os, "link", refuses)
    trainer(tmp_path, DynaQuantCallback(**EXACT), kind=kind, max_steps=4).train()
    assert names(tmp_path) == {"checkpoint-2", "checkpoint-4"}
    for step in (2, 4):
        assert (tmp_path / f"checkpoint-{step}" / "after" / "note.txt").read_text() == "seen"
        assert read_tree(tmp_path / f"checkpoint-{step}")["optimizer"]["state"]


class Sparing(Trainer):
    """Keeps every second checkpoint; the others go once they are there, or what is not needed of them."""

    goes = staticmethod(shutil.rmtree)

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        if self.state.global_step % 4:
            self.goes(Path(self.args.output_dir, f"checkpoint-{self.state.global_step}"))


class Moving(Sparing):
    def goes(self, folder):
        shutil.move(folder, Path(self.args.output_dir, "moved", folder.name))


class Thinning(Sparing):
    def goes(self, folder):
        (folder / "training_args.bin").unlink()


@pytest.mark.parametrize("kind", [Sparing, Moving])
def test_a_checkpoint_that_a_subclass_takes_away_stays_away_and_a_kept_one_is_resumed(tmp_path, kind):
    given = {"lr_scheduler_type": "constant"}
    whole = trainer(tmp_path / "whole", **given)
    whole.train()
    run = tmp_path / "ours"
    trainer(run, DynaQuantCallback(**EXACT), kind=kind, max_steps=6, **given).train()
    assert checkpoints(run) == [4]
    again = trainer(run, DynaQuantCallback(**EXACT), model=gpt(seed=9), kind=kind, **given)
    again.train(resume_from_checkpoint=True)
    assert everything(again) == everything(whole)
    assert checkpoints(run) == [4, 8]


def test_a_file_that_a_subclass_takes_out_of_a_checkpoint_stays_out(tmp_path):
    trainer(tmp_path, DynaQuantCallback(**EXACT), kind=Thinning, max_steps=4).train()
    assert names(tmp_path / "checkpoint-4") - names(tmp_path / "checkpoint-2") >= {"training_args.bin"}
    assert read_tree(tmp_path / "checkpoint-2")["optimizer"]["state"]


def test_a_save_that_failed_is_not_copied_and_training_goes_on(tmp_path, caplog):
    callback = DynaQuantCallback(**EXACT, on_error="warn")
    with ExitStack() as full:

        class Fills(Backup):
            def _save_checkpoint(self, model, trial):
                callback.session.settle()
                if self.state.global_step == 4:
                    full.enter_context(files_of_at_most(60_000))  # enough for the Trainer's own files
                else:
                    full.close()
                super()._save_checkpoint(model, trial)

        one = trainer(tmp_path, callback, kind=Fills)
        one.train()
    assert one.state.global_step == 8
    assert checkpoints(tmp_path) == checkpoints(tmp_path / "backup") == [2, 6, 8]
    assert "step 4 has no checkpoint" in caplog.text


def test_where_saving_is_turned_off_a_subclass_still_finds_the_native_files(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAQUANT_DISABLE", "1")
    trainer(tmp_path, DynaQuantCallback(**EXACT), kind=Backup, max_steps=2).train()
    assert "trainer_state.json" in names(tmp_path / "backup" / "checkpoint-2")
    assert not is_checkpoint(tmp_path / "backup" / "checkpoint-2")


def test_who_does_nothing_after_a_save_waits_for_nothing():
    class Before(Trainer):
        def _save_checkpoint(self, model, trial):
            self.create_model_card(model_name="digits")
            super()._save_checkpoint(model, trial)

    class Guards(Before):
        def _save_checkpoint(self, model, trial):
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.tell()

    class Either(Before):
        def _save_checkpoint(self, model, trial):
            if trial is None:
                super()._save_checkpoint(model, trial)
                self.upload()
            else:
                super()._save_checkpoint(model, trial)

    def of(kind):
        return goes_on(object.__new__(kind))

    assert [of(kind) for kind in (Trainer, Before)] == [False, False]
    assert all(of(kind) for kind in (Backup, Knowing, Mixed, Guards, Either, Through, Decorated))
    one = object.__new__(Before)
    one._save_checkpoint = lambda model, trial: None
    assert goes_on(one)
