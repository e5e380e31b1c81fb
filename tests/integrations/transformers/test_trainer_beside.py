"""Weights that somebody puts into a checkpoint stay; native ones of the model do not, whoever wrote them."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback

from dynaquant_core.plugins import read_tree
from dynaquant_transformers import DynaQuantCallback, export
from tests.integrations.transformers.kit import EXACT, bits, everything, gpt, names, trainer


def kept(folder):
    """The weights of another model in a checkpoint."""
    return bits(load_file(folder / "model.safetensors"))


class Average(Trainer):
    """Keeps a second model, whose weights it puts beside the others."""

    average = None

    def _save(self, output_dir=None, state_dict=None):
        self.average.save_pretrained(Path(output_dir, "ema"))
        super()._save(output_dir, state_dict)


class Teacher(TrainerCallback):
    """Puts its weights where a checkpoint is going to be, or where one is."""

    def __init__(self, event="on_step_end", name="teacher"):
        def puts(args, state, control, **_):
            if control.should_save or event == "on_save":
                gpt(seed=7).save_pretrained(Path(args.output_dir, f"checkpoint-{state.global_step}", name))

        setattr(self, event, puts)


def test_weights_in_folders_of_a_checkpoint_stay(tmp_path):
    one = trainer(tmp_path, Teacher(), DynaQuantCallback(**EXACT), kind=Average, max_steps=4)
    one.average = gpt(seed=5)
    one.train()
    gpt(seed=5).save_pretrained(tmp_path / "wanted" / "ema")
    gpt(seed=7).save_pretrained(tmp_path / "wanted" / "teacher")
    for step in (2, 4):
        folder = tmp_path / f"checkpoint-{step}"
        assert "model.safetensors" not in names(folder)
        for name in ("ema", "teacher"):
            assert kept(folder / name) == kept(tmp_path / "wanted" / name)


def test_weights_in_folders_stay_where_a_step_is_saved_again_and_are_exported(tmp_path):
    run = tmp_path / "run"
    trainer(run, Teacher("on_save"), DynaQuantCallback(**EXACT), max_steps=4).train()
    want = kept(run / "checkpoint-4" / "teacher")
    again = trainer(run, DynaQuantCallback(**EXACT), model=gpt(seed=3), max_steps=4)
    again.train(resume_from_checkpoint=str(run / "checkpoint-2"))
    assert kept(run / "checkpoint-4" / "teacher") == want
    export(read_tree(run / "checkpoint-4"), tmp_path / "left", run / "checkpoint-4")
    assert kept(tmp_path / "left" / "teacher") == want
    assert bits(load_file(tmp_path / "left" / "model.safetensors")) != want
    native = trainer(tmp_path / "native", max_steps=4)
    native.train()
    assert names(tmp_path / "left") == names(tmp_path / "native" / "checkpoint-4") | {"teacher"}


def test_what_a_native_save_left_does_not_stay_where_the_step_is_saved_again(tmp_path):
    trainer(tmp_path, max_steps=4).train()
    assert {"model.safetensors", "optimizer.pt"} <= names(tmp_path / "checkpoint-4")
    again = trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=4)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert not {"model.safetensors", "optimizer.pt"} & names(tmp_path / "checkpoint-4")


class Own(Trainer):
    """Saves its model in its own way, as many recipes do."""

    def save_model(self, output_dir=None, _internal_call=False):
        self.model.save_pretrained(output_dir or self.args.output_dir)


class Shards(Trainer):
    def save_model(self, output_dir=None, _internal_call=False):
        self.model.save_pretrained(output_dir or self.args.output_dir, max_shard_size="20KB")


@pytest.mark.parametrize("kind", [Own, Shards])
def test_a_save_model_of_a_subclass_leaves_no_native_weights(tmp_path, kind):
    whole = trainer(tmp_path / "native", kind=kind)
    whole.train()
    assert list((tmp_path / "native" / "checkpoint-4").glob("*.safetensors"))
    trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), kind=kind).train()
    folder = tmp_path / "ours" / "checkpoint-4"
    assert list(folder.rglob("*.safetensors")) == []
    assert "dynaquant export" in (folder / "model.safetensors.index.json").read_text()
    again = trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), kind=kind, model=gpt(seed=9))
    again.train(resume_from_checkpoint=str(folder))
    assert everything(again) == everything(whole)
    again.save_model(tmp_path / "final")
    assert list((tmp_path / "final").glob("*.safetensors"))
