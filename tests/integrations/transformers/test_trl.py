"""TRL's own trainers with the callback: nothing that they override comes between."""

import json
import multiprocessing
import signal

import pytest
from transformers import TrainerCallback

from dynaquant_core.plugins import describe, is_checkpoint, read_tree
from dynaquant_transformers import DynaQuantCallback
from tests.integrations.transformers.kit import EXACT, bits, checkpoints, everything, gpt, names
from tests.integrations.transformers.trl_kit import dpo, grpo, live, sft

pytest.importorskip("trl", reason="TRL is not installed in this environment")

#: TRL and peft are behind transformers in some names.
pytestmark = [pytest.mark.filterwarnings(r"ignore:.*v6\. Use:FutureWarning")]

LARGE = {"model.safetensors", "pytorch_model.bin", "optimizer.pt", "adapter_model.safetensors"}


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """TRL tells its makers of every trainer that is built, except where it is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "1")
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The supervised training that others are compared with: without us."""
    one = sft(tmp_path_factory.mktemp("whole"))
    one.train()
    return one


class Start(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        self.step = state.global_step


class Stop(TrainerCallback):
    """Ends training half-way."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == state.max_steps // 2


def files(folder):
    return {path.name for path in folder.rglob("*")}


def lines(one):
    """What a trainer has logged, without our lines and without times."""
    timed = ("_runtime", "_per_second", "_time")
    kept = [entry for entry in one.state.log_history if "dynaquant/ratio" not in entry]
    return [{key: value for key, value in entry.items() if not key.endswith(timed)} for entry in kept]


def halves(make, folder, seed=9, **given):
    """An exact training that is stopped half-way, and one that goes on there with another model."""
    make(folder, DynaQuantCallback(**EXACT), Stop(), **given).train()
    assert checkpoints(folder) == [1, 2]
    assert not LARGE & files(folder)
    again = make(folder, DynaQuantCallback(**EXACT), model=gpt(seed), **given)
    again.train(resume_from_checkpoint=True)
    return again


def test_supervised_training_that_is_killed_ends_as_the_uninterrupted_one(tmp_path, whole):
    process = multiprocessing.get_context("spawn").Process(target=live, args=(str(tmp_path), 3))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert not LARGE & files(tmp_path)
    safe = max(int(path.name[11:]) for path in tmp_path.rglob("checkpoint-*") if is_checkpoint(path))
    start = Start()
    again = sft(tmp_path, DynaQuantCallback(**EXACT), start, model=gpt(seed=9))
    again.train(resume_from_checkpoint=True)
    assert start.step == safe > 0
    assert everything(again) == everything(whole)
    assert checkpoints(tmp_path) == [1, 2, 3, 4]


def test_searched_checkpoints_leave_training_and_log_of_a_supervised_training_alone(tmp_path, whole):
    one = sft(tmp_path, DynaQuantCallback(threshold=0.05))
    one.train()
    assert everything(one) == everything(whole)
    assert lines(one) == lines(whole)
    folder = tmp_path / "checkpoint-4"
    info = describe(folder)
    assert (info.met, info.ratio > 4, info.evaluations > 0) == (True, True, True)
    assert {"config.json", "tokenizer.json", "scheduler.pt", "rng_state.pth"} <= names(folder)


def test_the_best_supervised_model_is_loaded_at_the_end(tmp_path):
    given = {
        "eval_steps": 1,
        "metric_for_best_model": "loss",
        "greater_is_better": True,  # the first one then, and the last one is another
        "load_best_model_at_end": True,
        "save_total_limit": 1,
    }
    native = sft(tmp_path / "native", **given)
    native.train()
    ours = sft(tmp_path / "ours", DynaQuantCallback(**EXACT), **given)
    ours.train()
    assert ours.state.best_global_step == native.state.best_global_step == 1
    assert bits(dict(ours.model.state_dict())) == bits(dict(native.model.state_dict()))


def lora():
    import peft

    return peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)


def test_adapters_that_trl_puts_around_a_model(tmp_path):
    native = sft(tmp_path / "native", peft_config=lora())
    native.train()
    again = halves(sft, tmp_path / "ours", seed=0, peft_config=lora())
    assert everything(again) == everything(native)
    assert list(read_tree(tmp_path / "ours" / "checkpoint-4")["adapters"]) == ["default"]


def test_preferences(tmp_path):
    native = dpo(tmp_path / "native")
    native.train()
    assert everything(halves(dpo, tmp_path / "ours")) == everything(native)
    searched = dpo(tmp_path / "searched", DynaQuantCallback(threshold=0.05, eval_batches=1), save_steps=3)
    searched.train()
    assert everything(searched) == everything(native)
    assert lines(searched) == lines(native)
    assert describe(tmp_path / "searched" / "checkpoint-4").met


def test_rewards_and_what_their_trainer_keeps_beside_the_checkpoint(tmp_path):
    native = grpo(tmp_path / "native")
    native.train()
    again = halves(grpo, tmp_path / "ours")
    assert everything(again) == everything(native)
    kept = json.loads((tmp_path / "ours" / "checkpoint-2" / "entropy_ctrl_state.json").read_text())
    assert 0 < kept["entropy_coef"] < again.entropy_coef == native.entropy_coef
