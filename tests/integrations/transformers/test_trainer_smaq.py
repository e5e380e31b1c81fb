"""SmaQ in the real Trainer: less is held, a resumed run is the uninterrupted one, it ends with training."""

import gc

import pytest
import torch
from transformers import TrainerCallback

from dynaquant_core.errors import ConfigError
from dynaquant_transformers import DynaQuantCallback, SmaQCallback
from dynaquant_transformers.smaq import EMULATED
from tests.integrations.transformers.kit import EXACT, everything, gpt, trainer


def test_feature_maps_fall_to_a_quarter_and_training_learns(tmp_path):
    coding = SmaQCallback(gradients=True, weights=True, optimizer_state=True)
    one = trainer(tmp_path, coding, max_steps=12, save_strategy="no")
    before = one.evaluate()["eval_loss"]
    one.train()
    report = coding.report()
    assert report["memory"]["peak_raw"] > 4 * report["memory"]["peak"]
    assert set(report) == {"saved", "gradient", "weight", "state", "memory"}
    assert one.evaluate()["eval_loss"] < before
    assert not any(module._forward_hooks for module in one.model.modules())


def test_by_default_feature_maps_alone_are_packed_and_a_language_model_learns_as_without(tmp_path):
    losses = []
    for coding in ([], [SmaQCallback()]):
        one = trainer(tmp_path, *coding, max_steps=60, save_strategy="no")
        one.train()
        losses.append(one.evaluate()["eval_loss"])
    assert set(coding[0].report()) == {"saved", "memory"}
    # In the steep part of training, where a few steps are a tenth; where nothing is learnt, twice as much.
    assert losses[1] < 1.25 * losses[0]


@pytest.mark.parametrize("everything_coded", [False, True])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, everything_coded):
    given = {"max_steps": 6, "save_steps": 2, "gradient_accumulation_steps": 2}
    coded = dict.fromkeys(EMULATED, everything_coded)
    whole = trainer(tmp_path / "whole", SmaQCallback(**coded), **given)
    whole.train()
    trainer(tmp_path / "run", SmaQCallback(**coded), DynaQuantCallback(**EXACT), **given).train()
    again = trainer(
        tmp_path / "run", SmaQCallback(**coded), DynaQuantCallback(**EXACT), model=gpt(seed=9), **given
    )
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert everything(again) == everything(whole)


class Interrupting(TrainerCallback):
    """Ctrl-C in a notebook, at the second step."""

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kept", [True, False])
def test_a_training_that_was_interrupted_does_not_bar_the_next_trainer(tmp_path, kept):
    model = gpt()
    first = trainer(tmp_path, SmaQCallback(), Interrupting(), model=model, max_steps=4, save_strategy="no")
    with pytest.raises(KeyboardInterrupt):
        first.train()
    if not kept:
        del first
        gc.collect()
    coding = SmaQCallback()
    trainer(tmp_path, coding, model=model, max_steps=2, save_strategy="no").train()
    assert coding.report()["saved"]["tensors"] > 0
    assert not any(module._forward_hooks for module in model.modules())


def test_a_callback_that_goes_in_the_middle_of_a_step_does_not_end_it_and_codes_nothing_more(tmp_path):
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = trainer(
        tmp_path,
        SmaQCallback(**dict.fromkeys(EMULATED, True)),
        Interrupting(),
        model=model,
        max_steps=4,
        save_strategy="no",
        optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)),
    )
    with pytest.raises(KeyboardInterrupt):
        first.train()
    first.callback_handler.circle = first.callback_handler  # only the collector finds it
    del first
    collecting = optimizer.register_step_post_hook(lambda *_: gc.collect())
    ran = []
    optimizer.register_step_post_hook(lambda *_: ran.append(1))
    optimizer.step()
    assert ran == [1]
    collecting.remove()
    before = [parameter.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.123)
    optimizer.step()
    rate = optimizer.param_groups[0]["lr"]
    pairs = zip(model.parameters(), before, strict=True)
    assert all(torch.allclose(p, old - rate * p.grad, rtol=1e-6, atol=1e-8) for p, old in pairs)


def test_what_the_trainer_gives_is_not_asked_for():
    with pytest.raises(ConfigError, match="generator is the Trainer's"):
        SmaQCallback(generator=None)


def test_a_wrong_setting_ends_the_training_before_it_begins(tmp_path):
    one = trainer(tmp_path, SmaQCallback(format="smak"), max_steps=1)
    with pytest.raises(ConfigError, match="did you mean 'smaq'"):
        one.train()
