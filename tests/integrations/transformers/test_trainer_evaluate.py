"""``evaluate=`` that asks the Trainer: nobody but the search hears of it."""

import pytest
import torch
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback

from dynaquant_core.plugins import describe
from dynaquant_transformers import DynaQuantCallback
from tests.integrations.transformers.kit import everything, gpt, trainer

STEPWISE = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 16}


class Listening(TrainerCallback):
    """What reporters hear."""

    def __init__(self):
        self.heard = []

    def on_evaluate(self, args, state, control, metrics=None, **_):
        self.heard.append(("evaluate", state.global_step, metrics["eval_loss"]))

    def on_prediction_step(self, args, state, control, **_):
        self.heard.append(("prediction", state.global_step))

    def on_predict(self, args, state, control, metrics=None, **_):
        self.heard.append(("predict", state.global_step))

    def on_log(self, args, state, control, logs=None, **_):
        self.heard.append(("log", state.global_step, sorted(logs)))


def accuracy(prediction):
    guessed = prediction.predictions.argmax(-1)[:, :-1]
    return {"accuracy": float((guessed == prediction.label_ids[:, 1:]).mean())}


def made(folder, *callbacks, **given):
    listening = Listening()
    given = STEPWISE | {"compute_metrics": accuracy, "logging_steps": 1} | given
    one = trainer(folder, listening, *callbacks, **given)
    one.remove_callback(PrinterCallback)
    return one, listening


def plain(records):
    """Without what differs by the clock, or is ours to log."""
    return [
        {key: value for key, value in entry.items() if not key.endswith(("_runtime", "_per_second"))}
        for entry in records
        if not any(key.startswith("dynaquant/") for key in entry)
    ]


def test_an_evaluate_that_asks_the_trainer_ends_no_training_and_is_logged_nowhere(tmp_path):
    best = {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
    native, heard = made(tmp_path / "native", EarlyStoppingCallback(2), **best)
    native.train()
    ours, listened = made(tmp_path / "ours", EarlyStoppingCallback(2), **best)
    asked = []

    def measure():
        asked.append(ours.evaluate()["eval_accuracy"])
        ours.predict(ours.eval_dataset)
        return asked[-1]

    ours.add_callback(DynaQuantCallback(evaluate=measure, mode="max", threshold=0.5))
    ours.train()
    assert ours.state.global_step == native.state.global_step
    assert ours.state.best_global_step == native.state.best_global_step
    assert plain(ours.state.log_history) == plain(native.state.log_history)
    own = [one for one in listened.heard if not (one[0] == "log" and one[-1][0].startswith("dynaquant/"))]
    assert own == heard.heard
    found = describe(ours.state.best_model_checkpoint)
    assert 0 < found.evaluations < len(asked)
    assert found.quality["reference"] in asked


def test_a_measure_that_is_an_object_or_yields_is_heard_by_nobody(tmp_path):
    class Measure:
        def __init__(self):
            self.trainer = None

        def __call__(self, model):
            assert not model.training
            yield self.trainer.evaluate()["eval_loss"]
            yield self.trainer.evaluate()["eval_loss"]

    measure = Measure()
    one, listening = made(
        tmp_path, DynaQuantCallback(evaluate=measure, threshold=0.1), eval_strategy="no", max_steps=2
    )
    measure.trainer = one
    one.train()
    assert {heard[0] for heard in listening.heard} == {"log"}
    assert describe(tmp_path / "checkpoint-2").met


def test_loaders_with_workers_are_given_up_after_each_measurement(tmp_path):
    one, _ = made(
        tmp_path,
        max_steps=2,
        eval_strategy="no",
        dataloader_num_workers=1,
        dataloader_persistent_workers=True,
    )
    held = []

    def measure():
        held.append(len(one.accelerator._dataloaders))
        return one.evaluate()["eval_loss"]

    one.add_callback(DynaQuantCallback(evaluate=measure, threshold=0.1))
    one.train()
    assert len(held) > 1
    assert len(set(held)) == 1


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD: gradients are of one point, and what is evaluated is an average (Defazio, 2024)."""

    BETA = 0.9

    def __init__(self, weights, lr):
        super().__init__(weights, {"lr": lr, "train_mode": False, "k": 0})

    @torch.no_grad()
    def _go(self, train, weight):
        for group in self.param_groups:
            if group["train_mode"] is not train:
                for one in group["params"]:
                    if "z" in self.state[one]:
                        one.lerp_(self.state[one]["z"], weight)
                group["train_mode"] = train

    def train(self):
        self._go(True, 1 - self.BETA)

    def eval(self):
        self._go(False, 1 - 1 / self.BETA)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            assert group["train_mode"]
            group["k"] += 1
            share = 1 / group["k"]
            for one in (each for each in group["params"] if each.grad is not None):
                z = self.state[one].setdefault("z", one.clone())
                one.lerp_(z, share).add_(one.grad, alpha=group["lr"] * (self.BETA * (1 - share) - 1))
                z.sub_(one.grad, alpha=group["lr"])


@pytest.mark.parametrize("own", [False, True])
def test_without_a_schedule_what_is_measured_is_the_average_and_training_goes_on(tmp_path, own):
    def trained(folder, *callbacks):
        model = gpt()
        optimizer = ScheduleFree(model.parameters(), lr=0.5)
        steady = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        one, _ = made(folder, *callbacks, model=model, optimizers=(optimizer, steady), eval_strategy="no")
        return one

    native = trained(tmp_path / "native")
    native.train()
    ours = trained(tmp_path / "ours")
    measure = (lambda: ours.evaluate()["eval_loss"]) if own else None
    ours.add_callback(DynaQuantCallback(evaluate=measure, threshold=0.05))
    ours.train()
    assert everything(ours) == everything(native)
    found = describe(tmp_path / "ours" / "checkpoint-8")
    assert found.quality["reference"] == pytest.approx(native.evaluate()["eval_loss"], rel=1e-5)
