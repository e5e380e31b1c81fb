"""The search runs `validation_step` between two steps of training; nobody may notice."""

import logging
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from torchmetrics import Accuracy, MeanMetric, MetricCollection

from dynaquant_core.errors import ConfigError, EvaluationError
from dynaquant_core.plugins import describe
from dynaquant_lightning import DynaQuantCallback
from dynaquant_lightning.aside import set_aside
from tests.integrations.lightning.kit import Digits, digits, everything, fit, loaders, saves


class Rich(Digits):
    """Keeps outputs, counts, metrics and a metric collection, and logs all of it."""

    def __init__(self):
        super().__init__()
        kind = {"task": "multiclass", "num_classes": 10}
        self.accuracy = Accuracy(**kind)
        self.several = MetricCollection({"mean": MeanMetric(), "accuracy": Accuracy(**kind)})
        self.outputs, self.per_class, self.seen = [], {"hits": [0] * 10}, torch.zeros(1)
        self.both = [], []
        self.calls = 0

    def validation_step(self, batch, batch_idx):
        logits = self(batch[0])
        loss = functional.cross_entropy(logits, batch[1])
        self.accuracy(logits, batch[1])
        torch.rand(1)
        self.several["mean"].update(loss)
        self.several["accuracy"].update(logits, batch[1])
        self.outputs.append(float(loss))
        self.both[0].append(float(loss))
        self.per_class["hits"][0] += 1
        self.seen += len(batch[0])
        self.calls += 1
        self.log("val_acc", self.accuracy)
        self.log_dict({"val_loss": loss, "one": 1.0})
        if self.logger is not None:
            self.logger.log_metrics({"by_hand": float(loss)}, step=self.global_step)
        return {"loss": loss, "logits": logits}

    def on_validation_epoch_end(self):
        found = {name: float(value) for name, value in self.several.compute().items()}
        self.log_dict({f"several_{name}": value for name, value in found.items()})
        self.log_dict({"outputs": sum(self.outputs), "count": len(self.outputs), "seen": self.seen.item()})
        self.log("hits", float(self.per_class["hits"][0]))
        self.outputs.clear()


def history(folder):
    """What the logger holds, but for our own figures."""
    (path,) = folder.rglob("metrics.csv")
    head, *rows = [line.split(",") for line in path.read_text().splitlines()]
    kept = [dict(zip(head, row, strict=True)) for row in rows]
    kept = [{name: text for name, text in row.items() if text and "dynaquant" not in name} for row in kept]
    return [row for row in kept if set(row) - {"step"}]


@pytest.mark.parametrize("when", ["batch", "epoch", "validation"])
def test_metrics_logs_and_attributes_are_those_of_a_run_without_us(tmp_path, when):
    times = {
        "batch": {"every_n_epochs": None, "every_n_train_steps": 7},
        "epoch": {"save_on_train_epoch_end": True},
        "validation": {"save_on_train_epoch_end": False},
    }[when]

    def train(folder, *callbacks):
        logger = CSVLogger(folder)
        run = fit(folder, saves(folder, **times), *callbacks, model=Rich, epochs=2, logger=logger)
        model = run.lightning_module
        kept = (
            model.calls,
            model.outputs,
            model.both,
            model.per_class,
            model.seen.tolist(),
            sorted(vars(model)),
        )
        metrics = {name: float(value) for name, value in run.callback_metrics.items()}
        return everything(run), kept, metrics, history(folder)

    plain = train(tmp_path / "plain")
    ours = train(tmp_path / "ours", DynaQuantCallback())
    assert ours[:3] == plain[:3]
    assert ours[3] == plain[3]
    assert describe(tmp_path / "ours" / "last.ckpt").evaluations > 0


def test_loaders_that_draw_are_put_back(tmp_path):
    def train(folder, *callbacks):
        training, validation = digits()
        drawn = torch.Generator().manual_seed(3)
        sampler = RandomSampler(validation, generator=drawn)
        data = (
            DataLoader(training, 64, shuffle=True, generator=drawn),
            DataLoader(validation, 64, sampler=sampler),
        )
        keeper = saves(folder, every_n_epochs=None, every_n_train_steps=7)
        run = fit(folder, keeper, *callbacks, data=data, epochs=2, num_sanity_val_steps=0)
        return everything(run), drawn.get_state().tolist()

    assert train(tmp_path / "ours", DynaQuantCallback()) == train(tmp_path / "plain")


class Noisy:
    """A collator that draws noise from a generator of its own."""

    def __init__(self, drawn):
        self.drawn = drawn

    def __call__(self, rows):
        images, labels = (torch.stack(part) for part in zip(*rows, strict=True))
        if isinstance(self.drawn, torch.Generator):
            noise = torch.rand(images.shape, generator=self.drawn)
        else:
            noise = torch.full_like(images, self.drawn.random())
        return images + 0.3 * noise, labels


@pytest.mark.parametrize(
    "make", [lambda: torch.Generator().manual_seed(3), lambda: np.random.default_rng(3), lambda: Random(3)]
)
def test_a_collator_that_draws_is_put_back(tmp_path, make):
    def train(folder, *callbacks):
        training, validation = digits()
        collate = Noisy(make())
        data = DataLoader(training, 64, collate_fn=collate), DataLoader(validation, 128, collate_fn=collate)
        return everything(fit(folder, saves(folder), *callbacks, data=data, epochs=2))

    assert train(tmp_path / "ours", DynaQuantCallback()) == train(tmp_path / "plain")


def test_workers_of_a_loader_are_left_alone(tmp_path):
    training, validation = digits()
    loader = DataLoader(validation, 128, num_workers=1, persistent_workers=True)
    callback = DynaQuantCallback()
    fit(tmp_path, saves(tmp_path), callback, data=(DataLoader(training, 64), loader), epochs=1)
    assert describe(tmp_path / "last.ckpt").evaluations > 0
    assert loader.num_workers == 1


@pytest.mark.parametrize("which", ["two loaders", "iterable"])
def test_kinds_of_validation_data(tmp_path, which):
    training, validation = digits()

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(validation)

    class Two(Digits):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            super().validation_step(batch, batch_idx)
            self.log(f"loader_{dataloader_idx}", 1.0, add_dataloader_idx=False)

    many = [DataLoader(validation, 128), DataLoader(training, 256)]
    data = many if which == "two loaders" else DataLoader(Stream(), 128)
    fit(tmp_path, saves(tmp_path), DynaQuantCallback(), model=Two, data=(loaders()[0], data), epochs=1)
    assert describe(tmp_path / "last.ckpt").met


class Layers(Digits):
    """A layer, a validation loader and a metric object each; what is learnt of both is one loss."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(64, 10)
        self.means = nn.ModuleList([MeanMetric(), MeanMetric()])

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + functional.cross_entropy(
            self.other(batch[0]), batch[1]
        )

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        logits = (self.other, self.net)[dataloader_idx](batch[0])
        self.means[dataloader_idx](functional.cross_entropy(logits, batch[1]))
        self.log("val_loss", self.means[dataloader_idx])


def test_metric_objects_of_every_loader_are_measured(tmp_path):
    data = loaders()[0], [loaders()[1], loaders()[1]]
    run = fit(tmp_path, saves(tmp_path), DynaQuantCallback(), model=Layers, data=data, epochs=2)
    each = [float(run.callback_metrics[f"val_loss/dataloader_idx_{index}"]) for index in range(2)]
    info = describe(tmp_path / "last.ckpt")
    assert info.met
    assert info.quality["reference"] == pytest.approx(sum(each) / 2, rel=1e-4)
    assert abs(each[0] - each[1]) > 0.01


class Returns(Digits):
    """Returns what share is right, and perhaps logs it, too."""

    def __init__(self, name=None):
        super().__init__()
        self.name = name

    def validation_step(self, batch, batch_idx):
        value = (self(batch[0]).argmax(1) == batch[1]).float().mean()
        if self.name == "val_loss":
            value = functional.cross_entropy(self(batch[0]), batch[1])
        if self.name is not None:
            self.log(self.name, value)
        return value


@pytest.mark.parametrize(("name", "told"), [(None, 1), ("val_acc", 1), ("val_loss", 0)])
def test_a_number_that_is_returned_is_taken_for_a_loss_aloud(tmp_path, caplog, name, told):
    with caplog.at_level(logging.WARNING):
        fit(tmp_path, saves(tmp_path), DynaQuantCallback(), model=lambda: Returns(name), epochs=2)
    assert caplog.text.count("is taken for a loss, the lower the better") == told
    assert caplog.text.count("'val_acc'") == (name == "val_acc")
    assert describe(tmp_path / "last.ckpt").evaluations > 0


def test_the_named_value_is_measured_in_its_own_direction(tmp_path):
    callback = DynaQuantCallback(evaluate="val_acc", mode="max", threshold=0.02)
    run = fit(tmp_path, saves(tmp_path), callback, model=Rich, epochs=2)
    info = describe(tmp_path / "last.ckpt")
    assert info.met
    assert 0.5 < info.quality["reference"] <= 1
    assert info.quality["reference"] == pytest.approx(float(run.callback_metrics["val_acc"]), abs=1e-6)


class ByHand(Digits):
    """Two optimizers, each stepped at every batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.AdamW(self.net[index].parameters(), lr=1e-2) for index in (0, 4)]


def test_our_figures_have_the_x_axis_of_the_metrics_beside_them(tmp_path):
    logger, keeper = CSVLogger(tmp_path), saves(tmp_path, save_on_train_epoch_end=False)
    fit(tmp_path, keeper, DynaQuantCallback(), model=ByHand, epochs=3, logger=logger)
    (path,) = tmp_path.rglob("metrics.csv")
    head, *rows = [line.split(",") for line in path.read_text().splitlines()]
    at = {name: [int(row[head.index("step")]) for row in rows if row[head.index(name)]] for name in head}
    assert at["dynaquant/bytes"] == at["val_loss"] == [19, 39, 59]


def test_a_second_fit_is_measured_on_its_own_data(tmp_path):
    training = digits()[0]
    run = fit(tmp_path, saves(tmp_path), DynaQuantCallback(), epochs=1)
    run.fit_loop.max_epochs = 2
    run.fit(run.lightning_module, loaders()[0], DataLoader(training, 1280), ckpt_path="last")
    reference = describe(tmp_path / "last.ckpt").quality["reference"]
    assert reference == pytest.approx(float(run.callback_metrics["val_loss"]), rel=1e-4)


def test_a_function_of_the_module_is_measured(tmp_path):
    batch = next(iter(loaders()[1]))

    def loss(model):
        return functional.cross_entropy(model(batch[0]), batch[1])

    fit(tmp_path, saves(tmp_path), DynaQuantCallback(evaluate=loss), epochs=1)
    assert describe(tmp_path / "last.ckpt").met


def test_a_name_that_is_not_logged_says_which_are(tmp_path):
    with pytest.raises(ConfigError, match=r"'val_los' is no function, and validation_step logs 'val_loss'"):
        fit(tmp_path, saves(tmp_path), DynaQuantCallback(evaluate="val_los"), epochs=1)


@pytest.mark.parametrize("kind", ["no loss", "no validation"])
def test_where_nothing_can_be_measured_a_fixed_configuration_serves(tmp_path, caplog, kind):
    class Quiet(Digits):
        def validation_step(self, batch, batch_idx):
            self.log("agreement", 1.0)

    data = (loaders()[0], None) if kind == "no validation" else loaders()
    model = Digits if kind == "no validation" else Quiet
    with caplog.at_level(logging.WARNING):
        fit(tmp_path, saves(tmp_path), DynaQuantCallback(), model=model, data=data, epochs=2)
    expected = "no validation_step" if kind == "no validation" else "logs 'agreement' and returns no loss"
    assert caplog.text.count(expected) == 1
    assert describe(tmp_path / "last.ckpt").evaluations == 0


def test_a_measure_that_fails_saves_exactly_and_tells(tmp_path):
    def fails():
        raise ValueError("no measure")

    with pytest.raises(EvaluationError, match="no measure"):
        fit(tmp_path / "raise", saves(tmp_path / "raise"), DynaQuantCallback(evaluate=fails), epochs=1)
    run = fit(
        tmp_path / "warn",
        saves(tmp_path / "warn"),
        DynaQuantCallback(evaluate=fails, on_error="warn"),
        epochs=1,
    )
    loaded = Digits.load_from_checkpoint(tmp_path / "warn" / "last.ckpt")
    assert torch.equal(loaded.net[0].weight, run.lightning_module.net[0].weight)


def test_mode_max_asks_for_a_measure():
    with pytest.raises(ConfigError, match="mode='max' needs evaluate="):
        DynaQuantCallback(mode="max")


class Ends(NamedTuple):
    """Two lists under names."""

    low: list
    high: int


def test_a_tuple_that_holds_itself_is_set_aside():
    module, held = nn.Linear(1, 1), []
    module.loop = (held,)
    held.append(module.loop)
    with set_aside(module):
        module.loop[0].append(1)
    assert len(held) == 1


def test_what_is_set_aside_stays_shared_and_comes_back():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    shared = [torch.ones(2)]
    module[0].mine, module[1].mine, module.hidden = shared, shared, {"module": [nn.Linear(1, 1)]}
    module.hidden["module"][0].outputs = []
    module.pair, module.ends = ([], torch.zeros(1)), Ends([], 0)
    module.fixed = fixed = (1, torch.Size([2]))
    with set_aside(module):
        assert module[0].mine is module[1].mine is not shared
        module[0].mine[0] += 1
        module[0].mine.append(2)
        module.hidden["module"][0].outputs.append(1)
        module.pair[0].append(1)
        module.pair[1].add_(1)
        module.ends.low.append(1)
        assert type(module.ends) is Ends
        assert module.fixed is fixed
        module.hidden["new"] = module.weight = 1
    assert module[0].mine is shared
    assert shared[0].tolist() == [1, 1]
    assert list(module.hidden) == ["module"]
    assert module.hidden["module"][0].outputs == []
    assert (module.pair, module.ends) == (([], torch.zeros(1)), Ends([], 0))
    assert not hasattr(module, "weight")
