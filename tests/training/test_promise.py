import logging
import math

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.methods.exact import Exact
from dynaquant_core.methods.registry import resolve_method
from dynaquant_core.plugins import PluginOptions
from dynaquant_core.training.capture import capture
from dynaquant_core.training.subject import Subject
from tests.training.models import (
    EXACT,
    Net,
    bits,
    build,
    evaluate_gpt,
    evaluate_net,
    gpt_loss,
    net_loss,
    one_step,
    seed_everything,
    small_gpt,
    train,
)


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


def test_one_checkpoint_may_be_tighter_and_the_next_is_searched_as_before(tmp_path):
    seed_everything()
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with dq.Checkpointer(
        tmp_path, model, optimizer, every=10, evaluate=evaluate_gpt, threshold=0.1
    ) as checkpoints:
        train(model, optimizer, checkpoints, 10, gpt_loss)
        loose = checkpoints.wait()
        checkpoints.save(threshold=0.001)
        tight = checkpoints.wait()
        for refused in (-0.1, "1%", float("nan")):
            with pytest.raises(dq.ConfigError, match="threshold"):
                checkpoints.save(threshold=refused)
        train(model, optimizer, checkpoints, 10, gpt_loss)
        after = checkpoints.wait()
    assert loose.degradation > 0.001
    assert tight.met
    assert tight.degradation <= 0.001
    assert tight.report["search_state"] == loose.report["search_state"]
    assert (tight.step, after.step) == (10, 20)
    assert after.report["search_state"]["checkpoints"] == 2


def test_a_threshold_without_evaluate_is_refused_before_anything_is_saved(tmp_path):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        with pytest.raises(dq.ConfigError, match="takes evaluate="):
            checkpoints.save(threshold=0.01)
        assert checkpoints.wait() is None


def test_the_direction_of_the_metric_is_recorded_and_finds_the_best(tmp_path):
    model, optimizer = build()
    now = {"score": 0.0}
    options = {"every": 1, "evaluate": lambda: now["score"], "mode": "max"}
    with dq.Checkpointer(tmp_path, model, optimizer, **options) as checkpoints:
        for now["score"] in (0.5, 0.75, 0.25):
            train(model, optimizer, checkpoints, 1)
    assert dq.CheckpointStore(tmp_path).info(1).report["mode"] == "max"
    assert dq.CheckpointStore(tmp_path).best().step == 2


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
        assert checkpoints.last.config == resolve_method(None).space(gradients=True).beyond[-1]
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
    assert store.info(2).config == resolve_method(None).space(gradients=True).beyond[-1]
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


@pytest.mark.parametrize("spares", [True, False])
def test_what_adam_averages_itself_is_not_recorded_again_unless_the_method_asks(tmp_path, spares):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    method = Watching()
    method.spares_gradients = spares
    with dq.Checkpointer(tmp_path, model, optimizer, every=6, window=3, method=method) as checkpoints:
        train(model, optimizer, checkpoints, 6)
        offered = method.seen[0]["model.head.weight"]
        assert torch.equal(offered, optimizer.state[model.head.weight]["exp_avg"]) is spares
        assert (checkpoints.wait().seconds["collector"] == 0) is spares


@pytest.mark.parametrize("threshold", [5, 1, 1.0, -0.1, float("nan"), "0.01", True])
def test_a_threshold_is_a_share(tmp_path, threshold):
    """5 means 5%, and would allow 500%."""
    model, optimizer = build()
    with pytest.raises(dq.ConfigError, match="threshold must be a share of at least 0 and below 1"):
        dq.Checkpointer(tmp_path, model, optimizer, evaluate=evaluate_net, threshold=threshold)
    with pytest.raises(dq.ConfigError, match="threshold must be a share"):
        PluginOptions(threshold=threshold)
