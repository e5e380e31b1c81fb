import logging

import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import lr_scheduler

from dynaquant_core.errors import ConfigError, StateMismatchError
from dynaquant_core.training.capture import capture
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject
from tests.training.models import Net, bits, gpt_loss, net_loss, one_step, seed_everything, small_gpt, stored

OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3),
    "adam amsgrad": lambda params: torch.optim.Adam(params, lr=1e-3, amsgrad=True),
    "adamw capturable lr": lambda params: torch.optim.AdamW(params, lr=torch.tensor(1e-3)),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "plain sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=1e-2),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-3, centered=True, momentum=0.5),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2),
    "named": lambda params: torch.optim.AdamW([(f"p{i}", p) for i, p in enumerate(params)], lr=1e-3),
}


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(make_optimizer):
    def build():
        model = Net()
        optimizer = make_optimizer(model.parameters())
        scheduler = lr_scheduler.StepLR(optimizer, 3, 0.5)
        return Subject(model, optimizer, scheduler)

    seed_everything()
    run = build()
    for _ in range(5):
        one_step(run.model, run.optimizer, net_loss, run.scheduler)
    tree = stored(capture(run, 5))
    losses = [one_step(run.model, run.optimizer, net_loss, run.scheduler) for _ in range(5)]

    seed_everything(99)
    resumed = build()
    put_back(resumed, tree)
    assert [
        one_step(resumed.model, resumed.optimizer, net_loss, resumed.scheduler) for _ in range(5)
    ] == losses
    assert bits(capture(resumed, 10)) == bits(capture(run, 10))


def test_capture_changes_nothing_and_takes_no_step():
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fired = []
    optimizer.register_step_post_hook(lambda *_: fired.append(1))
    before = bits(model.state_dict())
    tree = capture(Subject(model, optimizer), 0)
    assert tree["optimizer"]["state"] == {}
    assert not optimizer.state
    assert not fired
    assert bits(model.state_dict()) == before
    assert all(parameter.grad is None for parameter in model.parameters())


SCHEDULERS = {
    "multi step": lambda o: lr_scheduler.MultiStepLR(o, [2, 2, 4]),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.StepLR(o, 2)]
    ),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.MultiStepLR(o, [1, 2])], [2]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # SequentialLR's own doing before torch 2.9
@pytest.mark.parametrize("make_scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_every_scheduler_of_torch_survives(make_scheduler):
    def build():
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return Subject(model, optimizer, make_scheduler(optimizer))

    def rates(run, steps):
        found = []
        for _ in range(steps):
            run.optimizer.step()
            plateau = isinstance(run.scheduler, lr_scheduler.ReduceLROnPlateau)
            run.scheduler.step(*([1.0] if plateau else []))
            found.append(run.optimizer.param_groups[0]["lr"])
        return found

    run, resumed = build(), build()
    rates(run, 3)
    put_back(resumed, stored(capture(run, 3)))
    assert resumed.scheduler.state_dict() == run.scheduler.state_dict()
    assert rates(resumed, 4) == rates(run, 4)


def test_several_models_optimizers_schedulers_a_scaler_and_extra():
    class Position:
        def __init__(self, at):
            self.at = at

        def state_dict(self):
            return {"at": self.at, "table": torch.arange(self.at)}

        def load_state_dict(self, state):
            self.at = state["at"]
            assert torch.equal(state["table"], torch.arange(self.at))

    def build(at):
        models = {"left": nn.Linear(2, 2), "right": nn.Linear(2, 3)}
        optimizers = {
            "both": torch.optim.Adam([*models["left"].parameters(), models["right"].weight]),
            "bias": torch.optim.SGD([models["right"].bias], lr=0.1, momentum=0.9),
        }
        schedulers = {name: lr_scheduler.StepLR(optimizer, 2) for name, optimizer in optimizers.items()}
        scaler = torch.amp.GradScaler("cpu", init_scale=float(at))
        return Subject(models, optimizers, schedulers, scaler, {"data": Position(at)})

    run, resumed = build(17), build(2)
    for _ in range(3):
        x = torch.randn(4, 2)
        sum(model(x).square().sum() for model in run.models.values()).backward()
        for name, optimizer in run.optimizers.items():
            optimizer.step()
            run.scheduler[name].step()
    tree = stored(capture(run, 3))
    assert "left.weight" in tree["optimizer"]["both"]["state"]
    put_back(resumed, tree)
    assert bits(capture(resumed, 3)) == bits(capture(run, 3))
    assert resumed.extra["data"].at == 17
    assert resumed.scaler.get_scale() == 17.0


@pytest.mark.parametrize(
    "wrap", [lambda m: m, lambda m: torch.compile(m, backend="eager")], ids=["plain", "compiled"]
)
@pytest.mark.parametrize(
    "unwrap", [lambda m: m, lambda m: torch.compile(m, backend="eager")], ids=["plain", "compiled"]
)
def test_wrapped_and_plain_models_take_each_others_state(wrap, unwrap):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)
            self.b = self.a

    model, other = wrap(Shared()), unwrap(Shared())
    run = Subject(model, torch.optim.AdamW(model.parameters()))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    run.optimizer.step()
    resumed = Subject(other, torch.optim.AdamW(other.parameters()))
    put_back(resumed, stored(capture(run, 1)))
    assert bits(capture(resumed, 1)) == bits(capture(run, 1))


def test_tied_frozen_and_unused_parameters():
    def build():
        model = small_gpt()
        model.wpe.weight.requires_grad_(False)
        return Subject(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3))

    run, resumed = build(), build()
    one_step(run.model, run.optimizer, gpt_loss)
    put_back(resumed, stored(capture(run, 1)))
    assert resumed.model.head.weight is resumed.model.wte.weight
    assert bits(capture(resumed, 1)) == bits(capture(run, 1))


def test_parameters_may_stand_in_another_order_within_their_group():
    model, other = Net(), Net()
    run = Subject(model, torch.optim.AdamW(model.parameters()))
    one_step(model, run.optimizer, net_loss)
    resumed = Subject(other, torch.optim.AdamW(list(other.parameters())[::-1]))
    put_back(resumed, stored(capture(run, 1)))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(run.optimizer.state[a]["exp_avg"], resumed.optimizer.state[b]["exp_avg"])


@pytest.mark.parametrize("named", [True, False])
def test_the_names_that_torch_notes_in_a_group_are_those_of_its_parameters(named):
    """Not those of the checkpoint, whose parameters may have stood in another order."""
    model, other = Net(), Net()
    run = Subject(model, torch.optim.AdamW(model.named_parameters()))
    one_step(model, run.optimizer, net_loss)
    turned = list(other.named_parameters())[::-1]
    resumed = Subject(other, torch.optim.AdamW(turned if named else [weight for _, weight in turned]))
    put_back(resumed, stored(capture(run, 1)))
    group = resumed.optimizer.param_groups[0]
    assert group.get("param_names") == ([name for name, _ in turned] if named else None)
    assert all(map(torch.is_tensor, group["params"]))
    one_step(other, resumed.optimizer, net_loss)


def changed_shape(net):
    net.head = nn.Linear(32, 5)


def changed_dtype(net):
    net.head.half()


def changed_name(net):
    net.tail = net.head
    del net.head


def on_meta(net):
    net.head = nn.Linear(32, 4, device="meta")


def lazy(net):
    net.head = nn.LazyLinear(4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            changed_shape,
            ["head.weight is (4, 32) float32 in the checkpoint and (5, 32) float32 in the model"],
        ),
        (changed_dtype, ["head.bias is (4,) float32 in the checkpoint and (4,) float16 in the model"]),
        (changed_name, ["tail.weight is not in the checkpoint", "head.weight is not in the model"]),
        (on_meta, ["head.weight has no memory yet"]),
        (lazy, ["head.weight has no shape yet", "Run one forward pass first"]),
    ],
)
def test_a_changed_model_is_an_error_that_names_the_tensors_and_touches_nothing(change, words):
    model, other = Net(), Net()
    run = Subject(model, torch.optim.AdamW(model.parameters()))
    one_step(model, run.optimizer, net_loss)
    tree = stored(capture(run, 1))
    change(other)
    resumed = Subject(other, torch.optim.AdamW(other.parameters()))
    state = {key: value for key, value in other.state_dict().items() if not (value.is_meta or is_lazy(value))}
    before, rng = bits(state), torch.get_rng_state()
    with pytest.raises(StateMismatchError) as caught:
        put_back(resumed, tree)
    for word in words:
        assert word in str(caught.value)
    assert bits({key: other.state_dict()[key] for key in state}) == before
    assert torch.equal(torch.get_rng_state(), rng)
    assert not resumed.optimizer.state


def wrong_optimizers(net):
    body, head = list(net.body.parameters()), [*net.norm.parameters(), *net.head.parameters()]
    return {
        "two groups": torch.optim.AdamW([{"params": body}, {"params": head}]),
        "fewer parameters": torch.optim.AdamW(body),
    }


@pytest.mark.parametrize("kind", ["two groups", "fewer parameters"])
def test_a_changed_optimizer_is_found_before_the_model_is_touched(kind):
    model, other = Net(), Net()
    run = Subject(model, torch.optim.AdamW(model.parameters()))
    one_step(model, run.optimizer, net_loss)
    before = bits(other.state_dict())
    with pytest.raises(StateMismatchError, match="optimizer"):
        put_back(Subject(other, wrong_optimizers(other)[kind]), stored(capture(run, 1)))
    assert bits(other.state_dict()) == before


def test_what_the_checkpoint_lacks_is_an_error_and_what_the_run_lacks_is_said(caplog):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    bare, full = stored(capture(Subject(model), 1)), stored(capture(Subject(model, optimizer, scheduler), 1))
    with pytest.raises(StateMismatchError, match=r"no optimizer .* restore without an optimizer, and"):
        put_back(Subject(model, optimizer), bare)
    with pytest.raises(StateMismatchError, match=r"no optimizer named 'a'; .* under the same names, as when"):
        put_back(Subject(model, {"a": optimizer}), full)
    with pytest.raises(StateMismatchError, match="no extra"):
        put_back(Subject(model, extra={"data": scheduler}), full)
    with caplog.at_level(logging.WARNING):
        put_back(Subject(model), full)
    assert "optimizer, scheduler" in caplog.text


def test_a_scaler_that_was_off_gives_nothing_back():
    off, on = torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu", init_scale=8.0)
    put_back(Subject(Net(), scaler=on), stored(capture(Subject(Net(), scaler=off), 1)))
    assert on.get_scale() == 8.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": 3}, "model is int"),
        ({"model": {}}, "empty mapping"),
        ({"model": {"a": None}}, r"model\['a'\] is NoneType"),
        ({"model": {1: Net()}}, "name 1 must be text"),
        ({"model": Net(), "optimizer": "adam"}, "optimizer is str"),
        ({"model": Net(), "scheduler": 1}, "scheduler is int"),
        ({"model": Net(), "extra": {"data": 1}}, r"extra\['data'\] is int"),
    ],
)
def test_wrong_objects_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Subject(**arguments)


def test_an_object_that_refuses_its_state_ends_in_one_error_that_says_so():
    class Picky:
        def state_dict(self):
            return {"rows": 3}

        def load_state_dict(self, state):
            raise KeyError("columns")

    run = Subject(Net(), extra={"data": Picky()})
    with pytest.raises(
        StateMismatchError, match=r"extra\['data'\] refused its stored state .*restored in part"
    ):
        put_back(run, stored(capture(run, 1)))


@pytest.mark.parametrize("other", ["momentum", "rmsprop", "adagrad"])
def test_another_kind_of_optimizer_is_refused_and_nothing_is_touched(other):
    run = Subject(model := Net(), OPTIMIZERS["adamw"](model.parameters()))
    one_step(run.model, run.optimizer, net_loss)
    tree = stored(capture(run, 1))
    wrong = Subject(model := Net(), OPTIMIZERS[other](model.parameters()))
    before = bits(capture(wrong, 0))
    with pytest.raises(StateMismatchError, match="another kind of optimizer"):
        put_back(wrong, tree)
    assert bits(capture(wrong, 0)) == before


def test_one_optimizer_where_there_were_two_is_refused():
    models = {"a": Net(), "b": Net()}
    two = {name: OPTIMIZERS["adamw"](model.parameters()) for name, model in models.items()}
    tree = stored(capture(Subject(models, two), 1))
    with pytest.raises(StateMismatchError, match="as many optimizers"):
        put_back(Subject(models, two["a"]), tree)
