"""Evaluation data and losses that do more than return a number, and folders that were saved over natively."""

import pytest
import torch
from torch.nn import functional
from transformers import PrinterCallback, Trainer

from dynaquant_core.errors import EvaluationError
from dynaquant_core.plugins import describe
from dynaquant_transformers import DynaQuantCallback
from tests.integrations.transformers.kit import EXACT, bits, digits, everything, gpt, trainer


class Noisy:
    """A collator that flips pixels, drawn from a generator that it makes when it is first asked."""

    def __init__(self):
        self.drawn = None

    def __call__(self, rows):
        if self.drawn is None:
            self.drawn = torch.Generator().manual_seed(3)
        tokens = torch.stack([row["input_ids"] for row in rows])
        kept = torch.rand(tokens.shape, generator=self.drawn) > 0.2
        return {"input_ids": torch.where(kept, tokens, 0), "labels": tokens}


class Telling(Trainer):
    """Logs a part of its loss, also where it evaluates."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(input_ids=inputs["input_ids"])
        loss = functional.cross_entropy(
            outputs.logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten()
        )
        self.log({"part": float(loss.detach()) / 2})
        return (loss, outputs) if return_outputs else loss


def trained(folder, *callbacks, **given):
    one = trainer(folder, *callbacks, model=gpt(width=16), **given)
    one.remove_callback(PrinterCallback)
    one.train()
    return one


def test_a_collator_with_a_generator_of_its_own_goes_on_where_training_left_it(tmp_path):
    plain = trained(tmp_path / "plain", data_collator=Noisy())
    ours = trained(tmp_path / "ours", DynaQuantCallback(threshold=0.05), data_collator=Noisy())
    assert everything(ours) == everything(plain)
    found = describe(tmp_path / "ours" / "checkpoint-8")
    assert found.evaluations > 0
    assert abs(found.degradation) < 0.05, "candidates are measured on the reference's own noise"


def test_what_a_loss_logs_while_candidates_are_measured_is_not_logged(tmp_path):
    plain = trained(tmp_path / "plain", kind=Telling)
    ours = trained(tmp_path / "ours", DynaQuantCallback(threshold=0.05), kind=Telling)

    def parts(one):
        return [entry["part"] for entry in one.state.log_history if "part" in entry]

    assert parts(ours) == parts(plain)
    assert describe(tmp_path / "ours" / "checkpoint-8").evaluations > 0


def test_batches_without_a_label_do_not_count(tmp_path):
    """Their loss is no number, which natively is no reason to stop."""
    rows = digits(16, first=200)
    masked = [{**row, "labels": torch.full_like(row["labels"], -100)} for row in rows[:8]]
    one = trained(tmp_path, DynaQuantCallback(threshold=0.05), eval_dataset=[*masked, *rows[8:]])
    assert one.state.global_step == 8
    assert describe(tmp_path / "checkpoint-8").met


def test_fewer_rows_than_a_batch_are_measured_where_training_drops_what_is_left_over(tmp_path):
    rows = digits(8, first=200)
    given = {"dataloader_drop_last": True, "per_device_eval_batch_size": 6}
    sets = {"few": rows[:3], "enough": rows}
    one = trained(tmp_path, DynaQuantCallback(threshold=0.05), eval_dataset=sets, **given)
    seen = [describe(tmp_path / f"checkpoint-{step}") for step in (2, 8)]
    assert all(found.met and found.evaluations > 0 for found in seen)
    with torch.no_grad():
        losses = [
            one.prediction_step(one.model.eval(), one.data_collator(part), True)[0]
            for part in (rows[:3], rows[:6])
        ]
    assert seen[-1].quality["reference"] == pytest.approx(float(sum(losses)) / 2, rel=1e-5)
    assert one.args.dataloader_drop_last


@pytest.mark.parametrize("data", [[], {}], ids=str)
def test_an_empty_evaluation_set_is_named(tmp_path, data):
    with pytest.raises(EvaluationError, match="eval_dataset"):
        trained(tmp_path, DynaQuantCallback(threshold=0.05), eval_dataset=data)


@pytest.mark.parametrize("save_only_model", [False, True])
def test_what_was_saved_over_natively_is_what_is_loaded(tmp_path, save_only_model):
    """The callback was taken out; our files of the run before still lie in the folders."""
    given = {
        "max_steps": 4, "eval_strategy": "steps", "eval_steps": 2,
        "load_best_model_at_end": True, "save_only_model": save_only_model,
    }  # fmt: skip
    before = trained(tmp_path, DynaQuantCallback(**EXACT), **given)
    native = trainer(tmp_path, model=gpt(5, width=16), **given)
    native.train()
    assert bits(dict(native.model.state_dict())) != bits(dict(before.model.state_dict()))
    assert native.evaluate()["eval_loss"] == pytest.approx(native.state.best_metric, rel=1e-4)
