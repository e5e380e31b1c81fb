"""Bad input ends in one clear line."""

from types import SimpleNamespace

import pytest
from composer import metrics
from torch import nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from dynaquant_composer import DynaQuantCallback
from dynaquant_composer.evaluation import HIGHER_IS_BETTER, LOWER_IS_BETTER, metric_of
from dynaquant_composer.guard import require_whole_weights
from dynaquant_composer.pointer import folder_of
from dynaquant_core.errors import ConfigError, DynaQuantError, StateMismatchError
from tests.integrations.composer.kit import EXACT, bits, fit, ours, trainer


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threshold": -1}, "threshold"),
        ({"mode": "best"}, "mode"),
        ({"moments": "4bit"}, "moments"),
        ({"window": 1.5}, "window"),
        ({"on_error": "ignore"}, "on_error"),
        ({"evaluate": 3}, "evaluate"),
        ({"max_chain": -1}, "max_chain"),
    ],
)
def test_wrong_options(tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):
        DynaQuantCallback(tmp_path, **options)


def test_an_object_store():
    with pytest.raises(ConfigError, match="folder of a file system"):
        DynaQuantCallback("s3://bucket/run")


def test_sharded_weights():
    plain = {"fsdp_enabled": False, "fsdp_config": None, "tp_config": None, "optimizers": []}
    require_whole_weights(SimpleNamespace(**plain))
    for changed in ({"fsdp_enabled": True}, {"fsdp_config": object()}, {"tp_config": object()}):
        with pytest.raises(ConfigError, match=r"FSDP.*not supported"):
            require_whole_weights(SimpleNamespace(**plain | changed))
    shared = SimpleNamespace(consolidate_state_dict=print)
    with pytest.raises(ConfigError, match=r"keeps the state of some parameters on each: train with"):
        require_whole_weights(SimpleNamespace(**plain | {"optimizers": [shared]}))


def test_metrics_that_are_not_there_or_point_the_other_way(tmp_path):
    with pytest.raises(ConfigError, match="has no metric 'F1'; it has CrossEntropy, MulticlassAccuracy"):
        fit(ours(tmp_path / "a", metric="F1"), duration="3ba")
    accuracy = MetricCollection([MulticlassAccuracy(10)])
    with pytest.raises(ConfigError, match="minimise"):
        metric_of(dict(accuracy.items()), None, "min", "eval")
    assert metric_of(dict(accuracy.items()), None, "max", "eval") == "MulticlassAccuracy"


def test_a_metric_of_ones_choice_that_points_the_other_way(tmp_path):
    with pytest.raises(ConfigError, match=r"'MulticlassAccuracy' .* better the higher .* give mode='max'"):
        fit(ours(tmp_path / "a", metric="MulticlassAccuracy"), duration="3ba")
    with pytest.raises(ConfigError, match=r"'CrossEntropy' .* better the lower .* give mode='min'"):
        fit(ours(tmp_path / "b", metric="CrossEntropy", mode="max"), duration="3ba")


def test_composers_own_metrics_are_known(tmp_path):
    masked, language = metrics.MaskedAccuracy(), metrics.LanguageCrossEntropy()
    both = {"MaskedAccuracy": masked, "LanguageCrossEntropy": language}
    assert metric_of(both, None, "min", "eval") == "LanguageCrossEntropy"
    assert metric_of(dict(reversed(both.items())), None, "max", "eval") == "MaskedAccuracy"
    with pytest.raises(ConfigError, match="minimise"):
        metric_of({"Dice": metrics.Dice(num_classes=3)}, None, "min", "eval")
    with pytest.raises(ConfigError, match="maximise"):
        metric_of({"CrossEntropy": metrics.CrossEntropy()}, None, "max", "eval")
    own = [kind for kind in vars(metrics).values() if isinstance(kind, type) and issubclass(kind, Metric)]
    known = HIGHER_IS_BETTER | LOWER_IS_BETTER
    assert {kind.__name__ for kind in own if kind.higher_is_better is None} == known
    assert metric_of({"mine": SimpleNamespace(higher_is_better=None)}, None, "max", "eval") == "mine"


def test_a_model_that_changed(tmp_path):
    fit(ours(tmp_path, **EXACT), duration="3ba")
    path = str(tmp_path / "latest-rank0.pt")
    with pytest.raises(StateMismatchError, match=r"module\.body\.0\.weight is \(48, 64\) in the checkpoint"):
        trainer(ours(tmp_path, **EXACT), load_path=path, width=64)
    run = trainer(ours(tmp_path, **EXACT), load_path=path, width=48)
    assert "load_model_state" not in vars(run.state)


def test_wrong_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        trainer(ours(tmp_path, **EXACT), load_path=str(tmp_path / "nowhere.pt"))
    fresh = trainer(ours(tmp_path / "new", **EXACT), autoresume=True)
    assert int(fresh.state.timestamp.batch) == 0


def test_checkpoints_of_another_run_are_not_written_over(tmp_path):
    fit(ours(tmp_path, **EXACT), duration="6ba")
    with pytest.raises(FileExistsError, match="may conflict"):
        fit(ours(tmp_path, **EXACT), duration="6ba")
    fit(ours(tmp_path, overwrite=True, **EXACT), duration="6ba", seed=4)


def test_a_damaged_file_is_named(tmp_path):
    fit(ours(tmp_path, **EXACT), duration="3ba")
    [file] = folder_of(tmp_path / "ep0-ba3-rank0.pt").glob("*.dq")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)
    with pytest.raises(DynaQuantError):
        trainer(load_path=str(tmp_path / "latest-rank0.pt"))


def test_an_evaluate_that_fails_warns_or_raises(tmp_path, caplog):
    def broken():
        raise ValueError("no data today")

    callback = ours(tmp_path / "warn", evaluate=broken, on_error="warn")
    fit(callback, duration="3ba")
    assert "no data today" in caplog.text
    assert callback.last.step == 3
    with pytest.raises(DynaQuantError, match="no data today"):
        fit(ours(tmp_path / "raise", evaluate=broken), duration="3ba")


def test_saving_turned_off_by_the_environment(tmp_path, monkeypatch):
    plain = fit(duration="6ba")
    monkeypatch.setenv("DYNAQUANT_DISABLE", "1")
    run = fit(ours(tmp_path), duration="6ba")
    assert list(tmp_path.iterdir()) == []
    assert bits(run.state.model.state_dict()) == bits(plain.state.model.state_dict())


def test_tied_weights_come_back_tied(tmp_path):
    class Tied(nn.Module):
        num_classes = 10

        def __init__(self):
            super().__init__()
            self.into, self.back = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
            self.back.weight = self.into.weight
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            return self.head(self.back(self.into(x).relu()).relu())

    import torch
    from composer.models import ComposerClassifier

    def options():
        model = ComposerClassifier(Tied())
        return {"model": model, "optimizers": torch.optim.AdamW(model.parameters())}

    run = fit(ours(tmp_path, exact=("*",)), duration="3ba", **options())
    again = trainer(ours(tmp_path, exact=("*",)), autoresume=True, **options())
    module = again.state.model.module
    assert module.back.weight is module.into.weight
    assert torch.equal(module.into.weight, run.state.model.module.into.weight)
