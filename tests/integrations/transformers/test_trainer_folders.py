"""What else lies in an output folder, who else writes there, and what the system refuses."""

import json
import os
import shutil
import time
from contextlib import ExitStack

import pytest
from transformers import PrinterCallback, Trainer, TrainerCallback

from dynaquant_core.errors import DynaQuantError, StorageError, StoreLockedError
from dynaquant_core.plugins import MARKER, describe, read_tree
from dynaquant_transformers import DynaQuantCallback
from dynaquant_transformers.native import is_ours
from tests.full_disk import files_of_at_most
from tests.integrations.transformers.kit import EXACT, bits, checkpoints, everything, gpt, names, trainer


class At(TrainerCallback):
    """Does something at a step: when it ends, or once the model was evaluated after it."""

    def __init__(self, step, do, event="on_step_end"):
        def happens(args, state, control, **_):
            if state.global_step == step:
                do()

        setattr(self, event, happens)


def held(one):
    return bits([dict(one.model.state_dict()), one.optimizer.state_dict()["state"]])


def test_a_script_that_goes_elsewhere_loses_nothing(tmp_path, monkeypatch):
    for place in (tmp_path / "here", tmp_path / "there"):
        place.mkdir()
    monkeypatch.chdir(tmp_path / "here")
    one = trainer("run", DynaQuantCallback(**EXACT), At(3, lambda: os.chdir(tmp_path / "there")), max_steps=6)
    one.train()
    assert checkpoints(tmp_path / "here" / "run") == [2]
    assert checkpoints(tmp_path / "there" / "run") == [4, 6]
    assert read_tree(tmp_path / "here" / "run" / "checkpoint-2")["optimizer"]["state"]
    assert names(tmp_path / "here" / "run") == {"checkpoint-2"}


def test_what_a_callback_has_put_where_a_checkpoint_goes_stays(tmp_path):
    def note():
        (tmp_path / "checkpoint-4" / "plots").mkdir(parents=True)
        (tmp_path / "checkpoint-4" / "plots" / "loss.csv").write_text("2.1")

    given = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4}
    trainer(tmp_path, DynaQuantCallback(**EXACT), At(4, note, "on_evaluate"), **given).train()
    assert (tmp_path / "checkpoint-4" / "plots" / "loss.csv").read_text() == "2.1"
    assert read_tree(tmp_path / "checkpoint-4")["optimizer"]["state"]


@pytest.mark.parametrize("ours", [True, False])
def test_a_native_checkpoint_over_one_of_ours_is_the_newer_one(tmp_path, ours):
    trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=4).train()
    want = trainer(tmp_path, model=gpt(seed=5), max_steps=4)
    want.train()
    assert MARKER in names(tmp_path / "checkpoint-4")
    again = trainer(tmp_path, *([DynaQuantCallback(**EXACT)] if ours else []), max_steps=5)
    seen = []
    again.add_callback(At(4, lambda: seen.append(held(again)), "on_train_begin"))
    again.train(resume_from_checkpoint=True)
    assert seen == [held(want)]


class Beside(TrainerCallback):
    """Puts weights into each checkpoint once it is there, as recipes for adapters and reporters do."""

    trainer = None

    def on_save(self, args, state, control, model=None, **_):
        folder = f"{args.output_dir}/checkpoint-{state.global_step}"
        if self.trainer is None:
            model.save_pretrained(folder)
        else:
            self.trainer.save_model(folder)


def copied(source, target):
    """As by ``cp source/* target/``: every file is as young as the moment in which it was copied."""
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, target / path.name)
        time.sleep(0.002)


@pytest.mark.parametrize("whole", [False, True])
def test_a_copied_checkpoint_with_weights_beside_it_is_resumed_with_its_optimizer(tmp_path, whole):
    beside = Beside()
    one = trainer(tmp_path / "run", beside, DynaQuantCallback(**EXACT))
    beside.trainer = one if whole else None
    one.train()
    assert "model.safetensors" in names(tmp_path / "run" / "checkpoint-4")
    copied(tmp_path / "run" / "checkpoint-4", tmp_path / "elsewhere" / "checkpoint-4")
    again = trainer(tmp_path / "elsewhere", DynaQuantCallback(**EXACT), model=gpt(seed=5))
    again.train(resume_from_checkpoint=str(tmp_path / "elsewhere" / "checkpoint-4"))
    assert everything(again) == everything(one)


def test_of_an_older_marker_it_is_said_that_weights_beside_it_are_taken(tmp_path, caplog):
    one = trainer(tmp_path / "run", Beside(), DynaQuantCallback(**EXACT), max_steps=2)
    one.train()
    source = tmp_path / "run" / "checkpoint-2"
    old = json.loads((source / MARKER).read_text())
    assert old.pop("note")
    (source / MARKER).write_text(json.dumps(old))
    os.utime(source / "trainer_state.json", (1, 1))
    assert is_ours(source)
    copied(source, tmp_path / "copy")
    assert not is_ours(tmp_path / "copy")
    assert not is_ours(tmp_path / "copy")
    assert caplog.text.count("remove the weights to resume from the DynaQuant checkpoint") == 1


def test_native_weights_alone_over_a_checkpoint_of_ours_are_newer_and_it_is_said(tmp_path, caplog):
    """The Trainer's state is the very same: nothing was logged before."""
    trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=2).train()
    state = (tmp_path / "checkpoint-2" / "trainer_state.json").read_bytes()
    want = trainer(tmp_path, model=gpt(seed=5), max_steps=2, save_only_model=True)
    want.train()
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_bytes(state)
    assert MARKER in names(tmp_path / "checkpoint-2")
    again = trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=3)
    seen = []
    again.add_callback(At(2, lambda: seen.append(bits(dict(again.model.state_dict()))), "on_train_begin"))
    again.train(resume_from_checkpoint=True)
    assert seen == [bits(dict(want.model.state_dict()))]
    assert "its optimizer is not" in caplog.text


@pytest.mark.parametrize("copied", [False, True])
def test_a_checkpoint_that_replaces_another_one_gets_its_name_after_a_crash(tmp_path, copied):
    """It was committed; that an older one had the name already does not make it less."""
    for folder, seed in ((tmp_path / "old", 0), (tmp_path / "new", 4)):
        trainer(folder, DynaQuantCallback(**EXACT), model=gpt(seed=seed), max_steps=4).train()
    made = tmp_path / "old" / ".dynaquant" / "4" / "checkpoint-4"
    made.parent.mkdir(parents=True)
    (tmp_path / "new" / "checkpoint-4").rename(made)
    if copied:  # the output folder by a plain cp -r: what was there longest may be youngest
        os.utime(tmp_path / "old" / "checkpoint-4" / "trainer_state.json")
    want = bits(read_tree(made))
    trainer(tmp_path / "old", DynaQuantCallback(**EXACT), max_steps=4).train(resume_from_checkpoint=True)
    assert bits(read_tree(tmp_path / "old" / "checkpoint-4")) == want


def test_a_checkpoint_that_was_removed_after_a_crash_is_not_resumed_from(tmp_path):
    callback = DynaQuantCallback(**EXACT)

    def crash():
        callback.session.settle()
        shutil.copytree(tmp_path / "run", tmp_path / "left")  # as a kill would leave it

    trainer(tmp_path / "run", callback, At(5, crash), max_steps=6).train()
    shutil.rmtree(tmp_path / "left" / "checkpoint-4")
    again = trainer(tmp_path / "left", DynaQuantCallback(**EXACT), max_steps=3)
    again.train(resume_from_checkpoint=True)
    assert again._initial_global_step == 2
    assert checkpoints(tmp_path / "left") == [2, 3]


def test_a_native_checkpoint_that_was_saved_after_a_crash_keeps_its_name(tmp_path):
    trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=4).train()
    made = tmp_path / ".dynaquant" / "4" / "checkpoint-4"
    made.parent.mkdir(parents=True)
    (tmp_path / "checkpoint-4").rename(made)  # committed, and killed before it had its name
    trainer(tmp_path, model=gpt(seed=5), max_steps=4).train()
    trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=5).train(resume_from_checkpoint=True)
    assert {"model.safetensors", "optimizer.pt"} <= names(tmp_path / "checkpoint-4")
    assert checkpoints(tmp_path) == [2, 4, 5]


def test_a_second_training_in_the_same_folder_is_refused_and_harms_nothing(tmp_path):
    refused = []

    def start():
        other = trainer(tmp_path, DynaQuantCallback(**EXACT), model=gpt(seed=3))
        with pytest.raises(StoreLockedError, match="save into another folder"):
            other.train()
        refused.append(other)

    one = trainer(tmp_path, DynaQuantCallback(**EXACT), At(5, start))
    one.train()
    assert refused
    assert checkpoints(tmp_path) == [2, 4, 6, 8]
    assert bits(read_tree(tmp_path / "checkpoint-8")["model"]) == bits(dict(one.model.state_dict()))
    assert names(tmp_path) == {f"checkpoint-{step}" for step in (2, 4, 6, 8)}


def test_a_file_in_the_way_is_told_in_one_line(tmp_path):
    file = tmp_path / ".dynaquant"
    file.write_text("mine")
    with pytest.raises(StorageError, match=r"\.dynaquant"):
        trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=2).train()
    assert file.read_text() == "mine"


def test_a_native_file_that_cannot_be_written_may_be_a_warning(tmp_path, caplog):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    def life(folder, on_error):
        one = trainer(folder, DynaQuantCallback(**EXACT, on_error=on_error))
        one.add_callback(At(4, lambda: setattr(one, "_save_rng_state", refuse)))
        one.add_callback(At(5, lambda: vars(one).pop("_save_rng_state")))
        return one

    with pytest.raises(DynaQuantError, match="step 4 cannot be written: No space left"):
        life(tmp_path / "raise", "raise").train()
    assert names(tmp_path / "raise") == {"checkpoint-2"}
    one = life(tmp_path / "warn", "warn")
    one.train()
    assert checkpoints(tmp_path / "warn") == [2, 6, 8]
    assert "without a checkpoint of step 4" in caplog.text
    whole = trainer(tmp_path / "native")
    whole.train()
    assert everything(one) == everything(whole)


def test_an_empty_path_is_not_a_fresh_start(tmp_path):
    """As natively: a variable that a script forgot to fill must not begin a run anew over an old one."""
    with pytest.raises(ValueError, match="Can't find a valid checkpoint"):
        trainer(tmp_path, DynaQuantCallback(**EXACT)).train(resume_from_checkpoint="")


def test_the_last_line_of_the_history_is_the_trainers(tmp_path):
    one = trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=4)
    one.train()
    assert "train_loss" in one.state.log_history[-1]
    assert "dynaquant/ratio" in one.state.log_history[-2]


def test_a_training_in_the_midst_of_another_one_with_the_same_callback(tmp_path):
    callback = DynaQuantCallback(**EXACT)

    def inner():
        trainer(tmp_path / "inner", callback, model=gpt(seed=3), max_steps=2).train()

    one = trainer(tmp_path / "outer", callback, At(3, inner), max_steps=6)
    one.train()
    assert checkpoints(tmp_path / "outer") == [2, 4, 6]
    assert bits(read_tree(tmp_path / "outer" / "checkpoint-6")["model"]) == bits(dict(one.model.state_dict()))
    assert "optimizer.pt" not in names(tmp_path / "outer" / "checkpoint-6")


def test_what_a_later_callback_saves_when_training_has_ended_is_there_after_it(tmp_path):
    class AtTheEnd(TrainerCallback):
        def on_train_end(self, args, state, control, **_):
            one._save_checkpoint(one.model, None)

    one = trainer(tmp_path, DynaQuantCallback(threshold=0.05), AtTheEnd(), max_steps=3)
    one.train()
    assert names(tmp_path) == {"checkpoint-2", "checkpoint-3"}, "no folder of what is being made"
    found = describe(tmp_path / "checkpoint-3")
    assert found.met
    assert found.evaluations > 0
    again = trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=5)
    again.train(resume_from_checkpoint=True)
    assert again._initial_global_step == 3
    assert checkpoints(tmp_path) == [2, 3, 4, 5]


def test_a_save_that_is_asked_for_during_a_search_saves_the_model_and_no_candidate(tmp_path):
    calls = []

    def measure():
        calls.append(held(one))
        if len(calls) == 2:
            one._save_checkpoint(one.model, None)  # as a handler of a signal would
        return one.model(**one.data_collator([one.eval_dataset[0]])).loss.item()

    one = trainer(tmp_path, DynaQuantCallback(threshold=0.5, evaluate=measure), max_steps=2)
    one.train()
    assert calls[1] != calls[0]
    one.model.eval()
    assert describe(tmp_path / "checkpoint-2").quality["reference"] == pytest.approx(measure())


class Scored(Trainer):
    """The scores of its evaluations are given."""

    scores = ()

    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        self.scores, metrics["eval_score"] = self.scores[1:], self.scores[0]
        return metrics


#: The highest score is the best.
SCORES = {
    "kind": Scored, "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True,
    "metric_for_best_model": "score", "greater_is_better": True,
}  # fmt: skip


@pytest.mark.parametrize("limit", [1, 2, None])
@pytest.mark.parametrize("best", [6, 8])
def test_the_best_checkpoint_is_one_that_came(tmp_path, caplog, limit, best):
    """The disk is full while that of the best model is on its way to it."""
    callback = DynaQuantCallback(**EXACT, on_error="warn")
    one = trainer(tmp_path, callback, save_total_limit=limit, **SCORES)
    one.remove_callback(PrinterCallback)
    one.scores = tuple(({2: 2, 4: 3, 6: 1, 8: 1} | {best: 4}).values())
    kept = {}

    def fills():
        callback.session.settle()
        full.enter_context(files_of_at_most(60_000))  # enough for the Trainer's own files

    def empties():
        callback.session.settle()
        full.close()

    with ExitStack() as full:
        one.add_callback(At(best, fills, "on_evaluate"))
        one.add_callback(At(best + 1, empties))
        one.add_callback(At(4, lambda: kept.update(bits(dict(one.model.state_dict())))))
        one.train()
    assert one.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert bits(dict(one.model.state_dict())) == kept
    assert best not in checkpoints(tmp_path)
    assert f"the best model, of step {best}, has no checkpoint" in caplog.text


@pytest.mark.parametrize("limit", [1, 2, None])
def test_where_we_are_turned_off_the_best_checkpoint_is_an_older_one_or_none(tmp_path, monkeypatch, limit):
    def turned_off(folder, steps, *scores, resume=None):
        one = trainer(folder, DynaQuantCallback(**EXACT), save_total_limit=limit, max_steps=steps, **SCORES)
        one.scores = scores
        one.train(resume_from_checkpoint=resume)
        return one

    before = turned_off(tmp_path / "run", 4, 1, 2)
    want = bits(dict(before.model.state_dict()))
    monkeypatch.setenv("DYNAQUANT_DISABLE", "1")
    again = turned_off(tmp_path / "run", 8, 3, 4, resume=True)
    assert again.state.global_step == 8
    assert again.state.best_model_checkpoint == str(tmp_path / "run" / "checkpoint-4")
    assert bits(dict(again.model.state_dict())) == want
    anew = turned_off(tmp_path / "run", 6, 1, 3, 2)  # a checkpoint of another training has the best's name
    assert anew.state.best_model_checkpoint is None
    assert bits(dict(anew.model.state_dict())) != want
    assert MARKER in names(tmp_path / "run" / "checkpoint-4")
