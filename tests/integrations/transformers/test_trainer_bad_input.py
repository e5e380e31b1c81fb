"""Wrong folders, changed models, unsupported modes: one clear line each; and nobody else is touched."""

import inspect
import json
import logging
import re
import shutil

import pytest
import torch
from transformers import GPT2LMHeadModel, Trainer

from dynaquant_core.cli import main
from dynaquant_core.errors import (
    ConfigError,
    DependencyError,
    EmptyStoreError,
    EvaluationError,
    StateMismatchError,
)
from dynaquant_core.plugins import MARKER, read_tree
from dynaquant_transformers import DynaQuantCallback, DynaQuantTrainerMixin, install, loading
from dynaquant_transformers.support import KNOWN
from tests.integrations.transformers.kit import (
    EXACT,
    bits,
    checkpoints,
    everything,
    gpt,
    names,
    python,
    trainer,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a training with checkpoints of ours at 2, 4, 6 and 8; not to be changed."""
    folder = tmp_path_factory.mktemp("saved")
    trainer(folder, DynaQuantCallback(**EXACT)).train()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")


def test_a_checkpoint_is_read_without_the_callback(folder):
    one = trainer(folder, model=gpt(seed=9), max_steps=10)
    one.train(resume_from_checkpoint=True)
    assert one.state.global_step == 10
    assert "optimizer.pt" in names(folder / "checkpoint-10"), "who has no callback saves natively"


def test_without_the_import_the_trainer_says_what_to_import(saved, tmp_path):
    code = (
        "from tests.integrations.transformers.kit import trainer, gpt\n"
        f"one = trainer({str(tmp_path)!r}, model=gpt())\n"
        f"one.train(resume_from_checkpoint={str(saved / 'checkpoint-8')!r})\n"
    )
    process = python("-c", code, stderr=-1, stdout=-1)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "import dynaquant_transformers" in errors.splitlines()[-1]


def test_from_pretrained_says_what_to_export(saved, tmp_path):
    with pytest.raises(
        OSError, match="dynaquant export CHECKPOINT --to hf -o FOLDER and load FOLDER"
    ) as told:
        GPT2LMHeadModel.from_pretrained(saved / "checkpoint-8")
    told.match("import dynaquant_transformers .* and the Trainer reads this checkpoint")
    words = re.search("dynaquant (export .*) and load", str(told.value))[1]
    words = words.replace("CHECKPOINT", str(saved / "checkpoint-8")).replace("FOLDER", str(tmp_path / "out"))
    assert main(words.split()) == 0
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert bits(dict(loaded.state_dict())) == bits(read_tree(saved / "checkpoint-8")["model"])


def test_an_optimizer_that_nobody_asks_for_is_not_held(folder):
    one = trainer(folder, DynaQuantCallback(**EXACT), model=gpt(seed=9))
    one._load_from_checkpoint(str(folder / "checkpoint-8"))
    assert bits(dict(one.model.state_dict())) == bits(read_tree(folder / "checkpoint-8")["model"])
    assert one not in loading._WAITING


def test_a_native_checkpoint_is_resumed_with_the_callback(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "run" / "checkpoint-4")
    one = trainer(tmp_path / "run", DynaQuantCallback(**EXACT), model=gpt(seed=9))
    one.train(resume_from_checkpoint=True)
    assert everything(one) == everything(whole)
    assert MARKER in names(tmp_path / "run" / "checkpoint-8")


def test_a_wrong_path(tmp_path):
    one = trainer(tmp_path, DynaQuantCallback(**EXACT))
    with pytest.raises(ValueError, match=r"valid checkpoint at .*nowhere"):
        one.train(resume_from_checkpoint=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("callbacks", [0, 1])
def test_a_changed_model_is_refused_and_untouched(folder, callbacks):
    wider = gpt(seed=9, width=64)
    before = bits(dict(wider.state_dict()))
    one = trainer(folder, *[DynaQuantCallback(**EXACT)] * callbacks, model=wider)
    with pytest.raises(StateMismatchError, match=r"does not fit the model: transformer\.\S+ is \("):
        one.train(resume_from_checkpoint=str(folder / "checkpoint-8"))
    assert bits(dict(wider.state_dict())) == before


def test_another_optimizer_is_refused(folder):
    class Frozen(Trainer):
        def create_optimizer(self, model=None):
            self.optimizer = torch.optim.AdamW([self.model.lm_head.weight])
            return self.optimizer

    one = trainer(folder, DynaQuantCallback(**EXACT), kind=Frozen)
    with pytest.raises(StateMismatchError, match="the optimizer refused"):
        one.train(resume_from_checkpoint=True)


def test_a_checkpoint_of_another_framework(folder):
    marker = folder / "checkpoint-8" / MARKER
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"framework": "lightning"}))
    one = trainer(folder, DynaQuantCallback(**EXACT))
    with pytest.raises(StateMismatchError, match="is a checkpoint of lightning"):
        one.train(resume_from_checkpoint=str(folder / "checkpoint-8"))


def test_a_damaged_checkpoint_is_passed_over(folder, caplog):
    for name in names(folder / "checkpoint-8"):
        if name.startswith("step-000000008"):
            data = bytearray((folder / "checkpoint-8" / name).read_bytes())
            data[len(data) // 2] ^= 255
            (folder / "checkpoint-8" / name).unlink()
            (folder / "checkpoint-8" / name).write_bytes(data)
    (folder / "checkpoint-9").mkdir()
    one = trainer(folder, DynaQuantCallback(**EXACT))
    with caplog.at_level(logging.WARNING):
        one.train(resume_from_checkpoint=True)
    told = [record.message for record in caplog.records if "passed over" in record.message]
    assert [re.search(r"checkpoint-\d", line)[0] for line in told] == ["checkpoint-9", "checkpoint-8"]
    assert one._initial_global_step == 6


def test_a_folder_without_any_state_is_passed_over(folder, caplog):
    small = ("trainer_state.json", "scheduler.pt", "rng_state.pth", "training_args.bin", "config.json")
    (folder / "checkpoint-9").mkdir()
    for name in small:
        shutil.copy(folder / "checkpoint-8" / name, folder / "checkpoint-9")
    one = trainer(folder, DynaQuantCallback(**EXACT), max_steps=9)
    one.train(resume_from_checkpoint=True)
    assert one._initial_global_step == 8
    assert "passed over: checkpoint-9 holds neither weights nor an optimizer" in caplog.text


def test_no_checkpoint_is_whole(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    one = trainer(tmp_path, DynaQuantCallback(**EXACT))
    with pytest.raises(EmptyStoreError, match=r"checkpoint-3 has no trainer_state\.json"):
        one.train(resume_from_checkpoint=True)


def test_what_a_dead_process_committed_gets_its_name(folder):
    workshop = folder / ".dynaquant"
    (workshop / "8").mkdir(parents=True)
    (folder / "checkpoint-8").rename(workshop / "8" / "checkpoint-8")
    shutil.copytree(folder / "checkpoint-6", workshop / "7" / "checkpoint-7")
    (workshop / "7" / "checkpoint-7" / MARKER).unlink()
    one = trainer(folder, DynaQuantCallback(**EXACT), max_steps=9)
    one.train(resume_from_checkpoint=True)
    assert one._initial_global_step == 8
    assert checkpoints(folder) == [2, 4, 6, 8, 9]
    assert names(folder) == {f"checkpoint-{step}" for step in (2, 4, 6, 8, 9)}


def test_what_stands_where_a_checkpoint_goes_is_replaced(tmp_path):
    """As the Trainer's own checkpoint on SIGTERM, which makes the folder first."""
    (tmp_path / "checkpoint-8").mkdir()
    (tmp_path / "checkpoint-8" / "checkpoint-is-incomplete.txt").touch()
    trainer(tmp_path, DynaQuantCallback(**EXACT)).train()
    assert "checkpoint-is-incomplete.txt" not in names(tmp_path / "checkpoint-8")
    assert read_tree(tmp_path / "checkpoint-8")["optimizer"]["state"]


def test_a_failing_measure_may_be_a_warning(tmp_path, caplog):
    def evaluate():
        raise RuntimeError("no data today")

    callback = DynaQuantCallback(evaluate=evaluate, on_error="warn")
    one = trainer(tmp_path, callback)
    with caplog.at_level(logging.WARNING):
        one.train()
    assert "no data today" in caplog.text
    stored = read_tree(tmp_path / "checkpoint-8")
    assert bits(stored["model"]) == bits(dict(one.model.state_dict())), "exact instead"


def test_the_mixin_goes_before_the_trainer():
    with pytest.raises(ConfigError, match="before the Trainer"):
        type("Wrong", (Trainer, DynaQuantTrainerMixin), {})


def test_evaluation_data_without_a_loss(tmp_path):
    class Lossless(Trainer):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            return None, None, None

    one = trainer(tmp_path, DynaQuantCallback(threshold=0.05), kind=Lossless)
    with pytest.raises(EvaluationError, match="give evaluate= to the callback"):
        one.train()
    assert read_tree(tmp_path / "checkpoint-2")["model"], "an exact checkpoint was committed instead"


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("is_fsdp_enabled", "FSDP"),
        ("is_deepspeed_enabled", "DeepSpeed"),
        ("is_distributed_loading_by_transformers", "sharded when it was loaded"),
    ],
)
def test_sharded_modes_are_refused(tmp_path, attribute, said):
    one = trainer(tmp_path, DynaQuantCallback(**EXACT))
    setattr(one, attribute, True)
    with pytest.raises(ConfigError, match=f"{said}.*data parallel"):
        one.train()


def test_uploads_of_native_weights_are_refused(tmp_path):
    one = trainer(tmp_path, DynaQuantCallback(**EXACT))
    one.args.push_to_hub = True
    with pytest.raises(ConfigError, match="hub_strategy='end'"):
        one.train()


@pytest.mark.parametrize("given", [{"threshold": -1}, {"eval_batches": 0}, {"mode": "best"}, {"evaluate": 3}])
def test_options_out_of_range(given):
    with pytest.raises(ConfigError):
        DynaQuantCallback(**given)


class Stranger(Trainer):
    """A Trainer of a version to come."""

    def _save(self, output_dir=None, state_dict=None, shards=1):
        raise NotImplementedError


def test_an_unknown_trainer_is_told_at_install():
    with pytest.raises(DependencyError, match=rf"Trainer\._save takes .*transformers=={KNOWN[-1]}"):
        install(Stranger)


def test_installing_again_changes_nothing():
    before = {name: inspect.getattr_static(Trainer, name) for name in dir(Trainer)}
    install()
    assert {name: inspect.getattr_static(Trainer, name) for name in dir(Trainer)} == before


def test_two_trainers_in_one_process(tmp_path):
    """One with a callback, one without, in turns."""
    plain, ours = trainer(tmp_path / "plain"), trainer(tmp_path / "ours", DynaQuantCallback(**EXACT))
    plain.train()
    ours.train()
    assert {"optimizer.pt", "model.safetensors"} <= names(tmp_path / "plain" / "checkpoint-8")
    assert not {"optimizer.pt", "model.safetensors"} & names(tmp_path / "ours" / "checkpoint-8")
    again = trainer(tmp_path / "plain", max_steps=9)
    again.train(resume_from_checkpoint=True)
    assert MARKER not in names(tmp_path / "plain" / "checkpoint-9")


def test_saving_can_be_turned_off(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAQUANT_DISABLE", "1")
    trainer(tmp_path, DynaQuantCallback(**EXACT)).train()
    assert names(tmp_path) == set()


def test_a_loss_is_not_maximised():
    """With the threshold upside down the worst candidate would be met."""
    with pytest.raises(ConfigError, match="mode='max' needs evaluate="):
        DynaQuantCallback(mode="max")
