"""When the next save is due, as the Trainer will do it."""

import pytest
from transformers import TrainerState

from dynaquant_transformers.schedule import steps_an_epoch, steps_left
from tests.integrations.transformers.kit import arguments


@pytest.mark.parametrize(
    ("given", "done", "left"),
    [
        ({"save_strategy": "steps"}, 0, 10),
        ({"save_strategy": "steps"}, 9, 1),
        ({"save_strategy": "steps"}, 10, 10),
        ({"save_strategy": "steps"}, 32, 3),  # the Trainer saves when it is done
        ({"save_strategy": "epoch"}, 8, 4),
        ({"save_strategy": "epoch"}, 33, 2),
        ({"save_strategy": "best", "eval_strategy": "steps"}, 8, 6),
        ({"save_strategy": "best", "eval_strategy": "epoch"}, 8, 4),
        ({"save_strategy": "no"}, 3, None),
    ],
)
def test_steps_left(tmp_path, given, done, left):
    if given["save_strategy"] == "best":
        given = given | {"metric_for_best_model": "loss"}
    args = arguments(tmp_path, **given)
    state = TrainerState(global_step=done, max_steps=35, save_steps=10, eval_steps=7)
    assert steps_left(args, state, 12) == left


def test_an_epoch_of_unknown_length(tmp_path):
    args = arguments(tmp_path, save_strategy="epoch")
    state = TrainerState(global_step=3, max_steps=35)
    assert steps_left(args, state, None) == 32


class Endless:
    def __len__(self):
        raise TypeError("an iterable dataset has no length")


@pytest.mark.parametrize(("loader", "steps"), [(range(7), 3), (range(9), 3), (Endless(), None), (None, None)])
def test_steps_an_epoch(tmp_path, loader, steps):
    assert steps_an_epoch(arguments(tmp_path, gradient_accumulation_steps=3), loader) == steps
