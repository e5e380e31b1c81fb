"""A scheduler or optimizer of another kind than when it was saved, and objects that refuse what is stored."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import dynaquant_core as dq
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.training.capture import capture
from dynaquant_core.training.kinds import NEEDED
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject
from tests.training.models import EXACT, Net, bits, build, net_loss, one_step, stored, train

pytestmark = pytest.mark.filterwarnings(
    "ignore:The epoch parameter in"
)  # SequentialLR's own doing, torch < 2.9

SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o),
    "two": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.CosineAnnealingLR(o, 5)], [2]
    ),
    "other two": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.StepLR(o, 5)], [2]
    ),
    "three": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.ConstantLR(o), lr_scheduler.LinearLR(o), lr_scheduler.CosineAnnealingLR(o, 5)],
        [2, 4],
    ),
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def run_with(scheduler, steps=0, **others):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = Subject(model, optimizer, None if scheduler is None else SCHEDULERS[scheduler](optimizer), **others)
    for _ in range(steps):
        one_step(run.model, run.optimizer, net_loss)
    return run


def refuses_and_touches_nothing(run, tree, words):
    before = bits(capture(run, 0))
    with pytest.raises(StateMismatchError, match=words) as caught:
        put_back(run, tree)
    assert "othing was restored" in str(caught.value)
    assert "in part" not in str(caught.value)
    assert bits(capture(run, 0)) == before


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("step", "two"),
        ("step", "lambda"),
        ("step", "one cycle"),
        ("step", "cosine"),
        ("step", "plateau"),
        ("three", "two"),
        ("two", "three"),
        ("two", "other two"),
        ("two", "chain"),
    ],
)
def test_another_kind_of_scheduler_is_refused_and_nothing_is_touched(was, now):
    tree = stored(capture(run_with(was, steps=1), 1))
    refuses_and_touches_nothing(
        run_with(now), tree, "scheduler.* another kind of scheduler; build that one or"
    )


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_of_an_older_or_newer_torch_is_of_the_same_kind(kind):
    """Settings come in one version, and what all schedulers hold comes and goes."""
    run = run_with(kind, steps=1)
    tree = stored(capture(run, 1))
    tree["scheduler"]["verbose"] = False
    tree["scheduler"].pop("_is_initial", None)
    tree["scheduler"]["of_a_newer_torch"] = 3
    put_back(run_with(kind), tree)


@pytest.mark.parametrize("inside", [False, True])
def test_a_scheduler_that_averages_weights_is_saved_and_restored(tmp_path, inside):
    """In torch 2.7 its state holds a function."""

    def run():
        model, optimizer = build()
        swa = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=4, anneal_strategy="linear")
        first = lr_scheduler.ConstantLR(optimizer)
        return model, optimizer, lr_scheduler.ChainedScheduler([first, swa]) if inside else swa

    def rates(optimizer, scheduler, count=3):
        return [
            (optimizer.step(), scheduler.step(), optimizer.param_groups[0]["lr"])[2] for _ in range(count)
        ]

    model, optimizer, scheduler = run()
    with dq.Checkpointer(tmp_path, model, optimizer, scheduler=scheduler, **EXACT) as checkpoints:
        one_step(model, optimizer, net_loss, scheduler)
        checkpoints.save()
    model, again, other = run()
    with dq.Checkpointer(tmp_path, model, again, scheduler=other, **EXACT) as checkpoints:
        checkpoints.restore()
    assert rates(again, other) == rates(optimizer, scheduler)


class Bounded:
    """A scheduler of one's own, whose state has the function that it goes by."""

    def __init__(self):
        self.bound, self.at = lambda step: 2 * step, 0

    def state_dict(self):
        return {"bound": self.bound, "at": self.at}

    def load_state_dict(self, state):
        self.bound, self.at = state["bound"], state["at"]


def test_a_function_in_a_schedulers_state_stays_what_it_is():
    saved, now = Bounded(), Bounded()
    saved.at, bound = 3, now.bound
    put_back(Subject(Net(), scheduler=now), stored(capture(Subject(Net(), scheduler=saved), 1)))
    assert (now.at, now.bound) == (3, bound)


class Picky:
    """A scheduler, scaler or anything else that takes half of what is stored, then refuses."""

    def __init__(self, at, refuses=False):
        self.at, self.refuses = at, refuses

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]
        if self.refuses and self.at == 1:
            raise KeyError("half way")


@pytest.mark.parametrize("part", ["scheduler", "scaler"])
def test_a_scheduler_or_scaler_that_refuses_is_taken_back_and_nothing_was_restored(part):
    def run(at, refuses):
        model = Net()
        objects = {"scheduler": {"a": Picky(at), "b": Picky(at)}, "scaler": Picky(at)}
        last = {"b": Picky(at, refuses)}
        objects[part] = {**objects["scheduler"], **last} if part == "scheduler" else last["b"]
        return Subject(model, torch.optim.SGD(model.parameters(), lr=0.1), **objects)

    tree = stored(capture(run(1, refuses=False), 1))
    refuses_and_touches_nothing(run(2, refuses=True), tree, f"{part}.* refused its stored state .*half way")


class Shy(torch.optim.SGD):
    """Cannot say what its state is, as one whose state lies on several ranks until it is gathered."""

    shy = False

    def state_dict(self):
        if self.shy:
            raise RuntimeError("not gathered yet")
        return super().state_dict()


class ShyScheduler(Picky):
    def state_dict(self):
        if self.at == 2:
            raise RuntimeError("not gathered yet")
        return super().state_dict()


@pytest.mark.parametrize("part", ["optimizer", "scheduler", "extra"])
def test_an_object_that_cannot_tell_its_own_state_is_one_sentence(part):
    def run(at):
        model = Net()
        optimizer = Shy(model.parameters(), lr=0.1)
        optimizer.shy = part == "optimizer" and at == 2
        other = ShyScheduler(at) if part != "optimizer" else Picky(at)
        return (
            Subject(model, optimizer, extra={"x": other})
            if part == "extra"
            else Subject(model, optimizer, other)
        )

    tree, now = stored(capture(run(1), 1)), run(2)
    before = bits(now.model.state_dict())
    said = r"could not tell its state.* \(RuntimeError: not gathered yet\); .*Nothing was restored"
    with pytest.raises(StateMismatchError, match=said):
        put_back(now, tree)
    assert bits(now.model.state_dict()) == before


def test_an_extra_that_is_a_module_is_compared_as_a_model_is():
    def run(width):
        return run_with(None, extra={"counter": Picky(width), "ema": nn.Linear(3, width)})

    tree = stored(capture(run(4), 1))
    refuses_and_touches_nothing(
        run(5),
        tree,
        r"does not fit extra\['ema'\]: weight is \(4, 3\) float32 in the checkpoint and \(5, 3\)",
    )
    resumed = run(4)
    put_back(resumed, tree)
    assert bits(resumed.extra["ema"].state_dict()) == bits(tree["extra"]["ema"])


def one_update(kind, steps=1):
    model = Net()
    run = Subject(model, kind(model.parameters(), lr=1e-3))
    for _ in range(steps):
        one_step(model, run.optimizer, net_loss)
    return run


@pytest.mark.parametrize(
    ("was", "now"), [(torch.optim.AdamW, torch.optim.Adamax), (torch.optim.Adamax, torch.optim.AdamW)]
)
def test_a_kind_of_optimizer_whose_settings_are_some_of_the_others_is_refused(was, now):
    tree = stored(capture(one_update(was), 1))
    refuses_and_touches_nothing(one_update(now, steps=0), tree, "which needs .* another kind of optimizer")


@pytest.mark.parametrize("kind", NEEDED)
def test_torchs_optimizers_keep_what_the_table_says_they_need(kind):
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = kind([weight])
    weight.grad = torch.ones(3, 2)
    if kind is torch.optim.SparseAdam:
        weight.grad = weight.grad.to_sparse()
    optimizer.step()
    assert NEEDED[kind] <= set(optimizer.state[weight])
    run = Subject(nn.Linear(1, 1), optimizer)
    put_back(run, stored(capture(run, 1)))
    optimizer.step()


class Decoupled(torch.optim.AdamW):
    """Made from one of torch's, and keeps what that keeps."""


class Quantised(torch.optim.AdamW):
    """Made from one of torch's, and by a step of its own keeps something else instead."""

    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            self.state[weight] |= {"step": torch.tensor(1.0), "codes": torch.zeros(3)}


class Compressed(torch.optim.AdamW):
    """Steps as the one that it is made from, whose moments it makes itself."""

    def _init_group(self, group, *lists):
        for weight in group["params"]:
            self.state[weight] |= {"step": torch.tensor(1.0), "momentum_buffer": torch.zeros(3)}
        return False


def test_a_class_made_from_torchs_is_checked_where_it_leaves_its_states_to_that():
    tree = stored(capture(one_update(torch.optim.Adamax), 1))
    refuses_and_touches_nothing(one_update(Decoupled, steps=0), tree, "Decoupled, which needs exp_avg_sq")
    for kind in (Decoupled, Quantised, Compressed):
        run = one_update(kind, steps=0)
        put_back(run, stored(capture(one_update(kind), 1)))
        assert run.optimizer.state


@pytest.mark.parametrize("moments", ["8bit", "exact", "compact", "minimal", "sparse", "second", "none"])
def test_what_is_needed_is_there_under_every_policy_for_moments(tmp_path, moments):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=1, moments=moments) as checkpoints:
        train(model, optimizer, checkpoints, 2)
    other, again = build()
    with dq.Checkpointer(tmp_path, other, again, every=1, moments=moments) as checkpoints:
        assert checkpoints.restore() == 2
        train(other, again, checkpoints, 1)


def test_after_a_refusal_the_run_goes_on_without_the_scheduler(tmp_path):
    run = run_with("step", steps=1)
    with dq.Checkpointer(tmp_path, run.model, run.optimizer, scheduler=run.scheduler, **EXACT) as checkpoints:
        checkpoints.save()
    other = run_with("cosine")
    with dq.Checkpointer(tmp_path, other.model, other.optimizer, scheduler=other.scheduler) as checkpoints:
        with pytest.raises(StateMismatchError, match="another kind of scheduler"):
            checkpoints.restore()
        with pytest.raises(dq.StoreNotEmptyError):
            checkpoints.save()
    with dq.Checkpointer(tmp_path, other.model, other.optimizer) as checkpoints:
        assert checkpoints.restore() == 0
        assert bits(other.model.state_dict()) == bits(run.model.state_dict())
