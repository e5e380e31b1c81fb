"""A second ``fit`` of one trainer, after an exception, with other evaluators, or from another place."""

import functools
import shutil
import threading

import pytest
import torch
from composer import Evaluator
from composer.core import Callback
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from dynaquant_composer.fit import _differences
from dynaquant_composer.folder import publish
from dynaquant_composer.pointer import folder_of
from dynaquant_core.errors import ConfigError
from dynaquant_core.plugins import is_checkpoint
from dynaquant_core.plugins.folder import Place
from tests.integrations.composer.kit import EXACT, Net, digits, fit, names, ours, trainer


class Dies(Callback):
    """Raises once, right after the save of three batches was given to the background."""

    died = False

    def batch_checkpoint(self, state, logger):
        if not self.died and int(state.timestamp.batch) == 3:
            self.died = True
            raise KeyboardInterrupt


def test_a_fit_after_an_exception_waits_for_the_save_before(tmp_path, monkeypatch):
    settle = Place.settle

    def slowly(place, *arguments):
        threading.Event().wait(0.5)
        settle(place, *arguments)

    monkeypatch.setattr(Place, "settle", slowly)
    run = trainer(ours(tmp_path, **EXACT), Dies(), duration="4ba")
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    run.fit(reset_time=False)
    assert is_checkpoint(folder_of(tmp_path / "ep0-ba3-rank0.pt"))
    assert (tmp_path / "ep0-ba3-rank0.pt").is_file()
    assert run.saved_checkpoints[0] == str(tmp_path / "ep0-ba3-rank0.pt")


def test_what_is_gone_does_not_appear_and_a_dead_link_is_mended(tmp_path):
    fit(ours(tmp_path, **EXACT), duration="6ba")
    shutil.rmtree(folder_of(tmp_path / "ep0-ba6-rank0.pt"))
    again = trainer(ours(tmp_path, **EXACT), autoresume=True)
    assert int(again.state.timestamp.batch) == 3
    assert not publish(tmp_path / "ep9-ba9-rank0.pt", tmp_path / "latest-rank0.pt")
    assert (tmp_path / "latest-rank0.pt").readlink().name == "ep0-ba3-rank0.pt"
    assert "ep9-ba9-rank0.pt" not in names(tmp_path)


def test_other_evaluators_in_a_second_fit(tmp_path):
    callback = ours(tmp_path)
    run = fit(callback, duration="3ba")
    other = Evaluator(label="other", dataloader=DataLoader(digits()[1], 100), metric_names=["CrossEntropy"])
    run.fit(duration="3ba", eval_dataloader=other)
    assert callback.last.step == 6


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    class Goes(Callback):
        def batch_checkpoint(self, state, logger):
            if int(state.timestamp.batch) == 3:
                (tmp_path / "elsewhere").mkdir()
                monkeypatch.chdir(tmp_path / "elsewhere")

    monkeypatch.chdir(tmp_path)
    run = trainer(ours("run", "3ba", **EXACT), Goes(), duration="4ba", eval_dataloader=None)
    run.fit()
    assert {"ep0-ba3-rank0.pt", "latest-rank0.pt"} <= set(names(tmp_path / "run"))


@pytest.mark.parametrize("how", ["partial", "lambda"])
def test_torch_load_may_be_wrapped(tmp_path, monkeypatch, how):
    fit(ours(tmp_path, **EXACT), duration="3ba")
    true = torch.load
    wrapped = functools.partial(true) if how == "partial" else lambda *given, **more: true(*given, **more)
    monkeypatch.setattr(torch, "load", wrapped)
    assert "state" in torch.load(str(tmp_path / "latest-rank0.pt"), weights_only=False)


def test_torch_load_takes_a_path(tmp_path):
    fit(ours(tmp_path, **EXACT), duration="3ba")
    assert "state" in torch.load(tmp_path / "latest-rank0.pt", weights_only=False)


@pytest.mark.parametrize("name", ["a{batch}.pt.gz", "a{batch}.pt.bz2", "a{batch}.tar.gz"])
def test_names_of_compressed_files(tmp_path, name):
    for option in ("filename", "latest_filename"):
        with pytest.raises(ConfigError, match="DynaQuant compresses by itself"):
            ours(tmp_path, **{option: name})


@pytest.mark.parametrize("name", ["a{batch}.tar", "a{batch}.tar.pt", "a{batch}.symlink"])
def test_names_that_composer_could_not_load_again(tmp_path, name):
    for option in ("filename", "latest_filename"):
        with pytest.raises(ConfigError, match=r"could not load it again: end the name in \.pt"):
            ours(tmp_path, **{option: name})


@pytest.mark.parametrize("exact", [None, 3, [3]])
def test_exact_that_is_no_pattern(tmp_path, exact):
    with pytest.raises(ConfigError, match="exact must be name patterns"):
        ours(tmp_path, exact=exact)


def test_a_metric_of_many_numbers(tmp_path):
    from composer.models import ComposerClassifier

    model = ComposerClassifier(Net(8), val_metrics=MulticlassAccuracy(10, average=None))
    given = {"model": model, "optimizers": torch.optim.AdamW(model.parameters())}
    with pytest.raises(Exception, match=r"'MulticlassAccuracy' of evaluator 'eval' .* metric="):
        fit(ours(tmp_path, mode="max"), duration="3ba", **given)


def test_shapes_come_first_and_alone_where_names_may_differ():
    live, stored = ({"a": torch.ones(2), "b": torch.ones(1)}, {"a": torch.ones(3), "c": torch.ones(1)})
    shape = "a is (3,) in the checkpoint and (2,) in the model"
    assert _differences(live, stored, strict=False) == [shape]
    assert _differences(live, stored, strict=True) == [
        shape,
        "b is not in the checkpoint",
        "c is not in the model",
    ]
