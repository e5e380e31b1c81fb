"""Saving and resuming with Composer's own arguments."""

import shutil

import pytest
import torch
from composer.algorithms import EMA
from composer.core import Algorithm
from composer.loggers import InMemoryLogger

from dynaquant_composer.pointer import folder_of
from dynaquant_core.plugins import describe, read_tree
from tests.integrations.composer.kit import EPOCH, EXACT, bits, everything, fit, names, ours, trainer


@pytest.mark.parametrize("how", ["load_path", "autoresume"])
def test_resumed_is_bit_identical_to_uninterrupted_with_everything_exact(tmp_path, how):
    whole = everything(fit(ours(tmp_path / "whole", **EXACT)))
    fit(ours(tmp_path / "cut", **EXACT), duration="9ba")
    given = (
        {"autoresume": True} if how == "autoresume" else {"load_path": str(tmp_path / "cut/latest-rank0.pt")}
    )
    second = trainer(ours(tmp_path / "cut", **EXACT), **given)
    assert int(second.state.timestamp.batch) == 9
    second.fit()
    assert everything(second) == whole


def test_saving_and_searching_leave_training_and_metrics_bit_identical(tmp_path):
    plain = fit(eval_interval="4ba")
    callback = ours(tmp_path)
    run = fit(callback, eval_interval="4ba")
    assert everything(run) == everything(plain)
    for label, metrics in plain.state.eval_metrics.items():
        for name, metric in metrics.items():
            assert bits(metric.compute()) == bits(run.state.eval_metrics[label][name].compute())
    assert callback.last.evaluations > 0
    assert callback.last.met


def test_the_checkpoint_is_small_keeps_its_promise_and_builds_on_the_one_loaded(tmp_path):
    callback = ours(tmp_path)
    run = fit(callback, width=512)
    assert callback.last.degradation <= 0.01
    assert callback.last.kind == "delta"
    folder = folder_of(tmp_path / "ep1-ba12-rank0.pt")
    written = sum(path.stat().st_size for path in folder.iterdir() if path.stat().st_nlink == 1)
    assert written < sum(3 * parameter.nbytes for parameter in run.state.model.parameters()) / 4
    second = ours(tmp_path)
    again = trainer(second, width=512, autoresume=True, duration="15ba")
    for name, value in again.state.model.state_dict().items():
        true = run.state.model.state_dict()[name]
        assert torch.cosine_similarity(value.flatten().float(), true.flatten().float(), dim=0) > 0.8, name
    assert len(again.state.optimizers[0].state) == 6
    again.fit()
    assert (second.last.kind, second.last.base_step) == ("delta", 12)


def test_rotation_link_and_every_folder_stands_alone(tmp_path):
    callback = ours(tmp_path, num_checkpoints_to_keep=2, **EXACT)
    run = fit(callback)
    assert names(tmp_path) == [
        "ep1-ba12-rank0.pt",
        "ep1-ba12-rank0.pt.dynaquant",
        "ep1-ba9-rank0.pt",
        "ep1-ba9-rank0.pt.dynaquant",
        "latest-rank0.pt",
    ]
    assert run.saved_checkpoints == [str(tmp_path / "ep1-ba9-rank0.pt"), str(tmp_path / "ep1-ba12-rank0.pt")]
    assert (tmp_path / "latest-rank0.pt").readlink().name == "ep1-ba12-rank0.pt"
    (tmp_path / "ep1-ba9-rank0.pt").unlink()
    shutil.rmtree(tmp_path / "ep1-ba9-rank0.pt.dynaquant")
    assert describe(folder_of(tmp_path / "ep1-ba12-rank0.pt")).kind == "delta"
    again = trainer(ours(tmp_path, **EXACT), autoresume=True)
    assert bits(again.state.model.state_dict()) == bits(run.state.model.state_dict())


def test_rotation_goes_on_after_a_restart(tmp_path):
    fit(ours(tmp_path, num_checkpoints_to_keep=2, **EXACT), duration="9ba")
    fit(ours(tmp_path, num_checkpoints_to_keep=2, **EXACT), autoresume=True)
    assert [name for name in names(tmp_path) if name.endswith(".pt")] == [
        "ep1-ba12-rank0.pt",
        "ep1-ba9-rank0.pt",
        "latest-rank0.pt",
    ]


def test_nothing_is_kept_where_nothing_should_be(tmp_path):
    fit(ours(tmp_path, num_checkpoints_to_keep=0), duration="6ba")
    assert names(tmp_path) == []


def test_averages_of_algorithms_are_weights_and_come_back(tmp_path):
    run = fit(ours(tmp_path, **EXACT), algorithms=[EMA(half_life="5ba")])
    tree = read_tree(folder_of(tmp_path / "ep1-ba12-rank0.pt"))
    [(name, held)] = tree["state"]["algorithms"]
    assert name == "EMA"
    assert "module.head.weight" in held["ema_model"]["named_parameters_dict"]
    again = trainer(ours(tmp_path, **EXACT), algorithms=[EMA(half_life="5ba")], autoresume=True)
    mine, theirs = (one.state.algorithms[0].state_dict() for one in (again, run))
    assert bits(mine["ema_model"]) == bits(theirs["ema_model"])
    callback = ours(tmp_path / "lossy")
    fit(callback, width=256, algorithms=[EMA(half_life="5ba")])
    weight = callback.last.parts["weight"]
    assert weight["raw_bytes"] > 2 * 256 * 64 * 4
    assert weight["stored_bytes"] < weight["raw_bytes"] / 8


class Book(Algorithm):
    """Keeps numbers of its own, which look like a weight and are none."""

    def __init__(self, seed):
        self.held = torch.randn(100, 64, generator=torch.Generator().manual_seed(seed))

    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        pass

    def state_dict(self):
        return {"weight": self.held}

    def load_state_dict(self, state, strict=False):
        self.held = state["weight"]


def test_what_an_algorithm_keeps_for_itself_comes_back_as_it_was(tmp_path):
    fit(ours(tmp_path, threshold=0.05), duration="3ba", algorithms=[Book(1)])
    run = trainer(ours(tmp_path, threshold=0.05), algorithms=[Book(2)], autoresume=True)
    assert torch.equal(run.state.algorithms[0].held, Book(1).held)


def test_several_evaluators_and_a_metric_of_ones_choice(tmp_path):
    from composer import Evaluator
    from torch.utils.data import DataLoader

    from tests.integrations.composer.kit import digits

    loader = DataLoader(digits()[1], 100)
    evaluators = [
        Evaluator(label=label, dataloader=loader, metric_names=["CrossEntropy", "MulticlassAccuracy"])
        for label in ("one", "two")
    ]
    callback = ours(tmp_path, metric="MulticlassAccuracy", mode="max")
    run = fit(callback, eval_dataloader=evaluators, eval_interval="12ba", duration="12ba")
    want = run.state.eval_metrics["one"]["MulticlassAccuracy"].compute()
    assert callback.last.quality["reference"] == pytest.approx(float(want), rel=1e-6)


def test_without_evaluators_a_careful_configuration_is_used(tmp_path, caplog):
    callback = ours(tmp_path)
    fit(callback, eval_dataloader=None, duration="3ba")
    assert callback.last.evaluations == 0
    assert "fixed configuration" in caplog.text


def test_ratio_degradation_and_seconds_go_to_the_loggers(tmp_path):
    log = InMemoryLogger()
    fit(ours(tmp_path), loggers=[log], duration="6ba")
    assert len(log.data["dynaquant/ratio"]) == 2
    assert {"dynaquant/degradation", "dynaquant/seconds/held", "dynaquant/seconds/search"} <= set(log.data)


def test_weights_only_and_keys_to_ignore(tmp_path):
    run = fit(ours(tmp_path, weights_only=True, **EXACT), duration="3ba")
    assert set(read_tree(folder_of(tmp_path / "ep0-ba3-rank0.pt"))) == {"state"}
    path = str(tmp_path / "latest-rank0.pt")
    again = trainer(load_path=path, load_weights_only=True, seed=3)
    assert bits(again.state.model.state_dict()) == bits(run.state.model.state_dict())
    assert int(again.state.timestamp.batch) == 0
    fit(ours(tmp_path / "less", ignore_keys=["rng", "state/optimizers/*"]), duration="3ba")
    tree = read_tree(folder_of(tmp_path / "less" / "ep0-ba3-rank0.pt"))
    assert "rng" not in tree
    assert not tree["state"].get("optimizers", {}).get("AdamW")


def test_a_save_out_of_turn_is_there_at_once(tmp_path):
    run = fit(ours(tmp_path, "100ba", **EXACT), duration="3ba")
    shutil.rmtree(tmp_path)
    run.save_checkpoint_to_save_folder()
    assert names(tmp_path) == ["ep0-ba3-rank0.pt", "ep0-ba3-rank0.pt.dynaquant", "latest-rank0.pt"]


def test_keys_left_out_at_load(tmp_path):
    run = fit(ours(tmp_path, **EXACT), duration="3ba")
    given = {"load_path": str(tmp_path / "latest-rank0.pt"), "load_ignore_keys": ["state/model/module.head*"]}
    mine, theirs = (one.state.model.module for one in (trainer(seed=9, **given), run))
    assert bits(mine.body.state_dict()) == bits(theirs.body.state_dict())
    assert bits(mine.head.state_dict()) != bits(theirs.head.state_dict())


def test_two_trainers_one_without_us(tmp_path):
    with_us = trainer(ours(tmp_path / "ours", **EXACT), duration="3ba")
    plain = trainer(duration="3ba", save_folder=str(tmp_path / "plain"), save_interval="3ba")
    with_us.fit()
    plain.fit()
    assert names(tmp_path / "plain") == ["ep0-ba3-rank0.pt", "latest-rank0.pt"]
    assert (tmp_path / "plain" / "ep0-ba3-rank0.pt").stat().st_size > 10_000
    assert "ep0-ba3-rank0.pt.dynaquant" in names(tmp_path / "ours")


def test_gradients_are_averaged_in_the_window_that_composers_schedule_gives(tmp_path):
    callback = ours(tmp_path, f"{EPOCH}ba", window=2, method="dynaquant")  # its search asks for gradients
    run = trainer(callback, duration=f"{EPOCH}ba")
    seen = []
    follow = callback._run.look_ahead
    callback._run.look_ahead = lambda left: (seen.append(left), follow(left))[1]
    run.fit()
    assert seen == list(range(EPOCH, 0, -1))
    assert callback.last.seconds["collector"] > 0


def test_a_state_that_is_copied_whole_is_kept_as_it_is_and_training_goes_on(tmp_path, caplog):
    run = trainer(ours(tmp_path), duration="6ba", width=256)

    def hook(module, state, prefix, metadata):
        state.update({name: value.half() for name, value in state.items() if value.dim()})

    run.state.model.register_state_dict_post_hook(hook)
    run.fit()
    assert int(run.state.timestamp.batch) == 6
    assert caplog.text.count("or copied by a hook") == 1
    held = read_tree(folder_of(tmp_path / "ep0-ba6-rank0.pt"))["state"]["model"]
    for name, weight in run.state.model.named_parameters():
        assert held[name].equal(weight.detach().half())
