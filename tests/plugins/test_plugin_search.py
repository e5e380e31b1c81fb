"""Searching before a save: what is measured, what is remembered, and that training notices nothing of it."""

from __future__ import annotations

import copy
import logging

import pytest
import torch

from dynaquant_core.plugins import PluginOptions, PluginRun, read_tree
from dynaquant_core.training.begun import Begun
from tests.plugins.kit import EXACT
from tests.training.models import bits, build, evaluate_net, net_loss, one_step, seed_everything


def tree_of(model, optimizer):
    return {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}


class Counting:
    """An evaluate that counts."""

    def __init__(self):
        self.calls = 0

    def __call__(self, model):
        self.calls += 1
        return evaluate_net(model)


def trained(steps=20):
    seed_everything()
    model, optimizer = build()
    for _ in range(steps):
        one_step(model, optimizer, net_loss)
    return model, optimizer


def test_a_choice_made_before_is_used_by_the_save(tmp_path):
    model, optimizer = trained()
    evaluate, infos = Counting(), []
    run = PluginRun(PluginOptions(threshold=0.05), framework="none", report=infos.append)
    run.watch(model, [optimizer], evaluate=evaluate)
    run.choose(20, tree_of(model, optimizer))
    calls = evaluate.calls
    run.save(tmp_path / "20", 20, {**tree_of(model, optimizer), "callbacks": {"best": torch.tensor(1.0)}})
    info = run.wait()
    assert evaluate.calls == calls > 1
    assert info.evaluations == calls - 1
    assert info.met
    assert infos == [info]
    assert {"held", "search", "draft", "encode", "commit"} <= set(info.seconds)
    run.close()


def test_the_very_state_that_was_searched_is_looked_through_once(tmp_path, monkeypatch):
    model, optimizer = trained()
    run = PluginRun(PluginOptions(), framework="none")
    run.watch(model, [optimizer], evaluate=evaluate_net)
    begun, begin = [], run._trail.begin
    monkeypatch.setattr(
        run._trail, "begin", lambda *args, **more: begun.append(args[0]) or begin(*args, **more)
    )
    for step in (20, 21):
        tree = tree_of(model, optimizer)
        run.choose(step, tree)
        run.save(tmp_path / str(step), step, tree)
    assert run.wait().met
    run.choose(22, tree)
    run.load(tmp_path / "20")  # what the next one builds on is another
    run.save(tmp_path / "22", 22, tree)
    assert run.wait().step == 22
    assert begun == [20, 21, 22, 22]
    assert bits(read_tree(tmp_path / "22")["optimizer"]["param_groups"]) == bits(
        tree["optimizer"]["param_groups"]
    )
    run.close()


def test_a_choice_for_other_weights_is_not_used(tmp_path, caplog):
    model, optimizer = trained()
    other = copy.deepcopy(model)
    evaluate = Counting()
    run = PluginRun(PluginOptions(evaluate=evaluate), framework="none")
    run.watch(model, [optimizer])
    run.choose(20, {"state_dict": other.state_dict()})
    calls = evaluate.calls
    run.save(tmp_path / "20", 20, {"state_dict": model.state_dict()})
    assert run.wait().met
    assert evaluate.calls > calls
    assert "searched" in caplog.text
    run.choose(21, {"state_dict": model.state_dict()})  # its save never comes
    run.save(tmp_path / "22", 22, {"state_dict": model.state_dict()})
    assert run.wait().step == 22
    run.close()


class Batches(list):
    """An evaluate that is an object, and false as long as it holds no batches of its own."""

    def __call__(self, model):
        return evaluate_net(model)


def test_an_evaluate_that_is_an_empty_object_is_used(tmp_path):
    model, optimizer = trained()
    run = PluginRun(PluginOptions(evaluate=Batches()), framework="none")
    run.watch(model, [optimizer])
    run.save(tmp_path / "20", 20, tree_of(model, optimizer))
    assert run.wait().met
    run.close()


@pytest.mark.parametrize("searched", [True, False])
def test_buffers_of_a_watched_model_are_exact(tmp_path, searched):
    """A table that nobody trains; a quality cannot tell what became of it."""
    model, optimizer = trained()
    model.register_buffer("table", torch.randn(32, 32))
    run = PluginRun(PluginOptions(threshold=0.05), framework="none")
    run.watch(model, [optimizer], evaluate=evaluate_net if searched else None)
    run.save(tmp_path / "20", 20, tree_of(model, optimizer))
    run.close()
    stored = read_tree(tmp_path / "20")["state_dict"]
    assert torch.equal(stored["table"], model.table)
    assert not torch.equal(stored["body.4.weight"], model.body[4].weight)


def test_what_the_search_learnt_outlives_the_process(tmp_path):
    model, optimizer = trained()

    def saved(load, step):
        evaluate = Counting()
        run = PluginRun(PluginOptions(threshold=0.05), framework="none")
        if load:
            run.load(tmp_path / load)
        run.watch(model, optimizer, evaluate=evaluate)
        run.save(tmp_path / str(step), step, tree_of(model, optimizer))
        info = run.wait()
        run.close()
        return evaluate.calls, info

    first, _ = saved(None, 1)
    again, info = saved("1", 2)
    assert again < first
    assert info.met
    assert not info.report["exhaustive"]


def test_a_run_goes_on_with_the_method_of_what_it_loaded(tmp_path):
    model, optimizer = trained()

    def saved(load, step, **options):
        run = PluginRun(PluginOptions(threshold=0.05, **options), framework="none")
        run.watch(model, optimizer, evaluate=evaluate_net)
        if load:
            run.load(tmp_path / load)
        run.save(tmp_path / str(step), step, tree_of(model, optimizer))
        info = run.wait()
        profile = run._watched.chooser.manager.profile
        run.close()
        return info.method, info.options.get("sigma"), profile

    assert saved(None, 1) == ("lattice", None, None)
    assert saved(None, 2, method={"name": "dynaquant", "sigma": 0.25}) == ("dynaquant", 0.25, None)
    assert saved("2", 3) == ("dynaquant", 0.25, None)
    assert saved("3", 4, method="lattice") == ("lattice", None, None)


def test_gradients_are_averaged_shortly_before_a_save_only(tmp_path):
    model, optimizer = build()
    run = PluginRun(PluginOptions(window=2, method={"name": "dynaquant"}), framework="none")
    run.watch(model, [optimizer])
    run.watch(model, [optimizer])
    assert len(optimizer._optimizer_step_post_hooks) == 1
    seen = []
    for left in (4, 3, 2, 1, None):
        run.look_ahead(left)
        one_step(model, optimizer, net_loss)
        seen.append(bool(run._watched._collector.averages()))
    assert seen == [False, False, True, True, False]
    other, second = build()
    run.watch({"one": other}, {"a": second})
    assert not optimizer._optimizer_step_post_hooks
    run.close()
    assert not second._optimizer_step_post_hooks


def test_saving_and_searching_leave_training_as_it_was(tmp_path):
    def life(with_run):
        seed_everything()
        model, optimizer = build()
        run = PluginRun(PluginOptions(threshold=0.1, window=3, max_chain=2), framework="none")
        if with_run:
            run.watch(model, [optimizer], evaluate=evaluate_net)
        for step in range(1, 13):
            if with_run:
                run.look_ahead(4 - (step - 1) % 4)
            one_step(model, optimizer, net_loss)
            if with_run and step % 4 == 0:
                tree = tree_of(model, optimizer)
                run.choose(step, tree)
                run.save(tmp_path / str(step), step, tree)
        run.close()
        flags = [module.training for module in model.modules()]
        return bits(tree_of(model, optimizer)), flags, torch.get_rng_state().tolist()

    assert life(True) == life(False)


def test_a_save_without_a_model_takes_the_fixed_configuration(tmp_path, caplog):
    run = PluginRun(PluginOptions(evaluate=evaluate_net), framework="none")
    with caplog.at_level(logging.WARNING):
        run.save(tmp_path / "1", 1, {"weight": torch.randn(64, 64)})
    assert run.wait().met is None
    assert "fixed configuration" in caplog.text
    run.close()


def test_everything_exact_needs_no_search(tmp_path):
    model, optimizer = trained(2)
    evaluate = Counting()
    run = PluginRun(PluginOptions(**EXACT), framework="none")
    run.watch(model, optimizer, evaluate=evaluate)
    tree = tree_of(model, optimizer)
    run.choose(2, tree)
    run.save(tmp_path / "2", 2, tree)
    run.close()
    assert evaluate.calls == 0
    assert bits(read_tree(tmp_path / "2")) == bits({key: dict(value) for key, value in tree.items()})


def test_copies_of_the_weights_are_not_searched(tmp_path, caplog):
    """Candidates that are put into copies would all look as good as the model itself."""
    model, optimizer = trained(3)
    evaluate = Counting()
    run = PluginRun(PluginOptions(), framework="none")
    run.watch(model, optimizer, evaluate=evaluate)
    clones = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for folder in ("3", "3 again"):
        run.save(tmp_path / folder, 3, {"model": clones})
    run.wait()
    assert evaluate.calls == 0
    assert caplog.text.count("or copied by a hook") == 1
    assert bits(read_tree(tmp_path / "3")["model"]) == bits(clones)
    run.close()


def flat(state):
    """The weights that are not exact."""
    large = [name for name in sorted(state) if state[name].dim() > 1 and state[name].numel() >= 256]
    return torch.cat([state[name].double().flatten() for name in large])


def test_what_is_lost_of_the_movement_is_recorded_since_the_last_read(tmp_path):
    def life(folder, step, resumed=None):
        seed_everything(step)
        model, optimizer = build()
        run = PluginRun(PluginOptions(threshold=0.3, moments="exact"), framework="none")
        run.watch(model, [optimizer], evaluate=evaluate_net)
        one_step(model, optimizer, net_loss)  # before the checkpoint is read: of no account
        if resumed is not None:
            tree = run.load(resumed)
            model.load_state_dict(tree["state_dict"])
            optimizer.load_state_dict(tree["optimizer"])
        start = flat(model.state_dict()) if resumed is not None else None
        for _ in range(20):
            one_step(model, optimizer, net_loss)
        true = flat(model.state_dict())
        run.save(folder, step, tree_of(model, optimizer))
        info = run.wait()
        run.close()
        return info, start, true, flat(read_tree(folder)["state_dict"])

    first, *_ = life(tmp_path / "20", 20)
    assert first.stale is not None
    info, start, true, decoded = life(tmp_path / "40", 40, tmp_path / "20")
    moved = true - start
    assert info.stale == pytest.approx(float(1 - (decoded - start) @ moved / (moved @ moved)), abs=1e-5)


def test_before_a_step_and_for_copies_nothing_is_lost(tmp_path):
    model, optimizer = build()
    run = PluginRun(PluginOptions(), framework="none")
    run.watch(model, [optimizer], evaluate=evaluate_net)
    run.save(tmp_path / "0", 0, tree_of(model, optimizer))
    assert run.wait().stale is None
    run.close()
    assert not optimizer._optimizer_step_pre_hooks
    begun = Begun([model], [optimizer])
    one_step(model, optimizer, net_loss)
    assert set(begun.start(model.state_dict()).values) == set(dict(model.named_parameters()))
    assert begun.start(copy.deepcopy(model.state_dict())) is None
    begun.close()
