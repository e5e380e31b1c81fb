"""What goes to the accelerator's trackers, beside what the script itself logs there."""

import pytest
from accelerate.tracking import GeneralTracker

from tests.integrations.accelerate.kit import EPOCH, EXACT, build, evaluate, train


class Rows(GeneralTracker):
    """Rows that only grow: what comes under a lower step than the last is dropped, no step is the next."""

    name = "wandb"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.row, self.kept, self.dropped = 0, [], []

    @property
    def tracker(self):
        return self

    def store_init_configuration(self, values):
        pass

    def log(self, values, step=None, commit=None, **_):
        row = self.row if step is None else step
        (self.kept if row >= self.row else self.dropped).append((row, values))
        self.row = max(row, self.row) + (step is None if commit is None else commit)


def tracked(folder, **options):
    rows = Rows()
    bench = build(folder, options=options, log_with=rows)
    bench.accelerator.init_trackers("digits")
    return bench, rows


def test_ratio_degradation_and_seconds_go_to_the_trackers(tmp_path):
    bench, rows = tracked(tmp_path, evaluate=evaluate)
    train(bench, EPOCH, save_every=EPOCH)
    bench.accelerator.end_training()
    [(_, values)] = rows.kept
    assert values["dynaquant/step"] == EPOCH
    assert values["dynaquant/ratio"] > 1
    assert values["dynaquant/degradation"] <= 0.01
    assert {"dynaquant/seconds/held", "dynaquant/seconds/search"} <= set(values)


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("log_first", [True, False])
def test_a_script_that_counts_otherwise_loses_nothing_of_its_own(tmp_path, numbered, log_first):
    """It logs once an epoch, under the epoch's number or none, and saves twice in each."""
    bench, rows = tracked(tmp_path, **EXACT)

    def log(epoch):
        bench.accelerator.log({"loss": 0.1}, **({"step": epoch} if numbered else {}))

    for epoch in range(4):
        if log_first:
            log(epoch)
        train(bench, (epoch + 1) * EPOCH, save_every=EPOCH // 2)
        if not log_first:
            log(epoch)
    bench.accelerator.end_training()
    assert rows.dropped == []
    assert [row for row, values in rows.kept if "loss" in values] == [0, 1, 2, 3]
    steps = [values["dynaquant/step"] for _, values in rows.kept if "loss" not in values]
    assert steps == [2, 4, 6, 8, 10, 12, 14, 16]


def test_log_is_the_accelerator_s_own_again_after_close(tmp_path):
    bench, rows = tracked(tmp_path, **EXACT)
    bench.ours.close()
    assert "log" not in vars(bench.accelerator)
    bench.accelerator.log({"loss": 1.0}, step=3)
    assert rows.kept == [(3, {"loss": 1.0})]
