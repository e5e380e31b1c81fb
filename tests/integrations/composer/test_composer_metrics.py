"""Which evaluators a search measures, where they do not all have the same metric."""

import pytest
from composer import Callback, Evaluator
from composer.algorithms import EMA
from composer.callbacks import CheckpointSaver, EarlyStopper
from composer.loggers import InMemoryLogger
from torch.utils.data import DataLoader

from dynaquant_composer.pointer import folder_of
from dynaquant_core.errors import ConfigError
from dynaquant_core.plugins import read_tree
from tests.integrations.composer.kit import EXACT, bits, digits, everything, fit, ours, trainer

RIGHT, LOST = "MulticlassAccuracy", "CrossEntropy"


def evaluators(**metrics):
    """One for each label, with the metric of this name."""
    data = digits()[1]
    return [
        Evaluator(label=label, dataloader=DataLoader(data, 100), metric_names=[name])
        for label, name in metrics.items()
    ]


@pytest.mark.parametrize(
    ("options", "used", "left_out"),
    [
        ({}, "b", "a"),
        ({"metric": LOST}, "b", "a"),
        ({"metric": RIGHT, "mode": "max"}, "a", "b"),
    ],
)
def test_evaluators_without_a_fitting_metric_are_left_out_and_named(
    tmp_path, options, used, left_out, caplog
):
    names = {"a": RIGHT, "b": LOST}
    callback = ours(tmp_path, **options)
    run = fit(callback, eval_dataloader=evaluators(**names), duration="3ba")
    assert callback.last.evaluations > 0
    [said] = [line for line in caplog.messages if "no metric that fits" in line]
    assert f"by {names[used]} of {used} alone" in said
    assert said.endswith(f"fits: {left_out}")
    run.eval()
    native = float(run.state.eval_metrics[used][names[used]].compute())
    assert callback.last.quality["reference"] == pytest.approx(native)


def test_where_every_bit_is_kept_no_metric_is_asked_for(tmp_path, caplog):
    callback = ours(tmp_path, **EXACT)
    fit(callback, eval_dataloader=evaluators(a=RIGHT), duration="3ba")
    assert (callback.last.step, callback.last.evaluations) == (3, 0)
    assert "metric" not in caplog.text


def test_where_no_evaluator_has_a_fitting_metric_the_start_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'a' has no metric 'F1'; .*; none of the 2 evaluators has"):
        fit(ours(tmp_path, metric="F1"), eval_dataloader=evaluators(a=RIGHT, b=LOST), duration="3ba")
    with pytest.raises(ConfigError, match=r"minimise: give metric= .*; none of the 2 evaluators has"):
        fit(ours(tmp_path), eval_dataloader=evaluators(a=RIGHT, b=RIGHT), duration="3ba")
    with pytest.raises(ConfigError, match=r"or evaluate=\.$"):
        fit(ours(tmp_path), eval_dataloader=evaluators(a=RIGHT), duration="3ba")


class Listening(Callback):
    """What callbacks hear of evaluations."""

    def __init__(self):
        self.heard = []

    def eval_end(self, state, logger):
        loss = float(state.eval_metrics["eval"][LOST].compute())
        self.heard.append((int(state.timestamp.batch), int(state.eval_timestamp.batch), loss))

    def eval_batch_end(self, state, logger):
        self.heard.append((int(state.timestamp.batch), state.dataloader_label))


def listened(*callbacks):
    listening, memory = Listening(), InMemoryLogger()
    stopping = EarlyStopper(LOST, "eval", patience="1ba")
    run = trainer(listening, stopping, *callbacks, loggers=[memory], eval_interval="3ba", duration="9ba")
    return run, listening, memory


def test_an_evaluate_that_asks_the_trainer_ends_no_training_and_is_logged_nowhere(tmp_path):
    native, heard, logged = listened()
    native.fit()
    asked = []

    def measure():
        run.eval()
        asked.append(float(run.state.eval_metrics["eval"][RIGHT].compute()))
        return asked[-1]

    callback = ours(tmp_path, evaluate=measure, mode="max", threshold=0.3)
    run, listening, memory = listened(callback)
    run.fit()
    assert everything(run) == everything(native)
    assert listening.heard == heard.heard
    assert [float(value) for _, value in memory.data[f"metrics/eval/{LOST}"]] == [
        float(value) for _, value in logged.data[f"metrics/eval/{LOST}"]
    ]
    ends = [float(one.state.eval_metrics["eval"][LOST].compute()) for one in (run, native)]
    assert ends[0] == ends[1]
    assert 0 < callback.last.evaluations < len(asked)
    assert callback.last.quality["reference"] in asked


def average_in(folder):
    """What the last checkpoint of a run of twelve batches holds of EMA: the weights being trained."""
    [(_, held)] = read_tree(folder_of(folder / "ep1-ba12-rank0.pt"))["state"]["algorithms"]
    return held["ema_model"]["named_parameters_dict"]


def test_an_evaluate_that_asks_the_trainer_leaves_an_average_of_the_weights_in_its_place(tmp_path):
    def measure():
        run.eval()
        return float(run.state.eval_metrics["eval"][LOST].compute())

    asking = ours(tmp_path / "asking", evaluate=measure)
    run = trainer(asking, algorithms=[EMA(half_life="3ba")])
    run.fit()
    native = CheckpointSaver(str(tmp_path / "native"), save_interval="3ba")
    for saver in (native, ours(tmp_path / "evaluators")):
        assert everything(fit(saver, algorithms=[EMA(half_life="3ba")])) == everything(run)
    assert asking.last.evaluations > 1
    assert bits(average_in(tmp_path / "asking")) == bits(average_in(tmp_path / "evaluators"))
