"""What a run stores where evaluate measures something that no candidate reaches."""

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import dynaquant_core as dq
from tests.training.models import EXACT, bits, seed_everything

GENERATOR = torch.Generator().manual_seed(5)
TRUTH = torch.randn(16, 4, generator=GENERATOR)
INPUTS = torch.randn(256, 16, generator=GENERATOR)


def labels(inputs):
    return (inputs @ TRUTH).argmax(1)


def loss_of(model):
    return functional.cross_entropy(model(INPUTS), labels(INPUTS)).item()


def net():
    seed_everything(1)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))


def train(model, checkpoints, optimizer, steps, after=lambda: None):
    for _ in range(steps):
        inputs = torch.randn(64, 16)
        loss = functional.cross_entropy(model(inputs), labels(inputs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()
        checkpoints.step()


def told(caplog):
    return [line for line in caplog.messages if "does not depend on what is stored" in line]


def test_an_average_kept_exact_does_not_vouch_for_the_model(tmp_path, caplog):
    model = net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    options = {"every": 40, "extra": {"ema": average}, "exact": ("ema",)}
    with (
        caplog.at_level(logging.WARNING, logger="dynaquant_core"),
        dq.Checkpointer(
            tmp_path, model, optimizer, evaluate=lambda: loss_of(average), threshold=0.01, **options
        ) as checkpoints,
    ):
        train(model, checkpoints, optimizer, 160, lambda: average.update_parameters(model))
    true = loss_of(model)
    infos = [dq.CheckpointStore(tmp_path).info(step) for step in (40, 80, 120, 160)]
    assert [info.config for info in infos] == [dq.LatticeConfig()] * 4
    assert [(info.met, info.degradation) for info in infos] == [(None, None)] * 4
    assert infos[-1].quality["search"] == pytest.approx(loss_of(average))  # which is what the file holds
    assert infos[-1].stale is not None
    assert len(told(caplog)) == 1
    restored = net()
    restored_optimizer = torch.optim.AdamW(restored.parameters())
    with dq.Checkpointer(
        tmp_path, restored, restored_optimizer, **{**options, "extra": {"ema": AveragedModel(restored)}}
    ) as checkpoints:
        assert checkpoints.restore() == 160
    assert loss_of(restored) == pytest.approx(true, rel=0.1)


def test_nor_where_so_little_moves_that_a_bold_file_is_no_smaller(tmp_path):
    model = net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 - step / 200) ** 4)

    def after():
        schedule.step()
        average.update_parameters(model)

    with dq.Checkpointer(
        tmp_path, model, optimizer, extra={"ema": average}, exact=("ema",), every=20,
        evaluate=lambda: loss_of(average),
    ) as checkpoints:  # fmt: skip
        train(model, checkpoints, optimizer, 200, after)
    store, stored = dq.CheckpointStore(tmp_path), net()
    for step in store.steps():
        assert (store.info(step).config, store.info(step).met) == (dq.LatticeConfig(), None)
    stored.load_state_dict(store.load(200)["model"])
    assert loss_of(stored) == pytest.approx(loss_of(model), rel=0.2)


def test_a_probe_leaves_the_model_as_it_was(tmp_path):
    def run(evaluate, options):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        folder = tmp_path / str(len(options))
        with dq.Checkpointer(folder, model, optimizer, every=5, evaluate=evaluate, **options) as checkpoints:
            train(model, checkpoints, optimizer, 20)
        return bits(model.state_dict())

    assert run(lambda: 1.0, {}) == run(None, EXACT)


def test_an_accuracy_over_few_examples_is_believed(tmp_path, caplog):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    first, second = (INPUTS @ TRUTH).topk(2).values.T
    clear = INPUTS[(first - second).topk(6).indices]

    @torch.no_grad()
    def accuracy():
        return (model(clear).argmax(1) == labels(clear)).float().mean().item()

    with (
        caplog.at_level(logging.WARNING, logger="dynaquant_core"),
        dq.Checkpointer(
            tmp_path, model, optimizer, every=50, evaluate=accuracy, mode="max", threshold=0.05
        ) as checkpoints,
    ):
        train(model, checkpoints, optimizer, 200)
    newest = dq.CheckpointStore(tmp_path).newest()
    assert newest.met
    assert newest.degradation == 0.0
    assert newest.config.scale > dq.LatticeConfig().scale  # where a metric that sees nothing would not be
    assert not told(caplog)


def test_nothing_is_said_where_everything_is_exact(tmp_path, caplog):
    model = net()
    for options in (EXACT, {"method": "exact"}):
        with caplog.at_level(logging.WARNING, logger="dynaquant_core"):
            folder = tmp_path / options.get("method", "all")
            with dq.Checkpointer(folder, model, evaluate=lambda: 1.0, **options) as checkpoints:
                checkpoints.save()
            assert dq.CheckpointStore(folder).newest().met
    assert not told(caplog)


def test_a_file_s_evaluate_that_ignores_what_it_is_given_is_not_believed(tmp_path, caplog):
    model = net()
    with caplog.at_level(logging.WARNING, logger="dynaquant_core"):
        info = dq.save_file(
            model.state_dict(), tmp_path / "m.dq", evaluate=lambda state: loss_of(model), threshold=0.01
        )
    assert (info.config, info.met) == (dq.LatticeConfig(), None)
    assert len(told(caplog)) == 1
