import logging
import math
import os
import signal

import pytest
import torch
from torch import nn

import dynaquant_core as dq
from dynaquant_core.methods.exact import Exact
from dynaquant_core.methods.registry import resolve_method
from dynaquant_core.training.capture import capture
from dynaquant_core.training.subject import Subject
from tests.training.models import (
    Net,
    bits,
    evaluate_gpt,
    evaluate_net,
    gpt_loss,
    net_loss,
    one_step,
    seed_everything,
    small_gpt,
)

EXACT = {"exact": ("*",), "moments": "exact"}


def build(width=32):
    model = Net(width)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer, checkpoints, steps, loss_of=net_loss):
    for _ in range(steps):
        one_step(model, optimizer, loss_of)
        checkpoints.step()


# -- saving and restoring --------------------------------------------------------------------------


def test_saves_when_due_and_restores_the_newest(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path / "run", model, optimizer, every=4, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 10)
        checkpoints.wait()
        assert checkpoints.store.steps() == [4, 8]
        assert checkpoints.last.step == 8
    other, again = build()
    with dq.Checkpointer(tmp_path / "run", other, again, every=4, **EXACT) as checkpoints:
        assert checkpoints.restore() == 8
        assert checkpoints.completed == 8
        train(other, again, checkpoints, 4)
        assert checkpoints.wait().step == 12
        assert checkpoints.last.kind == "delta"


def test_with_everything_exact_a_resumed_run_is_bit_identical(tmp_path):
    def run(folder, steps, stop=None):
        seed_everything(5)
        model, optimizer = build()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)
        options = {"scheduler": scheduler, "every": 3, "evaluate": evaluate_net, **EXACT}
        with dq.Checkpointer(folder, model, optimizer, **options) as checkpoints:
            for _ in range(checkpoints.restore(), stop or steps):
                one_step(model, optimizer, net_loss, scheduler)
                checkpoints.step()
        return bits(capture(Subject(model, optimizer, scheduler), steps))

    whole = run(tmp_path / "whole", 20)
    run(tmp_path / "cut", 20, stop=8)
    run(tmp_path / "cut", 20, stop=16)
    assert run(tmp_path / "cut", 20) == whole


def test_an_explicit_step_goes_back_and_the_run_goes_on_from_there(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 6)
        checkpoints.wait()
        assert checkpoints.restore(2) == 2
        at_two = bits(model.state_dict())
        train(model, optimizer, checkpoints, 2)
        at_four = bits(model.state_dict())
    assert dq.CheckpointStore(tmp_path).newest().step == 4
    other, again = build()
    with dq.Checkpointer(tmp_path, other, again) as checkpoints:
        assert checkpoints.restore() == 4
        assert bits(other.state_dict()) == at_four
        assert checkpoints.restore(2) == 2
        assert bits(other.state_dict()) == at_two


def test_several_models_and_optimizers_a_scaler_and_extra(tmp_path):
    class Counter:
        count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    def make():
        models = {"encoder": nn.Linear(16, 16), "decoder": nn.Linear(16, 16)}
        optimizers = {name: torch.optim.AdamW(model.parameters()) for name, model in models.items()}
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        return models, optimizers, scaler, Counter()

    def checkpointer(models, optimizers, scaler, counter):
        return dq.Checkpointer(
            tmp_path, models, optimizers, scaler=scaler, extra={"count": counter}, every=2, **EXACT
        )

    models, optimizers, scaler, counter = make()
    with checkpointer(models, optimizers, scaler, counter) as checkpoints:
        for _ in range(2):
            loss = models["decoder"](models["encoder"](torch.randn(4, 16))).square().mean()
            scaler.scale(loss).backward()
            for optimizer in optimizers.values():
                scaler.step(optimizer)
            scaler.update(new_scale=8.0)
            counter.count += 3
            checkpoints.step()
    others = make()
    with checkpointer(*others) as checkpoints:
        assert checkpoints.restore() == 2
    assert bits(others[0]["decoder"].state_dict()) == bits(models["decoder"].state_dict())
    assert bits(others[1]["encoder"].state_dict()) == bits(optimizers["encoder"].state_dict())
    assert others[2].get_scale() == 8.0
    assert others[3].count == 6


def test_what_is_stored_is_the_state_when_save_returned(tmp_path):
    model, optimizer = build(width=256)
    with dq.Checkpointer(tmp_path, model, optimizer, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 3)
        before = bits(model.state_dict()), bits(optimizer.state_dict()["state"])
        checkpoints.save()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(-7.0)
                for value in optimizer.state[parameter].values():
                    value.fill_(-7.0)
        checkpoints.wait()
        checkpoints.restore()
    assert (bits(model.state_dict()), bits(optimizer.state_dict()["state"])) == before


def test_the_same_holds_for_compressed_parts(tmp_path):
    model, optimizer = build(width=64)
    folders = [tmp_path / "still", tmp_path / "moving"]
    train_for = dq.Checkpointer(tmp_path / "unused", model, optimizer)
    train(model, optimizer, train_for, 3)
    train_for.close()
    for folder in folders:
        with dq.Checkpointer(folder, model, optimizer) as checkpoints:
            checkpoints.save()
            if folder.name == "still":
                checkpoints.wait()
            with torch.no_grad():
                kept = [parameter.clone() for parameter in model.parameters()]
                for parameter in model.parameters():
                    parameter.fill_(3.0)
            checkpoints.wait()
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), kept, strict=True):
                    parameter.copy_(value)
    still, moving = (dq.CheckpointStore(folder).load() for folder in folders)
    assert bits(still["model"]) == bits(moving["model"])
    assert bits(still["optimizer"]) == bits(moving["optimizer"])


# -- transparency ----------------------------------------------------------------------------------


def careless(evaluate):
    """Leaves flags, buffers and random streams in disorder, as real evaluation code may."""

    def run(model):
        values = evaluate(model)
        model.train()
        gpt_loss(model) if hasattr(model, "wte") else net_loss(model)
        next(model.children()).eval()
        return values

    return run


@pytest.mark.parametrize("mode", ["quantised", "exact"])
@pytest.mark.parametrize(
    ("make", "loss_of", "evaluate"), [(Net, net_loss, evaluate_net), (small_gpt, gpt_loss, evaluate_gpt)]
)
def test_training_is_bit_identical_with_and_without(tmp_path, make, loss_of, evaluate, mode):
    def run(with_dynaquant):
        seed_everything(11)
        model = make()
        model.train()
        next(model.children()).eval()  # a flag that is not the default must survive too
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses, checkpoints = [], None
        if with_dynaquant:
            options = EXACT if mode == "exact" else {}
            checkpoints = dq.Checkpointer(
                tmp_path, model, optimizer, every=4, window=3, evaluate=careless(evaluate), **options
            )
        for _ in range(8):
            losses.append(one_step(model, optimizer, loss_of))
            if checkpoints is not None:
                checkpoints.step()
        if checkpoints is not None:
            assert checkpoints.wait().evaluations > 0
            checkpoints.close()
        flags = [module.training for module in model.modules()]
        return losses, flags, bits(dict(model.named_buffers())), bits(capture(Subject(model, optimizer), 8))

    assert run(with_dynaquant=True) == run(with_dynaquant=False)


# -- the promise -----------------------------------------------------------------------------------


def test_the_threshold_is_met_and_recorded(tmp_path):
    seed_everything()
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with dq.Checkpointer(
        tmp_path, model, optimizer, every=10, evaluate=evaluate_gpt, threshold=0.02
    ) as checkpoints:
        train(model, optimizer, checkpoints, 30, gpt_loss)
    store, reader = dq.CheckpointStore(tmp_path), small_gpt().eval()
    for step in store.steps():
        info = store.info(step)
        assert info.met
        assert info.degradation <= 0.02
        reader.load_state_dict(store.load(step)["model"])
        with torch.no_grad():
            assert float(evaluate_gpt(reader).double().mean()) == pytest.approx(
                info.quality["search"], rel=1e-5
            )
        expected = (info.quality["search"] - info.quality["reference"]) / abs(info.quality["reference"])
        assert info.degradation == pytest.approx(expected, abs=1e-6)
        assert {"collector", "held", "search", "draft", "encode"} <= set(info.seconds)
        assert 0 <= info.seconds["draft"] <= info.seconds["held"]


def test_a_resumed_run_goes_on_in_steady_state(tmp_path):
    seed_everything()
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = {"every": 5, "evaluate": evaluate_gpt, "threshold": 0.05}
    with dq.Checkpointer(tmp_path, model, optimizer, **options) as checkpoints:
        train(model, optimizer, checkpoints, 5, gpt_loss)
        first = checkpoints.wait()
    assert first.report["search_state"]["checkpoints"] == 1
    assert first.report["exhaustive"]
    with dq.Checkpointer(tmp_path, model, optimizer, **options) as checkpoints:
        checkpoints.restore()
        train(model, optimizer, checkpoints, 5, gpt_loss)
        second = checkpoints.wait()
    assert second.report["search_state"]["checkpoints"] == 2
    assert not second.report["exhaustive"]


def test_a_metric_to_maximise(tmp_path):
    model, optimizer = build()
    options = {"every": 2, "evaluate": lambda net: -evaluate_net(net)[0], "mode": "max"}
    with dq.Checkpointer(tmp_path, model, optimizer, **options) as checkpoints:
        train(model, optimizer, checkpoints, 2)
        info = checkpoints.wait()
    assert info.met
    assert info.degradation == pytest.approx(
        (info.quality["reference"] - info.quality["search"]) / abs(info.quality["reference"])
    )


def test_without_evaluate_the_careful_default_is_used_and_said_once(tmp_path, caplog):
    model, optimizer = build()
    with (
        caplog.at_level(logging.WARNING),
        dq.Checkpointer(tmp_path, model, optimizer, every=1) as checkpoints,
    ):
        train(model, optimizer, checkpoints, 3)
        assert checkpoints.wait().config == resolve_method(None).space(gradients=True).default
    assert caplog.text.count("no evaluate") == 1


def failing(model):
    raise RuntimeError("the validation set is gone")


@pytest.mark.parametrize("evaluate", [failing, lambda: math.nan, lambda: [1.0, math.inf], lambda: "low"])
def test_a_failed_evaluation_commits_an_exact_checkpoint_and_raises(tmp_path, evaluate):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, evaluate=evaluate) as checkpoints:
        with pytest.raises(dq.EvaluationError):
            train(model, optimizer, checkpoints, 2)
        before = bits(model.state_dict())
        assert checkpoints.last.step == 2
        assert checkpoints.last.config.bins == "exact"
        assert bits(dict(checkpoints.store.load(2)["model"])) == before
        train(model, optimizer, checkpoints, 1)  # training can go on


def test_a_failed_evaluation_may_be_a_warning_and_works_again_later(tmp_path, caplog):
    model, optimizer = build()
    broken = []

    def evaluate(net):
        if broken:
            raise RuntimeError("busy")
        return evaluate_net(net)

    options = {"every": 1, "evaluate": evaluate, "on_error": "warn"}
    with dq.Checkpointer(tmp_path, model, optimizer, **options) as checkpoints:
        train(model, optimizer, checkpoints, 1)
        broken.append(1)
        train(model, optimizer, checkpoints, 1)
        broken.clear()
        train(model, optimizer, checkpoints, 1)
    assert "RuntimeError: busy" in caplog.text
    store = dq.CheckpointStore(tmp_path)
    assert store.info(2).config.bins == "exact"
    assert store.info(2).met is None
    assert store.info(3).met


def test_only_some_candidates_fail_and_the_model_is_whole(tmp_path):
    model, optimizer = build()
    calls = []

    def evaluate(net):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("third time unlucky")
        return evaluate_net(net)

    with dq.Checkpointer(tmp_path, model, optimizer, evaluate=evaluate) as checkpoints:
        train(model, optimizer, checkpoints, 1)
        before = bits(capture(Subject(model, optimizer), 1))
        with pytest.raises(dq.EvaluationError, match="unlucky"):
            checkpoints.save()
        assert bits(capture(Subject(model, optimizer), 1)) == before


class Watching(Exact):
    """The exact method, writing down which gradients it is offered."""

    name = "watching"

    def __init__(self):
        super().__init__()
        self.seen = []

    def draft(self, state, ref, config, hints):
        if hints.gradients or any("weight" in name for name in state):
            self.seen.append({name: value.clone() for name, value in hints.gradients.items()})
        return super().draft(state, ref, config, hints)


def test_gradients_of_the_window_reach_the_method(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = Watching()
    with dq.Checkpointer(tmp_path, model, optimizer, every=6, window=1, method=method) as checkpoints:
        train(model, optimizer, checkpoints, 6)
        gradient = model.head.weight.grad.clone()
        offered = method.seen[0]
        assert torch.equal(offered["model.head.weight"], gradient)  # a window of one step: its gradient alone
        checkpoints.save()
        assert method.seen[-1] == {}  # nothing was recorded since, and SGD knows no average


# -- what goes wrong -------------------------------------------------------------------------------


def test_restore_of_a_missing_or_empty_folder_is_0_and_touches_nothing(tmp_path):
    model, optimizer = build()
    before = bits(capture(Subject(model, optimizer), 0))
    for folder in (tmp_path / "missing", tmp_path):
        with dq.Checkpointer(folder, model, optimizer) as checkpoints:
            assert checkpoints.restore() == 0
            assert checkpoints.completed == 0
    assert bits(capture(Subject(model, optimizer), 0)) == before
    assert list(tmp_path.iterdir()) == []


def test_restore_after_a_kill_in_the_very_first_save_is_0(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        checkpoints.save()
        checkpoints.wait()
    for path in tmp_path.glob("*.dq"):
        path.unlink()  # what a save leaves that never came to its rename: a lock file at most
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        assert checkpoints.restore() == 0


def test_an_explicit_step_that_is_not_there_is_an_error(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path / "run", model, optimizer, every=2, **EXACT) as checkpoints:
        with pytest.raises(dq.CheckpointNotFoundError):
            checkpoints.restore(4)
        checkpoints.restore()
        train(model, optimizer, checkpoints, 2)
        checkpoints.wait()
        before = bits(capture(Subject(model, optimizer), 0))
        with pytest.raises(dq.CheckpointNotFoundError):
            checkpoints.restore(4)
        assert bits(capture(Subject(model, optimizer), 0)) == before


def test_a_damaged_newest_falls_back_and_only_damaged_ones_are_an_error(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, max_chain=0, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 4)
    older, newer = sorted(tmp_path.glob("*.dq"))
    newer.write_bytes(newer.read_bytes()[:-100])
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        assert checkpoints.restore() == 2
    older.write_bytes(b"nothing")
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints, pytest.raises(dq.EmptyStoreError):
        checkpoints.restore()


def test_foreign_paths_are_named(tmp_path):
    model, optimizer = build()
    (tmp_path / "file").write_text("notes")
    with pytest.raises(dq.NotAStoreError):
        dq.Checkpointer(tmp_path / "file", model, optimizer)
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints, pytest.raises(dq.NotAStoreError):
        checkpoints.restore()


def test_a_changed_model_is_an_error_and_its_folder_is_left_alone(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2) as checkpoints:
        train(model, optimizer, checkpoints, 2)
    files = {path: path.read_bytes() for path in tmp_path.glob("*.dq")}
    other, again = build(width=64)
    before = bits(capture(Subject(other, again), 0))
    with dq.Checkpointer(tmp_path, other, again) as checkpoints:
        with pytest.raises(dq.StateMismatchError, match=r"body\.4\.weight"):
            checkpoints.restore()
        assert bits(capture(Subject(other, again), 0)) == before
        with pytest.raises(dq.StoreNotEmptyError):
            checkpoints.save()
    assert {path: path.read_bytes() for path in tmp_path.glob("*.dq")} == files


def test_another_runs_folder_is_refused_without_a_restore(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        checkpoints.save()
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints, pytest.raises(dq.StoreNotEmptyError):
        checkpoints.save()


def test_a_store_of_something_else_is_not_restored(tmp_path):
    model, _ = build()
    with dq.CheckpointStore(tmp_path) as store:
        store.save(1, {"model": model.state_dict()})
    with (
        dq.Checkpointer(tmp_path, model) as checkpoints,
        pytest.raises(dq.StateMismatchError, match="'step'"),
    ):
        checkpoints.restore()


def test_a_failure_in_the_background_surfaces_at_the_next_call_and_at_close(tmp_path):
    model, optimizer = build()
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, every=2, keep_within=100)
    checkpoints.save()
    checkpoints._worker._join()
    with pytest.raises(dq.SaveError) as caught:
        train(model, optimizer, checkpoints, 1)
    assert isinstance(caught.value.__cause__, dq.BudgetError)
    train(model, optimizer, checkpoints, 1)  # told once; the save that is due now is tried
    with pytest.raises(dq.SaveError):
        checkpoints.wait()
    with pytest.raises(dq.SaveError):
        checkpoints.close()
    assert checkpoints.store.steps() == []


def test_a_failure_in_the_background_may_be_a_warning(tmp_path, caplog):
    model, optimizer = build()
    options = {"every": 2, "keep_within": 100, "on_error": "warn"}
    with dq.Checkpointer(tmp_path, model, optimizer, **options) as checkpoints:
        train(model, optimizer, checkpoints, 5)
        assert checkpoints.wait() is None
    assert "keep_within" in caplog.text


def test_a_failure_on_this_thread_leaves_the_run_untouched(tmp_path):
    class Odd:
        def state_dict(self):
            return {"handle": object()}

        def load_state_dict(self, state):
            pass

    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, extra={"odd": Odd()}) as checkpoints:
        before = bits(capture(Subject(model, optimizer), 0))
        with pytest.raises(dq.UnsupportedStateError, match=r"extra\.odd\.handle"):
            checkpoints.save()
        assert bits(capture(Subject(model, optimizer), 0)) == before


def test_an_error_of_the_loop_is_not_hidden_by_a_failed_save(tmp_path):
    model, optimizer = build()

    def loop():
        with dq.Checkpointer(tmp_path, model, optimizer, keep_within=100) as checkpoints:
            checkpoints.save()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()


def test_non_finite_weights_are_kept_exact(tmp_path):
    model, optimizer = build()
    with torch.no_grad():
        model.head.weight.zero_()
        model.body[4].weight[3, 3] = math.nan
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        checkpoints.save()
        info = checkpoints.wait()
        assert "model.body.4.weight" in info.exact
        assert bits(checkpoints.store.load()["model"]["body.4.weight"]) == bits(model.body[4].weight)


# -- signals, switches and closing -----------------------------------------------------------------


def test_sigterm_saves_after_the_next_step(tmp_path):
    model, optimizer = build()
    before = signal.getsignal(signal.SIGTERM)
    with dq.Checkpointer(tmp_path, model, optimizer, every=100, save_on=("SIGTERM",)) as checkpoints:
        train(model, optimizer, checkpoints, 3)
        os.kill(os.getpid(), signal.SIGTERM)
        assert checkpoints.requested_by is None
        train(model, optimizer, checkpoints, 1)
        assert checkpoints.requested_by == "SIGTERM"
        assert checkpoints.store.steps() == [4]  # committed, not only begun
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("value", ["1", "true"])
def test_dynaquant_disable_turns_saving_off_but_not_restoring(tmp_path, monkeypatch, value):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, **EXACT) as checkpoints:
        train(model, optimizer, checkpoints, 2)
    files = sorted(tmp_path.iterdir())
    monkeypatch.setenv("DYNAQUANT_DISABLE", value)
    handler = signal.getsignal(signal.SIGTERM)
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, save_on=("SIGTERM",)) as checkpoints:
        assert signal.getsignal(signal.SIGTERM) is handler
        assert checkpoints.restore() == 2
        train(model, optimizer, checkpoints, 4)
        checkpoints.save()
        assert checkpoints.completed == 6
        assert checkpoints.wait() is None
    assert sorted(tmp_path.iterdir()) == files


def test_close_takes_everything_off_and_lets_another_go_on(tmp_path):
    model, optimizer = build()
    checkpoints = dq.Checkpointer(tmp_path, model, optimizer, every=1, **EXACT)
    train(model, optimizer, checkpoints, 1)
    checkpoints.close()
    checkpoints.close()
    assert not optimizer._optimizer_step_post_hooks
    with pytest.raises(dq.SaveError, match="closed"):
        checkpoints.step()
    with dq.Checkpointer(tmp_path, model, optimizer, every=1, **EXACT) as another:
        assert another.restore() == 1
        train(model, optimizer, another, 1)
    assert dq.CheckpointStore(tmp_path).steps() == [1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"every": 0},
        {"every": "soon"},
        {"threshold": -1.0, "evaluate": evaluate_net},
        {"mode": "up", "evaluate": evaluate_net},
        {"threshold": math.nan},
        {"window": -1},
        {"on_error": "ignore"},
        {"moments": "4bit"},
        {"method": "zip"},
        {"keep_last": 0},
        {"save_on": ("SIGNONE",)},
        {"evaluate": 3},
    ],
)
def test_bad_arguments_are_refused_at_once(tmp_path, options):
    model, optimizer = build()
    with pytest.raises(dq.ConfigError):
        dq.Checkpointer(tmp_path / "run", model, optimizer, **options)
    assert not (tmp_path / "run").exists()


def test_after_a_step_that_is_not_there_a_new_run_may_begin(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, **EXACT) as checkpoints:
        with pytest.raises(dq.CheckpointNotFoundError):
            checkpoints.restore(7)
        checkpoints.save()
        assert checkpoints.wait().step == 0
