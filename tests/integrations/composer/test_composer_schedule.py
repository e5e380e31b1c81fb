"""The prediction of the next save agrees with when Composer saves."""

import pytest
from composer.core import Callback

from tests.integrations.composer.kit import EXACT, ours, trainer


class Watch(Callback):
    """What was predicted at the start of each batch, and when saves came."""

    def __init__(self, saver):
        self.predicted, self.saved = {}, []
        follow, save = saver._run.look_ahead, saver._save_checkpoint
        saver._run.look_ahead = lambda left: (self.left.append(left), follow(left))[1]
        saver._save_checkpoint = lambda *given: (self.saved.append(self.batch), save(*given))[1]
        self.left, self.batch = [], 0

    def batch_end(self, state, logger):
        self.batch = int(state.timestamp.batch)


@pytest.mark.parametrize(
    ("interval", "duration"),
    [
        ("5ba", "13ba"),
        ("1ep", "2ep"),
        ("2ep", "3ep"),
        ("0.25dur", "2ep"),
        ("0.5dur", "9ba"),
        ("128sp", "8ba"),
        (1, "2ep"),
    ],
)
def test_exact(tmp_path, interval, duration):
    saver = ours(tmp_path, interval, evaluate=lambda: 1.0, **EXACT)
    watch = Watch(saver)
    trainer(saver, watch, duration=duration).fit()
    for batch, left in enumerate(watch.left):
        due = next(step for step in watch.saved if step > batch)
        if interval == "128sp" and batch == 0:
            assert left == 8  # nothing is known of samples yet but the end of training
        else:
            assert left == due - batch, (batch, watch.saved)


@pytest.mark.parametrize("interval", ["60sec", lambda state, event: False])
def test_unknown_but_for_the_end_of_training(tmp_path, interval):
    saver = ours(tmp_path, interval, **EXACT)
    watch = Watch(saver)
    trainer(saver, watch, duration="3ba").fit()
    assert watch.left == [3, 2, 1]
